"""Another legal value of a hyper-parameter, from the range that it declares."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

from ..core.hyper import Hyper
from ..errors import ConfigError


def values(rule: Hyper, value: Any) -> list[Any]:
    """Values that the rule allows and that differ, the likeliest to matter first.

    >>> from fedloom.core.hyper import Share
    >>> values(Hyper(Share), 0.25), values(Hyper(bool), True)
    ([0.125, 0.5, 1.0, 0.0], [False])
    """
    found: list[Any] = []
    for v in _candidates(rule, value):
        differs = type(v) is not type(value) or v != value
        if rule.allows(v) and differs and v not in found:
            found.append(v)
    return found


def another(rule: Hyper, value: Any = None) -> Any:
    """The first of values(); None if there is none.

    >>> another(Hyper(bool), True)
    False
    """
    return next(iter(values(rule, value)), None)


def _candidates(rule: Hyper, value: Any) -> list[Any]:
    if rule.choices:
        return list(rule.choices)
    if isinstance(value, bool):
        return [not value]
    low, high = rule.ends
    middle = (low + high) / 2 if low is not None and high is not None else None
    if isinstance(value, int):
        ends = [int(v) for v in (low, high) if v is not None]
        return [max(1, value // 2), value + 1, value - 1, max(1, value // 64), *ends]
    if isinstance(value, float) and value:
        return [v for v in (value / 2, value * 2, middle, 1.0, 0.0) if v is not None]
    return [v for v in (0.5, 1, middle) if v is not None]


def variants(part: Any) -> dict[str, tuple[Any, list[Any]]]:
    """{option: (its value, the part with other legal values of it)}, inner parts included.

    >>> from fedloom.wrappers import Prox
    >>> from fedloom import FedAvg
    >>> {name: len(other) for name, (_, other) in variants(Prox(inner=FedAvg())).items()}
    {'inner.server_lr': 2, 'mu': 4}
    """
    out: dict[str, tuple[Any, list[Any]]] = {}
    for field in dataclasses.fields(part):
        now = getattr(part, field.name)
        if dataclasses.is_dataclass(now) and not isinstance(now, type):
            for name, (value, inner) in variants(now).items():
                out[f"{field.name}.{name}"] = value, _all(part, field.name, inner)
            continue
        rule = field.metadata.get("hyper")
        if isinstance(now, tuple):
            continue  # a list has no range to take another one from
        if rule is None and isinstance(now, (int, float)):
            rule = Hyper()  # a field without a declared range
        if isinstance(rule, Hyper):
            out[field.name] = now, _all(part, field.name, values(rule, now))
    return out


def _all(part: Any, name: str, values: list[Any]) -> list[Any]:
    """The part with each of these values, where it takes them: some go with other options only."""
    made = []
    for value in values:
        with contextlib.suppress(ConfigError):
            made.append(dataclasses.replace(part, **{name: value}))
    return made
