"""Four wrong implementations of everything at once, in any precision.

``Faulty`` is the reference behind the protocol, rounded to the formats it declares, with one of
``FAULTS`` built in. A fault is a change of all results, or of a few of the reference's functions
while a call of the implementation lasts: what the properties compute for themselves stays right.

Legend: M tokens, N routed experts, K top_k.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields, is_dataclass
from functools import wraps
from typing import Any
from unittest.mock import patch

import numpy as np

from properties.protocol import Precision, number_format
from properties.reference import Reference
from properties.rounding.arithmetic import format_named

__all__ = ["FAULTS", "PRECISIONS", "Fault", "Faulty"]

ROUTING_METHODS = ("route", "route_vjp", "route_grouped", "quantile_update")
WITH_EXPERTS = ("route", "route_vjp", "route_grouped", "experts", "experts_vjp")
WITH_EXPERTS += ("layer", "layer_vjp")

PRECISIONS = {
    "float64": Precision("float64", "float64", "float64"),
    "float32": Precision("float32", "float32", "float32"),
    "bfloat16": Precision("float32", "float32", "bfloat16"),
}

# The format one below the one that sums are declared in.
LOWER = {"float64": "float32", "float32": "bfloat16"}


@dataclass(frozen=True)
class Fault:
    """What goes wrong: in ``results``, real arrays of one call, or in the ``patches`` of its run.

    ``methods`` are those that can show it; none named stands for all. A patch replaces the
    function of that name in that module of the reference, given the right one.
    """

    name: str
    mistake: str
    methods: tuple[str, ...] = ()
    results: Callable[[Any, Precision], Any] | None = None
    patches: dict[str, Callable[[Any], Any]] = field(default_factory=dict)

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """The reference with its patches, for the time of one call."""
        with ExitStack() as stack:
            for place, wrong in self.patches.items():
                module_name, _, name = place.rpartition(".")
                # Not by attribute: the package's functions hide modules of the same name.
                module = sys.modules[module_name]
                stack.enter_context(patch.object(module, name, wrong(getattr(module, name))))
            yield


class Faulty:
    """The reference in a precision of its own, with a fault."""

    version = "0"
    conventions = Reference.conventions

    def __init__(self, fault: Fault, precision: Precision) -> None:
        self.name = fault.name
        self.precision = precision
        self._fault = fault
        self._right = Reference()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._right, name)  # AttributeError for what the reference lacks

        @wraps(method)
        def call(*arguments: Any, **keywords: Any) -> Any:
            with self._fault.at_work():
                out = method(*_mapped(_widened, arguments), **_mapped(_widened, keywords))
            return _Balancer(self, out) if name == "balancer" else self._result(name, out)

        return call

    def _result(self, name: str, out: Any) -> Any:
        routing = name in ROUTING_METHODS
        dtype = self.precision.routing_format if routing else self.precision.storage

        def spoilt(array: Any) -> Any:
            if not np.issubdtype(array.dtype, np.floating):
                return array
            if self._fault.results is not None:
                array = self._fault.results(array, self.precision)
            with np.errstate(over="ignore"):
                return array.astype(number_format(dtype))

        return _mapped(spoilt, out)


class _Balancer:
    """The reference's balancer, whose bias comes out wrong after an update."""

    def __init__(self, owner: Faulty, right: Any) -> None:
        self._owner, self._right = owner, right
        self._updated = False

    @property
    def bias(self) -> Any:
        dtype = number_format(self._owner.precision.routing_format)
        if not self._updated:
            return self._right.bias.astype(dtype)
        return self._owner._result("quantile_update", self._right.bias)

    @property
    def histogram(self) -> Any:
        return self._right.histogram

    def observe(self, logits: Any, *, training: bool = True, mask: Any = None) -> Any:
        with self._owner._fault.at_work():
            routing = self._right.observe(_widened(logits), training=training, mask=mask)
        return self._owner._result("route", routing)

    def update(self) -> None:
        self._right.update()
        self._updated = True

    def state_dict(self) -> Any:
        return self._right.state_dict()

    def load_state_dict(self, state: Any) -> None:
        self._right.load_state_dict(state)

    def set_enabled(self, flag: bool) -> None:
        self._right.set_enabled(flag)


