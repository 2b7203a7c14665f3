"""Layers that lose digits, or lose count, where small and simple cases do not show it.

``killed_by`` names the property that has to catch it. Legend: M tokens, N routed experts, K top_k,
D model width, L latent width.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

import impl_torch
from impl_torch.adapter import Float32
from properties.reference import Reference
from reference_numpy import rms_norm, router_logits
from reference_numpy.layer import latent
from tests.mutants import layer_bfloat16
from tests.mutants.layer import Staged

# A common factor ---------------------------------------------------------------------------------


class OutputsClipped(Staged):
    """Outputs of routed experts are clipped to ±10."""

    killed_by = "LAY-SCALE"

    def outputs(self, x_MD, p, config, ids_MK):
        return np.clip(super().outputs(x_MD, p, config, ids_MK), -10.0, 10.0)


class OutputsOnAGrid(Staged):
    """Outputs of routed experts are quantised with a step of 2^-12, whatever their size."""

    killed_by = "LAY-SCALE"

    def outputs(self, x_MD, p, config, ids_MK):
        return np.rint(super().outputs(x_MD, p, config, ids_MK) * 2.0**12) / 2.0**12


class EpsOfTheReport(Staged):
    """The norm's eps is 1e-5, whatever was configured."""

    killed_by = "LAY-SCALE"

    def norm(self, u, weight_L, config):
        return rms_norm(u, weight_L, eps=1e-5)


class EpsRelative(Staged):
    """eps counts in units of the mean square, so that it never vanishes."""

    killed_by = "LAY-SCALE"

    def norm(self, u, weight_L, config):
        size = np.sqrt(np.mean(u**2, axis=-1, keepdims=True) * (1.0 + config.norm_eps))
        return u / np.where(size == 0.0, 1.0, size) * weight_L


class ScaleAfterNorm(Staged):
    """routed_scale is multiplied in after the norm."""

    killed_by = "LAY-SCALE"

    def scale(self, config):
        return 1.0

    def routed(self, x_MD, p, config):
        return config.routed_scale * super().routed(x_MD, p, config)


class SignLost(Staged):
    """The norm returns sizes."""

    killed_by = "LAY-SCALE"

    def norm(self, u, weight_L, config):
        return super().norm(np.abs(u), weight_L, config)


# Fine biases -------------------------------------------------------------------------------------


class Float32Staged(layer_bfloat16.Staged):
    """The layer in stages, in float32."""

    name = "mutant"
    precision = Float32.precision


def rounded_bias(p):
    return replace(p, e_score_correction_bias=p.e_score_correction_bias.bfloat16().float())


class BiasInBFloat16(Float32Staged):
    """The selection bias is rounded to bfloat16 inside the layer."""

    killed_by = "LAY-SMALLGAP"

    def routing(self, x_MD, p, config):
        return super().routing(x_MD, rounded_bias(p), config)


class BiasCastWithTheModule(layer_bfloat16.Staged):
    """The selection bias of a layer in bfloat16 is cast with its parameters."""

    killed_by = "LAY-SMALLGAP"

    def routing(self, x_MD, p, config):
        return super().routing(x_MD, rounded_bias(p), config)


class BiasedScoresInBFloat16(layer_bfloat16.Staged):
    """Scores and bias are added in bfloat16."""

    killed_by = "LAY-SMALLGAP"

    def routing(self, x_MD, p, config):
        s_MN = torch.sigmoid(self.logits(x_MD, p).float())
        biased_MN = s_MN.bfloat16() + p.e_score_correction_bias.bfloat16()
        ids_MK = biased_MN.topk(config.top_k).indices
        chosen_MK = s_MN.gather(1, ids_MK)
        return ids_MK, chosen_MK / chosen_MK.sum(1, keepdim=True)


class BiasInFloat16(Float32Staged):
    """The selection bias is rounded to float16 inside the layer."""

    killed_by = "LAY-SMALLGAP"

    def routing(self, x_MD, p, config):
        bias_N = p.e_score_correction_bias.half().float()
        return super().routing(x_MD, replace(p, e_score_correction_bias=bias_N), config)


# Many experts, odd widths ------------------------------------------------------------------------


class EightSlots(Staged):
    """A token keeps its eight best experts."""

    killed_by = "LAY-WIDE"

    def terms(self, x_MD, p, config):
        return super().terms(x_MD, p, config)[:, :8]


class RemainderOfTheWidthLost(Staged):
    """Beyond one block of 16, the latent is read in full blocks only."""

    killed_by = "LAY-WIDE"

    def outputs(self, x_MD, p, config, ids_MK):
        width = len(p.routed_expert_norm)
        if width > 16:
            down = p.routed_expert_down_proj.copy()
            down[width - width % 16 :] = 0.0
            p = replace(p, routed_expert_down_proj=down)
        return super().outputs(x_MD, p, config, ids_MK)


