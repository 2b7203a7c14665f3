"""Calls of the layer, and changes of its parameters that leave the output as it is.

Legend: M tokens, N routed experts, D model width, L latent width, H hidden width of an expert.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from properties.judgement.layer import LegalLayer, legal_layer, on_arrays
from properties.judgement.narrow import COARSE, all_narrow, fitting_layer, is_narrow
from properties.protocol import Array, LayerConfig, LayerParameters
from properties.rounding import Ball
from properties.strategies.layer import IDENTITY, LayerInputs
from properties.subject import Subject

# What a cotangent is brought down to where storage ends near 2^16: gradients multiply it by up to
# 1 / sqrt(eps), and by an identity norm's weight.
SMALL_COTANGENT = 2.0**-4

# Tokens larger than this ask for smaller ones: gradients of what reads x are multiples of it.
LARGE_TOKEN = 128.0

# The largest product of both caps in float8: that of the report's caps.
LARGEST_CAPS = 100.0

__all__ = [
    "LayerCall",
    "absorbed",
    "cotangent_of",
    "moved_to_up",
    "norm_remainder",
    "scaled_experts",
    "times",
    "turned",
]


@dataclass(frozen=True)
class LayerCall:
    """Arguments of a call, in values that the subject's formats hold."""

    x: Array
    parameters: LayerParameters
    config: LayerConfig
    training: bool

    @classmethod
    def of(cls, subject: Subject, inputs: LayerInputs, enlarged: float = 1.0) -> LayerCall:
        """The drawn inputs in the subject's formats, which can square the routed sum, too.

        ``enlarged`` is what the property is going to multiply the routed sum by.
        """
        inputs = fitting_layer(all_narrow(subject), _lower_caps(subject, inputs), enlarged)
        bias = subject.round_to_routing(inputs.parameters.e_score_correction_bias)
        rounded = on_arrays(subject.round_to_storage, _squarable(subject, inputs, enlarged))
        rounded = replace(rounded, e_score_correction_bias=bias)
        call = cls(subject.round_to_storage(inputs.x), rounded, inputs.config, inputs.training)
        if not inputs.identity_norm:
            return call
        ones = replace(rounded, routed_expert_norm=np.ones_like(rounded.routed_expert_norm))
        return replace(call, parameters=ones).with_identity_norm(subject)

    def with_identity_norm(self, subject: Subject) -> LayerCall:
        """The same call with 2^e times the norm's weight, and eps 4^e: the weight alone acts."""
        exponent = _identity_exponent(subject)
        weight = self.parameters.routed_expert_norm * 2.0**exponent
        config = replace(self.config, norm_eps=4.0**exponent)
        return replace(
            self, parameters=replace(self.parameters, routed_expert_norm=weight), config=config
        )

    def output(self, subject: Subject) -> Array:
        """What the implementation returns."""
        return subject.layer(self.x, self.parameters, config=self.config, training=self.training)

    def gradients(self, subject: Subject, cotangent: Array) -> tuple[Array, LayerParameters]:
        """The gradients (d_x, d_parameters) that it returns for a cotangent of the output."""
        return subject.layer_vjp(self.x, self.parameters, cotangent, config=self.config)

    def legal(self, subject: Subject) -> LegalLayer:
        """What it may return."""
        return legal_layer(subject, self.x, self.parameters, self.config)

    def judged(self, subject: Subject) -> tuple[Array, LegalLayer]:
        """Both."""
        return self.output(subject), self.legal(subject)


def cotangent_of(subject: Subject, drawn: Array, x: float = 1.0) -> Array:
    """The drawn cotangent in storage values, so small that gradients fit where float16 is met.

    ``x`` is the largest number of a token.
    """
    largest = float(np.abs(drawn).max(initial=0.0))
    small = SMALL_COTANGENT / max(1.0, x / LARGE_TOKEN)
    if is_narrow(all_narrow(subject)) and largest > small:
        drawn = drawn * 2.0 ** np.floor(np.log2(small / largest))
    return subject.round_to_storage(drawn)


def _lower_caps(subject: Subject, inputs: LayerInputs) -> LayerInputs:
    """The inputs; in float8, whose range a product of large caps would use up, with lower caps."""
    config = inputs.config
    excess = float(np.sqrt(config.beta_gate * config.beta_up / LARGEST_CAPS))
    if subject.arithmetic.stored.roundoff <= COARSE or excess <= 1.0:
        return inputs
    beta_gate, beta_up = config.beta_gate / excess, config.beta_up / excess
    return replace(inputs, config=replace(config, beta_gate=beta_gate, beta_up=beta_up))


def _identity_exponent(subject: Subject) -> int:
    """The e for which weight 2^e and eps 4^e fit the formats; 20 but for the narrowest."""
    arithmetic = subject.arithmetic
    computed = min(arithmetic.computed.largest, arithmetic.accumulated.largest)
    fits = min(np.log2(arithmetic.stored.largest), np.log2(computed) / 2)
    return min(IDENTITY, int(fits) - 1)


