"""The ledger of published models: parameters, counted from their configurations.

A figure told is reproduced if the count, rounded to its digits, is that figure. K3 has 92 layers of
Eq. 11: 896 experts of which a token takes 16, D = 7168, L = 3584, H = 3072, 2 shared experts.

Legend: N routed experts, K top_k, D model width, L latent width, H hidden width of an expert.
"""

from __future__ import annotations

from properties.checks import note_figure, require
from properties.judgement.ledger_models import DEEPSEEK_V3, K3, MIXTRAL
from properties.registry import specification
from properties.subject import Subject


@specification("LED-K3", kind="claim", source="Eq. 11")
def test_led_k3(subject: Subject) -> None:
    """Claim: K3's routed experts hold 2.72 T parameters, 98 % of 2.78 T; one token meets 712 M per
    layer without the router, 718 M with it, 65.5 B in its 92 layers.

    Counted from arrays of the protocol's own shapes at full size, which take no memory: routed
    92 N 3 L H = 2,722,740,830,208. Per layer 16 of 896 experts, two shared ones of width D, the
    projections to the latent width and back, and the norm over it; the router has N (D + 1).

    Judged: every figure to the digits told. All are reproduced; 65.5 B is without the router, 66.1
    B with it. The 2.78 T of the whole model are taken as told, as attention is not part of Eq. 11.

    If it fails: the sizes that everything here is tested at are not those of K3.
    """
    with_router = K3.active + K3.router
    _require_told(subject, "routed, T", K3.routed / 1e12, "2.72")
    _require_told(subject, "share of 2.78 T, %", K3.routed / 2.78e10, "98")
    _require_told(subject, "active per layer, M", K3.active / 1e6, "712")
    _require_told(subject, "with the router, M", with_router / 1e6, "718")
    _require_told(subject, "active in 92 layers, B", K3.layers * K3.active / 1e9, "65.5")
    note_figure(subject, "with routers, B", f"{K3.layers * with_router / 1e9:.1f}")


@specification("LED-FAMILY", kind="claim", source="the models' configurations")
def test_led_family(subject: Subject) -> None:
    """Claim: Mixtral 8x7B has 46.7 B parameters, of which a token meets 12.9 B; DeepSeek-V3 671 B
    and 37 B.

    Counted from the published configurations: embeddings and output head, attention with its norms,
    experts, routers, DeepSeek-V3's three dense layers; not its extra layer that predicts a second
    token.

    Judged: every figure to the digits told. The two tell active parameters differently. Mixtral's
    12.9 B include the table of input embeddings, of which a token reads one row (without: 12.7 B).
    DeepSeek-V3's 37 B do not (with: 37.6 B).

    If it fails: the accounting that LED-K3 rests on is not the one that the field uses.
    """
    _require_told(subject, "Mixtral 8x7B, B", MIXTRAL.total / 1e9, "46.7")
    _require_told(subject, "Mixtral 8x7B active, B", MIXTRAL.active / 1e9, "12.9")
    without_table = DEEPSEEK_V3.active - DEEPSEEK_V3.embedding
    _require_told(subject, "DeepSeek-V3, B", DEEPSEEK_V3.total / 1e9, "671")
    _require_told(subject, "DeepSeek-V3 active, B", without_table / 1e9, "37")
    note_figure(subject, "DeepSeek-V3 active, with the table", f"{DEEPSEEK_V3.active / 1e9:.1f}")


def _require_told(subject: Subject, name: str, counted: float, told: str) -> None:
    """Require a number to be the one told when it is rounded to that many digits."""
    digits = len(told.partition(".")[2])
    note_figure(subject, name, f"{counted:.{digits + 2}f}")
    require(f"{counted:.{digits}f}" == told, f"{name}: {counted:.4f} was counted, {told} is told")