class NormOverFullBlocks(Staged):
    """Beyond one block of 16, the mean square is that of the full blocks."""

    killed_by = "LAY-WIDE"

    def norm(self, u, weight_L, config):
        width = u.shape[-1]
        full = u[..., : width - width % 16] if width > 16 else u
        size = np.sqrt(np.mean(full**2, axis=-1, keepdims=True) + config.norm_eps)
        return u / size * weight_L


# Long sums ---------------------------------------------------------------------------------------


def running(x, weight):
    """x weight^T with a running sum in bfloat16."""
    total = torch.zeros(*x.shape[:-1], weight.shape[0], dtype=torch.bfloat16)
    for i in range(x.shape[-1]):
        total = total + x[..., i : i + 1] * weight[:, i]
    return total.to(x.dtype)


class LatentInRunningSum(layer_bfloat16.Staged):
    """W_down x is accumulated in bfloat16."""

    killed_by = "LAY-MIXED"

    def weighted(self, x_MD, ids_MK, weights_MK, p, config):
        latent_ML = running(x_MD, p.routed_expert_down_proj)
        return self.block(latent_ML, ids_MK, weights_MK * config.routed_scale, p.experts, config)


class UpInRunningSum(layer_bfloat16.Staged):
    """W_up v is accumulated in bfloat16."""

    killed_by = "LAY-MIXED"

    def routed(self, x_MD, p, config):
        return running(
            self.norm(self.combined(x_MD, p, config), p, config), p.routed_expert_up_proj
        )


class MeanSquareInRunningSum(layer_bfloat16.Staged):
    """The norm's mean square is accumulated in bfloat16."""

    killed_by = "LAY-MIXED"

    def norm(self, u_ML, p, config):
        ones = torch.ones(1, u_ML.shape[-1], dtype=u_ML.dtype)
        mean = running(u_ML.square(), ones).float() / u_ML.shape[-1]
        scaled = u_ML.float() / torch.sqrt(mean + config.norm_eps) * p.routed_expert_norm.float()
        return scaled.to(u_ML.dtype)


class SharedDownInRunningSum(layer_bfloat16.Staged):
    """The shared experts' down projections are accumulated in bfloat16."""

    killed_by = "LAY-MIXED"

    def shared(self, x_MD, p, config):
        shared = p.shared_experts
        betas = {"beta_gate": config.beta_gate, "beta_up": config.beta_up}
        total = 0.0
        for gate, up, down in zip(shared.gate_proj, shared.up_proj, shared.down_proj, strict=True):
            hidden = impl_torch.situ_glu(x_MD @ gate.T, x_MD @ up.T, **betas)
            total = total + running(hidden, down)
        return total


class Float32SumsInBFloat16(Float32Staged):
    """Declared as float32, W_down x passes through a sum in bfloat16."""

    killed_by = "LAY-MIXED"

    def weighted(self, x_MD, ids_MK, weights_MK, p, config):
        latent_ML = (x_MD.bfloat16() @ p.routed_expert_down_proj.bfloat16().T).float()
        return self.block(latent_ML, ids_MK, weights_MK * config.routed_scale, p.experts, config)


# Logits alone ------------------------------------------------------------------------------------


class LogitsOfTheLatent(Reference):
    """The router reads the latent wherever shapes allow it."""

    killed_by = "LAY-LOGITS"

    def router_logits(self, x, parameters):
        square = len(parameters.routed_expert_norm) == x.shape[-1]
        return router_logits(latent(x, parameters) if square else x, parameters.gate_weight)


class LogitsWithBias(Reference):
    """The selection bias is in the logits."""

    killed_by = "LAY-LOGITS"

    def router_logits(self, x, parameters):
        logits = super().router_logits(x, parameters)
        return logits + parameters.e_score_correction_bias


class LogitsScaled(Reference):
    """Logits are divided by sqrt(D)."""

    killed_by = "LAY-LOGITS"

    def router_logits(self, x, parameters):
        return super().router_logits(x, parameters) / np.sqrt(x.shape[-1])


class LogitsOfOneBatchOnly(Reference):
    """More than one leading axis is flattened and stays so."""

    killed_by = "LAY-LOGITS"
    verdict = "adapter error"

    def router_logits(self, x, parameters):
        return super().router_logits(x.reshape(-1, x.shape[-1]), parameters)


class LogitsZero(Reference):
    """Control: every logit is 0."""

    killed_by = "LAY-LOGITS"

    def router_logits(self, x, parameters):
        return np.zeros((*x.shape[:-1], len(parameters.gate_weight)))
