"""The attributes of an algorithm, and whether a method changed them."""

from __future__ import annotations

import dataclasses
from typing import Any

from ..algorithm import Algorithm


def state(part: Any) -> dict[str, Any]:
    """The attributes of a part and of the parts inside it. Fields and containers of the class are
    compared by content; other attributes, such as a log made in __post_init__, by identity.
    """
    out: dict[str, Any] = {}
    own = {f.name for f in dataclasses.fields(part)}
    for name, value in vars(part).items():
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            out |= {f"{name}.{k}": v for k, v in state(value).items()}
        out[name] = _contents(value) if name in own else _Same(value)
    shared = [c for c in type(part).__mro__ if issubclass(c, Algorithm) and c is not Algorithm]
    for name, value in (item for c in shared for item in vars(c).items()):
        if isinstance(value, _CONTAINERS) and not name.startswith("__"):
            out.setdefault(name, _contents(value))
    return out


_CONTAINERS = (dict, list, set)


def _contents(value: Any) -> Any:
    return value.copy() if isinstance(value, _CONTAINERS) else _Same(value)


class _Same:
    """A value that is equal to itself only."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def differs(before: dict[str, Any], after: dict[str, Any]) -> str:
    """The name of an attribute that was added or replaced; "" if there is none."""
    for name, value in after.items():
        if name not in before or not _equal(before[name], value):
            return f"self.{name}"
    return ""


def _equal(a: Any, b: Any) -> bool:
    """a == b, where containers may hold tensors."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(a[k] is b[k] for k in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(one is two for one, two in zip(a, b, strict=True))
    return bool(a == b)
