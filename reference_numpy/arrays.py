"""Array types, and the checks of arguments that the topics share.

The checks look at shapes and at plain integers only, so that arrays which carry an error radius
pass through them as ndarrays do.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
BoolArray: TypeAlias = NDArray[np.bool_]

__all__ = [
    "Array",
    "BoolArray",
    "require_expert_ids",
    "require_mask",
    "require_shape",
    "require_top_k",
]


def require_shape(name: str, array: Array, shape: tuple[int | None, ...]) -> None:
    """Raise ValueError unless ``array`` has ``shape``; None stands for any size."""
    sizes = array.shape
    if len(sizes) != len(shape) or any(
        want is not None and want != have for want, have in zip(shape, sizes, strict=True)
    ):
        wanted = "(" + ", ".join("any" if size is None else str(size) for size in shape) + ")"
        raise ValueError(f"{name} has shape {sizes}, expected {wanted}")


def require_top_k(top_k: int, num_experts: int) -> None:
    """Raise ValueError unless 1 <= top_k <= num_experts."""
    if not 1 <= top_k <= num_experts:
        raise ValueError(f"top_k = {top_k} must lie in 1 .. {num_experts}, the number of experts")


def require_expert_ids(expert_ids: Array, num_tokens: int, num_experts: int) -> None:
    """Raise ValueError unless ``expert_ids`` (num_tokens, any) holds ids in [0, num_experts)."""
    require_shape("expert_ids", expert_ids, (num_tokens, None))
    if not np.issubdtype(expert_ids.dtype, np.integer):
        raise ValueError(f"expert_ids must be integers, not {expert_ids.dtype}")
    if expert_ids.size and not 0 <= expert_ids.min() <= expert_ids.max() < num_experts:
        raise ValueError(
            f"expert_ids span {expert_ids.min()} .. {expert_ids.max()}, "
            f"but there are experts 0 .. {num_experts - 1}"
        )


def require_mask(mask: BoolArray, num_tokens: int) -> None:
    """Raise ValueError unless ``mask`` is a boolean (num_tokens,)."""
    require_shape("mask", mask, (num_tokens,))
    if mask.dtype != np.bool_:
        raise ValueError(f"mask must be boolean (True marks a valid token), not {mask.dtype}")
