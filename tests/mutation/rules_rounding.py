"""Why mutants of properties/rounding live that no test needs to kill.

A radius that a mutant makes smaller is none of these, unless a slack beside it covers the loss.
"""

from __future__ import annotations

from tests.mutation.rules import EQUIVALENT, SPEED, WIDER, Rule

_FLOAT64 = "None casts to float64, and a sum of truths is a number, without being told"
_SLOW = "the general way, with the same results; a shortcut is not taken"
_UNUSED = "this part of the tuple is not read here"
_MOST = "equal numbers: either branch has the same result, or an infinite radius instead"
_NAN = "a NaN there leads to the same infinite radius or is replaced further on"
_BROADCAST = "the sum that follows brings it to this shape"
_INFINITE = "-inf and inf stay what they are when something finite is added"
_TIGHTER = "the roundings that the slack is for are smaller than what is left of it"
_ROW = "the sign of zero, or of what is infinite, decides no other way"


ROUNDING: tuple[Rule, ...] = (
    # arithmetic.py
    Rule("Format.rounded", r"float64XX|FLOAT64", SPEED, "a cast to float64 and back changes none"),
    Rule("Format.rounded", r"astype\(None\)", EQUIVALENT, _FLOAT64),
    Rule(
        "_rule", r"=> .*2\.0\*\*-51", EQUIVALENT, "four roundings of 2^-53 each are all there are"
    ),
    Rule(
        "Arithmetic.reading_error", r"float64XX|FLOAT64", SPEED, "rounding to float64 loses nothing"
    ),
    Rule("_flush_error", r"sizes >= 0\.0", SPEED, "an array of zeros instead of None"),
    # ball.py
    Rule("Ball.__init__", r"or True else None", SPEED, "an array of zeros instead of None"),
    Rule("made", r"and False else|type\(None\) is", SPEED, "np.asarray returns an array itself"),
    Rule("lifted", r"astype\(None\)", EQUIVALENT, _FLOAT64),
    Rule(
        "_constant",
        r"Ball \| None = None|get\(None\)|<= _CONST|\[key\] = None",
        SPEED,
        "one more or less is kept",
    ),
    Rule("_float64", r"XXOSUMmcXX", EQUIVALENT, "no dtype has the kind X"),
    Rule("ratio", r"astype\(None\)", EQUIVALENT, _FLOAT64),
    Rule("ratio", r"where\(None, np\.inf", EQUIVALENT, "what is over 0 is infinite, or equal"),
    # bounds.py
    Rule("widened", r"or True else (low|high)$", EQUIVALENT, _INFINITE),
    Rule("widened", r"low >= -math\.inf|high <= math\.inf", EQUIVALENT, _INFINITE),
    Rule("negated", r"and False", SPEED, "-inf and inf change places and signs"),
    Rule("hull", r"and False|FREE and y is FREE", SPEED, "the ends of FREE are the farther ones"),
    Rule("added", r"FREE and y is FREE", SPEED, "a sum with both infinities is free again"),
    Rule("multiplied", r"FREE and y is FREE", SPEED, "a product with both infinities is free"),
    # decision.py
    Rule(
        "Decision.__array_ufunc__",
        r"isinstance\(x, Decision\)\) or True",
        EQUIVALENT,
        "an array of a number is the same operand",
    ),
    Rule(
        "Decision.__array_function__", r"where\]\(.*\*args, \)", EQUIVALENT, "it takes no keyword"
    ),
    # elementwise.py
    Rule("_sum", r"count_nonzero\(None\)", SPEED, _SLOW),
    Rule("_sum", r"magnitude < rule\.reach", WIDER, _MOST),
    Rule(
        "_most_over_root",
        r"kept >= 0",
        EQUIVALENT,
        "a root that may lose all of itself is no safe divisor, and this is not asked",
    ),
    Rule("_rounded", r"count_nonzero\(None\)", SPEED, _SLOW),
    Rule("_either", r"only\.shape", EQUIVALENT, _BROADCAST),
    Rule("_capped", r"radius >= farthest", EQUIVALENT, _MOST),
    # extended.py
    Rule("ends", r"np\.isnan\(x\.value\)\)", EQUIVALENT, _UNUSED),
    Rule("subtract", r"-y\.low\), None", EQUIVALENT, "sums do not ask for the format"),
    Rule("divide", r"<= low|>= high", WIDER, "the last number that is safe is handled as unsafe"),
    Rule("sqrt", r"x\.high, 1\.0", WIDER, "a higher end"),
    Rule("_Special.of", r"nan & exact, infinity", EQUIVALENT, "a NaN operand has a NaN result"),
    Rule("_settled", r"zip\(", EQUIVALENT, "both have the same five parts"),
    Rule(
        "_settled",
        r"magnitude == 0\.0\) \| \(zero",
        EQUIVALENT,
        "with an operand that is exactly 0 or infinite nothing but a sum is finite and not 0",
    ),
    Rule("_settled", r"share\) < rule\.reach", WIDER, _MOST),
    Rule("_settled", r"unknown & np\.isnan", EQUIVALENT, "NaN of other operands is in result.nan"),
    Rule("_settled", r"z >= 0\.0, low", EQUIVALENT, "neither end of what 0 lies in is beyond 0"),
    Rule("_settled", r"where\(None, 0|unknown & exact_nan, 0|exact_nan, 1\.0", EQUIVALENT, _NAN),
    Rule("_gap", r"where\(None", EQUIVALENT, _NAN),
    # reductions.py
    Rule(
        "_Terms.of", r"ball\.size / value|else 1\.0", EQUIVALENT, "the quotient is whole, or unused"
    ),
    Rule("_Terms.of", r"count_nonzero\(None\)", SPEED, _SLOW),
    Rule("_Terms.of", r"dtype=None|keepdims=keepdims, \)", EQUIVALENT, _FLOAT64),
    Rule("_accumulated", r"length \+ 9\.0", WIDER, "one rounding more than there are"),
    Rule("_floor_of_total", r"length \+ 9\.0", WIDER, "one rounding more than there are"),
    Rule(
        "_floor_of_terms",
        r"spread (/ \(1\.0 \+ 2|\* \(1\.0 - 2|\* \(1\.0 \+ 3|\* \(1\.0 \+ 2\.0\*\*-52)",
        EQUIVALENT,
        "the difference is rounded relative to itself, which the floor of the total covers 8 times",
    ),
    Rule("_finished", r"count_nonzero\(None\)", SPEED, _SLOW),
    Rule(
        "_sum_rule", r"largest <= rule|_nan or not", SPEED, "the parts put in are those there are"
    ),
    Rule("_special_terms", r"dtype=None|keepdims=keepdims, \)", EQUIVALENT, _FLOAT64),
    Rule("_special_terms", r"zeros_like\(None\)", EQUIVALENT, "nothing, of any shape"),
    Rule("_special_terms", r"ball\.value (>=|<=) 0\.0|ball\.value [<>] 1\.0", EQUIVALENT, _ROW),
    Rule(
        "_special_terms",
        r"isfinite\(ball\.value\) \| ~wild",
        EQUIVALENT,
        "an infinite term clashes with all that its partial sums would",
    ),
    Rule("_special_terms", r"ball\.(value|radius), 1\.0\)", WIDER, "terms without size count as 1"),
    Rule("_special_terms", r", 1\.0\)\) \* growth", WIDER, "terms of the other sign count as 1"),
    Rule("_special_terms", r"growth >= ", WIDER, _MOST),
    Rule("_special_terms", r"\+ 3\.0 \* rule|length \+ 2\.0", WIDER, "a larger growth"),
    Rule(
        "_special_terms",
        r"some\(nan & exact\)",
        EQUIVALENT,
        "a NaN that is not exact makes the sum NaN, and its radius is infinite",
    ),
    Rule("_product_terms", r"_Terms\(None", EQUIVALENT, _UNUSED),
    Rule("_products", r"count_nonzero\(None\)", SPEED, _SLOW),
    Rule("_products", r"astype\(None\)", EQUIVALENT, _FLOAT64),
    Rule("_multiplied", r"radius < rule|share\) < rule", WIDER, _MOST),
    Rule("_multiplied", r"count_nonzero\(None\)", SPEED, _SLOW),
    Rule("_multiplied", r"astype\(None\)", EQUIVALENT, _FLOAT64),
    # structure.py
    Rule("_reach", r"2\.0\*\*-51", EQUIVALENT, _TIGHTER),
    Rule("_extreme", r"2\.0\*\*-51", EQUIVALENT, _TIGHTER),
)
