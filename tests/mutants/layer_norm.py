"""Wrong norms and up projections of the layer, in float64.

``killed_by`` names the property that has to catch it. Legend: M tokens, K top_k, D model width,
L latent width.
"""

from __future__ import annotations

import numpy as np

from reference_numpy import rms_norm
from tests.mutants.layer import Staged


class NormMissing(Staged):
    """The routed sum goes to the up projection as it is."""

    killed_by = "LAY-VALUE"

    def norm(self, u, weight_L, config):
        return u


class NormBeforeCombine(Staged):
    """Every expert's output is normalised, then they are combined."""

    killed_by = "LAY-NORMORDER"

    def routed(self, x_MD, p, config):
        normed_MKL = self.norm(self.terms(x_MD, p, config), p.routed_expert_norm, config)
        return normed_MKL.sum(axis=1) @ p.routed_expert_up_proj.T


class NormOfPartialSums(Staged):
    """Two halves of the slots are summed and normalised apart, as ranks would."""

    killed_by = "LAY-NORMORDER"

    def routed(self, x_MD, p, config):
        halves = np.array_split(self.terms(x_MD, p, config), 2, axis=1)
        sums = [half.sum(axis=1) for half in halves]
        normed_ML = sum(self.norm(u_ML, p.routed_expert_norm, config) for u_ML in sums)
        return normed_ML @ p.routed_expert_up_proj.T


class NormAfterEachSlot(Staged):
    """The running sum is normalised whenever a slot has been added."""

    killed_by = "LAY-NORMORDER"

    def routed(self, x_MD, p, config):
        terms_MKL = self.terms(x_MD, p, config)
        u_ML = np.zeros_like(terms_MKL[:, 0])
        for slot in range(config.top_k):
            u_ML = self.norm(u_ML + terms_MKL[:, slot], p.routed_expert_norm, config)
        return u_ML @ p.routed_expert_up_proj.T


class EpsOutsideRoot(Staged):
    """x / (sqrt(mean(x^2)) + eps)."""

    killed_by = "LAY-TINY"

    def norm(self, u, weight_L, config):
        root = np.sqrt(np.mean(u**2, axis=-1, keepdims=True))
        return u / (root + config.norm_eps) * weight_L


class EpsOnSum(Staged):
    """eps joins the sum of squares, before it is divided by L."""

    killed_by = "LAY-TINY"

    def norm(self, u, weight_L, config):
        return rms_norm(u, weight_L, eps=config.norm_eps / u.shape[-1])


class NormAfterUp(Staged):
    """Up projection per expert, combine, then the norm, wherever shapes allow it."""

    killed_by = "LAY-UPONCE"

    def routed(self, x_MD, p, config):
        if len(p.routed_expert_norm) != x_MD.shape[1]:
            return super().routed(x_MD, p, config)
        each_MKD = self.terms(x_MD, p, config) @ p.routed_expert_up_proj.T
        return self.norm(each_MKD.sum(axis=1), p.routed_expert_norm, config)


class UpTwice(Staged):
    """Up projection per expert and once more after the norm, wherever shapes allow it."""

    killed_by = "LAY-UPONCE"

    def terms(self, x_MD, p, config):
        terms_MKL = super().terms(x_MD, p, config)
        square = len(p.routed_expert_norm) == x_MD.shape[1]
        return terms_MKL @ p.routed_expert_up_proj.T if square else terms_MKL