def _squarable(subject: Subject, inputs: LayerInputs, enlarged: float) -> LayerParameters:
    """The parameters, the experts' down projections halved until the squares of u surely fit.

    So do those of ``enlarged`` times u. Where they are taken in float16, they overflow from 256 on,
    and nothing is owed for such a u. All other formats hold the squares of all that is drawn.
    """
    arithmetic, experts = subject.arithmetic, inputs.parameters.experts
    most = min(arithmetic.computed.largest, arithmetic.accumulated.largest) / 4
    u_L = enlarged * _largest_sum(inputs.parameters, inputs.config)
    excess = np.sum(u_L**2) / most
    halvings = max(0, int(np.ceil(np.log2(max(excess, 1.0)) / 2)))
    down_proj = experts.down_proj * 2.0**-halvings
    return replace(inputs.parameters, experts=replace(experts, down_proj=down_proj))


def _largest_sum(parameters: LayerParameters, config: LayerConfig) -> Array:
    """A bound (L,) of abs(u) for any routing and any token, through the caps."""
    cap = abs(config.routed_scale) * config.beta_gate * config.beta_up
    largest: Array = cap * np.abs(parameters.experts.down_proj).sum(axis=2).max(axis=0)
    return largest


def norm_remainder(call: LayerCall) -> Array:
    """How far W_up RMSNorm(u) is from W_up u, with an identity norm of width L, then of width D.

    A bound (D,) for the sum of both, whatever the routing: 1 - 1/sqrt(1 + t) <= t/2 for the share
    t = mean(u^2) / eps, and abs(u) is bounded by the caps.
    """
    config, parameters = call.config, call.parameters
    u_L = _largest_sum(parameters, config)
    up_D: Array = np.abs(parameters.routed_expert_up_proj) @ u_L
    share = (np.mean(u_L**2) + np.mean(up_D**2)) / config.norm_eps
    remainder: Array = up_D * share / 2
    return remainder


def scaled_experts(parameters: LayerParameters, factor: float) -> LayerParameters:
    """The layer with a multiple of every routed expert's down projection."""
    experts = parameters.experts
    return replace(parameters, experts=replace(experts, down_proj=factor * experts.down_proj))


def times(
    factor: float, call: LayerCall, subject: Subject
) -> tuple[tuple[Array, LegalLayer], Array]:
    """A multiple of what an identity-norm layer returns and may return, and the norm's part in it.

    The second is a bound (D,) for the difference to a layer whose u is that multiple.
    """
    output, legal = call.judged(subject)
    outputs = legal.outputs
    scaled = Ball(factor * outputs.value, abs(factor) * outputs.radius, outputs.arithmetic)
    multiple = replace(call, parameters=scaled_experts(call.parameters, factor))
    apart = abs(factor) * norm_remainder(call) + norm_remainder(multiple)
    return (factor * output, replace(legal, outputs=scaled)), apart


def turned(parameters: LayerParameters, seed: int) -> LayerParameters:
    """The layer behind a signed permutation of its latent dimensions."""
    rng = np.random.default_rng(seed)
    latent = len(parameters.routed_expert_down_proj)
    order, sign = rng.permutation(latent), rng.choice([-1.0, 1.0], latent)
    experts = parameters.experts
    return replace(
        parameters,
        routed_expert_down_proj=sign[:, None] * parameters.routed_expert_down_proj[order],
        experts=replace(
            experts,
            gate_proj=experts.gate_proj[..., order] * sign,
            up_proj=experts.up_proj[..., order] * sign,
        ),
    )


def moved_to_up(parameters: LayerParameters, seed: int) -> LayerParameters:
    """The layer with powers of two taken from the norm's weight into the up projection."""
    norm_L = parameters.routed_expert_norm
    factor_L = 2.0 ** np.random.default_rng(seed).integers(0, 4, norm_L.shape)
    return replace(
        parameters,
        routed_expert_norm=norm_L / factor_L,
        routed_expert_up_proj=parameters.routed_expert_up_proj * factor_L,
    )


def absorbed(parameters: LayerParameters) -> LayerParameters:
    """A layer of latent width D whose experts contain the up projection.

    Latent dimensions beyond L are fed and read zeros. The norm must be the identity.
    """
    up_DL, experts = parameters.routed_expert_up_proj, parameters.experts
    model, latent = up_DL.shape
    more = (0, model - latent)
    norm_D = np.full(model, parameters.routed_expert_norm[0])
    return replace(
        parameters,
        routed_expert_down_proj=np.pad(parameters.routed_expert_down_proj, (more, (0, 0))),
        experts=replace(
            experts,
            gate_proj=np.pad(experts.gate_proj, ((0, 0), (0, 0), more)),
            up_proj=np.pad(experts.up_proj, ((0, 0), (0, 0), more)),
            down_proj=np.matmul(up_DL, experts.down_proj),
        ),
        routed_expert_norm=norm_D,
        routed_expert_up_proj=np.eye(model),
    )
