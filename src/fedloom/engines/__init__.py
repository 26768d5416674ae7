"""Engines: how the clients of a round are run. They know the protocols, never a concrete
algorithm.
"""

from __future__ import annotations

from ..errors import ConfigError, did_you_mean
from .base import Engine, Score
from .serial import Serial
from .vectorised import Vectorised
from .workers import Workers

__all__ = ["ENGINES", "Engine", "Score", "Serial", "Vectorised", "Workers", "make_engine"]

ENGINES = ("serial", "vectorised", "workers")


def make_engine(text: str) -> Engine:
    """An engine by its name: "serial", "workers" (one per processor), "workers:4", "vectorised",
    "vectorised:20" (clients at once).

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
        raise ConfigError(f"engine '{text}': the number must be 1 or more, as in '{name}:2'")
    if name == "vectorised":
        return Vectorised(int(number)) if colon else Vectorised()
    return Workers(int(number) if colon else None)
