"""Why a property kills no mutant alone: what it says beside the others of its topic."""

# The widest statements of a topic: whatever is wrong in general is wrong here, and every mistake
# that has a name of its own has a property of its own as well, which finds it too.
_WIDE = (
    "It judges every number; each kind of mistake has a narrower property that names it as well."
)

# Compares outputs of the implementation with each other, or with 0, 1 or a bound.
_SYMMETRY = (
    "It follows from the value property, which has a radius from the declared formats; this one "
    "compares what the implementation returns with itself, or with 0, 1 or a bound."
)

# Draws what the value property draws now and then.
_CORNER = (
    "The value property draws such inputs too, here and there; this one draws nothing else, and "
    "its name says what is wrong."
)

# The counts and the bias of a balancer are followed by the state machine, too.
_STEPS = (
    "QB-HIST-MODEL follows every balancer through all calls; this one fixes their order, so that "
    "the mistake is met in few cases and has a name."
)

# A histogram that is shown can be judged bin by bin, one that is not by the bias alone.
_UNSHOWN = (
    "Where the histogram is shown, its bins tell the same; this one is about the bias, and judges "
    "balancers that show no histogram."
)

# What balances, by whichever statistic.
_ANY_RULE = (
    "It accepts every rule that balances; QB-VALUE holds the update to the declared statistic, "
    "which is more."
)

_MEASURED = (
    "A measured claim of the report or about it: a balancer that departs from it breaks a theorem "
    "on the update as well; it is there to be read, and to measure."
)

_IDS: dict[str, str] = {
    _WIDE: "ACT-VALUE ACT-VJP RTR-VALID RTR-SCORES RTR-WEIGHTS DSP-GRAD",
    _SYMMETRY: (
        "ACT-ODD ACT-VJP-LINEAR NRM-SCALE RTR-SUM RTR-STEER RTR-SHIFT RTR-TOKEN RTR-GROUP1 "
        "RTR-GRAD-LINEAR RTR-GRAD-SLOTS QB-SHIFT QB-SPAN QB-DIRECTION QB-SIGN "
        "QB-MONOTONE QB-NONEXPANSIVE QB-EQUIVARIANT QB-DUPLICATE DSP-PERMUTE DSP-SAME "
        "DSP-GRAD-SUM DSP-RELABEL DSP-LINEAR DSP-ROWS LAY-SPARSE LAY-TRAINEVAL "
        "LAY-SCALE LAY-SHARED LAY-ROUTERWIDTH LAY-NORMORDER LAY-UPONCE DSP-SLOTS"
    ),
    _CORNER: (
        "ACT-BOUND ACT-SWEEP ACT-VJP-SWEEP ACT-ORIGIN ACT-FINITE ACT-ORDER ACT-VJP-FINITE "
        "ACT-VJP-BOUND ACT-ALIVE "
        "ACT-ATTAIN ACT-BRANCH ACT-BELOW ACT-MONO ACT-FP8 RTR-NEGINF RTR-SMALLGAP RTR-ONE "
        "RTR-MARGIN DSP-ONEHOT DSP-EMPTY DSP-GRAD-ZERO NRM-LARGE LAY-TINY "
        "LAY-ALIVE LAY-WIDE QB-RANK-SIZES"
    ),
    _STEPS: (
        "QB-HIST-STEPS QB-HIST-RANGE QB-HIST-SPLIT QB-HIST-EMPTY QB-MASK QB-DEFER QB-HIST-TOTAL "
        "QB-HIST-BINS QB-OBSERVE QB-EVAL QB-REPLAY"
    ),
    _UNSHOWN: "QB-HIST-ERROR QB-HIST-CENTRE",
    _ANY_RULE: "QB-COUNT OPT-IMPL",
    _MEASURED: "QB-ONESTEP QB-PAPER QB-BINS QB-VS-SIGN",
}

NOT_ALONE = {name: reason for reason, names in _IDS.items() for name in names.split()}
