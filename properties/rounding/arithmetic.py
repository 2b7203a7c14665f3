"""The formats an implementation works in, and the rounding errors it is allowed per operation.

u is the unit roundoff of a format, half the gap between 1 and the next number. An operation in that
format may be wrong by a number of u, relative to its result, plus one absolute term for underflow.
``ALLOWANCES`` is the whole list of what is granted, with the reasons.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from properties.protocol import Precision, number_format
from properties.rounding.bounds import Margin

Float64s = NDArray[np.float64]

REFERENCE_ROUNDOFF = 2.0**-53

# Formats whose subnormal numbers hardware may replace by zero, on reading and on writing.
FLUSHED = ("float64", "float32", "bfloat16")

__all__ = [
    "ALLOWANCES",
    "REFERENCE_ROUNDOFF",
    "Allowance",
    "Arithmetic",
    "Float64s",
    "Format",
    "Rule",
    "format_named",
]


class Allowance(NamedTuple):
    """What an operation may lose, in u: ``units``, plus ``per_argument`` times its argument."""

    units: float
    per_argument: float
    reason: str


ALLOWANCES: Mapping[str, Allowance] = {
    "add": Allowance(2.0, 0.0, "1 to nearest, 2 for a truncating unit; fused forms lose less"),
    "multiply": Allowance(2.0, 0.0, "1 to nearest; a constant factor may be a rounded quotient"),
    "divide": Allowance(2.0, 0.0, "a rounded reciprocal, then a rounded product"),
    "square": Allowance(2.0, 0.0, "a product"),
    "sqrt": Allowance(4.0, 0.0, "reciprocal square roots of accelerators err by 2 ulp = 4 u"),
    "exp": Allowance(
        4.0, 1.5, "libraries err by 1-2 ulp; exp2(x log2 e) rounds the argument and log2 e"
    ),
    "tanh": Allowance(8.0, 0.0, "libraries err by 1-4 ulp, relative to the result near 0 too"),
    "mean": Allowance(3.0, 0.0, "a quotient by the count, or products with its rounded reciprocal"),
    "store": Allowance(1.0, 0.0, "one rounding to nearest"),
}

# What the reference adds, in its own u: one rounding of the value, a few of the radius itself where
# a difference enters it, and for elementary functions NumPy's vector routines, which err by less
# than 4 ulp.
_REFERENCE_UNITS: Mapping[str, float] = {
    "add": 2.0,
    "multiply": 2.0,
    "divide": 5.0,
    "square": 2.0,
    "sqrt": 5.0,
    "exp": 10.0,
    "tanh": 10.0,
    "mean": 3.0,
    "store": 2.0,
}


class Format(NamedTuple):
    """A number format: ``underflow`` is the largest error that leaving the normal range may cause.

    That is the smallest normal number where flushing to zero is usual, else the smallest
    subnormal one. ``overflow_is_nan`` marks formats without infinity.
    """

    name: str
    dtype: np.dtype[Any]
    roundoff: float
    underflow: float
    smallest_normal: float
    largest: float
    flushes: bool
    overflow_is_nan: bool

    def rounded(self, values: Float64s) -> Float64s:
        """The nearest numbers of this format, as float64. Overflow warns unless silenced."""
        if self.name == "float64":
            return values
        return np.asarray(values).astype(self.dtype).astype(np.float64)


@lru_cache(maxsize=64)
def format_named(name: str) -> Format:
    """Look a format up by name.

    Raises ValueError for an unknown name and for a format finer than float64, in which the
    reference is computed.
    """
    dtype = number_format(name)
    limits: Any = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    roundoff = float(limits.eps) / 2
    if roundoff < REFERENCE_ROUNDOFF:
        raise ValueError(f"{name!r} is finer than float64, in which the reference is computed")
    smallest_normal = float(limits.smallest_normal)
    flushes = dtype.name in FLUSHED
    return Format(
        name=dtype.name,
        dtype=dtype,
        roundoff=roundoff,
        underflow=smallest_normal if flushes else float(limits.smallest_subnormal),
        smallest_normal=smallest_normal,
        largest=float(limits.max),
        flushes=flushes,
        overflow_is_nan=bool(np.isnan(np.array(np.inf).astype(dtype).astype(np.float64))),
    )


class Rule(NamedTuple):
    """The error of one operation: ``share`` of the largest possible result, plus ``underflow``.

    Below ``reach`` the result with its error stays within ``largest``, the largest finite number.
    """

    share: float
    per_argument: float
    underflow: float
    largest: float
    reach: float
    overflow_is_nan: bool
    margin: Margin


def _rule(operation: str, number: Format) -> Rule:
    allowance = ALLOWANCES[operation]
    own = _REFERENCE_UNITS[operation] * REFERENCE_ROUNDOFF
    share = allowance.units * number.roundoff + own
    per_argument = allowance.per_argument * number.roundoff
    if per_argument:  # the sum of value and radius rounds, relative to the argument
        per_argument += 2 * REFERENCE_ROUNDOFF
    reach = (number.largest - number.underflow) / (1.0 + share) * (1.0 - 2.0**-50)
    return Rule(
        share=share,
        per_argument=per_argument,
        underflow=number.underflow,
        largest=number.largest,
        reach=reach,
        overflow_is_nan=number.overflow_is_nan,
        margin=Margin(2.0 * share, number.underflow, number.largest),
    )


@dataclass(frozen=True)
class Arithmetic:
    """The formats of elementwise arithmetic, of sums and dot products, and of tensors in memory.

    Names as in :class:`properties.protocol.Precision`. Raises ValueError for a name that is no
    floating-point format, or one finer than float64.
    """

    compute: str = "float32"
    accumulate: str = "float32"
    storage: str = "float32"

    computed: Format = field(init=False, repr=False, compare=False)
    accumulated: Format = field(init=False, repr=False, compare=False)
    stored: Format = field(init=False, repr=False, compare=False)
    rules: dict[str, Rule] = field(init=False, repr=False, compare=False)
    constants: dict[str, Any] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        formats = {
            "computed": format_named(self.compute),
            "accumulated": format_named(self.accumulate),
            "stored": format_named(self.storage),
        }
        for name, number in formats.items():
            object.__setattr__(self, name, number)
        rules = {operation: _rule(operation, formats["computed"]) for operation in ALLOWANCES}
        rules["store"] = _rule("store", formats["stored"])
        coarser = max(formats["computed"], formats["accumulated"], key=lambda f: f.roundoff)
        rules["mean"] = _rule("mean", coarser)
        object.__setattr__(self, "rules", rules)
        object.__setattr__(self, "constants", {})

    @classmethod
    def of(cls, precision: Precision) -> Arithmetic:
        """The formats of hidden states that an implementation declares."""
        return cls(precision.compute, precision.accumulate, precision.storage)

    def reading_error(self, values: Float64s) -> Float64s | None:
        """How far plain numbers may be from what an implementation holds: None if it is 0.

        A number that the compute format lacks is held rounded, and a subnormal one may be read
        as zero. Overflow warns unless that is silenced.
        """
        number = self.computed
        error = _flush_error(values, number)
        if number.name == "float64":
            return error
        lost = np.abs(values - number.rounded(values))
        lost = np.where(np.isnan(lost), 0.0, lost)  # NaN and infinities are held as such
        if np.count_nonzero(lost):
            return lost if error is None else np.maximum(lost, error)
        return error


def _flush_error(values: Float64s, number: Format) -> Float64s | None:
    """abs(value) where the format may read a subnormal value as zero, else 0; None if all are 0."""
    if not number.flushes:
        return None
    sizes = np.abs(values)
    flushed = (sizes < number.smallest_normal) & (sizes > 0.0)
    if not np.count_nonzero(flushed):
        return None
    return np.where(flushed, sizes, 0.0)
