"""An exception of a user's part -> one paragraph: what happened, where, and what to do."""

from __future__ import annotations

import dataclasses
import traceback
import types
from typing import Any

# (what the message of the first cause holds, what it means)
_MEANINGS = (
    (
        ("data-dependent control flow", ".item()", "Boolean value of Tensor"),
        "it branches on a tensor's value (an `if`, `float()`, `.item()` or `bool()` of a tensor). "
        "The vectorised engine runs many clients as one computation, where a branch cannot go two "
        "ways: take torch.where, clamp, or fedloom.core.vector.clip",
    ),
    (
        ("inplace arithmetic", "in-place operation", "a leaf Variable that requires grad"),
        "it writes into a tensor that it was given. Arguments belong to the engine and to other "
        "clients: return new values, x + y instead of x.add_(y)",
    ),
    (
        ("randomness error mode", "called random operation"),
        "it draws random numbers of its own. A run's randomness comes from the seed, the round and "
        "the client only: a codec gets `draw`, a network its hashed dropout, and an algorithm has "
        "none",
    ),
    (
        ("object has no attribute",),
        "it reads a field that the record does not have: every field of msg must come from "
        "broadcast(), of mem from client_init() and finish(), of loc from start() and direction(), "
        "of up from finish() and uniform(), of an objective's mem from its init() on",
    ),
    (
        ("Can't pickle", "cannot pickle", "No module named", "Can't get attribute"),
        "a worker process cannot be given the part: define it at the top of the file, and what it "
        "needs beside it in the same folder or installed",
    ),
)
_FROZEN = (
    "it assigns to self. A part is frozen: the same object serves all clients, in several "
    "processes, so that what it keeps on itself is lost or mixed up. What a client must remember "
    "goes into mem, what must last for a round into loc, what the server must remember into srv"
)


def root(error: BaseException) -> BaseException:
    """The exception that an engine's error was made of."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def explain(error: BaseException, part: Any) -> str:
    """One paragraph on an exception that a check ended in."""
    first = root(error)
    text = " ".join(str(first).split())
    if text.startswith("vmap: "):
        text = text.partition(". ")[0]
    said = f"{type(first).__name__}: {text}" if text else type(first).__name__
    place = where(first, part)
    return f"{place}{_meaning(first, str(first), said)}"


def _meaning(error: BaseException, text: str, said: str) -> str:
    if isinstance(error, dataclasses.FrozenInstanceError):
        return f"{_FROZEN} ({said})"
    for signs, meaning in _MEANINGS:
        if any(sign in text for sign in signs):
            return f"{meaning} ({said})"
    return said


def where(error: BaseException, part: Any) -> str:
    """The last line of the part's own file that the error went through, as a prefix."""
    own = _files(part)
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename in own]
    if not frames:
        return ""
    last = frames[-1]
    line = f" (`{' '.join(last.line.split())}`)" if last.line else ""
    return f"line {last.lineno}, in {last.name}(){line}: "


def _files(part: Any) -> set[str]:
    """The files in which the part's own methods are written, fedloom's apart."""
    kind = part if isinstance(part, type) else type(part)
    mine = [c for c in kind.__mro__ if not c.__module__.startswith("fedloom.")]
    functions = [f for c in mine for f in vars(c).values() if isinstance(f, types.FunctionType)]
    return {f.__code__.co_filename for f in functions}
