"""fedloom: federated learning that is right, fast and composable.

The public names are loaded when they are first used, so that `import fedloom` costs nothing.
"""

from __future__ import annotations

import gc
import importlib
from typing import TYPE_CHECKING, Any

from ._version import __version__ as __version__

if TYPE_CHECKING:
    from .algorithm import Algorithm as Algorithm
    from .algorithm import FedAvg as FedAvg
    from .algorithm import LocalSGD as LocalSGD
    from .checks import check as check
    from .errors import StopRun as StopRun
    from .evaluation.settings import Evaluation as Evaluation
    from .experiment.experiment import Experiment as Experiment
    from .experiment.result import Result as Result
    from .federation.local import Local as Local
    from .federation.sampling import Churn as Churn
    from .report.frames import load_runs as load_runs
    from .storage.run_directory import Checkpoint as Checkpoint

_HOME = {
    "Algorithm": "algorithm",
    "Checkpoint": "storage.run_directory",
    "Churn": "federation.sampling",
    "Evaluation": "evaluation.settings",
    "Experiment": "experiment",
    "FedAvg": "algorithm",
    "Local": "federation.local",
    "LocalSGD": "algorithm",
    "Result": "experiment.result",
    "StopRun": "errors",
    "check": "checks",
    "load_runs": "report.frames",
}

__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'fedloom' has no attribute '{name}'")
    collects = gc.isenabled()
    gc.disable()  # an import leaves no garbage, and a look through all of torch takes long
    try:
        return getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
    finally:
        if collects:
            gc.enable()


def __dir__() -> list[str]:
    return __all__
