"""What a report says once, and how it can be seen again."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import numpy as np

from properties.causes import groups
from properties.execution import Outcome, judge
from properties.lanes import LANES
from properties.loading import subject_of
from properties.protocol import Array
from properties.registry import find
from properties.report import describe, failure_text, reproduce
from tests.hostile.adapters import Norm

NORMS = ("NRM-VALUE", "NRM-SCALE", "NRM-LARGE")


def judged(adapter: Any, *ids: str, save: Path | None = None) -> list[Outcome]:
    subject = subject_of(adapter)
    return [judge(find(name), subject, LANES["quick"], save=save) for name in ids]


class Raises(Norm):
    """The message holds the size of the input."""

    def after(self, x: Array, out: Array) -> Any:
        raise TypeError(f"cannot take {x.size} elements of shape {x.shape}")


class Shorter(Norm):
    def after(self, x: Array, out: Array) -> Any:
        return out[..., :-1]


class Off(Norm):
    def after(self, x: Array, out: Array) -> Any:
        return out + 1.0


def test_one_cause_is_one_group_whatever_the_sizes() -> None:
    for adapter in (Raises, Shorter):
        outcomes = judged(adapter(), *NORMS)
        assert list(groups(outcomes).values()) == [list(NORMS)]
        text = failure_text(outcomes[0], describe(subject_of(adapter()), "quick", None), NORMS[1:])
        assert "the same in 2 more, which are not printed:\n    NRM-SCALE, NRM-LARGE" in text


def test_values_that_contradict_each_statement_are_no_group() -> None:
    outcomes = judged(Off(), *NORMS)
    assert {outcome.verdict for outcome in outcomes} == {"failed"}
    assert groups(outcomes) == {}


def test_the_command_that_repeats_names_all_that_differs() -> None:
    about = describe(subject_of(Norm(), "my adapter:A"), "nightly", 7, 2, 5.0)
    command = reproduce("NRM-VALUE", about)
    seen = [
        "--only",
        "NRM-VALUE",
        "--lane",
        "nightly",
        "--ranks",
        "2",
        "--seed",
        "7",
        "--call-seconds",
        "5",
    ]
    assert shlex.split(command)[2:] == ["my adapter:A", *seen]
    plain = describe(subject_of(Norm(), "a:A"), "gate", None)
    assert reproduce("NRM-VALUE", plain) == "latentmoe-gate run a:A --only NRM-VALUE"


class WrongFarOut(Norm):
    """Wrong in one element of large inputs."""

    def after(self, x: Array, out: Array) -> Any:
        out = out.copy()
        if out.size > 600:
            out.reshape(-1)[601] += 1.0
        return out


def test_large_arrays_are_told_by_their_worst_element_and_kept_on_demand(tmp_path: Path) -> None:
    def large(subject: Any) -> None:
        from properties.checks import within
        from properties.rounding import Ball

        x, weight = np.ones((4, 200)), np.ones(200)
        out = subject.rms_norm(x, weight, eps=1e-5)
        exact = np.full_like(x, 1 / np.sqrt(1 + 1e-5))
        within(subject, out, Ball(exact, 1e-9 * exact, subject.arithmetic), "rms_norm")

    entry = find("NRM-VALUE")
    pinned = entry.__class__(**{**vars(entry), "function": large, "drawn": {}})
    subject = subject_of(WrongFarOut())
    about = describe(subject, "quick", None)
    outcome = judge(pinned, subject, LANES["quick"])
    text = failure_text(outcome, about)
    assert "rms_norm[3, 1] is 1.99" in text
    assert "expected 0.99" in text
    assert "<array of shape (4, 200), dtype np.float64>" in text
    assert "with --save FOLDER" in text

    outcome = judge(pinned, subject, LANES["quick"], save=tmp_path)
    assert f"np.load('{tmp_path}/NRM-VALUE.npz')" in failure_text(outcome, about)
    with np.load(tmp_path / "NRM-VALUE.npz") as saved:
        assert saved["0.rms_norm.x"].shape == (4, 200)
        assert saved["0.rms_norm.returned"][3, 1] > 1.9
