"""A balancer of the implementation under test, held to the protocol like the subject itself.

Legend: N routed experts, B histogram bins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from properties.boundary import arrays_in, checked_result, describe
from properties.errors import AdapterError, ViolationError
from properties.protocol import Array

if TYPE_CHECKING:
    from properties.subject import Routed, Subject

# What came back from so many observations is watched: there may be several buffers, or one a shape.
OBSERVATIONS = 4


class SubjectBalancer:
    """A balancer of the implementation, checked like the subject's own methods.

    ``label`` is what its calls are printed under, where a case has more than one.
    """

    label = "balancer"

    def __init__(self, subject: Subject, balancer: Any, num_experts: int, top_k: int) -> None:
        self._subject = subject
        self._balancer = balancer
        self._num_experts = num_experts
        self._top_k = top_k

    @property
    def bias(self) -> Array:
        """The bias (N,) in force, float64, in the sign convention of a bias that is added."""
        bias = checked_result(
            "balancer.bias",
            self._read("bias"),
            (self._num_experts,),
            (self._subject.routing_dtype,),
        )
        return bias * self._subject.conventions.bias_sign

    def _read(self, name: str) -> Any:
        return self._subject.reading(f"{self.label}.{name}", lambda: getattr(self._balancer, name))

    def _method(self, name: str, arguments: dict[str, Any]) -> Any:
        output = self._subject.guarded(f"{self.label}.{name}", self._read(name), arguments)
        returned = self._subject.case.observed
        for arrays, then in returned:
            if [array.tobytes() for array in arrays] != then:
                raise ViolationError(
                    f"{self.label}.{name} changed what an earlier observe had returned"
                )
        if name == "observe":
            arrays = arrays_in(output)
            returned.append((arrays, [array.tobytes() for array in arrays]))
            del returned[:-OBSERVATIONS]
        return output

    @property
    def histogram(self) -> Array | None:
        """The counts (N, B) since the last update, int64, or None where none are kept."""
        return self._counts("histogram")

    def _counts(self, name: str) -> Array | None:
        counts, what = self._read(name), f"balancer.{name}"
        if counts is None:
            return None
        if not isinstance(counts, np.ndarray) or not np.issubdtype(counts.dtype, np.integer):
            raise AdapterError(f"{what} is {describe(counts)}; expected integers")
        if counts.ndim != 2 or counts.shape[0] != self._num_experts:
            raise AdapterError(
                f"{what} has shape {counts.shape}, expected ({self._num_experts}, bins)"
            )
        return counts.astype(np.int64)

    @property
    def reduced_histogram(self) -> Array | None:
        """The counts (N, B) of all ranks that the last update read, int64, or None before one."""
        return self._counts("reduced_histogram")

    def observe(self, logits: Array, *, training: bool = True, mask: Array | None = None) -> Routed:
        """Route a micro-batch and count it."""
        arguments: dict[str, Any] = {
            "logits": self._subject.as_logits(logits),
            "training": training,
        }
        if mask is not None:
            arguments["mask"] = mask
        out = self._method("observe", arguments)
        return self._subject.as_routed("balancer.observe", out, logits.shape[0], self._top_k)

    def update(self) -> None:
        """Move the bias to what the counts ask for."""
        self._method("update", {})

    def state_dict(self) -> dict[str, Any]:
        """The balancer's state, with the keys "bias" and "histogram"."""
        state = self._method("state_dict", {})
        if not isinstance(state, dict) or not {"bias", "histogram"} <= state.keys():
            raise AdapterError(
                "balancer.state_dict must return a dict with the keys 'bias' and 'histogram'"
            )
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace the balancer's state."""
        self._method("load_state_dict", {"state": state})

    def offers(self, name: str) -> bool:
        """Whether an optional method or attribute of a balancer is there."""
        return f"balancer.{name}" in self._subject.offered

    def to(self, dtype: str) -> None:
        """Cast as a module that holds the balancer would be; bias and counts keep their formats.

        Raises ViolationError where they do not.
        """
        self._method("to", {"dtype": dtype})
        bias, counts = self._read("bias"), self._read("histogram")
        if isinstance(bias, np.ndarray) and bias.dtype != self._subject.routing_dtype:
            raise ViolationError(
                f"balancer.to({dtype!r}) made the bias {bias.dtype}; it has to stay "
                f"{self._subject.routing_dtype.name}, or scores closer than a step of it are tied"
            )
        if isinstance(counts, np.ndarray) and not np.issubdtype(counts.dtype, np.integer):
            raise ViolationError(
                f"balancer.to({dtype!r}) made the counts {counts.dtype}; they have to stay integers"
            )

    def set_enabled(self, flag: bool) -> None:
        """Switch counting and updating on or off."""
        self._method("set_enabled", {"flag": flag})

    def bias_storage_id(self) -> Any:
        """What tells the memory that the bias lies in from any other, or None if not offered."""
        if not self.offers("bias_storage_id"):
            return None
        return self._subject.reading(
            f"{self.label}.bias_storage_id", lambda: self._balancer.bias_storage_id()
        )

    def observe_recomputed(self, logits: Array) -> None:
        """Count a micro-batch whose forward runs twice, under activation checkpointing."""
        arguments = {"logits": self._subject.as_logits(logits)}
        self._method("observe_recomputed", arguments)
