"""Wrong norms that show under scaling, at large numbers, or beside a lost row."""

from __future__ import annotations

import numpy as np

from properties.protocol import Array, Precision
from tests.mutants.norm import Norm


class Float16Norm(Norm):
    """Correct: float16 in memory, float32 in between."""

    precision = Precision(storage="float16")

    def rms_norm(self, x: Array, weight: Array, *, eps: float) -> Array:
        wide = super().rms_norm(x.astype(np.float32), weight.astype(np.float32), eps=eps)
        return wide.astype(np.float16)

    def size(self, x: Array, eps: float) -> Array:
        return super().size(x, np.float32(eps))


# Scaling -----------------------------------------------------------------------------------------


class EpsRelative(Norm):
    """eps counts in units of the mean square."""

    killed_by = "NRM-SCALE"

    def size(self, x: Array, eps: float) -> Array:
        return np.sqrt(self.mean_square(x) * (1.0 + eps)) + 1e-300


class EpsAsFloor(Norm):
    """eps bounds the mean square from below."""

    killed_by = "NRM-SCALE"

    def size(self, x: Array, eps: float) -> Array:
        return np.sqrt(np.maximum(self.mean_square(x), eps))


class EpsOutsideTheRoot(Norm):
    """eps is added to the root."""

    killed_by = "NRM-SCALE"

    def size(self, x: Array, eps: float) -> Array:
        return np.sqrt(self.mean_square(x)) + eps


class MeanSquareClipped(Norm):
    """The mean square is kept below 1e4."""

    killed_by = "NRM-SCALE"

    def mean_square(self, x: Array) -> Array:
        return np.minimum(super().mean_square(x), 1e4)


class SignLost(Norm):
    """Sizes come back."""

    killed_by = "NRM-SCALE"

    def rms_norm(self, x: Array, weight: Array, *, eps: float) -> Array:
        return super().rms_norm(np.abs(x), weight, eps=eps)


class InputCopiedAtScale(Norm):
    """Control: the input comes back."""

    killed_by = "NRM-SCALE"

    def rms_norm(self, x: Array, weight: Array, *, eps: float) -> Array:
        return x.copy()


# Large numbers -----------------------------------------------------------------------------------


class SquaresInFloat16(Float16Norm):
    """Squares are formed in float16, and overflow from 256 on."""

    killed_by = "NRM-LARGE"

    def mean_square(self, x: Array) -> Array:
        with np.errstate(over="ignore"):
            squares = np.square(x.astype(np.float16)).astype(np.float32)
        return np.mean(squares, axis=-1, keepdims=True)


class SumInFloat16(Float16Norm):
    """Squares of scaled rows are added in float16, with a scale that suits narrow rows only."""

    killed_by = "NRM-LARGE"

    def mean_square(self, x: Array) -> Array:
        with np.errstate(over="ignore"):
            scaled = np.square(x / 1024.0).astype(np.float16)
            total = np.sum(scaled, axis=-1, keepdims=True, dtype=np.float16)
        return total.astype(np.float32) * (1024.0**2 / x.shape[-1])


class SizeOfTheBatch(Norm):
    """Rows far below the largest of the batch are taken for zeros."""

    killed_by = "NRM-LARGE"

    def rms_norm(self, x: Array, weight: Array, *, eps: float) -> Array:
        largest = np.max(np.abs(x), initial=0.0)
        kept = np.where(np.abs(x) < 1e-2 * largest, 0.0, x)
        return super().rms_norm(kept, weight, eps=eps)


class ZeroOutputOfLarge(Norm):
    """Control: everything is 0."""

    killed_by = "NRM-LARGE"

    def rms_norm(self, x: Array, weight: Array, *, eps: float) -> Array:
        return np.zeros(x.shape)


class NanOfOverflow(Norm):
    """x^2 over its mean: infinity over infinity where both overflow."""

    killed_by = "NRM-BOUND"

    def rms_norm(self, x: Array, weight: Array, *, eps: float) -> Array:
        with np.errstate(all="ignore"):
            share = np.square(x) / (self.mean_square(x) + eps)
        return np.sign(x) * np.sqrt(share) * weight


class OverflowPassedOn(Norm):
    """A row whose mean square overflows is left as it is."""

    killed_by = "NRM-BOUND"

    def rms_norm(self, x: Array, weight: Array, *, eps: float) -> Array:
        with np.errstate(all="ignore"):
            size = self.size(x, eps)
        return np.where(np.isfinite(size), x / size, x) * weight


class MedianForMean(Norm):
    """Rows are divided by their median size, which one outlier does not move."""

    killed_by = "NRM-BOUND"

    def rms_norm(self, x: Array, weight: Array, *, eps: float) -> Array:
        size = np.median(np.abs(x), axis=-1, keepdims=True) if x.size else 1.0
        with np.errstate(all="ignore"):
            return x / (size + eps) * weight


# Lost rows ---------------------------------------------------------------------------------------


class ScaleOfTheBatch(Norm):
    """Rows are divided by the largest number of the batch before they are squared."""

    killed_by = "NRM-NAN"

    def rms_norm(self, x: Array, weight: Array, *, eps: float) -> Array:
        scale = np.exp2(np.ceil(np.log2(np.max(np.abs(x), initial=1e-300))))
        with np.errstate(all="ignore"):
            return super().rms_norm(x / scale, weight, eps=eps / scale**2)


class FilledFromTheRowBefore(Norm):
    """Numbers that are not finite are skipped, and the following rows move up."""

    killed_by = "NRM-NAN"

    def rms_norm(self, x: Array, weight: Array, *, eps: float) -> Array:
        finite = x[np.isfinite(x)]
        return super().rms_norm(np.resize(finite, x.shape), weight, eps=eps)


class WholeBatchRefused(Norm):
    """A batch with anything that is not finite comes out as zeros."""

    killed_by = "NRM-NAN"

    def rms_norm(self, x: Array, weight: Array, *, eps: float) -> Array:
        if not np.isfinite(x).all():
            return np.zeros(x.shape)
        return super().rms_norm(x, weight, eps=eps)


class NoRowIsANumber(Norm):
    """Every output is NaN, and a multiple of it is, too."""

    killed_by = "NRM-SCALE"

    def rms_norm(self, x: Array, weight: Array, *, eps: float) -> Array:
        return np.full_like(super().rms_norm(x, weight, eps=eps), np.nan)
