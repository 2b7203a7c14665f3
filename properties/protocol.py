"""What an implementation offers to the suite: the adapter protocol, version 1.

An implementation is a class, or a zero-argument factory, named as ``package.module:Name``. It
needs ``name``, ``version`` and ``precision``; every method below is optional. A method that is
missing is reported as *not offered*, never as passed.

Arrays at the boundary are NumPy arrays. They arrive read only, and with values that the declared
storage format represents exactly. Those that are returned belong to the caller: a later call leaves
them as they are. Two groups of dtypes cross it:

* *storage* (``precision.storage``): hidden states, parameters, cotangents of hidden states, and
  the outputs of ``situ_glu``, ``rms_norm``, ``experts``, ``layer`` and their VJPs;
* *routing* (``precision.routing``): logits, selection bias, combine weights and cutoffs. Values of
  logits and combine weights are representable in storage, so an adapter may cast them down
  without loss; a bias is representable in the routing format only.

Legend of shapes: M tokens, N routed experts, K top_k, D model width, L latent width, H hidden width
of an expert, S shared experts (which may be 0: their arrays are then empty), B histogram bins.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from reference_numpy.experts import ExpertParameters
from reference_numpy.layer import LayerConfig, LayerParameters
from reference_numpy.routing import Routing

PROTOCOL_VERSION = 1

Array: TypeAlias = NDArray[Any]

__all__ = [
    "EXTRAS",
    "METHODS",
    "PROTOCOL_VERSION",
    "Array",
    "Balancer",
    "Conventions",
    "ExpertParameters",
    "Implementation",
    "LayerConfig",
    "LayerParameters",
    "Precision",
    "Routing",
]


@dataclass(frozen=True)
class Precision:
    """The formats an implementation computes in, by name ("float32", "bfloat16", "float16", …).

    ``compute`` is the format of elementwise arithmetic, ``accumulate`` of sums and dot products,
    ``storage`` of tensors in memory. ``routing`` is the format of scores, bias and combine weights;
    left out, it is float64 for a float64 implementation and float32 for every other one.

    TF32, in which a GPU may multiply float32 matrices, cannot be declared: tensors and sums are in
    float32, but factors are rounded to 11 bits on the way, so that values miss the radii of float32
    about a thousandfold. Switch it off in the adapter, in PyTorch with
    ``torch.set_float32_matmul_precision("highest")``.
    """

    compute: str = "float32"
    accumulate: str = "float32"
    storage: str = "float32"
    routing: str | None = None

    @property
    def routing_format(self) -> str:
        """The format of scores, selection bias, combine weights and cutoffs."""
        if self.routing is not None:
            return self.routing
        return "float64" if self.compute == "float64" else "float32"


@dataclass(frozen=True)
class Conventions:
    """The documented choices that the report leaves open; the defaults are the report's.

    ``expert_rank``: the statistic of the required biases that ``quantile_update`` reads: "q" or
    "q+1" (the exact order statistic), "interior" (between the two and off both by at least half
    of min(k/n, 1 - k/n) of their distance, as a linear quantile or a midpoint), or "between" (any
    point of the closed interval, another for each expert if you like, but at the same share of it
    at every number of tokens and in every call). For a fractional q the interval reaches from the
    last rank below q + 1 - k/n to the (ceil(q)+1)-th.
    ``histogram_rank``: the same for ``balancer``, up to the bin width; left out, it is
    ``expert_rank`` where that is "q" or "q+1", else "between".
    ``bias_sign``: +1 if experts are chosen by s + b, -1 if by s - b.
    ``score_domain``: "sigmoid" if the bias is added to sigmoid scores, "logit" if to logits.
    ``top1_renormalised``: whether the single weight for k = 1 is s/(s + epsilon) or s.
    ``ties``: "lowest_index" if exact ties are promised to fall to the lowest expert id.
    ``padding``: what a mask does: "masked" (rows are left out), "rejected", "unsupported".
    ``weight_epsilon``: added to the sum that normalises the combine weights.
    ``beta_off``: the value of beta that switches a softcap off, if there is one; where it is 0 or
    less, any beta up to 0 may do so.
    ``deterministic``: whether repeated calls are bit-equal.
    ``ranks``: whether the class can be constructed in each of several processes that torchrun
    started. It then finds RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT in the
    environment and, where WORLD_SIZE is more than 1, initialises its process group, or joins the
    one that stands. See ``Implementation.parallel`` for what its methods do there.

    The report prints every deviation.
    """

    expert_rank: Literal["between", "interior", "q", "q+1"] = "between"
    histogram_rank: Literal["between", "q", "q+1"] | None = None
    bias_sign: Literal[1, -1] = 1
    score_domain: Literal["sigmoid", "logit"] = "sigmoid"
    top1_renormalised: bool = True
    ties: Literal["any", "lowest_index"] = "any"
    padding: Literal["masked", "rejected", "unsupported"] = "masked"
    weight_epsilon: float = 1e-20
    beta_off: float | None = None
    deterministic: bool = True
    ranks: bool = False


class Balancer(Protocol):
    """A stateful balancer: counts over micro-batches, then one update.

    ``bias`` has shape (N,) in the routing format. ``histogram`` has shape (N, B) and an integer
    dtype, or is None where the implementation keeps none, or has counted none yet: it then has the
    bins that were asked for. They run upwards in the implementation's own bias, hence over
    s - alpha where ``bias_sign`` is -1. Rows that a mask leaves out may be routed anywhere.

    Optional: ``state_dict()`` and ``load_state_dict(state)``, NumPy arrays under the keys "bias"
    and "histogram" (further keys are kept as they are, and only these two are given with counts
    that the suite makes up); ``to(dtype)``, given the name of a format; ``set_enabled(flag)``;
    ``bias_storage_id()``; ``observe_recomputed(logits)``; the attribute ``reduced_histogram``.

    On several ranks ``observe`` and ``histogram`` are about a rank's own tokens. ``update`` is
    called by all of them and pools the counts of every distinct token; afterwards all have the same
    bias, and ``reduced_histogram`` (N, B) is what it was read from.
    """

    bias: Array
    histogram: Array | None

    def observe(
        self, logits: Array, *, training: bool = True, mask: Array | None = None
    ) -> Routing:
        """Route a micro-batch (M, N) with the present bias and, in training, count it."""

    def update(self) -> None:
        """Replace the bias by the one that the counts since the last update ask for."""


class Implementation(Protocol):
    """All methods an adapter can offer, each optional (see the module's docstring for dtypes)."""

    name: str
    version: str
    precision: Precision
    conventions: Conventions

    def situ_glu(self, gate: Array, up: Array, *, beta_gate: float, beta_up: float) -> Array:
        """SiTU-GLU of two arrays of one shape, elementwise (Eq. 12 without the projections)."""

    def situ_glu_vjp(
        self, gate: Array, up: Array, cotangent: Array, *, beta_gate: float, beta_up: float
    ) -> tuple[Array, Array]:
        """Gradients (d_gate, d_up) of sum(cotangent * situ_glu(gate, up))."""

    def rms_norm(self, x: Array, weight: Array, *, eps: float) -> Array:
        """RMSNorm over the last axis of x (…, L) with weight (L,)."""

    def route(self, logits: Array, bias: Array, *, top_k: int) -> Routing:
        """Eq. 13 for logits (M, N): ids (M, K), combine weights (M, K), cutoff (M,) or None.

        A batch without tokens may come back without a cutoff, whatever other batches do.
        """

    def route_vjp(
        self, logits: Array, bias: Array, weights_cotangent: Array, *, top_k: int
    ) -> tuple[Array, Array]:
        """Gradients (d_logits, d_bias) of sum(weights_cotangent * weights)."""

    def route_grouped(
        self, logits: Array, bias: Array, *, top_k: int, num_groups: int, top_groups: int
    ) -> Routing:
        """Group-limited routing: only experts of the top_groups best groups are candidates.

        A group is N / num_groups consecutive experts, two or more, and scores the sum of its two
        best biased scores. A cutoff, if any, is the best candidate left out.
        """

    def quantile_update(
        self, logits: Array, bias: Array, *, top_k: int, mask: Array | None = None
    ) -> Array:
        """The exact Eq. 14 on one pooled batch: the next, mean-centred bias (N,)."""

    def balancer(
        self,
        *,
        num_experts: int,
        top_k: int,
        num_bins: int | None = None,
        bias: Array | None = None,
        enabled: bool = True,
    ) -> Balancer:
        """A fresh balancer, with a zero bias unless one is given."""

    def experts(
        self,
        x: Array,
        expert_ids: Array,
        weights: Array,
        parameters: ExpertParameters,
        *,
        beta_gate: float,
        beta_up: float,
    ) -> Array:
        """The weighted sum of the chosen experts: x (M, L), ids and weights (M, K) -> (M, L).

        Ids arrive as int64, whatever integers ``route`` returns; cast them if a kernel asks for
        others. The same holds for ``experts_vjp``.
        """

    def experts_vjp(
        self,
        x: Array,
        expert_ids: Array,
        weights: Array,
        parameters: ExpertParameters,
        cotangent: Array,
        *,
        beta_gate: float,
        beta_up: float,
    ) -> tuple[Array, Array, ExpertParameters]:
        """Gradients (d_x, d_weights, d_parameters) of sum(cotangent * experts(…))."""

    def router_logits(self, x: Array, parameters: LayerParameters) -> Array:
        """The router's logits (…, N) of the full-width x (…, D)."""

    def layer(
        self, x: Array, parameters: LayerParameters, *, config: LayerConfig, training: bool = False
    ) -> Array:
        """The whole layer, Eq. 11: x (…, D) -> (…, D)."""

    def layer_vjp(
        self, x: Array, parameters: LayerParameters, cotangent: Array, *, config: LayerConfig
    ) -> tuple[Array, LayerParameters]:
        """Gradients (d_x, d_parameters) of sum(cotangent * layer(x)).

        That of the selection bias is zero, or None.
        """

    def parallel(self, *, tensor_parallel: int = 1, expert_parallel: int | None = None) -> None:
        """Arrange the world; called by every rank, in the same order, before what follows.

        Ranks with equal ``rank // tensor_parallel`` are given the same tokens. The experts are
        divided among each ``expert_parallel`` consecutive ranks, or the whole world; who holds
        which, and how unevenly, is the implementation's affair. Both divide the world, and neither
        has to divide the other. Without this method, ranks have tokens of their own, and share the
        experts in the world as a whole.

        ``experts``, ``layer``, their VJPs and ``update`` of a balancer are called by every rank
        with its own tokens, as many as it has and perhaps none, and with all parameters. They
        return what belongs to the rank's tokens. Gradients of parameters, added up over all ranks,
        are those of an objective that counts every distinct token once.
        """

    def poison(self) -> None:
        """Let the next call find NaN in memory that it reads without having written it.

        As far as the implementation can: by filling what was freed, or what is allocated then.
        """


METHODS: Mapping[str, tuple[str, ...]] = {
    "activation": ("situ_glu", "situ_glu_vjp"),
    "routing": ("route", "route_vjp", "route_grouped"),
    "balancing": ("quantile_update", "balancer"),
    "experts": ("experts", "experts_vjp"),
    "norm": ("rms_norm",),
    "layer": ("router_logits", "layer", "layer_vjp"),
}

# Methods that compute nothing by themselves.
EXTRAS: tuple[str, ...] = ("parallel", "poison")


def number_format(name: str) -> np.dtype[Any]:
    """The NumPy dtype of a format name, bfloat16 and float8 included.

    Raises ValueError if no floating-point format has that name.
    """
    try:
        dtype = np.dtype(name)
    except TypeError:
        raise ValueError(f"{name!r} is not a number format; use e.g. 'float32'") from None
    try:
        ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    except ValueError:
        raise ValueError(f"{name!r} is not a floating-point format; use e.g. 'float32'") from None
    return dtype
