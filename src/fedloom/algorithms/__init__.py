"""One file per paper; every class is a change to FedAvg or LocalSGD (fedloom.algorithm)."""

from ..algorithm import FedAvg, LocalSGD
from .afl import AFL
from .cfedavg import CFedAvg
from .diloco import diloco
from .ditto import Ditto
from .fafed import FAFED
from .fedacg import FedACG
from .fedams import fedams
from .fedavgm import fedavgm
from .fedbuff import FedBuff
from .fedcm import FedCM
from .feddc import FedDC
from .feddyn import FedDyn
from .fedexp import FedExP
from .fedgamma import fedgamma
from .fedlin import FedLin
from .fednova import FedNova
from .fedopt import fedadagrad, fedadam, fedyogi
from .fedprox import fedprox
from .fedsam import fedsam
from .fedsmoo import FedSMOO
from .fedspeed import fedspeed
from .ifca import IFCA
from .mime import Mime, MimeLite
from .mofedsam import mofedsam
from .naive_adaptive import NaiveAdaptive
from .qfedavg import QFedAvg
from .scaffnew import Scaffnew
from .scaffold import Scaffold
from .stem import STEM

__all__ = [
    "AFL",
    "FAFED",
    "IFCA",
    "STEM",
    "CFedAvg",
    "Ditto",
    "FedACG",
    "FedAvg",
    "FedBuff",
    "FedCM",
    "FedDC",
    "FedDyn",
    "FedExP",
    "FedLin",
    "FedNova",
    "FedSMOO",
    "LocalSGD",
    "Mime",
    "MimeLite",
    "NaiveAdaptive",
    "QFedAvg",
    "Scaffnew",
    "Scaffold",
    "diloco",
    "fedadagrad",
    "fedadam",
    "fedams",
    "fedavgm",
    "fedgamma",
    "fedprox",
    "fedsam",
    "fedspeed",
    "fedyogi",
    "mofedsam",
]
