"""Finding an implementation by name and seeing what it offers, with errors that say what to do."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from numbers import Real
from typing import Any

from properties import protocol
from properties.boundary import told
from properties.errors import AdapterError
from properties.guard.interruption import is_real
from properties.guard.surroundings import Surroundings
from properties.protocol import Conventions, Precision, number_format
from properties.subject import Subject

_BALANCER_EXTRAS = (
    "state_dict",
    "load_state_dict",
    "to",
    "set_enabled",
    "bias_storage_id",
    "observe_recomputed",
    "reduced_histogram",
)


def load(reference: str) -> Subject:
    """The implementation named as ``package.module:Name``, ready to be judged.

    Raises AdapterError if the module or the name is missing, importing or constructing raises or
    replaces what the suite computes with, an attribute is missing or of the wrong kind, a method
    does not take the protocol's arguments, or no method is offered at all.
    """
    module_name, colon, name = reference.partition(":")
    if not (colon and module_name and name) or "/" in module_name:
        raise AdapterError(
            f"{reference!r} is not of the form package.module:Name, as in my_adapter:Mine"
        )
    before = Surroundings.now()
    subject = subject_of(_construct(_attribute(module_name, name), reference), reference)
    tampered = before.tampered()
    if tampered:
        raise AdapterError(
            f"when {reference} was imported and constructed, {'; '.join(tampered)}. The suite "
            "computes in the same process, so nothing could be judged"
        )
    before.moved()
    return subject


def subject_of(implementation: Any, reference: str = "<object>") -> Subject:
    """A Subject around an implementation that is already an object.

    Raises AdapterError as :func:`load` does.
    """
    _attempt(lambda: _check_attributes(implementation, reference), f"reading {reference}")
    what = f"looking for the methods of {reference}"
    offered = _attempt(
        lambda: {name for name in _methods() if _offers(implementation, name, reference)}, what
    )
    if not offered - set(protocol.EXTRAS):
        names = ", ".join(name for names in protocol.METHODS.values() for name in names)
        raise AdapterError(
            f"{reference} offers none of the protocol's methods, so there is nothing to judge; "
            f"define at least one of {names}"
        )
    if "balancer" in offered:
        offered |= _balancer_extras(implementation, reference)
    if getattr(implementation, "conventions", Conventions()).ranks:
        offered |= {"ranks"}
    return Subject(implementation, reference, frozenset(offered))


def _attribute(module_name: str, name: str) -> Any:
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and (module_name == error.name or module_name.startswith(error.name + ".")):
            hint = "run from the folder that holds it, or install it"
            raise AdapterError(f"there is no module {module_name!r}; {hint}") from error
        raise AdapterError(f"importing {module_name} needs {error.name!r}: {error}") from error
    except BaseException as error:
        raise _failed(f"importing {module_name}", error) from error
    for part in name.split("."):
        if not hasattr(found, part):
            public = [
                entry
                for entry, value in vars(found).items()
                if callable(value)
                and getattr(value, "__module__", None) == module_name
                and not entry.startswith("_")
            ]
            raise AdapterError(
                f"{module_name} has no {name!r}; it defines {', '.join(public) or 'nothing'}"
            )
        found = getattr(found, part)
    return found


def _construct(factory: Any, reference: str) -> Any:
    if not callable(factory) or (not isinstance(factory, type) and hasattr(factory, "precision")):
        return factory  # an object that is ready, as every nn.Module is callable
    try:
        return factory()
    except BaseException as error:
        hint = "; an implementation is built without arguments"
        raise _failed(f"{reference}()", error, hint) from error


def _attempt(action: Callable[[], Any], what: str) -> Any:
    """Do something that runs the adapter's code."""
    try:
        return action()
    except AdapterError:
        raise
    except BaseException as error:
        raise _failed(what, error) from error


def _failed(what: str, error: BaseException, hint: str = "") -> AdapterError:
    """What is wrong with an adapter whose code raises; sys.exit is an exception like others."""
    if is_real(error):
        raise error
    kind = type(error).__name__
    if isinstance(error, SystemExit):
        kind += ", which ends a program"
    return AdapterError(f"{what} raised {kind}: {told(error)}{hint}")


