"""A hyper-parameter or setting is declared once: a dataclass field with meaning, range and source.
Checks, help, TOML tables and docs/settings.md read it here.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import functools
import inspect
import math
import numbers
import sys
import types
import typing
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, TypeVar, Union

from ..errors import ConfigError, unknown
from .arithmetic import plain_number

T = TypeVar("T")


@dataclass(frozen=True)
class Hyper:
    """Meaning, range and source of a hyper-parameter. Bounds are inclusive unless `open_low` or
    `open_high`; optional: None is allowed too; whole: fractions are refused; one_per: a list has
    one value for each of these; words: allowed beside numbers. example: a value, if the type says
    too little.
    """

    meaning: str = ""
    source: str = ""
    low: float | None = None
    high: float | None = None
    open_low: bool = False
    open_high: bool = False
    choices: tuple[Any, ...] = ()
    optional: bool = False
    whole: bool = False
    one_per: str = ""
    words: tuple[str, ...] = ()
    example: str = ""

    def within(self, kind: Any) -> Hyper:
        """The same with the range of a type, and the type's meaning and source if this has none.

        >>> Hyper("step").within(Positive | None).range_text()
        'in (0, inf) or none'
        """
        found: Hyper = self
        if kind is int or getattr(kind, "__origin__", None) is int:  # Annotated too
            found = dataclasses.replace(found, whole=True)
        if kind is bool:
            found = dataclasses.replace(found, choices=(False, True))
        elif typing.get_origin(kind) is Literal:
            found = dataclasses.replace(found, choices=typing.get_args(kind))
        elif typing.get_origin(kind) in (Union, types.UnionType):
            parts = [p for p in typing.get_args(kind) if p is not types.NoneType]
            found = dataclasses.replace(found, optional=len(parts) < len(typing.get_args(kind)))
            for part in parts:  # beside another type a bool or a Literal is not the only choice
                if len(parts) == 1 or typing.get_origin(part) is Annotated:
                    found = found.within(part)
                elif typing.get_origin(part) is Literal:
                    found = dataclasses.replace(found, words=typing.get_args(part))
        for rule in getattr(kind, "__metadata__", ()):
            if isinstance(rule, Hyper):
                mine, blank = vars(found), vars(Hyper())
                new = {k: v for k, v in vars(rule).items() if mine[k] == blank[k]}
                found = dataclasses.replace(found, **new)
        return found

    def range_text(self) -> str:
        """The allowed values as text, for `fedloom show` and errors."""
        if set(self.choices) == {True, False}:
            return f"true or false{' or none' if self.optional else ''}"
        listed = f", or a list of one per {self.one_per}" if self.one_per else ""
        if self.choices:
            return "one of " + ", ".join(map(str, self.choices)) + listed
        if self.low is None and self.high is None:
            return "any"
        left = "(-inf" if self.low is None else f"{'(' if self.open_low else '['}{self.low:g}"
        right = "inf)" if self.high is None else f"{self.high:g}{')' if self.open_high else ']'}"
        others = [*self.words, *["none"] * self.optional]
        return f"in {left}, {right}{''.join(f' or {word}' for word in others)}{listed}"

    def allows(self, value: Any) -> bool:
        """True if a value is within the range."""
        if (value is None and self.optional) or (isinstance(value, str) and value in self.words):
            return True
        if self.one_per and isinstance(value, tuple):
            each = dataclasses.replace(self, one_per="", optional=False, choices=())
            return bool(value) and all(map(each.allows, value))
        if self.choices:
            return value in self.choices
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            return self.low is None and self.high is None
        number = int(value) if isinstance(value, numbers.Integral) else float(value)
        if isinstance(number, float) and not math.isfinite(number):
            return False
        above = self.low is None or (number > self.low if self.open_low else number >= self.low)
        below = self.high is None or (number < self.high if self.open_high else number <= self.high)
        return above and below


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

    # declarations of fedloom 0.1 that are refused below a class: {name: what to write now}
    _old: ClassVar[Mapping[str, str]] = {}

    def __init_subclass__(cls) -> None:
        old = {} if Part in cls.__bases__ else cls._old
        for name in old.keys() & vars(cls).keys():
            said = f"{cls.__name__}.{name} was a declaration of fedloom 0.1"
            raise ConfigError(f"{said}; {old[name]}")
        ranged(dataclass(frozen=True, kw_only=True)(cls))

    def __post_init__(self) -> None:
        check_ranges(self)


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


def check_ranges(owner: Any) -> None:
    """Raise ConfigError for the first field of a dataclass that is out of its range. Numbers become
    Python's own.
    """
    for field in dataclasses.fields(owner):
        rule, given = field.metadata.get("hyper"), getattr(owner, field.name)
        if rule is None:
            continue
        if (value := plain_number(given)) is not given:
            object.__setattr__(owner, field.name, value)
        name = f"{type(owner).__name__}.{field.name}"
        if rule.whole and isinstance(value, float):
            raise ConfigError(f"{name} must be a whole number, got {value!r}")
        if not rule.allows(value):
            raise ConfigError(f"{name} must be {rule.range_text()}, got {value!r}")


def check_settings(owner: Any) -> None:
    """Raise ConfigError for the first field of a dataclass that has another type than declared, or
    is out of its range. Numbers and lists become Python's own types.
    """
    hints, title = hints_of(owner.__class__), getattr(owner, "title", "")
    for field in dataclasses.fields(owner):
        if (rule := field.metadata.get("hyper")) is None:
            continue
        value, hint = listed(getattr(owner, field.name)), hints[field.name]
        object.__setattr__(owner, field.name, value)
        name = f"{title}.{field.name}" if title else field.name
        if isinstance(value, int) and (size := value.bit_length()) > 64:  # too long to be printed
            raise ConfigError(f"{name} must be below 2^64, got one of {size} bits")
        if not _fits(value, hint, bool(rule.one_per)) or not (value is None or rule.allows(value)):
            raise ConfigError(f"{name} must be {allowed(hint, rule)}, got {_short(value)}")


def _short(value: Any) -> str:
    """A value for an error: somebody may have given whole arrays."""
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:197]}..."


@functools.cache
def hints_of(make: Any) -> dict[str, Any]:
    """The types that a class or function declares its fields or parameters with."""
    fields = dataclasses.is_dataclass(make) or not isinstance(make, type)
    return typing.get_type_hints(make if fields else make.__init__)


def _fits(value: Any, hint: Any, each: bool) -> bool:
    """True if a value is of a declared type; for a list, if each of its values is."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return True
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, h, each) for h in inner)
    if origin is typing.Literal:
        return value in inner
    if isinstance(value, bool):
        return hint is bool
    if hint in (int, float):
        return isinstance(value, numbers.Integral if hint is int else numbers.Real)
    if getattr(hint, "_is_protocol", False):
        return all(callable(getattr(value, n, None)) for n in vars(hint) if _asked(hint, n))
    if origin is collections.abc.Callable:
        return callable(value)
    if origin in (tuple, collections.abc.Sequence):
        listed = isinstance(value, tuple)
        return listed and (not each or all(_fits(v, inner[0], each) for v in value))
    return isinstance(value, origin or hint)


