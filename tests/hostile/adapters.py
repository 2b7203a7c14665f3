"""Adapters that misbehave in the process that judges them, one way each."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import time
import warnings
from typing import Any

import numpy as np

from properties import checks
from properties.protocol import Array, Conventions, Precision, Routing
from properties.reference import Reference

WHERE_IT_STARTED = os.getcwd()  # noqa: PTH109


class Norm:
    """RMSNorm, right, with a hook before and after it."""

    name = "hostile"
    version = "1"
    precision = Precision(compute="float64", accumulate="float64", storage="float64")

    def before(self) -> None:
        """Whatever happens in a call before anything is computed."""

    def after(self, x: Array, out: Array) -> Any:
        """What is handed back."""
        return out

    def rms_norm(self, x: Array, weight: Array, *, eps: float) -> Any:
        self.before()
        root = np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps)
        return self.after(x, np.asarray(weight * ((1.0 / root) * x)))


class Wrong(Norm):
    """Wrong by one everywhere."""

    def after(self, x: Array, out: Array) -> Any:
        return out + 1.0


# Exceptions ---------------------------------------------------------------------------------------


class Interrupts(Norm):
    def before(self) -> None:
        raise KeyboardInterrupt("mine")


class Exits(Norm):
    def before(self) -> None:
        raise SystemExit(0)


class Closes(Norm):
    def before(self) -> None:
        raise GeneratorExit


class Recurses(Norm):
    def before(self) -> None:
        self.before()


class Devours(Norm):
    """Asks for more memory than there is."""

    def before(self) -> None:
        np.empty(1 << 55)


class Unspeakable(Norm):
    """Raises what cannot be printed."""

    def before(self) -> None:
        class SilentError(Exception):
            def __str__(self) -> str:
                raise RuntimeError

        raise SilentError


class Verbose(Norm):
    """Raises with a message of a megabyte."""

    def before(self) -> None:
        raise ValueError("x" * 1_000_000)


# Results ------------------------------------------------------------------------------------------


class View(Norm):
    """Hands its input back."""

    def after(self, x: Array, out: Array) -> Any:
        return x


class Masked(Norm):
    """Hands back an array that hides its elements."""

    def after(self, x: Array, out: Array) -> Any:
        return np.ma.masked_all_like(out)


class Liar(np.ndarray):
    """An array that answers for another one when it is converted."""

    right: Any = None

    def astype(self, *arguments: Any, **options: Any) -> Any:
        return self.right


class Lies(Norm):
    """Zeros, which claim to be right."""

    def after(self, x: Array, out: Array) -> Any:
        lying = np.zeros_like(out).view(Liar)
        lying.right = out
        return lying


class Nan(Norm):
    def after(self, x: Array, out: Array) -> Any:
        return np.full_like(out, np.nan)


class NanRoutes(Reference):
    def route(self, logits: Array, bias: Array, *, top_k: int) -> Routing:
        routed = super().route(logits, bias, top_k=top_k)
        nan = np.full_like(routed.weights, np.nan)
        return routed._replace(weights=nan, cutoff=nan[:, 0])


class NanLayer(Reference):
    def layer(self, x: Array, *arguments: Any, **options: Any) -> Array:
        return np.full_like(x, np.nan)


class Memoises(Norm):
    """Remembers results by shape."""

    def __init__(self) -> None:
        self.known: dict[Any, Any] = {}

    def after(self, x: Array, out: Array) -> Any:
        return self.known.setdefault(x.shape, out).copy()


class Wavers(Norm):
    """Another result at each call of the same input."""

    def after(self, x: Array, out: Array) -> Any:
        return out * (1.0 + 1e-3 * np.random.default_rng().random())


class Unsteady(Reference):
    """Right within rounding, and different at each call, which it does not declare."""

    calls = 0

    def experts(self, x: Array, *arguments: Any, **options: Any) -> Array:
        self.calls += 1
        return super().experts(x, *arguments, **options) * (1.0 + self.calls * 2.0**-52)


# Surroundings -------------------------------------------------------------------------------------


class PatchesNumPy(Wrong):
    """Takes the means by which it would be found out from the judge."""

    def before(self) -> None:
        np.isnan = lambda values: np.ones(np.shape(values), bool)  # type: ignore[assignment]


class PatchesTheSuite(Wrong):
    def before(self) -> None:
        checks.ratio = lambda actual, expected: np.zeros(actual.shape)  # type: ignore[attr-defined]


class PatchesTheSubject(Wrong):
    def before(self) -> None:
        from properties.subject import Case

        Case.worst_ratio = 0.0


class Settings(Norm):
    """Seeds the global generator and changes errstate, warnings and environment: all is allowed."""

    def before(self) -> None:
        np.random.seed(0)  # noqa: NPY002
        np.seterr(all="raise")
        warnings.simplefilter("error")
        os.environ["OF_HOSTILE_ADAPTERS"] = "1"


class Moves(Norm):
    """Changes the current folder."""

    def before(self) -> None:
        os.chdir("/")


class Forks(Wrong):
    """Returns twice, in two processes."""

    def before(self) -> None:
        if os.fork():
            os.wait()


class KeepsThread(Norm):
    """Leaves a thread behind that keeps the process from ending."""

    started = False

    def before(self) -> None:
        if not KeepsThread.started:
            KeepsThread.started = True
            threading.Thread(target=time.sleep, args=(3600,), name="left running").start()


class Floods(Norm):
    """Prints 100 MB, once, and is wrong."""

    printed = False

    def before(self) -> None:
        if not Floods.printed:
            Floods.printed = True
            for _ in range(100):
                print("x" * (1 << 20))

    def after(self, x: Array, out: Array) -> Any:
        return out + 1.0


# Processes ----------------------------------------------------------------------------------------


def hold() -> None:
    """Sleep in C, holding the interpreter: no signal handler and no thread of Python's runs."""
    ctypes.PyDLL(None).usleep(ctypes.c_uint(3_600_000_000))


