"""NeMo AutoModel's Kimi K3 layer (nemo-automodel 0.7.0) as an implementation for the gate.

    latentmoe-gate run tests.peers.nemo_automodel_k3:Float32

Every method hands its arguments to the package's own module and adds no arithmetic. Not offered:
``quantile_update`` and ``balancer`` (the package has DeepSeek-V3's sign update, no quantiles) and
``router_logits`` (the gate computes them inside its forward and returns only weights and ids).
"""

from importlib.metadata import version

import torch
from nemo_automodel.components.models.common import BackendConfig
from nemo_automodel.components.models.kimi_k3 import model as k3
from nemo_automodel.components.models.kimi_k3.config import KimiK3TextConfig
from torch.func import functional_call

from properties.protocol import Conventions, LayerConfig, Precision, Routing
from tests.peers.tensors import call, identity_weight, to_array, to_tensor, vjp

# Plain PyTorch everywhere: where a GPU is found, the defaults are other kernels.
BACKEND = BackendConfig(
    attn="sdpa", linear="torch", rms_norm="torch", dispatcher="torch", experts="torch"
)


class Float32:
    """Parameters and hidden states in float32."""

    name = "NeMo AutoModel, Kimi K3 layer"
    version = version("nemo-automodel")
    precision = Precision(compute="float32", accumulate="float32", storage="float32")
    # top1_renormalised: the gate divides by the sum of the weights only where top_k > 1.
    conventions = Conventions(top1_renormalised=False, padding="unsupported")
    dtype = torch.float32

    def situ_glu(self, gate, up, *, beta_gate, beta_up):
        return call(_situ_glu(beta_gate, beta_up), gate, up)

    def situ_glu_vjp(self, gate, up, cotangent, *, beta_gate, beta_up):
        return vjp(_situ_glu(beta_gate, beta_up), (gate, up), cotangent)

    def rms_norm(self, x, weight, *, eps):
        norm = k3.KimiRMSNorm(x.shape[-1], eps=eps)
        return call(lambda x, weight: functional_call(norm, {"weight": weight}, x), x, weight)

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

    def layer(self, x, parameters, *, config, training=False):
        return call(self._layer(parameters, config, training), x, parameters)

    def layer_vjp(self, x, parameters, cotangent, *, config):
        return vjp(self._layer(parameters, config, training=True), (x, parameters), cotangent)

    def _gate(self, num_experts, top_k, num_groups=1, top_groups=1):
        text = KimiK3TextConfig(
            head_dim=2,  # of the attention, which is not built; the configuration wants it even
            hidden_size=num_experts,
            num_experts=num_experts,
            num_experts_per_token=top_k,
            num_expert_group=num_groups,
            topk_group=top_groups,
        )
        gate = k3.KimiK3Gate(k3._build_moe_config(text, self.dtype, None))
        identity = identity_weight(num_experts, self.dtype)

        def route(logits, bias):
            state = {"weight": identity, "e_score_correction_bias": bias}
            weights, ids, _ = functional_call(gate, state, (logits.to(self.dtype), None))
            return weights, ids

        return route

    def _experts(self, parameters, expert_ids, beta_gate, beta_up):
        config = LayerConfig(expert_ids.shape[1], beta_gate=beta_gate, beta_up=beta_up)
        experts = self._module(parameters, config, width=parameters.gate_proj.shape[2]).experts
        ids = to_tensor(expert_ids).long()
        valid = torch.ones(len(ids), dtype=torch.bool)
        return lambda x, weights, parameters: functional_call(
            experts, _experts_state(parameters), (x, valid, weights, ids)
        )

    def _layer(self, parameters, config, training):
        shared, shared_hidden, width = parameters.shared_experts.gate_proj.shape
        module = self._module(parameters.experts, config, width, shared * shared_hidden)
        module.train(
            training
        )  # chooses the dispatch: sorted rows in evaluation, a loop in training
        return lambda x, parameters: functional_call(module, _layer_state(parameters), x)

    def _module(self, experts, config, width, shared_hidden=0):
        """The package's layer, without values: they come with each call."""
        num_experts, hidden, latent = experts.gate_proj.shape
        text = KimiK3TextConfig(
            head_dim=2,
            hidden_size=width,
            routed_expert_hidden_size=latent,
            moe_intermediate_size=hidden,
            num_experts=num_experts,
            num_shared_experts=0,
            num_experts_per_token=config.top_k,
            routed_scaling_factor=config.routed_scale,
            rms_norm_eps=config.norm_eps,
            activation_situ_beta=config.beta_gate,
            activation_situ_linear_beta=config.beta_up,
        )
        with torch.device("meta"):  # a parameter that nobody passes raises, instead of being noise
            module = k3.KimiK3MoE(text, k3._build_moe_config(text, self.dtype, None), BACKEND)
            if shared_hidden:  # the configuration ties this width to the routed experts'
                module.shared_experts = k3.KimiK3MLP(text, width, shared_hidden, self.dtype)
        return module


class BFloat16(Float32):
    """Parameters and hidden states in bfloat16; router and nonlinearities remain in float32."""

    precision = Precision(compute="float32", accumulate="float32", storage="bfloat16")
    dtype = torch.bfloat16


def _situ_glu(beta_gate, beta_up):
    module = k3.SituAndMul(beta_gate, beta_up)
    return lambda gate, up: module(torch.cat((gate, up), dim=-1))  # gate first


def _experts_state(experts):
    gate_and_up = torch.cat((experts.gate_proj, experts.up_proj), dim=1)
    return {  # multiplied from the right: transposed against the protocol's (N, H, L) and (N, L, H)
        "gate_and_up_projs": gate_and_up.transpose(1, 2).contiguous(),
        "down_projs": experts.down_proj.transpose(1, 2).contiguous(),
    }


def _layer_state(p):
    state = {
        "gate.weight": p.gate_weight,
        "gate.e_score_correction_bias": p.e_score_correction_bias,
        "routed_expert_down_proj.weight": p.routed_expert_down_proj,
        "routed_expert_norm.weight": p.routed_expert_norm,
        "routed_expert_up_proj.weight": p.routed_expert_up_proj,
    }
    state |= {f"experts.{name}": value for name, value in _experts_state(p.experts).items()}
    if len(p.shared_experts.gate_proj):  # S shared experts of width H are one of width S * H
        state |= {
            "shared_experts.gate_proj.weight": p.shared_experts.gate_proj.flatten(0, 1),
            "shared_experts.up_proj.weight": p.shared_experts.up_proj.flatten(0, 1),
            "shared_experts.down_proj.weight": torch.cat(tuple(p.shared_experts.down_proj), dim=1),
        }
    return state
