"""NeMo AutoModel's gradients written by hand (nemo-automodel 0.7.0), which large batches take.

    latentmoe-gate run tests.peers.nemo_automodel_chunked:KimiK3Float32

From 12,289 rows on, weighted SiTU and the combine weights leave autograd for functions that work in
chunks of 32,768 and 8,192 rows and save less memory. Here they work from the first row on, three
rows at a time: nothing but these numbers is changed.
"""

from contextlib import contextmanager
from importlib.metadata import version
from unittest.mock import patch

import torch
from nemo_automodel.components.models.kimi_k3 import model as k3
from nemo_automodel.components.models.kimi_k3 import situ
from nemo_automodel.components.models.kimi_k3.config import KimiK3TextConfig
from nemo_automodel.components.moe import optimized_ops

from properties.protocol import Conventions, Precision
from tests.peers import nemo_automodel_moe
from tests.peers.tensors import call, vjp


class _Chunked:
    """Activation and experts; ``dispatch`` is the adapter whose experts run in chunks."""

    version = version("nemo-automodel")
    precision = Precision(compute="float32", accumulate="float32", storage="float32")
    conventions = Conventions(padding="unsupported")
    dispatch: nemo_automodel_moe.Settings

    def situ_glu(self, gate, up, *, beta_gate, beta_up):
        with _chunks():
            return call(_situ_glu(beta_gate, beta_up), gate, up)

    def situ_glu_vjp(self, gate, up, cotangent, *, beta_gate, beta_up):
        with _chunks():
            return vjp(_situ_glu(beta_gate, beta_up), (gate, up), cotangent)

    def experts(self, x, expert_ids, weights, parameters, *, beta_gate, beta_up):
        betas = {"beta_gate": beta_gate, "beta_up": beta_up}
        with _chunks():
            return self.dispatch.experts(x, expert_ids, weights, parameters, **betas)

    def experts_vjp(self, x, expert_ids, weights, parameters, cotangent, *, beta_gate, beta_up):
        betas = {"beta_gate": beta_gate, "beta_up": beta_up}
        with _chunks():
            return self.dispatch.experts_vjp(x, expert_ids, weights, parameters, cotangent, **betas)


class _KimiK3Dispatch(nemo_automodel_moe.Settings):
    """Kimi K3's experts under torch._grouped_mm: the weight multiplies what comes out of them."""

    name = "NeMo AutoModel, Kimi K3 experts"
    experts_backend = "torch_mm"

    def moe_config(self):
        return k3._build_moe_config(KimiK3TextConfig(head_dim=2), self.dtype, None)


class _KimiK3DispatchBFloat16(_KimiK3Dispatch):
    dtype = torch.bfloat16


class KimiK3Float32(_Chunked):
    """Parameters and hidden states in float32."""

    name = "NeMo AutoModel, Kimi K3 activation and experts in chunks"
    dispatch = _KimiK3Dispatch()


class KimiK3BFloat16(_Chunked):
    """Parameters and hidden states in bfloat16."""

    name = "NeMo AutoModel, Kimi K3 activation and experts in chunks"
    precision = Precision(compute="float32", accumulate="float32", storage="bfloat16")
    dispatch = _KimiK3DispatchBFloat16()


class DeepseekV3Float32(_Chunked):
    """DeepSeek-V3's dispatch in a loop: the weight goes through the chunked SiTU, gradient too."""

    name = "NeMo AutoModel, DeepSeek-V3 experts in chunks"
    dispatch = nemo_automodel_moe.DeepseekV3Float32()


@contextmanager
def _chunks():
    with (
        patch.multiple(situ, _SITU_CHUNK_THRESHOLD=0, _SITU_CHUNK_ROWS=3),
        patch.multiple(optimized_ops, _RW_CHUNK_THRESHOLD=0, _RW_CHUNK_ROWS=3),
    ):
        yield


def _situ_glu(beta_gate, beta_up):
    """Weighted SiTU at a weight of 1, an element a row."""

    def run(gate, up):
        gate_and_up = torch.stack((gate.reshape(-1), up.reshape(-1)), dim=1)
        weights = torch.ones(len(gate_and_up), 1)
        out = k3._weighted_situ(gate_and_up, weights, beta=beta_gate, linear_beta=beta_up)
        return out.reshape(gate.shape)

    return run
