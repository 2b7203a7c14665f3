"""Routers that are right for few tokens, or at the usual numbers of experts, and for no others.

``killed_by`` names the property that has to catch it. Legend: M tokens, N routed experts, K top_k.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from properties.protocol import Array, Routing
from properties.reference import Reference


def read_again(routed: Routing, held: int) -> Routing:
    """The routing whose token i is told what token i mod ``held`` is."""
    rows = np.arange(len(routed.weights)) % held
    return Routing(*(None if part is None else part[rows] for part in routed))


class RoomForFewTokens(Reference):
    """More than 512 experts leave room for the logits of 64 tokens: later ones read those again."""

    killed_by = "RTR-LARGE"
    least, held = 513, 64

    def route(self, logits: Array, bias: Array, *, top_k: int) -> Routing:
        routed = super().route(logits, bias, top_k=top_k)
        return read_again(routed, self.held) if len(bias) >= self.least else routed


class RoomForMoreTokens(RoomForFewTokens):
    """The same from 256 experts on, with room for 512 tokens."""

    killed_by = "RTR-LARGE"
    least, held = 256, 512


class GradientOfFewTokens(Reference):
    """With more than 512 experts, the backward pass covers 64 tokens."""

    killed_by = "RTR-GRAD"
    least, covered = 513, 64

    def route_vjp(self, *call: Array, top_k: int) -> tuple[Array, Array]:
        d_logits, d_bias = super().route_vjp(*call, top_k=top_k)
        if len(d_bias) >= self.least:
            d_logits[self.covered :] = 0.0
        return d_logits, d_bias


class GradientOfMoreTokens(GradientOfFewTokens):
    """From 256 experts on, it covers 256 tokens."""

    killed_by = "RTR-GRAD"
    least, covered = 256, 256


class GradientWithoutTheOddWarp(Reference):
    """Experts go by 64; where N leaves a remainder of 32, these have no gradient."""

    killed_by = "RTR-GRAD"

    def route_vjp(self, *call: Array, top_k: int) -> tuple[Array, Array]:
        d_logits, d_bias = super().route_vjp(*call, top_k=top_k)
        if len(d_bias) > 32 and len(d_bias) % 64 == 32:
            d_logits[:, -32:] = 0.0
        return d_logits, d_bias


class BiasReadOn(Reference):
    """A bias of one number, with a stride of 0, is read on, into whatever lies behind it."""

    killed_by = "RTR-STRIDE"

    def route(self, logits: Array, bias: Array, *, top_k: int) -> Routing:
        read = np.where(np.arange(len(bias)) < 1, bias, 2.0) if bias.strides == (0,) else bias
        return super().route(logits, read, top_k=top_k)


class CotangentReadOn(Reference):
    """So is a cotangent that has one number for all slots, or for all tokens."""

    killed_by = "RTR-GRAD-FLAT"

    def route_vjp(
        self, logits: Array, bias: Array, cotangent: Array, *, top_k: int
    ) -> tuple[Array, Array]:
        if cotangent.size > 1 and cotangent.strides[1] == 0:
            cotangent = np.where(np.arange(top_k) < 1, cotangent, 2.0)
        return super().route_vjp(logits, bias, cotangent, top_k=top_k)


class GroupsOfFewTokens(Reference):
    """More than 512 experts leave room for 64 tokens in groups: later ones read those again."""

    killed_by = "RTR-GROUPS"
    least, held = 513, 64

    def route_grouped(self, logits: Array, bias: Array, **groups: Any) -> Routing:
        routed = super().route_grouped(logits, bias, **groups)
        return read_again(routed, self.held) if len(bias) >= self.least else routed


class GroupsOfMoreTokens(GroupsOfFewTokens):
    """The same from 256 experts on, with room for 256 tokens."""

    killed_by = "RTR-GROUPS"
    least, held = 256, 256
