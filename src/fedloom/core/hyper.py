"""A hyper-parameter or setting is declared once: a dataclass field or a function's argument with
its type, range, meaning and source. Pydantic checks values; help, errors, TOML tables and
docs/settings.md read the field's JSON Schema.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, ParamSpec, TypeVar

from annotated_types import Ge, Gt, Le, Lt

from ..errors import ConfigError, SettingError, did_you_mean, unknown
from .arithmetic import plain_number

if TYPE_CHECKING:  # a tenth of a second, when the first value is checked
    from pydantic import GetCoreSchemaHandler, TypeAdapter
    from pydantic_core import CoreSchema

T = TypeVar("T")
P = ParamSpec("P")
_NEEDED = inspect.Parameter.empty  # in place of a default

# ranges as types: `lam: Share = hyper(0.85, "momentum of the server", "Table 5")`
Positive = Annotated[float, Gt(0)]
NonNegative = Annotated[float, Ge(0)]
Share = Annotated[float, Ge(0), Le(1)]
PositiveShare = Annotated[float, Gt(0), Le(1)]
ShareBelow1 = Annotated[float, Ge(0), Lt(1)]
InnerShare = Annotated[float, Gt(0), Lt(1)]
Decay = ShareBelow1  # of a moving average: 1 never moves
PositiveInt = Annotated[int, Ge(1)]
NonNegativeInt = Annotated[int, Ge(0)]


@dataclass(frozen=True, eq=False)
class Hyper:
    """A hyper-parameter. kind: its type, with its range; default: Parameter.empty if it is needed;
    one_per: a list has one value for each of these; example: what is allowed, if the type says too
    little; remedy: what an error adds.

    >>> Hyper(Positive | None).text(), Hyper(PositiveInt).allows(0)
    ('in (0, inf) or none', False)
    """

    kind: Any = Any
    meaning: str = ""
    source: str = ""
    one_per: str = ""
    example: str = ""
    remedy: str = ""
    default: Any = inspect.Parameter.empty

    def __getstate__(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}

    @functools.cached_property
    def _adapter(self) -> TypeAdapter[Any]:
        from pydantic import InstanceOf, TypeAdapter

        if dataclasses.is_dataclass(self.kind):
            return TypeAdapter(InstanceOf[self.kind])  # type: ignore[misc, name-defined]
        strict = {"strict": True, "allow_inf_nan": False, "arbitrary_types_allowed": True}
        return TypeAdapter(self.kind, config=strict)  # type: ignore[arg-type]

    @functools.cached_property
    def kinds(self) -> list[dict[str, Any]]:
        """The JSON Schemas of its type's members; {} is what no file holds."""
        from pydantic.json_schema import GenerateJsonSchema

        class OfFiles(GenerateJsonSchema):
            def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> Any:
                return {}

        schema = self._adapter.json_schema(schema_generator=OfFiles)
        return schema.get("anyOf", [schema])  # type: ignore[no-any-return]

    def of(self, kind: Any) -> Hyper:
        """The same of a type, with what an Annotated type says where this says nothing."""
        kind = kind if self.kind is Any else self.kind
        declared = [m for m in getattr(kind, "__metadata__", ()) if isinstance(m, Hyper)]
        texts = {k: getattr(self, k) or getattr(m, k) for m in declared for k in _TEXTS}
        return dataclasses.replace(self, kind=kind, **texts)

    def bound(self, *names: str) -> float | None:
        """The first of these bounds that the type has, by their names in JSON Schema."""
        return next((kind[n] for kind in self.kinds for n in names if n in kind), None)

    @property
    def ends(self) -> tuple[float | None, float | None]:
        """The lower and the upper bound, each None without one."""
        return self.bound("minimum", "exclusiveMinimum"), self.bound("maximum", "exclusiveMaximum")

    @property
    def choices(self) -> tuple[Any, ...]:
        """All that is allowed beside none, of a Literal or a bool."""
        kinds = [kind for kind in self.kinds if kind.get("type") != "null"]
        if len(kinds) != 1:
            return ()
        return (False, True) if kinds[0].get("type") == "boolean" else _names(kinds[0])

    def text(self) -> str:
        """The allowed values as text, for help and errors.

        >>> Hyper(ShareBelow1).text(), Hyper(PositiveInt).text()
        ('in [0, 1)', 'a whole number from 1')
        """
        if self.example:
            return self.example
        kinds = [k for k in self.kinds if not (self.one_per and k.get("type") == "array")]
        each = f", or a list of one per {self.one_per}" if self.one_per else ""
        return (_one_of(kinds) or "any") + each

    def read(self, raw: Any) -> Any:
        """A value in Python's own types, lists as tuples. Raises ValueError for others."""
        value = plain_number(raw) if self.kind is Any else plain_values(raw)
        whole = [raw] if getattr(raw, "ndim", 0) else []  # an array itself may be asked for
        for one in (value, *whole):
            try:
                result = self._adapter.validator.validate_python(one)
            except ValueError:
                continue
            coerced = type(result) is int and type(one) is not int  # True and 1.0, by Literal[1]
            if not (coerced or _too_long(result) or (self.one_per and result == ())):
                return result
        raise ValueError(f"{value!r} is not {self.text()}")

    def allows(self, value: Any) -> bool:
        """True if a value has the type and is within the range."""
        try:
            self.read(value)
        except ValueError:
            return False
        return True

    def refusal(self, key: str, value: Any, owner: str = "", where: str = "") -> SettingError:
        """The error about a value that is not allowed."""
        remedy = self.remedy
        if isinstance(value, str):
            near = did_you_mean(value, [c for c in self.choices if isinstance(c, str)])
            remedy = "texts in a list need quotes" if value.startswith("[") else remedy
            remedy = near if near.startswith("did you mean") else remedy
        return SettingError(key, value, self.text(), remedy, owner, where)


