"""What came of a check, how checks are run one after another, and how one is explained."""

from __future__ import annotations

import logging
import time
import traceback
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ..engines.author_rules import in_words
from ..errors import AuthorError

_UNPICKLED = ("Can't pickle", "cannot pickle", "No module named", "Can't get attribute")


@dataclass(frozen=True)
class Outcome:
    """One check. passed: None where it was left out. why: one paragraph, empty where it passed."""

    name: str
    passed: bool | None
    seconds: float
    why: str = ""


@dataclass(frozen=True)
class Report:
    """All checks of one part.

    >>> report = Report("Mine", "codec", (Outcome("a message is read again", True, 0.1),))
    >>> report.passed, report.failures
    (True, ())
    """

    part: str
    kind: str
    outcomes: tuple[Outcome, ...]

    @property
    def failures(self) -> tuple[Outcome, ...]:
        return tuple(o for o in self.outcomes if o.passed is False)

    @property
    def passed(self) -> bool:
        return not self.failures

    def __str__(self) -> str:
        words = {True: "ok", False: "FAILED", None: "left out"}
        width = max((len(o.name) for o in self.outcomes), default=0)
        lines = [
            f"  {o.name:<{width}}  {words[o.passed]:<8}  {o.seconds:6.2f} s  {o.why}".rstrip()
            for o in self.outcomes
        ]
        return "\n".join([f"{self.part} ({self.kind})", *lines])


@dataclass(frozen=True)
class Check:
    """run() raises if the part breaks its contract; what it returns is why the check does not
    apply, or None. required: without it the checks that follow say nothing, and are left out.
    """

    name: str
    run: Callable[[], str | None]
    required: bool = False


def carry_out(part: Any, name: str, kind: str, checks: Iterable[Check]) -> Report:
    """Run the checks of a part, in order, without the warnings of their runs."""
    log = logging.getLogger("fedloom")
    level, outcomes, missing = log.level, list[Outcome](), ""
    log.setLevel(logging.ERROR)
    try:
        for check in checks:
            passed, why, started = None, f"it needs '{missing}'", time.perf_counter()
            if not missing:
                passed, why = _carry_out(check, part)
            outcomes.append(Outcome(check.name, passed, time.perf_counter() - started, why))
            if passed is False and check.required:
                missing = check.name
        return Report(name, kind, tuple(outcomes))
    finally:
        log.setLevel(level)


def _carry_out(check: Check, part: Any) -> tuple[bool | None, str]:
    try:
        left_out = check.run()
    except Exception as error:  # whatever a user's part does is this check's result
        return False, explain(error, part)
    return (None, left_out) if left_out else (True, "")


def root(error: BaseException) -> BaseException:
    """The exception that an engine's error was made of, or the rule that is broken."""
    while error.__cause__ is not None and not isinstance(error, AuthorError):
        error = error.__cause__
    return error


def explain(error: Exception, part: Any) -> str:
    """One paragraph on an exception that a check ended in."""
    first = root(error)
    text = in_words(first) if isinstance(first, Exception) else repr(first)
    if any(sign in str(first) for sign in _UNPICKLED):
        text += (
            ". A worker process cannot be given the part: define it at the top of the file, and "
            "what it needs beside it in the same folder or installed"
        )
    return f"{_where(first, part)}{text}"


def _where(error: BaseException, part: Any) -> str:
    """The last line of the part's own file that the error went through, as a prefix."""
    every = (f for c in type(part).__mro__ for f in vars(c).values())
    methods = [f for f in every if isinstance(f, types.FunctionType)]
    files = {f.__code__.co_filename for f in methods if not f.__module__.startswith("fedloom.")}
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename in files]
    if not frames:
        return ""
    last = frames[-1]
    line = f" (`{' '.join(last.line.split())}`)" if last.line else ""
    return f"line {last.lineno}, in {last.name}(){line}: "
