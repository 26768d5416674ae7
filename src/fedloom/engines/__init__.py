"""Engines: how the clients of a round are run. They know the protocols, never a concrete
algorithm.
"""

from __future__ import annotations

from ..errors import ConfigError, did_you_mean
from .base import Engine, Score
from .serial import Serial
from .workers import Workers

__all__ = ["ENGINES", "Engine", "Score", "Serial", "Workers", "make_engine"]

ENGINES = ("serial", "workers")


def make_engine(text: str) -> Engine:
    """An engine by its name: "serial", "workers" (one per processor), "workers:4".

    Raises ConfigError for anything else.
    """
    name, colon, number = text.partition(":")
    if name not in ENGINES:
        raise ConfigError(f"unknown engine '{name}'; {did_you_mean(name, ENGINES)}")
    if name == "serial":
        if colon:
            raise ConfigError(
                f"engine '{text}': serial takes no number; write 'serial' or 'workers:2'"
            )
        return Serial()
    if colon and not (number.isdecimal() and int(number) > 0):
        raise ConfigError(
            f"engine '{text}': the number of workers must be 1 or more, as in 'workers:2'"
        )
    return Workers(int(number) if colon else None)
