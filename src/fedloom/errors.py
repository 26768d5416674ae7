"""Every error that fedloom raises on purpose. A message says what was wrong, the value, what is
allowed, what to do.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


class FedloomError(Exception):
    """Base of all; the command line prints its message on one line, without a trace."""


class StopRun(Exception):  # noqa: N818  # no error
    """What a function of on_round or on_evaluation raises to end the run: after this round, or
    after the next one where this one was not evaluated. The run is then finished.
    """


class ConfigError(FedloomError, ValueError):
    """A setting: unknown name or key, wrong type or range."""


class SettingError(ConfigError):
    """One value that its setting does not take; it becomes text where it is printed.

    key: the setting's; owner: the class or table before it; where: the file or command line;
    remedy: further words about what to do.

    >>> str(SettingError("decay", 2, "in (0, 1]", owner="Exponential"))
    'Exponential.decay must be in (0, 1], got 2'
    """

    def __init__(
        self, key: str, value: Any, allowed: str, remedy: str = "", owner: str = "", where: str = ""
    ) -> None:
        super().__init__(key, value, allowed, remedy, owner, where)
        self.key, self.value, self.allowed, self.remedy = key, value, allowed, remedy
        self.owner, self.where = owner, where

    def at(self, where: str, key: str) -> SettingError:
        """The same about a key of a file or the command line."""
        return SettingError(key, self.value, self.allowed, self.remedy, where=where)

    def __str__(self) -> str:
        allowed = self.allowed
        if isinstance(self.value, int) and (size := self.value.bit_length()) > 64:
            text = f"a whole number of {size} bits"  # too long to be printed
            allowed += ", below 2^64" if "whole" in allowed else ""
        else:
            text = repr(self.value)  # somebody may have given whole arrays
            text = text if len(text) <= 200 else f"{text[:197]}..."
        name = ".".join(filter(None, (self.owner, self.key)))
        before = f"{self.where}: " if self.where else ""
        remedy = f"; {self.remedy}" if self.remedy else ""
        return f"{before}{name} must be {allowed}, got {text}{remedy}"


class CompositionError(FedloomError, TypeError):
    """Two parts that do not fit; the message names both and says why."""


class DataError(FedloomError, ValueError):
    """Data that are missing, corrupt, or do not fit."""


class NotFiniteError(DataError):
    """Values to be sent that are not finite."""


class WireError(FedloomError, ValueError):
    """Bytes from elsewhere that are no message of this run."""


class AuthorError(FedloomError, RuntimeError):
    """A part of a user's own breaks a rule; a run says it as a ClientError, with client and round.

    rule: what it is about, a row of `fedloom check`, or "". No TypeError: within an operator such
    as *=, Python would take that for "try another way".
    """

    def __init__(self, message: str, rule: str = "") -> None:
        super().__init__(message)
        self.rule = rule


class ClientError(FedloomError, RuntimeError):
    """One client's round failed, or the server's part; names algorithm, client and round."""


class CheckpointError(FedloomError, RuntimeError):
    """A run directory or checkpoint that cannot be read, written or continued."""


class WorkerError(FedloomError, RuntimeError):
    """Worker processes died or hung again and again."""


def unknown(kind: str, name: str, names: Iterable[str]) -> str:
    """The message about a name that is none of the known ones."""
    return f"unknown {kind} '{name}'; {did_you_mean(name, names)}"


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """A sentence for an unknown name: the nearest known one if half of its letters are right, or it
    begins so; else all of them.

    >>> did_you_mean("fedagc", ["fedavg", "fedacg"]), did_you_mean("q", ["sgd", "adam"])
    ("did you mean 'fedacg'?", 'known: adam, sgd')
    """
    if not (names := sorted(names)):
        return "it has none"
    letters = str(name)[:_LONGEST].lower()  # a list, where one name is taken
    near = min(names, key=lambda k: _edits(letters, k.lower()), default="")
    if 2 * _edits(letters, near.lower()) > max(len(letters), len(near)):
        near = next((k for k in names if letters and k.lower().startswith(letters)), "")
    return f"did you mean '{near}'?" if near else f"known: {', '.join(names)}"


_LONGEST = 64  # letters of a name that are compared


def _edits(a: str, b: str) -> int:
    """How many letters to insert, delete or replace, or neighbours to swap, make a of b
    (Damerau and Levenshtein's distance, no letter touched twice).
    """
    before: list[int] = []
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        older, before, row = before, row, [i]
        for j, y in enumerate(b, 1):
            row.append(min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (x != y)))
            if i > 1 and j > 1 and x == b[j - 2] and y == a[i - 2]:
                row[j] = min(row[j], older[j - 2] + 1)
    return row[-1]
