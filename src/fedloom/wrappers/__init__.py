"""Algorithms that change another one: gradient.py a client's step, server.py the server's move."""

from .base import Wrapper
from .gradient import Clip, ClipGrad, LocalOpt, PerStep, Prox, WeightDecay, build
from .optimisers import Adam, Momentum, Optimiser
from .server import Lookahead, ServerOpt, ServerWrapper

__all__ = [
    "Adam",
    "Clip",
    "ClipGrad",
    "LocalOpt",
    "Lookahead",
    "Momentum",
    "Optimiser",
    "PerStep",
    "Prox",
    "ServerOpt",
    "ServerWrapper",
    "WeightDecay",
    "Wrapper",
    "build",
]
