"""Every class of seeded layers is drawn, and cases differ from each other."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, given, settings

from properties.strategies import layer_seeded as seeded


def drawn(strategy, count=120):
    found = []

    @settings(
        max_examples=count,
        database=None,
        derandomize=True,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def collect(case):
        found.append(case)

    collect()
    return found


def sizes_of(layer):
    p = layer.parameters
    return (*p.gate_weight.shape, *p.experts.gate_proj.shape[1:], *p.shared_experts.gate_proj.shape)


def test_gradients_meet_every_class():
    cases = drawn(seeded.gradients())
    layers = [case.layer for case in cases]
    assert len({(sizes_of(layer), layer.x.tobytes()) for layer in layers}) > 0.9 * len(layers)
    assert all(case.cotangent.shape == case.layer.x.shape for case in cases)
    amplitudes = [np.abs(layer.x).max(initial=0.0) for layer in layers]
    assert sum(amplitude < 0.05 for amplitude in amplitudes) > 20
    assert sum(amplitude > 5 for amplitude in amplitudes) > 20
    assert {layer.x.ndim for layer in layers} >= {1, 2, 3, 4}
    assert any(layer.x.size == 0 for layer in layers)
    assert any(not case.cotangent[..., 0].all() for case in cases if case.layer.x.ndim == 2)
    assert {len(layer.parameters.shared_experts.gate_proj) for layer in layers} == {0, 1, 2, 3}
    assert {layer.config.top_k == 1 for layer in layers} == {True, False}
    assert {layer.identity_norm for layer in layers} == {True, False}
    bias = [layer.parameters.e_score_correction_bias for layer in layers]
    assert any(len(b) > 1 and not b.any() for b in bias)
    assert any(len(b) > 3 and (b[::2][: len(b) // 2] == b[1::2]).all() for b in bias)


def test_wide_layers_choose_more_than_eight():
    layers = [case.layer for case in drawn(seeded.wide(), 40)]
    for layer in layers:
        assert 8 < layer.config.top_k < len(layer.parameters.gate_weight)
    widest = max(max(sizes_of(layer)[1:]) for layer in layers)
    assert widest > 40


def test_fine_biases_vanish_in_bfloat16_and_not_in_float32():
    for layer in drawn(seeded.fine_biases(), 40):
        bias = layer.parameters.e_score_correction_bias
        assert len(np.unique(bias.astype(np.float32))) == len(bias)
        assert np.ptp(bias) < 0.005 < np.abs(bias).min()


def test_long_sums_name_the_width_that_is_long():
    cases = drawn(seeded.long_sums(), 40)
    assert {case.width for case in cases} == {"model", "latent", "hidden", "shared_hidden"}
    for case in cases:
        place = {"model": 1, "hidden": 2, "latent": 3, "shared_hidden": 5}[case.width]
        assert sizes_of(case.layer(2.0**-24))[place] == seeded.LONG
        assert sizes_of(case.layer(2.0**-8))[place] == 32
        assert (case.layer(2.0**-24).x > 0).all()


def test_the_pinned_instance_is_one():
    one, other = seeded.generic(), seeded.generic()
    np.testing.assert_array_equal(one.layer.x, other.layer.x)
    assert sizes_of(one.layer) == (8, 6, 5, 4, 2, 3, 6)


def test_some_tokens_are_lost_and_some_are_not():
    for case in drawn(seeded.with_lost_tokens(), 40):
        assert 0 < case.lost.sum() < len(case.lost) == len(case.layer.x)
        assert not np.isfinite(case.value)
