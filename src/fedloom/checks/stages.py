"""The contract of a stage."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..algorithms.registry import make_algorithm
from ..errors import AuthorError, CompositionError
from ..stage import Stage, overriding
from ..submodels import HeteroFL
from .compare import Notes, twice
from .engine_agreement import Contract, check_parts
from .outcome import Check
from .tiny_federation import run

_METHODS = (
    *("server_init", "announce", "address", "client_init", "receive", "along", "send", "read"),
    "root",
)


class StageContract(Contract):
    """See Contract. Runs are FedAvg's, with some of the clients in each round."""

    kind = Stage
    part: Stage

    def checks(self, engines: Sequence[str]) -> list[Check]:
        return [
            *self.common(engines),
            Check("clients with a part of the model", self.parts),
            Check("steps can be replayed", self.replayed),
        ]

    def settings(self, part: Any, dtype: torch.dtype) -> dict[str, Any]:
        return {"stages": (part,), "algorithm": make_algorithm("fedavg"), "cohort": 4}

    def call(self, notes: Notes) -> None:
        """In a run, whose engine calls the methods."""
        run(self.trial(_recorder(self.part, notes), torch.float32))

    def parts(self) -> str | None:
        """Clients that hold half of the model: a stage may be for whole models alone, and cannot
        say so.
        """
        make = functools.partial(self.trial, self.part)
        why = "use view.take() and put(): what it keeps has d values, and messages have m"
        try:
            return check_parts(HeteroFL(), make, why)
        except (AuthorError, CompositionError) as error:
            return str(error)


def _recorder(part: Stage, notes: Notes) -> Stage:
    """The stage with every method that it overrides called twice."""

    def recorded(name: str) -> Callable[..., Any]:
        return lambda _, *arguments: twice(notes, getattr(part, name), arguments)

    methods = {name: recorded(name) for name in _METHODS if overriding((part,), name)}
    made: Stage = type("Recorder", (Stage,), {"name": part.name, **methods})()
    return made
