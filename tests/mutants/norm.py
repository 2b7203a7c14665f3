"""Wrong norms, each by the smallest change from a correct one."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from properties.protocol import Array, Conventions, Precision


class Norm:
    """Correct, in float64, in the parts that the wrong ones replace one by one."""

    name = "norm"
    version = "1"
    precision = Precision(compute="float64", accumulate="float64", storage="float64")
    conventions = Conventions()

    def rms_norm(self, x: Array, weight: Array, *, eps: float) -> Array:
        return x / self.size(x, eps) * weight

    def size(self, x: Array, eps: float) -> Array:
        return np.sqrt(self.mean_square(x) + eps)

    def mean_square(self, x: Array) -> Array:
        return np.mean(np.square(x), axis=-1, keepdims=True)


class NormMissing(Norm):
    """The weight is applied and nothing is normalised."""

    killed_by = "NRM-VALUE"

    def rms_norm(self, x: Array, weight: Array, *, eps: float) -> Array:
        return x * weight


class WeightMissing(Norm):
    """The rows are normalised and the weight is left out."""

    killed_by = "NRM-VALUE"

    def rms_norm(self, x: Array, weight: Array, *, eps: float) -> Array:
        return x / self.size(x, eps)


class EpsOutsideTheRoot(Norm):
    """eps is added to the root."""

    killed_by = "NRM-VALUE"

    def size(self, x: Array, eps: float) -> Array:
        return np.sqrt(self.mean_square(x)) + eps


class EpsOnTheSum(Norm):
    """eps is added to the sum of squares, before it is divided by L."""

    killed_by = "NRM-VALUE"

    def size(self, x: Array, eps: float) -> Array:
        return np.sqrt((np.sum(np.square(x), axis=-1, keepdims=True) + eps) / x.shape[-1])


class EpsMissing(Norm):
    """eps is ignored; rows of zeros stay zeros."""

    killed_by = "NRM-VALUE"

    def size(self, x: Array, eps: float) -> Array:
        size = np.sqrt(self.mean_square(x))
        return np.where(size == 0.0, 1.0, size)


class EpsAsFloor(Norm):
    """eps bounds the mean square from below instead of being added."""

    killed_by = "NRM-VALUE"

    def size(self, x: Array, eps: float) -> Array:
        return np.sqrt(np.maximum(self.mean_square(x), eps))


class EpsOfAnotherModel(Norm):
    """eps is 1e-6 whatever is asked for."""

    killed_by = "NRM-VALUE"

    def size(self, x: Array, eps: float) -> Array:
        return super().size(x, 1e-6)


class WeightInsideTheMeanSquare(Norm):
    """The weight scales the rows before their mean square is taken."""

    killed_by = "NRM-VALUE"

    def rms_norm(self, x: Array, weight: Array, *, eps: float) -> Array:
        return x * weight / self.size(x * weight, eps)


class SumInsteadOfMean(Norm):
    """Rows are divided by their length, not by their root mean square."""

    killed_by = "NRM-VALUE"

    def mean_square(self, x: Array) -> Array:
        return np.sum(np.square(x), axis=-1, keepdims=True)


class MeanOverTheWrongAxis(Norm):
    """The mean runs over the tokens instead of the width."""

    killed_by = "NRM-VALUE"

    def mean_square(self, x: Array) -> Array:
        return np.mean(np.square(x), axis=0, keepdims=True) if len(x) else np.square(x)


class MeanOverEverything(Norm):
    """One mean square serves the whole batch."""

    killed_by = "NRM-VALUE"

    def mean_square(self, x: Array) -> Array:
        return np.mean(np.square(x), keepdims=True) if x.size else np.square(x)


class MeanSubtracted(Norm):
    """LayerNorm: the mean is taken off first."""

    killed_by = "NRM-VALUE"

    def rms_norm(self, x: Array, weight: Array, *, eps: float) -> Array:
        return super().rms_norm(x - np.mean(x, axis=-1, keepdims=True), weight, eps=eps)


class WeightPlusOne(Norm):
    """The weight counts from 1, as in models that start it at 0."""

    killed_by = "NRM-VALUE"

    def rms_norm(self, x: Array, weight: Array, *, eps: float) -> Array:
        return super().rms_norm(x, 1.0 + weight, eps=eps)


class MeanSquareInBFloat16(Norm):
    """The mean square is rounded to bfloat16, though float32 is declared."""

    killed_by = "NRM-VALUE"
    precision = Precision()

    def mean_square(self, x: Array) -> Array:
        return super().mean_square(x).astype(ml_dtypes.bfloat16).astype(x.dtype)

    def rms_norm(self, x: Array, weight: Array, *, eps: float) -> Array:
        return super().rms_norm(x, weight, eps=np.float32(eps))


class StridesIgnored(Norm):
    """Rows are read as if they were contiguous."""

    killed_by = "NRM-VALUE"

    def rms_norm(self, x: Array, weight: Array, *, eps: float) -> Array:
        if x.size and not x.flags.c_contiguous:
            start = x if x.base is None else x.base
            x = np.resize(np.ravel(start, order="K"), x.shape)
        return super().rms_norm(x, weight, eps=eps)


class ZeroOutput(Norm):
    """Control: everything is 0."""

    killed_by = "NRM-VALUE"

    def rms_norm(self, x: Array, weight: Array, *, eps: float) -> Array:
        return np.zeros(x.shape)


class InputCopied(Norm):
    """Control: the input comes back."""

    killed_by = "NRM-VALUE"

    def rms_norm(self, x: Array, weight: Array, *, eps: float) -> Array:
        return x.copy()


class RandomOutput(Norm):
    """Control: noise of the right shape."""

    killed_by = "NRM-VALUE"

    def rms_norm(self, x: Array, weight: Array, *, eps: float) -> Array:
        return np.random.default_rng(0).standard_normal(x.shape)


class MutatesInput(Norm):
    """Control: the result is right, and overwrites the input, too."""

    killed_by = "NRM-VALUE"

    def rms_norm(self, x: Array, weight: Array, *, eps: float) -> Array:
        out = super().rms_norm(x, weight, eps=eps)
        x.setflags(write=True)
        x[...] = out
        return out


class Float32Output(Norm):
    """Control: the dtype that comes back is not the storage format."""

    killed_by = "NRM-VALUE"
    verdict = "adapter error"

    def rms_norm(self, x: Array, weight: Array, *, eps: float) -> Array:
        return super().rms_norm(x, weight, eps=eps).astype(np.float32)
