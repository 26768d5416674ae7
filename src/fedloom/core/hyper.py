"""A hyper-parameter or setting is declared once: a dataclass field with meaning, range and source.
Checks, help, TOML tables and docs/settings.md read it here.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import functools
import inspect
import numbers
import sys
import types
import typing
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, ParamSpec, TypeVar, Union

from ..errors import ConfigError, SettingError, did_you_mean, unknown
from .arithmetic import plain_number

T = TypeVar("T")
P = ParamSpec("P")


_UNIONS = (Union, types.UnionType)
_LISTS = (list, tuple, collections.abc.Sequence)


@dataclass(frozen=True)
class Hyper:
    """Meaning, range and source of a hyper-parameter. Bounds are inclusive unless `open_low` or
    `open_high`, and hold for every number of a list; one_per: a list has one value for each of
    these. kind: the declared type, which says what else is allowed. example: a value, if the type
    says too little; remedy: what an error adds.
    """

    meaning: str = ""
    source: str = ""
    low: float | None = None
    high: float | None = None
    open_low: bool = False
    open_high: bool = False
    choices: tuple[Any, ...] = ()
    one_per: str = ""
    example: str = ""
    remedy: str = ""
    kind: Any = Any

    def within(self, kind: Any) -> Hyper:
        """The same for a type, with the range of the type, and its meaning and source if this has
        none.

        >>> Hyper("step").within(Positive | None).text()
        'in (0, inf) or none'
        """
        found: Hyper = dataclasses.replace(self, kind=kind)
        parts = [part for part in _parts(kind) if part is not types.NoneType]
        if parts == [bool]:
            found = dataclasses.replace(found, choices=(False, True))
        elif len(parts) == 1 and typing.get_origin(parts[0]) is Literal:
            found = dataclasses.replace(found, choices=typing.get_args(parts[0]))
        elements = [typing.get_args(p)[0] for p in parts if typing.get_origin(p) in _LISTS]
        for part in [*parts, *elements]:
            for rule in getattr(part, "__metadata__", ()):
                if isinstance(rule, Hyper):
                    mine, blank = vars(found), vars(Hyper())
                    new = {k: v for k, v in vars(rule).items() if mine[k] == blank[k]}
                    found = dataclasses.replace(found, **new)
        return found

    def text(self) -> str:
        """The allowed values as text, for help and errors.

        >>> Hyper(low=0, high=1, open_high=True).text(), Hyper(low=1).within(int).text()
        ('in [0, 1)', 'a whole number from 1')
        """
        if self.example:
            return self.example
        parts, low, high = _parts(self.kind), self.low, self.high
        kinds = [_bare(part) for part in parts if part is not types.NoneType]
        several = all(typing.get_origin(kind) in _LISTS for kind in kinds)
        whole = [_bare(kind.__args__[0]) for kind in kinds] if several else kinds
        if set(self.choices) == {True, False}:
            words = ["true or false"]
        elif self.choices:
            words = ["one of " + ", ".join(map(str, self.choices))]
        elif low is None and high is None:
            words = [type_text(kind) for kind in kinds]
        elif int in whole and float not in whole and low is not None:
            to = "" if high is None else f" to {high:.0f}"
            start = type_text(kinds[0] if several else int)
            words = [f"{start} from {low + self.open_low:.0f}{to}"]
        else:
            left = "(-inf" if low is None else f"{'[('[self.open_low]}{low:g}"
            right = "inf)" if high is None else f"{high:g}{'])'[self.open_high]}"
            words = [f"{'a list of numbers ' if several else ''}in {left}, {right}"]
            words += [str(w) for k in kinds if typing.get_origin(k) is Literal for w in k.__args__]
        words += ["none"] if types.NoneType in parts else []
        each = f", or a list of one per {self.one_per}" if self.one_per else ""
        return (" or ".join(dict.fromkeys(filter(None, words))) or "any") + each

    def allows(self, value: Any) -> bool:
        """True if a value, whose lists are tuples, has the type and is within the range."""
        return _fits(value, self.kind, self)

    def refused(self, key: str, value: Any, owner: str = "", where: str = "") -> SettingError:
        """The error about a value that is not allowed."""
        remedy = self.remedy
        if isinstance(value, str):
            near = did_you_mean(value, [c for c in self.choices if isinstance(c, str)])
            remedy = "texts in a list need quotes" if value.startswith("[") else remedy
            remedy = near if near.startswith("did you mean") else remedy
        return SettingError(key, value, self.text(), remedy, owner, where)

    def holds(self, value: Any) -> bool:
        """True if a number is finite and within the bounds."""
        if not abs(value) <= sys.float_info.max:
            return False
        above = self.low is None or (value > self.low if self.open_low else value >= self.low)
        below = self.high is None or (value < self.high if self.open_high else value <= self.high)
        return bool(above and below)


def _parts(kind: Any) -> tuple[Any, ...]:
    """The types of a union, or the one type."""
    return typing.get_args(kind) if typing.get_origin(kind) in _UNIONS else (kind,)


def _bare(kind: Any) -> Any:
    """A type without its annotations."""
    return typing.get_args(kind)[0] if typing.get_origin(kind) is Annotated else kind


def _fits(value: Any, kind: Any, rule: Hyper) -> bool:
    """True if a value is of a type, and its numbers are within the rule's bounds."""
    kind = _bare(kind)
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in _UNIONS:
        return any(_fits(value, one, rule) for one in inner)
    if kind is types.NoneType:
        return value is None
    if (choices := inner if origin is Literal else rule.choices) or kind is bool:
        likes = [c for c in choices or (False, True) if isinstance(value, type(c)) and value == c]
        return isinstance(value, bool) in [isinstance(c, bool) for c in likes]  # True is no 1
    if kind is Any:
        kind = object if rule.low is None and rule.high is None else float
    if kind in (int, float):
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            return False
        whole = isinstance(value, numbers.Integral) and int(value).bit_length() <= 64
        return (whole or kind is float) and rule.holds(value)
    if getattr(kind, "_is_protocol", False):
        asked = [k for k, v in vars(kind).items() if isinstance(v, types.FunctionType)]
        return all(callable(getattr(value, k, None)) for k in asked if not k.startswith("_"))
    if origin is collections.abc.Callable:
        return callable(value)
    if origin in _LISTS:
        if not isinstance(value, tuple) or (rule.one_per and not value):
            return False
        return all(_fits(v, inner[0], rule) for v in value)
    if origin is collections.abc.Mapping and isinstance(value, Mapping):
        return all(_fits(v, inner[1], rule) for v in value.values())
    return isinstance(value, origin or kind)


