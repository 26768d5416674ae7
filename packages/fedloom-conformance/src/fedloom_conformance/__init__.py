"""Whether a framework's federated methods are their papers': numpy only.

An adapter is a function train(problem, method, settings) -> the server's models after every round,
each a state (name -> array) as problem.start is; it raises NotThereError for what its framework
does not have. `python -m fedloom_conformance ADAPTER.py` judges it.
"""

from .cases import Case, Row, rows
from .networks import BatchNorm, Linear, Network, State, Tanh
from .problems import NotThereError, Problem
from .verdict import TOLERANCE, Verdict, judge

__version__ = "0.1.0"
__all__ = [
    "TOLERANCE",
    "BatchNorm",
    "Case",
    "Linear",
    "Network",
    "NotThereError",
    "Problem",
    "Row",
    "State",
    "Tanh",
    "Verdict",
    "judge",
    "rows",
]
