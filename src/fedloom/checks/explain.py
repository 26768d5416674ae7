"""An exception of a user's part -> one paragraph: where in its file, what, and what to do."""

from __future__ import annotations

import traceback
import types
from typing import Any

from ..engines.author_rules import in_words
from ..errors import AuthorError

_UNPICKLED = ("Can't pickle", "cannot pickle", "No module named", "Can't get attribute")


def root(error: BaseException) -> BaseException:
    """The exception that an engine's error was made of, or the rule that is broken."""
    while error.__cause__ is not None and not isinstance(error, AuthorError):
        error = error.__cause__
    return error


def explain(error: Exception, part: Any) -> str:
    """One paragraph on an exception that a check ended in."""
    first = root(error)
    said = in_words(first) if isinstance(first, Exception) else repr(first)
    if any(sign in str(first) for sign in _UNPICKLED):
        said += (
            ". A worker process cannot be given the part: define it at the top of the file, and "
            "what it needs beside it in the same folder or installed"
        )
    return f"{_where(first, part)}{said}"


def _where(error: BaseException, part: Any) -> str:
    """The last line of the part's own file that the error went through, as a prefix."""
    every = (f for c in type(part).__mro__ for f in vars(c).values())
    methods = [f for f in every if isinstance(f, types.FunctionType)]
    own = {f.__code__.co_filename for f in methods if not f.__module__.startswith("fedloom.")}
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename in own]
    if not frames:
        return ""
    last = frames[-1]
    line = f" (`{' '.join(last.line.split())}`)" if last.line else ""
    return f"line {last.lineno}, in {last.name}(){line}: "
