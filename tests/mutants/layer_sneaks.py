"""Layers that are right at every small size, from fresh memory, once, and at ordinary amplitudes.

``killed_by`` names the property that has to catch it. Legend: M tokens, N routed experts, K top_k,
D model width, L latent width, S shared experts.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch.autograd import Function

import impl_torch
from impl_torch.adapter import Float32
from properties.reference import Reference
from reference_numpy import layer, route, router_logits
from tests.mutants import layer_bfloat16

# At size ------------------------------------------------------------------------------------------


class Capacity(Reference):
    """An expert takes 128 tokens; those after them weigh nothing there."""

    killed_by = "LAY-SIZES"

    def layer(self, x, parameters, *, config, training=False):
        x_MD = x.reshape(-1, x.shape[-1])
        logits_MN = router_logits(x_MD, parameters.gate_weight)
        bias_N = parameters.e_score_correction_bias
        routing = route(logits_MN, bias_N, top_k=config.top_k)
        weights_MK = routing.weights.copy()
        for j in range(len(bias_N)):
            tokens, slots = np.nonzero(routing.expert_ids == j)
            weights_MK[tokens[128:], slots[128:]] = 0.0
        routing = routing._replace(weights=weights_MK)
        return layer(x, parameters, config=config, routing=routing)


class IdsOfNineBits(Reference):
    """Ids are kept in nine bits: expert 512 is expert 0."""

    killed_by = "LAY-SIZES"

    def layer(self, x, parameters, *, config, training=False):
        x_MD = x.reshape(-1, x.shape[-1])
        logits_MN = router_logits(x_MD, parameters.gate_weight)
        routing = route(logits_MN, parameters.e_score_correction_bias, top_k=config.top_k)
        routing = routing._replace(expert_ids=routing.expert_ids % 512)
        return layer(x, parameters, config=config, routing=routing)


class FourthSharedExpertForgotten(Reference):
    """Only three shared experts have room, and at most 64 tokens are given to them."""

    killed_by = "LAY-SIZES"

    def layer(self, x, parameters, *, config, training=False):
        shared = parameters.shared_experts
        if x.size > 64 * x.shape[-1]:
            shared = replace(
                shared,
                gate_proj=shared.gate_proj[:3],
                up_proj=shared.up_proj[:3],
                down_proj=shared.down_proj[:3],
            )
        return super().layer(x, replace(parameters, shared_experts=shared), config=config)


class WideLatentCutDown(Reference):
    """Beyond 48 latent dimensions, those after the last full eight are left out."""

    killed_by = "LAY-SIZES"

    def layer(self, x, parameters, *, config, training=False):
        down_LD = parameters.routed_expert_down_proj
        whole = len(down_LD) // 8 * 8 if len(down_LD) > 48 else len(down_LD)
        kept_LD = np.where(np.arange(len(down_LD))[:, None] < whole, down_LD, 0.0)
        return super().layer(x, replace(parameters, routed_expert_down_proj=kept_LD), config=config)


class Spoilt(Reference):
    """The reference; its gradients pass through ``spoilt``."""

    def layer_vjp(self, x, parameters, cotangent, *, config):
        d_x, gradients = super().layer_vjp(x, parameters, cotangent, config=config)
        return self.spoilt(d_x, gradients, config)

    def spoilt(self, d_x, gradients, config):
        return d_x, gradients


class RouterGradientOfSixteenExperts(Spoilt):
    """From 17 experts on, the router's gradient has sixteen rows."""

    killed_by = "LAY-SIZES"

    def spoilt(self, d_x, gradients, config):
        kept_N1 = np.arange(len(gradients.gate_weight))[:, None] < 16
        return d_x, replace(gradients, gate_weight=kept_N1 * gradients.gate_weight)


class SeventeenthSlotWithoutGradient(Spoilt):
    """With more than 16 slots the router's gradient is that of other weights."""

    killed_by = "LAY-SIZES"

    def spoilt(self, d_x, gradients, config):
        factor = 1.1 if config.top_k > 16 else 1.0
        return d_x, replace(gradients, gate_weight=factor * gradients.gate_weight)


class LastTokensWithoutGradient(Spoilt):
    """Tokens after the 32nd have a d_x without one of its terms."""

    killed_by = "LAY-SIZES"

    def spoilt(self, d_x, gradients, config):
        d_x = d_x.copy()
        d_x.reshape(-1, d_x.shape[-1])[32:] *= 0.9
        return d_x, gradients


