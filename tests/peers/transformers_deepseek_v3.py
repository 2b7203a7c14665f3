"""DeepSeek-V3's router, experts and norm in transformers 5.23.0, as an implementation for the gate.

    latentmoe-gate run tests.peers.transformers_deepseek_v3:Float32

DeepSeek-V3 has no latent width and no SiTU: there is no ``layer`` and no ``situ_glu``. Its experts
run with SiTU in place of SwiGLU, through the hook that transformers has for that: what is judged is
the dispatch (sort, grouped matrix product, weights, way back), not the activation.
"""

from importlib.metadata import version

import torch
from torch.func import functional_call
from torch.nn.functional import pad
from transformers import DeepseekV3Config
from transformers.models.deepseek_v3 import modeling_deepseek_v3 as deepseek

from properties.protocol import Conventions, Precision, Routing
from tests.peers.tensors import call, to_array, to_tensor, vjp


class SituExperts(deepseek.DeepseekV3Experts):
    """DeepSeek-V3's experts with SiTU; the grouped and the batched path call ``_apply_gate``."""

    def __init__(self, config, beta_gate, beta_up):
        super().__init__(config)
        self.beta_gate, self.beta_up = beta_gate, beta_up

    def _apply_gate(self, gate_up_out):
        gate, up = gate_up_out.float().chunk(2, dim=-1)
        capped = self.beta_gate * torch.tanh(gate / self.beta_gate) * torch.sigmoid(gate)
        return (capped * self.beta_up * torch.tanh(up / self.beta_up)).to(gate_up_out.dtype)


class Float32:
    """Parameters and hidden states in float32; grouped_mm, the default path of a loaded model."""

    name = "transformers, DeepSeek-V3 router and experts"
    version = version("transformers")
    precision = Precision(compute="float32", accumulate="float32", storage="float32")
    # The single weight for top_k = 1 is s / (s + 1e-20), as in the defaults.
    conventions = Conventions(padding="unsupported")
    dtype = torch.float32
    experts_implementation = "grouped_mm"

    def rms_norm(self, x, weight, *, eps):
        norm = deepseek.DeepseekV3RMSNorm(x.shape[-1], eps=eps)
        return call(lambda x, weight: functional_call(norm, {"weight": weight}, x), x, weight)

    def router_logits(self, x, parameters):
        num_experts, width = parameters.gate_weight.shape
        router = self._router(num_experts, top_k=1, width=width)
        bias = parameters.e_score_correction_bias
        out = call(lambda *inputs: router(*inputs)[0], x, parameters.gate_weight, bias)
        return out.reshape(*x.shape[:-1], num_experts)  # the router flattens the tokens

    def route(self, logits, bias, *, top_k):
        return self.route_grouped(logits, bias, top_k=top_k, num_groups=1, top_groups=1)

    def route_grouped(self, logits, bias, *, top_k, num_groups, top_groups):
        router = self._router_of_logits(len(bias), top_k, num_groups, top_groups)
        with torch.no_grad():
            _, weights, expert_ids = router(to_tensor(logits), to_tensor(bias))
        return Routing(to_array(expert_ids), to_array(weights))

    def route_vjp(self, logits, bias, weights_cotangent, *, top_k):
        router = self._router_of_logits(len(bias), top_k)
        return vjp(lambda *inputs: router(*inputs)[1], (logits, bias), weights_cotangent)

    def experts(self, x, expert_ids, weights, parameters, *, beta_gate, beta_up):
        run = self._experts(parameters, expert_ids, beta_gate, beta_up)
        return call(run, x, weights, parameters)

    def experts_vjp(self, x, expert_ids, weights, parameters, cotangent, *, beta_gate, beta_up):
        run = self._experts(parameters, expert_ids, beta_gate, beta_up)
        return vjp(run, (x, weights, parameters), cotangent)

    def _router_of_logits(self, num_experts, top_k, num_groups=1, top_groups=1):
        # The router takes hidden states: here the logits, under an identity weight. That is exact
        # for finite logits, every other product being a zero; an infinite one makes its row NaN.
        router = self._router(num_experts, top_k, num_experts, num_groups, top_groups)
        identity = torch.eye(num_experts, dtype=self.dtype)
        return lambda logits, bias: router(logits.to(self.dtype), identity, bias)

    def _router(self, num_experts, top_k, width, num_groups=1, top_groups=1):
        config = DeepseekV3Config(
            hidden_size=width,
            n_routed_experts=num_experts,
            num_experts_per_tok=top_k,
            n_group=num_groups,
            topk_group=top_groups,
            routed_scaling_factor=1.0,  # 2.5 unless told otherwise
        )
        router = deepseek.DeepseekV3TopkRouter(config)
        return lambda hidden, weight, bias: functional_call(
            router, {"weight": weight, "e_score_correction_bias": bias}, hidden
        )

    def _experts(self, parameters, expert_ids, beta_gate, beta_up):
        num_experts, hidden, width = parameters.gate_proj.shape
        # grouped_mm refuses rows that are no multiple of 16 bytes. Zeros fill them up: they stay
        # zeros through SiTU, so the sums are the same.
        row = 16 // self.dtype.itemsize if self.experts_implementation == "grouped_mm" else 1
        more_hidden, more_width = -hidden % row, -width % row
        config = DeepseekV3Config(
            hidden_size=width + more_width,
            moe_intermediate_size=hidden + more_hidden,
            n_routed_experts=num_experts,
            experts_implementation=self.experts_implementation,
        )
        with torch.device("meta"):  # a parameter that nobody passes raises, instead of being noise
            experts = SituExperts(config, beta_gate, beta_up)
        ids = to_tensor(expert_ids).long()

        def run(x, weights, parameters):
            inward = (0, more_width, 0, more_hidden)
            gate_up = (pad(parameters.gate_proj, inward), pad(parameters.up_proj, inward))
            state = {
                "gate_up_proj": torch.cat(gate_up, dim=1),
                "down_proj": pad(parameters.down_proj, (0, more_hidden, 0, more_width)),
            }
            out = functional_call(experts, state, (pad(x, (0, more_width)), ids, weights))
            return out[:, :width]

        return run


class Float32Batched(Float32):
    """The same with batched_mm, which gathers each token's expert matrices."""

    experts_implementation = "batched_mm"


class BFloat16(Float32):
    """Parameters and hidden states in bfloat16; the router computes in float32."""

    precision = Precision(compute="float32", accumulate="float32", storage="bfloat16")
    dtype = torch.bfloat16
