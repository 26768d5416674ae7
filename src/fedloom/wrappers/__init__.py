"""Algorithms that change another one: gradient.py a client's step, server.py the server's move."""

from .base import Wrapper
from .gradient import Clip, ClipGrad, LocalOpt, Prox, WeightDecay, build
from .optimisers import Momentum, Optimiser
from .server import Lookahead, ServerOpt, ServerWrapper

__all__ = [
    "Clip",
    "ClipGrad",
    "LocalOpt",
    "Lookahead",
    "Momentum",
    "Optimiser",
    "Prox",
    "ServerOpt",
    "ServerWrapper",
    "WeightDecay",
    "Wrapper",
    "build",
]
