"""The whole Stable LatentMoE layer (Eq. 11), under the public checkpoint's parameter names.

``y = sum_shared E^sh(x) + W_up RMSNorm(sum_j p_j E_j(W_down x))``. Equation numbers are those of
arXiv 2607.24653.

Legend: M tokens, N routed experts, K top_k, D model width, L latent width, H expert hidden width,
S shared experts.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache, partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.func import functional_call

from impl_torch.activation import situ_glu
from impl_torch.expert_parallel import ExpertParallel, ParallelExperts
from impl_torch.experts import Experts
from impl_torch.histogram import QuantileHistogram, Site, update_biases
from impl_torch.norm import RMSNorm
from impl_torch.precision import is_float8
from impl_torch.routing import Router

__all__ = ["LatentMoE", "SharedExperts", "latent_moe"]


class SharedExperts(nn.Module):
    """The S shared experts side by side, as one SiTU-GLU block over the full width D.

    Bias-free ``gate_proj``, ``up_proj`` and ``down_proj``, as in the public checkpoint.

    Args:
        model_dim: D.
        shared_dim: hidden width of all shared experts together.
        beta_gate: cap of the gate.
        beta_up: cap of up.
    """

    def __init__(
        self,
        model_dim: int,
        shared_dim: int,
        *,
        beta_gate: float = 4.0,
        beta_up: float = 25.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.beta_gate = beta_gate
        self.beta_up = beta_up
        self.gate_proj = _linear(model_dim, shared_dim, device, dtype)
        self.up_proj = _linear(model_dim, shared_dim, device, dtype)
        self.down_proj = _linear(shared_dim, model_dim, device, dtype)

    def forward(self, x_MD: Tensor) -> Tensor:
        """The sum over shared experts, (M, D)."""
        gate, up = self.gate_proj(x_MD), self.up_proj(x_MD)
        hidden = situ_glu(gate, up, beta_gate=self.beta_gate, beta_up=self.beta_up)
        result: Tensor = self.down_proj(hidden)
        return result


class LatentMoE(nn.Module):
    """Stable LatentMoE (Eq. 11), with quantile balancing in training.

    Submodules and state: ``gate`` (``weight`` and the buffer ``e_score_correction_bias``),
    ``routed_expert_down_proj``, ``experts``, ``routed_expert_norm``, ``routed_expert_up_proj``,
    ``shared_experts`` (None if S = 0) and, ours alone, ``balancer`` (None if ``num_bins`` is None).
    A checkpoint without the balancer's buffers loads with ``strict=False``, or into a layer built
    with ``num_bins=None``.

    In training mode every forward pass counts its tokens' required biases; call ``update_biases``
    on the whole model once per optimiser step. In evaluation nothing but the output is computed.
    With parameters and x in float8 everything is computed in float32, and rounded at the end.

    Args:
        model_dim: D.
        latent_dim: L.
        expert_dim: H.
        num_experts: N.
        top_k: K.
        num_shared_experts: S.
        shared_expert_dim: hidden width of a shared expert; H if left out.
        beta_gate: cap of the gate of every expert.
        beta_up: cap of up of every expert.
        norm_eps: eps of the latent norm.
        routed_scale: multiplies the combine weights, before the norm.
        num_bins: bins of the balancing histogram; None for a layer that does not balance.
        expert_parallel: where the routed experts are, if each rank is to hold a part of them. The
            sum over a token's experts is complete before the norm, and everything else is computed
            by each rank for its own tokens.

    Raises:
        ValueError: top_k or num_bins is out of range.
    """

    def __init__(
        self,
        *,
        model_dim: int,
        latent_dim: int,
        expert_dim: int,
        num_experts: int,
        top_k: int,
        num_shared_experts: int = 2,
        shared_expert_dim: int | None = None,
        beta_gate: float = 4.0,
        beta_up: float = 25.0,
        norm_eps: float = 1e-5,
        routed_scale: float = 1.0,
        num_bins: int | None = 1000,
        expert_parallel: ExpertParallel | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.routed_scale = routed_scale
        self.gate = Router(model_dim, num_experts, top_k, device=device, dtype=dtype)
        self.routed_expert_down_proj = _linear(model_dim, latent_dim, device, dtype)
        make = Experts if expert_parallel is None else partial(ParallelExperts, expert_parallel)
        self.experts = make(
            latent_dim,
            expert_dim,
            num_experts,
            beta_gate=beta_gate,
            beta_up=beta_up,
            device=device,
            dtype=dtype,
        )
        self.routed_expert_norm = RMSNorm(latent_dim, eps=norm_eps, device=device, dtype=dtype)
        self.routed_expert_up_proj = _linear(latent_dim, model_dim, device, dtype)
        self.shared_experts = (
            SharedExperts(
                model_dim,
                num_shared_experts * (shared_expert_dim or expert_dim),
                beta_gate=beta_gate,
                beta_up=beta_up,
                device=device,
                dtype=dtype,
            )
            if num_shared_experts
            else None
        )
        self.balancer = (
            QuantileHistogram(
                num_experts,
                top_k,
                num_bins,
                device=device,
                dtype=self.gate.e_score_correction_bias.dtype,
            )
            if num_bins is not None
            else None
        )

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """The layer's output for hidden states x (…, D), in their shape and format.

        Args:
            x: any leading shape, none included.
            mask: (…) boolean, True for tokens that balancing counts; all of them if left out.
                Masked tokens are computed like any other.

        Raises:
            ValueError: the last axis is not D, or the mask's shape is not x's leading shape.
        """
        self._check(x, mask)
        if is_float8(x.dtype):
            return self._in_float32(x, mask)
        x_MD = x.reshape(-1, x.shape[-1])
        y_MD = self._routed(x_MD, None if mask is None else mask.reshape(-1))
        if self.shared_experts is not None:
            y_MD = y_MD + self.shared_experts(x_MD)
        return y_MD.reshape(x.shape)

    def update_bias(self, *, group: dist.ProcessGroup | None = None) -> None:
        """``update_biases`` of this layer alone; several layers are better updated together.

        Raises:
            RuntimeError: the layer was built with ``num_bins=None``, or as ``update_biases``.
        """
        if self.balancer is None:
            raise RuntimeError("this layer does not balance; build it with num_bins=1000, say")
        update_biases(self, group=group)

    def balancing_site(self) -> Site | None:
        """The histogram and the bias that it moves; None if the layer does not balance."""
        if self.balancer is None:
            return None
        return self.balancer, self.gate.e_score_correction_bias

    def _in_float32(self, x: Tensor, mask: Tensor | None) -> Tensor:
        wide = {name: parameter.float() for name, parameter in self.named_parameters()}
        y: Tensor = functional_call(self, wide, (x.float(), mask))
        return y.to(x.dtype)

    def _routed(self, x_MD: Tensor, mask_M: Tensor | None) -> Tensor:
        scores_MN = self.gate.scores(x_MD)
        routing = self.gate.select(scores_MN)
        if self.training and self.balancer is not None:
            bias_N = self.gate.e_score_correction_bias
            self.balancer.count(scores_MN, routing.cutoff, bias_N, mask_M)
        latent_ML = self.routed_expert_down_proj(x_MD)
        weights_MK = routing.weights * self.routed_scale
        combined_ML = self.experts(latent_ML, routing.expert_ids, weights_MK)
        result: Tensor = self.routed_expert_up_proj(self.routed_expert_norm(combined_ML))
        return result

    def _check(self, x: Tensor, mask: Tensor | None) -> None:
        model_dim = self.gate.weight.shape[1]
        if x.shape[-1:] != (model_dim,):
            raise ValueError(f"x has shape {tuple(x.shape)}; its last axis must be {model_dim}")
        if mask is not None and mask.shape != x.shape[:-1]:
            raise ValueError(
                f"mask has shape {tuple(mask.shape)}; expected {tuple(x.shape[:-1])} to match x"
            )


def _linear(
    inputs: int, outputs: int, device: torch.device | str | None, dtype: torch.dtype | None
) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False, device=device, dtype=dtype)


def latent_moe(
    x: Tensor,
    parameters: Mapping[str, Tensor],
    *,
    top_k: int,
    beta_gate: float = 4.0,
    beta_up: float = 25.0,
    norm_eps: float = 1e-5,
    routed_scale: float = 1.0,
    training: bool = False,
    expert_parallel: ExpertParallel | None = None,
) -> Tensor:
    """``LatentMoE`` as a function of its parameters, with gradients to them; it does not balance.

    Args:
        x: hidden states (…, D).
        parameters: tensors under the names that ``LatentMoE(num_bins=None).state_dict()`` has;
            sizes are theirs. The shared experts may be left out. With ``expert_parallel`` the
            routed experts are this rank's.
        top_k: K.
        beta_gate: cap of the gate of every expert.
        beta_up: cap of up of every expert.
        norm_eps: eps of the latent norm.
        routed_scale: multiplies the combine weights.
        training: the mode; it makes no difference to the value.
        expert_parallel: where the routed experts are.

    Raises:
        KeyError: a parameter is missing.
        ValueError: top_k or a shape is wrong.
    """
    shared = parameters.get("shared_experts.gate_proj.weight")
    module = _shell(
        x.shape[-1],
        (parameters["gate.weight"].shape[0], *parameters["experts.gate_proj"].shape[1:]),
        0 if shared is None else shared.shape[0],
        top_k,
        (beta_gate, beta_up),
        norm_eps,
        routed_scale,
        expert_parallel,
    )
    module.train(training)
    result: Tensor = functional_call(module, dict(parameters), (x,))
    return result


@lru_cache(maxsize=64)
def _shell(
    model_dim: int,
    experts_shape: tuple[int, int, int],
    shared_dim: int,
    top_k: int,
    betas: tuple[float, float],
    norm_eps: float,
    routed_scale: float,
    expert_parallel: ExpertParallel | None,
) -> LatentMoE:
    """A layer without memory, of the given sizes, to be called with somebody's parameters."""
    num_experts, expert_dim, latent_dim = experts_shape
    return LatentMoE(
        model_dim=model_dim,
        latent_dim=latent_dim,
        expert_dim=expert_dim,
        num_experts=num_experts,
        top_k=top_k,
        num_shared_experts=int(shared_dim > 0),
        shared_expert_dim=shared_dim,
        beta_gate=betas[0],
        beta_up=betas[1],
        norm_eps=norm_eps,
        routed_scale=routed_scale,
        num_bins=None,
        expert_parallel=expert_parallel,
        device="meta",
    )
