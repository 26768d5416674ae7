"""One file per paper; every class is a change to FedAvg or LocalSGD (fedloom.algorithm)."""

from ..algorithm import FedAvg, LocalSGD
from .afl import AFL
from .cfedavg import CFedAvg
from .diloco import DiLoCo, diloco
from .ditto import Ditto
from .fafed import FAFED
from .fedacg import FedACG
from .fedams import FedAMS, fedams
from .fedavgm import FedAvgM, fedavgm
from .fedbuff import FedBuff
from .fedcm import FedCM
from .feddc import FedDC
from .feddyn import FedDyn
from .fedexp import FedExP
from .fedgamma import FedGAMMA, fedgamma
from .fedlin import FedLin
from .fednova import FedNova
from .fedopt import FedAdagrad, FedAdam, FedYogi, fedadagrad, fedadam, fedyogi
from .fedprox import FedProx, fedprox
from .fedsam import FedSAM, fedsam
from .fedsmoo import FedSMOO
from .fedspeed import FedSpeed, fedspeed
from .ifca import IFCA
from .mime import Mime, MimeLite
from .mofedsam import MoFedSAM, mofedsam
from .naive_adaptive import NaiveAdaptive
from .qfedavg import QFedAvg
from .scaffnew import Scaffnew
from .scaffold import SCAFFOLD, Scaffold
from .stem import STEM

__all__ = [
    "AFL",
    "FAFED",
    "IFCA",
    "SCAFFOLD",
    "STEM",
    "CFedAvg",
    "DiLoCo",
    "Ditto",
    "FedACG",
    "FedAMS",
    "FedAdagrad",
    "FedAdam",
    "FedAvg",
    "FedAvgM",
    "FedBuff",
    "FedCM",
    "FedDC",
    "FedDyn",
    "FedExP",
    "FedGAMMA",
    "FedLin",
    "FedNova",
    "FedProx",
    "FedSAM",
    "FedSMOO",
    "FedSpeed",
    "FedYogi",
    "LocalSGD",
    "Mime",
    "MimeLite",
    "MoFedSAM",
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
