"""Another legal value of a hyper-parameter, from the range that it declares."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

from ..core.hyper import Hyper
from ..errors import ConfigError


def values(hyper: Hyper, value: Any) -> list[Any]:
    """Values that the rule allows and that differ, the likeliest to matter first.

    >>> from fedloom.core.hyper import Share
    >>> values(Hyper(Share), 0.25), values(Hyper(bool), True)
    ([0.125, 0.5, 1.0, 0.0], [False])
    """
    out: list[Any] = []
    for v in _candidates(hyper, value):
        differs = type(v) is not type(value) or v != value
        if hyper.allows(v) and differs and v not in out:
            out.append(v)
    return out


def another(hyper: Hyper, value: Any = None) -> Any:
    """The first of values(); None if there is none.

    >>> another(Hyper(bool), True)
    False
    """
    return next(iter(values(hyper, value)), None)


def _candidates(hyper: Hyper, value: Any) -> list[Any]:
    if hyper.choices:
        return list(hyper.choices)
    if isinstance(value, bool):
        return [not value]
    low, high = hyper.ends
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
        hyper = field.metadata.get("hyper")
        if isinstance(now, tuple):
            continue  # a list has no range to take another one from
        if hyper is None and isinstance(now, (int, float)):
            hyper = Hyper()  # a field without a declared range
        if isinstance(hyper, Hyper):
            out[field.name] = now, _all(part, field.name, values(hyper, now))
    return out


def _all(part: Any, name: str, values: list[Any]) -> list[Any]:
    """The part with each of these values, where it takes them: some go with other options only."""
    parts = []
    for value in values:
        with contextlib.suppress(ConfigError):
            parts.append(dataclasses.replace(part, **{name: value}))
    return parts
