"""The arguments of an experiment, in the short forms that people write, and refused where they are
something else altogether.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral
from typing import Any

import torch
from torch import nn

from ..algorithm import Algorithm
from ..compression.link import Link, Via, via
from ..data import FederatedData
from ..engines.metrics import is_whole
from ..errors import ConfigError
from ..federation.devices import Devices
from ..federation.local import Local
from ..federation.sampling import Turnover
from ..objectives import Objective
from ..server.evaluation import Evaluation
from ..server.rounds import Saving
from ..submodels.base import Rule

_DTYPES = {"float32": torch.float32, "float64": torch.float64}
# argument: what it may be, and an example of that
_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "algorithm": ((Algorithm,), "an Algorithm such as FedAvg()"),
    "data": ((FederatedData,), "data such as digits() or from_clients([(x, y), ...])"),
    "local": ((Local,), "Local(epochs=5, lr=0.1)"),
    "evaluation": ((Evaluation,), "Evaluation(every=5, target=0.8)"),
    "saving": ((Saving,), "Saving(seconds=60.0, keep=2)"),
    "submodel": ((Rule, type(None)), "a rule such as FIARSE()"),
    "compress": ((Link, Via, str, type(None)), "a codec's name such as 'topk:0.01', or a Link"),
    "devices": ((Devices, type(None)), "a profile such as LogNormal()"),
    "turnover": ((Turnover, type(None)), "Turnover(active=250)"),
    "weights": ((Mapping, str, os.PathLike, type(None)), "{name: tensor} or a safetensors file"),
    "name": ((str,), "a text"),
    "higher_is_better": ((bool, type(None)), "True, False or None"),
    "channels_last": ((bool, type(None)), "True, False or None"),
}


def check_types(owner: Any) -> None:
    """Raise ConfigError for an argument of an experiment that is of no type it can be."""
    for name, (types, example) in _KINDS.items():
        value = getattr(owner, name)
        if not isinstance(value, types):
            raise ConfigError(f"{name} must be {example}, got {value!r}")
    if owner.resident_bytes is not None:
        whole(owner.resident_bytes, "resident_bytes", 1)
    if not isinstance(owner.model, nn.Module) and not callable(owner.model):
        raise ConfigError(
            f"model must be an nn.Module, or a function that makes one, got {owner.model!r}"
        )
    if not (owner.loss is None or isinstance(owner.loss, Objective) or callable(owner.loss)):
        raise ConfigError(
            f"loss must be an Objective or loss(outputs, targets), got {owner.loss!r}"
        )
    if not isinstance(owner.engine, str) and not hasattr(owner.engine, "evaluate"):
        raise ConfigError(
            f"engine must be a name such as 'workers:2', or an Engine, got {owner.engine!r}"
        )


def whole(given: Any, name: str, least: int) -> int:
    """A whole number, numpy's too. Raises ConfigError."""
    if isinstance(given, bool) or not isinstance(given, Integral) or given < least:
        raise ConfigError(f"{name} must be a whole number from {least}, got {given!r}")
    if (number := int(given)) >= 1 << 64:  # Python may not print what is longer
        raise ConfigError(f"{name} must be below 2^64, got one of {number.bit_length()} bits")
    return number


def functions(given: Any, name: str) -> tuple[Callable[..., Any], ...]:
    """Callbacks: one, or any number of them. Raises ConfigError."""
    found = (given,) if callable(given) else tuple(given) if isinstance(given, Sequence) else None
    if found is None or not all(map(callable, found)):
        raise ConfigError(f"{name} must be a function of a round's row, or a list, got {given!r}")
    return found


def metrics_of(given: Any) -> dict[str, Callable[..., Any]] | None:
    """Metrics by name; one function alone goes by its own. Raises ConfigError."""
    if given is None:
        return None
    if callable(given) or is_whole(given):
        given = {str(getattr(given, "__name__", type(given).__name__)): given}
    usable = isinstance(given, Mapping) and all(callable(m) or is_whole(m) for m in given.values())
    if not usable:
        raise ConfigError(
            "metrics must be {name: f(outputs, targets)}, or objects with update() and compute(), "
            f"got {given!r}"
        )
    return {str(name): metric for name, metric in given.items()}


def link_of(given: Link | Via | str | None) -> Link:
    """A codec's name is that codec with the feedback that goes with it; one Via is for all fields.

    Raises ConfigError, CompositionError.
    """
    if isinstance(given, str):
        given = via(given)
    return Link(given) if isinstance(given, Via) else given or Link()


def type_of(given: torch.dtype | str | None) -> torch.dtype | None:
    """float32 or float64, by name too. Raises ConfigError."""
    found = _DTYPES.get(given) if isinstance(given, str) else given
    if given is not None and found not in _DTYPES.values():
        raise ConfigError(f"dtype must be torch.float32 or torch.float64, got {given!r}")
    return found
