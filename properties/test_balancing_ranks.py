"""Quantile Balancing on several ranks: counts are pooled, and all ranks have one bias.

Legend: M tokens, N routed experts, B histogram bins, W ranks.
"""

from __future__ import annotations

from properties.errors import NotOfferedError
from properties.judgement.balancing_runs import require_range
from properties.judgement.pooled_counts import (
    Rounds,
    require_one_reduction,
    traffic_programs,
)
from properties.judgement.pooled_life import Lives
from properties.ranks import run
from properties.registry import specification
from properties.strategies import splits
from properties.strategies.splits import SWEEP, LifeInputs, RoundsInputs, TrafficInputs
from properties.subject import Subject


@specification(
    "QB-RANKS",
    source="App. D",
    needs=("ranks", "balancer"),
    examples=28,
    inputs=splits.rounds(),
)
def test_qb_ranks(subject: Subject, inputs: RoundsInputs) -> None:
    """However tokens are divided among ranks, every rank ends with the bias of one process.

    Each rank's pending counts are those of its own valid tokens. After the update the reduced
    counts, if offered, are the sum of the counts of all distinct tokens, in every bin exactly; the
    bias is bit for bit the same on every rank; and, where one process counts the same tokens into
    the same bins, it is bit for bit the bias of that process. In any case some constant c puts
    every b_j + c within one bin width of the exact statistic of all distinct tokens, as in
    QB-HIST-ERROR. All of it holds again for a second batch and update, divided anew.

    Hypotheses: those of QB-HIST-ERROR; 2 and 4 ranks with one to three micro-batches each, tokens
    in any proportion, all of them at one rank or none at some; masks that leave out any tokens of a
    rank. Where ``parallel`` is offered, 2 or 4 consecutive ranks have the same tokens in half of
    the cases; these count once.

    Source and proof: App. D adds counts over ranks before it reads them. Sums of integers are
    exact, in any order.

    Legal freedoms: those of QB-HIST-BINS and QB-HIST-ERROR: a kernel may round differently in
    batches of another size, and put a value near an edge elsewhere. Who reduces what, and how.

    If it fails: ranks route by different biases and drift apart (no reduction, or one over too few
    ranks); quantiles of ranks are averaged, which is another bias (QB-LOCALMEAN); counts are
    averaged, or those of replicated tokens added up once per replica, which only the reduced counts
    show, until replicas are unequal; the mask of other ranks is ignored.
    """
    require_range(subject)
    for world in subject.worlds:
        rounds = Rounds(subject, inputs, world)
        rounds.judge(run(subject, rounds.programs(), "QB-RANKS"))


@specification(
    "QB-RANKS-STATE",
    source="App. D",
    needs=("ranks", "balancer"),
    examples=9,
    inputs=splits.lives(),
)
def test_qb_ranks_state(subject: Subject, inputs: LifeInputs) -> None:
    """On several ranks, too, only training is counted, and what was loaded is pooled exactly.

    Every rank observes in evaluation and updates, which changes nothing; nor does a balancer that
    is made with ``enabled=False``, or switched off where ``set_enabled`` is offered. Without
    ``bias`` one starts from zeros on every rank. Where states can be loaded, each rank loads one
    bias and counts of its own, of none to 2^24 + 4 tokens. They stay, bit for bit, through an
    evaluation, ``to`` a narrow format and back, and switching off, with an observation and an
    update, and on again; where ``state_dict`` holds counts, they are those of the rank, which
    another balancer, loaded with them, shows as well. The update reads the declared statistic of
    their sum, those of replicated tokens once, leaves the same bias on all ranks and clears the
    counts, so that another one changes nothing. The other balancer makes the same of them. Where
    the implementation is deterministic, that bias is bit for bit what one process makes of the sum.

    A third balancer of the same sizes, as of the next layer, counts tokens meanwhile, under
    activation checkpointing where ``observe_recomputed`` is offered: each rank its own, once. It is
    updated between the others, and reads its own sum.

    Hypotheses: k < n, finite logits and bias; 2 and 4 ranks, arranged as in QB-RANKS; all of them
    make the same calls. m k < 2^31 for all counts together.

    Source and proof: App. D adds integers over ranks, and one process adds the same ones. A state
    holds a rank's own pending counts, as ``histogram`` does.

    Legal freedoms: those of QB-HIST-EXACT and QB-RANKS; states without counts are not loaded.

    If it fails: ranks disagree on when to balance; counts travel in 8 or 16 bits, or as floats,
    which no small batch shows; a restart puts the counts of all ranks on each of them, or on none
    but the first; an evaluation that only some ranks leave out moves the bias of all; layers share
    one buffer of the reduction.
    """
    require_range(subject)
    for world in subject.worlds:
        lives = Lives(subject, inputs, world)
        lives.judge(run(subject, lives.programs(), "QB-RANKS-STATE"))


@specification(
    "QB-TRAFFIC",
    source="App. D",
    needs=("ranks", "balancer"),
    examples=4,
    inputs=splits.traffic(),
)
def test_qb_traffic(subject: Subject, inputs: TrafficInputs) -> None:
    """Between two updates each rank hands the n B counts of a layer to one integer all-reduce.

    Whatever the number of tokens: 64, 4,096 and 65,536 are tried. Counted are the elements of the
    tensors that a rank hands to collectives of torch.distributed from the first micro-batch to the
    end of the update, what they return not included. Barriers carry nothing and are not counted.

    Hypotheses: 2 ranks, each with half of the tokens, that is at least 32. Not offered where
    nothing is seen although the ranks agree: they then talk in another way.

    Source: App. D's one reduction. Counts suffice, since the statistic is read from their sum.

    Legal freedoms: any integer type; up to n integers more beside the counts, as for totals or for
    a slot of each expert outside the range. The two halves of an all-reduce: a reduce-scatter of
    the counts, rows perhaps filled up to a multiple of W, and an all-gather of a rank's share of
    what it makes of them; or a reduce to one rank, and a broadcast of what that one makes of them.

    If it fails: logits or required biases travel, which grows with the batch; counts travel as
    floats, which from 2^24 tokens on are not exact; or all counts are gathered, which grows with
    W; or there is a collective for each expert, each micro-batch or each statistic, whose latency
    adds up over 92 layers.
    """
    world = min(subject.worlds, default=0)
    if not world:
        raise NotOfferedError("no world of several ranks is to be judged")
    for tokens in SWEEP:
        programs = traffic_programs(subject, inputs, tokens, world)
        require_one_reduction(subject, inputs, run(subject, programs, "QB-TRAFFIC"), tokens)
