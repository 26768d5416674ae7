"""Clients that can be asked at some times only, and clients that were asked and do not answer."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, NamedTuple

import torch

from ..core.hyper import Part, PositiveShare, ShareBelow1, hyper
from ..core.parsing import decoded
from ..core.rng import generator
from ..data.clients import ClientNumbers
from ..errors import ConfigError

# the first line of a trace -> the unit of its times
HEADS = {
    ("client", "begin_seconds", "end_seconds"): "seconds",
    ("client", "first_round", "last_round"): "rounds",
}


class Availability(Part):
    """Which clients can be asked, which of those answer, and how many more are asked for that.

    A share or number of clients (cohort) is then of those available. A trace is a CSV file with a
    line for each time that a client, by its name or number, is available:
    client,begin_seconds,end_seconds in simulated seconds, the end not included, or
    client,first_round,last_round, both included, the first round is 1. Seconds need
    [devices]: a round then waits until somebody is available. Otherwise a round in which nobody is
    available changes nothing.

    A client that drops out has received the model, whose bytes count; it sends nothing, its state
    stays as it was, and nobody waits for it. With over_selection the server asks more clients than
    it needs, and takes the first that answer in simulated time (Bonawitz et al., MLSys 2019,
    section 2); the others are stopped, and the bytes that they received count.
    """

    title: ClassVar[str] = "availability"
    share: PositiveShare | None = hyper(
        None, "probability with which a client is available in a round; none: 1"
    )
    trace: str | None = hyper(None, "a CSV file of when each client is available")
    dropout: ShareBelow1 = hyper(0.0, "probability with which a client that was asked drops out")
    over_selection: float = hyper(
        1.0,
        "how many times as many clients are asked as the cohort needs (needs [devices])",
        "1.3: Bonawitz et al.",
        low=1,
    )

    def ask_count(self, count: int) -> int:
        """How many clients are asked where so many are needed.

        >>> Availability(over_selection=1.3).ask_count(10)
        13
        """
        return math.ceil(self.over_selection * count * (1 - 1e-12))

    def available(self, population: int, seed: int, round: int) -> list[bool]:
        """Of every client, whether it is available in a round (from 0), by `share`."""
        return self._below(self.share, population, seed, "availability", round)

    def dropped(self, population: int, seed: int, round: int) -> list[bool]:
        """Of every client, whether it drops out if it is asked in a round (from 0)."""
        return self._below(self.dropout, population, seed, "dropout", round)

    def _below(
        self, probability: float | None, population: int, seed: int, kind: str, round: int
    ) -> list[bool]:
        if probability is None or not 0 < probability < 1:
            return [probability is None or probability == 1] * population
        draws = torch.rand(population, generator=generator(seed, kind, round), dtype=torch.float64)
        marks: list[bool] = (draws < probability).tolist()
        return marks


class Span(NamedTuple):
    """A time when a client is available: from begin on, and before end."""

    client: int
    begin: float
    end: float


class Trace(NamedTuple):
    """Times when clients are available, in "seconds" or "rounds" (from 0)."""

    unit: str
    spans: tuple[Span, ...]

    def available(self, time: float) -> set[int]:
        """The clients that are available at a time."""
        return {span.client for span in self.spans if span.begin <= time < span.end}

    def next(self, time: float) -> float | None:
        """The first time from this one on when somebody is available; None if there is none."""
        later = [max(span.begin, time) for span in self.spans if span.end > time]
        return min(later, default=None)


def read_trace(path: str, clients: ClientNumbers) -> Trace:
    """The trace in a file. Raises ConfigError."""
    label = f"availability.trace '{path}'"
    try:
        lines = decoded(Path(path).read_bytes()).splitlines()
    except OSError as error:
        raise ConfigError(f"{label} cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise ConfigError(f"{label} cannot be read: it {error}") from None
    head = tuple(word.strip() for word in (lines or [""])[0].split(","))
    if head not in HEADS:
        heads = " or ".join(",".join(names) for names in HEADS)
        raise ConfigError(f"{label} must begin with the line {heads}, got '{','.join(head)[:80]}'")
    spans = tuple(_spans(lines, HEADS[head], clients, label))
    if not spans:
        raise ConfigError(f"{label} names no client; give a line for each time of a client")
    return Trace(HEADS[head], spans)


def _spans(lines: list[str], unit: str, clients: ClientNumbers, label: str) -> Iterator[Span]:
    whole = unit == "rounds"
    for number, row in enumerate(csv.reader(lines[1:]), 2):
        if not row:
            continue
        where, text = f"{label}, line {number}", ",".join(row)[:80]
        try:
            name, begin, end = row[0].strip(), float(row[1]), float(row[2])
            fits = len(row) == 3 and math.isfinite(begin) and not math.isnan(end)
        except (ValueError, IndexError):
            fits = False
        if not fits or (whole and (begin < 1 or begin % 1 or (end % 1 and end != math.inf))):
            expected = "two rounds from 1 on" if whole else "two numbers of seconds"
            raise ConfigError(f"{where} must be a client and {expected}, got '{text}'")
        by_number = re.fullmatch("-?[0-9]{1,18}", name) and name not in clients.names
        client = clients.of(int(name) if by_number else name, where)
        if end < begin or (end == begin and not whole):
            raise ConfigError(f"{where} ends before it begins: '{text}'")
        yield Span(client, begin - 1, end) if whole else Span(client, begin, end)
