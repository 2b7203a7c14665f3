"""Experts and their weighted sum, Eq. 11 and 12 of arXiv 2607.24653.

Legend: M tokens, N experts, K top_k, L width an expert works on, H its hidden width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from reference_numpy.activation import BETA_GATE, BETA_UP, situ_glu, situ_glu_vjp
from reference_numpy.arrays import Array, require_expert_ids, require_shape
from reference_numpy.storage import projected, stored

__all__ = [
    "ExpertParameters",
    "expert",
    "expert_vjp",
    "experts",
    "experts_vjp",
    "require_expert_parameters",
]


@dataclass(frozen=True, eq=False)
class ExpertParameters:
    """The three projections of N experts, under the names of the public checkpoint.

    ``gate_proj`` (N, H, L), ``up_proj`` (N, H, L), ``down_proj`` (N, L, H).
    """

    gate_proj: Array
    up_proj: Array
    down_proj: Array


def expert(
    z: Array,
    gate_proj: Array,
    up_proj: Array,
    down_proj: Array,
    *,
    beta_gate: float = BETA_GATE,
    beta_up: float = BETA_UP,
) -> Array:
    """E(z) = W_d situ_glu(W_g z, W_u z), Eq. 12: z (M, L) -> (M, L).

    gate_proj and up_proj are (H, L), down_proj (L, H); stacks of N of them give (N, M, L).
    Raises ValueError as ``situ_glu`` does.
    """
    hidden = situ_glu(
        projected(z, gate_proj), projected(z, up_proj), beta_gate=beta_gate, beta_up=beta_up
    )
    return projected(hidden, down_proj)


def expert_vjp(
    z_ML: Array,
    gate_proj: Array,
    up_proj: Array,
    down_proj: Array,
    cotangent_ML: Array,
    *,
    beta_gate: float = BETA_GATE,
    beta_up: float = BETA_UP,
) -> tuple[Array, Array, Array, Array]:
    """Gradients (d_z, d_gate_proj, d_up_proj, d_down_proj) of sum(cotangent * expert(z, …)).

    With G = Z W_g^T, U = Z W_u^T, A = situ_glu(G, U) and C the cotangent:

        dW_d = C^T A,    (dG, dU) = situ_glu_vjp(G, U, C W_d),
        dW_g = dG^T Z,   dW_u = dU^T Z,   dZ = dG W_g + dU W_u

    Stacks of N experts give every gradient, d_z too, a leading axis N: each expert alone meets
    the cotangent. Raises ValueError as ``situ_glu`` does.
    """
    gate, up = projected(z_ML, gate_proj), projected(z_ML, up_proj)
    hidden = situ_glu(gate, up, beta_gate=beta_gate, beta_up=beta_up)
    d_hidden = stored(np.matmul(cotangent_ML, down_proj))
    d_gate, d_up = situ_glu_vjp(gate, up, d_hidden, beta_gate=beta_gate, beta_up=beta_up)
    d_z = stored(stored(np.matmul(d_gate, gate_proj)) + stored(np.matmul(d_up, up_proj)))
    return (
        d_z,
        stored(np.matmul(np.swapaxes(d_gate, -1, -2), z_ML)),
        stored(np.matmul(np.swapaxes(d_up, -1, -2), z_ML)),
        stored(np.matmul(np.swapaxes(cotangent_ML, -1, -2), hidden)),
    )


def experts(
    x_ML: Array,
    expert_ids_MK: Array,
    weights_MK: Array,
    parameters: ExpertParameters,
    *,
    beta_gate: float = BETA_GATE,
    beta_up: float = BETA_UP,
) -> Array:
    """u = sum over the K chosen experts j of p_j E_j(x), Eq. 11: (M, L).

    Dense: every expert is evaluated on every token, then each token picks its K rows, so nothing
    is sorted or sent and exactly K terms are added. Raises ValueError for shapes that do not
    fit, ids out of range and betas that are not positive and finite.
    """
    _require_arguments(x_ML, expert_ids_MK, weights_MK, parameters)
    chosen_MKL = _chosen_outputs(x_ML, expert_ids_MK, parameters, beta_gate, beta_up)
    return stored(np.sum(stored(weights_MK[:, :, None] * chosen_MKL), axis=1))


def experts_vjp(
    x_ML: Array,
    expert_ids_MK: Array,
    weights_MK: Array,
    parameters: ExpertParameters,
    cotangent_ML: Array,
    *,
    beta_gate: float = BETA_GATE,
    beta_up: float = BETA_UP,
    add_slots: Callable[[Array], Array] | None = None,
) -> tuple[Array, Array, ExpertParameters]:
    """Gradients (d_x, d_weights, d_parameters) of sum(cotangent * experts(x, …)).

    With c_i the cotangent of token i and p_ia the weight of its slot a:

        d_weights_ia = <c_i, E_j(x_i)>  for the expert j of that slot,
        d_x_i = sum over a of expert_vjp(x_i, p_ia c_i) of that slot's expert,
        d_parameters_j = sum of expert_vjp(x_i, p_ia c_i) over the slots that name j

    An expert that no slot names gets exactly 0. ``add_slots`` adds up a token's terms of d_x,
    (M, K, L) -> (M, L), for whoever rounds its partial sums. Raises ValueError as ``experts`` does.
    """
    _require_arguments(x_ML, expert_ids_MK, weights_MK, parameters)
    require_shape("cotangent", cotangent_ML, x_ML.shape)
    projections = (parameters.gate_proj, parameters.up_proj, parameters.down_proj)
    row_MK = np.zeros(expert_ids_MK.shape, dtype=np.intp)  # where a slot lies, experts in turn
    rows_before = 0
    d_x_rows, d_weights_rows = [x_ML[:0]], [weights_MK[:0, :0].reshape(-1)]
    d_projections = []
    for j in range(parameters.gate_proj.shape[0]):
        tokens, slots = np.nonzero(expert_ids_MK == j)
        if len(tokens) == 0:
            d_projections.append([_zeros_like(whole[j]) for whole in projections])
            continue
        row_MK[tokens, slots] = rows_before + np.arange(len(tokens))
        rows_before += len(tokens)
        d_weights_T, d_x_TL, *d_own = _slots_vjp(
            x_ML[tokens],
            weights_MK[tokens, slots],
            [whole[j] for whole in projections],
            cotangent_ML[tokens],
            beta_gate=beta_gate,
            beta_up=beta_up,
        )
        d_x_rows.append(d_x_TL)
        d_weights_rows.append(d_weights_T)
        d_projections.append(d_own)
    d_x_MKL = np.concatenate(d_x_rows)[row_MK]
    d_x_ML = stored(np.sum(d_x_MKL, axis=1)) if add_slots is None else add_slots(d_x_MKL)
    d_weights_MK = np.concatenate(d_weights_rows)[row_MK]
    return d_x_ML, d_weights_MK, ExpertParameters(*map(np.stack, zip(*d_projections, strict=True)))


def _slots_vjp(
    x_TL: Array,
    weights_T: Array,
    projections: list[Array],
    cotangent_TL: Array,
    *,
    beta_gate: float,
    beta_up: float,
) -> tuple[Array, ...]:
    """The gradients of one expert's T slots: (d_weights, d_x, d_gate, d_up and d_down_proj)."""
    gate_proj, up_proj, down_proj = projections
    output_TL = expert(x_TL, gate_proj, up_proj, down_proj, beta_gate=beta_gate, beta_up=beta_up)
    d_weights_T = stored(np.sum(stored(cotangent_TL * output_TL), axis=1))
    gradients = expert_vjp(
        x_TL,
        gate_proj,
        up_proj,
        down_proj,
        stored(weights_T[:, None] * cotangent_TL),
        beta_gate=beta_gate,
        beta_up=beta_up,
    )
    return d_weights_T, *gradients


