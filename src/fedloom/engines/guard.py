"""The guard of a run, through which an author's methods are called: see author_rules.py. Lengths,
types and fields are checked at every call; what a user wrote is watched through the first client's
round in every process.
"""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

from ..algorithm import Algorithm, Job, Oracle, Trait
from ..core.rng import key, own_draws
from ..core.vector import Rec, Vec, as_bytes, fields, leaves
from ..errors import AuthorError, ClientError, FedloomError
from . import author_rules as rules

# what a branch asks; float() and item() are left to who wants to print: vmap refuses them anyway
_BRANCHING = {"__bool__", "is_nonzero", "equal", "allclose"}
_AFTERWARDS = {"model", "report"}  # asked after their round


# ------------------------------------------------------------------------------------ at a client
class Guard:
    """An algorithm's methods at a client, with the checks around them.

    watched: until the end of the first client's round, if a user wrote any of it. All methods raise
    AuthorError; the engine adds algorithm, client and round.
    """

    def __init__(self, algorithm: Algorithm) -> None:
        self.algorithm, self.watched = algorithm, _is_own(algorithm)
        self._before = state(algorithm) if self.watched else {}

    def call(self, name: str, *arguments: Any) -> Any:
        """What a method gives."""
        method = getattr(self.algorithm, name)
        if not self.watched:
            return call_checked(name, method, *arguments)
        result = rules.with_note(f"{name}()", _watched, name, method, arguments)
        rules.checked(name, result, arguments)
        if name == "finish":
            if place := first_change(self._before, state(self.algorithm)):
                raise rules.keeps_state(place)
            self.watched = False
        return result

    def unchanged(self, before: list[int], msg: Rec, mem: Rec) -> None:
        """Raise AuthorError if one of these was changed in place since counters() gave `before`."""
        after = counters(msg, mem)
        if before != after:
            paths = _tensors("personal", (msg, mem))  # which has the same arguments
            odd = [p for p, a, b in zip(paths, before, after, strict=True) if a != b]
            raise rules.changes("one of start(), direction() and finish", odd)


def call_checked(name: str, method: Callable[..., Any], *arguments: Any) -> Any:
    """What a method of an algorithm gives. Raises AuthorError where that breaks a rule."""
    return rules.checked(name, rules.with_note(f"{name}()", method, *arguments), arguments)


def counters(msg: Rec, mem: Rec) -> list[int]:
    """How often torch has seen each tensor of a message and a client state changed in place."""
    return [v._version for v in leaves(msg, mem) if isinstance(v, Tensor)]


def _tensors(method: str, arguments: tuple[Any, ...]) -> dict[str, Tensor]:
    """{dotted path: tensor} of a call's arguments; functions and jobs are left out."""
    pairs = zip(rules.METHODS[method], arguments, strict=True)
    records = [(n, a) for n, a in pairs if not callable(a) and not isinstance(a, Job)]
    flat = {path: v for name, a in records for path, v in fields(a, name).items()}
    return {path: v for path, v in flat.items() if isinstance(v, Tensor)}


