"""The adapters of public packages: importable and right in their environment, named on their page.

Without the packages (``make peers`` installs them elsewhere) only what needs none of them runs.
"""

import ast
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import linear

from properties.execution import judge
from properties.lanes import LANES
from properties.loading import load
from properties.registry import find
from tests.peers.matrix import TABLES
from tests.peers.tensors import identity_weight, vjp

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "peers.md"
ADAPTERS = [adapter for peers in TABLES.values() for adapter in peers.values()]


def _classes(path):
    return {
        node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef)
    }


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_the_matrix_names_classes_that_exist_and_that_the_page_explains(adapter):
    module, name = adapter.removeprefix("tests.peers.").split(":")
    assert name in _classes(HERE / f"{module}.py")
    assert f"`{module}`" in PAGE.read_text(encoding="utf-8")


def test_every_adapter_file_is_in_the_matrix():
    files = {path.stem for path in HERE.glob("*_*.py") if not path.stem.startswith("test_")}
    shared = {"transformers_moe"}
    assert {re.split(r"[.:]", adapter)[2] for adapter in ADAPTERS} == files - shared


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("adapter", ADAPTERS)
def test_an_adapter_reaches_its_package(adapter):
    package = "nemo_automodel" if "nemo_automodel" in adapter else "transformers"
    pytest.importorskip(package, reason=f"{package} is installed by `make peers`, elsewhere")
    subject = load(adapter)
    for needed, wanted in {
        "situ_glu": "ACT-VALUE",
        "route": "RTR-SCORES",
        "experts": "DSP-DENSE",
        "rms_norm": "NRM-VALUE",
        "layer": "LAY-VALUE",
    }.items():
        verdict = judge(find(wanted), subject, LANES["quick"]).verdict
        assert verdict == ("passed" if needed in subject.offered else "not offered"), wanted


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    ("model", "class_name"),
    [
        ("kimi_linear", "KimiLinearTopkRouter"),
        ("kimi_linear", "KimiLinearExperts"),
        ("nemotron_h", "NemotronHTopkRouter"),
        ("glm4_moe", "Glm4MoeTopkRouter"),
        ("glm4_moe", "Glm4MoeExperts"),
    ],
)
def test_transformers_repeats_the_text_of_deepseek_v3(model, class_name):
    models = Path(pytest.importorskip("transformers").__file__).parent / "models"
    original = "DeepseekV3" + class_name[re.search("Topk|Experts", class_name).start() :]
    assert _text(models, model, class_name) == _text(models, "deepseek_v3", original)


def _text(models, model, class_name):
    """The class without its name, comments, docstrings, annotations and spelling of sizes."""
    tree = ast.parse((models / model / f"modeling_{model}.py").read_text(encoding="utf-8"))
    (node,) = (n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == class_name)
    node.name = "Name"
    for part in ast.walk(node):
        if isinstance(part, ast.arg):
            part.annotation = None
        if isinstance(part, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(part):
            part.body = part.body[1:]
    text = ast.unparse(node).replace(", dtype=torch.float32)", ")")
    return re.sub(r"num_local_experts|n_routed_experts", "number", text)


def test_an_identity_weight_passes_infinite_hidden_states():
    hidden = torch.tensor([[1.0, float("inf"), -3.0]])
    weight = identity_weight(3, torch.bfloat16).type(torch.float32)
    assert torch.equal(linear(hidden, weight), hidden)
    assert linear(hidden, torch.eye(3)).isnan().any()


def test_an_identity_weight_passes_gradients():
    def weighed(hidden):
        return linear(hidden.float(), identity_weight(2, torch.float32), None).square()

    (gradient,) = vjp(weighed, (np.array([[1.0, 2.0]]),), np.array([[3.0, 5.0]]))
    np.testing.assert_array_equal(gradient, [[6.0, 20.0]])
