"""What the adapters of transformers' mixture-of-experts models share.

transformers writes router, experts and norm out in each model's file. An adapter names the file and
the classes' prefix; the rest is here. Dispatch is selected by ``experts_implementation``: "eager"
is the loop in the model's own file, "grouped_mm" and "batched_mm" are the library's.
"""

from importlib.metadata import version
from types import ModuleType
from typing import Any

import torch
from torch.func import functional_call
from torch.nn.functional import pad

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

FLOAT32 = Precision(compute="float32", accumulate="float32", storage="float32")
BFLOAT16 = Precision(compute="float32", accumulate="float32", storage="bfloat16")


class TransformersModel:
    """A model's file and how its classes begin."""

    version = version("transformers")
    precision = FLOAT32
    # The single weight for top_k = 1 is s / (s + 1e-20), as in the defaults.
    conventions = Conventions(padding="unsupported")
    dtype = torch.float32
    modeling: ModuleType
    prefix: str

    def model_class(self, suffix: str) -> Any:
        """The class of the model's file whose name is the prefix and this suffix."""
        return getattr(self.modeling, self.prefix + suffix)


class TransformersNorm(TransformersModel):
    """RMSNorm of the model's file."""

    def rms_norm(self, x, weight, *, eps):
        norm = self.model_class("RMSNorm")(x.shape[-1], eps=eps)
        return call(lambda x, weight: functional_call(norm, {"weight": weight}, x), x, weight)


class TransformersRouter(TransformersNorm):
    """A sigmoid router with a selection bias; adapters say how the configuration spells it."""

    router_suffix = "TopkRouter"

    def router_config(self, *, num_experts: int, top_k: int, width: int) -> Any:
        """The model's configuration, its scale of the weights switched off."""
        raise NotImplementedError

    def call_router(self, router, hidden, weight, bias):
        """(logits, weights, ids) of the module under the given parameters."""
        return functional_call(router, {"weight": weight, "e_score_correction_bias": bias}, hidden)

    def router_logits(self, x, parameters):
        num_experts, width = parameters.gate_weight.shape
        config = self.router_config(num_experts=num_experts, top_k=1, width=width)
        router = self.model_class(self.router_suffix)(config)
        out = call(
            lambda *inputs: self.call_router(router, *inputs)[0],
            x,
            parameters.gate_weight,
            parameters.e_score_correction_bias,
        )
        return out.reshape(*x.shape[:-1], num_experts)  # the router flattens the tokens

    def route(self, logits, bias, *, top_k):
        return self._route(self._router_of_logits(len(bias), top_k), logits, bias)

    def route_vjp(self, logits, bias, weights_cotangent, *, top_k):
        router = self._router_of_logits(len(bias), top_k)
        return vjp(lambda *inputs: router(*inputs)[1], (logits, bias), weights_cotangent)

    def _route(self, router, logits, bias):
        with torch.no_grad():
            _, weights, expert_ids = router(to_tensor(logits), to_tensor(bias))
        return Routing(to_array(expert_ids), to_array(weights))

    def _router_of_logits(self, num_experts, top_k, **groups):
        config = self.router_config(
            num_experts=num_experts, top_k=top_k, width=num_experts, **groups
        )
        router = self.model_class(self.router_suffix)(config)
        identity = identity_weight(num_experts, self.dtype)
        return lambda logits, bias: self.call_router(router, logits.to(self.dtype), identity, bias)


class TransformersGroupedRouter(TransformersRouter):
    """A router that can limit itself to groups of experts."""

    def route_grouped(self, logits, bias, *, top_k, num_groups, top_groups):
        router = self._router_of_logits(
            len(bias), top_k, num_groups=num_groups, top_groups=top_groups
        )
        return self._route(router, logits, bias)


class TransformersExperts(TransformersModel):
    """Experts, with SiTU where the model has another activation: the dispatch is what is judged."""

    experts_implementation = "grouped_mm"

    def experts_config(self, *, num_experts: int, hidden: int, width: int) -> Any:
        """The model's configuration with this class's ``experts_implementation``."""
        raise NotImplementedError

    def situ_experts(self, config, beta_gate, beta_up):
        """The module, computing SiTU."""
        experts = self.model_class("Experts")(config)
        experts.act_fn = SituTimes(beta_gate, beta_up)
        return experts

    def first_matrix(self, parameters):
        """The name and the rows (N, 2H, L) of what the module multiplies x with."""
        return "gate_up_proj", torch.cat((parameters.gate_proj, parameters.up_proj), dim=1)

    def experts(self, x, expert_ids, weights, parameters, *, beta_gate, beta_up):
        run = self._experts(parameters, expert_ids, beta_gate, beta_up)
        return call(run, x, weights, parameters)

    def experts_vjp(self, x, expert_ids, weights, parameters, cotangent, *, beta_gate, beta_up):
        run = self._experts(parameters, expert_ids, beta_gate, beta_up)
        return vjp(run, (x, weights, parameters), cotangent)

    def _experts(self, parameters, expert_ids, beta_gate, beta_up):
        num_experts, hidden, width = parameters.gate_proj.shape
        grouped = self.experts_implementation == "grouped_mm"
        more_hidden = missing_to_16_bytes(hidden, self.dtype) if grouped else 0
        more_width = missing_to_16_bytes(width, self.dtype) if grouped else 0
        config = self.experts_config(
            num_experts=num_experts, hidden=hidden + more_hidden, width=width + more_width
        )
        with torch.device("meta"):  # a parameter that nobody passes raises, instead of being noise
            experts = self.situ_experts(config, beta_gate, beta_up)
        ids = to_tensor(expert_ids).long()

        def run(x, weights, parameters):
            padded = pad_experts(parameters, more_hidden, more_width)
            name, matrix = self.first_matrix(padded)
            state = {name: matrix, "down_proj": padded.down_proj}
            out = functional_call(experts, state, (pad(x, (0, more_width)), ids, weights))
            return out[:, :width]

        return run


class SituTimes(torch.nn.Module):
    """Stands in for SiLU where the model's code says ``act_fn(gate) * up``: the product is SiTU."""

    def __init__(self, beta_gate, beta_up):
        super().__init__()
        self.beta_gate, self.beta_up = beta_gate, beta_up

    def forward(self, gate):
        return _Factor(gate, self)


class _Factor:
    def __init__(self, gate, situ):
        self.gate, self.situ = gate, situ

    def __mul__(self, up):
        return situ(self.gate, up, self.situ.beta_gate, self.situ.beta_up)


def situ(gate, up, beta_gate, beta_up):
    """SiTU in float32, rounded once."""
    gate, dtype, up = gate.float(), up.dtype, up.float()
    capped = beta_gate * torch.tanh(gate / beta_gate) * torch.sigmoid(gate)
    return (capped * beta_up * torch.tanh(up / beta_up)).to(dtype)
