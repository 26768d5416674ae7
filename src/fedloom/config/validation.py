"""Checks of tables of settings against the functions and classes that they configure.

A table's keys, types and defaults are read from the signature: a new option of an algorithm, model
or data set needs no line here.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from ..core.hyper import hints_of
from ..core.parsing import shortened
from ..errors import ConfigError, DataError, did_you_mean

NOTHING = "none"  # TOML has no null: this text stands for None
STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, arbitrary_types_allowed=True)


@dataclass(frozen=True)
class Origin:
    """The source of settings, for errors. typed: dotted keys given on the command line."""

    source: str
    typed: frozenset[str] = field(default_factory=frozenset)

    def of(self, path: str) -> str:
        """The source of a dotted key.

        >>> Origin("file 'a.toml'", frozenset({"algorithm.lam"})).of("algorithm.lam")
        'command line'
        """
        return "command line" if path in self.typed else self.source

    @contextmanager
    def blame(self, table: str, keys: Iterable[str] = ()) -> Iterator[None]:
        """Add source and table to an error about a value that is raised inside. keys: of the table,
        which the error then names.
        """
        try:
            yield
        except (ConfigError, DataError) as error:
            own = any(_is_meant(k, table, str(error)) for k in self.typed)
            named = self.typed & {f"{table}.name", f"{table}.down.name"}
            where = "command line" if own or named else self.source
            where += f", [{table}]" if table else ""
            raise type(error)(f"{where}: {worded(str(error), table, keys)}") from error


def _is_meant(path: str, table: str, error: str) -> bool:
    """True if an error names this key of a table, or outside of tables its whole path."""
    if not table and "." in path:
        return path in error
    inside = not table or path.startswith(f"{table}.")
    return inside and re.search(rf"\b{path.rpartition('.')[2]}\b", error) is not None


def live(options: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as Python arguments: "none" is None, a list is a tuple (which is hashable).

    >>> live({"batch": "none", "hidden": [64, 64]})
    {'batch': None, 'hidden': (64, 64)}
    """
    return {
        k: None if v == NOTHING else tuple(v) if isinstance(v, list) else v
        for k, v in options.items()
    }


def toml_form(model: BaseModel) -> dict[str, Any]:
    """Checked settings in TOML's types; a None that is the default is left out."""
    out: dict[str, Any] = {}
    for name, value in model.model_dump().items():
        if value is not None:
            out[name] = value
        elif type(model).model_fields[name].default is not None:
            out[name] = NOTHING
    return out


_HELD = (int, float, str, bool, types.NoneType)  # by a key of TOML


@functools.cache
def model_of(make: Callable[..., Any], skip: frozenset[str] = frozenset()) -> type[BaseModel]:
    """A pydantic model whose fields are the parameters of a function or dataclass.

    >>> sorted(model_of(lambda beta=0.9: None).model_fields)
    ['beta']
    """
    hints = hints_of(make)
    fields: dict[str, Any] = {}
    for name, parameter in inspect.signature(make).parameters.items():
        if name in skip or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        default = parameter.default
        if default is inspect.Parameter.empty:
            default = ...
        elif isinstance(default, tuple):
            default = list(default)
        fields[name] = (_toml_type(hints.get(name, Any)), default)
    return create_model(getattr(make, "__name__", "Table"), __config__=STRICT, **fields)


def known(make: Callable[..., Any], skip: Iterable[str] = ()) -> list[str]:
    """The keys of a table."""
    return list(model_of(make, frozenset(skip)).model_fields)


def _toml_type(hint: Any) -> Any:
    """A type hint for TOML values: sequences are lists, and a path is a text."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        kept = [a for a in inner if typing.get_origin(a) or a in _HELD]
        held = [_toml_type(a) for a in kept if typing.get_origin(a) is not os.PathLike]
        return functools.reduce(lambda a, b: a | b, held)
    if origin is tuple or origin is Sequence:
        return list[_toml_type(inner[0])]  # type: ignore[misc]  # known at run time only
    return hint


def check(
    model: type[BaseModel], given: Mapping[str, Any], path: str, what: str, origin: Origin
) -> dict[str, Any]:
    """The settings of one table, complete, in TOML's types.

    path: the table's dotted name, empty for the top; what: the table's name in errors. Raises
    ConfigError naming source, table, key, value and what is allowed.
    """
    fields = model.model_fields
    for key in given:
        if key not in fields:
            hint = did_you_mean(key, fields)
            raise ConfigError(f"{origin.of(_join(path, key))}: {what} has no key '{key}'; {hint}")
    values = {k: None if v == NOTHING else v for k, v in given.items()}
    try:
        return toml_form(model.model_validate(values))
    except ValidationError as error:
        raise ConfigError(_explain(error, given, path, what, origin)) from None


def worded(error: str, path: str, keys: Iterable[str]) -> str:
    """An error of a Python part, with the key of the table at this path instead of the class.

    >>> worded("Exponential.decay must be in (0, 1], got 2", "local.schedule", ["decay"])
    'local.schedule.decay must be in (0, 1], got 2'
    """
    names = "|".join(map(re.escape, keys))
    if not path or not names:
        return error
    return re.sub(rf"(\b[A-Z]\w*\.|^)({names})(?= must| =)", rf"{path}.\2", error)


@contextmanager
def keyed(path: str, keys: Iterable[str]) -> Iterator[None]:
    """Errors of a part that is made inside name the keys of the table at this path."""
    try:
        yield
    except (ConfigError, DataError) as error:
        raise type(error)(worded(str(error), path, keys)) from error


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _explain(
    error: ValidationError, given: Mapping[str, Any], path: str, what: str, origin: Origin
) -> str:
    """One line about the first wrong key."""
    problems = error.errors(include_url=False)
    key = str(problems[0]["loc"][0])
    dotted = _join(path, key)
    if problems[0]["type"] == "missing":
        return f"{origin.source}: {what} needs the key '{key}'; give {dotted}=..."
    allowed = [_words(p["msg"], p["loc"]) for p in problems if str(p["loc"][0]) == key]
    text = " or ".join(dict.fromkeys(allowed))
    value = given[key]
    shown = f"'{value}'" if isinstance(value, str) else str(value)
    quoted = " (texts in a list need quotes)" if shown.startswith("'[") else ""
    return f"{origin.of(dotted)}: {dotted} must be {text}, got {shortened(shown)}{quoted}"


def _words(message: str, place: tuple[int | str, ...]) -> str:
    """pydantic's sentence in our words. place: of the value; numbers in it count along lists."""
    if depth := sum(isinstance(part, int) for part in place):
        one = _words(message, ()).removeprefix("a ")
        return f"a {'list of lists of' if depth > 1 else 'list of'} {one}s"
    message = message.removeprefix("Input should be ").split(", got ")[0].split(", unable")[0]
    for theirs, ours in (
        ("a valid integer", "a whole number"),
        ("a valid number", "a number"),
        ("a valid string", "a text"),
        ("a valid boolean", "true or false"),
        ("a valid list", "a list"),
        ("greater than or equal to", "at least"),
        ("greater than", "above"),
    ):
        message = message.replace(theirs, ours)
    return message
