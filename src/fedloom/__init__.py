"""fedloom: federated learning that is right, fast and composable.

The public names are loaded when they are first used, so that `import fedloom` costs nothing.
"""

from __future__ import annotations

import gc
import importlib
from typing import TYPE_CHECKING, Any

from ._version import __version__

if TYPE_CHECKING:
    from .algorithm import Algorithm, FedAvg, LocalSGD
    from .checks import check
    from .errors import StopRun
    from .evaluation.settings import Evaluation
    from .experiment.experiment import Experiment
    from .experiment.result import Result
    from .federation.local import Local
    from .federation.sampling import Churn
    from .report.frames import load_runs
    from .storage.run_directory import Checkpoint

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

__all__ = [
    "Algorithm",
    "Checkpoint",
    "Churn",
    "Evaluation",
    "Experiment",
    "FedAvg",
    "Local",
    "LocalSGD",
    "Result",
    "StopRun",
    "__version__",
    "check",
    "load_runs",
]


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
