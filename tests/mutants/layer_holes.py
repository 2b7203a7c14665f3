"""Layers that are wrong for what a model meets and random draws do not.

``killed_by`` names the property that has to catch it. Legend: M tokens, N routed experts, K top_k,
D model width, L latent width, H hidden width of a routed expert, S shared experts.
"""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np

from properties.reference import Reference
from reference_numpy import (
    ExpertParameters,
    LayerParameters,
    combine_weights,
    rms_norm,
    rms_norm_vjp,
    router_logits,
    scores,
    situ_glu,
)
from reference_numpy import experts as weighted_sum
from reference_numpy.experts import expert_vjp
from reference_numpy.routing import top_k_ids, weights_vjp


class Staged(Reference):
    """The reference in stages, sorted by experts; each is there for a mistake to take its place."""

    def tokens(self, x_MD):
        return x_MD

    def linear(self, x, weight):
        return x @ weight.T

    def activation(self, gate, up, caps):
        return situ_glu(gate, up, **caps)

    def expert(self, x, gate, up, down, caps):
        return self.linear(self.activation(self.linear(x, gate), self.linear(x, up), caps), down)

    def slots(self, x, ids_MK):
        """The token of each slot (M K, L)."""
        return np.repeat(x, ids_MK.shape[1], axis=0)

    def combined(self, x, ids_MK, weights_MK, p, caps):
        rows, ids = self.slots(x, ids_MK), ids_MK.reshape(-1)
        out = np.zeros(rows.shape)
        for j in np.unique(ids):
            here = ids == j
            parts = p.gate_proj[j], p.up_proj[j], p.down_proj[j]
            out[here] = self.expert(rows[here], *parts, caps)
        return (out.reshape(*ids_MK.shape, out.shape[-1]) * weights_MK[:, :, None]).sum(axis=1)

    def logits(self, logits_MN):
        return logits_MN

    def scale(self, routed_scale):
        return routed_scale

    def weights(self, logits_MN, bias_N, ids_MK):
        return combine_weights(scores(logits_MN), ids_MK)

    def routing(self, x_MD, p, config):
        logits = self.logits(router_logits(x_MD, p.gate_weight))
        ids = top_k_ids(scores(logits) + p.e_score_correction_bias, config.top_k)
        weights = self.weights(logits, p.e_score_correction_bias, ids)
        return logits, ids, self.scale(config.routed_scale) * weights

    def raised(self, u, p, eps):
        return self.linear(rms_norm(u, p.routed_expert_norm, eps=eps), p.routed_expert_up_proj)

    def layer(self, x, parameters, *, config, training=False):
        p, caps = parameters, {"beta_gate": config.beta_gate, "beta_up": config.beta_up}
        x_MD = self.tokens(np.asarray(x).reshape(-1, x.shape[-1]))
        _, ids, weights = self.routing(x_MD, p, config)
        latent = self.linear(x_MD, p.routed_expert_down_proj)
        y = self.raised(self.combined(latent, ids, weights, p.experts, caps), p, config.norm_eps)
        shared = p.shared_experts
        for parts in zip(shared.gate_proj, shared.up_proj, shared.down_proj, strict=True):
            y = y + self.expert(x_MD, *parts, caps)
        return y.reshape(x.shape)

    def norm_vjp(self, u, weight, cotangent, eps):
        return rms_norm_vjp(u, weight, cotangent, eps=eps)

    def layer_vjp(self, x, parameters, cotangent, *, config):
        p, caps = parameters, {"beta_gate": config.beta_gate, "beta_up": config.beta_up}
        x_MD = np.asarray(x).reshape(-1, x.shape[-1])
        c_MD = np.asarray(cotangent).reshape(x_MD.shape)
        logits, ids, weights = self.routing(x_MD, p, config)
        latent = x_MD @ p.routed_expert_down_proj.T
        u = weighted_sum(latent, ids, weights, p.experts, **caps)
        v = rms_norm(u, p.routed_expert_norm, eps=config.norm_eps)
        d_v = c_MD @ p.routed_expert_up_proj
        d_u, d_norm = self.norm_vjp(u, p.routed_expert_norm, d_v, config.norm_eps)
        d_latent, d_weights, d_experts = self.experts_vjp(
            latent, ids, weights, p.experts, d_u, **caps
        )
        d_logits = weights_vjp(logits, ids, d_weights * self.scale(config.routed_scale))
        shared = p.shared_experts
        d_each, *d_shared = expert_vjp(
            x_MD, shared.gate_proj, shared.up_proj, shared.down_proj, c_MD, **caps
        )
        d_x = d_latent @ p.routed_expert_down_proj + d_logits @ p.gate_weight + d_each.sum(axis=0)
        return d_x.reshape(x.shape), LayerParameters(
            gate_weight=d_logits.T @ x_MD,
            e_score_correction_bias=np.zeros(len(p.gate_weight)),
            routed_expert_down_proj=d_latent.T @ x_MD,
            experts=d_experts,
            routed_expert_norm=d_norm,
            routed_expert_up_proj=c_MD.T @ v,
            shared_experts=ExpertParameters(*d_shared),
        )


