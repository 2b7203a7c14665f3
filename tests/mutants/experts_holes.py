"""Experts that are wrong where kernels have paths and tables of their own, or are no numbers.

``killed_by`` names the property that has to catch it. Legend: M tokens, K top_k, L latent width.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from properties.protocol import Array, ExpertParameters
from properties.reference import Reference
from reference_numpy import situ_glu


class NaNInAnyOrder(Reference):
    """Every output is NaN, whatever the order of the tokens."""

    killed_by = "DSP-PERMUTE"

    def experts(self, x: Array, *arguments: Any, **options: Any) -> Array:
        return np.full_like(super().experts(x, *arguments, **options), np.nan)


class NaNOfEqualExperts(NaNInAnyOrder):
    """Every output is NaN, as is that of one expert in place of several equal ones."""

    killed_by = "DSP-SAME"


class NaNEveryTime(NaNInAnyOrder):
    """Every output is NaN, in every call."""

    killed_by = "DSP-REPEAT"


class Grouped(Reference):
    """The reference, expert by expert: each step is there for a mistake to take its place."""

    def linear(self, x: Array, weight: Array) -> Array:
        return x @ weight.T

    def activation(self, gate: Array, up: Array, **caps: float) -> Array:
        return situ_glu(gate, up, **caps)

    def expert(self, x: Array, gate: Array, up: Array, down: Array, **caps: float) -> Array:
        hidden = self.activation(self.linear(x, gate), self.linear(x, up), **caps)
        return self.linear(hidden, down)

    def rows(self, x: Array, expert_ids: Array) -> Array:
        """The token of each slot (M K, L)."""
        return np.repeat(x, expert_ids.shape[1], axis=0)

    def experts(
        self, x: Array, expert_ids: Array, weights: Array, parameters: ExpertParameters, **caps: Any
    ) -> Array:
        p, rows, ids = parameters, self.rows(x, expert_ids), expert_ids.reshape(-1)
        out = np.zeros(rows.shape)
        for j in np.unique(ids):
            here = ids == j
            parts = p.gate_proj[j], p.up_proj[j], p.down_proj[j]
            out[here] = self.expert(rows[here], *parts, **caps)
        return (out.reshape(*expert_ids.shape, x.shape[1]) * weights[:, :, None]).sum(axis=1)


class TilesOfALastGroup(Grouped):
    """Tiles of 64 x 64 run in groups of eight rows; the last group is taken to be as high."""

    killed_by = "DSP-SIZES"

    def linear(self, x: Array, weight: Array) -> Array:
        high, wide = -(-len(x) // 64), -(-len(weight) // 64)
        done, group = np.zeros((high, wide), bool), min(high, 8)
        for program in range(high * wide):
            first, place = divmod(program, group * wide)
            row = first * group + place % group
            if row < high:
                done[row, place // group] = True
        there = np.repeat(np.repeat(done, 64, axis=0), 64, axis=1)[: len(x), : len(weight)]
        return np.where(there, super().linear(x, weight), 0.0)


class HalfATileLost(Grouped):
    """Where 64 divides the inner width, it is cut down to a multiple of 128, from 128 on."""

    killed_by = "DSP-SIZES"

    def linear(self, x: Array, weight: Array) -> Array:
        width = x.shape[-1]
        if width % 64 == 0 and width >= 128:
            width = width // 128 * 128
        return super().linear(x[:, :width], weight[:, :width])


class RingOfFourTiles(Grouped):
    """The fifth and later tiles of 128 of the inner width read the one before."""

    killed_by = "DSP-SIZES"

    def linear(self, x: Array, weight: Array) -> Array:
        columns = np.arange(x.shape[-1])
        columns = np.where(columns >= 512, columns - 128, columns)
        return super().linear(x[:, columns], weight[:, columns])


class AlignedWithoutUpCap(Grouped):
    """Where 64 divides both widths, up has no cap."""

    killed_by = "DSP-SIZES"

    def expert(self, x: Array, gate: Array, *others: Array, **caps: float) -> Array:
        if gate.shape[0] % 64 == 0 and gate.shape[1] % 64 == 0:
            caps = caps | {"beta_up": 1e9}
        return super().expert(x, gate, *others, **caps)


class AlignedGradientsExchanged(Reference):
    """Where 64 divides both widths, gradients of gate and up change places."""

    killed_by = "DSP-GRAD-SIZES"

    def experts_vjp(self, *call: Any, **caps: Any) -> Any:
        d_x, d_weights, d = super().experts_vjp(*call, **caps)
        if all(width % 64 == 0 for width in d.gate_proj.shape[1:]):
            d = ExpertParameters(d.up_proj, d.gate_proj, d.down_proj)
        return d_x, d_weights, d


class SlotsInSixteenBits(Grouped):
    """Slot 65,536 is slot 0."""

    killed_by = "DSP-SIZES"

    def rows(self, x: Array, expert_ids: Array) -> Array:
        rows = super().rows(x, expert_ids)
        return rows[np.arange(len(rows)) & 0xFFFF]


class CarryOfTheFirstWarp(Grouped):
    """Slots are sorted by blocks of 1024, which expert 32 and later ones all begin at place 0."""

    killed_by = "DSP-SIZES"

    def rows(self, x: Array, expert_ids: Array) -> Array:
        rows, ids = super().rows(x, expert_ids), expert_ids.reshape(-1)
        sorted_rows = rows.copy()
        for j in np.unique(ids[1024:]):
            slots = np.flatnonzero(ids == j)
            if j >= 32:
                place = np.arange(len(slots)) - np.searchsorted(slots, slots // 1024 * 1024)
                last = dict(zip(place, slots, strict=True))
                sorted_rows[slots] = rows[[last[one] for one in place]]
        return sorted_rows


class PlacesInHalf(Grouped):
    """Places within an expert are counted in float16, which stops at 2048."""

    killed_by = "DSP-SIZES"

    def rows(self, x: Array, expert_ids: Array) -> Array:
        rows, ids = super().rows(x, expert_ids).copy(), expert_ids.reshape(-1)
        for j in np.unique(ids):
            slots = np.flatnonzero(ids == j)
            rows[slots[2047:]] = rows[slots[-1]] if len(slots) > 2048 else rows[slots[2047:]]
        return rows


class BusyExpertsInATable(Reference):
    """128 experts are computed in one call, the others not."""

    killed_by = "DSP-SIZES"

    def experts(self, x: Array, ids: Array, weights: Array, *others: Any, **caps: Any) -> Any:
        computed = np.isin(ids, np.unique(ids)[:128])
        return super().experts(x, ids, np.where(computed, weights, 0.0), *others, **caps)


class ThreeExpertsAThread(Reference):
    """256 threads keep three experts each: those from 768 on have no tokens."""

    killed_by = "DSP-SIZES"

    def experts(self, x: Array, ids: Array, weights: Array, *others: Any, **caps: Any) -> Any:
        return super().experts(x, ids, np.where(ids < 768, weights, 0.0), *others, **caps)


class BusyExpertsWithGradients(Reference):
    """128 experts get gradients in one call, the others zeros."""

    killed_by = "DSP-GRAD-SIZES"

    def experts_vjp(self, x: Array, ids: Array, *others: Any, **caps: Any) -> Any:
        d_x, d_weights, d = super().experts_vjp(x, ids, *others, **caps)
        for part in (d.gate_proj, d.up_proj, d.down_proj):
            part[np.unique(ids)[128:]] = 0.0
        return d_x, d_weights, d


class _GradientsOfFewerTokens(Reference):
    """Parameters' gradients leave out the tokens that ``lost`` names of those of one expert."""

    def lost(self, tokens: Array) -> Array:
        return tokens[:0]

    def experts_vjp(self, x: Array, ids: Array, weights: Array, *others: Any, **caps: Any) -> Any:
        d_x, d_weights, _ = super().experts_vjp(x, ids, weights, *others, **caps)
        kept = np.array(weights)
        for j in np.unique(ids):
            lost = self.lost(np.flatnonzero((ids == j).any(axis=1)))
            kept[lost] = np.where(ids[lost] == j, 0.0, kept[lost])
        return d_x, d_weights, super().experts_vjp(x, ids, kept, *others, **caps)[2]


