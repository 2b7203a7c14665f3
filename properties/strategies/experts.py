"""Inputs of the routed experts: who goes where, with which weight, through which projections.

Widths stay small, since every projection adds its terms' radii, and a mistake of dispatch moves a
result by a term and not by an ulp. Where each row of a projection has one entry (*thin*), nothing
cancels and the radius stays at a few units of roundoff.

Legend: M tokens, N experts, K top_k, L latent width, H hidden width of an expert.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
from hypothesis import strategies as st

from properties.protocol import Array, ExpertParameters
from properties.strategies.arrays import (
    Layout,
    amplitudes,
    layouts,
    readable_arrays,
    seeds,
)

Crowd = Literal["any", "hot", "few", "last", "skewed"]
Weighing = Literal["positive", "normalised", "zeros"]

EXPERTS = (3, 2, 1, 5, 7, 13, 64, 257)
WIDTHS = ((3, 5), (5, 3), (4, 4), (2, 7), (1, 2), (17, 9), (24, 16), (8, 8))
# The report's caps first. The last three need more digits than bfloat16 has, or exceed 448.
BETAS = (
    *((4.0, 25.0), (4.0, 25.0), (1.0, 1.0), (0.5, 7.0), (25.0, 4.0)),
    *((3.3000123, 0.7000456), (100.0, 100.0), (1e4, 1e4)),
)


class Layouts(NamedTuple):
    """How the arrays lie in memory, and whether projections are stored transposed."""

    x: Layout = "contiguous"
    expert_ids: Layout = "contiguous"
    weights: Layout = "contiguous"
    transposed: bool = False
    cotangent: Layout = "contiguous"


CONTIGUOUS = Layouts()


@dataclass(frozen=True, repr=False)
class ExpertInputs:
    """One call: x (M, L), distinct ids per row and weights (M, K), the projections, the caps.

    ``cotangent`` (M, L), for a backward pass; None stands for ones.
    """

    x: Array
    expert_ids: Array
    weights: Array
    parameters: ExpertParameters
    beta_gate: float
    beta_up: float
    layouts: Layouts = CONTIGUOUS
    cotangent: Array | None = None

    def __repr__(self) -> str:
        """The sizes; a report shows the values as the implementation was given them."""
        (m, k), (n, h, latent) = self.weights.shape, self.parameters.gate_proj.shape
        return f"ExpertInputs(M={m}, N={n}, K={k}, L={latent}, H={h})"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """The same where Hypothesis prints what it drew, instead of every field."""
        del cycle
        printer.text(repr(self))


class Sizes(NamedTuple):
    """M, N, K, L and H."""

    tokens: int
    experts: int
    top_k: int
    latent: int
    hidden: int


def inputs() -> st.SearchStrategy[ExpertInputs]:
    """Readable cases, seeded ones of every shape, and one slot that outweighs all others."""
    return st.one_of(readable(), seeded(), seeded(), dominated(), dominated())


@st.composite
def readable(draw: st.DrawFn, fewest_tokens: int = 1, most_tokens: int = 3) -> ExpertInputs:
    """Up to three experts of widths up to two, element by element."""
    latent, hidden = draw(st.sampled_from([(1, 1), (2, 1), (1, 2), (2, 2)]))
    tokens, experts = draw(st.integers(fewest_tokens, most_tokens)), draw(st.integers(1, 3))
    top_k = draw(st.integers(1, experts))
    rows = st.lists(st.permutations(range(experts)), min_size=tokens, max_size=tokens)
    return ExpertInputs(
        x=draw(readable_arrays((tokens, latent))),
        expert_ids=np.array(draw(rows), np.int64).reshape(tokens, experts)[:, :top_k],
        weights=np.abs(draw(readable_arrays((tokens, top_k), largest=1))),
        parameters=ExpertParameters(
            draw(readable_arrays((experts, hidden, latent))),
            draw(readable_arrays((experts, hidden, latent))),
            draw(readable_arrays((experts, latent, hidden))),
        ),
        beta_gate=4.0,
        beta_up=25.0,
    )


@st.composite
def seeded(
    draw: st.DrawFn,
    crowds: Sequence[Crowd] = ("any", "hot", "few", "last", "skewed"),
    experts: Sequence[int] = EXPERTS,
    fewest_tokens: int = 1,
    most_tokens: int = 33,
) -> ExpertInputs:
    """Any shape, crowd of tokens, amplitude and layout."""
    sizes = draw(_sizes(experts, fewest_tokens, most_tokens))
    rng = np.random.default_rng(draw(seeds()))
    scale = draw(st.one_of(amplitudes(), st.just(1e15)))
    x = rng.standard_normal((sizes.tokens, sizes.latent)) * scale
    thin = draw(st.booleans())
    beta_gate, beta_up = draw(st.sampled_from(BETAS))
    return ExpertInputs(
        x=x,
        expert_ids=chosen_ids(rng, sizes, draw(st.sampled_from(tuple(crowds)))),
        weights=drawn_weights(
            rng, sizes, draw(st.sampled_from(["positive", "normalised", "zeros"]))
        )
        * draw(st.sampled_from([1.0, 1.0, 2.5, 1e-3])),
        parameters=drawn_parameters(rng, sizes, thin),
        beta_gate=beta_gate,
        beta_up=beta_up,
        layouts=Layouts(draw(layouts()), draw(layouts()), draw(layouts()), draw(st.booleans())),
    )


@st.composite
def dominated(draw: st.DrawFn) -> ExpertInputs:
    """One slot of each token weighs 1, the other 15 just less than half a unit in its last place.

    In bfloat16 that is, or in float16. All experts saturate at 1, times the same power of two, so
    that nothing cancels and few roundings matter. A sum of that format that has met the heavy term
    loses every light one that follows, and together they are many times the radius.
    """
    latent, hidden = draw(st.sampled_from([(3, 5), (5, 3), (4, 4), (1, 2)]))
    sizes = Sizes(draw(st.integers(2, 9)), draw(st.sampled_from([16, 64])), 16, latent, hidden)
    rng = np.random.default_rng(draw(seeds()))
    light = draw(st.sampled_from([2.0**-8, 2.0**-8, 2.0**-11])) * (255.0 / 256.0)
    heavy = np.arange(16) == rng.integers(0, 16, (sizes.tokens, 1))
    thin = drawn_parameters(rng, sizes._replace(experts=1), thin=True)
    one = ExpertParameters(
        np.abs(thin.gate_proj),
        np.abs(thin.up_proj),
        np.exp2(rng.integers(-2, 3)) * (thin.down_proj != 0.0),
    )
    return ExpertInputs(
        x=rng.uniform(100.0, 200.0, (sizes.tokens, latent)),
        expert_ids=chosen_ids(rng, sizes, "any"),
        weights=np.where(heavy, 1.0, light),
        parameters=repeated(one, sizes.experts),
        beta_gate=1.0,
        beta_up=1.0,
    )


@st.composite
def permuted(draw: st.DrawFn) -> tuple[ExpertInputs, Array]:
    """Inputs, and an order of their tokens."""
    call = draw(st.one_of(readable(), seeded()))
    tokens = call.x.shape[0]
    return call, np.array(draw(st.permutations(range(tokens))), np.int64)


@st.composite
def one_expert_at_a_time(draw: st.DrawFn) -> tuple[ExpertInputs, tuple[int, ...]]:
    """Inputs whose ids and weights (M, K) are those of expert 0 alone, and the experts to try.

    With K > 1 the other slots weigh 0. All experts are tried up to 13; of 257, the first, those on
    both sides of what a signed and an unsigned byte can number, and a few others.
    """
    few = st.one_of(readable(most_tokens=1), seeded(experts=(1, 2, 3, 5, 7, 13), most_tokens=4))
    many = seeded(experts=(257,), most_tokens=3)
    call = draw(st.one_of(few, many))
    experts = call.parameters.gate_proj.shape[0]
    tried = tuple(range(experts))
    if experts > 13:
        tried = (0, 127, 128, 255, 256, *draw(st.lists(st.integers(1, 255), max_size=3)))
    ids = np.argsort(call.expert_ids, axis=1)
    return replace(call, expert_ids=ids, weights=np.where(ids == 0, 1.0, 0.0)), tried


@st.composite
def identical(draw: st.DrawFn) -> ExpertInputs:
    """All experts alike, weights in eighths that add up to 1 exactly."""
    call = draw(st.one_of(readable(), seeded(experts=(3, 2, 1, 5, 13, 64), most_tokens=9)))
    rng = np.random.default_rng(draw(seeds()))
    tokens, top_k = call.weights.shape
    shares = rng.multinomial(8, np.full(top_k, 1.0 / top_k), tokens)
    first = ExpertParameters(
        call.parameters.gate_proj[:1], call.parameters.up_proj[:1], call.parameters.down_proj[:1]
    )
    alike = repeated(first, call.parameters.gate_proj.shape[0])
    return replace(call, weights=shares / 8.0, parameters=alike)


@st.composite
def with_idle_experts(draw: st.DrawFn) -> ExpertInputs:
    """No token, one token, or tokens that all keep to the same few experts."""
    return draw(
        st.one_of(
            readable(fewest_tokens=0),
            seeded(fewest_tokens=0, most_tokens=1),
            seeded(crowds=("few", "last"), experts=(3, 5, 13, 64, 257)),
        )
    )


def repeated(one: ExpertParameters, experts: int) -> ExpertParameters:
    """A stack of equal experts, from a stack of one."""
    return ExpertParameters(
        *(np.repeat(part, experts, axis=0) for part in (one.gate_proj, one.up_proj, one.down_proj))
    )


@st.composite
def _sizes(draw: st.DrawFn, experts: Sequence[int], fewest_tokens: int, most_tokens: int) -> Sizes:
    n = draw(st.sampled_from(tuple(experts)))
    k = draw(st.integers(1, min(n, 8)))
    if n >= 16 and draw(st.booleans()):
        k = 16
    # The reference evaluates every expert on every token.
    m = draw(st.integers(fewest_tokens, min(most_tokens, 2 + 1024 // n)))
    widths = WIDTHS if n <= 64 else WIDTHS[:5]
    return Sizes(m, n, k, *draw(st.sampled_from(widths)))


def chosen_ids(rng: np.random.Generator, sizes: Sizes, crowd: Crowd) -> Array:
    """K distinct ids per token, in any order: the largest of random scores plus a preference.

    "hot" puts one expert into every row, "few" keeps to K experts, "last" to the K of the highest
    ids, and "skewed" prefers every expert to the next in some order.
    """
    n, k = sizes.experts, sizes.top_k
    preference = np.zeros(n)
    if crowd == "hot":
        preference[rng.integers(n)] = np.inf
    elif crowd == "few":
        preference[rng.permutation(n)[:k]] = np.inf
    elif crowd == "last":
        preference[-k:] = np.inf
    elif crowd == "skewed":
        preference = rng.permutation(n) / 2.0
    scores = preference + rng.gumbel(size=(sizes.tokens, n))
    chosen = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return rng.permuted(chosen, axis=1).astype(np.int64)


def drawn_weights(rng: np.random.Generator, sizes: Sizes, weighing: Weighing) -> Array:
    """Weights (M, K) up to 1: of any sum, of sum 1, or about a third of them 0."""
    weights: Array = rng.uniform(0.05, 1.0, (sizes.tokens, sizes.top_k))
    if weighing == "normalised":
        weights = weights / weights.sum(axis=1, keepdims=True)
    elif weighing == "zeros":
        weights = np.where(rng.random(weights.shape) < 0.3, 0.0, weights)
    return weights


def drawn_parameters(rng: np.random.Generator, sizes: Sizes, thin: bool) -> ExpertParameters:
    """Normal projections of about unit gain, or ones with a single entry per row."""
    n, latent, hidden = sizes.experts, sizes.latent, sizes.hidden

    def matrices(rows: int, columns: int) -> Array:
        dense: Array = rng.standard_normal((n, rows, columns)) / np.sqrt(columns)
        if not thin:
            return dense
        filled = np.arange(columns) == rng.integers(0, columns, (n, rows, 1))
        sizes_NR1 = rng.uniform(0.5, 2.0, (n, rows, 1)) * rng.choice([-1.0, 1.0], (n, rows, 1))
        return np.where(filled, sizes_NR1, 0.0)

    return ExpertParameters(
        matrices(hidden, latent), matrices(hidden, latent), matrices(latent, hidden)
    )
