"""The balanced assignment problem and the arithmetic it is computed in.

    maximise  sum_ij s_ij x_ij   subject to   sum_j x_ij = k,   sum_i x_ij = q = m k / n,   0 <= x
    <= 1

(Appendix C of arXiv 2607.24653.) Scores given as integers or ``Fraction`` are computed with
exactly, in object arrays of Python rationals; every other real dtype is computed with in float64.

Legend of shapes: M tokens, N routed experts.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from numbers import Rational
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array: TypeAlias = NDArray[Any]
Number: TypeAlias = float | Fraction

UNIT_ROUNDOFF = 2.0**-53
SMALLEST = 2.0**-1074  # error of one operation that underflows


def exact(values: ArrayLike | Sequence[Number]) -> Array:
    """The same numbers as Python rationals in an object array, so that arithmetic on them is exact.

    Floats become the ``Fraction`` they stand for, integers become ``int``. Raises ValueError for
    NaN and infinities, TypeError for anything that is not a real number.
    """
    raw = np.asarray(values)
    rationals = [_rational(value) for value in raw.ravel().tolist()]
    return _object_array(rationals).reshape(raw.shape)


def _rational(value: Any) -> int | Fraction:
    if isinstance(value, float | np.floating):
        if not np.isfinite(value):
            raise ValueError(f"{value} has no exact value; use finite numbers")
        return Fraction(*value.as_integer_ratio())
    if not isinstance(value, Rational):
        raise TypeError(f"{value!r} is not a real number; use int, float or fractions.Fraction")
    fraction = Fraction(value)
    return fraction.numerator if fraction.denominator == 1 else fraction


def _object_array(values: Sequence[int | Fraction]) -> Array:
    out = np.empty(len(values), dtype=object)
    out[:] = values
    return out


def _is_exact_kind(array: Array) -> bool:
    return array.dtype == np.dtype(object) or array.dtype.kind in "iub"


@dataclass(frozen=True, eq=False)
class AssignmentProblem:
    """Scores s_MN and the number of experts per token; checked, and copied read only.

    Raises ValueError if ``scores`` is not a non-empty matrix of finite numbers or ``top_k`` lies
    outside 1..N, TypeError for entries that are not real numbers or a ``top_k`` that is no integer.
    """

    scores: Array
    top_k: int

    def __post_init__(self) -> None:
        scores = _checked_scores(self.scores)
        object.__setattr__(self, "scores", scores)
        object.__setattr__(self, "top_k", checked_top_k(self.top_k, scores.shape[1]))

    @property
    def m(self) -> int:
        """Number of tokens."""
        return int(self.scores.shape[0])

    @property
    def n(self) -> int:
        """Number of routed experts."""
        return int(self.scores.shape[1])

    @property
    def load(self) -> Fraction:
        """The target load q = m k / n of every expert, exactly."""
        return Fraction(self.m * self.top_k, self.n)

    @property
    def is_integral(self) -> bool:
        """Whether q is an integer. Only then does the optimum contain a 0/1 assignment."""
        return self.load.denominator == 1

    @property
    def is_exact(self) -> bool:
        """Whether the scores are rationals that are computed with exactly."""
        return self.scores.dtype == np.dtype(object)

    def number(self, value: Fraction) -> Number:
        """``value`` in the arithmetic of the scores."""
        return value if self.is_exact else float(value)

    def rounding(self, operations: int, size: float) -> float:
        """What so many roundings of numbers up to ``size`` can add up to; 0 in exact arithmetic."""
        return 0.0 if self.is_exact else operations * (UNIT_ROUNDOFF * size + SMALLEST)

    def token_vector(self, values: ArrayLike, name: str) -> Array:
        """``values`` of shape (M,) in the arithmetic of the scores."""
        return self.array(values, (self.m,), name)

    def expert_vector(self, values: ArrayLike, name: str) -> Array:
        """``values`` of shape (N,) in the arithmetic of the scores."""
        return self.array(values, (self.n,), name)

    def array(self, values: ArrayLike, shape: tuple[int, ...], name: str) -> Array:
        """``values`` in the arithmetic of the scores; ValueError if misshapen or not finite."""
        raw = np.asarray(values)
        if raw.shape != shape:
            raise ValueError(f"{name} has shape {raw.shape}; these scores need {shape}")
        if self.is_exact:
            return exact(raw)
        return _finite(raw, name)

    def require_choice(self) -> None:
        """ValueError where top_k = N: no expert is left out, so there is no cutoff."""
        if self.top_k == self.n:
            raise ValueError(
                f"top_k = {self.top_k} equals the number of experts: every expert is chosen and no "
                "(k+1)-th score exists; use top_k < N"
            )


def _finite(raw: Array, name: str) -> Array:
    require_real(raw, name)
    values = raw.astype(np.float64)
    require_finite(values, name)
    return values


def require_summable(scores_MN: Array, assigned: int) -> None:
    """ValueError if sums of so many scores could exceed what float64 holds."""
    if float(max(abs(scores_MN.max()), abs(scores_MN.min()))) > 2.0**1020 / assigned:
        raise ValueError(
            f"{assigned} scores of this size add up beyond float64; scale the scores down"
        )


def require_real(raw: Array, name: str) -> None:
    """TypeError for a dtype that does not hold real numbers."""
    if raw.dtype.kind in "cmMSU":
        raise TypeError(f"{name} has dtype {raw.dtype}; real numbers are needed")


def require_finite(values: Array, name: str) -> None:
    """ValueError that names the first entry that is NaN or infinite."""
    finite = np.isfinite(values)
    if not finite.all():
        where = tuple(int(index) for index in np.argwhere(~finite)[0])
        raise ValueError(f"{name}[{where}] is {values[where]}; every entry must be finite")


def score_matrix(values: ArrayLike) -> Array:
    """``values`` as an array, without a copy; ValueError unless it is a non-empty matrix.

    A masked array is refused: its mask would be lost.
    """
    if np.ma.isMaskedArray(values):
        raise ValueError(
            "scores is a masked array; fill it, e.g. scores.filled(-1e9): every entry is a score"
        )
    raw = np.asarray(values)
    if raw.ndim != 2:
        raise ValueError(f"scores has shape {raw.shape}; a matrix (tokens, experts) is needed")
    if raw.size == 0:
        raise ValueError(
            f"scores has shape {raw.shape}; at least one token and one expert are needed"
        )
    return raw


def _checked_scores(values: ArrayLike) -> Array:
    raw = score_matrix(values)
    scores = exact(raw) if _is_exact_kind(raw) else _finite(raw, "scores")
    scores.flags.writeable = False
    return scores


def checked_top_k(top_k: int, num_experts: int) -> int:
    """``top_k`` as an int; TypeError if it is no integer, ValueError outside 1..num_experts."""
    try:
        value = operator.index(top_k)
    except TypeError as error:
        raise TypeError(f"top_k = {top_k!r} is not an integer") from error
    if not 1 <= value <= num_experts:
        raise ValueError(f"top_k = {value} must lie in 1..{num_experts}, the number of experts")
    return value
