"""Wrong layers, each one step away from the reference in float64.

``killed_by`` names the property that has to catch it. Legend: M tokens, N routed experts, K top_k,
D model width, L latent width, S shared experts.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from properties.protocol import Array, LayerConfig, LayerParameters
from properties.reference import Reference
from reference_numpy import combine_weights, expert, rms_norm, router_logits, scores
from reference_numpy.layer import latent, shared_outputs
from reference_numpy.routing import top_k_ids


class Staged(Reference):
    """The reference's layer in stages, so that a mutant replaces one of them."""

    name = "mutant"

    def layer(
        self, x: Array, parameters: LayerParameters, *, config: LayerConfig, training: bool = False
    ) -> Array:
        x_MD = self.flattened(x)
        routed_MD = self.routed(x_MD, parameters, config)
        return (routed_MD + self.shared(x_MD, parameters, config)).reshape(x.shape)

    def flattened(self, x: Array) -> Array:
        return x.reshape(-1, x.shape[-1])

    def routed(self, x_MD: Array, p: LayerParameters, config: LayerConfig) -> Array:
        u_ML = self.terms(x_MD, p, config).sum(axis=1)
        return self.norm(u_ML, p.routed_expert_norm, config) @ p.routed_expert_up_proj.T

    def terms(self, x_MD: Array, p: LayerParameters, config: LayerConfig) -> Array:
        """p_j E_j(z), scaled: (M, K, L)."""
        s_MN = scores(self.logits(x_MD, p))
        ids_MK = top_k_ids(self.biased(s_MN, p.e_score_correction_bias), config.top_k)
        weights_MK = self.weights(s_MN, p.e_score_correction_bias, ids_MK)
        return self.scale(config) * weights_MK[:, :, None] * self.outputs(x_MD, p, config, ids_MK)

    def outputs(self, x_MD: Array, p: LayerParameters, config: LayerConfig, ids_MK: Array) -> Array:
        betas = {"beta_gate": config.beta_gate, "beta_up": config.beta_up}
        parts = p.experts.gate_proj, p.experts.up_proj, p.experts.down_proj
        outputs_NML = expert(latent(x_MD, p), *parts, **betas)
        return outputs_NML[ids_MK, np.arange(len(x_MD))[:, None]]

    def logits(self, x_MD: Array, p: LayerParameters) -> Array:
        return router_logits(x_MD, p.gate_weight)

    def biased(self, s_MN: Array, bias_N: Array) -> Array:
        return s_MN + bias_N

    def weights(self, s_MN: Array, bias_N: Array, ids_MK: Array) -> Array:
        return combine_weights(s_MN, ids_MK)

    def scale(self, config: LayerConfig) -> float:
        return config.routed_scale

    def norm(self, u: Array, weight_L: Array, config: LayerConfig) -> Array:
        return rms_norm(u, weight_L, eps=config.norm_eps)

    def shared(self, x_MD: Array, p: LayerParameters, config: LayerConfig) -> Array:
        return shared_outputs(x_MD, p, config=config).sum(axis=0)


# Controls ----------------------------------------------------------------------------------------


class Zeros(Staged):
    """All-zero output."""

    killed_by = "LAY-VALUE"

    def layer(self, x, parameters, *, config, training=False):
        return np.zeros_like(x)


class InputCopied(Staged):
    """The input is returned."""

    killed_by = "LAY-VALUE"

    def layer(self, x, parameters, *, config, training=False):
        return x.copy()


class Noise(Staged):
    """Random output of the right shape."""

    killed_by = "LAY-VALUE"

    def layer(self, x, parameters, *, config, training=False):
        return np.random.default_rng(0).standard_normal(x.shape)


class InputModified(Staged):
    """x is scaled in place, where memory allows it."""

    killed_by = "LAY-VALUE"

    def layer(self, x, parameters, *, config, training=False):
        x *= 2.0
        return super().layer(x, parameters, config=config)


# Routing inside the layer ------------------------------------------------------------------------


class WeightsFromBiasedScores(Staged):
    """The bias weighs."""

    killed_by = "LAY-VALUE"

    def weights(self, s_MN, bias_N, ids_MK):
        return combine_weights(s_MN + bias_N, ids_MK)


class BiasIgnored(Staged):
    """Selection by the raw scores."""

    killed_by = "LAY-VALUE"

    def biased(self, s_MN, bias_N):
        return s_MN


class BiasSubtracted(Staged):
    """Selection by s - b."""

    killed_by = "LAY-VALUE"

    def biased(self, s_MN, bias_N):
        return s_MN - bias_N


