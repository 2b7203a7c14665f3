"""Right activations that are not the reference's: other formulas, formats, orders and memory."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np

from properties.protocol import Array, Conventions, Precision, number_format


class Activation:
    """Eq. 12 and its gradients in NumPy, in the parts that variants replace."""

    name, version = "activation", "1"
    precision = Precision()
    conventions = Conventions()
    topics = ("activation",)
    work: Any = np.float32

    def tanh(self, z: Array) -> Array:
        return np.tanh(z)

    def sigmoid(self, z: Array) -> Array:
        tail = np.exp(-np.abs(z))
        one = self.work(1)
        return np.where(z >= 0, one, tail) / (one + tail)

    def forward(self, g: Array, u: Array, b1: Any, b2: Any) -> Array:
        return b1 * self.tanh(g / b1) * self.sigmoid(g) * (b2 * self.tanh(u / b2))

    def backward(self, g: Array, u: Array, c: Array, b1: Any, b2: Any) -> tuple[Array, Array]:
        one = self.work(1)
        t, r, s = self.tanh(g / b1), self.tanh(u / b2), self.sigmoid(g)
        slope = (one - t * t) * s + b1 * t * (s * (one - s))
        return c * (b2 * r) * slope, c * (b1 * t * s) * (one - r * r)

    def situ_glu(self, gate: Array, up: Array, *, beta_gate: float, beta_up: float) -> Array:
        return self.out(self.forward(*self.given(gate, up), *self.caps(beta_gate, beta_up)))

    def situ_glu_vjp(
        self, gate: Array, up: Array, cotangent: Array, *, beta_gate: float, beta_up: float
    ) -> tuple[Array, Array]:
        caps = self.caps(beta_gate, beta_up)
        d_gate, d_up = self.backward(*self.given(gate, up, cotangent), *caps)
        return self.out(d_gate), self.out(d_up)

    def given(self, *arrays: Array) -> list[Array]:
        return [array.astype(self.work) for array in arrays]

    def out(self, values: Array) -> Array:
        return values.astype(number_format(self.precision.storage))

    def caps(self, *betas: float) -> list[Any]:
        if not all(0 < beta < math.inf for beta in betas):
            raise ValueError(f"caps {betas} must be positive and finite")
        return [self.work(beta) for beta in betas]


class PowersOfTwo(Activation):
    """sigmoid from exp2 without branches, tanh from expm1, slopes from 4 e / (1 + e)^2."""

    freedom = "functions accurate to 8 units of roundoff; slopes that do not cancel"

    def sigmoid(self, z: Array) -> Array:
        with np.errstate(over="ignore"):
            return 1 / (1 + np.exp2(z * self.work(-math.log2(math.e))))

    def tanh(self, z: Array) -> Array:
        tail = np.expm1(-2 * np.abs(z))
        return np.copysign(-tail / (tail + 2), z)

    def backward(self, g: Array, u: Array, c: Array, b1: Any, b2: Any) -> tuple[Array, Array]:
        t, r, s = self.tanh(g / b1), self.tanh(u / b2), self.sigmoid(g)
        slope = s * (self.slope(g / b1) + b1 * t * self.sigmoid(-g))
        return c * (b2 * r) * slope, c * self.slope(u / b2) * (b1 * t * s)

    def slope(self, z: Array) -> Array:
        tail = np.exp(-2 * np.abs(z))
        return 4 * tail / ((1 + tail) * (1 + tail))


class PowersOfTwoHalf(PowersOfTwo):
    """The same over float16."""

    freedom = "one rounding to storage at the end"
    precision = Precision(storage="float16")


class CapsFirst(Activation):
    """Caps folded into one constant and reciprocals; the cotangent meets them first."""

    freedom = "any order of the products; reciprocals of the caps"
    precision = Precision(storage="bfloat16")

    def forward(self, g: Array, u: Array, b1: Any, b2: Any) -> Array:
        return self.tanh(g * (1 / b1)) * self.tanh(u * (1 / b2)) * (b1 * b2) * self.sigmoid(g)

    def backward(self, g: Array, u: Array, c: Array, b1: Any, b2: Any) -> tuple[Array, Array]:
        t, r, s = self.tanh(g / b1), self.tanh(u / b2), self.sigmoid(g)
        slope = s * ((1 - t) * (1 + t) + b1 * t * (1 - s))
        return (c * b2) * r * slope, (c * b1) * ((1 - r) * (1 + r)) * t * s


class Flushing(Activation):
    """Subnormal numbers are 0, read, computed and written."""

    freedom = "subnormal numbers flushed to zero"

    def flushed(self, z: Array) -> Array:
        return np.where(np.abs(z) < np.finfo(z.dtype).tiny, 0 * z, z)

    def tanh(self, z: Array) -> Array:
        return self.flushed(np.tanh(self.flushed(z)))

    def sigmoid(self, z: Array) -> Array:
        return self.flushed(super().sigmoid(z))

    def given(self, *arrays: Array) -> list[Array]:
        return [self.flushed(array) for array in super().given(*arrays)]

    def out(self, values: Array) -> Array:
        return self.flushed(super().out(values))


class OpByOp(Activation):
    """Every operation in bfloat16, on views with gaps, returned as one."""

    freedom = "compute in bfloat16; any strides of a result"
    precision = Precision(compute="bfloat16", storage="bfloat16", routing="float32")
    work = ml_dtypes.bfloat16

    def out(self, values: Array) -> Array:
        wide = np.full((*values.shape, 2), np.nan, ml_dtypes.bfloat16)
        wide[..., 1] = values
        return wide[..., 1]


class Inexact(Activation):
    """A library whose exp errs by 1.5 ulp and whose tanh errs by 3, limits at infinity apart."""

    freedom = "functions accurate to 8 units of roundoff, exp to 4"

    def tanh(self, z: Array) -> Array:
        return np.where(np.isinf(z), np.sign(z), np.clip(self.jitter(np.tanh(z), 3.0), -1, 1))

    def sigmoid(self, z: Array) -> Array:
        tail = np.minimum(self.jitter(np.exp(-np.abs(z)), 1.5), 1)
        return np.where(z >= 0, np.float32(1), tail) / (1 + tail)

    def jitter(self, z: Array, ulps: float) -> Array:
        rng = np.random.default_rng(z.size)
        errors = rng.uniform(-ulps, ulps, z.shape) * np.finfo(np.float32).eps
        return np.asarray(z * (1 + errors), np.float32)


class Uncapped(Activation):
    """A cap of 0 or less switches its softcap off, as many configurations have it."""

    freedom = "beta_off = 0"
    conventions = Conventions(beta_off=0.0)

    def caps(self, *betas: float) -> list[Any]:
        if any(math.isnan(beta) or beta == math.inf for beta in betas):
            raise ValueError(f"caps {betas} must be numbers, 0 or less for none")
        return [self.work(beta) if beta > 0 else None for beta in betas]

    def capped(self, z: Array, beta: Any) -> tuple[Array, Any]:
        """Value and slope."""
        if beta is None:
            return z, self.work(1)
        t = self.tanh(z / beta)
        return beta * t, (1 - t) * (1 + t)

    def forward(self, g: Array, u: Array, b1: Any, b2: Any) -> Array:
        return self.capped(g, b1)[0] * self.sigmoid(g) * self.capped(u, b2)[0]

    def backward(self, g: Array, u: Array, c: Array, b1: Any, b2: Any) -> tuple[Array, Array]:
        (gate, slope), (up, up_slope), s = self.capped(g, b1), self.capped(u, b2), self.sigmoid(g)
        return c * up * (slope * s + gate * (s * (1 - s))), c * (gate * s) * up_slope
