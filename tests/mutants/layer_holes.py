"""Layers that are wrong for what a model meets and random draws do not.

``killed_by`` names the property that has to catch it. Legend: M tokens, N routed experts, K top_k,
D model width, L latent width, H hidden width of a routed expert, S shared experts.
"""

from __future__ import annotations

import numpy as np

from properties.reference import Reference

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