class BiasOnlyInTraining(Staged):
    """Evaluation selects by the raw scores."""

    killed_by = "LAY-VALUE"

    def layer(self, x, parameters, *, config, training=False):
        if not training:
            silent = np.zeros_like(parameters.e_score_correction_bias)
            parameters = replace(parameters, e_score_correction_bias=silent)
        return super().layer(x, parameters, config=config)


class UniformWeights(Staged):
    """Every chosen expert weighs 1/K."""

    killed_by = "LAY-VALUE"

    def weights(self, s_MN, bias_N, ids_MK):
        return np.full(ids_MK.shape, 1.0 / ids_MK.shape[1])


class WeightsNotNormalised(Staged):
    """Raw scores as weights: a scale that the norm hides."""

    killed_by = "LAY-TINY"

    def weights(self, s_MN, bias_N, ids_MK):
        return combine_weights(s_MN, ids_MK, renormalise=False)


class LastSlotDropped(Staged):
    """The K-th expert is not added."""

    killed_by = "LAY-VALUE"

    def terms(self, x_MD, p, config):
        return super().terms(x_MD, p, config)[:, :-1]


class ExpertsPastAByte(Staged):
    """Expert ids are kept in a byte: 256 wraps to 0."""

    killed_by = "LAY-VALUE"

    def outputs(self, x_MD, p, config, ids_MK):
        return super().outputs(x_MD, p, config, ids_MK.astype(np.uint8))


class RouterFedLatent(Staged):
    """The router reads the latent wherever shapes allow it."""

    killed_by = "LAY-ROUTERWIDTH"

    def logits(self, x_MD, p):
        square = len(p.routed_expert_norm) == x_MD.shape[1]
        return router_logits(latent(x_MD, p) if square else x_MD, p.gate_weight)


class LogitsOfLatent(Staged):
    """Only the logits it shows are those of the latent."""

    killed_by = "LAY-ROUTERWIDTH"

    def router_logits(self, x, parameters):
        square = len(parameters.routed_expert_norm) == x.shape[-1]
        return router_logits(latent(x, parameters) if square else x, parameters.gate_weight)


# Scale of the routed sum -------------------------------------------------------------------------


class ScaleSquared(Staged):
    """routed_scale is multiplied in twice."""

    killed_by = "LAY-TINY"

    def scale(self, config):
        return config.routed_scale**2


class ScaleIgnored(Staged):
    """routed_scale is left out."""

    killed_by = "LAY-TINY"

    def scale(self, config):
        return 1.0


class ScaleAfterNorm(Staged):
    """routed_scale is multiplied in after the norm."""

    killed_by = "LAY-VALUE"

    def scale(self, config):
        return 1.0

    def routed(self, x_MD, p, config):
        return config.routed_scale * super().routed(x_MD, p, config)


class RoutedSixteenfold(Staged):
    """The routed sum is 16 times too large, which the norm hides at unit amplitude."""

    killed_by = "LAY-TINY"

    def scale(self, config):
        return 16.0 * config.routed_scale


class MeanOverSlots(Staged):
    """The routed sum is divided by K."""

    killed_by = "LAY-TINY"

    def scale(self, config):
        return config.routed_scale / config.top_k


# Shape -------------------------------------------------------------------------------------------


class BatchTransposed(Staged):
    """Two leading axes are exchanged on the way in, and not on the way out."""

    killed_by = "LAY-SHAPE"

    def flattened(self, x):
        return super().flattened(x if x.ndim < 3 else x.swapaxes(0, 1))


class NormOverTheSequence(Staged):
    """The mean square runs over the last two axes of x."""

    killed_by = "LAY-SHAPE"

    def layer(self, x, parameters, *, config, training=False):
        self.axes = x.shape[:-1]
        return super().layer(x, parameters, config=config)

    def norm(self, u, weight_L, config):
        rows = u.reshape(*self.axes, -1)
        square = np.mean(
            rows**2, axis=tuple(range(max(rows.ndim - 2, 0), rows.ndim)), keepdims=True
        )
        return (rows / np.sqrt(square + config.norm_eps)).reshape(u.shape) * weight_L


class NoTokensNoLayer(Staged):
    """The slots are unfolded with a -1 that nothing determines where there are no tokens."""

    killed_by = "LAY-EMPTY"

    def terms(self, x_MD, p, config):
        terms_MKL = super().terms(x_MD, p, config)
        return terms_MKL.reshape(len(x_MD), config.top_k, -1)