class Zoo(Reference):
    """Ends its process in one method, hangs in another, and is right elsewhere."""

    def rms_norm(self, x: Array, weight: Array, *, eps: float) -> Array:
        ctypes.string_at(0)
        raise AssertionError

    def situ_glu(self, gate: Array, up: Array, *, beta_gate: float, beta_up: float) -> Array:
        hold()
        raise AssertionError

    def router_logits(self, *arguments: Any, **options: Any) -> Array:
        os._exit(0)

    def route_vjp(self, *arguments: Any, **options: Any) -> Any:
        raise KeyboardInterrupt


# What it says of itself ---------------------------------------------------------------------------


class Coarse(Norm):
    """Declares a format that nothing can be wrong in, and computes in float64."""

    precision = Precision(compute="float8_e5m2", accumulate="float8_e5m2", storage="float64")


class AnswersAll:
    """Every name is there."""

    name = "all"
    version = "1"
    precision = Precision()
    conventions = Conventions()

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments, **options: None


class NoMethod(Norm):
    route = 3


class RaisesWhenRead(Norm):
    @property
    def situ_glu(self) -> Any:
        raise ValueError("no kernel for this device")


class NamelessInside(Norm):
    @property
    def version(self) -> str:  # type: ignore[override]
        raise OSError("no such file")


class BiasRaises(Reference):
    """A balancer whose bias cannot be read once it has seen a batch."""

    def balancer(self, **options: Any) -> Any:
        return BrokenBalancer(super().balancer(**options))


class BrokenBalancer:
    def __init__(self, right: Any) -> None:
        self.right = right
        self.seen = False

    @property
    def bias(self) -> Array:
        if self.seen:
            raise SystemExit(0)
        return self.right.bias

    @property
    def histogram(self) -> Array:
        return self.right.histogram

    def observe(self, *arguments: Any, **options: Any) -> Routing:
        self.seen = True
        return self.right.observe(*arguments, **options)

    def update(self) -> None:
        self.right.update()


class CallsTheReference(Norm):
    """Computes nothing itself."""

    def rms_norm(self, x: Array, weight: Array, *, eps: float) -> Any:
        import reference_numpy

        return reference_numpy.rms_norm(x, weight, eps=eps)


@contextlib.contextmanager
def back_where_it_was() -> Any:
    """The current folder, whatever happens inside."""
    try:
        yield
    finally:
        os.chdir(WHERE_IT_STARTED)
