"""What a wrong reference or a wrong adapter is told."""

from __future__ import annotations

import pytest

from properties.errors import AdapterError
from properties.loading import load, subject_of
from tests.gate import adapters


@pytest.mark.parametrize(
    ("reference", "told"),
    [
        ("nocolon", "not of the form package.module:Name"),
        (":Name", "not of the form"),
        ("./mine.py:Name", "as in my_adapter:Mine"),
        ("no_such_module_here:Name", "there is no module 'no_such_module_here'"),
        ("tests.gate.no_such:Name", "there is no module 'tests.gate.no_such'"),
        ("tests.gate.adapters:Missing", "has no 'Missing'; it defines"),
        ("tests.gate.adapters:ConstructorRaises", "raised RuntimeError: no device"),
        ("tests.gate.adapters:NoVersion", "has no version"),
        ("tests.gate.adapters:not_a_class", "has no name"),
        ("tests.gate.adapters:UnknownFormat", "'float31' is not a number format"),
        ("tests.gate.adapters:UnknownConvention", "expert_rank is 'median'; it must be one of"),
        ("tests.gate.adapters:OffersNothing", "offers none of the protocol's methods"),
        ("tests.gate.adapters:WrongSignature", "it must take (x, weight, *, eps)"),
    ],
)
def test_wrong_references_are_refused(reference: str, told: str) -> None:
    with pytest.raises(AdapterError) as caught:
        load(reference)
    assert told in str(caught.value)


def test_a_missing_dependency_of_the_adapter_is_named(
    tmp_path: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "needs_absent.py").write_text("import absent_package_of_theirs\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(AdapterError, match="needs 'absent_package_of_theirs'"):
        load("needs_absent:Anything")


def test_offered_methods_are_found() -> None:
    subject = subject_of(adapters.Minimal())
    assert subject.offered == {"rms_norm"}


def test_balancer_extras_are_found() -> None:
    offered = load("properties.reference:Reference").offered
    assert {"balancer", "balancer.state_dict", "balancer.load_state_dict"} <= offered
    assert "balancer.reduced_histogram" not in offered


def test_an_object_that_is_ready_is_not_called() -> None:
    class Module(adapters.Minimal):
        def __call__(self, x: object) -> object:
            return x

    adapters.ready = Module()  # type: ignore[attr-defined]
    try:
        assert load("tests.gate.adapters:ready").implementation is adapters.ready  # type: ignore[attr-defined]
    finally:
        del adapters.ready  # type: ignore[attr-defined]
