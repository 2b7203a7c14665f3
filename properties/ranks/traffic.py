"""What a rank hands to the collectives of torch.distributed, seen where torch dispatches them.

Every collective is an operator of a namespace of its own, so that a dispatch mode meets it with its
tensors, whichever function of ``torch.distributed`` called it.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

NAMESPACES = ("c10d", "_c10d_functional", "_c10d_functional_autograd")

# They carry nothing of the caller's. Functional collectives wait, and wrap what they return.
WITHOUT_PAYLOAD = (
    *("barrier", "monitored_barrier_", "check_for_nan", "recv_", "recv_any_source_", "irecv"),
    *("wait_tensor", "_wrap_tensor_autograd"),
)

__all__ = ["Collective", "Traffic"]


@dataclass(frozen=True)
class Collective:
    """One collective as a rank called it: its operator, and the elements it handed in."""

    operator: str
    dtype: str
    elements: int
    itemsize: int

    @property
    def kind(self) -> str:
        """The operator without what tells its variants apart: "allreduce", "reducescatter", …."""
        return self.operator.replace("_", "")

    @property
    def bytes(self) -> int:
        """The size of what was handed in."""
        return self.elements * self.itemsize

    def __str__(self) -> str:
        return f"{self.operator} of {self.elements} {self.dtype}"


class Traffic:
    """The collectives of torch between ``start`` and ``stop``."""

    def __init__(self) -> None:
        self._seen: list[Collective] = []
        self._mode: Any = None

    def start(self) -> None:
        """Begin to watch; nothing happens where torch has not been imported."""
        if "torch" in sys.modules:
            self._mode = _dispatch_mode(self._seen)
            self._mode.__enter__()

    def stop(self) -> list[Collective] | None:
        """What was handed in since ``start``, or None where torch was not there to be watched."""
        if self._mode is None:
            return None
        self._mode.__exit__(None, None, None)
        seen, self._seen, self._mode = self._seen, [], None
        return seen


def _dispatch_mode(seen: list[Collective]) -> Any:
    """A dispatch mode that notes collectives and lets everything pass."""
    base = importlib.import_module("torch.utils._python_dispatch").TorchDispatchMode

    def dispatch(mode: Any, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del mode, types
        if getattr(operator, "namespace", "") in NAMESPACES:
            seen.extend(_noted(operator, args, kwargs or {}))
        return operator(*args, **(kwargs or {}))

    # Torch would import its compiler, for seconds, to keep it out of the method above.
    plain = {"__torch_dispatch__": dispatch, "_should_skip_dynamo": staticmethod(lambda: False)}
    return type("CollectivesSeen", (base,), plain)()


def _noted(operator: Any, args: Any, kwargs: Any) -> list[Collective]:
    name = operator._schema.name.rpartition("::")[2]
    if name in WITHOUT_PAYLOAD:
        return []
    named = {
        part.name: value for part, value in zip(operator._schema.arguments, args, strict=False)
    }
    handed = [
        tensor
        for part, value in {**named, **kwargs}.items()
        if not part.startswith("out")
        for tensor in _tensors(value)
    ]
    dtypes = {str(tensor.dtype).removeprefix("torch.") for tensor in handed}
    elements = sum(int(tensor.numel()) for tensor in handed)
    size = max((int(tensor.element_size()) for tensor in handed), default=0)
    return [Collective(name, " and ".join(sorted(dtypes)) or "nothing", elements, size)]


def _tensors(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple):
        for part in value:
            yield from _tensors(part)
    elif hasattr(value, "element_size") and hasattr(value, "numel"):
        yield value