class SecondHalfOverwrites(_GradientsOfFewerTokens):
    """From 1024 tokens at an expert on there are two sums, of which the second is left."""

    killed_by = "DSP-GRAD-SIZES"

    def lost(self, tokens: Array) -> Array:
        return tokens[: len(tokens) // 2] if len(tokens) >= 1024 else tokens[:0]


class LastFullTileLost(_GradientsOfFewerTokens):
    """Where the tokens of an expert fill tiles of 64 exactly, two and more, the last is lost."""

    killed_by = "DSP-GRAD-SIZES"

    def lost(self, tokens: Array) -> Array:
        full = len(tokens) >= 128 and len(tokens) % 64 == 0
        return tokens[-64:] if full else tokens[:0]


class CapsInBFloat16(Grouped):
    """The caps are rounded to bfloat16."""

    killed_by = "DSP-DENSE"

    def activation(self, gate: Array, up: Array, **caps: float) -> Array:
        held = {name: float(ml_dtypes.bfloat16(cap)) for name, cap in caps.items()}
        return super().activation(gate, up, **held)


class HiddenUnitsUpTo448(Grouped):
    """The activation is clipped to the range of float8_e4m3, whatever storage is."""

    killed_by = "DSP-DENSE"

    def activation(self, gate: Array, up: Array, **caps: float) -> Array:
        return np.clip(super().activation(gate, up, **caps), -448.0, 448.0)


class ScaledByTheLargest(Reference):
    """The backward pass divides x by its largest size first, which may be 0."""

    killed_by = "DSP-GRAD"

    def experts_vjp(self, x: Array, *others: Any, **caps: Any) -> Any:
        with np.errstate(all="ignore"):
            size = np.exp2(np.floor(np.log2(np.max(np.abs(x), initial=0.0))))
            x = x / size * size
        return super().experts_vjp(x, *others, **caps)


class ExpandedCotangentOnce(Reference):
    """A cotangent with a stride of 0 over tokens is that of the first token alone."""

    killed_by = "DSP-LAYOUT"

    def experts_vjp(
        self, x: Array, ids: Array, weights: Array, p: Any, cotangent: Array, **caps: Any
    ) -> Any:
        if len(x) > 1 and cotangent.strides[0] == 0:
            cotangent = np.where(np.arange(len(x))[:, None] == 0, cotangent, 0.0)
        return super().experts_vjp(x, ids, weights, p, cotangent, **caps)


class ExpandedTokensAsOne(Reference):
    """An x with a stride of 0 over tokens has one weight, too: the first token's."""

    killed_by = "DSP-LAYOUT"

    def experts(self, x: Array, ids: Array, weights: Array, *others: Any, **caps: Any) -> Array:
        if len(x) > 1 and x.strides[0] == 0:
            weights = np.broadcast_to(weights[:1], weights.shape)
        return super().experts(x, ids, weights, *others, **caps)


class PackedByAddress(Reference):
    """down_proj is packed once for each address and shape."""

    killed_by = "DSP-CALLS"

    def __init__(self) -> None:
        super().__init__()
        self.packed: dict[Any, Any] = {}

    def key(self, array: Array) -> Any:
        return array.__array_interface__["data"][0], array.shape

    def pack(self, p: ExpertParameters) -> ExpertParameters:
        _, packed = self.packed.setdefault(
            self.key(p.down_proj), (p.down_proj, np.array(p.down_proj))
        )
        return ExpertParameters(p.gate_proj, p.up_proj, packed)

    def experts(
        self, x: Array, ids: Array, weights: Array, parameters: ExpertParameters, **caps: Any
    ) -> Array:
        return super().experts(x, ids, weights, self.pack(parameters), **caps)


class PackedByObject(PackedByAddress):
    """The same for each array object, which is kept, so that no other takes its place."""

    killed_by = "DSP-CALLS"

    def key(self, array: Array) -> Any:
        return id(array)


class PackedForGradients(PackedByObject):
    """The same in the backward pass alone."""

    killed_by = "DSP-CALLS"

    experts = Reference.experts

    def experts_vjp(
        self, x: Array, ids: Array, weights: Array, parameters: Any, *others: Any, **caps: Any
    ) -> Any:
        return super().experts_vjp(x, ids, weights, self.pack(parameters), *others, **caps)
