"""Survivors among the mutants of ``lp_oracle`` that no test needs to tell from it."""

from __future__ import annotations

from tests.mutation.rules import EQUIVALENT, SPEED, WIDER, Rule

_CAST = "None casts to float64; comparisons give booleans, and HiGHS float64, untold"
_WHOLE = "the whole numbers are small enough to be the same in float64 as in int64"
_LAST = "the last axis is the one named, and the default"
_SORT = "the order within a group of equals has no effect; names of sorts have no case"
_KIND = "no dtype has a kind or size that the two tell apart"
_PARTED = "the place lies between two that are in place, or is the first: it is in place, too"
_EQUAL = "the quotient is whole, by what the excess and the problem's shape are made of"
_NEAR = "edges that are not near have margins other than 0, and near ones are overwritten"
_PATIENCE = "when to give up, to look for new edges, or how many: the end is the same"
_SHORTCUT = "the longer way round comes to the same"
_ROOM = "units that no arc has room for: an arc of capacity 0 carries nothing"
_FILLER = "fills the places that do not count with a value beyond all others, here a larger one"
_TIES_COUNT = "with a tie more than k are chosen, and the loads then add up to too many"
_TWO_WAYS = "a divided edge is a cycle of cost 0 - 2 e, so that no margin is found in any case"
_RADIUS = "a bound of the rounding may be larger than it has to be"

LP_ORACLE: tuple[Rule, ...] = (
    # Any function: casts and defaults that NumPy supplies itself.
    Rule(r".*", r"astype\(np\.float64\).* => .*astype\(None\)", EQUIVALENT, _CAST),
    Rule(r".*", r"=> .*np\.asarray\(.*, (dtype=None)?\)", EQUIVALENT, _CAST),
    Rule(r".*", r"\.partition\(.*, axis=1\).* => .*partition\(.*, \)", EQUIVALENT, _LAST),
    Rule(r".*", r"np\.argsort\(.*kind=\"stable\"\) => .*\"STABLE\"", EQUIVALENT, _SORT),
    Rule(r".*", r"np\.abs\(p, (out=None)?\)", EQUIVALENT, "spares a copy, and nothing else"),
    Rule(r".*", r"XXiubXX|XXcmMSUXX|itemsize <= 9", EQUIVALENT, _KIND),
    Rule(r".*", r"- 1, n - top_k\).* => .*- 2, n - top_k\)", EQUIVALENT, _PARTED),
    Rule("_ranks", r"\(place - 2, place\)", EQUIVALENT, _PARTED),
    # Multipliers, units and scores as whole numbers.
    Rule(r"Augmentation\._excess", r"astype\(None\)", EQUIVALENT, _WHOLE),
    Rule(r"Augmentation\._excess|_require_feasible", r"[^/]/ (self\.)?n\b", EQUIVALENT, _EQUAL),
    Rule("_rational_grid", r"np\.array\(levels, (dtype=None)?\)", EQUIVALENT, _WHOLE),
    Rule("_matrix", r"np\.array\(rows, (dtype=None)?\)", EQUIVALENT, _WHOLE),
    Rule(
        "coordinate_descent|_everything",
        r"np\.(one|zero)s\(.*, (dtype=None)?\)",
        EQUIVALENT,
        _WHOLE,
    ),
    Rule("coordinate_descent", r"reshape\(-2", EQUIVALENT, "NumPy finds the one it is to find"),
    # Augmentation: which edges are looked at, and when.
    Rule(r"Augmentation\._gather", r"self\.margins\(\) >= 0", EQUIVALENT, _NEAR),
    Rule(r"Augmentation\.assignment", r">= self\.beta", EQUIVALENT, _NEAR),
    Rule(r"Augmentation\._flow", r"room >= 0|\+ self\.n \+ 2", EQUIVALENT, _ROOM),
    Rule(r"Augmentation\.complete", r"phases_here|per_token \*= 3", SPEED, _PATIENCE),
    Rule(r"Augmentation\.complete", r"reach (> 0|>= 1)", SPEED, _PATIENCE),
    Rule(r"Augmentation\.complete", r"missing >= 7|9 \* missing|7 / before", SPEED, _PATIENCE),
    Rule(
        "_solved|_checked_scores", r"(patient|writeable) ?= ?None", EQUIVALENT, "None is false, too"
    ),
    Rule("_optimum", r"_FEWEST_BITS - 2", EQUIVALENT, "steps of 8 end at the same number of bits"),
    # Grids: shortcuts for integers.
    Rule("score_grid", r"\"IUB\"|2 \* bits", EQUIVALENT, _SHORTCUT),
    Rule("_checked", r"\"IUB\"", EQUIVALENT, _SHORTCUT),
    # Strict margins.
    Rule("make_strict", r"np\.argsort\(heads, (kind=None)?\)", EQUIVALENT, _SORT),
    Rule("make_strict", r"parts > 2", SPEED, _TWO_WAYS),
    Rule("_distances", r"prepend=-2", EQUIVALENT, "no head is negative: the first one differs"),
    Rule("_is_strict", r"(max|min)\((axis=None, )?keepdims", EQUIVALENT, _FILLER),
    Rule("_verified", r"np\.ones\(2\)", EQUIVALENT, "the first of two is the first of one"),
    # Certificates: what bounds rounding.
    Rule(r".*", r"rounding\([1248], .* => .*rounding\([359], ", WIDER, _RADIUS),
    Rule(r"_Pair\._bounds", r"rounding\(1, .* => .*rounding\(2, ", WIDER, _RADIUS),
    Rule(r"_Pair\._sums", r"count \+ 3", WIDER, _RADIUS),
    Rule(r"_Pair\._slackness", r"\(2 \+ _size", WIDER, _RADIUS),
    Rule("_drift_radius", r"rounding\(41", WIDER, _RADIUS),
    Rule(r"_Pair\.judged", r"3\.0 \* UNIT_ROUNDOFF", WIDER, _RADIUS),
    Rule("_verified", r"fits=None", WIDER, _RADIUS),
    Rule(r"_Pair\._gap", r"gap > 0", EQUIVALENT, "0 is its own negative"),
    Rule("_least_margin", r"math\.inf, 1\.0", EQUIVALENT, "infinity exceeds 1 as it exceeds 0"),
    Rule("routing_verdict", r"axis=1, kind=\"stable\"\) => .*-biased_MN, kind", EQUIVALENT, _LAST),
    # Perturbed descent.
    Rule("_descend", r"limit \+ 2", EQUIVALENT, "the round at the limit leaves the loop"),
    Rule("_descend", r"first_out_C <= last_in_C", EQUIVALENT, _TIES_COUNT),
    Rule("perturbed_descent", r"20001", SPEED, "a limit on rounds that is far from all tested"),
)
