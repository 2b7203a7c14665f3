"""A kernel that a compiler made: fused and vectorised, with roundings of its own.

Without a C++ compiler and Python's headers the graphs are captured and differentiated as ever, and
run operation by operation.
"""

from __future__ import annotations

import math
import shutil
import sysconfig
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

import impl_torch
from impl_torch.adapter import Float32

_HEADER = Path(sysconfig.get_path("include")) / "Python.h"
BACKEND = "inductor" if shutil.which("g++") and _HEADER.exists() else "aot_eager"


def _activation(gate: Tensor, up: Tensor, beta_gate: Tensor, beta_up: Tensor) -> Tensor:
    capped = beta_gate * torch.tanh(gate / beta_gate), beta_up * torch.tanh(up / beta_up)
    return capped[0] * torch.sigmoid(gate) * capped[1]


@cache
def compiled(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Not at import, since the compiler takes seconds to import itself."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of parts of torch that its compiler still uses
        return torch.compile(function, dynamic=True, backend=BACKEND)


class Compiled(Float32):
    """Arrays are laid out in one way and padded, and caps are tensors: then two graphs do."""

    freedom = "operations that a compiler fused"
    topics = ("activation",)

    def situ_glu_forward(
        self, gate: Tensor, up: Tensor, *, beta_gate: float, beta_up: float
    ) -> Tensor:
        if gate.shape != up.shape or not all(0 < beta < math.inf for beta in (beta_gate, beta_up)):
            return impl_torch.situ_glu(gate, up, beta_gate=beta_gate, beta_up=beta_up)  # refuses
        caps = (torch.tensor(beta, dtype=torch.float64) for beta in (beta_gate, beta_up))
        padded = (torch.cat([z.reshape(-1), z.new_zeros(16)]) for z in (gate, up))
        return compiled(_activation)(*padded, *caps)[:-16].reshape(gate.shape)
