"""What comes back in parts: routings, and gradients of parameters, checked part by part.

Raises AdapterError, from all functions, for a part that is missing or of another shape or dtype.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, NamedTuple

import numpy as np

from properties.boundary import checked_result, describe
from properties.errors import AdapterError
from properties.protocol import Array, ExpertParameters, LayerParameters, Routing

__all__ = ["Routed", "checked_experts", "checked_layer", "checked_routing"]


class Routed(NamedTuple):
    """A routing that came back: ids int64, values float64, and the format the weights came in."""

    expert_ids: Array
    weights: Array
    cutoff: Array | None
    weights_format: str


def checked_experts(
    what: str, value: Any, like: ExpertParameters, dtype: np.dtype[Any]
) -> ExpertParameters:
    """The projections of ``value`` as float64, each of the shape that ``like`` has."""
    parts = {}
    for part in fields(like):
        if not hasattr(value, part.name):
            raise AdapterError(f"{what} has no {part.name}; expected ExpertParameters")
        shape = getattr(like, part.name).shape
        parts[part.name] = _one(dtype, f"{what}.{part.name}", getattr(value, part.name), shape)
    return ExpertParameters(**parts)


def checked_layer(
    what: str,
    value: Any,
    like: LayerParameters,
    dtype: np.dtype[Any],
    either: tuple[np.dtype[Any], ...],
) -> LayerParameters:
    """The same for a layer; a selection bias of None reads as zeros."""
    parts: dict[str, Any] = {}
    for part in fields(like):
        name, own = f"{what}.{part.name}", getattr(like, part.name)
        if not hasattr(value, part.name):
            raise AdapterError(f"{what} has no {part.name}; expected LayerParameters")
        found = getattr(value, part.name)
        if isinstance(own, ExpertParameters):
            parts[part.name] = checked_experts(name, found, own, dtype)
        elif part.name == "e_score_correction_bias":
            zeros = np.zeros(own.shape)
            parts[part.name] = (
                zeros if found is None else checked_result(name, found, own.shape, either)
            )
        else:
            parts[part.name] = _one(dtype, name, found, own.shape)
    return LayerParameters(**parts)


def _one(dtype: np.dtype[Any], what: str, value: Any, shape: tuple[int, ...]) -> Array:
    return checked_result(what, value, shape, (dtype,))


def checked_routing(
    what: str, value: Any, shape: tuple[int, int], either: tuple[np.dtype[Any], ...]
) -> Routed:
    """A routing of the shape (M, K); ids of any integer format, weights in one of ``either``."""
    tokens, top_k = shape
    if not all(hasattr(value, name) for name in Routing._fields):
        found = type(value).__name__
        raise AdapterError(f"{what} returned {found}; expected properties.protocol.Routing")
    ids = value.expert_ids
    if not isinstance(ids, np.ndarray) or not np.issubdtype(ids.dtype, np.integer):
        raise AdapterError(f"{what}: expert_ids is {describe(ids)}; expected integers")
    if ids.shape != (tokens, top_k):
        expected = (tokens, top_k)
        raise AdapterError(f"{what}: expert_ids has shape {ids.shape}, expected {expected}")
    weights = checked_result(f"{what}: weights", value.weights, (tokens, top_k), either)
    cutoff = value.cutoff
    if cutoff is not None:
        cutoff = checked_result(f"{what}: cutoff", cutoff, (tokens,), either)
    return Routed(ids.astype(np.int64), weights, cutoff, value.weights.dtype.name)