def _asked(protocol: Any, name: str) -> bool:
    """True if a protocol has a method of this name."""
    return not name.startswith("_") and isinstance(vars(protocol)[name], types.FunctionType)


def allowed(hint: Any, rule: Hyper) -> str:
    """The allowed values of a field, as text."""
    if rule.example:
        return rule.example
    inner = typing.get_args(hint) or (hint,)
    rule = dataclasses.replace(rule, optional=rule.optional or types.NoneType in inner)
    if int in inner and float not in inner and rule.low is not None:
        to = "" if rule.high is None else f" to {rule.high:.0f}"
        none = " or none" if rule.optional else ""
        each = f", or a list of one per {rule.one_per}" if rule.one_per else ""
        return f"a whole number from {rule.low + rule.open_low:.0f}{to}{none}{each}"
    bound = rule.range_text()
    return type_text(hint) if bound == "any" else bound


_KINDS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    str: "a text",
    bool: "true or false",
    types.NoneType: "none",
}


def type_text(hint: Any) -> str:
    """A declared type as text; empty for other types.

    >>> type_text(float | None), type_text(tuple[int, ...])
    ('a number or none', 'a list')
    """
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return type_text(inner[0])
    if origin in (typing.Union, types.UnionType):
        return " or ".join(filter(None, dict.fromkeys(type_text(a) for a in inner)))
    if origin is typing.Literal:
        return "one of " + ", ".join(map(str, inner))
    if origin in (list, tuple, collections.abc.Sequence):
        return "a list"
    if origin is collections.abc.Mapping:
        return "a table"
    return _KINDS.get(hint, "")


def renamed(**names: str) -> Callable[[type[T]], type[T]]:
    """Let a class take arguments by their old names, and have them as attributes, with a warning.

    `@renamed(loss="objective")`
    """
    return _taking(names, "now called", DeprecationWarning)


def synonyms(**names: str) -> Callable[[type[T]], type[T]]:
    """Let a class take arguments by names that other systems have for them, with a warning.

    `@synonyms(batch_size="batch")`
    """
    return _taking(names, "called", UserWarning)


def _taking(
    names: Mapping[str, str], called: str, kind: type[Warning]
) -> Callable[[type[T]], type[T]]:
    def change(cls: type[T]) -> type[T]:
        init = _knowing(cls)

        @functools.wraps(init)
        def made(self: T, *args: Any, **given: Any) -> None:
            for old in [name for name in names if name in given]:
                new, said = names[old], f"{cls.__name__}: {old} is {called} {names[old]}"
                if new in given:
                    raise ConfigError(f"{said}, and both are given; keep {new}")
                warnings.warn(said, kind, stacklevel=2)
                given[new] = given.pop(old)
            init(self, *args, **given)

        setattr(cls, "__init__", made)  # noqa: B010 # mypy allows no other assignment
        for old, new in names.items():
            setattr(cls, old, property(functools.partial(_old_attribute, cls.__name__, old, new)))
        return cls

    return change


def _old_attribute(owner: str, old: str, new: str, part: Any) -> Any:
    warnings.warn(f"{owner}.{old} is now {owner}.{new}", DeprecationWarning, stacklevel=2)
    return getattr(part, new)
