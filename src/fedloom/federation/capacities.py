"""How much of the model each client can hold: levels, a distribution over levels, or a list."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ..core.parsing import decoded, shortened
from ..core.rng import generator
from ..errors import ConfigError

Capacities = Sequence[float | str] | Mapping[Any, float] | str | Path


def share_of(value: Any, what: str = "a capacity") -> float:
    """A share in (0, 1], from a number or from the text of a fraction. Raises ConfigError.

    >>> share_of("1/64"), share_of(1)
    (0.015625, 1.0)
    """
    try:
        share = _number(value) if isinstance(value, str) else float(value)
    except (ValueError, TypeError, ArithmeticError):  # 1/0
        share = math.nan
    if isinstance(value, bool) or not 0 < share <= 1:
        raise ConfigError(
            f"{what} must be in (0, 1], got {shortened(repr(value))}; it is the share of the model "
            "that a client can hold, such as 0.25 or '1/4', 1 for all of it"
        )
    return share


def _number(text: str) -> float:
    """A number, or the text of a fraction; no power of ten is ever written out. Raises ValueError,
    ArithmeticError.
    """
    top, slash, below = text.partition("/")
    return int(top) / int(below) if slash else float(text)


def levels_of(capacities: Capacities) -> tuple[float, ...]:
    """The capacities of a setting: a list, "1/64, 1/4, 1", a mapping {level: share of the clients},
    or a file's name. Raises ConfigError.

    >>> levels_of("1/64, 1/4, 1")
    (0.015625, 0.25, 1.0)
    """
    if path := _file_of(capacities):
        return _read(path)
    levels = capacities.split(",") if isinstance(capacities, str) else capacities
    if not isinstance(levels, Mapping | Sequence) or not len(levels):
        raise ConfigError(
            f"capacities must be levels such as ['1/4', 1], {{level: share of the clients}} or a "
            f"file with one for each client, got {capacities!r}"
        )
    return tuple(share_of(level) for level in levels)


def _file_of(capacities: Capacities) -> Path | None:
    """The file that is named; None for levels."""
    if isinstance(capacities, str):
        try:
            _ = [*map(_number, capacities.split(","))]
        except ArithmeticError:
            pass  # of a level that is refused
        except ValueError:
            return Path(capacities)
    return capacities if isinstance(capacities, Path) else None


def _read(path: Path) -> tuple[float, ...]:
    """One capacity per line; text after a # is a comment."""
    try:
        text = decoded(path.read_bytes())
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "it is no text in UTF-8"
        raise ConfigError(
            f"capacities '{str(path)[:200]}' are neither levels such as '1/4, 1' nor a file "
            f"that can be read: {why}"
        ) from None
    lines = [line.partition("#")[0].strip() for line in text.splitlines()]
    if not (lines := [line for line in lines if line]):
        raise ConfigError(f"capacities file '{path}' is empty; give one capacity for each client")
    return tuple(
        share_of(line, f"capacities file '{path}', client {i}") for i, line in enumerate(lines)
    )


def assign_capacities(capacities: Capacities, clients: int, seed: int = 0) -> tuple[float, ...]:
    """One capacity for each client.

    A list with one entry per client is used as it is; other levels are assigned to the clients in
    turn, so that groups are equal. A mapping {level: share} assigns levels at random, with numbers
    of clients rounded by largest remainders. A file has one entry per client. Raises ConfigError.

    >>> assign_capacities([0.25, 1.0], 3)
    (0.25, 1.0, 0.25)
    >>> sorted(assign_capacities({"1/4": 0.75, 1: 0.25}, 4))
    [0.25, 0.25, 0.25, 1.0]
    """
    levels = levels_of(capacities)
    if isinstance(capacities, Mapping):
        return _distributed(levels, list(capacities.values()), clients, seed)
    if _file_of(capacities) and len(levels) != clients:
        raise ConfigError(
            f"capacities file '{capacities}' has {len(levels)} capacities for {clients} clients; "
            "give one for each"
        )
    if len(levels) > clients:
        raise ConfigError(
            f"{len(levels)} capacities are given for {clients} clients; give levels, or one for "
            "each client"
        )
    return tuple(levels[i % len(levels)] for i in range(clients))


def _distributed(
    levels: Sequence[float], shares: Sequence[Any], clients: int, seed: int
) -> tuple[float, ...]:
    for share in shares:
        if isinstance(share, bool) or not isinstance(share, int | float) or not share >= 0:
            raise ConfigError(f"a level's share of the clients must be 0 or more, got {share!r}")
    total = math.fsum(shares)
    if not math.isclose(total, 1, abs_tol=1e-6):
        raise ConfigError(f"the levels' shares of the clients must add up to 1, got {total:g}")
    exact = [share * clients for share in shares]
    counts = [math.floor(e + 1e-9) for e in exact]
    rest = sorted(range(len(levels)), key=lambda k: (counts[k] - exact[k], k))
    for k in rest[: clients - sum(counts)]:
        counts[k] += 1
    every = [level for level, n in zip(levels, counts, strict=True) for _ in range(n)]
    order = torch.randperm(clients, generator=generator(seed, "capacities"))
    return tuple(every[i] for i in order.tolist())
