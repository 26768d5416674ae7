"""Checks of tables of settings against the functions and classes that they configure.

A table's keys, types, ranges and defaults are read from the signature (core/hyper.py): a new option
of an algorithm, model or data set needs no line here.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ..errors import ConfigError, DataError, SettingError, did_you_mean
from .hyper import Hyper, keys_of

NOTHING = "none"  # TOML has no null: this text stands for None


@dataclass(frozen=True)
class Origin:
    """The source of settings, for errors. command_line: dotted keys given on the command line."""

    source: str
    command_line: frozenset[str] = field(default_factory=frozenset)

    def of(self, path: str) -> str:
        """The source of a dotted key.

        >>> Origin("file 'a.toml'", frozenset({"algorithm.lam"})).of("algorithm.lam")
        'command line'
        """
        return "command line" if path in self.command_line else self.source

    @contextmanager
    def blame(self, table: str, keys: Iterable[str] = ()) -> Iterator[None]:
        """Add source and table to an error about a value that is raised inside, and to one of the
        table's keys its dotted name.
        """
        try:
            yield
        except (ConfigError, DataError) as error:
            message, own_keys, kind = str(error), [*keys] if table else [], type(error)
            if isinstance(error, SettingError):
                kind = ConfigError
                if error.key in own_keys and not error.where:
                    key = f"{table}.{error.key}"
                    raise error.at(self.of(key), key) from error
            overridden = [k for k in self.command_line if not table or k.startswith(f"{table}.")]
            patterns = [re.escape(k.rpartition(".")[2] if table else k) for k in overridden]
            mentioned = patterns and re.search(rf"\b({'|'.join(patterns)})\b", message)
            by_name = {f"{table}.name", f"{table}.down.name"} & self.command_line
            where = "command line" if by_name or mentioned else self.source
            where += f", [{table}]" if table else ""
            message = f"{table}.{message}" if message.partition(" ")[0] in own_keys else message
            raise kind(f"{where}: {message}") from error


def live(options: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as Python arguments: "none" is None, a list is a tuple (which is hashable).

    >>> live({"batch": "none", "hidden": [64, 64]})
    {'batch': None, 'hidden': (64, 64)}
    """
    return {
        k: None if v == NOTHING else tuple(v) if isinstance(v, list) else v
        for k, v in options.items()
    }


def fields_of(make: Callable[..., Any], skip: Iterable[str] = ()) -> dict[str, Hyper]:
    """The keys of a table."""
    return {key: field for key, field in keys_of(make).items() if key not in skip}


def check(
    make: Callable[..., Any],
    table: Mapping[str, Any],
    path: str,
    name: str,
    origin: Origin,
    skip: Iterable[str] = (),
) -> dict[str, Any]:
    """The settings of one table, complete, in TOML's types; a None that is the default is left out.

    make: what they configure; path: the table's dotted name, empty for the top; name: the table's
    name in errors; skip: parameters that are no keys. Raises ConfigError naming source, table, key,
    value and what is allowed.
    """
    keys, out = fields_of(make, skip), {}
    for key in table:
        if key not in keys:
            hint = did_you_mean(key, keys)
            raise ConfigError(f"{origin.of(_join(path, key))}: {name} has no key '{key}'; {hint}")
    for key, declared in keys.items():
        dotted, value = _join(path, key), table.get(key, declared.default)
        if value is inspect.Parameter.empty:
            raise ConfigError(f"{origin.source}: {name} needs the key '{key}'; give {dotted}=...")
        value = None if value == NOTHING else value
        try:
            value = declared.read(value) if key in table else value
        except ValueError:
            raise declared.refusal(dotted, table[key], where=origin.of(dotted)) from None
        if value is not None or declared.default is not None:
            out[key] = NOTHING if value is None else _toml(value)
    return out


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _toml(value: Any) -> Any:
    """A value in TOML's types."""
    if isinstance(value, dict):
        return {k: _toml(v) for k, v in value.items()}
    return [*map(_toml, value)] if isinstance(value, list | tuple) else value
