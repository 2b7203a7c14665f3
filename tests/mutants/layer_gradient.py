"""Wrong gradients of the layer: the forward pass is right in each of them.

``killed_by`` names the property that has to catch it. Legend: M tokens, N routed experts, K top_k,
D model width, L latent width.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace

import numpy as np
import torch
from torch import Tensor

import impl_torch
from impl_torch.adapter import Float32
from properties.protocol import LayerConfig
from properties.reference import Reference
from tests.mutants import layer_bfloat16


def backward_of(wrong: Tensor, value: Tensor) -> Tensor:
    """The value of one tensor with the gradient of another."""
    return value.detach() + (wrong - wrong.detach())


class Staged(layer_bfloat16.Staged):
    """The layer in stages, in float32."""

    name = "mutant"
    precision = Float32.precision


def every(function, parameters):
    """The parameters with a function applied to each array."""
    parts = {part.name: getattr(parameters, part.name) for part in fields(parameters)}
    return type(parameters)(
        **{
            name: every(function, part) if is_dataclass(part) else function(part)
            for name, part in parts.items()
        }
    )


# Controls ----------------------------------------------------------------------------------------


class Zeros(Reference):
    """Every gradient is 0."""

    killed_by = "LAY-GRAD"

    def layer_vjp(self, x, parameters, cotangent, *, config):
        return np.zeros_like(x), every(np.zeros_like, parameters)


class ZerosLearnNothing(Zeros):
    """Every gradient is 0."""

    killed_by = "LAY-ALIVE"


class CotangentCopied(Reference):
    """d_x is the cotangent, as of a residual connection."""

    killed_by = "LAY-GRAD"

    def layer_vjp(self, x, parameters, cotangent, *, config):
        _, gradients = super().layer_vjp(x, parameters, cotangent, config=config)
        return cotangent.copy(), gradients


class InputReturned(Reference):
    """Inputs come back for gradients."""

    killed_by = "LAY-GRAD"

    def layer_vjp(self, x, parameters, cotangent, *, config):
        return x.copy(), every(np.copy, parameters)


class Noise(Reference):
    """Noise in each unchosen expert, and everywhere else."""

    killed_by = "LAY-SPARSE"

    def layer_vjp(self, x, parameters, cotangent, *, config):
        rng = np.random.default_rng(0)
        return np.ones_like(x), every(lambda p: rng.standard_normal(p.shape), parameters)


# Norm --------------------------------------------------------------------------------------------


class NormFactorConstant(Staged):
    """The backward pass of the norm lacks the projection: rho counts as a constant."""

    killed_by = "LAY-GRAD"

    def norm(self, u_ML, p, config):
        rho = (u_ML.detach().square().mean(-1, keepdim=True) + config.norm_eps).sqrt()
        return u_ML / rho * p.routed_expert_norm


class EpsForgottenInBackward(Staged):
    """The backward pass of the norm has no eps."""

    killed_by = "LAY-GRAD"

    def norm(self, u_ML, p, config):
        least = torch.finfo(u_ML.dtype).tiny
        wrong = impl_torch.rms_norm(u_ML, p.routed_expert_norm, eps=least)
        return backward_of(wrong, super().norm(u_ML, p, config))


class NormWeightOfTheMean(Staged):
    """The gradient of the norm's weight is averaged over tokens instead of summed."""

    killed_by = "LAY-GRAD"

    def norm(self, u_ML, p, config):
        weight_L = p.routed_expert_norm
        weight_L = backward_of(weight_L / max(len(u_ML), 1), weight_L)
        return super().norm(u_ML, replace(p, routed_expert_norm=weight_L), config)


class NormWeightOverTheWidth(Staged):
    """The gradient of the norm's weight is summed over the width, too."""

    killed_by = "LAY-GRAD"

    def norm(self, u_ML, p, config):
        weight_L = p.routed_expert_norm
        weight_L = backward_of(weight_L.sum().expand(weight_L.shape), weight_L)
        return super().norm(u_ML, replace(p, routed_expert_norm=weight_L), config)


