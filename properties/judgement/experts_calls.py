"""Ways to lay the arguments of a call out in memory, and calls that lie in the same memory.

Legend: M tokens, N experts, L latent width, H hidden width of an expert.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from properties.judgement.experts import ExpertCall, parts
from properties.judgement.memory import Rewritable
from properties.protocol import Array, ExpertParameters
from properties.strategies.arrays import LAYOUTS, Layout, laid_out

__all__ = ["WAYS", "Rewritten", "expanded", "laid_out_in"]

WAYS = len(LAYOUTS)


def laid_out_in(call: ExpertCall, way: int) -> ExpertCall:
    """The same values in the way-th layouts: in ``WAYS`` of them, each argument has each layout."""
    x, expert_ids, weights, cotangent = (
        laid_out(values, LAYOUTS[(way + shift) % WAYS])
        for shift, values in enumerate((call.x, call.expert_ids, call.weights, call.cotangent))
    )
    return replace(
        call,
        x=x,
        expert_ids=expert_ids,
        weights=weights,
        cotangent=cotangent,
        parameters=_projections(call.parameters, way),
    )


def expanded(call: ExpertCall) -> ExpertCall:
    """The first token for all of them, and one number for the cotangent, behind strides of 0.

    The number is the cotangent's largest size, so that gradients are as much in range as before.
    """
    size = np.max(np.abs(call.cotangent), initial=0.0) or 1.0
    shape = call.x.shape
    return replace(
        call, x=np.broadcast_to(call.x[:1], shape), cotangent=np.broadcast_to(size, shape)
    )


def _projections(parameters: ExpertParameters, way: int) -> ExpertParameters:
    """Gate and up contiguous, halves of one stack, its alternating rows, by columns, or sliced."""
    gate, up = parameters.gate_proj, parameters.up_proj
    down = laid_out(parameters.down_proj, LAYOUTS[(way + 1) % WAYS])
    hidden = gate.shape[1]
    if way == 1:
        fused = np.concatenate((gate, up), axis=1)
        return ExpertParameters(fused[:, :hidden], fused[:, hidden:], down)
    if way == 2:
        fused = np.stack((gate, up), axis=2).reshape(gate.shape[0], 2 * hidden, gate.shape[2])
        return ExpertParameters(fused[:, ::2], fused[:, 1::2], down)
    if way == 3:
        return ExpertParameters(_by_columns(gate), _by_columns(up), _by_columns(down))
    layout: Layout = "contiguous" if way == 0 else "sliced"
    return ExpertParameters(laid_out(gate, layout), laid_out(up, layout), down)


def _by_columns(projections: Array) -> Array:
    """The same matrices with columns instead of rows side by side in memory."""
    return np.ascontiguousarray(projections.swapaxes(1, 2)).swapaxes(1, 2)


class Rewritten:
    """Calls whose arguments all lie in the same memory, behind the same views."""

    def __init__(self, call: ExpertCall) -> None:
        """Memory of the shapes of ``call``, in the formats of storage and routing."""
        subject, self._memory = call.subject, Rewritable()
        stored = (call.x, call.cotangent, *parts(call.parameters))
        self._views = [
            *(self._memory.view(values.shape, subject.storage_dtype) for values in stored),
            self._memory.view(call.weights.shape, subject.routing_dtype),
            self._memory.view(call.expert_ids.shape, call.expert_ids.dtype),
        ]

    def holding(self, call: ExpertCall) -> ExpertCall:
        """The call, its values written over those of the one before."""
        self._memory.write(
            (call.x, call.cotangent, *parts(call.parameters), call.weights, call.expert_ids)
        )
        x, cotangent, gate_proj, up_proj, down_proj, weights, expert_ids = self._views
        return replace(
            call,
            x=x,
            cotangent=cotangent,
            parameters=ExpertParameters(gate_proj, up_proj, down_proj),
            weights=weights,
            expert_ids=expert_ids,
        )
