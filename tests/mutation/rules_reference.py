"""Survivors among the mutants of ``reference_numpy`` that no test needs to tell from it."""

from __future__ import annotations

from tests.mutation.rules import EQUIVALENT, Rule

_LAST = "the last axis is the one named, and the default"
_ZIP = "the lengths are equal by what was checked or built before"
_DTYPE = "integers are added as int64, and None casts to float64, without being told"
_MINUS = "NumPy takes every negative number in a shape for the one to find"
_EMPTY = "no rows of no columns have no values, however they are cut"
_INSIDE = "the rank is reached in this bin and not before, so that the quotient lies in (0, 1]"
_EQUAL = "the quotient is whole, by the check before it or the sizes it is made of"

REFERENCE: tuple[Rule, ...] = (
    Rule("sigmoid", r"z > 0", EQUIVALENT, "at 0 the tail is 1, which is the other numerator"),
    Rule("require_shape", r"zip\(", EQUIVALENT, _ZIP),
    Rule("experts_vjp", r"zip\(", EQUIVALENT, _ZIP),
    Rule("histogram_statistic", r"np\.cumsum", EQUIVALENT, _DTYPE),
    Rule("histogram_statistic", r"np\.clip", EQUIVALENT, _INSIDE),
    Rule("_tokens_counted", r"counts_NB\.sum", EQUIVALENT, _DTYPE),
    Rule(r"HistogramBalancer.load_state_dict", r"bias_N\.astype", EQUIVALENT, _DTYPE),
    Rule("expert_vjp", r"swapaxes\(cotangent_ML", EQUIVALENT, "1 is the last of two axes"),
    Rule("experts_vjp", r"d_weights_rows = ", EQUIVALENT, _EMPTY),
    Rule("_zeros_like", r"np\.ones\(x\.shape, (dtype=None)?\)", EQUIVALENT, "ones are true"),
    Rule("layer", r"reshape\(-2", EQUIVALENT, _MINUS),
    Rule("layer_vjp", r"reshape\(-2", EQUIVALENT, _MINUS),
    Rule("rms_norm_vjp", r"reshape\(-2", EQUIVALENT, _MINUS),
    Rule("top_k_ids", r"argsort", EQUIVALENT, f"{_LAST}; names of sorts have no case"),
    Rule("cutoff", r"np\.sort", EQUIVALENT, _LAST),
    Rule("combine_weights", r"take_along_axis", EQUIVALENT, _LAST),
    Rule("group_scores", r"np\.sort", EQUIVALENT, _LAST),
    Rule("group_scores", r"num_experts / num_groups", EQUIVALENT, _EQUAL),
    Rule("grouped", r"shape\[1\] / num_groups", EQUIVALENT, _EQUAL),
    Rule("route_grouped", r"shape\[0\] / num_groups", EQUIVALENT, _EQUAL),
    Rule("weights_vjp", r"take_along_axis", EQUIVALENT, _LAST),
)
