"""SiTU-GLUs that are right in another way pass every property, and failures say what is wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from impl_torch.adapter import TorchImplementation
from properties.execution import judge, select
from properties.judgement.activation import Call, GradientCall
from properties.lanes import LANES, Lane
from properties.loading import subject_of
from properties.protocol import Array, Conventions, Precision
from properties.registry import find
from properties.strategies.activation_sweep import Sweep
from tests.mutants import activation_gradient, activation_limits

FEW = Lane("few", 0.1, random=False)
ACTIVATION = [entry.id for entry in select(topics=["activation"])]


class Autograd(TorchImplementation):
    """The formula as it stands, every step in the format of the tensors, gradients by autograd."""

    version = "1"

    def __init__(self, compute: str, storage: str) -> None:
        self.name = f"{compute} in {storage}"
        self.precision = Precision(compute=compute, accumulate="float32", storage=storage)
        if compute == "float64":
            self.precision = Precision(compute=compute, accumulate=compute, storage=storage)
        self.dtype = getattr(torch, compute)

    def situ_glu_forward(
        self, gate: Tensor, up: Tensor, *, beta_gate: float, beta_up: float
    ) -> Tensor:
        _check(beta_gate, beta_up)
        g, u = gate.to(self.dtype), up.to(self.dtype)
        capped = beta_gate * torch.tanh(g / beta_gate) * torch.sigmoid(g)
        return (capped * (beta_up * torch.tanh(u / beta_up))).to(gate.dtype)


class Checked(activation_gradient.CorrectGradient):
    """The formulas in float32 NumPy, with caps that are looked at."""

    def product(self, gate: Array, up: Array, beta_gate: float, beta_up: float) -> Array:
        _check(beta_gate, beta_up)
        return super().product(gate, up, beta_gate, beta_up)

    def gradients(
        self, gate: Array, up: Array, c: Array, beta_gate: float, beta_up: float
    ) -> tuple[Array, Array]:
        _check(beta_gate, beta_up)
        return super().gradients(gate, up, c, beta_gate, beta_up)


class SlopeByCosh(Checked):
    """1/cosh^2, which overflows to 0 far out."""

    def gate_slope(self, t: Array, z: Array) -> Array:
        return 1 / np.cosh(z) ** 2

    up_slope = gate_slope


class SlopeByExp(Checked):
    """4 e / (1 + e)^2 with e = exp(-2 abs(z)), accurate in its tail."""

    def gate_slope(self, t: Array, z: Array) -> Array:
        e = np.exp(-2 * np.abs(z))
        return 4 * e / (1 + e) ** 2

    up_slope = gate_slope


class OtherOrder(Checked):
    """Rounded reciprocals of the caps, (1 - t)(1 + t), and the cotangent first."""

    def product(self, gate: Array, up: Array, beta_gate: float, beta_up: float) -> Array:
        _check(beta_gate, beta_up)
        t, r = self.tanh(gate * (1 / beta_gate)), self.tanh(up * (1 / beta_up))
        return t * r * (beta_gate * beta_up) / (1 + np.exp(-gate))

    def gradients(
        self, gate: Array, up: Array, c: Array, beta_gate: float, beta_up: float
    ) -> tuple[Array, Array]:
        _check(beta_gate, beta_up)
        t, r = self.tanh(gate * (1 / beta_gate)), self.tanh(up * (1 / beta_up))
        sigma, caps = self.sigmoid(gate, beta_gate), beta_gate * beta_up
        d_gate = c * sigma * r * ((1 - t) * (1 + t) * beta_up) + t * r * (1 - sigma) * sigma * (
            caps * c
        )
        return d_gate, t * sigma * (1 - r) * (1 + r) * (caps * c) * (1 / beta_up)


class OffAtZero(Checked):
    """A cap of up to 0 switches its softcap off, as declared; the gradient follows."""

    conventions = Conventions(beta_off=0.0)

    def product(self, gate: Array, up: Array, beta_gate: float, beta_up: float) -> Array:
        _check(*(beta if beta > 0 else 1.0 for beta in (beta_gate, beta_up) if beta != -np.inf))
        return super(Checked, self).product(gate, up, beta_gate, beta_up)

    def gate_cap(self, z: Array, beta: float) -> Array:
        return super().gate_cap(z, beta) if beta > 0 else z

    up_cap = gate_cap
    situ_glu_vjp: Any = None


def _check(*caps: float) -> None:
    if not all(0.0 < cap < np.inf for cap in caps):
        raise ValueError(f"caps must be positive and finite, not {caps}")


RIGHT = [
    Autograd("float32", "float32"),
    Autograd("bfloat16", "bfloat16"),
    Autograd("float16", "float16"),
    Autograd("float32", "float16"),
    Autograd("float32", "float8_e5m2"),
    Autograd("float32", "float8_e4m3fn"),
    SlopeByCosh(),
    SlopeByExp(),
    OtherOrder(),
    OffAtZero(),
]


@pytest.mark.parametrize(
    "implementation", RIGHT, ids=lambda right: f"{type(right).__name__} {right.precision.storage}"
)
def test_what_is_right_in_another_way_passes(implementation: Any) -> None:
    subject = subject_of(implementation)
    for property_id in ACTIVATION:
        outcome = judge(find(property_id), subject, FEW)
        assert outcome.verdict in ("passed", "not offered"), (property_id, outcome.message)


@pytest.mark.parametrize(
    ("mutant", "told"),
    [
        (activation_limits.Exchanged, "situ_glu takes gate and up exchanged"),
        (activation_limits.HalvesOfTheTensor, "halves of each row as halves of the tensor"),
        (activation_limits.OneTableEntryWrong, "called with this number alone"),
        (activation_limits.AnyCap, "which Conventions.beta_off does not declare"),
        (activation_limits.ZeroCapDivides, "by accident: ZeroDivisionError"),
    ],
)
def test_a_failure_says_what_is_wrong(mutant: Any, told: str) -> None:
    outcome = judge(find(mutant.killed_by), subject_of(mutant()), LANES["quick"])
    assert outcome.verdict == "failed"
    assert told in outcome.message


@pytest.mark.parametrize(("name", "count"), [("bfloat16", 65_536), ("float8_e4m3fn", 256)])
def test_a_sweep_holds_every_number_of_a_narrow_format(name: str, count: int) -> None:
    dtype = subject_of(Autograd("float32", name)).storage_dtype
    numbers = _sweep().numbers(dtype)
    assert numbers.shape == (count,)
    finite = numbers[np.isfinite(numbers)]
    assert len(np.unique(finite)) == len(finite) - 1  # ±0 are equal
    np.testing.assert_array_equal(finite.astype(dtype).astype(np.float64), finite)


def test_a_sweep_of_float32_meets_every_sign_exponent_and_leading_digit() -> None:
    numbers = _sweep().numbers(np.dtype(np.float32)).astype(np.float32)
    finite = numbers[np.isfinite(numbers)]
    assert len(np.unique(finite.view(np.uint32) >> 16)) == 2 * 255 * 128


def test_the_gradient_ball_is_exact_where_nothing_rounds() -> None:
    subject = subject_of(Autograd("float32", "float32"))
    infinite, one = np.array([np.inf, -np.inf]), np.ones(2)
    call = Call(subject, infinite, one, 4.0, 25.0)
    d_gate, _ = GradientCall(call, one).expected()
    assert (d_gate.radius == 0.0).all()
    assert (d_gate.value == 0.0).all()


def _sweep() -> Sweep:
    low_bits = np.random.default_rng(0).integers(0, 1 << 16, 1 << 16, dtype=np.uint32)
    return Sweep(1.0, 1.0, 4.0, 25.0, 1.0, low_bits)
