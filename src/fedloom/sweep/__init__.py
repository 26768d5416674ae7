"""Sweeps: every combination of values (grid), or as many as asked for within ranges (search); each
is a run of its own, in a folder that its configuration names, so that a stopped sweep can continue.
"""

from __future__ import annotations

from .grid import (
    FAILURE,
    PRUNED,
    Row,
    Trial,
    best_of,
    check_all,
    plan,
    results,
    run_trial,
    split_grid,
    split_values,
    state_of,
)
from .search import Search

__all__ = [
    "FAILURE",
    "PRUNED",
    "Row",
    "Search",
    "Trial",
    "best_of",
    "check_all",
    "plan",
    "results",
    "run_trial",
    "split_grid",
    "split_values",
    "state_of",
]
