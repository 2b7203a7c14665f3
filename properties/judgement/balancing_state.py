"""A balancer followed step by step: after every call it is what the reference balancer has become.

Where rounding leaves a choice (a value on the edge of two bins, the point read inside a bin, the
last bits of a new bias), the choice is checked to be legal and the reference goes on from it.

Legend: M tokens, N routed experts, B histogram bins.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np

from properties.balancer import SubjectBalancer
from properties.boundary import arrays_in
from properties.checks import within
from properties.errors import AdapterError, ViolationError
from properties.judgement.balancing import (
    Allowed,
    Bins,
    allowed,
    readings,
    require_some_constant,
    required_biases,
)
from properties.judgement.balancing_memory import overwritten
from properties.judgement.balancing_runs import (
    ascending,
    histogram_rule,
    require_centred,
    require_range,
)
from properties.judgement.balancing_state_counts import read_from_counts, require_counted
from properties.judgement.routing import (
    cutoff_ball,
    require_selection,
    require_weights,
    scored,
    tokens,
)
from properties.protocol import Array
from properties.strategies.arrays import laid_out
from properties.strategies.balancing_layouts import layout_for, mask_laid_out
from properties.strategies.balancing_state import History, MicroBatch, Setup
from properties.subject import Routed, Subject
from reference_numpy.balancing import NUM_BINS, HistogramBalancer

__all__ = [
    "Followed",
    "Saved",
    "micro_batches",
    "representable",
    "require_observed",
    "same_entry",
    "started",
]


@dataclass(frozen=True, eq=False)
class Saved:
    """A state dict, and what it stands for: the bias (N,) and counts (N, B) over r, or None.

    ``seen`` are the logits behind the counts, for balancers that show none. ``arrays`` is what has
    to stay in ``state``.
    """

    state: dict[str, Any]
    arrays: dict[str, Any]
    bias: Array
    counts: Array | None
    seen: tuple[Array, ...]
    enabled: bool


def representable(subject: Subject, batch: MicroBatch) -> MicroBatch:
    """The micro-batch in the subject's formats, behind strides that follow from its shape."""
    logits = subject.round_to_routing(subject.round_to_storage(batch.logits))
    logits = laid_out(logits, layout_for(logits))
    masked = subject.conventions.padding == "masked"
    return MicroBatch(logits, mask_laid_out(batch.mask, logits.shape[1]) if masked else None)


