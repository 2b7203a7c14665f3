"""What a layer returns, forward and backward, judged in one go; and its arguments in other memory.

Legend: M tokens, N routed experts, D model width.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np

from properties.checks import within
from properties.judgement.layer import LegalLayer, logit_ball
from properties.judgement.layer_calls import LayerCall, cotangent_of
from properties.judgement.layer_gradient import (
    legal_gradients,
    named_arrays,
    parameter_gradients,
    selections_of,
    silenced,
)
from properties.judgement.memory import Rewritable
from properties.judgement.narrow import COARSE, all_narrow
from properties.protocol import Array, LayerParameters
from properties.strategies.arrays import LAYOUTS, laid_out
from properties.strategies.layer_calls import SizedInputs
from properties.subject import Subject

__all__ = [
    "Judged",
    "Rewritten",
    "digits_left",
    "expanded",
    "laid_out_in",
    "sequences",
    "shortened",
]

# How long sequences are: even, and longer than a tile of 16.
LENGTH = 18


@dataclass(frozen=True)
class Judged:
    """A call with a cotangent, and all that it may return.

    The cotangent is 0 for tokens with several legal selections, so that one backward call tells
    the gradients of parameters, too.
    """

    call: LayerCall
    cotangent: Array
    outputs: LegalLayer | None
    d_x: LegalLayer | None
    d_parameters: LayerParameters | None
    logits: Any

    @classmethod
    def of(cls, subject: Subject, inputs: SizedInputs) -> Judged:
        """Of what was drawn, as far as every format holds it, for the methods that are offered."""
        far = all_narrow(subject).arithmetic.stored.largest / 64.0
        if np.abs(inputs.layer.x).max(initial=0.0) > far:
            layer = replace(inputs.layer, x=np.clip(inputs.layer.x, -far, far))
            inputs = replace(inputs, layer=layer)
        call = LayerCall.of(subject, inputs.layer)
        largest = float(np.abs(call.x).max(initial=0.0))
        return cls.of_call(subject, call, cotangent_of(subject, inputs.cotangent, largest))

    @classmethod
    def of_call(cls, subject: Subject, call: LayerCall, cotangent: Array) -> Judged:
        """Of a call and a cotangent in the subject's formats."""
        d_x, d_parameters = None, None
        if "layer_vjp" in subject.offered:
            selections = selections_of(subject, call)
            cotangent = silenced(cotangent, selections)
            d_x, _ = legal_gradients(subject, call, cotangent, selections)
            d_parameters = parameter_gradients(subject, call, cotangent, selections)
        return cls(
            call,
            cotangent,
            call.legal(subject) if "layer" in subject.offered else None,
            d_x,
            d_parameters,
            logit_ball(subject, call.x, call.parameters),
        )

    def require(self, subject: Subject, what: str) -> None:
        """Call every method that is offered, and require its results to lie within their radii."""
        self.require_output(subject, what)
        self.require_gradients(subject, what)
        if "router_logits" in subject.offered:
            logits = subject.router_logits(self.call.x, self.call.parameters)
            within(subject, logits, self.logits, f"router_logits{what}")

    def require_output(self, subject: Subject, what: str) -> None:
        """The same for ``layer``."""
        if self.outputs is not None:
            actual = self.call.output(subject)
            within(subject, actual, self.outputs.nearest(actual), f"layer{what}")

    def require_gradients(self, subject: Subject, what: str) -> None:
        """The same for ``layer_vjp``."""
        if self.d_x is None:
            return
        d_x, gradients = self.call.gradients(subject, self.cotangent)
        within(subject, d_x, self.d_x.nearest(d_x), f"d_x{what}")
        for (name, actual), (_, ball) in zip(
            named_arrays(gradients), named_arrays(self.d_parameters), strict=True
        ):
            within(subject, actual, ball, f"d_{name}{what}")


