"""Whether an implementation calls the reference that it is compared with.

Such an adapter is right by construction: what it hands back is not wrong, and fails nothing. But
its pass is one of the reference and not of a kernel, so the report says where the names are. Seen
are the classes it derives from, what it holds, and the names in its module and in those reached
from there that are installed in no environment, imports inside functions included. A reference that
is reached in another way (by a name made up at run time, through a package, or copied) is not seen.
"""

from __future__ import annotations

import inspect
import sys
import sysconfig
import types
from collections.abc import Iterator
from typing import Any

__all__ = ["uses_of_the_reference"]

_REFERENCE = ("reference_numpy", "properties.reference")
_SUITE = ("properties", "reference_numpy", "lp_oracle")
_INSTALLED = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})


def uses_of_the_reference(implementation: Any) -> list[str]:
    """Where the implementation's own code names the reference's functions, sorted; often empty."""
    kind = implementation if isinstance(implementation, type) else type(implementation)
    if _is_reference(kind.__module__):
        return [f"it is {kind.__module__}.{kind.__name__}"]
    found = {
        f"{kind.__name__} derives from {base.__module__}.{base.__name__}"
        for base in kind.__mro__[1:]
        if _is_reference(base.__module__)
    }
    held = map(_named, list(getattr(implementation, "__dict__", {}).values()))
    found |= {f"{kind.__name__} holds {told}" for told in held if told}
    for module in _reachable(sys.modules.get(kind.__module__)):
        named = map(_named, list(vars(module).values()))
        found |= {f"{module.__name__} has {told}" for told in named if told}
        for function in _functions(module):
            for name in _imports(function.__code__):
                found.add(f"{module.__name__}.{function.__qualname__} imports {name}")
    return sorted(found)


def _reachable(start: types.ModuleType | None) -> list[types.ModuleType]:
    """The module and those that its names lead to, as far as they are the adapter's own."""
    found: dict[str, types.ModuleType] = {}
    left = [start]
    while left:
        module = left.pop()
        if module is None or module.__name__ in found or not _is_own(module):
            continue
        found[module.__name__] = module
        for value in list(vars(module).values()):
            if isinstance(value, types.ModuleType):
                left.append(value)
            elif isinstance(value, type | types.FunctionType):
                left.append(sys.modules.get(str(value.__module__)))
    return list(found.values())


def _is_own(module: types.ModuleType) -> bool:
    file = getattr(module, "__file__", None)
    if not file or module.__name__.partition(".")[0] in _SUITE:
        return False
    return not file.startswith(_INSTALLED)


def _named(value: Any) -> str:
    """What a name stands for, where that is a part of the reference that computes."""
    if isinstance(value, types.ModuleType):
        return value.__name__ if _is_reference(value.__name__) else ""
    if isinstance(value, types.FunctionType) and _is_reference(str(value.__module__)):
        return f"{value.__module__}.{value.__name__}"
    kind = value if isinstance(value, type) else type(value)
    held = kind.__module__ == "properties.reference"
    return f"{kind.__module__}.{kind.__name__}" if held else ""


def _functions(module: types.ModuleType) -> Iterator[types.FunctionType]:
    for value in list(vars(module).values()):
        if isinstance(value, types.FunctionType) and value.__module__ == module.__name__:
            yield value
        if isinstance(value, type) and value.__module__ == module.__name__:
            yield from (part for part in vars(value).values() if inspect.isfunction(part))


def _imports(code: types.CodeType) -> Iterator[str]:
    yield from (name for name in code.co_names if _is_reference(name))
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _imports(constant)


def _is_reference(module: str) -> bool:
    return any(module == name or module.startswith(name + ".") for name in _REFERENCE)
