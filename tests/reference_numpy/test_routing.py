"""Selection, combine weights, cutoffs and their gradients, against hand-computed values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference_numpy.routing import (
    combine_weights,
    cutoff,
    group_scores,
    grouped,
    route,
    route_grouped,
    route_vjp,
    scores,
    top_k_ids,
    weights_vjp,
)

# sigmoid(log(s / (1 - s))) = s: the scores 0.8, 0.5, 0.2 of one token
LOGITS = np.log([[4.0, 1.0, 0.25]])


def test_a_hand_computed_token() -> None:
    ids, weights, alpha = route(LOGITS, np.zeros(3), top_k=2)
    np.testing.assert_array_equal(ids, [[0, 1]])
    np.testing.assert_allclose(weights, [[8 / 13, 5 / 13]], rtol=1e-15)
    np.testing.assert_allclose(alpha, [0.2], rtol=1e-15)


def test_the_bias_selects_but_never_weighs() -> None:
    # Biased scores 0.8, 0.4, 0.9: the raw 0.2 and 0.8 weigh.
    ids, weights, alpha = route(LOGITS, np.array([0.0, -0.1, 0.7]), top_k=2)
    np.testing.assert_array_equal(ids, [[2, 0]])
    np.testing.assert_allclose(weights, [[0.2, 0.8]], rtol=1e-14)
    np.testing.assert_allclose(alpha, [0.4], rtol=1e-15)


def test_ties_fall_to_the_lowest_id() -> None:
    biased = np.array([[1.0, 2.0, 2.0, 1.0, 2.0], [0.0] * 5])
    np.testing.assert_array_equal(top_k_ids(biased, 4), [[1, 2, 4, 0], [0, 1, 2, 3]])
    np.testing.assert_array_equal(cutoff(biased, 2), [2.0, 0.0])


def test_saturated_scores_tie_and_still_give_different_ids() -> None:
    ids, weights, alpha = route(np.array([[40.0, 50.0, 1e4, 60.0]]), np.zeros(4), top_k=3)
    np.testing.assert_array_equal(ids, [[0, 1, 2]])
    np.testing.assert_array_equal(weights, [[1 / 3] * 3])
    np.testing.assert_array_equal(alpha, [1.0])


def test_nan_rows_and_infinite_biases_keep_ids_different_and_in_range() -> None:
    biased = np.array(
        [[np.nan] * 4, [0.5, np.nan, 0.7, 0.1], [-np.inf, 0.3, -np.inf, -np.inf]],
    )
    np.testing.assert_array_equal(top_k_ids(biased, 3), [[0, 1, 2], [2, 0, 3], [1, 0, 2]])


def test_a_bias_of_minus_infinity_is_never_selected_while_others_remain() -> None:
    ids = route(LOGITS, np.array([-np.inf, 0.0, 0.0]), top_k=2).expert_ids
    np.testing.assert_array_equal(ids, [[1, 2]])


@pytest.mark.parametrize("logit", [-1e8, -110.0, -46.0, -30.0, 0.0, 30.0, 1e4])
def test_weights_and_their_sum_over_the_whole_range_of_logits(logit: float) -> None:
    with mpmath.workdps(50):
        first, second = (1 / (1 + mpmath.exp(-mpmath.mpf(z))) for z in (logit, logit - 0.5))
        exact = [s / (first + second + mpmath.mpf(1e-20)) for s in (first, second)]
    weights = route(np.array([[logit, logit - 0.5]]), np.zeros(2), top_k=2).weights
    # Scores err by 4 roundoffs each, the sum by 1, epsilon's by 1, the quotient by 1.
    np.testing.assert_allclose(weights[0], [float(p) for p in exact], rtol=11 * 2.0**-53)


def test_one_expert_per_token_is_normalised_or_not() -> None:
    bias = np.zeros(3)
    np.testing.assert_array_equal(route(LOGITS, bias, top_k=1).weights, [[1.0]])
    raw = route(LOGITS, bias, top_k=1, top1_renormalised=False).weights
    np.testing.assert_allclose(raw, [[0.8]], rtol=1e-15)
    # The switch is about one expert only.
    two = route(LOGITS, bias, top_k=2, top1_renormalised=False).weights
    np.testing.assert_array_equal(two, route(LOGITS, bias, top_k=2).weights)


def test_all_experts_leave_no_cutoff() -> None:
    ids, weights, alpha = route(LOGITS, np.zeros(3), top_k=3)
    assert alpha is None
    np.testing.assert_array_equal(ids, [[0, 1, 2]])
    np.testing.assert_allclose(weights, [[8 / 15, 5 / 15, 2 / 15]], rtol=1e-15)
    with pytest.raises(ValueError, match="top_k = 3 takes all experts"):
        cutoff(np.zeros((1, 3)), 3)


def test_no_tokens() -> None:
    ids, weights, alpha = route(np.zeros((0, 3)), np.zeros(3), top_k=2)
    assert alpha is not None
    assert (ids.shape, weights.shape, alpha.shape) == ((0, 2), (0, 2), (0,))
    d_logits, _ = route_vjp(np.zeros((0, 3)), np.zeros(3), np.zeros((0, 2)), top_k=2)
    assert d_logits.shape == (0, 3)


@settings(deadline=None, max_examples=60, database=None)
@given(data=st.data(), tokens=st.integers(1, 4), num_experts=st.integers(2, 6))
def test_selection_agrees_with_sorting_by_hand(
    data: st.DataObject, tokens: int, num_experts: int
) -> None:
    top_k = data.draw(st.integers(1, num_experts - 1))
    row = st.lists(st.integers(-3, 3), min_size=num_experts, max_size=num_experts)
    rows = data.draw(st.lists(row, min_size=tokens, max_size=tokens))
    ids, alpha = top_k_ids(np.array(rows) / 4.0, top_k), cutoff(np.array(rows) / 4.0, top_k)
    for i, values in enumerate(rows):
        best_first = sorted(range(num_experts), key=lambda j: (-values[j], j))
        assert ids[i].tolist() == best_first[:top_k]
        assert alpha[i] == values[best_first[top_k]] / 4.0


@pytest.mark.parametrize("top_k", [1, 2, 4])
@pytest.mark.parametrize("normalised", [True, False])
def test_gradients_against_differences(
    check_gradient: Callable[..., None], top_k: int, normalised: bool
) -> None:
    rng = np.random.default_rng(4)
    logits, bias = rng.normal(size=(3, 4)), 0.1 * rng.normal(size=4)
    cotangent = rng.normal(size=(3, top_k))
    # An epsilon that matters, so that its place in the quotient rule shows.
    options = {"top_k": top_k, "epsilon": 0.3, "top1_renormalised": normalised}
    d_logits, d_bias = route_vjp(logits, bias, cotangent, **options)

    def value() -> float:
        return float(np.sum(cotangent * route(logits, bias, **options).weights))

    check_gradient(value, logits, d_logits)
    np.testing.assert_array_equal(d_bias, np.zeros(4))
    chosen = np.zeros((3, 4), dtype=bool)
    np.put_along_axis(chosen, route(logits, bias, **options).expert_ids, True, axis=1)
    assert (d_logits[~chosen] == 0).all()
    assert (d_logits[chosen] != 0).all()


def test_one_weight_is_normalised_by_default_in_gradients_too() -> None:
    logits, bias, cotangent = LOGITS, np.zeros(3), np.ones((1, 1))
    by_default, _ = route_vjp(logits, bias, cotangent, top_k=1, epsilon=0.5)
    said, _ = route_vjp(logits, bias, cotangent, top_k=1, epsilon=0.5, top1_renormalised=True)
    other, _ = route_vjp(logits, bias, cotangent, top_k=1, epsilon=0.5, top1_renormalised=False)
    np.testing.assert_array_equal(by_default, said)
    assert not np.allclose(by_default, other)


def test_gradients_follow_any_selection(check_gradient: Callable[..., None]) -> None:
    rng = np.random.default_rng(5)
    logits, cotangent = rng.normal(size=(3, 5)), rng.normal(size=(3, 2))
    ids = np.array([[4, 0], [1, 2], [3, 1]], dtype=np.uint8)

    def value() -> float:
        return float(np.sum(cotangent * combine_weights(scores(logits), ids)))

    check_gradient(value, logits, weights_vjp(logits, ids, cotangent))


@pytest.mark.parametrize("logits", [(-40.0, -41.0), (40.0, 41.0), (300.0, -1.0)])
def test_gradients_keep_their_relative_accuracy_in_both_tails(logits: tuple[float, float]) -> None:
    cotangent = np.array([[1.0, -2.0]])
    d_logits = weights_vjp(np.array([logits]), np.array([[0, 1]]), cotangent)

    def value(first: mpmath.mpf, second: mpmath.mpf) -> mpmath.mpf:
        s = [1 / (1 + mpmath.exp(-z)) for z in (first, second)]
        return (s[0] - 2 * s[1]) / (s[0] + s[1] + mpmath.mpf(1e-20))

    with mpmath.workdps(300):
        exact = [float(mpmath.diff(value, logits, n)) for n in ((1, 0), (0, 1))]
    np.testing.assert_allclose(d_logits[0], exact, rtol=1e-14)


def test_whoever_has_the_complement_as_a_difference_passes_it() -> None:
    logits, ids, cotangent = (
        np.array([[2.0, -1.0, 0.5]]),
        np.array([[0, 2]]),
        np.array([[1.0, 3.0]]),
    )
    plain = weights_vjp(logits, ids, cotangent)
    difference = weights_vjp(logits, ids, cotangent, complement_MN=1.0 - scores(logits))
    np.testing.assert_allclose(difference, plain, rtol=1e-14)
    doubled = weights_vjp(logits, ids, cotangent, complement_MN=2.0 * scores(-logits))
    np.testing.assert_array_equal(doubled, 2.0 * plain)


# Two groups of three: the best two of the first sum to 1.5, those of the second to 1.25.
GROUPED = np.array([[0.75, 0.0, 0.75, 1.0, 0.25, -2.0]])


def test_groups_compete_by_their_two_best_experts() -> None:
    np.testing.assert_array_equal(group_scores(GROUPED, 2), [[1.5, 1.25]])
    np.testing.assert_array_equal(group_scores(GROUPED, 1), [[1.75]])
    best = grouped(GROUPED, num_groups=2, top_groups=1)
    np.testing.assert_array_equal(best, [[0.75, 0.0, 0.75, -np.inf, -np.inf, -np.inf]])
    np.testing.assert_array_equal(grouped(GROUPED, num_groups=2, top_groups=2), GROUPED)


def test_grouped_routing_leaves_the_best_expert_of_a_closed_group() -> None:
    logits = np.log(9.0) * np.ones((1, 6))  # scores of 0.9, so the bias decides alone
    ids, weights, alpha = route_grouped(logits, GROUPED[0], top_k=2, num_groups=2, top_groups=1)
    np.testing.assert_array_equal(ids, [[0, 2]])
    np.testing.assert_array_equal(weights, [[0.5, 0.5]])
    np.testing.assert_allclose(alpha, [0.9], rtol=1e-15)
    everyone = route_grouped(logits, GROUPED[0], top_k=3, num_groups=2, top_groups=1)
    assert everyone.cutoff is None
    np.testing.assert_array_equal(np.sort(everyone.expert_ids), [[0, 1, 2]])


def test_two_experts_are_a_group_and_open_groups_add_up() -> None:
    logits, bias = np.zeros((1, 6)), np.array([0.5, 0.0, -3.0, 2.0, 1.0, 0.25])
    np.testing.assert_array_equal(group_scores(bias[None], 3), [[0.5, -1.0, 1.25]])
    options = {"num_groups": 3, "top_groups": 2}
    taken = route_grouped(logits, bias, top_k=4, **options)
    np.testing.assert_array_equal(taken.expert_ids, [[4, 0, 5, 1]])
    assert taken.cutoff is None
    np.testing.assert_array_equal(route_grouped(logits, bias, top_k=3, **options).cutoff, [0.5])


@pytest.mark.parametrize(
    "options", [{}, {"epsilon": 0.25}, {"top1_renormalised": False}, {"top1_renormalised": True}]
)
@pytest.mark.parametrize("top_k", [1, 2])
def test_the_conventions_of_weights_hold_in_groups(top_k: int, options: dict[str, Any]) -> None:
    logits, bias = np.array([[1.0, -0.5, 2.0, 0.25]]), np.zeros(4)
    one = route_grouped(logits, bias, top_k=top_k, num_groups=1, top_groups=1, **options)
    np.testing.assert_array_equal(one.weights, route(logits, bias, top_k=top_k, **options).weights)


def test_one_group_is_no_group() -> None:
    rng = np.random.default_rng(6)
    logits, bias = rng.normal(size=(5, 7)), rng.normal(size=7)
    one = route_grouped(logits, bias, top_k=3, num_groups=1, top_groups=1)
    for part, plain in zip(one, route(logits, bias, top_k=3), strict=True):
        np.testing.assert_array_equal(part, plain)


def test_errors_of_groups_name_what_was_wrong() -> None:
    with pytest.raises(ValueError, match="num_groups = 4 must divide the 6 experts"):
        group_scores(GROUPED, 4)
    with pytest.raises(ValueError, match="num_groups = 0 must divide the 6 experts"):
        group_scores(GROUPED, 0)
    with pytest.raises(ValueError, match="num_groups = 3 must divide the 8 experts"):
        group_scores(np.zeros((1, 8)), 3)
    with pytest.raises(ValueError, match="num_groups = 6 must divide the 6 experts"):
        group_scores(GROUPED, 6)
    with pytest.raises(ValueError, match=r"top_groups = 3 must lie in 1 \.\. 2"):
        grouped(GROUPED, num_groups=2, top_groups=3)
    with pytest.raises(ValueError, match=r"top_k = 4 must lie in 1 \.\. 3"):
        route_grouped(GROUPED, np.zeros(6), top_k=4, num_groups=2, top_groups=1)


def test_errors_name_what_was_wrong() -> None:
    with pytest.raises(ValueError, match=r"top_k = 4 must lie in 1 \.\. 3"):
        route(LOGITS, np.zeros(3), top_k=4)
    with pytest.raises(ValueError, match=r"top_k = 0 must lie in 1 \.\. 3"):
        route(LOGITS, np.zeros(3), top_k=0)
    with pytest.raises(ValueError, match=r"bias has shape \(1,\), expected \(3\)"):
        route(LOGITS, np.zeros(1), top_k=1)
    with pytest.raises(ValueError, match=r"logits has shape \(3,\), expected \(any, any\)"):
        route(LOGITS[0], np.zeros(3), top_k=1)
    for function in (lambda flat: top_k_ids(flat, 1), lambda flat: cutoff(flat, 1)):
        with pytest.raises(ValueError, match=r"^biased scores has shape \(3,\)"):
            function(LOGITS[0])
    with pytest.raises(ValueError, match=r"^biased scores has shape \(6,\)"):
        group_scores(GROUPED[0], 2)
    with pytest.raises(ValueError, match=r"^scores has shape \(3,\)"):
        combine_weights(LOGITS[0], np.array([[1]]))
    with pytest.raises(
        ValueError, match=r"expert_ids span 1 \.\. 3, but there are experts 0 \.\. 2"
    ):
        combine_weights(scores(LOGITS), np.array([[1, 3]]))
    with pytest.raises(ValueError, match="expert_ids must be integers, not float64"):
        combine_weights(scores(LOGITS), np.array([[1.0, 2.0]]))
    with pytest.raises(ValueError, match="weights_cotangent has shape"):
        weights_vjp(LOGITS, np.array([[0, 1]]), np.ones((1, 3)))