# NaN throughout -----------------------------------------------------------------------------------


class AllNan(Reference):
    """Every output is NaN: two layers that are one function agree on that, too."""

    killed_by = "LAY-SCALE"

    def layer(self, x, parameters, *, config, training=False):
        return np.full(x.shape, np.nan)


class AllNanShapes(AllNan):
    """The same, whatever the leading axes are."""

    killed_by = "LAY-SHAPE"


class AllNanUpOnce(AllNan):
    """The same, wherever W_up is."""

    killed_by = "LAY-UPONCE"


class AllNanRouter(AllNan):
    """The same, whatever the router reads."""

    killed_by = "LAY-ROUTERWIDTH"


class AllNanModes(AllNan):
    """The same, in training and in evaluation."""

    killed_by = "LAY-TRAINEVAL"


class AllInfinite(Reference):
    """Every output is infinite, which crossed products do not see."""

    killed_by = "LAY-NORMORDER"

    def layer(self, x, parameters, *, config, training=False):
        return np.full(x.shape, np.inf)


# At size ------------------------------------------------------------------------------------------


class AlignedPathWithoutNormWeight(Staged):
    """Norm and W_up are one kernel where D and L are multiples of 16: the weight is left out."""

    killed_by = "LAY-SIZES"

    def raised(self, u, p, eps):
        aligned = all(width % 16 == 0 for width in p.routed_expert_up_proj.shape)
        ones = np.ones_like(p.routed_expert_norm)
        return super().raised(u, replace(p, routed_expert_norm=ones) if aligned else p, eps)


class HalfBlockLost(Staged):
    """Sums over multiples of 64 go on by 128 from 128 on: of 192 terms the last 64 are lost."""

    killed_by = "LAY-SIZES"

    def linear(self, x, weight):
        width = x.shape[-1]
        if width % 64 == 0 and width >= 128:
            width = width // 128 * 128
        return x[:, :width] @ weight[:, :width].T


class AlignedPathWithoutCap(Staged):
    """The fused path for L and H that are multiples of 64 lacks the cap of up."""

    killed_by = "LAY-SIZES"

    def expert(self, x, gate, up, down, caps):
        if any(width % 64 for width in gate.shape):
            return super().expert(x, gate, up, down, caps)
        return situ_glu(x @ gate.T, x @ up.T, **{**caps, "beta_up": 1e6}) @ down.T


class AlignedGradientsSwapped(Reference):
    """Where L and H are multiples of 64 the gradients of gate and up change places."""

    killed_by = "LAY-SIZES"

    def layer_vjp(self, x, parameters, cotangent, *, config):
        d_x, d = super().layer_vjp(x, parameters, cotangent, config=config)
        if all(width % 64 == 0 for width in d.experts.gate_proj.shape[1:]):
            swapped = replace(d.experts, gate_proj=d.experts.up_proj, up_proj=d.experts.gate_proj)
            d = replace(d, experts=swapped)
        return d_x, d


class PowersOfTwoWeighBiased(Staged):
    """The top-k kernel for 64, 128, 256 and 512 experts weighs by s + b."""

    killed_by = "LAY-SIZES"

    def weights(self, logits_MN, bias_N, ids_MK):
        biased = bias_N if len(bias_N) in (64, 128, 256, 512) else 0.0
        return combine_weights(scores(logits_MN) + biased, ids_MK)


class SecondBlockOfSlots(Staged):
    """Slots are sorted by blocks of 1024: experts from 32 on overwrite those of the first block."""

    killed_by = "LAY-SIZES"

    def slots(self, x, ids_MK):
        rows, ids = super().slots(x, ids_MK).copy(), ids_MK.reshape(-1)
        for j in range(32, ids.max(initial=0) + 1):
            first, later = np.flatnonzero(ids[:1024] == j), np.flatnonzero(ids[1024:] == j) + 1024
            both = min(len(first), len(later))
            rows[first[:both]] = rows[later[:both]]
        return rows


class PlacesInHalf(Staged):
    """Places within an expert are counted in float16, which stops at 2048."""

    killed_by = "LAY-SIZES"

    def slots(self, x, ids_MK):
        rows, ids = super().slots(x, ids_MK).copy(), ids_MK.reshape(-1)
        for j in np.unique(ids):
            here = np.flatnonzero(ids == j)
            rows[here[2047:]] = rows[here[-1]]
        return rows


class TallProducts(Staged):
    """Tiles in groups of eight: of a ninth row of tiles the second column stays 0."""

    killed_by = "LAY-SIZES"

    def linear(self, x, weight):
        y = super().linear(x, weight)
        y[512:, 64:] = 0.0
        return y