def _zeros_like(x: Array) -> Array:
    """Zeros of that shape, which carry an error radius, too, where x does."""
    return np.where(np.ones(x.shape, dtype=np.bool_), 0.0, x)


def _chosen_outputs(
    x_ML: Array,
    expert_ids_MK: Array,
    parameters: ExpertParameters,
    beta_gate: float,
    beta_up: float,
) -> Array:
    """E_j(x_i) for the expert j of each slot, (M, K, L), read off the dense (N, M, L)."""
    outputs_NML = expert(
        x_ML,
        parameters.gate_proj,
        parameters.up_proj,
        parameters.down_proj,
        beta_gate=beta_gate,
        beta_up=beta_up,
    )
    return outputs_NML[expert_ids_MK, np.arange(x_ML.shape[0])[:, None]]


def require_expert_parameters(name: str, parameters: ExpertParameters, width: int) -> None:
    """Raise ValueError unless the three projections of ``name`` fit each other and ``width``."""
    require_shape(f"{name}.gate_proj", parameters.gate_proj, (None, None, width))
    num_experts, hidden, _ = parameters.gate_proj.shape
    require_shape(f"{name}.up_proj", parameters.up_proj, (num_experts, hidden, width))
    require_shape(f"{name}.down_proj", parameters.down_proj, (num_experts, width, hidden))


def _require_arguments(
    x_ML: Array, expert_ids_MK: Array, weights_MK: Array, parameters: ExpertParameters
) -> None:
    require_shape("x", x_ML, (None, None))
    require_expert_parameters("parameters", parameters, x_ML.shape[1])
    require_expert_ids(expert_ids_MK, x_ML.shape[0], parameters.gate_proj.shape[0])
    require_shape("weights", weights_MK, expert_ids_MK.shape)
