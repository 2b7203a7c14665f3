"""The processes that torchrun started, as the adapters use them."""

from __future__ import annotations

import os
from functools import lru_cache

import torch
import torch.distributed as dist
from torch import Tensor

from impl_torch.expert_parallel import ExpertParallel
from impl_torch.pooling import distinct_token_group

__all__ = ["World", "own_parameters"]


class World:
    """All processes of a launch, joined at first need; one process alone needs no joining.

    Args:
        device: decides the backend: NCCL for a GPU, gloo otherwise.
    """

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self._device = torch.device(device)
        self._arrangement: tuple[int, int | None] = (1, None)

    def arrange(self, tensor_parallel: int, expert_parallel: int | None) -> None:
        """Say which ranks see the same tokens, and which share the experts, from now on.

        Args:
            tensor_parallel: ranks r with equal r // tensor_parallel see the same tokens.
            expert_parallel: so many consecutive ranks share the experts; all ranks if None.

        Raises:
            ValueError: a size does not divide the number of ranks.
        """
        self.join()
        _groups(tensor_parallel, expert_parallel)
        self._arrangement = (tensor_parallel, expert_parallel)

    @property
    def layout(self) -> ExpertParallel | None:
        """Where the experts are; None in a process alone."""
        return _groups(*self._arrangement)[0] if self.join() else None

    @property
    def distinct(self) -> dist.ProcessGroup | None:
        """The ranks whose counts add up; None for all of them, and in a process alone."""
        return _groups(*self._arrangement)[1] if self.join() else None

    def join(self) -> bool:
        """Initialise torch.distributed if torchrun started more than one process; whether it did.

        A process group that is there already is used as it is.
        """
        if int(os.environ.get("WORLD_SIZE", "1")) <= 1:
            return False
        if not dist.is_initialized():
            gpu = self._device.type == "cuda"
            if gpu:
                torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
            dist.init_process_group("nccl" if gpu else "gloo")
        return True


@lru_cache(maxsize=16)
def _groups(
    tensor_parallel: int, expert_parallel: int | None
) -> tuple[ExpertParallel, dist.ProcessGroup | None]:
    """Process groups are made once for each arrangement, since all ranks make them together."""
    layout = ExpertParallel.arrange(
        tensor_parallel=tensor_parallel, expert_parallel=expert_parallel
    )
    return layout, distinct_token_group(tensor_parallel)


def own_parameters(tensors: dict[str, Tensor], layout: ExpertParallel) -> dict[str, Tensor]:
    """A layer's parameters by name, with this rank's experts alone.

    Gradients of what was passed in then add up over all ranks to those of the objective that
    counts each distinct token once: other ranks' experts get zeros, and of the replicas, which
    all compute the full gradient of everything that is not an expert, only the first keeps it.
    """
    num_experts = tensors["gate.weight"].shape[0]

    def part(name: str, tensor: Tensor) -> Tensor:
        if name.startswith("experts."):
            return tensor[layout.own(num_experts)]
        return tensor if layout.replica == 0 else tensor.detach()

    return {name: part(name, tensor) for name, tensor in tensors.items()}
