"""One file per paper; every class is a change to FedAvg or LocalSGD (fedloom.algorithm).

Here stand the methods of the five papers and their baselines; more/ has the others.
"""

from ..algorithm import FedAvg, LocalSGD
from .cfedavg import CFedAvg
from .fafed import FAFED
from .fedacg import FedACG
from .fedams import FedAMS, fedams
from .fedavgm import FedAvgM, fedavgm
from .fedcm import FedCM
from .feddc import FedDC
from .feddyn import FedDyn
from .fedgamma import FedGAMMA, fedgamma
from .fedopt import FedAdagrad, FedAdam, FedYogi, fedadagrad, fedadam, fedyogi
from .fedprox import FedProx, fedprox
from .fedsam import FedSAM, fedsam
from .fedsmoo import FedSMOO
from .fedspeed import FedSpeed, fedspeed
from .mofedsam import MoFedSAM, mofedsam
from .more.afl import AFL
from .more.diloco import DiLoCo, diloco
from .more.ditto import Ditto
from .more.fedbuff import FedBuff
from .more.fedexp import FedExP
from .more.fedlin import FedLin
from .more.fednova import FedNova
from .more.ifca import IFCA
from .more.mime import Mime, MimeLite
from .more.qfedavg import QFedAvg
from .more.scaffnew import Scaffnew
from .naive_adaptive import NaiveAdaptive
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
