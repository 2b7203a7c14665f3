"""RMSNorm of the combined latent, inside Eq. 11 of arXiv 2607.24653.

Legend: L the normalised width, which is the last axis.
"""

from __future__ import annotations

import numpy as np

from reference_numpy.arrays import Array, require_shape
from reference_numpy.storage import stored

NORM_EPS = 1e-5

__all__ = ["NORM_EPS", "rms_norm", "rms_norm_vjp"]


def rms_norm(x: Array, weight: Array, *, eps: float = NORM_EPS) -> Array:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis: x (…, L), weight (L,) -> (…, L).

    Raises ValueError for a weight of another length and for a negative eps.
    """
    _require_norm_arguments(x, weight, eps)
    # Marked twice: published models cast the quotient back to storage before they scale it.
    return stored(stored(x / _root_mean_square(x, eps)) * weight)


def rms_norm_vjp(
    x: Array, weight: Array, cotangent: Array, *, eps: float = NORM_EPS
) -> tuple[Array, Array]:
    """Gradients (d_x, d_weight) of sum(cotangent * rms_norm(x, weight)).

    With rho = sqrt(mean(x^2) + eps), y = x / rho and a = cotangent * weight:

        d_x = (a - y mean(a y)) / rho,      d_weight = sum over rows of cotangent * y

    The mean runs over L, and eps enters through rho alone. Raises ValueError as ``rms_norm`` does,
    and for a cotangent whose shape is not that of x.
    """
    _require_norm_arguments(x, weight, eps)
    require_shape("cotangent", cotangent, x.shape)
    rho = _root_mean_square(x, eps)
    normalised = stored(x / rho)
    scaled = stored(cotangent * weight)
    projection = np.mean(scaled * normalised, axis=-1, keepdims=True)
    d_x = stored((scaled - normalised * projection) / rho)
    rows = stored(cotangent * normalised).reshape(-1, x.shape[-1])
    return d_x, stored(np.sum(rows, axis=0))


def _root_mean_square(x: Array, eps: float) -> Array:
    mean_square: Array = np.mean(np.square(x), axis=-1, keepdims=True)
    return np.sqrt(mean_square + eps)


def _require_norm_arguments(x: Array, weight: Array, eps: float) -> None:
    if x.ndim == 0 or x.shape[-1] == 0:
        raise ValueError(f"x has shape {x.shape}, but RMSNorm needs a last axis to average over")
    require_shape("weight", weight, x.shape[-1:])
    if not eps >= 0:
        raise ValueError(f"eps = {eps} must not be negative")
