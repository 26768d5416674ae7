"""Engines run the clients of a round. They know interfaces, never a concrete algorithm."""

from __future__ import annotations

from ..core.products import has_onednn
from ..core.registry import Registry
from ..errors import ConfigError
from ..storage.identity import bits_of
from .auto import Auto, Choice, choose_chunk, family_of
from .base import Engine
from .one_step import bfloat16_gain
from .ranks import Ranks
from .scores import Score
from .serial import Serial
from .vectorised import Streams, Vectorised
from .workers import Workers

__all__ = [
    "ENGINES",
    "Auto",
    "Choice",
    "Engine",
    "Ranks",
    "Score",
    "Serial",
    "Streams",
    "Vectorised",
    "Workers",
    "bfloat16_gain",
    "bits_of",
    "choose_chunk",
    "family_of",
    "is_auto",
    "make_engine",
    "numberless",
    "on_processes",
]

ENGINES: Registry[type] = Registry(
    "engine",
    {
        "auto": Auto,
        "serial": Serial,
        "vectorised": Vectorised,
        "streams": Streams,
        "workers": Workers,
        "ranks": Ranks,
    },
)


def make_engine(text: str) -> Engine:
    """An engine by its name: "serial", "workers" (one per processor), "workers:4", "vectorised",
    "vectorised:20" (clients at once), or "workers:2+vectorised:20", both; "streams:5" (clients at
    once on a GPU); "serial+onednn" and "workers:4+onednn" with large products in oneDNN;
    "auto+serial", "auto+vectorised:25": that or workers with the same bits; "ranks+" and one of
    them, as torchrun chooses by itself.

    Raises ConfigError for anything else.
    """
    first, plus, second = text.partition("+")
    if first == "ranks" and not second.startswith("ranks"):
        inner = make_engine(second) if plus else Serial()
        return Ranks(inner.inner if isinstance(inner, Auto) else inner)
    if first == "auto" and plus:
        engine = None if second.startswith(("auto", "ranks")) else make_engine(second)
        if isinstance(engine, Serial) or (isinstance(engine, Vectorised) and ":" in second):
            return Auto(engine)
        raise ConfigError(
            f"engine '{text}': behind auto+ stands what was chosen, serial, serial+onednn, "
            "vectorised:N or streams:N, as in 'auto+vectorised:25'; write 'auto' to let it choose"
        )
    name, number = _parsed(first, text)
    onednn = second == "onednn" and name in ("serial", "workers")
    if plus and not onednn and (name, second.partition(":")[0]) != ("workers", "vectorised"):
        raise ConfigError(
            f"engine '{text}': only workers and vectorised go together, as in "
            "'workers:2+vectorised:20', or serial and workers with onednn, as in 'workers:2+onednn'"
        )
    if onednn and not has_onednn():
        raise ConfigError(f"engine '{text}': this torch has no oneDNN; take '{first}'")
    if name == "workers":
        many = None if onednn or not plus else _parsed(second, text)[1] or 0
        return Workers(number, many, onednn)
    if name == "serial":
        return Serial(onednn)
    return Streams(number) if name == "streams" else Vectorised(number)


def is_auto(engine: str | Engine) -> bool:
    """Say whether an engine is still to be chosen by the rule, see auto.py.

    >>> is_auto("auto"), is_auto("ranks+auto"), is_auto("auto+serial")
    (True, True, False)
    """
    return engine in ("auto", "ranks+auto")


def numberless(engine: str | Engine) -> bool:
    """Say whether the number of clients at once is still to be chosen by the rule.

    >>> numberless("streams"), numberless("workers:2+vectorised"), numberless("vectorised:9")
    (True, True, False)
    """
    return isinstance(engine, str) and engine.endswith(("vectorised", "streams"))


def on_processes(engine: str | Engine) -> bool:
    """Say whether an engine trains in other processes, and so on CPUs alone.

    >>> on_processes("workers:2+vectorised:20"), on_processes("ranks+vectorised")
    (True, False)
    """
    name = engine if isinstance(engine, str) else str(getattr(engine, "text", engine.name))
    name = name.removeprefix("ranks+")
    return name.partition("+")[0].partition(":")[0] == "workers"


def _parsed(part: str, text: str) -> tuple[str, int | None]:
    """'name:number' -> name, number."""
    name, colon, number = part.partition(":")
    ENGINES.entry(name)
    if name == "auto":
        raise ConfigError(
            f"engine '{text}': 'auto' stands alone, or behind 'ranks+'; when a run begins, what a "
            "rule has chosen is written behind it, as in 'auto+vectorised:25'"
        )
    if name == "ranks":
        raise ConfigError(f"engine '{text}': ranks stands first and alone, as in 'ranks+serial'")
    if name == "serial" and colon:
        raise ConfigError(f"engine '{text}': serial takes no number; write 'serial' or 'workers:2'")
    if colon and not (number.isdecimal() and len(number) < 10 and int(number) > 0):
        raise ConfigError(f"engine '{text}': the number must be 1 or more, as in '{name}:2'")
    return name, int(number) if colon else None
