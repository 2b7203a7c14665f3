"""Adapters that are wrong in one way each, as a user's first attempt might be."""

from __future__ import annotations

from typing import Any

import numpy as np

from properties.protocol import Array, Conventions, Precision, Routing
from properties.reference import Reference


class Minimal:
    """The least that can be judged: one method, correct."""

    name = "minimal"
    version = "1"
    precision = Precision(compute="float64", accumulate="float64", storage="float64")

    def rms_norm(self, x: Array, weight: Array, *, eps: float) -> Array:
        root = np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps)
        return np.asarray(weight * ((1.0 / root) * x))


class OffersNothing:
    name = "empty"
    version = "1"
    precision = Precision()


class ConstructorRaises(Minimal):
    def __init__(self) -> None:
        raise RuntimeError("no device")


class NoVersion:
    name = "unversioned"
    precision = Precision()


class UnknownFormat(Minimal):
    precision = Precision(storage="float31")


class UnknownConvention(Minimal):
    conventions = Conventions(expert_rank="median")  # type: ignore[arg-type]


class WrongSignature(Minimal):
    def rms_norm(self, x: Array, weight: Array) -> Array:  # type: ignore[override]
        return x * weight


class ReturnsList(Minimal):
    def rms_norm(self, x: Array, weight: Array, *, eps: float) -> Any:
        return super().rms_norm(x, weight, eps=eps).tolist()


class ReturnsFloat32(Minimal):
    def rms_norm(self, x: Array, weight: Array, *, eps: float) -> Array:
        return super().rms_norm(x, weight, eps=eps).astype(np.float32)


class ReturnsTransposed(Minimal):
    def rms_norm(self, x: Array, weight: Array, *, eps: float) -> Array:
        return super().rms_norm(x, weight, eps=eps)[..., :-1]


class WithoutEps(Minimal):
    def rms_norm(self, x: Array, weight: Array, *, eps: float) -> Array:
        return super().rms_norm(x, weight, eps=0.0)


class Raises(Minimal):
    def rms_norm(self, x: Array, weight: Array, *, eps: float) -> Array:
        raise ZeroDivisionError("no rows")


class Mutates(Minimal):
    def rms_norm(self, x: Array, weight: Array, *, eps: float) -> Array:
        out = super().rms_norm(x, weight, eps=eps)
        x.setflags(write=True)
        x[...] = out
        return out


class Forgets(Minimal):
    """Right at first, wrong from the fourth call on, right again when a case is repeated."""

    calls = 0

    def rms_norm(self, x: Array, weight: Array, *, eps: float) -> Array:
        type(self).calls += 1
        out = super().rms_norm(x, weight, eps=eps)
        return out + 1.0 if self.calls % 4 == 0 else out


class SkipsItself(Minimal):
    """Tries to turn its own failure into a skip."""

    def rms_norm(self, x: Array, weight: Array, *, eps: float) -> Array:
        import pytest

        pytest.skip("not today")


class RejectsInput(Minimal):
    """Tries to make Hypothesis discard the case."""

    def rms_norm(self, x: Array, weight: Array, *, eps: float) -> Array:
        import hypothesis

        hypothesis.reject()


class TupleRouting(Reference):
    """Returns the routing as a plain tuple."""

    def route(self, logits: Array, bias: Array, *, top_k: int) -> Any:
        return tuple(super().route(logits, bias, top_k=top_k))


class FloatIds(Reference):
    def route(self, logits: Array, bias: Array, *, top_k: int) -> Routing:
        routed = super().route(logits, bias, top_k=top_k)
        return routed._replace(expert_ids=routed.expert_ids.astype(np.float64))


class Prints(Minimal):
    """Says something at every call."""

    def rms_norm(self, x: Array, weight: Array, *, eps: float) -> Array:
        print("normalising")
        return super().rms_norm(x, weight, eps=eps)


not_a_class = 3