class Followed:
    """A balancer of the subject beside the reference's, which has been called the same way.

    Every method makes one call and raises ViolationError where the outcome is not a legal one:

    * only ``update`` and ``load`` change the bias, bit for bit;
    * only training micro-batches while enabled are counted, every valid token once for each expert,
      in its bin of [min b - 1, max b + 1], b being the bias in force;
    * an update reads the counts since the last one by the declared rule, and is centred; without
      counts, and while disabled, it changes nothing.

    Balancers that show no histogram are judged by the required biases of the tokens seen.
    """

    def __init__(self, subject: Subject, setup: Setup, name: str = "balancer") -> None:
        """Make the balancer, and require it to start empty and from the bias that is asked for.

        ``name`` is what its calls are printed under.
        """
        require_range(subject)
        self.subject, self.setup = subject, setup
        bias_N = None if setup.bias is None else subject.round_to_routing(setup.bias)
        if bias_N is not None:
            bias_N = laid_out(bias_N, layout_for(bias_N, setup.top_k))
        options: dict[str, Any] = {"num_bins": setup.num_bins, "bias": bias_N}
        options = {name: value for name, value in options.items() if value is not None}
        if not setup.enabled:
            options["enabled"] = False
        self.balancer: SubjectBalancer = subject.balancer(
            num_experts=setup.num_experts, top_k=setup.top_k, **options
        )
        self.balancer.label = name
        shown = self.balancer.histogram
        num_bins = (setup.num_bins or NUM_BINS) if shown is None else shown.shape[1]
        self.visible = shown is not None
        self.model = HistogramBalancer(setup.num_experts, setup.top_k, num_bins, bias_N)
        self.model.set_enabled(setup.enabled)
        self._seen: list[Array] = []
        self._seen_since_load: list[Array] = []
        self.require_unchanged("making a balancer")
        with overwritten(arrays_in(subject.case.calls[-1].arguments)):
            self.require_unchanged("overwriting the bias that the balancer was made from,")

    @property
    def bins(self) -> Bins:
        """The bins of the bias in force."""
        arithmetic = self.subject.routing_arithmetic()
        return Bins.of(self.model.bias, self.model.num_bins, arithmetic)

    @property
    def counts(self) -> Array:
        """The pending counts (N, B) over r, int64; of the reference where none are shown."""
        counts: Array = self.model.histogram
        return counts

    # Calls ---------------------------------------------------------------------------------------

    def observe(self, batch: MicroBatch, *, training: bool = True) -> Routed:
        """Route a micro-batch; the routing is judged, and what was counted."""
        memory = self.balancer.bias_storage_id()
        routed = self.balancer.observe(batch.logits, training=training, mask=batch.mask)
        rows = np.arange(len(batch.logits)) if batch.mask is None else np.flatnonzero(batch.mask)
        self._require_routing(tokens(routed, rows), batch.valid)
        what = "observe" if training else "observe(training=False)"
        self._require_counted(batch.valid if training else None, what)
        self._require_memory(memory, what)
        return routed

    def observe_one_by_one(self, logits_MN: Array) -> None:
        """Count every token as a micro-batch of its own; what was counted is judged at the end."""
        for first in range(len(logits_MN)):
            self.balancer.observe(logits_MN[first : first + 1])
        self._require_counted(logits_MN, f"observe, {len(logits_MN)} times,")

    def observe_recomputed(self, batch: MicroBatch) -> None:
        """Count a micro-batch whose forward runs twice."""
        memory = self.balancer.bias_storage_id()
        self.balancer.observe_recomputed(batch.logits)
        self._require_counted(batch.logits, "observe_recomputed")
        self._require_memory(memory, "observe_recomputed")

    def update(self) -> None:
        """Move the bias, which is judged by the counts that were pending."""
        memory = self.balancer.bias_storage_id()
        self.balancer.update()
        self._require_memory(memory, "update")
        worlds = self._choices()
        idle = [choices for choices in worlds if not choices]
        if idle and (len(idle) == len(worlds) or np.array_equal(self.balancer.bias, self.bias)):
            self.require_unchanged("update")
            if len(idle) < len(worlds):
                self._replace(self.bias, self.counts, ())
            return
        actual_N = self.balancer.bias
        choices = [choice for world in worlds for choice in world]
        require_some_constant(self.subject, actual_N, choices, "the bias after update")
        require_centred(self.subject, actual_N, choices, "the bias after update")
        self._replace(actual_N, np.zeros_like(self.counts), ())
        self.require_unchanged("update")

    def set_enabled(self, flag: bool) -> None:
        """Switch counting and updating on or off: pending counts and the bias stay."""
        memory = self.balancer.bias_storage_id()
        self.balancer.set_enabled(flag)
        self.model.set_enabled(flag)
        self.require_unchanged(f"set_enabled({flag})")
        self._require_memory(memory, f"set_enabled({flag})")

    def cast(self, dtype: str) -> None:
        """Cast the balancer as part of a module: bias and counts stay, to the last bit."""
        self.balancer.to(dtype)
        self.require_unchanged(f"to({dtype!r})")

    def save(self) -> Saved:
        """The state dict, required to hold the bias and, unless it says None, the counts."""
        state = deepcopy(self.balancer.state_dict())  # PyTorch's is a view of what goes on changing
        # A state may hold the bias in a finer format than the one that routes.
        bias_N = self.subject.round_to_routing(_numbers(state, "bias"))
        bias_N = bias_N * self.subject.conventions.bias_sign
        if not np.array_equal(bias_N, self.bias):
            raise ViolationError(f"the state dict has the bias {bias_N}; in force is {self.bias}")
        counts_NB = None
        if self.visible and state["histogram"] is not None:
            counts_NB = ascending(self.subject, _numbers(state, "histogram"))
            _require_equal(counts_NB, self.counts, "the state dict's histogram")
        return Saved(
            state, deepcopy(state), self.bias, counts_NB, tuple(self._seen), self.model.enabled
        )

    def stored(self, bias_N: Array, counts_NB: Array) -> Saved:
        """The state dict that a balancer with this bias and these counts over r would have.

        Its arrays lie behind strides, as parts of a checkpoint may.
        """
        place, kept_NB = int(counts_NB[0].sum()), ascending(self.subject, counts_NB).copy()
        state = {
            "bias": self.subject.as_bias(laid_out(bias_N.copy(), layout_for(bias_N, place))),
            "histogram": laid_out(kept_NB, layout_for(kept_NB, place)),
        }
        return Saved(state, deepcopy(state), bias_N, counts_NB, (), self.model.enabled)

    def load(self, saved: Saved) -> None:
        """Load a state: bias and counts are those of the state, whatever they were before.

        The switch is not part of the state's keys; where a state may have moved it, it is reset.
        """
        for key, array in saved.arrays.items():
            if isinstance(array, np.ndarray) and not same_entry(array, saved.state[key]):
                raise ViolationError(f"the balancer wrote into the {key!r} that it had loaded")
        self.balancer.load_state_dict(saved.state)
        counts_NB = np.zeros_like(self.counts) if saved.counts is None else saved.counts
        self._replace(saved.bias, counts_NB, saved.seen)
        self._seen_since_load = []
        if saved.enabled != self.model.enabled and self.balancer.offers("set_enabled"):
            self.balancer.set_enabled(self.model.enabled)
        self.require_unchanged("load_state_dict")
        with overwritten(arrays_in({key: saved.state[key] for key in ("bias", "histogram")})):
            self.require_unchanged("overwriting the state that was loaded,")

    # Judgement -----------------------------------------------------------------------------------

    @property
    def bias(self) -> Array:
        """The bias (N,) that is to be in force."""
        bias: Array = self.model.bias
        return bias

    def require_unchanged(self, what: str) -> None:
        """Require bias and counts to be what they were, bit for bit."""
        self._require_bias(what)
        if self.visible:
            _require_equal(self._shown(), self.counts, f"after {what} the histogram")

    def _require_routing(self, routed: Routed, logits_MN: Array) -> None:
        require_observed(self.subject, routed, logits_MN, self.bias, self.setup.top_k)

    def _require_counted(self, valid_MN: Array | None, what: str) -> None:
        if valid_MN is None or not self.model.enabled or self.setup.top_k == self.setup.num_experts:
            self.require_unchanged(what)
            return
        self._require_bias(what)
        before_NB = self.counts
        self.model.observe(valid_MN)
        self._seen.append(valid_MN)
        self._seen_since_load.append(valid_MN)
        if not self.visible:
            return
        after_NB = self._shown()
        if np.array_equal(after_NB, self.counts):
            return
        r_MN = required_biases(self.subject, valid_MN, self.bias, self.setup.top_k)
        if after_NB.shape != before_NB.shape:
            _require_equal(after_NB, before_NB, f"after {what} the histogram")
        require_counted(after_NB - before_NB, r_MN, self.bins, what)
        self.model.histogram = after_NB

    def _choices(self) -> list[list[Allowed]]:
        """What an update may read, for each view of what is pending; empty where nothing is.

        A balancer without a histogram does not say whether its state dict holds what it has seen.
        """
        top_k, num_experts = self.setup.top_k, self.setup.num_experts
        if not self.model.enabled or top_k == num_experts:
            return [[]]
        rule = histogram_rule(self.subject)
        if self.visible:
            pending = self.counts.any()
            return [read_from_counts(self.counts, top_k, self.bins, rule) if pending else []]
        views = [self._seen]
        if len(self._seen_since_load) < len(self._seen):
            views.append(self._seen_since_load)
        return [self._readings_of(seen, rule) for seen in views]

    def _readings_of(self, seen: list[Array], rule: str) -> list[Allowed]:
        logits_MN = np.concatenate([np.zeros((0, self.setup.num_experts)), *seen])
        if not len(logits_MN):
            return []
        r_MN = required_biases(self.subject, logits_MN, self.bias, self.setup.top_k)
        legal = readings(rule, len(logits_MN), self.setup.top_k, self.setup.num_experts)
        return [allowed(r_MN, each).widened(self.bins.width, self.bins.slip) for each in legal]

    def _replace(self, bias_N: Array, counts_NB: Array, seen: tuple[Array, ...]) -> None:
        self.model.bias, self.model.histogram = bias_N, counts_NB
        self._seen, self._seen_since_load = list(seen), list(seen)

    def _shown(self) -> Array:
        counts = self.balancer.histogram
        if counts is None:
            raise AdapterError("balancer.histogram is None, after it has been an array")
        return ascending(self.subject, counts)

    def _require_bias(self, what: str) -> None:
        actual_N = self.balancer.bias
        if not np.array_equal(actual_N, self.bias):
            raise ViolationError(f"after {what} the bias is {actual_N}, expected {self.bias}")

    def _require_memory(self, before: Any, what: str) -> None:
        if self.balancer.bias_storage_id() != before:
            raise ViolationError(
                f"{what} put the bias into other memory; who holds the old tensor keeps the old "
                "bias: write into its own storage"
            )


