"""What a part keeps where it must keep nothing: on itself, on its class, in its file's globals."""

from __future__ import annotations

import functools
import types
from typing import Any

from torch import Tensor

from .records import bits

__all__ = ["KEPT", "kept", "look"]

KEPT = "nothing kept on itself"


def look(part: Any) -> dict[str, Any]:
    """{place: value} of everything that a part could keep something in, deep enough to compare."""
    kind, out = type(part), {}
    for name, value in vars(part).items():
        if not isinstance(getattr(kind, name, None), functools.cached_property):
            out[f"self.{name}"] = _frozen(value)
    for owner in _own_classes(kind):
        for name, value in vars(owner).items():
            if not name.startswith("__") and not _is_code(value):
                out[f"{owner.__name__}.{name}"] = _frozen(value)
            if isinstance(value, types.FunctionType):
                out |= _globals(value)
    return out


def _own_classes(kind: type) -> list[type]:
    """The class and those it is made of, but not fedloom's."""
    return [c for c in kind.__mro__ if not c.__module__.startswith("fedloom.") and c is not object]


def _globals(function: types.FunctionType) -> dict[str, Any]:
    """The containers, tensors and numbers of the file that a function names."""
    found, out = function.__globals__, {}
    for name in function.__code__.co_names:
        value = found.get(name)
        if isinstance(value, (list, dict, set, Tensor, int, float, str)):
            out[f"the global {name}"] = _frozen(value)
    return out


def _is_code(value: Any) -> bool:
    return callable(value) or isinstance(value, (property, classmethod, staticmethod))


def _frozen(value: Any, depth: int = 4) -> Any:
    """A value as something that later changes cannot reach."""
    if isinstance(value, Tensor):
        return "tensor", tuple(value.shape), bits(value)
    if depth and isinstance(value, (list, tuple)):
        return [_frozen(v, depth - 1) for v in value]
    if depth and isinstance(value, dict):
        return {repr(k): _frozen(v, depth - 1) for k, v in value.items()}
    if isinstance(value, (int, float, str, bool, set, type(None))):
        return repr(value)
    if depth and hasattr(value, "__dict__") and not _is_code(value):
        return {k: _frozen(v, depth - 1) for k, v in vars(value).items()}
    return id(value)


def kept(before: dict[str, Any], after: dict[str, Any]) -> str:
    """A paragraph on the first place that has changed; "" if none has."""
    for place in after:
        if place not in before or before[place] != after[place]:
            return (
                f"{place} changed during a run. The same object serves all clients, and copies of "
                "it serve them in other processes, so that what it keeps is mixed up or lost: what "
                "a client must remember goes into mem, what must last for a round into loc, what "
                "the server must remember into srv"
            )
    return ""
