"""Layers that take memory for what it was, or for more than it is: expanded, rewritten, reused.

``killed_by`` names the property that has to catch it. Legend: M tokens, D model width, L latent
width.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from properties.protocol import Array
from properties.reference import Reference


def first_only(array: Array) -> Array:
    """What is read where only the first of the numbers behind strides of 0 is in memory."""
    if array.size < 2 or any(array.strides):
        return array
    read = np.zeros(array.shape)
    read.flat[0] = array.flat[0]
    return read


class ExpandedCotangentReadFlat(Reference):
    """A cotangent of strides 0 is read as if each of its numbers lay in memory."""

    killed_by = "LAY-LAYOUT"

    def layer_vjp(self, x: Array, parameters: Any, cotangent: Array, *, config: Any) -> Any:
        return super().layer_vjp(x, parameters, first_only(cotangent), config=config)


class ExpandedRowReadFlat(Reference):
    """Of a cotangent that repeats one row, the rows after the first are read as 0."""

    killed_by = "LAY-LAYOUT"

    def layer_vjp(self, x: Array, parameters: Any, cotangent: Array, *, config: Any) -> Any:
        if cotangent.ndim == 2 and cotangent.strides[1] and cotangent.strides[0] == 0:
            cotangent = np.concatenate((cotangent[:1], np.zeros_like(cotangent[1:])))
        return super().layer_vjp(x, parameters, cotangent, config=config)


class ExpandedColumnReadFlat(Reference):
    """A cotangent of one column is read as if each of its numbers lay in memory."""

    killed_by = "LAY-LAYOUT"

    def layer_vjp(self, x: Array, parameters: Any, cotangent: Array, *, config: Any) -> Any:
        if cotangent.ndim == 2 and cotangent.strides[0] and cotangent.strides[1] == 0:
            cotangent = np.resize(cotangent[:, 0], cotangent.shape)
        return super().layer_vjp(x, parameters, cotangent, config=config)


class ExpandedTokensReadFlat(Reference):
    """One token in place of several is the first of them, and the others are 0."""

    killed_by = "LAY-LAYOUT"

    def layer(self, x: Array, parameters: Any, *, config: Any, training: bool = False) -> Array:
        if x.ndim > 1 and x.shape[0] > 1 and x.strides[0] == 0:
            x = np.concatenate((x[:1], np.zeros_like(x[1:])))
        return super().layer(x, parameters, config=config)


class ExpandedNormReadFlat(Reference):
    """A norm's weight of one expanded number is read as if each lay in memory."""

    killed_by = "LAY-LAYOUT"

    def layer(self, x: Array, parameters: Any, *, config: Any, training: bool = False) -> Array:
        read = replace(parameters, routed_expert_norm=first_only(parameters.routed_expert_norm))
        return super().layer(x, read, config=config)


class UpPackedByAddress(Reference):
    """The up projection is packed once for each address and shape."""

    killed_by = "LAY-CALLS"

    def __init__(self) -> None:
        super().__init__()
        self.packed: dict[Any, Any] = {}

    def key(self, array: Array) -> Any:
        return array.__array_interface__["data"][0], array.shape

    def pack(self, parameters: Any) -> Any:
        up_DL = parameters.routed_expert_up_proj
        _, packed = self.packed.setdefault(self.key(up_DL), (up_DL, np.array(up_DL)))
        return replace(parameters, routed_expert_up_proj=packed)

    def layer(self, x: Array, parameters: Any, *, config: Any, training: bool = False) -> Array:
        return super().layer(x, self.pack(parameters), config=config)


class UpPackedForGradients(UpPackedByAddress):
    """The same in the backward pass alone, for each array object."""

    killed_by = "LAY-CALLS"

    layer = Reference.layer

    def key(self, array: Array) -> Any:
        return id(array)

    def layer_vjp(self, x: Array, parameters: Any, cotangent: Array, *, config: Any) -> Any:
        return super().layer_vjp(x, self.pack(parameters), cotangent, config=config)


class BiasPackedByAddress(UpPackedByAddress):
    """The selection bias is packed: what balancing has written since is not seen."""

    killed_by = "LAY-CALLS"

    def pack(self, parameters: Any) -> Any:
        bias_N = parameters.e_score_correction_bias
        _, packed = self.packed.setdefault(self.key(bias_N), (bias_N, np.array(bias_N)))
        return replace(parameters, e_score_correction_bias=packed)


class TwoBuffersInTurn(Reference):
    """Outputs of one shape lie in two buffers in turn."""

    killed_by = "LAY-CALLS"

    def __init__(self) -> None:
        super().__init__()
        self.buffers: dict[Any, list[Array]] = {}

    def layer(self, x: Array, parameters: Any, *, config: Any, training: bool = False) -> Array:
        y = super().layer(x, parameters, config=config)
        turn = self.buffers.setdefault(y.shape, [np.empty_like(y), np.empty_like(y)])
        turn.reverse()
        turn[0][...] = y
        return turn[0]


class BatchOfOneSqueezed(Reference):
    """A batch of one sequence comes back without its axis."""

    killed_by = "LAY-SHAPE"
    verdict = "adapter error"

    def layer(self, x: Array, parameters: Any, *, config: Any, training: bool = False) -> Array:
        y = super().layer(x, parameters, config=config)
        return y[0] if y.ndim > 2 and len(y) == 1 else y


class GradientOfOneSqueezed(Reference):
    """The same in the backward pass: d_x."""

    killed_by = "LAY-GRAD"
    verdict = "adapter error"

    def layer_vjp(self, x: Array, parameters: Any, cotangent: Array, *, config: Any) -> Any:
        d_x, gradients = super().layer_vjp(x, parameters, cotangent, config=config)
        return (d_x[0] if d_x.ndim > 2 and len(d_x) == 1 else d_x), gradients
