"""Curves of evaluations: the one value of a curve that is compared, and what lies between two."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, get_args

from ..errors import ConfigError, unknown
from .arithmetic import total

Value = Literal["last-tenth", "last", "ema", "best-of-validation"]
VALUES: tuple[Value, ...] = get_args(Value)
LEAST = 3  # evaluations of the last tenth, see `tenth_of`
VALUE_WORDS: Mapping[Value, str] = {
    "last-tenth": "mean of the last tenth of evaluations",
    "last": "last evaluation",
    "ema": "last moving average",
    "best-of-validation": "evaluation with the best validation value",
}


def tenth_of(count: int) -> int:
    """How many of so many evaluations are the last tenth: rounded up, at least three, but no more
    than a third of them, so that a short run is not judged by its beginning.

    >>> [tenth_of(count) for count in (60, 10, 5, 3, 0)]
    [6, 3, 2, 1, 0]
    """
    return min(max(LEAST, math.ceil(count / 10)), math.ceil(count / 3))


def last_tenth(values: Sequence[float]) -> float | None:
    """The mean of the last tenth of the evaluations (`tenth_of`; one alone may be an outlier): what
    verdicts are on. None without an evaluation.

    >>> last_tenth([0.0] * 18 + [0.3, 0.6]), last_tenth([0.1, 0.3]), last_tenth([])
    (0.3, 0.3, None)
    """
    many = tenth_of(len(values))
    return total(values[-many:]) / many if many else None


def lately(values: Sequence[float], how: Value, validation: Sequence[float] = ()) -> float | None:
    """The one value of a curve that stands for a run. how: as in VALUES, but for "ema", which is
    "last" of another curve; validation: of the same evaluations, for "best-of-validation", where
    more is better.
    """
    if how == "last-tenth":
        return last_tenth(values)
    if how == "best-of-validation":
        finite = [i for i, v in enumerate(validation) if math.isfinite(v)]
        return values[max(finite, key=lambda i: validation[i])] if finite else None
    return values[-1] if len(values) else None


def tested(
    column: Callable[[str], Mapping[int, float]],
    metric: str,
    higher: bool | None,
    how: Value = "last-tenth",
    run: str = "this run",
    of_clients: bool = False,
) -> dict[int, float]:
    """{row: the value of a run that would be compared, had it ended there}, of the rows with an
    evaluation of the test set; NaN where there is none yet.

    column: {row: value} of a column of the run's rows; metric: its name; higher: whether more is
    better, None if nobody knows; run: its words in messages; of_clients: the mean over the clients,
    not the common model's. Raises ConfigError for an unknown way, for one that only the common
    model has, and for "best-of-validation" of a run without a validation split or a known
    direction.
    """
    if how not in VALUES:
        raise ConfigError(unknown("value", how, VALUES))
    if of_clients:
        if how not in ("last-tenth", "last"):
            raise ConfigError(
                f"value '{how}' is of the server's model, and {run} is compared by the models "
                "that its clients use; choose last-tenth or last"
            )
        values = column(f"client_{metric}_mean")
    else:
        values = column(f"test_{metric}_ema" if how == "ema" else f"test_{metric}")
    validation: list[float] = []
    if how == "best-of-validation" and values:
        held_out = column(f"validation_{metric}")
        if not held_out:
            raise ConfigError(
                f"value 'best-of-validation': {run} has no validation split; choose "
                f"{', '.join(VALUES[:-1])}, or run it with evaluate.validation=0.1"
            )
        if higher is None:
            raise ConfigError(
                f"value 'best-of-validation': nothing says whether the metric '{metric}' of "
                f"{run} is better higher or lower; run it with higher_is_better=True or False"
            )
        validation = [(1 if higher else -1) * held_out.get(row, math.nan) for row in values]
    tests = list(values.values())
    so_far = (lately(tests[:n], how, validation[:n]) for n in range(1, len(tests) + 1))
    return dict(zip(values, (math.nan if v is None else v for v in so_far), strict=True))


def at(curve: Mapping[float, float] | Mapping[int, float], x: float) -> float | None:
    """The value of a curve {round or bytes: value} at x: on the straight line between the two
    evaluations around it. None before the first one and after the last.

    >>> at({1: 0.2, 3: 0.4}, 2), at({1: 0.2, 3: 0.4}, 3), at({1: 0.2}, 0.5), at({1: 0.2}, 2)
    (0.30000000000000004, 0.4, None, None)
    """
    points: dict[float, float] = {float(place): value for place, value in curve.items()}
    places = sorted(points)
    slack = 1e-9 * abs(x)  # the whole of a run's bytes may differ from itself in the last digit
    if not places or x < places[0] - slack or x > places[-1] + slack:
        return None
    after = next((i for i, place in enumerate(places) if place >= x), len(places) - 1)
    high = places[after]
    if high <= x or not after:
        return points[high]
    low = places[after - 1]
    return points[low] + (points[high] - points[low]) * (x - low) / (high - low)


def crossing(
    curve: Mapping[float, float] | Mapping[int, float], target: float, higher: bool = True
) -> float | None:
    """Where a curve {round or bytes: value} first reaches a target, on straight lines between its
    evaluations; the first evaluation if that one has reached it, None if none has.

    >>> crossing({5: 0.5, 10: 0.7}, 0.6), crossing({5: 0.5}, 0.5), crossing({5: 0.5}, 0.6)
    (7.5, 5.0, None)
    """
    before: tuple[float, float] | None = None
    for place, value in sorted(curve.items()):
        x = float(place)
        if value >= target if higher else value <= target:
            if before is None or not math.isfinite(value):
                return x
            low, start = before
            return low + (x - low) * (target - start) / (value - start)
        if math.isfinite(value):
            before = x, value
    return None


def whole_round(place: float) -> int:
    """The round at whose end a place between two rounds is behind.

    >>> whole_round(7.2), whole_round(8.0), whole_round(8 + 1e-12)
    (8, 8, 8)
    """
    return math.ceil(place - 1e-9)


def at_equal(
    ours: Mapping[float, float], theirs: Mapping[float, float]
) -> tuple[float, float] | None:
    """Two curves {bytes: value} after as many bytes as the second run sent in all: at the last
    tenth of its evaluations (`tenth_of`), the mean of the first curve there, between its own
    evaluations on straight lines, and of the second. None where the first curve is shorter.

    >>> at_equal({1.0: 0.0, 3.0: 0.4, 6.0: 0.7}, {1.0: 0.1, 2.0: 0.3})
    (0.2, 0.3)
    """
    places = sorted(theirs)[-tenth_of(len(theirs)) :]
    values = [at(ours, place) for place in places]
    inside = [v for v in values if v is not None]
    if not inside or len(inside) < len(values):
        return None
    middle = last_tenth([theirs[place] for place in sorted(theirs)])
    assert middle is not None
    return total(inside) / len(inside), middle
