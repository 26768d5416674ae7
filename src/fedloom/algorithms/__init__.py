"""One file per paper; every class is a change to FedAvg or LocalSGD (fedloom.algorithm)."""

from ..algorithm import FedAvg, LocalSGD
from .fedacg import FedACG
from .fedavgm import fedavgm
from .fedprox import fedprox
from .scaffold import Scaffold

__all__ = ["FedACG", "FedAvg", "LocalSGD", "Scaffold", "fedavgm", "fedprox"]