class FullTilesLoseOne(Reference):
    """Gradients lose the last 64 tokens of an expert that has 128, 192 or more full tiles."""

    killed_by = "LAY-SIZES"

    def layer_vjp(self, x, parameters, cotangent, *, config):
        d_x, d = super().layer_vjp(x, parameters, cotangent, config=config)
        if len(parameters.gate_weight) == 1 and len(x) >= 128 and len(x) % 64 == 0:
            kept = cotangent.copy()
            kept[-64:] = 0.0
            _, d = super().layer_vjp(x, parameters, kept, config=config)
        return d_x, d


# Zeros --------------------------------------------------------------------------------------------


class ScaledByLargest(Staged):
    """Tokens are scaled by a power of two near their largest size: 0/0 for a batch of zeros."""

    killed_by = "LAY-TINY"

    def tokens(self, x_MD):
        with np.errstate(all="ignore"):
            power = np.exp2(np.floor(np.log2(np.abs(x_MD).max(initial=0.0))))
            return x_MD / power * power


class EachScaledByLargest(Staged):
    """The same token by token: NaN for padding, beside tokens that are right."""

    killed_by = "LAY-VALUE"

    def tokens(self, x_MD):
        with np.errstate(all="ignore"):
            power = np.exp2(np.floor(np.log2(np.abs(x_MD).max(axis=1, keepdims=True))))
            return x_MD / power * power


class BackwardScaledByLargest(Staged):
    """The same in the backward pass alone."""

    killed_by = "LAY-GRAD"

    def layer_vjp(self, x, parameters, cotangent, *, config):
        with np.errstate(all="ignore"):
            power = np.exp2(np.floor(np.log2(np.abs(x).max(axis=-1, initial=0.0, keepdims=True))))
            return super().layer_vjp(x / power * power, parameters, cotangent, config=config)


class NothingFromZeroRows(Staged):
    """The norm's gradient is 0 for rows of 0: down projections of 0 never start to learn."""

    killed_by = "LAY-GRAD"

    def norm_vjp(self, u, weight, cotangent, eps):
        d_u, d_weight = super().norm_vjp(u, weight, cotangent, eps)
        return np.where(u.any(axis=-1, keepdims=True), d_u, 0.0), d_weight


class NormFromOutput(Staged):
    """The norm's gradient divides its output by the weight, of which sizes below 1e-5 are 1e-5."""

    killed_by = "LAY-GRAD"

    def norm_vjp(self, u, weight, cotangent, eps):
        rho = np.sqrt(np.mean(u * u, axis=-1, keepdims=True) + eps)
        least = np.where(weight < 0, -1e-5, 1e-5)
        unit = u / rho * weight / np.where(np.abs(weight) < 1e-5, least, weight)
        a = cotangent * weight
        d_u = (a - unit * np.mean(a * unit, axis=-1, keepdims=True)) / rho
        return d_u, (cotangent * unit).sum(axis=0)


# Shapes and numbers -------------------------------------------------------------------------------


class SequenceOfOne(Reference):
    """For x (B, 1, D), as in decoding, gradients of tokens are their mean."""

    killed_by = "LAY-GRAD"

    def layer_vjp(self, x, parameters, cotangent, *, config):
        d_x, d = super().layer_vjp(x, parameters, cotangent, config=config)
        if x.ndim == 3 and x.shape[1] == 1:
            d_x = np.broadcast_to(d_x.mean(axis=0), d_x.shape).copy()
        return d_x, d


class ScaleInBFloat16(Staged):
    """routed_scale is cast to bfloat16 with the module's other numbers: 2.827 is 2.828125."""

    killed_by = "LAY-TINY"

    def scale(self, routed_scale):
        return float(np.float32(routed_scale).astype(ml_dtypes.bfloat16))


class CapsInBFloat16(Staged):
    """The caps are tensors of bfloat16: 3.3 is 3.296875."""

    killed_by = "LAY-VALUE"

    def activation(self, gate, up, caps):
        near = {
            name: float(np.float32(cap).astype(ml_dtypes.bfloat16)) for name, cap in caps.items()
        }
        return situ_glu(gate, up, **near)


class HiddenEndsAt448(Staged):
    """Hidden units are clamped to the range of float8_e4m3fn, whatever storage is."""

    killed_by = "LAY-SHARED"

    def activation(self, gate, up, caps):
        return np.clip(super().activation(gate, up, caps), -448.0, 448.0)


class ClampedLogits(Staged):
    """The layer's own router clamps logits to 20 in size."""

    killed_by = "LAY-VALUE"

    def logits(self, logits_MN):
        return np.clip(logits_MN, -20.0, 20.0)


class LargeEpsilon(Staged):
    """The layer's own router adds 1e-12 to the sum of scores."""

    killed_by = "LAY-VALUE"

    def weights(self, logits_MN, bias_N, ids_MK):
        return combine_weights(scores(logits_MN), ids_MK, epsilon=1e-12)
