"""Sweeps: every combination of values (grid), or as many as asked for within ranges (search); each
is a run of its own, in a folder that its configuration names, so that a stopped sweep can continue.
"""

from __future__ import annotations

from .grid import (
    FAILURE,
    PRUNED,
    Base,
    KeptData,
    Row,
    Trial,
    best_of,
    check_all,
    claim,
    plan,
    results,
    run_trial,
    split_grid,
    split_values,
    state_of,
)
from .search import Search
from .work import RunTrials, Shown, Watch, in_jobs

__all__ = [
    "FAILURE",
    "PRUNED",
    "Base",
    "KeptData",
    "Row",
    "RunTrials",
    "Search",
    "Shown",
    "Trial",
    "Watch",
    "best_of",
    "check_all",
    "claim",
    "in_jobs",
    "plan",
    "results",
    "run_trial",
    "split_grid",
    "split_values",
    "state_of",
]
