"""Right layers that are not the reference's: other casts, places of a factor and forms of W_up."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from properties.protocol import Conventions, LayerConfig, Precision
from tests.variants.experts import Experts


class Layer(Experts):
    """Eq. 11 as a model's author writes it, with gradients from autograd."""

    name, version = "layer", "1"
    topics = ("layer",)
    experts_vjp: Any = None

    def logits(self, x: Tensor, weight: Tensor) -> Tensor:
        return x.float() @ weight.float().mT

    def router_logits_forward(self, x: Tensor, parameters: Any) -> Tensor:
        return self.logits(x, parameters.gate_weight)

    def chosen(self, x: Tensor, p: Any, top_k: int) -> tuple[Tensor, Tensor]:
        scores = torch.sigmoid(self.logits(x, p.gate_weight).float())
        ids = torch.topk(scores.detach() + p.e_score_correction_bias, top_k).indices
        chosen = scores.gather(1, ids)
        return ids, chosen / (chosen.sum(-1, keepdim=True) + 1e-20)

    def routed(self, x: Tensor, p: Any, config: LayerConfig) -> Tensor:
        """The weighted sum u (M, L)."""
        ids, weights = self.chosen(x, p, config.top_k)
        latent = self.product(x, p.routed_expert_down_proj)
        scaled = weights * config.routed_scale
        caps = {"beta_gate": config.beta_gate, "beta_up": config.beta_up}
        return self.experts_forward(latent, ids, scaled, p.experts, **caps)

    def raised(self, u: Tensor, p: Any, eps: float) -> Tensor:
        """W_up RMSNorm(u), (M, D)."""
        rows = u.float()
        scale = torch.rsqrt(rows.square().mean(-1, keepdim=True) + eps)
        normalised = (rows * scale * p.routed_expert_norm.float()).to(u.dtype)
        return self.product(normalised, p.routed_expert_up_proj)

    def added(self, x: Tensor, y: Tensor, shared: Any, config: LayerConfig) -> Tensor:
        for one in zip(shared.gate_proj, shared.up_proj, shared.down_proj, strict=True):
            y = y + self.expert(x, *one, (config.beta_gate, config.beta_up))
        return y

    def layer_forward(
        self, x: Tensor, parameters: Any, *, config: LayerConfig, training: bool
    ) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        y = self.raised(self.routed(rows, parameters, config), parameters, config.norm_eps)
        return self.added(rows, y, parameters.shared_experts, config).reshape(x.shape)


class WideShared(Layer):
    """Shared experts side by side as one wide one, one final sum in float32, logits stored."""

    freedom = "shared experts side by side; logits in storage; a sum that is rounded once"
    precision = Precision(storage="bfloat16")

    def logits(self, x: Tensor, weight: Tensor) -> Tensor:
        return self.product(x, weight)

    def added(self, x: Tensor, y: Tensor, shared: Any, config: LayerConfig) -> Tensor:
        gate, up = shared.gate_proj.flatten(0, 1), shared.up_proj.flatten(0, 1)
        down = shared.down_proj.transpose(0, 1).flatten(1)
        caps = config.beta_gate, config.beta_up
        hidden = self.activation(self.product(x, gate), self.product(x, up), *caps)
        return (y.float() + hidden.float() @ down.float().mT).to(x.dtype)


class ScaledSum(Layer):
    """routed_scale multiplies the sum u; weights are rounded to float16; shared experts first."""

    freedom = "routed_scale anywhere before the norm; combine weights in storage; order of adding"
    precision = Precision(storage="float16")

    def routed(self, x: Tensor, p: Any, config: LayerConfig) -> Tensor:
        ids, weights = self.chosen(x, p, config.top_k)
        latent = self.product(x, p.routed_expert_down_proj)
        caps = {"beta_gate": config.beta_gate, "beta_up": config.beta_up}
        return self.experts_forward(latent, ids, weights.half(), p.experts, **caps) * (
            config.routed_scale
        )

    def added(self, x: Tensor, y: Tensor, shared: Any, config: LayerConfig) -> Tensor:
        return super().added(x, torch.zeros_like(y), shared, config) + y


class FoldedNorm(Layer):
    """The norm's weight folded into W_up, the root applied behind it; the router in float64."""

    freedom = "an equal formula; better than the declared formats"

    def logits(self, x: Tensor, weight: Tensor) -> Tensor:
        return (x.double() @ weight.double().mT).float()

    def raised(self, u: Tensor, p: Any, eps: float) -> Tensor:
        folded = p.routed_expert_up_proj * p.routed_expert_norm
        return (u @ folded.mT) * torch.rsqrt(u.square().mean(-1, keepdim=True) + eps)


class OtherConventions(Layer):
    """The bias is subtracted from logits, weights are a softmax of logs, a single one its score."""

    freedom = 'bias_sign = -1, score_domain = "logit", top1_renormalised off, weight_epsilon = 0'
    conventions = Conventions(
        bias_sign=-1, score_domain="logit", top1_renormalised=False, weight_epsilon=0.0
    )

    def chosen(self, x: Tensor, p: Any, top_k: int) -> tuple[Tensor, Tensor]:
        logits = self.logits(x, p.gate_weight)
        ids = torch.topk(logits.detach() - p.e_score_correction_bias, top_k).indices
        logs = logsigmoid(logits.gather(1, ids))
        return ids, logs.exp() if top_k == 1 else torch.softmax(logs, -1)


class Autocast(Layer):
    """float32 parameters and hidden states; factors and results of products in float16."""

    freedom = "compute narrower in range than storage"
    precision = Precision("float16", "float32", "float32", "float32")

    def product(self, x: Tensor, weight: Tensor) -> Tensor:
        return (x.half().float() @ weight.half().float().mT).half().float()

    def logits(self, x: Tensor, weight: Tensor) -> Tensor:
        return x @ weight.mT


class NarrowSums(Layer):
    """float32 arithmetic over bfloat16 memory, sums declared in bfloat16 and better than that."""

    freedom = "accumulate as narrow as storage"
    precision = Precision(accumulate="bfloat16", storage="bfloat16")