class NormWeightTwice(Staged):
    """The norm's weight multiplies the gradient of u twice."""

    killed_by = "LAY-GRAD"

    def norm(self, u_ML, p, config):
        again = backward_of(u_ML * p.routed_expert_norm.detach(), u_ML)
        return super().norm(again, p, config)


class UpGradientOfTheSum(Staged):
    """The gradient of W_up is taken with u, before the norm."""

    killed_by = "LAY-GRAD"

    def routed(self, x_MD, p, config):
        u_ML = self.combined(x_MD, p, config)
        up_DL = p.routed_expert_up_proj
        value = self.norm(u_ML, p, config) @ up_DL.detach().T
        wrong = u_ML.detach() @ up_DL.T
        return value + (wrong - wrong.detach())


# Router ------------------------------------------------------------------------------------------


class WeightsDetached(Staged):
    """Combine weights carry no gradient."""

    killed_by = "LAY-GRAD"

    def routing(self, x_MD, p, config):
        ids_MK, weights_MK = super().routing(x_MD, p, config)
        return ids_MK, weights_MK.detach()


class RouterFrozen(WeightsDetached):
    """The router learns nothing, since combine weights were detached."""

    killed_by = "LAY-ALIVE"


class RouterWeightDetached(Staged):
    """The router's weight gets no gradient, though x gets its share."""

    killed_by = "LAY-GRAD"

    def logits(self, x_MD, p):
        return impl_torch.router_logits(x_MD, p.gate_weight.detach())


class RouterPathLost(Staged):
    """The router learns, but x gets nothing through it."""

    killed_by = "LAY-GRAD"

    def logits(self, x_MD, p):
        return super().logits(x_MD.detach(), p)


class TotalConstant(Staged):
    """The sum that normalises the weights counts as a constant."""

    killed_by = "LAY-GRAD"

    def routing(self, x_MD, p, config):
        ids_MK, weights_MK = super().routing(x_MD, p, config)
        chosen_MK = torch.sigmoid(self.logits(x_MD, p)).gather(1, ids_MK)
        wrong = chosen_MK / chosen_MK.detach().sum(1, keepdim=True)
        return ids_MK, backward_of(wrong, weights_MK)


class TotalOfEverybody(Staged):
    """In the backward pass weights are normalised over all experts."""

    killed_by = "LAY-SPARSE"

    def routing(self, x_MD, p, config):
        ids_MK, weights_MK = super().routing(x_MD, p, config)
        s_MN = torch.sigmoid(self.logits(x_MD, p))
        wrong = (s_MN / s_MN.sum(1, keepdim=True)).gather(1, ids_MK)
        return ids_MK, backward_of(wrong, weights_MK)


class BiasLearns(Staged):
    """The selection bias gets the gradient of its scores."""

    killed_by = "LAY-GRAD"

    def routing(self, x_MD, p, config):
        ids_MK, weights_MK = super().routing(x_MD, p, config)
        bias_N = p.e_score_correction_bias
        leak_MN = (bias_N - bias_N.detach()).expand(len(x_MD), -1)
        return ids_MK, weights_MK + leak_MN.gather(1, ids_MK)


class ScaleInForwardOnly(Staged):
    """routed_scale is left out of the backward pass."""

    killed_by = "LAY-GRAD"

    def combined(self, x_MD, p, config):
        unscaled = super().combined(x_MD, p, replace(config, routed_scale=1.0))
        return backward_of(unscaled, super().combined(x_MD, p, config))


class TrainingIgnoresTheBias(Staged):
    """In training the experts are those of the raw scores."""

    killed_by = "LAY-GRAD"

    def layer_forward(self, x, p, *, config: LayerConfig, training: bool):
        if training:
            silent = torch.zeros_like(p.e_score_correction_bias)
            p = replace(p, e_score_correction_bias=silent)
        return super().layer_forward(x, p, config=config, training=training)


