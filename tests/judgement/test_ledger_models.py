"""LED-K3 and LED-FAMILY ask no implementation: wrong configurations have to fail them instead."""

from __future__ import annotations

from dataclasses import replace

import pytest

import properties.test_ledger_models as claims
from properties.execution import judge
from properties.judgement.ledger_models import DEEPSEEK_V3, K3, MIXTRAL, LatentLayers, gated
from properties.lanes import LANES
from properties.loading import subject_of
from properties.reference import Reference
from properties.registry import find

WRONG = [
    ("LED-K3", "K3", replace(K3, layers=93)),
    ("LED-K3", "K3", replace(K3, shared=1)),
    ("LED-K3", "K3", replace(K3, top_k=15)),
    ("LED-K3", "K3", replace(K3, latent=7168)),
    ("LED-K3", "K3", replace(K3, experts=384)),
    ("LED-FAMILY", "MIXTRAL", replace(MIXTRAL, top_k=1)),
    ("LED-FAMILY", "MIXTRAL", replace(MIXTRAL, shared=1)),
    ("LED-FAMILY", "MIXTRAL", replace(MIXTRAL, attention=4 * 4096**2)),
    ("LED-FAMILY", "DEEPSEEK_V3", replace(DEEPSEEK_V3, dense_layers=0)),
    ("LED-FAMILY", "DEEPSEEK_V3", replace(DEEPSEEK_V3, shared=0)),
]


@pytest.mark.parametrize(("property_id", "name", "model"), WRONG)
def test_a_wrong_configuration_fails(
    property_id: str, name: str, model: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, name, model)
    outcome = judge(find(property_id), subject_of(Reference()), LANES["gate"])
    assert outcome.verdict == "failed"
    assert "is told" in outcome.message


def test_a_layer_is_counted_as_its_equations_say() -> None:
    """Small sizes, by hand: N = 5, K = 2, D = 6, L = 3, H = 4, S = 1, two layers."""
    layers = LatentLayers(2, experts=5, top_k=2, width=6, latent=3, hidden=4, shared=1)
    assert layers.routed == 2 * 5 * 3 * 3 * 4
    assert layers.router == 5 * 6 + 5
    assert layers.active == 2 * 3 * 3 * 4 + 3 * 6 * 4 + 2 * 6 * 3 + 3
    assert gated(6, 4) == 72


def test_counting_takes_no_memory() -> None:
    assert K3.layer.experts.gate_proj.strides == (0, 0, 0)
    assert K3.layer.experts.gate_proj.shape == (896, 3072, 3584)