def require_observed(
    subject: Subject, routed: Routed, logits_MN: Array, bias_N: Array, top_k: int
) -> None:
    """Require of what ``observe`` returns for valid tokens what is required of ``route``."""
    known = scored(subject, logits_MN, bias_N, stored=routed.weights_format)
    require_selection(subject, routed, known.biased, "the selection of observe")
    require_weights(subject, routed, known.scores, "the weights of observe")
    if routed.cutoff is not None and top_k < len(bias_N):
        biased = scored(subject, logits_MN, bias_N).biased
        expected = cutoff_ball(biased, top_k)
        within(subject, routed.cutoff, expected, "the cutoff of observe")


def same_entry(one: Any, other: Any) -> bool:
    """Whether an entry of a state dict is what it was, which may be NaN."""
    if np.array_equal(one, other):
        return True
    arrays = isinstance(one, np.ndarray) and isinstance(other, np.ndarray)
    alike = arrays and (one.dtype, one.shape) == (other.dtype, other.shape)
    return alike and one.tobytes() == other.tobytes()


def _numbers(state: dict[str, Any], key: str) -> Array:
    value = state[key]
    if not isinstance(value, np.ndarray):
        raise AdapterError(
            f"balancer.state_dict()[{key!r}] is a {type(value).__name__}, expected an array"
        )
    if key == "histogram":
        if not np.issubdtype(value.dtype, np.integer):
            raise ViolationError(
                f"the state dict's histogram is {value.dtype}; counts are integers"
            )
        return value.astype(np.int64)
    return value.astype(np.float64)


def _require_equal(actual_NB: Array, expected_NB: Array, what: str) -> None:
    if actual_NB.shape != expected_NB.shape:
        raise ViolationError(f"{what} has shape {actual_NB.shape}, expected {expected_NB.shape}")
    wrong = np.argwhere(actual_NB != expected_NB)
    if len(wrong):
        expert, bin_ = (int(index) for index in wrong[0])
        raise ViolationError(
            f"{what} has {actual_NB[expert, bin_]} tokens in bin {bin_} of expert {expert}, "
            f"expected {expected_NB[expert, bin_]}"
        )


def started(subject: Subject, history: History, name: str = "balancer") -> Followed:
    """A followed balancer that has seen nothing yet."""
    return Followed(subject, history.setup, name)


def micro_batches(subject: Subject, history: History) -> list[MicroBatch]:
    """The micro-batches in the subject's formats."""
    return [representable(subject, batch) for batch in history.batches]
