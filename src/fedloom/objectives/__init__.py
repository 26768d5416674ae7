"""The loss at a client: base.py has the protocol; every other file carries a paper's name."""

from .base import CrossEntropy, Function, Objective, SquaredError, UserLoss

OBJECTIVES: dict[str, type[Objective]] = {
    "cross_entropy": CrossEntropy,
    "squared_error": SquaredError,
}

__all__ = ["OBJECTIVES", "CrossEntropy", "Function", "Objective", "SquaredError", "UserLoss"]
