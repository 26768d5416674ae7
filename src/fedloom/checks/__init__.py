"""The contract of a user's own part, such as an algorithm, carried out on a small problem.

The rules of an algorithm's methods are those of every run, engines/author_rules.py. What all kinds
owe is in engine_agreement.py (the same in every engine, after a stop, on the bill).
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Sequence
from typing import Any

from ..data import FederatedData
from ..engines import make_engine
from ..errors import ConfigError, did_you_mean
from .aggregations import AggregationContract
from .algorithms import AlgorithmContract
from .codecs import CodecContract
from .engine_agreement import Contract
from .objectives import ObjectiveContract
from .outcome import Outcome, Report, carry_out
from .stages import StageContract
from .tiny_federation import Setup
from .views import ViewContract

__all__ = ["CONTRACTS", "ENGINES", "Outcome", "Report", "check", "parts_of"]

ENGINES = ("vectorised:3", "workers:2")
CONTRACTS: dict[str, type[Contract]] = {
    "algorithm": AlgorithmContract,
    "objective": ObjectiveContract,
    "sub-model scheme": ViewContract,
    "codec": CodecContract,
    "aggregation": AggregationContract,
    "stage": StageContract,
}
_WHAT = "an Algorithm, an Objective, a SubModel, a Codec, an Aggregation or a Stage"
_TRIED = (
    ", which are checked here; a model, data, a metric and a loss that is a function are tried "
    "before round 1: `fedloom run digits metrics=FILE.py:NAME --dry-run`"
)


def check(
    part: Any,
    engines: Sequence[str] = ENGINES,
    name: str = "",
    model: Any = None,
    data: FederatedData | None = None,
) -> Report:
    """Carry out the contract on a part or class: an algorithm, objective, sub-model scheme, codec,
    aggregation or stage.

    engines: those that must agree with the serial one. The runs take seconds; workers are
    processes, whose start takes most of them. name: what the report calls the part. model, data: of
    your own, as an Experiment takes them, for a part that the small ones do not suit. Raises
    ConfigError for what is no part, or a class that needs arguments.

    >>> from fedloom.compression.codecs import TopK
    >>> report = check(TopK(ratio=0.5), engines=("vectorised",))
    >>> report.passed, report.kind
    (True, 'codec')
    """
    if (model is None) != (data is None):
        raise ConfigError("check: model and data are given together, or neither")
    for engine in engines:
        make_engine(engine)
    part = built(part)
    kind = kind_of(part)
    checks = CONTRACTS[kind](part, Setup(model, data)).checks(engines)
    return carry_out(part, name or type(part).__name__, kind, checks)


def kind_of(part: Any) -> str:
    """What a part or a class is: one of CONTRACTS; "" if it is none.

    >>> from fedloom import LocalSGD
    >>> kind_of(LocalSGD()), kind_of(dict)
    ('algorithm', '')
    """
    part_class = part if isinstance(part, type) else type(part)
    return next((name for name, one in CONTRACTS.items() if issubclass(part_class, one.kind)), "")


def built(part: Any) -> Any:
    """A part as it is, or made of its class. Raises ConfigError for what is none."""
    if not kind_of(part):
        name = f"the class {part.__name__}" if isinstance(part, type) else repr(part)
        raise ConfigError(f"only {_WHAT} can be checked, got {name}")
    if not isinstance(part, type):
        return part
    if lacks := sorted(getattr(part, "__abstractmethods__", ())):
        raise ConfigError(
            f"{part.__name__} cannot be made: it has no {', '.join(lacks)}; write them"
        )
    try:
        return part()
    except (ConfigError, TypeError) as error:
        raise ConfigError(
            f"{error} Write `mine = {part.__name__}(...)` into the file and check FILE.py:mine"
        ) from error


def parts_of(module: types.ModuleType, name: str = "") -> dict[str, Any]:
    """{name: class or instance} of the parts that a module defines, without private ones; of one of
    them, if named. Raises ConfigError.
    """
    every = {k: v for k, v in vars(module).items() if k[0] != "_" and _is_part(v, module)}
    if name:
        part = getattr(module, name, None)
        if part is None:
            hint = did_you_mean(name, every) if every else f"it defines no part: {_WHAT}"
            raise ConfigError(f"'{module.__file__}' has no part '{name}'; {hint}")
        if not kind_of(part):
            raise ConfigError(f"'{module.__file__}': '{name}' is none of {_WHAT}{_TRIED}")
        return {name: part}
    if not every:
        raise ConfigError(
            f"'{module.__file__}' defines nothing that can be checked: no class or instance of "
            f"{_WHAT}{_TRIED}"
        )
    classes = {type(v) for v in every.values() if not isinstance(v, type)}
    return {k: v for k, v in every.items() if v not in classes}


def _is_part(value: Any, module: types.ModuleType) -> bool:
    if not kind_of(value) or not isinstance(value, type):
        return bool(kind_of(value))
    # an abstract class is a base of other parts here, or one that a method was forgotten of
    heirs = [v for v in vars(module).values() if isinstance(v, type) and value in v.__mro__[1:]]
    return value.__module__ == module.__name__ and not (inspect.isabstract(value) and heirs)
