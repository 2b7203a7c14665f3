"""NeMo AutoModel's generic mixture of experts (nemo-automodel 0.7.0) under three models' settings.

    latentmoe-gate run tests.peers.nemo_automodel_moe:DeepseekV3Float32

One ``Gate`` and one ``GroupedExperts`` serve most of the package's models; settings make the
difference. They are taken from the package's own construction of each model, sizes replaced. The
experts run with the package's weighted SiTU in place of the model's activation, through the
attribute that its Kimi K3 layer sets. The layer has no norm between experts and W_up: no ``layer``.
"""

from dataclasses import replace
from functools import cache, partial
from importlib.metadata import version

import torch
from nemo_automodel.components.models.common import BackendConfig
from nemo_automodel.components.models.deepseek_v3.model import DeepseekV3Model
from nemo_automodel.components.models.kimi_k3 import model as k3
from nemo_automodel.components.models.kimi_linear import model as kimi_linear
from nemo_automodel.components.models.kimi_linear.config import KimiLinear48BConfig
from nemo_automodel.components.models.nemotron_v3.model import NemotronV3Model
from nemo_automodel.components.moe.layers import MoE
from torch.func import functional_call
from torch.nn.functional import pad
from transformers import DeepseekV3Config, NemotronHConfig

from properties.protocol import Conventions, Precision, Routing
from tests.peers.tensors import (
    call,
    identity_weight,
    missing_to_16_bytes,
    pad_experts,
    to_array,
    to_tensor,
    vjp,
)


class Settings:
    """Router and experts under the settings that ``moe_config`` returns."""

    version = version("nemo-automodel")
    precision = Precision(compute="float32", accumulate="float32", storage="float32")
    # top1_renormalised: the gate divides by the sum of the weights only where top_k > 1.
    conventions = Conventions(top1_renormalised=False, padding="unsupported")
    dtype = torch.float32
    gate_precision: torch.dtype | None = torch.float32  # what the models' constructors set
    experts_backend = "torch"

    def route(self, logits, bias, *, top_k):
        return self.route_grouped(logits, bias, top_k=top_k, num_groups=1, top_groups=1)

    def route_grouped(self, logits, bias, *, top_k, num_groups, top_groups):
        gate = self._gate(len(bias), top_k, num_groups, top_groups)
        with torch.no_grad():
            weights, expert_ids = gate(to_tensor(logits), to_tensor(bias))
        return Routing(to_array(expert_ids), to_array(weights))

    def route_vjp(self, logits, bias, weights_cotangent, *, top_k):
        gate = self._gate(len(bias), top_k)
        return vjp(lambda *inputs: gate(*inputs)[0], (logits, bias), weights_cotangent)

    def experts(self, x, expert_ids, weights, parameters, *, beta_gate, beta_up):
        run = self._experts(parameters, expert_ids, beta_gate, beta_up)
        return call(run, x, weights, parameters)

    def experts_vjp(self, x, expert_ids, weights, parameters, cotangent, *, beta_gate, beta_up):
        run = self._experts(parameters, expert_ids, beta_gate, beta_up)
        return vjp(run, (x, weights, parameters), cotangent)

    def _gate(self, num_experts, top_k, num_groups=1, top_groups=1):
        gate = self._module(
            dim=num_experts,
            n_routed_experts=num_experts,
            n_activated_experts=top_k,
            n_expert_groups=num_groups,
            n_limited_groups=top_groups,
        ).gate
        identity = identity_weight(num_experts, self.dtype)

        def route(logits, bias):
            state = {"weight": identity, "e_score_correction_bias": bias}
            valid = torch.ones(len(logits), dtype=torch.bool)
            weights, ids, _ = functional_call(gate, state, (logits.to(self.dtype), valid, None))
            return weights, ids

        return route

    def _experts(self, parameters, expert_ids, beta_gate, beta_up):
        num_experts, hidden, width = parameters.gate_proj.shape
        grouped = self.experts_backend == "torch_mm"
        more_hidden = missing_to_16_bytes(hidden, self.dtype) if grouped else 0
        more_width = missing_to_16_bytes(width, self.dtype) if grouped else 0
        experts = self._module(
            dim=width + more_width,
            moe_inter_dim=hidden + more_hidden,
            n_routed_experts=num_experts,
        ).experts
        experts.expert_activation_grouped = partial(
            k3._weighted_situ, beta=beta_gate, linear_beta=beta_up
        )
        ids = (
            to_tensor(expert_ids).long().contiguous()
        )  # as a gate's are; the grouped path wants it
        valid = torch.ones(len(ids), dtype=torch.bool)

        def run(x, weights, parameters):
            padded = pad_experts(parameters, more_hidden, more_width)
            gate_and_up = torch.cat((padded.gate_proj, padded.up_proj), dim=1)
            state = {  # multiplied from the right: transposed against (N, H, L) and (N, L, H)
                "gate_and_up_projs": gate_and_up.transpose(1, 2).contiguous(),
                "down_projs": padded.down_proj.transpose(1, 2).contiguous(),
            }
            out = functional_call(
                experts, state, (pad(x, (0, more_width)), valid, weights.contiguous(), ids)
            )
            return out[:, :width]

        return run

    def _module(self, **sizes):
        settings = replace(
            self.moe_config(),
            **{"moe_inter_dim": 2, "n_shared_experts": 0, **sizes},
            dtype=self.dtype,
            route_scale=1.0,
        )
        with torch.device("meta"):  # a parameter that nobody passes raises, instead of being noise
            return MoE(settings, _backend(self.experts_backend, self.gate_precision)).eval()


