"""The data of a federation: sources, partitions, and your own arrays.

What reads and divides them is loaded when one of its names is first used.

>>> from fedloom.data import from_arrays, iid
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fedloom.data.federated import FederatedData as FederatedData

if TYPE_CHECKING:
    from fedloom.data.names import *  # noqa: F403


def __getattr__(name: str) -> Any:
    names = importlib.import_module("fedloom.data.names")
    if name in ("__all__", *getattr(names, "__all__", ())):
        return getattr(names, name)
    raise AttributeError(f"module 'fedloom.data' has no attribute '{name}'")


def __dir__() -> list[str]:
    names: list[str] = __getattr__("__all__")
    return names
