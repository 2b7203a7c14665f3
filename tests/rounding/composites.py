"""The reference's formulas, each with inputs to try it on: from a softcap to the layer's gradients.

A composite draws arrays that the formats hold and says which formula they go into. The formula is
the reference's own, on whatever carries it: balls, simulated machines, many digits.

Legend: M tokens, N routed experts, K top_k, D model width, L latent width, H hidden width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np

import reference_numpy as reference
from properties.rounding.arithmetic import Arithmetic

Pattern = Literal["thin", "dense"]
Rng = np.random.Generator
Hold = Callable[[Any], Any]

M, N, K, D, L, H, SHARED = 5, 4, 2, 9, 6, 7, 2
CONFIG = reference.LayerConfig(top_k=K)

# Tokens whose routed sum is small against sqrt(eps), so that the norm only scales it.
FAINT = 1e-2

__all__ = ["COMPOSITES", "Drawn", "holding", "parts"]


class Drawn(NamedTuple):
    """A formula and the arrays to call it with."""

    formula: Callable[..., Any]
    arrays: tuple[Any, ...]

    def on(self, carry: Callable[[Any], Any]) -> dict[str, Any]:
        """The named results for arrays that ``carry`` has wrapped."""
        return dict(parts(self.formula(*(carry(array) for array in self.arrays))))


def holding(arithmetic: Arithmetic) -> Hold:
    """Rounds to numbers that memory and elementwise arithmetic both hold, none of them subnormal.

    What underflow costs is tried at single operations and random expressions.
    """
    least = max(arithmetic.computed.smallest_normal, arithmetic.stored.smallest_normal)

    def held(values: Any) -> Any:
        rounded = arithmetic.computed.rounded(arithmetic.stored.rounded(np.asarray(values)))
        return np.where(np.abs(rounded) < least, 0.0, rounded)

    return held


def parts(result: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """The arrays of a result with their names, through tuples and parameter classes."""
    if is_dataclass(result) and not isinstance(result, type):
        for part in fields(result):
            yield from parts(getattr(result, part.name), f"{name}.{part.name}".lstrip("."))
    elif isinstance(result, dict):
        for key, value in result.items():
            yield from parts(value, key)
    elif not isinstance(result, np.ndarray):  # a plain array stands for what is exactly 0
        yield name, result


# Elementwise -------------------------------------------------------------------------------------


def _signed(rng: Rng, shape: Any, low: float, high: float) -> Any:
    return 10.0 ** rng.uniform(low, high, shape) * rng.choice([-1.0, 1.0], shape)


def _softcap(rng: Rng, hold: Hold) -> Drawn:
    return Drawn(partial(reference.softcap, beta=4.0), (hold(_signed(rng, 200, -4.0, 4.0)),))


def _sigmoid(low: float, high: float) -> Callable[[Rng, Hold], Drawn]:
    def draw(rng: Rng, hold: Hold) -> Drawn:
        return Drawn(reference.sigmoid, (hold(rng.uniform(low, high, 200)),))

    return draw


def _situ(low: float, high: float, *, vjp: bool = False) -> Callable[[Rng, Hold], Drawn]:
    """Gates left of -12 are left to the tails of the sigmoid: narrow formats flush them to 0."""

    def draw(rng: Rng, hold: Hold) -> Drawn:
        gate = np.maximum(_signed(rng, 200, low, high), -6.0)
        up, cotangent = _signed(rng, 200, low, high), rng.normal(size=200)
        if vjp:
            return Drawn(_named(reference.situ_glu_vjp, "d_gate", "d_up"), (gate, up, cotangent))
        return Drawn(reference.situ_glu, (gate, up))

    return lambda rng, hold: _held(draw(rng, hold), hold)


def _held(drawn: Drawn, hold: Hold) -> Drawn:
    return drawn._replace(arrays=tuple(hold(array) for array in drawn.arrays))


def _named(function: Callable[..., Any], *names: str) -> Callable[..., Any]:
    return lambda *arrays: dict(zip(names, function(*arrays), strict=True))


# Norm and router ---------------------------------------------------------------------------------


def _norm(amplitude: float, *, vjp: bool = False) -> Callable[[Rng, Hold], Drawn]:
    def draw(rng: Rng, hold: Hold) -> Drawn:
        x, weight = amplitude * rng.normal(size=(M, 16)), rng.uniform(0.5, 2.0, 16)
        if not vjp:
            return _held(Drawn(reference.rms_norm, (x, weight)), hold)
        formula = _named(reference.rms_norm_vjp, "d_x", "d_weight")
        return _held(Drawn(formula, (x, weight, rng.normal(size=(M, 16)))), hold)

    return draw


def _weights(low: float, high: float, *, vjp: bool = False) -> Callable[[Rng, Hold], Drawn]:
    def draw(rng: Rng, hold: Hold) -> Drawn:
        logits, ids = rng.uniform(low, high, (M, N)), _expert_ids(rng)
        if not vjp:
            formula = lambda z: reference.combine_weights(reference.scores(z), ids)  # noqa: E731
            return _held(Drawn(formula, (logits,)), hold)

        def gradient(z: Any, cotangent: Any) -> Any:
            return {"d_logits": reference.weights_vjp(z, ids, cotangent)}

        return _held(Drawn(gradient, (logits, rng.normal(size=(M, K)))), hold)

    return draw


def _expert_ids(rng: Rng) -> Any:
    return np.argsort(rng.normal(size=(M, N)), axis=1)[:, :K]


# Experts and layer -------------------------------------------------------------------------------


def _matrices(rng: Rng, shape: tuple[int, ...], pattern: Pattern) -> Any:
    """Dense, or thin: one entry in each row, so that no sum cancels."""
    if pattern == "dense":
        return rng.normal(size=shape) / np.sqrt(shape[-1])
    here = np.arange(shape[-1]) == rng.integers(shape[-1], size=(*shape[:-1], 1))
    entries = 2.0 ** rng.uniform(-1.0, 1.0, (*shape[:-1], 1)) * rng.choice([-1, 1], shape)
    return np.where(here, entries, 0.0)


def _projections(rng: Rng, count: int, hidden: int, width: int, pattern: Pattern) -> list[Any]:
    shapes = ((count, hidden, width), (count, hidden, width), (count, width, hidden))
    return [_matrices(rng, shape, pattern) for shape in shapes]


def _experts(pattern: Pattern, *, vjp: bool = False) -> Callable[[Rng, Hold], Drawn]:
    def draw(rng: Rng, hold: Hold) -> Drawn:
        ids, weights = _expert_ids(rng), rng.dirichlet(np.ones(K), M)
        arrays = [rng.normal(size=(M, L)), weights, *_projections(rng, N, H, L, pattern)]

        def value(x: Any, w: Any, *projections: Any) -> Any:
            return reference.experts(x, ids, w, reference.ExpertParameters(*projections))

        def gradients(cotangent: Any, x: Any, w: Any, *projections: Any) -> Any:
            parameters = reference.ExpertParameters(*projections)
            d_x, d_weights, d = reference.experts_vjp(x, ids, w, parameters, cotangent)
            return {"d_x": d_x, "d_weights": d_weights, "d_projections": _joined(d)}

        if vjp:
            arrays = [rng.normal(size=(M, L)), *arrays]
        return _held(Drawn(gradients if vjp else value, tuple(arrays)), hold)

    return draw


def _joined(parameters: Any) -> Any:
    return np.concatenate([part.reshape(-1) for _, part in parts(parameters)])


def _layer(
    pattern: Pattern, *, vjp: bool = False, amplitude: float = 1.0
) -> Callable[[Rng, Hold], Drawn]:
    def draw(rng: Rng, hold: Hold) -> Drawn:
        ids = _expert_ids(rng)
        arrays = [
            amplitude * rng.normal(size=(M, D)),
            _matrices(rng, (N, D), "dense"),
            _matrices(rng, (L, D), pattern),
            rng.uniform(0.5, 2.0, L),
            _matrices(rng, (D, L), pattern),
            *_projections(rng, N, H, L, pattern),
            *_projections(rng, SHARED, H, D, pattern),
        ]

        def value(*given: Any) -> Any:
            parameters = _layer_parameters(*given[1:])
            logits = reference.router_logits(given[0], parameters.gate_weight)
            weights = reference.combine_weights(reference.scores(logits), ids)
            routing = reference.Routing(ids, weights)
            return reference.layer(given[0], parameters, config=CONFIG, routing=routing)

        def gradients(cotangent: Any, *given: Any) -> Any:
            parameters = _layer_parameters(*given[1:])
            d_x, d = reference.layer_vjp(
                given[0], parameters, cotangent, config=CONFIG, expert_ids=ids
            )
            routed = (d.routed_expert_down_proj, d.routed_expert_norm, d.routed_expert_up_proj)
            return {
                "d_x": d_x,
                "d_gate_weight": d.gate_weight,
                "d_routed": np.concatenate([part.reshape(-1) for part in routed]),
                "d_experts": _joined(d.experts),
                "d_shared_experts": _joined(d.shared_experts),
            }

        if vjp:
            arrays = [rng.normal(size=(M, D)), *arrays]
        return _held(Drawn(gradients if vjp else value, tuple(arrays)), hold)

    return draw


def _layer_parameters(
    gate: Any, down: Any, norm: Any, up: Any, *projections: Any
) -> reference.LayerParameters:
    return reference.LayerParameters(
        gate_weight=gate,
        e_score_correction_bias=np.zeros(N),
        routed_expert_down_proj=down,
        experts=reference.ExpertParameters(*projections[:3]),
        routed_expert_norm=norm,
        routed_expert_up_proj=up,
        shared_experts=reference.ExpertParameters(*projections[3:]),
    )


COMPOSITES: dict[str, Callable[[Rng, Hold], Drawn]] = {
    "softcap, 1e-4 … 1e4": _softcap,
    "sigmoid, -2 … 2": _sigmoid(-2.0, 2.0),
    "sigmoid, left tail": _sigmoid(-9.0, -4.0),
    "sigmoid, right tail": _sigmoid(4.0, 100.0),
    "situ_glu, about 1": _situ(-1.0, 1.0),
    "situ_glu, small": _situ(-4.0, -2.0),
    "situ_glu, large": _situ(1.0, 4.0),
    "situ_glu_vjp, about 1": _situ(-1.0, 1.0, vjp=True),
    "situ_glu_vjp, small": _situ(-4.0, -2.0, vjp=True),
    "rms_norm, 1": _norm(1.0),
    "rms_norm, 1e4": _norm(1e4),
    "rms_norm, sqrt(eps)": _norm(3e-3),
    "rms_norm, 1e-4": _norm(1e-4),
    "rms_norm, 1e-20": _norm(1e-20),
    "rms_norm_vjp, 1": _norm(1.0, vjp=True),
    "rms_norm_vjp, sqrt(eps)": _norm(3e-3, vjp=True),
    "rms_norm_vjp, 1e-4": _norm(1e-4, vjp=True),
    "combine weights": _weights(-3.0, 3.0),
    "combine weights, left tail": _weights(-9.0, -4.0),
    "weights_vjp": _weights(-3.0, 3.0, vjp=True),
    "weights_vjp, left tail": _weights(-9.0, -4.0, vjp=True),
    "experts, thin": _experts("thin"),
    "experts, dense": _experts("dense"),
    "experts_vjp, thin": _experts("thin", vjp=True),
    "experts_vjp, dense": _experts("dense", vjp=True),
    "layer, thin": _layer("thin"),
    "layer, dense": _layer("dense"),
    "layer, dense, faint": _layer("dense", amplitude=FAINT),
    "layer_vjp, thin": _layer("thin", vjp=True),
    "layer_vjp, dense": _layer("dense", vjp=True),
    "layer_vjp, dense, faint": _layer("dense", vjp=True, amplitude=FAINT),
}
