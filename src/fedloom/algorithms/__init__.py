"""One file per paper; every class is a change to FedAvg or LocalSGD (fedloom.algorithm)."""

from ..algorithm import FedAvg, LocalSGD
from .fafed import FAFED
from .fedacg import FedACG
from .fedavgm import fedavgm
from .feddyn import FedDyn
from .fednova import FedNova
from .fedprox import fedprox
from .fedsmoo import FedSMOO
from .scaffold import Scaffold

__all__ = [
    "FAFED",
    "FedACG",
    "FedAvg",
    "FedDyn",
    "FedNova",
    "FedSMOO",
    "LocalSGD",
    "Scaffold",
    "fedavgm",
    "fedprox",
]
