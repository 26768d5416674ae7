"""Many runs: a sweep tries every combination of values (grid), or as many as asked for within
ranges (search). Each run has a folder that its configuration names, so that the same command goes
on after a stop.
"""

from __future__ import annotations

from .runs import Ended, Runs, RunTrials, Watch, run_all
from .search import Search
from .space import several, split_space, split_values, values_of
from .sweep import VALIDATION, Row, Sweep, at_end, best_of, results
from .trial import OVER, KeptData, Run, Trial, check_all, run_trial, said, state_of, trial_in

__all__ = [
    "OVER",
    "VALIDATION",
    "Ended",
    "KeptData",
    "Row",
    "Run",
    "RunTrials",
    "Runs",
    "Search",
    "Sweep",
    "Trial",
    "Watch",
    "at_end",
    "best_of",
    "check_all",
    "results",
    "run_all",
    "run_trial",
    "said",
    "several",
    "split_space",
    "split_values",
    "state_of",
    "trial_in",
    "values_of",
]
