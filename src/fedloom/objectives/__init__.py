"""The loss at a client: base.py has the interface, the other files the papers."""

from ..core.registry import Registry
from .base import CrossEntropy, Function, Needs, Objective, SquaredError, UserLoss, user_loss
from .cox import Cox
from .dice import Dice
from .feddecorr import FedDecorr
from .fedlc import FedLC
from .fedmlb import FedMLB
from .fedntd import FedNTD
from .fjord import OrderedDistillation
from .heterofl import MaskedCrossEntropy
from .language_model import LanguageModel
from .moon import MOON
from .scalefl import SelfDistillation

OBJECTIVES: Registry[type[Objective]] = Registry(
    "objective",
    {
        "cross_entropy": CrossEntropy,
        "squared_error": SquaredError,
        "cox": Cox,
        "dice": Dice,
        "moon": MOON,
        "fedmlb": FedMLB,
        "feddecorr": FedDecorr,
        "fedlc": FedLC,
        "fedntd": FedNTD,
        "language_model": LanguageModel,
        "masked_cross_entropy": MaskedCrossEntropy,
        "self_distillation": SelfDistillation,
        "ordered_distillation": OrderedDistillation,
    },
    own=Objective,
    made_of=user_loss,
)

# published methods, which a run's label names beside the algorithm
METHODS = (FedDecorr, FedLC, FedMLB, FedNTD, MOON)

__all__ = [
    "METHODS",
    "MOON",
    "OBJECTIVES",
    "Cox",
    "CrossEntropy",
    "Dice",
    "FedDecorr",
    "FedLC",
    "FedMLB",
    "FedNTD",
    "Function",
    "LanguageModel",
    "MaskedCrossEntropy",
    "Needs",
    "Objective",
    "OrderedDistillation",
    "SelfDistillation",
    "SquaredError",
    "UserLoss",
    "user_loss",
]
