"""One file per paper; every class is a change to FedAvg or LocalSGD (fedloom.algorithm)."""

from ..algorithm import FedAvg, LocalSGD
from .cfedavg import CFedAvg
from .fafed import FAFED
from .fedacg import FedACG
from .fedams import fedams
from .fedavgm import fedavgm
from .fedcm import FedCM
from .feddc import FedDC
from .feddyn import FedDyn
from .fednova import FedNova
from .fedopt import fedadagrad, fedadam, fedyogi
from .fedprox import fedprox
from .fedsam import fedsam
from .fedsmoo import FedSMOO
from .fedspeed import fedspeed
from .mofedsam import mofedsam
from .naive_adaptive import NaiveAdaptive
from .scaffold import Scaffold
from .stem import STEM

__all__ = [
    "FAFED",
    "STEM",
    "CFedAvg",
    "FedACG",
    "FedAvg",
    "FedCM",
    "FedDC",
    "FedDyn",
    "FedNova",
    "FedSMOO",
    "LocalSGD",
    "NaiveAdaptive",
    "Scaffold",
    "fedadagrad",
    "fedadam",
    "fedams",
    "fedavgm",
    "fedprox",
    "fedsam",
    "fedspeed",
    "fedyogi",
    "mofedsam",
]
