"""Routers longer than a tile, in the smallest layers that have them.

Legend: M tokens, N routed experts, D model width.
"""

from __future__ import annotations

import numpy as np

from properties.protocol import LayerConfig
from properties.strategies.arrays import LAYOUTS, laid_out
from properties.strategies.layer import LayerInputs, Sizes, parameters_of, tokens_of, unit_logits

__all__ = ["ROUTERS", "long_router"]

# (M, N, D) by what is long: rows of two tiles and of many; ten tiles of experts and more; sums of
# several chunks, the last one of which is not full, or one too many; and all beyond one tile.
ROUTERS: tuple[tuple[tuple[int, int, int], ...], ...] = (
    ((130, 3, 5), (300, 65, 4), (518, 9, 17), (1030, 2, 3)),
    ((3, 641, 7), (2, 900, 5), (20, 1030, 3)),
    ((3, 5, 300), (5, 17, 517), (2, 3, 1100), (9, 4, 768)),
    ((140, 150, 140),),
)
GATE_SCALES = (1.0, 4.0, 2.0**11)


def long_router(rng: np.random.Generator) -> LayerInputs:
    """A router of one of ROUTERS, each of which is as often one of its kind."""
    kind = ROUTERS[int(rng.integers(len(ROUTERS)))]
    tokens, num_experts, model = kind[int(rng.integers(len(kind)))]
    sizes = Sizes(num_experts, 1, model, latent=2, hidden=1, shared=1, shared_hidden=1)
    amplitude = 10.0 ** int(rng.integers(-4, 3))
    gate_scale = float(rng.choice(GATE_SCALES)) * unit_logits(amplitude)
    leading = (tokens,) if tokens % 2 or rng.random() < 0.5 else (2, tokens // 2)
    x = tokens_of(rng, (*leading, model), "thin", amplitude)
    return LayerInputs(
        x=laid_out(x, LAYOUTS[int(rng.integers(len(LAYOUTS)))]),
        parameters=parameters_of(rng, sizes, "thin", gate_scale, 0.125),
        config=LayerConfig(1),
        training=bool(rng.integers(2)),
    )
