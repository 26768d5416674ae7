"""Names -> methods, by hand. A composition is written here or in its paper's file, never as a class
that mixes papers.
"""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Callable
from typing import Any, NamedTuple

from ..algorithm import Algorithm, FedAvg
from ..core.hyper import Hyper
from ..errors import ConfigError, did_you_mean
from . import (
    FAFED,
    STEM,
    CFedAvg,
    FedACG,
    FedCM,
    FedDC,
    FedDyn,
    FedNova,
    FedSMOO,
    NaiveAdaptive,
    Scaffold,
    fedadagrad,
    fedadam,
    fedams,
    fedavgm,
    fedprox,
    fedsam,
    fedspeed,
    fedyogi,
    mofedsam,
)

ALGORITHMS: dict[str, Callable[..., Algorithm]] = {
    "fedavg": FedAvg,
    "fedprox": fedprox,
    "fedavgm": fedavgm,
    "scaffold": Scaffold,
    "fedacg": FedACG,
    "fednova": FedNova,
    "cfedavg": CFedAvg,
    "feddyn": FedDyn,
    "fedsmoo": FedSMOO,
    "fafed": FAFED,
    "fedadagrad": fedadagrad,
    "fedadam": fedadam,
    "fedyogi": fedyogi,
    "fedams": fedams,
    "fedcm": FedCM,
    "feddc": FedDC,
    "fedsam": fedsam,
    "mofedsam": mofedsam,
    "fedspeed": fedspeed,
    "stem": STEM,
    "naive_adaptive": NaiveAdaptive,
}

LABELS = {
    "fedavg": "FedAvg",
    "fedprox": "FedProx",
    "fedavgm": "FedAvgM",
    "scaffold": "SCAFFOLD",
    "fedacg": "FedACG",
    "fednova": "FedNova",
    "cfedavg": "CFedAvg",
    "feddyn": "FedDyn",
    "fedsmoo": "FedSMOO",
    "fafed": "FAFED",
    "fedadagrad": "FedAdagrad",
    "fedadam": "FedAdam",
    "fedyogi": "FedYogi",
    "fedams": "FedAMS",
    "fedcm": "FedCM",
    "feddc": "FedDC",
    "fedsam": "FedSAM",
    "mofedsam": "MoFedSAM",
    "fedspeed": "FedSpeed",
    "stem": "STEM",
    "naive_adaptive": "naive adaptive FedAvg",
}


class Option(NamedTuple):
    """A hyper-parameter as a user sees it."""

    name: str
    default: Any
    allowed: str
    meaning: str
    source: str


def _known(name: str) -> Callable[..., Algorithm]:
    if name not in ALGORITHMS:
        raise ConfigError(f"unknown algorithm '{name}'; {did_you_mean(name, ALGORITHMS)}")
    return ALGORITHMS[name]


def make_algorithm(name: str, **values: Any) -> Algorithm:
    """A method by its name. Raises ConfigError for an unknown name or option, and for a value out
    of range.

    >>> make_algorithm("fedacg", lam=0.9)
    FedACG(lam=0.9, beta=0.01)
    """
    make = _known(name)
    known = {o.name: o for o in options(name)} if values else {}
    for key, value in values.items():
        if key not in known:
            hint = did_you_mean(key, known) if known else "it has none"
            raise ConfigError(f"algorithm '{name}' has no option '{key}'; {hint}")
        if not isinstance(value, (int, float)) and isinstance(known[key].default, (int, float)):
            raise ConfigError(
                f"algorithm.{key} must be a number {known[key].allowed}, got {value!r}"
            )
    return make(**values)


def options(name: str) -> list[Option]:
    """The hyper-parameters of a method, with ranges and sources, read off what it is built of.

    A constructor that says Annotated[float, "..."] of a parameter has a source of its own for it.
    """
    make = _known(name)
    hints = typing.get_type_hints(make, include_extras=True)
    rules = {f.name: f.metadata["hyper"] for part in _parts(make()) for f in _ranged(part)}
    aliases = {"server_lr": "lr"}  # what an optimiser at the server calls lr
    out = []
    for key, parameter in inspect.signature(make).parameters.items():
        rule: Hyper = rules.get(key) or rules.get(aliases.get(key, ""), Hyper())
        own = getattr(hints.get(key), "__metadata__", ())
        out.append(
            Option(
                key,
                parameter.default,
                rule.range_text(),
                rule.meaning,
                own[0] if own else rule.source,
            )
        )
    return out


def _parts(part: Any) -> list[Any]:
    """An algorithm, what it wraps, and the optimisers it uses."""
    inner = [getattr(part, f.name) for f in dataclasses.fields(part)]
    return [part, *(q for p in inner if dataclasses.is_dataclass(p) for q in _parts(p))]


def _ranged(part: Any) -> list[Any]:
    return [f for f in dataclasses.fields(part) if "hyper" in f.metadata]


def label_of(algorithm: Algorithm) -> str:
    """What tables and legends call an algorithm: its paper's name, or the expression it is.

    >>> label_of(fedavgm(beta=0.4))
    'FedAvgM'
    """
    for name, make in ALGORITHMS.items():
        if _shape(make()) == _shape(algorithm):
            return LABELS[name]
    return _expression(algorithm)


def _shape(part: Any) -> Any:
    """The types that a composition is made of."""
    inner = [getattr(part, f.name) for f in dataclasses.fields(part)]
    return type(part), [_shape(p) for p in inner if dataclasses.is_dataclass(p)]


def _expression(part: Any) -> str:
    inner = [getattr(part, f.name) for f in dataclasses.fields(part)]
    names = [_expression(p) for p in inner if dataclasses.is_dataclass(p)]
    return f"{type(part).__name__}({', '.join(names)})" if names else type(part).__name__
