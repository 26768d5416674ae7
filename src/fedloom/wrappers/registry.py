"""Names of what the server may do with a method's mean move."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from ..algorithm import Algorithm
from ..core.registry import Registry
from . import (
    Average,
    Lookahead,
    Momentum,
    Nesterov,
    Optimiser,
    ServerAdagrad,
    ServerAdam,
    ServerAMSGrad,
    ServerOpt,
    ServerYogi,
)
from .base import layers

_log = logging.getLogger(__name__)

Around = Callable[[Algorithm], Algorithm]


def lookahead(lam: float = Lookahead.lam) -> Around:
    """FedACG's acceleration for any method: clients start at x + lam m, with m = lam m + move
    (Kim, Kim & Han, CVPR 2024, Algorithm 1).
    """
    return lambda inner: Lookahead(inner=inner, lam=lam)


SERVERS: Registry[Callable[..., Optimiser | Around]] = Registry(
    "server",
    {
        "average": Average,
        "momentum": Momentum,
        "nesterov": Nesterov,
        "adagrad": ServerAdagrad,
        "adam": ServerAdam,
        "yogi": ServerYogi,
        "amsgrad": ServerAMSGrad,
        "lookahead": lookahead,
    },
)


def with_server(algorithm: Algorithm, name: str, options: dict[str, Any]) -> Algorithm:
    """A method whose server runs its move through this optimiser, or looks ahead.

    Raises ConfigError for an unknown name and for a value out of range, CompositionError if the two
    have no meaning together.

    >>> from fedloom import FedAvg
    >>> with_server(FedAvg(), "lookahead", {"lam": 0.8})
    Lookahead(inner=FedAvg(server_lr=1.0), lam=0.8)
    """
    part = SERVERS.make(name, **options)
    if isinstance(part, Optimiser):
        return ServerOpt(inner=algorithm, opt=part)
    around: Around = part
    return around(algorithm)


def warn_of_two(algorithm: Algorithm, name: str) -> None:
    """Warn if a server optimiser runs on the output of the method's own one, and both are the same,
    or both divide by the root of squares.
    """
    outer = SERVERS[name]
    for inner in layers(algorithm):
        opt = inner.opt if isinstance(inner, ServerOpt) else Average()
        same = type(opt) is outer and outer is not Average
        if same or not (opt.linear or getattr(outer, "linear", True)):
            _log.warning(
                "server '%s' runs on what the method's own server optimiser, %s, gives; if one "
                "of them is meant, set its own options (algorithm.server_lr and the like), "
                "or take algorithm=fedavg server=%s",
                *(name, type(opt).__name__, name),
            )
