"""Every error that fedloom raises on purpose. A message says what was wrong, the value, what is
allowed, what to do.

::

    FedloomError
    |-- ConfigError (ValueError)         a setting: unknown name or key, wrong type or range
    |-- CompositionError (TypeError)     two parts that have no meaning together; names both
    |-- DataError (ValueError)           data that are missing, corrupt, or do not fit
    |-- WireError (ValueError)           bytes from elsewhere that are no message of this run
    |-- ClientError (RuntimeError)       one client's round failed; names algorithm, client, round
    |-- AuthorError (RuntimeError)       a user's own part breaks a rule; engines add where
    |-- CheckpointError (RuntimeError)   a run directory or checkpoint that cannot be used
    `-- WorkerError (RuntimeError)       worker processes that keep dying or standing still
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class FedloomError(Exception):
    """Base of all; the command line prints its message on one line, without a trace."""


class ConfigError(FedloomError, ValueError):
    """A setting that cannot be used."""


class CompositionError(FedloomError, TypeError):
    """Two parts that do not fit; the message names both and says why."""


class DataError(FedloomError, ValueError):
    """Data that are missing, corrupt, or do not fit."""


class NotFiniteError(DataError):
    """Values to be sent that are not finite."""


class WireError(FedloomError, ValueError):
    """Bytes that are no message: truncated, too long, or naming what cannot be."""


class AuthorError(FedloomError, RuntimeError):
    """A part of a user's own breaks a rule; a run says it as a ClientError, with client and round.

    No TypeError: within an operator such as *=, Python would take that for "try another way".
    """


class ClientError(FedloomError, RuntimeError):
    """One client's round failed, or the server's part of a round."""


class CheckpointError(FedloomError, RuntimeError):
    """A run directory or checkpoint that cannot be read, written or continued."""


class WorkerError(FedloomError, RuntimeError):
    """Worker processes died or stood still again and again."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A sentence for an unknown name: the nearest known one if there is any, else all of them."""
    known = sorted(known)
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if near:
        return f"did you mean '{near[0]}'?"
    return f"known: {', '.join(known)}"