class DeepseekV3Float32(Settings):
    """DeepSeek-V3's settings: the weight multiplies the activation, before the down projection."""

    name = "NeMo AutoModel, DeepSeek-V3 router and experts"

    def moe_config(self):
        return _deepseek_v3_settings()


class DeepseekV3Float32Grouped(DeepseekV3Float32):
    """The same with torch._grouped_mm instead of a loop over experts."""

    experts_backend = "torch_mm"


class DeepseekV3BFloat16(DeepseekV3Float32):
    """Parameters and hidden states in bfloat16; scores and weights in float32."""

    precision = Precision(compute="float32", accumulate="float32", storage="bfloat16")
    dtype = torch.bfloat16


class NemotronV3Float32(DeepseekV3Float32):
    """Nemotron-3's settings: as DeepSeek-V3's, but weights in the hidden states' dtype."""

    name = "NeMo AutoModel, Nemotron-3 router and experts"
    gate_precision = None  # this model's constructor leaves it: logits in the hidden states' dtype

    def moe_config(self):
        return _nemotron_v3_settings()


class NemotronV3BFloat16(NemotronV3Float32):
    """Parameters, hidden states and weights in bfloat16; scores in float32."""

    precision = Precision(compute="float32", accumulate="float32", storage="bfloat16")
    dtype = torch.bfloat16


class KimiLinearFloat32(Settings):
    """Kimi Linear's settings: the bias enters the weights, as in that checkpoint's own code."""

    name = "NeMo AutoModel, Kimi Linear router and experts"

    def moe_config(self):
        return kimi_linear._build_moe_config(KimiLinear48BConfig(), self.dtype, None)


class KimiLinearBFloat16(KimiLinearFloat32):
    """Parameters and hidden states in bfloat16; scores and weights in float32."""

    precision = Precision(compute="float32", accumulate="float32", storage="bfloat16")
    dtype = torch.bfloat16


@cache
def _backend(experts="torch", gate_precision=None):
    # Plain PyTorch everywhere: where a GPU is found, the defaults are other kernels.
    return BackendConfig(
        attn="sdpa",
        linear="torch",
        rms_norm="torch",
        dispatcher="torch",
        experts=experts,
        gate_precision=gate_precision,
    )


@cache
def _deepseek_v3_settings():
    config = DeepseekV3Config(num_hidden_layers=1, vocab_size=8)
    with torch.device("meta"):
        return DeepseekV3Model(config, _backend()).moe_config


@cache
def _nemotron_v3_settings():
    config = NemotronHConfig(layers_block_type=["moe"], vocab_size=16)
    with torch.device("meta"):
        return NemotronV3Model(config, _backend()).moe_config
