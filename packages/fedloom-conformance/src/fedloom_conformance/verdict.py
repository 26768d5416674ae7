"""From an adapter's models to a verdict: right, right under a reading, wrong, or not there."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from .cases import Case, Row
from .federation import Federation
from .methods import METHODS
from .networks import Array, State
from .problems import NotThereError, Problem

Train = Callable[[Problem, str, dict[str, Any]], Sequence[State]]
TOLERANCE = 1e-6  # of the largest number of the round's right model, or of 1
PAPER = "the paper"


@dataclass(frozen=True)
class Fault:
    """Where a run leaves every reading: the case, the first round, and by how much there."""

    case: str
    round: int
    size: float
    smallest: str


@dataclass(frozen=True)
class Verdict:
    """What a framework does with a row. kind: right, reading, wrong, absent or error."""

    kind: str
    reading: str = ""
    fault: Fault | None = None
    words: str = ""
    right_cases: int = 0
    cases: int = 0

    def record(self) -> dict[str, Any]:
        """The same for JSON."""
        return asdict(self)


def reference(case: Case, reading: str = PAPER) -> list[Array]:
    """The right vectors after every round."""
    method = METHODS[case.method]
    more = {} if reading == PAPER else method.readings[reading]
    return [*method.recurrence(Federation(case.problem), **case.settings | more)]


def differences(case: Case, found: Sequence[State], reading: str = PAPER) -> list[float]:
    """One number per round: the largest difference over TOLERANCE's unit."""
    right = reference(case, reading)
    if len(found) != len(right):
        raise ValueError(f"{len(found)} models of {len(right)} rounds")
    fed = Federation(case.problem)
    vectors = [fed.flat({k: np.asarray(v, float) for k, v in s.items()}) for s in found]
    if case.method == "dp_noise":
        return _deviations(fed.start, vectors, right)
    return [
        float(np.max(np.abs(x - y)) / max(1.0, np.max(np.abs(y))))
        for x, y in zip(vectors, right, strict=True)
    ]


def _deviations(start: Array, vectors: list[Array], right: list[Array]) -> list[float]:
    """What is over five standard errors of a deviation estimated from d numbers, per round."""
    moves = np.diff(np.stack([start, *vectors]), axis=0)
    off = np.abs(moves.std(1) / np.concatenate(right) - 1)
    return [float(x) for x in np.maximum(0.0, off - 5 / np.sqrt(2 * moves.shape[1]))]


def judge(row: Row, train: Train) -> Verdict:
    """Run every case; a reading must hold in all of them."""
    try:
        found = [(c, train(c.problem, c.method, c.settings)) for c in row.cases]
        right = sum(_holds(case, models, PAPER) for case, models in found)
    except NotThereError as error:
        return Verdict("absent", words=str(error))
    except Exception as error:  # whatever a framework raises is the verdict of its row
        traceback.print_exc()
        return Verdict("error", words=f"{type(error).__name__}: {error}"[:300])
    judged = partial(Verdict, right_cases=right, cases=len(found))
    held = {r: [_holds(c, m, r) for c, m in found] for r in _readings(row.cases[0])}
    nearest = max(held, key=lambda reading: sum(held[reading]))  # of equals the first, the paper
    if all(held[nearest]):
        return judged("right" if nearest == PAPER else "reading", nearest)
    case, models = found[held[nearest].index(False)]
    return judged("wrong", fault=_fault(case, models, nearest, train))


def _readings(case: Case) -> tuple[str, ...]:
    """The names of a method's readings, the paper's first."""
    return PAPER, *METHODS[case.method].readings


def _holds(case: Case, found: Sequence[State], reading: str) -> bool:
    """Whether every round is right under the reading; NaN is not."""
    return all(size <= TOLERANCE for size in differences(case, found, reading))


def _fault(case: Case, found: Sequence[State], reading: str, train: Train) -> Fault:
    """The first round in which a run is not the reading's, and the smallest such case."""
    sizes = differences(case, found, reading)
    at = next(k for k, size in enumerate(sizes) if not size <= TOLERANCE)
    return Fault(case.problem.name, at + 1, sizes[at], _smallest(case, train))


def _smallest(case: Case, train: Train) -> str:
    """Take away what can go while the run stays wrong -> what is left, in words."""
    shrunk = True
    while shrunk:
        shrunk = False
        for problem in case.problem.smaller():
            smaller = replace(case, problem=problem)
            if _is_wrong(smaller, train):
                case, shrunk = smaller, True
                break
    found = train(case.problem, case.method, case.settings)
    return _described(case, found)


def _is_wrong(case: Case, train: Train) -> bool:
    """Whether no reading holds; a run that stops is no answer."""
    try:
        found = train(case.problem, case.method, case.settings)
        return not any(_holds(case, found, reading) for reading in _readings(case))
    except Exception:  # whatever it raises: a smaller case that stops shows nothing
        return False


def _described(case: Case, found: Sequence[State]) -> str:
    """Rounds, clients, steps, size, and the number that is furthest off."""
    problem, fed = case.problem, Federation(case.problem)
    x, right = fed.flat(found[-1]), reference(case)[-1]
    steps = sorted({problem.steps(i) for i in range(fed.number)})
    parts = [
        _many(len(problem.cohorts), "round"),
        _many(fed.number, "client"),
        "K = " + ", ".join(map(str, steps)),
        _many(fed.start.size, "number"),
    ]
    if case.method != "dp_noise":
        at = int(np.argmax(np.abs(x - right)))
        parts.append(f"{x[at]:.9g}, right is {right[at]:.9g}")
    return "; ".join(parts)


def _many(n: int, what: str) -> str:
    """A number and its noun."""
    return f"{n} {what}{'' if n == 1 else 's'}"