# Experts -----------------------------------------------------------------------------------------


class SharedDetached(Staged):
    """Shared experts run without a gradient."""

    killed_by = "LAY-GRAD"

    def shared(self, x_MD, p, config):
        return super().shared(x_MD, p, config).detach()


class SharedInputDetached(Staged):
    """Shared experts learn, but x gets nothing through them."""

    killed_by = "LAY-GRAD"

    def shared(self, x_MD, p, config):
        return super().shared(x_MD.detach(), p, config)


class SharedFrozen(Staged):
    """Shared experts pass gradients on and keep none."""

    killed_by = "LAY-ALIVE"

    def shared(self, x_MD, p, config):
        parts = (getattr(p.shared_experts, part.name) for part in fields(p.shared_experts))
        frozen = type(p.shared_experts)(*(part.detach() for part in parts))
        return super().shared(x_MD, replace(p, shared_experts=frozen), config)


class LatentDetached(Staged):
    """Nothing passes from the routed experts to W_down and x."""

    killed_by = "LAY-GRAD"

    def weighted(self, x_MD, ids_MK, weights_MK, p, config):
        latent_ML = (x_MD @ p.routed_expert_down_proj.T).detach()
        return self.block(latent_ML, ids_MK, weights_MK * config.routed_scale, p.experts, config)


class DownFrozen(LatentDetached):
    """W_down learns nothing."""

    killed_by = "LAY-ALIVE"


class NextExpertLearns(Reference):
    """Gradients of experts are stored one expert further."""

    killed_by = "LAY-SPARSE"

    def layer_vjp(self, x, parameters, cotangent, *, config):
        d_x, gradients = super().layer_vjp(x, parameters, cotangent, config=config)
        rolled = every(lambda gradient: np.roll(gradient, 1, axis=0), gradients.experts)
        return d_x, replace(gradients, experts=rolled)


class WeightDecayIncluded(Reference):
    """Every expert's gradient has a share of its parameters added."""

    killed_by = "LAY-SPARSE"

    def layer_vjp(self, x, parameters, cotangent, *, config):
        d_x, gradients = super().layer_vjp(x, parameters, cotangent, config=config)
        decay = 1e-12 * parameters.experts.up_proj
        experts = replace(gradients.experts, up_proj=gradients.experts.up_proj + decay)
        return d_x, replace(gradients, experts=experts)


# Shapes and formats ------------------------------------------------------------------------------


class MeanOverTokens(Reference):
    """Gradients of parameters are averaged over the batch."""

    killed_by = "LAY-GRAD"

    def layer_vjp(self, x, parameters, cotangent, *, config):
        d_x, gradients = super().layer_vjp(x, parameters, cotangent, config=config)
        tokens = max(x.size // x.shape[-1], 1)
        return d_x, every(lambda gradient: gradient / tokens, gradients)


class GradientTransposed(Reference):
    """Two leading axes of d_x come back exchanged."""

    killed_by = "LAY-GRAD"

    def layer_vjp(self, x, parameters, cotangent, *, config):
        d_x, gradients = super().layer_vjp(x, parameters, cotangent, config=config)
        return (d_x if x.ndim < 3 else d_x.swapaxes(0, 1).reshape(d_x.shape)), gradients


class NoTokensNoGradient(Reference):
    """A batch without tokens raises."""

    killed_by = "LAY-GRAD"

    def layer_vjp(self, x, parameters, cotangent, *, config):
        np.max(np.abs(cotangent))
        return super().layer_vjp(x, parameters, cotangent, config=config)


class GradientsInBFloat16(Staged):
    """Gradients pass through bfloat16 on their way to the experts, though float32 is declared."""

    killed_by = "LAY-GRAD"

    def norm(self, u_ML, p, config):
        coarse = u_ML.bfloat16().float()  # its gradient is rounded to bfloat16 on the way back
        return super().norm(backward_of(coarse, u_ML), p, config)
