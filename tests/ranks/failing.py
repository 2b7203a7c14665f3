"""Implementations of which one rank fails, each in its own way; none of them needs torch to do so.

The reference in every process, so that there is nothing to wait for but the failure.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from properties.protocol import Conventions
from properties.reference import Reference
from reference_numpy.balancing import HistogramBalancer


class Failing(Reference):
    """Rank 1 fails in ``update``; the others are done at once."""

    name = "failing"
    conventions = Conventions(expert_rank="interior", histogram_rank="q", ranks=True)

    def __init__(self) -> None:
        super().__init__()
        self.rank = int(os.environ.get("RANK", "0"))

    def balancer(self, *, num_experts: int, top_k: int, **options: Any) -> HistogramBalancer:
        return FailingBalancer(self, num_experts, top_k)

    def fail(self) -> None:
        raise NotImplementedError


class FailingBalancer(HistogramBalancer):
    def __init__(self, owner: Failing, num_experts: int, top_k: int) -> None:
        super().__init__(num_experts, top_k)
        self.owner = owner

    def update(self) -> None:
        super().update()
        if self.owner.rank == 1:
            self.owner.fail()


class Raises(Failing):
    def fail(self) -> None:
        raise ZeroDivisionError("no tokens on this rank")


class RaisesInAll(Failing):
    """Every rank raises."""

    def balancer(self, *, num_experts: int, top_k: int, **options: Any) -> HistogramBalancer:
        self.rank = 1
        return super().balancer(num_experts=num_experts, top_k=top_k)

    def fail(self) -> None:
        raise ZeroDivisionError(f"rank {os.environ.get('RANK')}")


class Exits(Failing):
    def fail(self) -> None:
        print("giving up", flush=True)
        os._exit(7)


class IsKilled(Failing):
    def fail(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class Segfaults(Failing):
    def fail(self) -> None:
        os.kill(os.getpid(), signal.SIGSEGV)


class Sleeps(Failing):
    def fail(self) -> None:
        time.sleep(3600)


class HoldsTheInterpreter(Failing):
    """No other thread of the rank ever runs again."""

    def fail(self) -> None:
        import ctypes

        ctypes.PyDLL(None).sleep(3600)


class ConstructorRaises(Failing):
    def __init__(self) -> None:
        super().__init__()
        if self.rank == 1:
            raise RuntimeError("no device for rank 1")


class ChangesItsInput(Failing):
    def fail(self) -> None:
        raise AssertionError

    def balancer(self, *, num_experts: int, top_k: int, **options: Any) -> HistogramBalancer:
        return _Writing(num_experts, top_k)


class _Writing(HistogramBalancer):
    def observe(self, logits_MN: Any, **options: Any) -> Any:
        routing = super().observe(logits_MN, **options)
        if os.environ.get("RANK") == "1":
            logits_MN.setflags(write=True)
            logits_MN += 1.0
        return routing


class Works(Failing):
    """Rank 1 does not fail either."""

    def fail(self) -> None:
        pass
