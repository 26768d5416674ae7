"""A partition of the user's own: a function of the targets and a seed."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from fedloom.data.client_indices import Partition, Ragged, as_lists

_GIVEN = ["targets", "seed"]


@dataclass(frozen=True)
class ByFunction:
    """What f(targets, seed, **options) returns: a list of indices for each client."""

    function: Callable[..., Any]
    options: Mapping[str, Any] = field(default_factory=dict)

    def split(self, targets: Tensor, seed: int) -> Ragged:
        """Call the function. Raises DataError for anything but lists of indices."""
        return as_lists(self.function(targets, seed, **self.options), self.function)

    def about(self) -> dict[str, Any]:
        """The function's name, and its options."""
        return {"kind": self.function.__name__, **self.options}


def from_function(function: Callable[..., Any]) -> Callable[..., Partition]:
    """What makes a partition of a user's function: itself, or where it is one of the targets and a
    seed, a function of its other parameters.
    """
    signature = inspect.signature(function)
    if [*signature.parameters][:2] != _GIVEN:
        return function

    @functools.wraps(function)
    def make(**options: Any) -> Partition:
        return ByFunction(function, options)

    rest = [p for name, p in signature.parameters.items() if name not in _GIVEN]
    make.__signature__ = signature.replace(parameters=rest)  # type: ignore[attr-defined]
    return make