class Rewritten:
    """Layers whose arguments all lie in the same memory, behind the same views."""

    def __init__(self, subject: Subject, judged: Judged) -> None:
        """Memory of the shapes of what ``judged`` is given, in the protocol's formats."""
        self._bias_format, self._format = subject.routing_dtype, subject.storage_dtype
        self._memory = Rewritable()
        self._x, self._cotangent = map(self._view, (judged.call.x, judged.cotangent))
        self._parameters = self._views(judged.call.parameters)

    def holding(self, judged: Judged) -> Judged:
        """The same values, written over those of the layer before."""
        call = judged.call
        arrays = (array for _, array in named_arrays(call.parameters))
        self._memory.write((call.x, judged.cotangent, *arrays))
        call = replace(call, x=self._x, parameters=self._parameters)
        return replace(judged, call=call, cotangent=self._cotangent)

    def _views(self, parameters: Any) -> Any:
        parts = {part.name: getattr(parameters, part.name) for part in fields(parameters)}
        return type(parameters)(
            **{
                name: self._views(part) if is_dataclass(part) else self._view(part, name)
                for name, part in parts.items()
            }
        )

    def _view(self, values: Array, name: str = "") -> Array:
        chosen = self._bias_format if name == "e_score_correction_bias" else self._format
        return self._memory.view(values.shape, chosen)


def digits_left(subject: Subject) -> float:
    """The unit roundoff of sums, or that of storage where it is coarser than bfloat16's."""
    stored, accumulated = subject.arithmetic.stored, subject.arithmetic.accumulated
    return max(accumulated.roundoff, stored.roundoff if stored.roundoff > COARSE else 0.0)


def laid_out_in(judged: Judged, way: int) -> Judged:
    """The same values in the way-th layouts: in as many as there are, each array has each one."""
    arrays = iter(range(way, way + 100))

    def turned(values: Array) -> Array:
        return laid_out(values, LAYOUTS[next(arrays) % len(LAYOUTS)])

    def all_turned(parameters: Any) -> Any:
        parts = {part.name: getattr(parameters, part.name) for part in fields(parameters)}
        return type(parameters)(
            **{
                name: all_turned(part) if is_dataclass(part) else turned(part)
                for name, part in parts.items()
            }
        )

    call = judged.call
    call = replace(call, x=turned(call.x), parameters=all_turned(call.parameters))
    return replace(judged, call=call, cotangent=turned(judged.cotangent))


def expanded(subject: Subject, judged: Judged) -> Judged:
    """One token for all of them, one number for the norm's weight, and a cotangent of few numbers.

    The others are repeated by strides of 0. The cotangent is that of a loss that weighs all
    numbers, all tokens or all columns alike: a number, a row or a column, as it comes with the
    number of tokens. The token has one legal selection, where any has; else the cotangent is 0.
    """
    call, clear = judged.call, np.zeros(1, np.bool_)
    if judged.outputs is not None:
        clear = judged.outputs.clear
    row_D = call.x.reshape(-1, call.x.shape[-1])[int(np.argmax(clear))]
    norm_L = call.parameters.routed_expert_norm
    call = replace(
        call,
        x=np.broadcast_to(row_D, call.x.shape),
        parameters=replace(
            call.parameters, routed_expert_norm=np.broadcast_to(norm_L[0], norm_L.shape)
        ),
    )
    few = _few_numbers(judged.cotangent) if clear.any() else np.zeros(())
    return Judged.of_call(subject, call, np.broadcast_to(few, call.x.shape))


def sequences(subject: Subject, judged: Judged) -> Judged:
    """The same tokens again and again, as two sequences, each the start of a longer one."""

    def begun(values: Array) -> Array:
        rows_MD = values.reshape(-1, values.shape[-1])
        memory = np.zeros((2, LENGTH + 2, rows_MD.shape[1]), values.dtype)
        memory[:, :LENGTH] = np.resize(rows_MD, (2, LENGTH, rows_MD.shape[1]))
        memory[:, LENGTH:] = rows_MD[-1]
        return memory[:, :LENGTH]

    call = replace(judged.call, x=begun(judged.call.x))
    return Judged.of_call(subject, call, begun(judged.cotangent))


def shortened(subject: Subject, judged: Judged) -> Judged:
    """The same call without its last token, or with the only one it has."""
    x, cotangent = judged.call.x, judged.cotangent
    if x.ndim == 1 or len(x) == 1:
        return judged
    return Judged.of_call(subject, replace(judged.call, x=x[:-1]), cotangent[:-1])


def _few_numbers(cotangent: Array) -> Array:
    """The largest number, the row or the column of it: the kinds follow each other as M grows."""
    rows_MD = cotangent.reshape(-1, cotangent.shape[-1])
    size_MD = np.abs(rows_MD)
    row, column = np.unravel_index(int(np.argmax(size_MD)), size_MD.shape)
    kinds: tuple[Array, ...] = (
        size_MD[row, column],
        rows_MD[row],
        cotangent[..., column : column + 1],
    )
    return kinds[len(rows_MD) % len(kinds)]
