"""The reference as an implementation: ``properties.reference:Reference``."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

import reference_numpy as reference
from properties.protocol import (
    Array,
    Conventions,
    ExpertParameters,
    LayerConfig,
    LayerParameters,
    Precision,
    Routing,
)


class Reference:
    """``reference_numpy`` through the protocol, in float64 throughout.

    Its exact update reads the linear quantile, which lies inside the interval of optimal biases;
    its histogram reads the q-th order statistic, as App. D does.
    """

    name = "reference_numpy"
    precision = Precision(compute="float64", accumulate="float64", storage="float64")
    conventions = Conventions(
        expert_rank="interior", histogram_rank="q", ties="lowest_index", padding="masked"
    )

    def __init__(self) -> None:
        try:
            self.version = version("latentmoe-gate")
        except PackageNotFoundError:
            self.version = "from source"

    def situ_glu(self, gate: Array, up: Array, *, beta_gate: float, beta_up: float) -> Array:
        """Eq. 12 without the projections."""
        return reference.situ_glu(gate, up, beta_gate=beta_gate, beta_up=beta_up)

    def situ_glu_vjp(
        self, gate: Array, up: Array, cotangent: Array, *, beta_gate: float, beta_up: float
    ) -> tuple[Array, Array]:
        """Its analytic gradients."""
        return reference.situ_glu_vjp(gate, up, cotangent, beta_gate=beta_gate, beta_up=beta_up)

    def rms_norm(self, x: Array, weight: Array, *, eps: float) -> Array:
        """RMSNorm with eps on the mean, inside the root."""
        return reference.rms_norm(x, weight, eps=eps)

    def route(self, logits: Array, bias: Array, *, top_k: int) -> Routing:
        """Eq. 13; ties fall to the lowest expert id."""
        return reference.route(logits, bias, top_k=top_k)

    def route_vjp(
        self, logits: Array, bias: Array, weights_cotangent: Array, *, top_k: int
    ) -> tuple[Array, Array]:
        """Gradients of the combine weights; zero for the bias."""
        return reference.route_vjp(logits, bias, weights_cotangent, top_k=top_k)

    def route_grouped(
        self, logits: Array, bias: Array, *, top_k: int, num_groups: int, top_groups: int
    ) -> Routing:
        """Eq. 13 among the experts of the best groups."""
        return reference.route_grouped(
            logits, bias, top_k=top_k, num_groups=num_groups, top_groups=top_groups
        )

    def quantile_update(
        self, logits: Array, bias: Array, *, top_k: int, mask: Array | None = None
    ) -> Array:
        """Eq. 14 with the linear quantile."""
        return reference.quantile_update(logits, bias, top_k=top_k, mask=mask)

    def balancer(
        self,
        *,
        num_experts: int,
        top_k: int,
        num_bins: int | None = None,
        bias: Array | None = None,
        enabled: bool = True,
    ) -> reference.HistogramBalancer:
        """App. D's histogram, 1,000 bins unless told otherwise."""
        return reference.HistogramBalancer(
            num_experts,
            top_k,
            num_bins=1000 if num_bins is None else num_bins,
            bias=bias,
            enabled=enabled,
        )

    def experts(
        self,
        x: Array,
        expert_ids: Array,
        weights: Array,
        parameters: ExpertParameters,
        *,
        beta_gate: float,
        beta_up: float,
    ) -> Array:
        """Every expert on every token, then the weighted sum of the chosen ones."""
        return reference.experts(
            x, expert_ids, weights, parameters, beta_gate=beta_gate, beta_up=beta_up
        )

    def experts_vjp(
        self,
        x: Array,
        expert_ids: Array,
        weights: Array,
        parameters: ExpertParameters,
        cotangent: Array,
        *,
        beta_gate: float,
        beta_up: float,
    ) -> tuple[Array, Array, ExpertParameters]:
        """Analytic gradients of the weighted sum."""
        return reference.experts_vjp(
            x, expert_ids, weights, parameters, cotangent, beta_gate=beta_gate, beta_up=beta_up
        )

    def router_logits(self, x: Array, parameters: LayerParameters) -> Array:
        """The router reads the full-width x."""
        return reference.router_logits(x, parameters.gate_weight)

    def layer(
        self, x: Array, parameters: LayerParameters, *, config: LayerConfig, training: bool = False
    ) -> Array:
        """Eq. 11; training and evaluation are the same computation."""
        del training
        return reference.layer(x, parameters, config=config)

    def layer_vjp(
        self, x: Array, parameters: LayerParameters, cotangent: Array, *, config: LayerConfig
    ) -> tuple[Array, LayerParameters]:
        """Analytic gradients of the whole layer."""
        return reference.layer_vjp(x, parameters, cotangent, config=config)
