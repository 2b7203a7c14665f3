"""Runs of Quantile Balancing on seeded batches, and the loads that they lead to.

Scores are sigmoids of standard normal logits with an offset for each expert, the same in every
batch of a run: that is what makes some experts wanted by more tokens than others.

Legend: M tokens, N routed experts, K top_k, B histogram bins; q = M K / N is the target load.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np

import reference_numpy as reference
from properties.checks import note_figure
from properties.protocol import Array
from properties.subject import Subject

__all__ = [
    "Loads",
    "Measured",
    "Setting",
    "held_run",
    "implementations",
    "loads_at",
    "noise",
    "note",
    "run",
    "sign_steps",
    "steps_until",
    "summary",
    "takes_bins",
]


@dataclass(frozen=True)
class Setting:
    """Sizes and skew: normal offsets of that ``spread``, or the first ``hot`` experts up by it."""

    tokens: int
    num_experts: int
    top_k: int
    spread: float
    hot: int = 0
    num_bins: int = 1000

    def batches(self, seed: int, count: int) -> list[Array]:
        """So many batches of logits (M, N) with the same offsets."""
        rng = np.random.default_rng(seed)
        offset_N = self.spread * rng.standard_normal(self.num_experts)
        if self.hot:
            offset_N = np.where(np.arange(self.num_experts) < self.hot, self.spread, 0.0)
        shape = (self.tokens, self.num_experts)
        return [rng.standard_normal(shape) + offset_N for _ in range(count)]


class Loads(NamedTuple):
    """How uneven loads are."""

    max_to_mean: float
    max_to_min: float
    cv: float

    @classmethod
    def of(cls, loads_N: Array) -> Loads:
        """Of the loads (N,) of one batch; an idle expert counts as one token in max/min."""
        mean, most, least = loads_N.mean(), loads_N.max(), max(loads_N.min(), 1)
        return cls(float(most / mean), float(most / least), float(loads_N.std() / mean))


class Measured(NamedTuple):
    """Loads on the batch that the updates saw, and on a fresh one, before any and after some."""

    same: Mapping[int, Loads]
    fresh: Mapping[int, Loads]


class _Balancer(Protocol):
    @property
    def bias(self) -> Array: ...
    def observe(self, logits: Array, /) -> object: ...
    def update(self) -> None: ...


# Starts a balancer for a setting.
Implementation: TypeAlias = Callable[[Setting], _Balancer]


def implementations(subject: Subject) -> dict[str, Implementation]:
    """The reference, and the subject where it offers a balancer."""

    def own(setting: Setting) -> _Balancer:
        return subject.balancer(
            num_experts=setting.num_experts, top_k=setting.top_k, num_bins=setting.num_bins
        )

    offered = {"implementation": own} if "balancer" in subject.offered else {}
    return {"reference": _reference, **offered}


def _reference(setting: Setting) -> _Balancer:
    return reference.HistogramBalancer(
        setting.num_experts, setting.top_k, num_bins=setting.num_bins
    )


def loads_at(logits_MN: Array, bias_N: Array, top_k: int) -> Array:
    """How many tokens each expert gets, (N,): the reference's scores, in float64."""
    biased_MN = reference.scores(logits_MN) + bias_N
    ids_MK = np.argpartition(biased_MN, -top_k, axis=1)[:, -top_k:]
    return np.bincount(ids_MK.ravel(), minlength=bias_N.shape[0])


def noise(setting: Setting) -> float:
    """The cv of loads if each token took each expert with probability k/n, sqrt((1 - k/n) / q)."""
    share = setting.top_k / setting.num_experts
    return math.sqrt((1.0 - share) / (setting.tokens * share))


def run(
    subject: Subject, who: str, setting: Setting, seed: int, after: tuple[int, ...]
) -> Measured:
    """Update on one batch again and again, and measure after so many updates; 0 is before any."""
    if who == "reference":
        return _reference_run(setting, seed, after)
    return _run(implementations(subject)[who], setting, _held(subject, setting, seed), after)


def held_run(subject: Subject, setting: Setting, seed: int, after: tuple[int, ...]) -> Measured:
    """The reference's run on the batches that the implementation is given."""
    return _run(_reference, setting, _held(subject, setting, seed), after)


def _held(subject: Subject, setting: Setting, seed: int) -> tuple[Array, Array]:
    seen, fresh = (subject.round_to_storage(z) for z in setting.batches(seed, 2))
    return seen, fresh


@cache
def _reference_run(setting: Setting, seed: int, after: tuple[int, ...]) -> Measured:
    seen, fresh = setting.batches(seed, 2)
    return _run(_reference, setting, (seen, fresh), after)


def _run(
    start: Implementation, setting: Setting, batches: tuple[Array, Array], after: tuple[int, ...]
) -> Measured:
    balancer = start(setting)
    same: dict[int, Loads] = {}
    fresh: dict[int, Loads] = {}
    for updates in range(max(after) + 1):
        if updates:
            balancer.observe(batches[0])
            balancer.update()
        if updates in after:
            for where, logits in zip((same, fresh), batches, strict=True):
                where[updates] = Loads.of(loads_at(logits, balancer.bias, setting.top_k))
    return Measured(same, fresh)


def steps_until(
    subject: Subject, who: str, setting: Setting, seed: int, target: float, most: int
) -> int:
    """Updates on one batch until max/mean is at most ``target``; ``most`` + 1 if it never is."""
    (logits,) = setting.batches(seed, 1)
    if who != "reference":
        logits = subject.round_to_storage(logits)
    balancer = implementations(subject)[who](setting)
    for step in range(most + 1):
        loads_N = loads_at(logits, balancer.bias, setting.top_k)
        if Loads.of(loads_N).max_to_mean <= target:
            return step
        balancer.observe(logits)
        balancer.update()
    return most + 1


@cache
def sign_steps(setting: Setting, seed: int, step_size: float, target: float, most: int) -> int:
    """The same of DeepSeek-V3's update: b_j up by a step below the mean load, down above it."""
    (logits,) = setting.batches(seed, 1)
    bias_N = np.zeros(setting.num_experts)
    for step in range(most + 1):
        loads_N = loads_at(logits, bias_N, setting.top_k)
        if Loads.of(loads_N).max_to_mean <= target:
            return step
        bias_N = bias_N + step_size * np.sign(loads_N.mean() - loads_N)
    return most + 1


def takes_bins(start: Implementation, setting: Setting) -> bool:
    """Whether that many bins are kept, as far as a histogram shows."""
    counts = getattr(start(setting), "histogram", None)
    return counts is None or counts.shape[1] == setting.num_bins


class Summary(NamedTuple):
    """Mean and standard deviation over seeds."""

    mean: float
    spread: float

    def __str__(self) -> str:
        return f"{self.mean:.3g} ± {self.spread:.2g}"


def summary(values: list[float]) -> Summary:
    """Mean and sample standard deviation of at least two numbers."""
    return Summary(float(np.mean(values)), float(np.std(values, ddof=1)))


def note(subject: Subject, who: str, name: str, values: list[float]) -> Summary:
    """Summarise over seeds and report it."""
    told = summary(values)
    note_figure(subject, f"{who}: {name}", str(told))
    return told
