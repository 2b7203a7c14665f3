"""Wrong layers in bfloat16: the same mistakes have to show through radii of several per cent.

``killed_by`` names the property that has to catch it. Legend: M tokens, N routed experts, K top_k,
D model width, L latent width.
"""

from __future__ import annotations

import torch
from torch import Tensor

import impl_torch
from impl_torch.adapter import BFloat16
from properties.protocol import LayerConfig


class Staged(BFloat16):
    """The layer in stages, with the package's functions, so that a mutant replaces one of them."""

    name = "mutant"

    def layer_forward(self, x: Tensor, p, *, config: LayerConfig, training: bool) -> Tensor:
        x_MD = x.reshape(-1, x.shape[-1])
        return (self.routed(x_MD, p, config) + self.shared(x_MD, p, config)).reshape(x.shape)

    def routed(self, x_MD: Tensor, p, config: LayerConfig) -> Tensor:
        return self.norm(self.combined(x_MD, p, config), p, config) @ p.routed_expert_up_proj.T

    def combined(self, x_MD: Tensor, p, config: LayerConfig) -> Tensor:
        ids_MK, weights_MK = self.routing(x_MD, p, config)
        return self.weighted(x_MD, ids_MK, weights_MK, p, config)

    def weighted(self, x_MD, ids_MK, weights_MK, p, config: LayerConfig) -> Tensor:
        latent_ML = x_MD @ p.routed_expert_down_proj.T
        return self.block(latent_ML, ids_MK, weights_MK * config.routed_scale, p.experts, config)

    def routing(self, x_MD: Tensor, p, config: LayerConfig) -> tuple[Tensor, Tensor]:
        bias_N = p.e_score_correction_bias
        routing = impl_torch.route(self.logits(x_MD, p), bias_N, top_k=config.top_k)
        return routing.expert_ids, routing.weights

    def logits(self, x_MD: Tensor, p) -> Tensor:
        return impl_torch.router_logits(x_MD, p.gate_weight)

    def norm(self, u_ML: Tensor, p, config: LayerConfig) -> Tensor:
        return impl_torch.rms_norm(u_ML, p.routed_expert_norm, eps=config.norm_eps)

    def shared(self, x_MD: Tensor, p, config: LayerConfig) -> Tensor:
        count = len(p.shared_experts.gate_proj)
        ids = torch.arange(count).expand(len(x_MD), count)
        return self.block(x_MD, ids, torch.ones(ids.shape), p.shared_experts, config)

    def block(self, x, ids, weights, experts, config: LayerConfig) -> Tensor:
        parts = experts.gate_proj, experts.up_proj, experts.down_proj
        betas = {"beta_gate": config.beta_gate, "beta_up": config.beta_up}
        return impl_torch.experts(x, ids, weights, *parts, **betas)


class UniformWeights(Staged):
    """Every chosen expert weighs 1/K."""

    killed_by = "LAY-VALUE"

    def routing(self, x_MD, p, config):
        ids_MK, weights_MK = super().routing(x_MD, p, config)
        return ids_MK, torch.full_like(weights_MK, 1 / config.top_k)


class WeightsFromBiasedScores(Staged):
    """The bias weighs."""

    killed_by = "LAY-VALUE"

    def routing(self, x_MD, p, config):
        ids_MK, _ = super().routing(x_MD, p, config)
        biased_MN = torch.sigmoid(self.logits(x_MD, p)) + p.e_score_correction_bias
        chosen_MK = biased_MN.gather(1, ids_MK)
        return ids_MK, chosen_MK / chosen_MK.sum(1, keepdim=True)


class BiasIgnored(Staged):
    """Selection by the raw scores."""

    killed_by = "LAY-VALUE"

    def routing(self, x_MD, p, config):
        silent_N = torch.zeros_like(p.e_score_correction_bias)
        routing = impl_torch.route(self.logits(x_MD, p), silent_N, top_k=config.top_k)
        return routing.expert_ids, routing.weights


class LastSlotDropped(Staged):
    """The K-th expert is not added."""

    killed_by = "LAY-VALUE"

    def routing(self, x_MD, p, config):
        ids_MK, weights_MK = super().routing(x_MD, p, config)
        return ids_MK[:, :-1], weights_MK[:, :-1]


class RouterFedLatent(Staged):
    """The router reads the latent wherever shapes allow it."""

    killed_by = "LAY-ROUTERWIDTH"

    def logits(self, x_MD, p):
        square = len(p.routed_expert_norm) == x_MD.shape[1]
        return super().logits(x_MD @ p.routed_expert_down_proj.T if square else x_MD, p)


class RoutedSixteenfold(Staged):
    """The routed sum is 16 times too large, which the norm hides at unit amplitude."""

    killed_by = "LAY-TINY"

    def combined(self, x_MD, p, config):
        return 16 * super().combined(x_MD, p, config)


class EpsOnSum(Staged):
    """eps joins the sum of squares, before it is divided by L."""

    killed_by = "LAY-TINY"

    def norm(self, u_ML, p, config):
        eps = config.norm_eps / u_ML.shape[1]
        return impl_torch.rms_norm(u_ML, p.routed_expert_norm, eps=eps)


class NormMissing(Staged):
    """The routed sum goes to the up projection as it is."""

    killed_by = "LAY-VALUE"

    def norm(self, u_ML, p, config):
        return u_ML


class NormBeforeCombine(Staged):
    """Every expert's output is normalised, then they are combined."""

    killed_by = "LAY-NORMORDER"

    def routed(self, x_MD, p, config):
        ids_MK, weights_MK = self.routing(x_MD, p, config)
        slots = [
            self.weighted(x_MD, ids_MK[:, k : k + 1], weights_MK[:, k : k + 1], p, config)
            for k in range(config.top_k)
        ]
        return sum(self.norm(slot, p, config) for slot in slots) @ p.routed_expert_up_proj.T


class NormAfterUp(Staged):
    """Up projection, then the norm, wherever shapes allow it."""

    killed_by = "LAY-UPONCE"

    def routed(self, x_MD, p, config):
        if len(p.routed_expert_norm) != x_MD.shape[1]:
            return super().routed(x_MD, p, config)
        u_ML = self.combined(x_MD, p, config)
        return self.norm(u_ML @ p.routed_expert_up_proj.T, p, config)


class SharedTwice(Staged):
    """The shared experts' sum is added twice."""

    killed_by = "LAY-SHARED"

    def shared(self, x_MD, p, config):
        return 2 * super().shared(x_MD, p, config)


class SharedSilu(Staged):
    """SwiGLU, as the model had it that the shared experts were taken from."""

    killed_by = "LAY-SHARED"

    def shared(self, x_MD, p, config):
        shared = p.shared_experts
        gate, up = x_MD @ shared.gate_proj.mT, x_MD @ shared.up_proj.mT
        return (impl_torch.swiglu(gate, up) @ shared.down_proj.mT).sum(0)


class BatchTransposed(Staged):
    """Two leading axes are exchanged on the way in, and not on the way out."""

    killed_by = "LAY-SHAPE"

    def layer_forward(self, x, p, *, config, training):
        mixed = x if x.ndim < 3 else x.transpose(0, 1)
        flat = super().layer_forward(
            mixed.reshape(-1, x.shape[-1]), p, config=config, training=training
        )
        return flat.reshape(x.shape)
