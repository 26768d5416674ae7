"""Names -> what the server may do with a method's mean move, by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .algorithm import Algorithm
from .errors import ConfigError, did_you_mean
from .wrappers import (
    Average,
    Lookahead,
    Momentum,
    Optimiser,
    ServerAdagrad,
    ServerAdam,
    ServerAMSGrad,
    ServerOpt,
    ServerYogi,
)

__all__ = ["SERVERS", "lookahead", "with_server"]

Around = Callable[[Algorithm], Algorithm]


def lookahead(lam: float = Lookahead.lam) -> Around:
    """FedACG's acceleration for any method: clients start at x + lam m, with m = lam m + move
    (Kim, Kim & Han, CVPR 2024, Algorithm 1).
    """
    return lambda inner: Lookahead(inner=inner, lam=lam)


SERVERS: dict[str, Callable[..., Optimiser | Around]] = {
    "average": Average,
    "momentum": Momentum,
    "adagrad": ServerAdagrad,
    "adam": ServerAdam,
    "yogi": ServerYogi,
    "amsgrad": ServerAMSGrad,
    "lookahead": lookahead,
}


def with_server(algorithm: Algorithm, name: str, options: dict[str, Any]) -> Algorithm:
    """A method whose server runs its move through this optimiser, or looks ahead.

    Raises ConfigError for an unknown name and for a value out of range, CompositionError for a
    method that has no meaning with it.

    >>> from .algorithm import FedAvg
    >>> with_server(FedAvg(), "lookahead", {"lam": 0.8})
    Lookahead(inner=FedAvg(server_lr=1.0), lam=0.8)
    """
    if name not in SERVERS:
        raise ConfigError(f"unknown server '{name}'; {did_you_mean(name, SERVERS)}")
    made = SERVERS[name](**options)
    if isinstance(made, Optimiser):
        return ServerOpt(inner=algorithm, opt=made)
    return made(algorithm)
