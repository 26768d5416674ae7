"""Hyper-parameters: a dataclass field with a range and a source."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from ..errors import ConfigError


@dataclass(frozen=True)
class Hyper:
    """Meaning, range and source of a hyper-parameter. Bounds are inclusive unless `open_low` or
    `open_high`; optional: None is allowed too; one_per: what a list has one value for.
    """

    meaning: str = ""
    low: float | None = None
    high: float | None = None
    open_low: bool = False
    open_high: bool = False
    choices: tuple[Any, ...] = ()
    optional: bool = False
    source: str = ""
    one_per: str = ""

    def range_text(self) -> str:
        """The allowed values in words, as they stand in `fedloom show` and in errors."""
        if set(self.choices) == {True, False}:
            return "true or false"
        if self.choices:
            return "one of " + ", ".join(map(str, self.choices))
        if self.low is None and self.high is None:
            return "any"
        left = "(-inf" if self.low is None else f"{'(' if self.open_low else '['}{self.low:g}"
        right = "inf)" if self.high is None else f"{self.high:g}{')' if self.open_high else ']'}"
        listed = f", or a list of one per {self.one_per}" if self.one_per else ""
        return f"in {left}, {right}{' or none' if self.optional else ''}{listed}"

    def allows(self, value: Any) -> bool:
        """Say whether a value is within the range."""
        if value is None and self.optional:
            return True
        if self.one_per and isinstance(value, tuple):
            each = dataclasses.replace(self, one_per="", optional=False)
            return bool(value) and all(map(each.allows, value))
        if self.choices:
            return value in self.choices
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return self.low is None and self.high is None
        if not math.isfinite(value):
            return False
        above = self.low is None or (value > self.low if self.open_low else value >= self.low)
        below = self.high is None or (value < self.high if self.open_high else value <= self.high)
        return above and below


def hyper(default: Any = dataclasses.MISSING, meaning: str = "", **ranges: Any) -> Any:
    """A dataclass field with a meaning, a range and a source.

    `lam: float = hyper(0.85, "momentum of the server", low=0, high=1, source="Table 5")`
    """
    return dataclasses.field(default=default, metadata={"hyper": Hyper(meaning, **ranges)})


def listed(given: Any) -> Any:
    """Numbers and lists as Python's own: arrays and tensors as tuples, numpy's numbers as numbers.

    >>> import numpy
    >>> listed([1, numpy.array([2.0, 3.0])])
    (1, (2.0, 3.0))
    """
    given = given.tolist() if hasattr(given, "tolist") else given
    return tuple(map(listed, given)) if isinstance(given, (list, tuple, range)) else given


def check_ranges(owner: Any) -> None:
    """Raise ConfigError for the first field of a dataclass that is out of its range."""
    for field in dataclasses.fields(owner):
        rule, value = field.metadata.get("hyper"), getattr(owner, field.name)
        if rule is not None and not rule.allows(value):
            name = f"{getattr(owner, 'title', '') or type(owner).__name__}.{field.name}"
            raise ConfigError(f"{name} must be {rule.range_text()}, got {value!r}")
