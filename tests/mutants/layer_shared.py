"""Wrong shared experts of the layer, in float64.

``killed_by`` names the property that has to catch it. Legend: M tokens, K top_k, D model width,
L latent width, S shared experts.
"""

from __future__ import annotations

import numpy as np

from properties.protocol import LayerConfig
from reference_numpy import swiglu
from reference_numpy.layer import latent, shared_outputs
from tests.mutants.layer import Staged


class SharedMissing(Staged):
    """No shared experts."""

    killed_by = "LAY-SHARED"

    def shared(self, x_MD, p, config):
        return 0.0


class SharedTwice(Staged):
    """Their sum is added twice."""

    killed_by = "LAY-SHARED"

    def shared(self, x_MD, p, config):
        return 2.0 * super().shared(x_MD, p, config)


class SharedAveraged(Staged):
    """Their mean is added."""

    killed_by = "LAY-SHARED"

    def shared(self, x_MD, p, config):
        return super().shared(x_MD, p, config) / len(p.shared_experts.gate_proj)


class SharedScaled(Staged):
    """routed_scale multiplies them, too."""

    killed_by = "LAY-SHARED"

    def shared(self, x_MD, p, config):
        return config.routed_scale * super().shared(x_MD, p, config)


class LastSharedDropped(Staged):
    """All but the last are added."""

    killed_by = "LAY-SHARED"

    def shared(self, x_MD, p, config):
        return shared_outputs(x_MD, p, config=config)[:-1].sum(axis=0)


class SharedFedLatent(Staged):
    """They read the latent wherever shapes allow it."""

    killed_by = "LAY-SHARED"

    def shared(self, x_MD, p, config):
        square = len(p.routed_expert_norm) == x_MD.shape[1]
        return super().shared(latent(x_MD, p) if square else x_MD, p, config)


class SharedSilu(Staged):
    """SwiGLU, as the model had it that they were taken from."""

    killed_by = "LAY-SHARED"

    def shared(self, x_MD, p, config):
        gate, up, down = (
            np.swapaxes(part, 1, 2)
            for part in (
                p.shared_experts.gate_proj,
                p.shared_experts.up_proj,
                p.shared_experts.down_proj,
            )
        )
        return (swiglu(x_MD @ gate, x_MD @ up) @ down).sum(axis=0)


class BetasOfSharedLeftAtDefault(Staged):
    """Shared experts keep the caps 4 and 25."""

    killed_by = "LAY-SHARED"

    def shared(self, x_MD, p, config):
        return super().shared(x_MD, p, LayerConfig(config.top_k))