# ranges as types: `lam: Share = hyper(0.85, "momentum of the server", "Table 5")`
Positive = Annotated[float, Hyper(low=0, open_low=True)]
NonNegative = Annotated[float, Hyper(low=0)]
Share = Annotated[float, Hyper(low=0, high=1)]
PositiveShare = Annotated[float, Hyper(low=0, high=1, open_low=True)]
ShareBelow1 = Annotated[float, Hyper(low=0, high=1, open_high=True)]
Decay = ShareBelow1  # of a moving average: 1 never moves
PositiveInt = Annotated[int, Hyper(low=1)]
NonNegativeInt = Annotated[int, Hyper(low=0)]


def hyper(
    default: Any = dataclasses.MISSING, meaning: str = "", source: str = "", **ranges: Any
) -> Any:
    """A dataclass field with a meaning, a source and a range: that of its type (Positive, Share,
    ..., a Literal, bool, `| None`), or Hyper's fields.

    `lam: float = hyper(0.85, "momentum of the server", "Table 5", low=0, high=1)`
    """
    return dataclasses.field(default=default, metadata={"hyper": Hyper(meaning, source, **ranges)})


@typing.dataclass_transform(frozen_default=True, kw_only_default=True)
class Part:
    """What a run is made of, such as a method or a codec. Every class below is a frozen dataclass
    whose fields are the hyper-parameters, in the ranges of their types.
    """

    def __init_subclass__(cls) -> None:
        ranged(dataclass(frozen=True, kw_only=True)(cls))

    def __post_init__(self) -> None:
        check_settings(self)


def ranged(cls: type[T]) -> type[T]:
    """Give the fields of a dataclass the ranges of their types, and refuse unknown arguments."""
    setattr(cls, "__init__", _knowing(cls))  # noqa: B010 # mypy allows no other assignment
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]
        if field.name in vars(cls).get("__annotations__", {}) and "hyper" in field.metadata:
            rule = field.metadata["hyper"].within(_evaluated(field.type, cls.__module__))
            field.metadata = types.MappingProxyType({"hyper": rule})
    return cls


def _knowing(cls: type[T]) -> Callable[..., None]:
    """A dataclass's __init__, which raises ConfigError for an argument that it does not have."""
    init: Callable[..., None] = cls.__init__
    known = [name for name in inspect.signature(init).parameters if name != "self"]

    @functools.wraps(init)
    def made(self: T, *args: Any, **given: Any) -> None:
        for name in given:
            if name not in known:
                raise ConfigError(f"{cls.__name__}: {unknown('argument', name, known)}")
        init(self, *args, **given)

    return made


def _evaluated(annotation: Any, module: str) -> Any:
    """The type of an annotation, which may be text. Any for names that are not the module's."""
    if not isinstance(annotation, str):
        return annotation
    try:
        return eval(annotation, vars(sys.modules[module]))  # the text is the class's own source
    except (NameError, KeyError, TypeError):
        return Any


def listed(given: Any) -> Any:
    """Numbers and lists as Python's own types: arrays and tensors as tuples, numpy's numbers as
    numbers.

    >>> import numpy
    >>> listed([1, numpy.array([2.0, 3.0])])
    (1, (2.0, 3.0))
    """
    given = given.tolist() if hasattr(given, "tolist") else given
    return tuple(map(listed, given)) if isinstance(given, (list, tuple, range)) else given


