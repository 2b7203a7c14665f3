"""Layers that depend on their mode, on their history or on other tokens.

``killed_by`` names the property that has to catch it. Legend: M tokens, N routed experts, K top_k,
D model width, L latent width.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from properties.reference import Reference
from tests.mutants.layer import Staged

# Training and evaluation -------------------------------------------------------------------------


class NoiseInTraining(Staged):
    """Logits get noise of 1 % in training."""

    killed_by = "LAY-TRAINEVAL"
    training = False

    def layer(self, x, parameters, *, config, training=False):
        self.training = training
        return super().layer(x, parameters, config=config)

    def logits(self, x_MD, p):
        logits_MN = super().logits(x_MD, p)
        noise = np.random.default_rng(0).standard_normal(logits_MN.shape) if self.training else 0.0
        return logits_MN * (1.0 + 0.01 * noise)


class EvaluationWithoutBias(Staged):
    """Evaluation selects by the raw scores."""

    killed_by = "LAY-TRAINEVAL"

    def layer(self, x, parameters, *, config, training=False):
        if not training:
            silent = np.zeros_like(parameters.e_score_correction_bias)
            parameters = replace(parameters, e_score_correction_bias=silent)
        return super().layer(x, parameters, config=config)


class EvaluationWithAverageBias(Staged):
    """Evaluation takes a slowly moving average of the bias, which lags behind."""

    killed_by = "LAY-TRAINEVAL"

    def layer(self, x, parameters, *, config, training=False):
        if not training:
            lagging = 0.5 * parameters.e_score_correction_bias
            parameters = replace(parameters, e_score_correction_bias=lagging)
        return super().layer(x, parameters, config=config)


class UpdatedInForward(Staged):
    """Every forward pass in training moves a correction of the bias that later calls add."""

    killed_by = "LAY-TRAINEVAL"

    def __init__(self):
        super().__init__()
        self.moved = {}

    def layer(self, x, parameters, *, config, training=False):
        bias_N = parameters.e_score_correction_bias
        seen = self.moved.get(bias_N.tobytes(), np.zeros_like(bias_N))
        moved = replace(parameters, e_score_correction_bias=bias_N + seen)
        if training:
            self.moved = {bias_N.tobytes(): seen - bias_N}
        return super().layer(x, moved, config=config)


class CapacityInTraining(Staged):
    """In training the last token of each batch finds its experts full."""

    killed_by = "LAY-TRAINEVAL"

    def layer(self, x, parameters, *, config, training=False):
        y = super().layer(x, parameters, config=config)
        if not training:
            return y
        x_MD, y_MD = x.reshape(-1, x.shape[-1]), y.reshape(-1, x.shape[-1]).copy()
        y_MD[-1] = self.shared(x_MD, parameters, config)[-1]
        return y_MD.reshape(x.shape)


class ScaledInTraining(Staged):
    """The shared experts' output is rescaled as if some of it were dropped."""

    killed_by = "LAY-TRAINEVAL"
    training = False

    def layer(self, x, parameters, *, config, training=False):
        self.training = training
        return super().layer(x, parameters, config=config)

    def shared(self, x_MD, p, config):
        return super().shared(x_MD, p, config) / (0.9 if self.training else 1.0)


# Lost tokens -------------------------------------------------------------------------------------


class CombinedByOneHot(Staged):
    """Rows are brought back to their tokens by a product with a one-hot matrix."""

    killed_by = "LAY-NAN"

    def terms(self, x_MD, p, config):
        terms_MKL = super().terms(x_MD, p, config)
        return np.einsum("ij,jkl->ikl", np.eye(len(x_MD)), terms_MKL)


class OneScaleForAllTokens(Staged):
    """Tokens are divided by the largest number of the batch, and multiplied again."""

    killed_by = "LAY-NAN"

    def outputs(self, x_MD, p, config, ids_MK):
        largest = np.exp2(np.ceil(np.log2(np.max(np.abs(x_MD)) + 1e-300)))
        return super().outputs(x_MD / largest * largest, p, config, ids_MK)


class LostTokensSkipped(Staged):
    """Lost tokens are left out of the routed experts, and the others close ranks."""

    killed_by = "LAY-NAN"

    def routed(self, x_MD, p, config):
        y_MD = super().routed(x_MD, p, config)
        kept = y_MD[np.isfinite(x_MD).all(axis=1)]
        return np.concatenate([kept, y_MD[: len(y_MD) - len(kept)]])


class GradientByOneHot(Reference):
    """d_x is gathered by a product with a one-hot matrix; the output is right."""

    killed_by = "LAY-NAN"

    def layer_vjp(self, x, parameters, cotangent, *, config):
        d_x, gradients = super().layer_vjp(x, parameters, cotangent, config=config)
        return np.eye(len(x)) @ d_x, gradients
