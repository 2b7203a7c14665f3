"""Wrong gradients of a layer in bfloat16: they have to show through radii of several per cent.

``killed_by`` names the property that has to catch it.
"""

from __future__ import annotations

from impl_torch.adapter import BFloat16
from tests.mutants import layer_gradient


class NormFactorConstant(layer_gradient.NormFactorConstant):
    """The backward pass of the norm lacks the projection."""

    killed_by = "LAY-GRAD"
    precision = BFloat16.precision


class EpsForgottenInBackward(layer_gradient.EpsForgottenInBackward):
    """The backward pass of the norm has no eps."""

    killed_by = "LAY-GRAD"
    precision = BFloat16.precision


class NormWeightOfTheMean(layer_gradient.NormWeightOfTheMean):
    """The gradient of the norm's weight is averaged over tokens instead of summed."""

    killed_by = "LAY-GRAD"
    precision = BFloat16.precision


class UpGradientOfTheSum(layer_gradient.UpGradientOfTheSum):
    """The gradient of W_up is taken with u, before the norm."""

    killed_by = "LAY-GRAD"
    precision = BFloat16.precision


class WeightsDetached(layer_gradient.WeightsDetached):
    """Combine weights carry no gradient."""

    killed_by = "LAY-GRAD"
    precision = BFloat16.precision


class RouterPathLost(layer_gradient.RouterPathLost):
    """The router learns, but x gets nothing through it."""

    killed_by = "LAY-GRAD"
    precision = BFloat16.precision


class TotalConstant(layer_gradient.TotalConstant):
    """The sum that normalises the weights counts as a constant."""

    killed_by = "LAY-GRAD"
    precision = BFloat16.precision


class ScaleInForwardOnly(layer_gradient.ScaleInForwardOnly):
    """routed_scale is left out of the backward pass."""

    killed_by = "LAY-GRAD"
    precision = BFloat16.precision


class SharedInputDetached(layer_gradient.SharedInputDetached):
    """Shared experts learn, but x gets nothing through them."""

    killed_by = "LAY-GRAD"
    precision = BFloat16.precision


class RouterFrozen(layer_gradient.RouterFrozen):
    """The router learns nothing, since combine weights were detached."""

    killed_by = "LAY-ALIVE"
    precision = BFloat16.precision


class TotalOfEverybody(layer_gradient.TotalOfEverybody):
    """In the backward pass weights are normalised over all experts."""

    killed_by = "LAY-SPARSE"
    precision = BFloat16.precision