def part(make: Callable[[], Any], example: str) -> Any:
    """A dataclass field that holds other settings; `make` gives the default."""
    rule = {"hyper": Hyper(example=example)}
    return dataclasses.field(default_factory=make, metadata=rule)


def check_settings(owner: Any) -> None:
    """Raise SettingError for the first field of a dataclass that has another type than declared, or
    is out of its range. Numbers and lists become Python's own types.
    """
    title = getattr(owner, "title", type(owner).__name__ if isinstance(owner, Part) else "")
    for field in dataclasses.fields(owner):
        if (rule := field.metadata.get("hyper")) is None:
            continue
        value = _accepted(getattr(owner, field.name), field.name, rule, title)
        object.__setattr__(owner, field.name, value)


def _accepted(given: Any, name: str, rule: Hyper, owner: str = "") -> Any:
    value = plain_number(given) if rule.kind is Any else listed(given)
    for found in (value, given):  # an array itself may be what is asked for
        if rule.allows(found):
            return found
    raise rule.refused(name, value, owner)


def checked(make: Callable[P, T]) -> Callable[P, T]:
    """A function that raises SettingError for arguments of other types or ranges than declared.

    >>> @checked
    ... def layer(width: PositiveInt, drop: ShareBelow1 = 0.0): ...
    >>> layer(0)
    Traceback (most recent call last):
    fedloom.errors.SettingError: width must be a whole number from 1, got 0
    """

    @functools.wraps(make)
    def call(*args: P.args, **given: P.kwargs) -> T:
        bound = inspect.signature(make).bind(*args, **given)
        for name, value in bound.arguments.items():
            bound.arguments[name] = _accepted(value, name, keys_of(make)[name].rule)
        return make(*bound.args, **bound.kwargs)

    return call


class Key(NamedTuple):
    """A key of a table of settings; default: inspect.Parameter.empty if it is needed."""

    rule: Hyper
    default: Any


@functools.cache
def keys_of(make: Callable[..., Any]) -> Mapping[str, Key]:
    """The parameters of a function or dataclass, with their types and ranges.

    >>> list(keys_of(lambda beta=0.9: None))
    ['beta']
    """
    fields = dataclasses.fields(make) if dataclasses.is_dataclass(make) else ()
    rules = {f.name: f.metadata["hyper"] for f in fields if "hyper" in f.metadata}
    typed = make.__init__ if isinstance(make, type) and not fields else make  # type: ignore[misc]
    hints = typing.get_type_hints(typed, include_extras=True)
    out = {}
    for name, found in inspect.signature(make).parameters.items():
        if found.kind not in (found.VAR_POSITIONAL, found.VAR_KEYWORD):
            rule = rules.get(name, Hyper())
            rule = rule.within(hints.get(name, Any)) if rule.kind is Any else rule
            out[name] = Key(rule, found.default)
    return out


_KINDS: dict[Any, tuple[str, str]] = {
    int: ("a whole number", "whole numbers"),
    float: ("a number", "numbers"),
    str: ("a text", "texts"),
    bool: ("true or false", "truth values"),
    types.NoneType: ("none", "none"),
    Mapping: ("a table", "tables"),
    **dict.fromkeys(_LISTS, ("a list", "lists")),
}


def type_text(kind: Any, several: bool = False) -> str:
    """A declared type as text; empty for other types.

    >>> type_text(float | None), type_text(tuple[int, ...])
    ('a number or none', 'a list of whole numbers')
    """
    kind = _bare(kind)
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in _UNIONS:
        return " or ".join(filter(None, dict.fromkeys(type_text(a, several) for a in inner)))
    if origin is Literal:
        return "one of " + ", ".join(map(str, inner))
    text = _KINDS.get(origin or kind, ("", ""))[several]
    of = type_text(inner[origin is Mapping], several=True) if text and inner else ""
    return f"{text} of {of}" if of else text


def synonyms(**names: str) -> Callable[[type[T]], type[T]]:
    """Let a class take arguments by names that other systems have for them, with a warning.

    `@synonyms(batch_size="batch")`
    """

    def change(cls: type[T]) -> type[T]:
        init = _knowing(cls)

        @functools.wraps(init)
        def made(self: T, *args: Any, **given: Any) -> None:
            for theirs in names.keys() & given.keys():
                ours, said = names[theirs], f"{cls.__name__}: {theirs} is called {names[theirs]}"
                if ours in given:
                    raise ConfigError(f"{said}, and both are given; keep {ours}")
                warnings.warn(said, stacklevel=2)
                given[ours] = given.pop(theirs)
            init(self, *args, **given)

        setattr(cls, "__init__", made)  # noqa: B010 # mypy allows no other assignment
        return cls

    return change