def _unchanged(name: str, method: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Call a method. Raises AuthorError if it changes an argument in place."""
    tensors = _tensors(name, arguments)
    before = {path: v._version for path, v in tensors.items()}
    result = method(*arguments)
    if odd := [path for path, v in tensors.items() if v._version != before[path]]:
        raise rules.changes(name, odd)
    return result


def _watched(name: str, method: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Call a method. Raises AuthorError if it branches on a value, or changes an argument."""
    watch = _NoBranches(name, _tensors(name, arguments))

    def inside(*args: Any) -> Any:
        with watch:
            return method(*map(watch.spared, args))

    return _unchanged(name, inside, arguments)


class _NoBranches(TorchFunctionMode):
    """Inside, nobody may branch on a tensor's value, or give an argument as out=."""

    def __init__(self, method: str, arguments: dict[str, Tensor]) -> None:
        super().__init__()
        self.method, self.arguments = method, arguments

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """See torch.overrides."""
        name = getattr(func, "__name__", "")
        if name in _BRANCHING:
            raise rules.branches(f"{self.method}()", name.strip("_"))
        kwargs = kwargs or {}
        if odd := [path for path, v in self.arguments.items() if v is kwargs.get("out")]:
            raise rules.changes(self.method, odd)
        return func(*args, **kwargs)

    def spared(self, argument: Any) -> Any:
        """An argument whose functions may do everything: a model and a loss may do as they like."""
        if isinstance(argument, Job):
            return argument._replace(full=self.spared(argument.full))
        if hasattr(argument, "loss"):  # a Grad, which calls a model
            return Oracle(self._outside(argument), self._outside(argument.loss))
        return self._outside(argument) if callable(argument) else argument

    def _outside(self, f: Callable[..., Any]) -> Callable[..., Any]:
        def free(*arguments: Any) -> Any:
            self.__exit__(None, None, None)  # type: ignore[no-untyped-call]  # torch's is not
            try:
                return f(*arguments)
            finally:
                self.__enter__()  # type: ignore[no-untyped-call]

        return free


def personal_model(algorithm: Algorithm, first: Vec, msg: Rec, mem: Rec) -> Vec:
    """Call personal() with a client's state; None: the one that it would begin with. first: the
    model that the run began with. Raises AuthorError.
    """
    if mem is None:
        x = first if Trait.INITIAL_MODEL in algorithm.traits else msg.x
        mem = call_checked("client_init", algorithm.client_init, x)
    model: Vec = rules.with_note(
        "personal()", _unchanged, "personal", algorithm.personal, (msg, mem)
    )
    rules.checked("personal", model, (msg, mem))
    return model


# ---------------------------------------------------------------------------------- at the server
def at_server(algorithm: Algorithm, seed: int, name: str, round: int, *arguments: Any) -> Any:
    """Call a method of the server's side. Raises ClientError naming algorithm, method and round.

    seed: the run's, from which torch's generator begins anew for every method and round. round:
    that are done. server_init(), broadcast() and server_step() give records with x; of report()'s
    record a dictionary of numbers is made.
    """
    x = arguments[0] if name == "server_init" else arguments[0].x
    try:
        with own_draws(key(seed, "server", name, round), x):
            method = getattr(algorithm, name)
            result = rules.with_note(f"{name}()", _unchanged, name, method, arguments)
        rules.checked(name, result, arguments)
        return {k: float(v) for k, v in result._asdict().items()} if name == "report" else result
    except Exception as error:
        if isinstance(error, FedloomError) and not isinstance(error, AuthorError):
            raise
        now = max(1, round) if name in _AFTERWARDS else round + 1
        place = f"{algorithm.method}: the server, round {now}"
        raise ClientError(f"{place}: {rules.in_words(error)}") from error


# ------------------------------------------------------- what a part keeps outside of its records
def _is_own(part: Any) -> bool:
    """Whether a user wrote the class of a part, or of a part inside it."""
    inside = (v for v in vars(part).values() if dataclasses.is_dataclass(v))
    return not type(part).__module__.startswith("fedloom.") or any(
        _is_own(v) for v in inside if not isinstance(v, type)
    )


def state(part: Any, deep: bool = False) -> dict[str, Any]:
    """{place: value} of all that a part and the parts inside it could keep something in: fields,
    containers and tensors of the class, with what they hold, and other attributes, such as a log
    set up in __post_init__. deep: all with all their contents, and the globals that methods name.
    """
    kind, out = type(part), dict[str, Any]()
    field_names = {f.name for f in dataclasses.fields(part)}
    for name, value in vars(part).items():
        if isinstance(getattr(kind, name, None), functools.cached_property):
            continue
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            inner = state(value, deep).items()
            out |= {p.replace("self.", f"self.{name}.", 1): v for p, v in inner}
        else:
            out[f"self.{name}"] = _copied(value, 4 if deep else int(name in field_names))
    for owner in kind.__mro__:
        if owner.__module__.startswith("fedloom.") or owner is object:
            continue
        for name, value in vars(owner).items():
            if deep and isinstance(value, types.FunctionType):
                out |= _globals(value)
            elif not name.startswith("__") and (
                isinstance(value, _CONTAINERS) or (deep and not _is_code(value))
            ):
                out[f"{owner.__name__}.{name}"] = _copied(value, 4 if deep else 1)
    return out


def first_change(before: dict[str, Any], after: dict[str, Any]) -> str:
    """The first place that is new or another one; "" if there is none."""
    return next((p for p, v in after.items() if p not in before or before[p] != v), "")


_CONTAINERS = (dict, list, set, Tensor)


def _copied(value: Any, depth: int) -> Any:
    """A value as something that later changes cannot reach, down to a depth."""
    if isinstance(value, Tensor):
        try:
            return "tensor", tuple(value.shape), as_bytes(value).numpy().tobytes()
        except RuntimeError:  # it was kept from inside of a vmap, which has ended
            return object()  # equal to nothing: it should not be here
    if depth and isinstance(value, (list, tuple)):
        return [_copied(v, depth - 1) for v in value]
    if depth and isinstance(value, dict):
        return {repr(k): _copied(v, depth - 1) for k, v in value.items()}
    if isinstance(value, (int, float, str, bool, set, type(None))):
        return repr(value)
    if depth and hasattr(value, "__dict__") and not _is_code(value):
        return {k: _copied(v, depth - 1) for k, v in vars(value).items()}
    return {id(value): value}  # equal to itself only


def _globals(function: types.FunctionType) -> dict[str, Any]:
    """The containers, tensors and numbers of its file that a function names."""
    namespace = function.__globals__
    values = {name: namespace[name] for name in function.__code__.co_names if name in namespace}
    kinds = (*_CONTAINERS, int, float, str)
    return {f"the global {n}": _copied(v, 4) for n, v in values.items() if isinstance(v, kinds)}


def _is_code(value: Any) -> bool:
    return callable(value) or isinstance(value, (property, classmethod, staticmethod))