class WideSharedWithoutGradient(Spoilt):
    """Hidden units of shared experts after the sixteenth have no gradient."""

    killed_by = "LAY-SIZES"

    def spoilt(self, d_x, gradients, config):
        shared = gradients.shared_experts
        kept_SGD = np.where(np.arange(shared.gate_proj.shape[1])[:, None] < 16, shared.gate_proj, 0)
        return d_x, replace(gradients, shared_experts=replace(shared, gate_proj=kept_SGD))


class WideUpInTensorFloat(layer_bfloat16.Staged):
    """In float32, from 64 latent dimensions on, the up projection reads ten bits after the one."""

    killed_by = "LAY-SIZES"
    precision = Float32.precision

    def routed(self, x_MD, p, config):
        normalised_ML = self.norm(self.combined(x_MD, p, config), p, config)
        up_DL = p.routed_expert_up_proj
        if up_DL.shape[1] >= 64:
            return _ten_bits(normalised_ML) @ _ten_bits(up_DL).T
        return normalised_ML @ up_DL.T


def _ten_bits(x):
    bits = (x.detach().contiguous().view(torch.int32) + 0x1000) & ~0x1FFF
    return bits.view(torch.float32)


# Far off ------------------------------------------------------------------------------------------


class HiddenStatesClipped(Reference):
    """Hidden states beyond 1000 are clipped on their way in."""

    killed_by = "LAY-FAR"

    def layer(self, x, parameters, *, config, training=False):
        return super().layer(np.clip(x, -1e3, 1e3), parameters, config=config)


class CotangentsClipped(Reference):
    """Cotangents beyond 1e4 are clipped, whatever the loss was scaled by."""

    killed_by = "LAY-FAR"

    def layer_vjp(self, x, parameters, cotangent, *, config):
        return super().layer_vjp(x, parameters, np.clip(cotangent, -1e4, 1e4), config=config)


class SmallTokensSkipped(Reference):
    """Tokens below 2e-6 are taken for padding."""

    killed_by = "LAY-FAR"

    def layer(self, x, parameters, *, config, training=False):
        present = np.abs(x).max(axis=-1, keepdims=True, initial=0.0) >= 2e-6
        return super().layer(np.where(present, x, 0.0), parameters, config=config)


# Long sums of the backward pass -------------------------------------------------------------------


class TokensAddedInStorage(Function):
    """x W^T, whose gradient to W is a running sum over tokens in the format of W."""

    @staticmethod
    def forward(ctx, x_MI, weight_OI):
        ctx.save_for_backward(x_MI, weight_OI)
        return x_MI @ weight_OI.T

    @staticmethod
    def backward(ctx, c_MO):
        x_MI, weight_OI = ctx.saved_tensors
        d_OI = torch.zeros_like(weight_OI)
        for c_O, x_I in zip(c_MO, x_MI, strict=True):
            d_OI = (d_OI.float() + c_O.float()[:, None] * x_I.float()).to(d_OI.dtype)
        return c_MO @ weight_OI, d_OI


class OutputsAddedInStorage(Function):
    """x W^T, whose gradient to x is a running sum over outputs in the format of x."""

    @staticmethod
    def forward(ctx, x_MI, weight_OI):
        ctx.save_for_backward(x_MI, weight_OI)
        return x_MI @ weight_OI.T

    @staticmethod
    def backward(ctx, c_MO):
        x_MI, weight_OI = ctx.saved_tensors
        d_MI = torch.zeros_like(x_MI)
        for c_M, weight_I in zip(c_MO.T, weight_OI, strict=True):
            d_MI = d_MI + c_M[:, None] * weight_I
        return d_MI, c_MO.T @ x_MI


class RouterAddedInBFloat16(layer_bfloat16.Staged):
    """The gradient of the router's weight is added up over tokens in bfloat16."""

    killed_by = "LAY-GRAD-MIXED"

    def logits(self, x_MD, p):
        return TokensAddedInStorage.apply(x_MD, p.gate_weight).float()