def _check_attributes(implementation: Any, reference: str) -> None:
    kinds = {"name": str, "version": str, "precision": Precision, "conventions": Conventions}
    for attribute, kind in kinds.items():
        if not hasattr(implementation, attribute):
            if attribute == "conventions":
                continue
            raise AdapterError(f"{reference} has no {attribute}; set it to a {kind.__name__}")
        value = getattr(implementation, attribute)
        if not isinstance(value, kind):
            found = type(value).__name__
            raise AdapterError(
                f"{reference}.{attribute} is a {found}; it must be a {kind.__name__}"
            )
    precision: Precision = implementation.precision
    for format_name in (
        precision.compute,
        precision.accumulate,
        precision.storage,
        precision.routing_format,
    ):
        try:
            number_format(format_name)
        except ValueError as error:
            raise AdapterError(f"{reference}.precision: {error}") from error
    _check_conventions(getattr(implementation, "conventions", Conventions()), reference)


def _check_conventions(conventions: Conventions, reference: str) -> None:
    allowed = {
        "expert_rank": ("between", "interior", "q", "q+1"),
        "histogram_rank": (None, "between", "q", "q+1"),
        "bias_sign": (1, -1),
        "score_domain": ("sigmoid", "logit"),
        "ties": ("any", "lowest_index"),
        "padding": ("masked", "rejected", "unsupported"),
    }
    for name, values in allowed.items():
        value = getattr(conventions, name)
        if value not in values:
            choices = ", ".join(repr(choice) for choice in values)
            raise AdapterError(
                f"{reference}.conventions.{name} is {value!r}; it must be one of {choices}"
            )
    epsilon: Any = conventions.weight_epsilon
    if not (isinstance(epsilon, Real) and 0 <= float(epsilon) < float("inf")):
        raise AdapterError(
            f"{reference}.conventions.weight_epsilon is {epsilon!r}; it must be a number >= 0"
        )


def _methods() -> tuple[str, ...]:
    return (*(name for names in protocol.METHODS.values() for name in names), *protocol.EXTRAS)


def _offers(implementation: Any, name: str, reference: str) -> bool:
    method = _attempt(lambda: getattr(implementation, name, None), f"reading {reference}.{name}")
    if method is None:
        return False
    if not callable(method):
        found = type(method).__name__
        raise AdapterError(f"{reference}.{name} is of type {found}; it must be a method")
    expected = inspect.signature(getattr(protocol.Implementation, name))
    parameters = list(expected.parameters.values())[1:]
    positional = [None for part in parameters if part.kind is part.POSITIONAL_OR_KEYWORD]
    keywords = {part.name: None for part in parameters if part.kind is part.KEYWORD_ONLY}
    try:
        inspect.signature(method).bind(*positional, **keywords)
    except TypeError as error:
        raise AdapterError(
            f"{reference}.{name} cannot be called as the protocol does ({error}); "
            f"it must take {_plain(parameters)}"
        ) from error
    except ValueError:
        pass
    return True


def _plain(parameters: list[inspect.Parameter]) -> str:
    """A signature without its annotations."""
    bare = [part.replace(annotation=part.empty) for part in parameters]
    return str(inspect.Signature(bare))


def _balancer_extras(implementation: Any, reference: str) -> set[str]:
    what = f"{reference}.balancer(num_experts=4, top_k=1)"
    balancer = _attempt(lambda: implementation.balancer(num_experts=4, top_k=1), what)

    def has(name: str) -> Any:
        return _attempt(lambda: hasattr(balancer, name), f"reading {reference}.balancer().{name}")

    for required in ("observe", "update", "bias", "histogram"):
        if not has(required):
            raise AdapterError(f"{reference}.balancer() has no {required}; the protocol needs it")
    return {f"balancer.{name}" for name in _BALANCER_EXTRAS if has(name)}