_TEXTS = ("meaning", "source", "remedy")
_KINDS = {
    "number": ("a number", "numbers"),
    "integer": ("a whole number", "whole numbers"),
    "string": ("a text", "texts"),
    "boolean": ("true or false", "truth values"),
    "null": ("none", "none"),
    "object": ("a table", "tables"),
    "array": ("a list", "lists"),
}


def _one_of(kinds: list[dict[str, Any]], several: bool = False) -> str:
    """JSON Schemas as text; several: of the values of a list."""
    return " or ".join(filter(None, dict.fromkeys(_allowed(kind, several) for kind in kinds)))


def _allowed(schema: dict[str, Any], several: bool = False) -> str:
    if names := _names(schema):
        return ("one of " if len(names) > 1 else "") + ", ".join(map(str, names))
    kind = schema.get("type", "")
    text = _KINDS.get(kind, ("", ""))[several]
    if inner := schema.get("items", schema.get("additionalProperties")):
        of = _one_of(inner.get("anyOf", [inner]), several=True) if isinstance(inner, dict) else ""
        return f"{text} of {of}" if of else text
    low, above = schema.get("minimum"), schema.get("exclusiveMinimum")
    high, below = schema.get("maximum"), schema.get("exclusiveMaximum")
    if {low, above, high, below} == {None}:
        return text
    if kind == "integer":
        return f"{text} from {low}" + ("" if high is None else f" to {high}")
    left = f"({above:g}" if above is not None else "(-inf" if low is None else f"[{low:g}"
    right = f"{below:g})" if below is not None else "inf)" if high is None else f"{high:g}]"
    return f"{'numbers ' if several else ''}in {left}, {right}"


def _names(schema: dict[str, Any]) -> tuple[Any, ...]:
    """The values of a Literal."""
    return tuple(schema.get("enum", [schema["const"]] if "const" in schema else ()))


def _too_long(value: Any) -> bool:
    """True for whole numbers that no tensor holds."""
    if isinstance(value, tuple):
        return any(map(_too_long, value))
    return isinstance(value, int) and value.bit_length() > 64


def hyper(
    default: Any = dataclasses.MISSING,
    meaning: str = "",
    source: str = "",
    *,
    low: float | None = None,
    high: float | None = None,
    **more: str,
) -> Any:
    """A dataclass field with a meaning, a source and a range: that of its type (Positive, Share,
    ..., a Literal, bool, `| None`), or from low to high. more: one_per, example, remedy.

    `lam: float = hyper(0.85, "momentum of the server", "Table 5", low=0, high=1)`
    """
    default_value = _NEEDED if default is dataclasses.MISSING else default
    declaration = Hyper(Any, meaning, source, default=default_value, **more)
    bounds = [*([] if low is None else [Ge(low)]), *([] if high is None else [Le(high)])]
    return dataclasses.field(default=default, metadata={"hyper": declaration, "bounds": bounds})


