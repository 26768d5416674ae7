"""Many runs: a sweep tries every combination of values (grid), or as many as asked for within
ranges (search). Each run has a folder that its configuration names, so that the same command goes
on after a stop.
"""

from __future__ import annotations

from .sweep import Search, Sweep, best_of, results
from .trial import (
    DataCache,
    Observer,
    Outcome,
    Runs,
    RunTrials,
    Trial,
    check_all,
    run_all,
    run_trial,
    state_of,
)

__all__ = [
    "DataCache",
    "Observer",
    "Outcome",
    "RunTrials",
    "Runs",
    "Search",
    "Sweep",
    "Trial",
    "best_of",
    "check_all",
    "results",
    "run_all",
    "run_trial",
    "state_of",
]
