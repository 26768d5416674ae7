"""Every method by name, and those few that stand for all of them in `make test`."""

from __future__ import annotations

from typing import Any

from fedloom.algorithm import Algorithm
from fedloom.algorithms.registry import ALGORITHMS, make_algorithm

# {case: (the registered name, options)}; SCAFFOLD's option I passes over all data
METHODS: dict[str, tuple[str, dict[str, Any]]] = {name: (name, {}) for name in ALGORITHMS} | {
    "scaffold, option I": ("scaffold", {"option": 1}),
    "feddyn, by size": ("feddyn", {"size_scaled": True}),
    "feddc, by size": ("feddc", {"size_scaled": True}),
}

# Together they have every trait of a method and every way in which a field is added up
# (tests/unit/test_quick_cases.py); `make test-all` runs a check of methods with all of them.
QUICK = (
    "fedavg",
    "scaffold",
    "scaffold, option I",
    "fedacg",
    "fednova",
    "fedsmoo",
    "fafed",
    "mimelite",
    "ifca",
    "diloco",
    "fedbuff",
)


def method(case: str) -> Algorithm:
    """The method of a case, with its options."""
    name, options = METHODS[case]
    return make_algorithm(name, **options)
