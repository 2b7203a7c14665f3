"""Layers that are right from fresh memory, once.

``killed_by`` names the property that has to catch it. Legend: M tokens, N routed experts, K top_k,
D model width, L latent width, S shared experts.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from properties.reference import Reference

# From any memory ----------------------------------------------------------------------------------


def row_after_row(array):
    """What lies in memory from the array's lowest address on, as far as it is the array's."""
    return np.ravel(array, order="K").reshape(array.shape)


class StridesOfRouterIgnored(Reference):
    """The layer reads a router's weight that is stored by columns row after row."""

    killed_by = "LAY-LAYOUT"

    def layer(self, x, parameters, *, config, training=False):
        read = replace(parameters, gate_weight=row_after_row(parameters.gate_weight))
        return super().layer(x, read, config=config)


class StridesOfLogitsIgnored(Reference):
    """``router_logits`` does."""

    killed_by = "LAY-LAYOUT"

    def router_logits(self, x, parameters):
        read = replace(parameters, gate_weight=row_after_row(parameters.gate_weight))
        return super().router_logits(x, read)


class StridesOfUpIgnored(Reference):
    """The backward pass reads an up projection that is stored by columns row after row."""

    killed_by = "LAY-LAYOUT"

    def layer_vjp(self, x, parameters, cotangent, *, config):
        up_DL = row_after_row(parameters.routed_expert_up_proj)
        read = replace(parameters, routed_expert_up_proj=up_DL)
        return super().layer_vjp(x, read, cotangent, config=config)


# In turn ------------------------------------------------------------------------------------------


def sizes_of(parameters):
    """What a cache goes by that forgets the values."""
    shapes = parameters.gate_weight.shape, parameters.experts.gate_proj.shape
    return *shapes, parameters.shared_experts.gate_proj.shape


class CapsKeptBySize(Reference):
    """A compiled kernel is kept by sizes; the caps are constants in it."""

    killed_by = "LAY-CALLS"

    def __init__(self):
        super().__init__()
        self.kept = {}

    def layer(self, x, parameters, *, config, training=False):
        first = self.kept.setdefault((*sizes_of(parameters), config.top_k), config)
        config = replace(config, beta_gate=first.beta_gate, beta_up=first.beta_up)
        return super().layer(x, parameters, config=config)


class UpPackedBySize(Reference):
    """The packed up projection of the latest forward call serves the backward pass of its sizes."""

    killed_by = "LAY-CALLS"

    def __init__(self):
        super().__init__()
        self.packed = {}

    def layer_vjp(self, x, parameters, cotangent, *, config):
        up_DL = parameters.routed_expert_up_proj
        packed = self.packed.setdefault((x.shape, *sizes_of(parameters), config.top_k), up_DL)
        read = replace(parameters, routed_expert_up_proj=packed)
        return super().layer_vjp(x, read, cotangent, config=config)


class GradientsAddedToTheLast(Reference):
    """The gradient of the up projection is added to that of the last call with these parameters."""

    killed_by = "LAY-CALLS"

    def __init__(self):
        super().__init__()
        self.last = {}

    def layer_vjp(self, x, parameters, cotangent, *, config):
        d_x, gradients = super().layer_vjp(x, parameters, cotangent, config=config)
        key = parameters.routed_expert_up_proj.tobytes(), parameters.gate_weight.tobytes()
        total = gradients.routed_expert_up_proj + self.last.get(key, 0.0)
        self.last = {**self.last, key: total}
        return d_x, replace(gradients, routed_expert_up_proj=total)


class OutputsInOneBuffer(Reference):
    """Outputs of one shape share a buffer."""

    killed_by = "LAY-CALLS"

    def __init__(self):
        super().__init__()
        self.buffers = {}

    def layer(self, x, parameters, *, config, training=False):
        y = super().layer(x, parameters, config=config)
        buffer = self.buffers.setdefault(y.shape, np.empty_like(y))
        buffer[...] = y
        return buffer


class GradientsInOneBuffer(Reference):
    """Gradients d_x of one shape share a buffer."""

    killed_by = "LAY-CALLS"

    def __init__(self):
        super().__init__()
        self.buffers = {}

    def layer_vjp(self, x, parameters, cotangent, *, config):
        d_x, gradients = super().layer_vjp(x, parameters, cotangent, config=config)
        buffer = self.buffers.setdefault(d_x.shape, np.empty_like(d_x))
        buffer[...] = d_x
        return buffer, gradients
