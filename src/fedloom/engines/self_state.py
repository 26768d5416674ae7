"""What a part keeps outside of its records, and whether that stays as it was."""

from __future__ import annotations

import dataclasses
import functools
import types
from typing import Any

from torch import Tensor

from ..core.vector import as_bytes


def state(part: Any, deep: bool = False) -> dict[str, Any]:
    """{place: value} of all that a part and the parts inside it could keep something in.

    That is fields, containers of the class with their contents and its tensors, and other
    attributes, such as a log set up in __post_init__, by identity. deep: everything with all its
    contents, and the globals that the methods name.
    """
    kind, out = type(part), dict[str, Any]()
    own, kept = {f.name for f in dataclasses.fields(part)}, _deep if deep else _contents
    for name, value in vars(part).items():
        if isinstance(getattr(kind, name, None), functools.cached_property):
            continue
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            inner = state(value, deep).items()
            out |= {p.replace("self.", f"self.{name}.", 1): v for p, v in inner}
        else:
            out[f"self.{name}"] = kept(value) if deep or name in own else _Same(value)
    for owner in kind.__mro__:
        if owner.__module__.startswith("fedloom.") or owner is object:
            continue
        for name, value in vars(owner).items():
            if deep and isinstance(value, types.FunctionType):
                out |= _globals(value)
            elif not name.startswith("__") and (
                isinstance(value, (*_CONTAINERS, Tensor)) or (deep and not _is_code(value))
            ):
                out[f"{owner.__name__}.{name}"] = kept(value)
    return out


def changed(before: dict[str, Any], after: dict[str, Any]) -> str:
    """The first place that is new or another one; "" if there is none."""
    return next((p for p, v in after.items() if p not in before or before[p] != v), "")


_CONTAINERS = (dict, list, set)


class _Same:
    """A value that is equal to itself only."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def _contents(value: Any) -> Any:
    """A container whose elements are compared by identity."""
    if isinstance(value, dict):
        return {key: _Same(v) for key, v in value.items()}
    if isinstance(value, list):
        return [_Same(v) for v in value]
    return value.copy() if isinstance(value, set) else _Same(value)


def _deep(value: Any, depth: int = 4) -> Any:
    """A value as something that later changes cannot reach."""
    if isinstance(value, Tensor):
        try:
            return "tensor", tuple(value.shape), as_bytes(value).numpy().tobytes()
        except RuntimeError:  # it was kept from inside of a vmap, which has ended
            return object()  # equal to nothing: it should not be here
    if depth and isinstance(value, (list, tuple)):
        return [_deep(v, depth - 1) for v in value]
    if depth and isinstance(value, dict):
        return {repr(k): _deep(v, depth - 1) for k, v in value.items()}
    if isinstance(value, (int, float, str, bool, set, type(None))):
        return repr(value)
    if depth and hasattr(value, "__dict__") and not _is_code(value):
        return {k: _deep(v, depth - 1) for k, v in vars(value).items()}
    return _Same(value)


def _globals(function: types.FunctionType) -> dict[str, Any]:
    """The containers, tensors and numbers of its file that a function names."""
    known = function.__globals__
    found = {name: known[name] for name in function.__code__.co_names if name in known}
    kinds = (*_CONTAINERS, Tensor, int, float, str)
    return {f"the global {n}": _deep(v) for n, v in found.items() if isinstance(v, kinds)}


def _is_code(value: Any) -> bool:
    return callable(value) or isinstance(value, (property, classmethod, staticmethod))