class UpAddedInBFloat16(layer_bfloat16.Staged):
    """The gradient of the up projection is added up over tokens in bfloat16."""

    killed_by = "LAY-GRAD-MIXED"

    def routed(self, x_MD, p, config):
        normalised_ML = self.norm(self.combined(x_MD, p, config), p, config)
        return TokensAddedInStorage.apply(normalised_ML, p.routed_expert_up_proj)


class LatentAddedInBFloat16(layer_bfloat16.Staged):
    """On its way back the latent's gradient is added up over L in bfloat16."""

    killed_by = "LAY-GRAD-MIXED"

    def weighted(self, x_MD, ids_MK, weights_MK, p, config):
        latent_ML = OutputsAddedInStorage.apply(x_MD, p.routed_expert_down_proj)
        return self.block(latent_ML, ids_MK, weights_MK * config.routed_scale, p.experts, config)


class ModelAddedInBFloat16(layer_bfloat16.Staged):
    """The cotangent is added up over D in bfloat16 as it passes the up projection."""

    killed_by = "LAY-GRAD-MIXED"

    def routed(self, x_MD, p, config):
        normalised_ML = self.norm(self.combined(x_MD, p, config), p, config)
        return OutputsAddedInStorage.apply(normalised_ML, p.routed_expert_up_proj)


class NormAddedInBFloat16(layer_bfloat16.Staged):
    """The gradient of the norm's weight is added up over tokens in bfloat16."""

    killed_by = "LAY-GRAD-MIXED"

    def norm(self, u_ML, p, config):
        ones_L = torch.ones_like(p.routed_expert_norm)
        normalised_ML = impl_torch.rms_norm(u_ML, ones_L, eps=config.norm_eps)
        return WeightAddedInStorage.apply(normalised_ML, p.routed_expert_norm)


class WeightAddedInStorage(Function):
    """x w, whose gradient to w is a running sum over tokens in the format of w."""

    @staticmethod
    def forward(ctx, x_ML, weight_L):
        ctx.save_for_backward(x_ML, weight_L)
        return x_ML * weight_L

    @staticmethod
    def backward(ctx, c_ML):
        x_ML, weight_L = ctx.saved_tensors
        d_L = torch.zeros_like(weight_L)
        for term_L in c_ML * x_ML:
            d_L = d_L + term_L
        return c_ML * weight_L, d_L


# Logits and ties ----------------------------------------------------------------------------------


class LogitsClipped(Reference):
    """``router_logits`` clips at 30, where sigmoids are 1 in float32 anyway."""

    killed_by = "LAY-LOGITS"

    def router_logits(self, x, parameters):
        return np.clip(super().router_logits(x, parameters), -30.0, 30.0)


class LogitsOfTheFirstTokens(Reference):
    """Logits of tokens after the 33rd are never written."""

    killed_by = "LAY-LOGITS"

    def router_logits(self, x, parameters):
        logits = super().router_logits(x, parameters)
        logits.reshape(-1, logits.shape[-1])[33:] = 0.0
        return logits


class LogitsBesideNaN(Reference):
    """A token of NaN takes the logits of all."""

    killed_by = "LAY-NAN"

    def router_logits(self, x, parameters):
        return super().router_logits(x, parameters) + 0.0 * np.sum(x)


class MinusInfinityTakesAll(Reference):
    """A token of -inf, and of -inf alone, takes the batch with it."""

    killed_by = "LAY-NAN"

    def layer(self, x, parameters, *, config, training=False):
        y = super().layer(x, parameters, config=config)
        return y * (np.nan if np.isneginf(x).any() else 1.0)


class TiedTokensCountTwice(Reference):
    """Where the K-th biased score ties with the next one, d_x is that of both choices together."""

    killed_by = "LAY-GRAD"

    def layer_vjp(self, x, parameters, cotangent, *, config):
        d_x, gradients = super().layer_vjp(x, parameters, cotangent, config=config)
        logits = router_logits(x.reshape(-1, x.shape[-1]), parameters.gate_weight)
        biased_MN = -np.sort(-(1 / (1 + np.exp(-logits)) + parameters.e_score_correction_bias))
        if config.top_k < biased_MN.shape[1]:
            tied_M = biased_MN[:, config.top_k - 1] == biased_MN[:, config.top_k]
            d_x = d_x * np.where(tied_M, 2.0, 1.0).reshape((*x.shape[:-1], 1))
        return d_x, gradients
