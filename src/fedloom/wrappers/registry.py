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


_PAPERS = {  # the method whose server runs it
    "momentum": "FedAvgM",
    "nesterov": "DiLoCo",
    "adagrad": "FedAdagrad",
    "adam": "FedAdam",
    "yogi": "FedYogi",
    "amsgrad": "FedAMS",
}


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
    names, outer = {make: name for name, make in SERVERS.items()}, SERVERS[name]
    if not (isinstance(outer, type) and issubclass(outer, Optimiser)):
        return
    for inner in reversed(layers(algorithm)):
        if isinstance(inner, ServerOpt):
            inner_name = names.get(type(inner.opt), "")
            both = not (outer.linear or inner.opt.linear)
            if inner_name in _PAPERS and (both or inner_name == name):
                _log.warning(
                    "server '%s' runs on what %s's own server optimiser, %s, gives; if one of them "
                    "is meant, set the method's own options (algorithm.server_lr and the like), or "
                    "take algorithm=fedavg server=%s",
                    name,
                    _PAPERS[inner_name],
                    inner_name,
                    name,
                )
