"""RMSNorm of the combined latent (Eq. 11 of arXiv 2607.24653).

Legend: M tokens, L latent width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from impl_torch.precision import compute_dtype

__all__ = ["RMSNorm", "rms_norm"]

# Enough for squares of 2^126 not to overflow float32 after division by this power of two.
_LARGEST_EXPONENT = 126


def rms_norm(x_ML: Tensor, weight_L: Tensor, *, eps: float = 1e-5) -> Tensor:
    """``x / sqrt(mean(x^2) + eps) * weight`` over the last axis.

    Computed in float32 (float64 for float64) with one rounding at the end, the weight included.
    Rows above 1 are divided by a power of two first, which changes no digit and keeps squares from
    overflowing: amplitude 1e30 is normalised like any other, where the literal formula gives 0.

    Args:
        x_ML: any leading shape and floating-point format.
        weight_L: the width of the last axis.
        eps: added to the mean square, inside the root.

    Returns:
        The shape and format of x.

    Raises:
        ValueError: the weight's shape is not (L,).
        TypeError: x is not floating-point.
    """
    if weight_L.shape != x_ML.shape[-1:]:
        raise ValueError(
            f"weight has shape {tuple(weight_L.shape)}; x asks for {tuple(x_ML.shape[-1:])}"
        )
    dtype = compute_dtype(x_ML.dtype)
    x = x_ML.to(dtype)
    scale = _power_of_two(x.detach())
    x = x / scale
    mean_square = x.square().mean(-1, keepdim=True)
    normalised = x / torch.sqrt(mean_square + eps / scale.square())
    return (normalised * weight_L.to(dtype)).to(x_ML.dtype)


def _power_of_two(x_ML: Tensor) -> Tensor:
    """A power of two between 1 and the row's largest magnitude, about; infinities do not count."""
    exponent = torch.frexp(x_ML.abs().amax(-1, keepdim=True)).exponent
    return torch.ldexp(
        torch.ones_like(exponent, dtype=x_ML.dtype), exponent.clamp(0, _LARGEST_EXPONENT)
    )


class RMSNorm(nn.Module):
    """``rms_norm`` with its weight, which starts at 1.

    Args:
        width: the last axis of the input, L.
        eps: added to the mean square.
    """

    def __init__(
        self,
        width: int,
        *,
        eps: float = 1e-5,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(width, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the weight to 1."""
        nn.init.ones_(self.weight)

    def forward(self, x_ML: Tensor) -> Tensor:
        """Normalise the last axis of x (…, L)."""
        return rms_norm(x_ML, self.weight, eps=self.eps)

    def extra_repr(self) -> str:
        """The width and eps, for ``print(module)``."""
        return f"{self.weight.shape[0]}, eps={self.eps}"
