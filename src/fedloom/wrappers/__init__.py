"""Algorithms that change another one: client.py a client's step, server.py the server's move."""

from .base import Wrapper
from .client import Clip, ClipGrad, LocalOpt, PerStep, Prox, Sam, WeightDecay, build
from .optimisers import (
    Adadelta,
    Adagrad,
    Adam,
    Adamax,
    Average,
    Momentum,
    NAdam,
    Nesterov,
    Optimiser,
    RAdam,
    RMSprop,
)
from .server import (
    Lookahead,
    ServerAdagrad,
    ServerAdam,
    ServerAMSGrad,
    ServerOpt,
    ServerWrapper,
    ServerYogi,
)

__all__ = [
    "Adadelta",
    "Adagrad",
    "Adam",
    "Adamax",
    "Average",
    "Clip",
    "ClipGrad",
    "LocalOpt",
    "Lookahead",
    "Momentum",
    "NAdam",
    "Nesterov",
    "Optimiser",
    "PerStep",
    "Prox",
    "RAdam",
    "RMSprop",
    "Sam",
    "ServerAMSGrad",
    "ServerAdagrad",
    "ServerAdam",
    "ServerOpt",
    "ServerWrapper",
    "ServerYogi",
    "WeightDecay",
    "Wrapper",
    "build",
]
