"""What is tried of settings: values KEY=A,B,C and, by a search, ranges KEY=LOW..HIGH."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ..config import parse_override
from ..config.overrides import METRICS, canonical
from ..errors import ConfigError

Values = dict[str, list[str]]  # {setting: values to try, as they were typed}


def split_values(text: str) -> list[str]:
    """Cut at the commas outside of brackets, braces and quotes.

    >>> split_values("0.1,0.3"), split_values("[64, 64],[128]"), split_values("adam")
    (['0.1', '0.3'], ['[64, 64]', '[128]'], ['adam'])
    """
    parts, depth = [""], 0
    for piece in re.findall(r""""[^"]*"?|'[^']*'?|.""", text, re.DOTALL):
        depth += (piece in "[{") - (piece in "]}")
        if piece == "," and not depth:
            parts.append("")
        else:
            parts[-1] += piece
    return [part.strip() for part in parts]


def values_of(word: str) -> list[str]:
    """What is to be tried of a change key=value; metrics, which may be several, are one value.

    >>> values_of("local.lr=0.1,0.3"), values_of("metrics=auc,f1")
    (['0.1', '0.3'], ['auc,f1'])
    """
    key, _, text = (part.strip() for part in word.partition("="))
    return [text] if key == METRICS else split_values(text)


def several(values: Sequence[str]) -> bool:
    """Whether these are two or more different values."""
    return len(values) > 1 and "" not in values and len(set(values)) == len(values)


def split_space(words: Sequence[str], ranges: bool = False) -> tuple[list[str], Values]:
    """-> the changes that all runs share, and {key: values} to try. ranges: whether a range is
    something to try, as the one value of its key.

    Raises ConfigError for a key that is given twice, for an empty or a repeated value, and for
    seeds, which are not a setting to choose.

    >>> split_space(["local.lr=0.01..1:log", "local.batch=10,20", "rounds=5"], ranges=True)
    (['rounds=5'], {'local.lr': ['0.01..1:log'], 'local.batch': ['10', '20']})
    """
    common, space = list[str](), Values()
    for word in canonical(words):
        key, _ = parse_override(word)
        values = values_of(word)
        if len(values) == 1 and not (ranges and ".." in values[0]):
            if re.fullmatch(r"[\d.eE+-]+\.\.[\d.eE+-]+(:log)?", values[0]):
                raise ConfigError(f"'{word}' is a range, which a search tries: give --trials too")
            common.append(word)
            continue
        if key == "seed":
            raise ConfigError(
                f"'{word}': the seed is nothing to choose; give seeds={max(len(values), 2)}"
            )
        if key in space:
            raise ConfigError(f"'{word}': {key} is tried twice; list all its values once")
        if len(values) > 1 and not several(values):
            raise ConfigError(f"'{word}': a value is empty or there twice; give each one once")
        space[key] = values
    return common, space


@dataclass(frozen=True)
class Range:
    """Numbers from low to high, both included; log: each factor is as likely as another."""

    low: float
    high: float
    whole: bool
    log: bool

    @classmethod
    def of(cls, key: str, text: str) -> Range:
        """The range of a setting that is written LOW..HIGH or LOW..HIGH:log. Raises ConfigError.

        >>> Range.of("local.lr", "0.01..1:log")
        Range(low=0.01, high=1.0, whole=False, log=True)
        """
        numbers, _, scale = text.partition(":")
        ends, word = numbers.split(".."), f"'{key}={text}'"
        try:
            low, high = map(float, ends)
        except ValueError:
            raise ConfigError(f"{word}: a range is two numbers, as in local.lr=0.01..1") from None
        if not low < high < float("inf") or scale not in ("", "log"):
            raise ConfigError(f"{word}: a range goes up, as 0.01..1, or 0.01..1:log for factors")
        if scale and low <= 0:
            raise ConfigError(f"{word}: with :log a range begins above 0")
        whole = all(end.strip().lstrip("+-").isdigit() for end in ends)
        return cls(low, high, whole, bool(scale))

    def text(self, value: float) -> str:
        """A number as a setting; with four digits, which suffice to choose by.

        >>> Range(0, 1, False, False).text(0.0123456), Range(1, 9, True, False).text(3.0)
        ('0.01235', '3')
        """
        return str(int(value)) if self.whole else repr(float(f"{value:.4g}"))