@typing.dataclass_transform(frozen_default=True, kw_only_default=True)
class Part:
    """What a run is made of, such as a method, a codec or a table of settings. Every class below is
    a dataclass whose fields are the hyper-parameters, in the ranges of their types; numbers and
    lists become Python's own. title: what errors call it, if not by its class.
    """

    __signature__: ClassVar[inspect.Signature]
    _frozen: ClassVar[bool] = True

    def __init_subclass__(cls, frozen: bool = True, kw_only: bool = True) -> None:
        # the methods below serve all: code generated for every class costs a third of an import
        dataclass(init=False, repr=False, eq=False, kw_only=kw_only)(cls)
        cls._frozen = frozen
        if not frozen:
            setattr(cls, "__hash__", None)  # noqa: B010
        fields = dataclasses.fields(cls)  # type: ignore[arg-type]
        for field in fields:
            if field.name in vars(cls).get("__annotations__", {}) and "hyper" in field.metadata:
                kind = _evaluated(field.type, cls.__module__)
                for bound in field.metadata["bounds"]:
                    kind = Annotated[kind, bound]
                declaration = field.metadata["hyper"].of(kind)
                field.metadata = types.MappingProxyType({"hyper": declaration})
        parameters = [_parameter(field) for field in fields if field.init]
        cls.__signature__ = inspect.Signature(parameters)

    if not TYPE_CHECKING:  # which makes it of the fields

        def __init__(self, *args: Any, **options: Any) -> None:
            """Raise SettingError for a value out of its field's type or range, ConfigError for an
            argument that it does not have.
            """
            kind = type(self)
            for name in options.keys() - kind.__signature__.parameters.keys():
                message = unknown("argument", name, kind.__signature__.parameters)
                raise ConfigError(f"{kind.__name__}: {message}")
            try:
                bound = kind.__signature__.bind(*args, **options).arguments
            except TypeError as error:
                parameters = kind.__signature__.parameters.values()
                needed = [f"{p.name}=..." for p in parameters if p.default is p.empty]
                like = f", such as {', '.join(needed)}" if needed else ""
                message = f"{kind.__name__}: {error}; give arguments by name{like}"
                raise ConfigError(message) from None
            fresh = {k: make() for k, make in _factories(kind).items() if k not in bound}
            for name, value in (_defaults(kind) | fresh | _read(kind, bound)).items():
                object.__setattr__(self, name, value)
            self.__post_init__()

    @classmethod
    def __get_pydantic_core_schema__(cls, _: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """As the type of another part's field: an object of the class, which is checked already."""
        from pydantic_core import core_schema

        return core_schema.is_instance_schema(cls)

    def __post_init__(self) -> None:
        """Rules between fields, each of which has its type and range already."""

    def __setattr__(self, name: str, value: Any) -> None:
        if self._frozen:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        object.__setattr__(self, name, value)

    def _values(self) -> tuple[tuple[str, Any], ...]:
        return tuple((name, getattr(self, name)) for name in self.__signature__.parameters)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self._values() == other._values()

    def __hash__(self) -> int:
        return hash(self._values())

    def __repr__(self) -> str:
        text = ", ".join(f"{name}={value!r}" for name, value in self._values())
        return f"{type(self).__qualname__}({text})"


def _parameter(field: dataclasses.Field[Any]) -> inspect.Parameter:
    """A field as an argument; a default that is made anew each time by what makes it."""
    default = field.default_factory if callable(field.default_factory) else field.default
    default = _NEEDED if default is dataclasses.MISSING else default
    kinds = inspect.Parameter
    kind = kinds.KEYWORD_ONLY if field.kw_only else kinds.POSITIONAL_OR_KEYWORD
    return inspect.Parameter(field.name, kind, default=default, annotation=field.type)


def _read(kind: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Values of a part's fields as their types have them. Raises SettingError."""
    fields, title = _declared(kind), getattr(kind, "title", kind.__name__)
    return {k: _accepted(v, k, fields[k], title) if k in fields else v for k, v in values.items()}


@functools.cache
def _factories(kind: Any) -> Mapping[str, Callable[[], Any]]:
    """What makes the defaults that each part has for itself."""
    fields = dataclasses.fields(kind)
    return {f.name: f.default_factory for f in fields if callable(f.default_factory)}


@functools.cache
def _defaults(kind: Any) -> Mapping[str, Any]:
    """The other defaults of a part, which must have their types and ranges too."""
    defaults = {k: p.default for k, p in kind.__signature__.parameters.items()}
    makers = _factories(kind)
    return _read(kind, {k: v for k, v in defaults.items() if v is not _NEEDED and k not in makers})


def _evaluated(annotation: Any, module: str) -> Any:
    """The type of an annotation, which may be text. Any for names that are not the module's."""
    if not isinstance(annotation, str):
        return annotation
    try:
        return eval(annotation, vars(sys.modules[module]))  # the text is the class's own source
    except (NameError, KeyError, TypeError):
        return Any


def plain_values(value: Any) -> Any:
    """Numbers and lists as Python's own types: arrays and tensors as tuples, numpy's numbers as
    numbers.

    >>> import numpy
    >>> plain_values([1, numpy.array([2.0, 3.0])])
    (1, (2.0, 3.0))
    """
    value = value.tolist() if hasattr(value, "tolist") else value
    return tuple(map(plain_values, value)) if isinstance(value, (list, tuple, range)) else value


def part(make: Callable[[], Any], example: str) -> Any:
    """A dataclass field that holds other settings; `make` gives the default."""
    metadata = {"hyper": Hyper(example=example), "bounds": ()}
    return dataclasses.field(default_factory=make, metadata=metadata)


def _accepted(value: Any, name: str, field: Hyper, owner: str = "") -> Any:
    try:
        return field.read(value)
    except ValueError:
        raise field.refusal(name, plain_values(value), owner) from None


def checked(make: Callable[P, T]) -> Callable[P, T]:
    """A function that raises SettingError for arguments of other types or ranges than declared.

    >>> @checked
    ... def layer(width: PositiveInt, drop: ShareBelow1 = 0.0): ...
    >>> layer(0)
    Traceback (most recent call last):
    fedloom.errors.SettingError: width must be a whole number from 1, got 0
    """

    @functools.wraps(make)
    def call(*args: P.args, **options: P.kwargs) -> T:
        bound = inspect.signature(make).bind(*args, **options)
        for name, value in bound.arguments.items():
            bound.arguments[name] = _accepted(value, name, keys_of(make)[name])
        return make(*bound.args, **bound.kwargs)

    return call


@functools.cache
def _declared(make: Callable[..., Any]) -> Mapping[str, Hyper]:
    """The fields of a dataclass that hyper() declares."""
    fields = dataclasses.fields(make) if dataclasses.is_dataclass(make) else ()
    return {f.name: f.metadata["hyper"] for f in fields if "hyper" in f.metadata}


@functools.cache
def keys_of(make: Callable[..., Any]) -> Mapping[str, Hyper]:
    """The parameters of a function or dataclass, with their types and ranges. Those of a function
    that makes a part are, where it does not say more, those of the fields that they become.

    >>> list(keys_of(lambda beta=0.9: None))
    ['beta']
    """
    typed = make
    if isinstance(make, type) and not dataclasses.is_dataclass(make):
        typed = make.__init__  # type: ignore[misc]
    hints, rules = typing.get_type_hints(typed, include_extras=True), {**_declared(make)}
    parameters = inspect.signature(make).parameters
    composes = isinstance(result := hints.get("return"), type) and issubclass(result, Part)
    usual = composes and all(parameter.default is not _NEEDED for parameter in parameters.values())
    try:
        within = _within(make()) if usual else {}
    except Exception:  # of an author's function, whose defaults alone may not do
        within = {}
    for name, parameter in parameters.items():
        variadic = parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD
        if name not in rules and parameter.kind not in variadic:
            declared = Hyper(default=parameter.default).of(hints.get(name, Any))
            field = within.get(name) or within.get(name.removeprefix("server_"), declared)
            texts = {key: getattr(declared, key) or getattr(field, key) for key in _TEXTS}
            rules[name] = dataclasses.replace(field, default=parameter.default, **texts)
    return {name: rules[name] for name in parameters if name in rules}


def _within(part: Any) -> dict[str, Hyper]:
    """The fields of a part and of the parts in it, the outer ones' last."""
    kind: Any = type(part)
    inner = [getattr(part, field.name) for field in dataclasses.fields(kind)]
    tables = [_within(one) for one in reversed(inner) if dataclasses.is_dataclass(one)]
    return dict(item for table in (*tables, _declared(kind)) for item in table.items())
