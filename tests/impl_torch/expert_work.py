"""What each rank does in ``test_expert_parallel.py``.

Legend: M tokens, N routed experts, K top_k, D model width, L latent width, H expert hidden width.
"""

from __future__ import annotations

import copy
import pickle
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.checkpoint import checkpoint

from impl_torch import ExpertParallel, LatentMoE
from impl_torch.adapter import StableLatentMoE
from properties.protocol import ExpertParameters, LayerConfig, LayerParameters

D, L, H, S = 6, 5, 4, 2
BETAS = {"beta_gate": 4.0, "beta_up": 25.0}


@dataclass(frozen=True)
class Case:
    """One problem over the whole world: ``tokens`` of each set of ranks with the same tokens."""

    num_experts: int
    top_k: int
    tokens: tuple[int, ...]
    tensor_parallel: int = 1
    expert_parallel: int | None = None

    def tokens_of(self, rank: int) -> slice:
        """Where this rank's tokens are among all of them."""
        source = rank // self.tensor_parallel
        start = sum(self.tokens[:source])
        return slice(start, start + self.tokens[source])


@dataclass(frozen=True)
class Data:
    """The whole problem, in the formats of an implementation."""

    latent: Any
    ids: Any
    weights: Any
    latent_cotangent: Any
    hidden: Any
    hidden_cotangent: Any
    parameters: LayerParameters

    @classmethod
    def of(cls, case: Case, implementation: StableLatentMoE) -> Data:
        rng = np.random.default_rng(sum(case.tokens) + 10 * case.num_experts)
        storage = np.dtype(implementation.precision.storage)
        routing = np.dtype(implementation.precision.routing_format)

        def normal(*shape: int, dtype: Any = storage) -> Any:
            return rng.standard_normal(shape).astype(storage).astype(dtype)

        def stacks(number: int, hidden: int, width: int) -> ExpertParameters:
            shapes = ((number, hidden, width), (number, hidden, width), (number, width, hidden))
            return ExpertParameters(*(normal(*shape) for shape in shapes))

        m, n, k = sum(case.tokens), case.num_experts, case.top_k
        return cls(
            latent=normal(m, L),
            ids=rng.random((m, n)).argsort(axis=1)[:, :k],
            weights=np.abs(normal(m, k, dtype=routing)),
            latent_cotangent=normal(m, L),
            hidden=normal(m, D),
            hidden_cotangent=normal(m, D),
            parameters=LayerParameters(
                gate_weight=normal(n, D),
                e_score_correction_bias=normal(n, dtype=routing) / 8,
                routed_expert_down_proj=normal(L, D),
                experts=stacks(n, H, L),
                routed_expert_norm=normal(L),
                routed_expert_up_proj=normal(D, L),
                shared_experts=stacks(S, H, D),
            ),
        )


def run_adapter(
    implementation: StableLatentMoE, case: Case, own: slice = slice(None)
) -> dict[str, Any]:
    """The four collective methods for some of the tokens; gradients of parameters as a list."""
    data = Data.of(case, implementation)
    config = LayerConfig(top_k=case.top_k, routed_scale=2.5)
    call = data.latent[own], data.ids[own], data.weights[own], data.parameters.experts
    d_latent, d_weights, d_experts = implementation.experts_vjp(
        *call, data.latent_cotangent[own], **BETAS
    )
    d_hidden, d_layer = implementation.layer_vjp(
        data.hidden[own], data.parameters, data.hidden_cotangent[own], config=config
    )
    return {
        "tokens": {
            "experts": implementation.experts(*call, **BETAS),
            "layer": implementation.layer(data.hidden[own], data.parameters, config=config),
            "d_latent": d_latent,
            "d_weights": d_weights,
            "d_hidden": d_hidden,
        },
        "parameters": {**leaves("experts", d_experts), **leaves("layer", d_layer)},
    }


def leaves(name: str, value: Any) -> dict[str, Any]:
    """The arrays of a parameter class, by their path."""
    if isinstance(value, np.ndarray):
        return {name: value}
    parts = [leaves(f"{name}.{key}", part) for key, part in vars(value).items()]
    return {path: array for part in parts for path, array in part.items()}


def through_the_adapter(
    rank: int, world: int, work: tuple[type[StableLatentMoE], list[Case]]
) -> list[dict[str, Any]]:
    """Every case through the adapter's methods, with the tokens of this rank."""
    implementation = work[0]()
    results = []
    for case in work[1]:
        implementation.parallel(
            tensor_parallel=case.tensor_parallel, expert_parallel=case.expert_parallel
        )
        results.append(run_adapter(implementation, case, case.tokens_of(rank)))
    return results


def balance_through_the_adapter(
    rank: int, world: int, work: tuple[type[StableLatentMoE], int]
) -> dict[str, Any]:
    """A balancer of the adapter, whose ranks r have r // tensor_parallel + 1 tokens."""
    implementation = work[0]()
    implementation.parallel(tensor_parallel=work[1])
    balancer = implementation.balancer(num_experts=5, top_k=2, num_bins=8)
    source = rank // work[1]
    logits = np.random.default_rng(source).standard_normal((source + 1, 5)).astype(np.float32)
    balancer.observe(logits)
    own = balancer.histogram
    balancer.update()
    return {"own": own, "reduced": balancer.reduced_histogram, "bias": balancer.bias}


SIZES: dict[str, Any] = {
    "model_dim": D,
    "latent_dim": L,
    "expert_dim": H,
    "num_experts": 5,
    "top_k": 2,
    "num_bins": 16,
    "dtype": torch.float64,
}


def train_a_layer(rank: int, world: int, state: dict[str, torch.Tensor]) -> dict[str, Any]:
    """A step of a layer with this rank's experts, recomputed in the backward pass."""
    layer = LatentMoE(**SIZES, expert_parallel=ExpertParallel.arrange())
    layer.load_state_dict(state)
    x = training_tokens(rank).requires_grad_()
    y = checkpoint(layer, x, use_reentrant=rank > world)
    y.square().sum().backward()
    reloaded = copy.deepcopy(layer)
    reloaded.load_state_dict(layer.state_dict())
    again = reloaded(x)
    try:
        pickle.dumps(layer)
        told = ""
    except TypeError as error:
        told = str(error)
    layer.update_bias()
    return {
        "y": y.detach().numpy(),
        "again": again.detach().numpy(),
        "d_x": x.grad.numpy() if x.grad is not None else None,
        "gradients": {name: p.grad.numpy() for name, p in layer.named_parameters()},
        "bias": layer.gate.e_score_correction_bias.numpy(),
        "told": told,
        "shape": tuple(layer.experts.gate_proj.shape),
    }


def training_tokens(rank: int) -> torch.Tensor:
    """Rank 0 has none."""
    generator = torch.Generator().manual_seed(rank)
    return torch.randn(3 * rank, D, generator=generator, dtype=torch.float64)