def _widened(array: Any) -> Any:
    return array if array.dtype.kind in "biu" else array.astype(np.float64)


def _mapped(function: Callable[[Any], Any], value: Any) -> Any:
    """Apply to every array, through tuples, dicts and parameter classes."""
    if isinstance(value, np.ndarray):
        return function(value)
    if isinstance(value, tuple):
        parts = [_mapped(function, part) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    if isinstance(value, dict):
        return {key: _mapped(function, part) for key, part in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        changed = {
            part.name: _mapped(function, getattr(value, part.name)) for part in fields(value)
        }
        return type(value)(**changed)
    return value


# The faults --------------------------------------------------------------------------------------


def _zero(array: Any, precision: Precision) -> Any:
    return np.zeros_like(array)


def _accumulated_below(array: Any, precision: Precision) -> Any:
    """What a sum in the next lower format may come to: off by four of its roundoffs."""
    lower = format_named(LOWER[precision.accumulate])
    return array * (1.0 + 4.0 * lower.roundoff)


def _uniform(right: Callable[..., Any]) -> Callable[..., Any]:
    """1/K for each of K weights, whatever the scores."""

    def combine_weights(s_MN: Any, expert_ids_MK: Any, **options: Any) -> Any:
        return np.full(expert_ids_MK.shape, 1.0 / expert_ids_MK.shape[1])

    return combine_weights


def _uniformly_weighed(right: Callable[..., Any]) -> Callable[..., Any]:
    """The same where weights are an argument: their mean in place of each."""

    def experts(x: Any, expert_ids_MK: Any, weights_MK: Any, *others: Any, **options: Any) -> Any:
        mean = np.mean(weights_MK, axis=1, keepdims=True)
        return right(x, expert_ids_MK, mean + 0.0 * weights_MK, *others, **options)

    return experts


def _without_favourite(right: Callable[..., Any]) -> Callable[..., Any]:
    """The expert that most slots name adds nothing."""

    def experts(x: Any, expert_ids_MK: Any, weights_MK: Any, *others: Any, **options: Any) -> Any:
        if expert_ids_MK.size:
            favourite = np.bincount(expert_ids_MK.ravel()).argmax()
            weights_MK = np.where(expert_ids_MK == favourite, 0.0, weights_MK)
        return right(x, expert_ids_MK, weights_MK, *others, **options)

    return experts


def _never_chosen(right: Callable[..., Any]) -> Callable[..., Any]:
    """The expert that most tokens want is left out, where there are enough others."""

    def top_k_ids(biased_MN: Any, top_k: int) -> Any:
        ids_MK = right(biased_MN, top_k)
        if ids_MK.size == 0 or top_k == biased_MN.shape[1]:
            return ids_MK
        favourite = np.bincount(ids_MK.ravel()).argmax()
        others = np.arange(biased_MN.shape[1]) != favourite
        return right(np.where(others, biased_MN, -np.inf), top_k)

    return top_k_ids


FAULTS = {
    fault.name: fault
    for fault in (
        Fault("all-zero output", "every result is 0, as from memory never written", results=_zero),
        Fault(
            "dropped expert",
            "the expert in most demand is skipped, as one beyond its capacity is",
            WITH_EXPERTS,
            patches={
                "reference_numpy.experts": _without_favourite,
                "reference_numpy.experts_vjp": _without_favourite,
                "reference_numpy.layer.experts": _without_favourite,
                "reference_numpy.layer.experts_vjp": _without_favourite,
                "reference_numpy.routing.top_k_ids": _never_chosen,
            },
        ),
        Fault(
            "uniform weights",
            "experts are weighed alike, as where scores are lost on the way",
            WITH_EXPERTS,
            patches={
                "reference_numpy.experts": _uniformly_weighed,
                "reference_numpy.experts_vjp": _uniformly_weighed,
                "reference_numpy.layer.combine_weights": _uniform,
                "reference_numpy.routing.combine_weights": _uniform,
            },
        ),
        Fault(
            "next lower precision",
            "results are off by 4 u of the format below the declared one, times (1 + 4 u)",
            results=_accumulated_below,
        ),
    )
}
