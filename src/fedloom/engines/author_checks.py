"""The rules for authors, checked where their methods are called; every error says what to do.

What costs nothing (lengths, types, fields) is checked at every call. What costs something (does a
method branch on a tensor's value, does it change an argument in place) is checked through one whole
round of the first client of every process, and in the arguments' version counters from then on.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

from ..algorithm import Algorithm, Grad, Job
from ..core.rng import key
from ..core.vector import Rec, Vec, fields, is_rec, leaves
from ..errors import AuthorError, ClientError, FedloomError
from ..plan import Plan
from .gradient import own_draws
from .self_state import differs, state

_ARGUMENTS = {
    "start": ("msg", "mem", "job"),
    "direction": ("x", "loc", "msg", "mem", "grad", "job"),
    "finish": ("x", "loc", "msg", "mem", "job"),
    "server_init": ("x", "up"),
    "broadcast": ("srv",),
    "server_step": ("srv", "up", "rnd"),
    "model": ("srv",),
}
# what a branch asks; float() and item() are left to who wants to print: vmap refuses them anyway
_BRANCHING = {"__bool__", "is_nonzero", "equal", "allclose"}
_ONE_VALUE = (
    "a norm has one value to normalise in a batch of one example; take another local.batch or "
    "local.drop_last, or a norm over more values (such as fewer groups)"
)
_NO_VALUES = (
    "it may run for many clients at once, each with its own value: choose with torch.where, or "
    "shorten with fedloom.core.vector.clip"
)
_RANDOM = (
    "the model, the loss or the method draws from torch's generator (F.dropout, torch.rand), whose "
    "draws belong to no client where many run at once; nn.Dropout's do, or run engine = serial or "
    "workers"
)
_NOT_IN_PLACE = "arguments belong to the engine and to other clients: return a new value instead"
_NOT_ON_SELF = (
    "an algorithm is one object for all clients and processes: what lasts for the round goes into "
    "the record loc, what a client remembers into the one that finish() gives"
)


class _Watch(TorchFunctionMode):
    """Inside, nobody may branch on a tensor's value, or change an argument in place."""

    def __init__(self, method: str, arguments: dict[str, Any]) -> None:
        super().__init__()
        self.method = method
        self.names: dict[int, list[str]] = {}
        for name, v in arguments.items():
            if isinstance(v, Tensor):
                self.names.setdefault(id(v), []).append(name)

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """See torch.overrides."""
        name = getattr(func, "__name__", "")
        if name in _BRANCHING:
            raise AuthorError(
                f"{self.method}() branches on a tensor's value ({name.strip('_')}); {_NO_VALUES}"
            )
        changed = (kwargs or {}).get("out", args[0] if _in_place(name) and args else None)
        if id(changed) in self.names:
            raise AuthorError(_changes(self.method, self.names[id(changed)]))
        return func(*args, **(kwargs or {}))

    def unwatched(self, f: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, free to do everything: a model and a loss may do as they like."""

        def free(*arguments: Any) -> Any:
            self.__exit__(None, None, None)  # type: ignore[no-untyped-call]  # torch's is not
            try:
                return f(*arguments)
            finally:
                self.__enter__()  # type: ignore[no-untyped-call]

        return free


def _in_place(name: str) -> bool:
    """Say whether a function of torch's changes its first argument: add_, +=, x[i] = ...

    >>> [_in_place(n) for n in ("add_", "__iadd__", "__setitem__", "add", "__add__", "__init__")]
    [True, True, True, False, False, False]
    """
    if name.startswith("__"):
        return name == "__setitem__" or (name[2] == "i" and name[3:5] in _OPERATORS)
    return name.endswith("_")


_OPERATORS = {"ad", "su", "mu", "tr", "fl", "po", "mo", "an", "or", "xo", "ls", "rs"}


def _changes(method: str, paths: list[str]) -> str:
    return f"{method}() changes {' and '.join(paths)} in place; {_NOT_IN_PLACE}"


# ------------------------------------------------------------------------------------ at a client
class Guard:
    """An algorithm's three methods at a client, with the checks around them.

    watched: the first client's round, which is looked at more closely. All methods raise
    AuthorError; the engine adds algorithm, client and round.
    """

    def __init__(self, algorithm: Algorithm) -> None:
        self.algorithm, self.watched = algorithm, True
        self._own = state(algorithm)

    def start(self, msg: Rec, mem: Rec, job: Job) -> tuple[Vec, Rec]:
        """Call start(): x like msg.x."""
        x, loc = _pair("start", self._call("start", msg, mem, job), "x and loc")
        _vector("start", "x", x, msg.x)
        return x, loc

    def direction(
        self, x: Vec, loc: Rec, msg: Rec, mem: Rec, grad: Grad, job: Job
    ) -> tuple[Vec, Rec]:
        """Call direction(): d like x."""
        found = self._call("direction", x, loc, msg, mem, grad, job)
        d, loc = _pair("direction", found, "the direction and loc")
        _vector("direction", "a direction", d, x)
        return d, loc

    def finish(self, x: Vec, loc: Rec, msg: Rec, mem: Rec, job: Job) -> tuple[Rec, Rec]:
        """Call finish(): delta like x, a weight, and a memory of the same shape as before."""
        found = self._call("finish", x, loc, msg, mem, job)
        up, new = _pair("finish", found, "the answer and the memory")
        _record("finish", "an answer", up)
        if missing := {"delta", "weight"} - set(up._fields):
            raise AuthorError(
                f"finish() gives an answer without {' and '.join(sorted(missing))}, only with "
                f"{', '.join(up._fields) or 'nothing'}; return rec(delta=..., weight=job.weight)"
            )
        _vector("finish", "delta", up.delta, x)
        _memory(mem, new)
        if self.watched and (odd := differs(self._own, state(self.algorithm))):
            raise AuthorError(f"it keeps state on itself ({odd}); {_NOT_ON_SELF}")
        self.watched = False
        return up, new

    def unchanged(self, before: list[int], msg: Rec, mem: Rec) -> None:
        """Raise AuthorError if one of these was changed in place since counters() gave `before`."""
        after = counters(msg, mem)
        if before != after:
            paths = list(versions({"msg": msg, "mem": mem}))
            odd = [p for p, a, b in zip(paths, before, after, strict=True) if a != b]
            raise AuthorError(_changes("one of start(), direction() and finish", odd))

    def _call(self, name: str, *arguments: Any) -> Any:
        method = getattr(self.algorithm, name)
        try:
            if not self.watched:
                return method(*arguments)
            own = _named(name, arguments)
            watch = _Watch(name, own)
            before = versions(own)
            with watch:
                found = method(*[_free(watch, a) for a in arguments])
            _unchanged(name, before, own)
            return found
        except Exception as error:
            if not isinstance(error, AuthorError):
                error.add_note(f"{name}()")  # for in_words()
            raise


class Unguarded(Guard):
    """The same methods without any check, for a plan that says so."""

    def start(self, msg: Rec, mem: Rec, job: Job) -> tuple[Vec, Rec]:
        """Call start()."""
        return self.algorithm.start(msg, mem, job)

    def direction(
        self, x: Vec, loc: Rec, msg: Rec, mem: Rec, grad: Grad, job: Job
    ) -> tuple[Vec, Rec]:
        """Call direction()."""
        return self.algorithm.direction(x, loc, msg, mem, grad, job)

    def finish(self, x: Vec, loc: Rec, msg: Rec, mem: Rec, job: Job) -> tuple[Rec, Rec]:
        """Call finish()."""
        return self.algorithm.finish(x, loc, msg, mem, job)

    def unchanged(self, before: list[int], msg: Rec, mem: Rec) -> None:
        """Look at nothing."""


def guard(plan: Plan) -> Guard:
    """The checks around an algorithm's methods at a client."""
    return Guard(plan.algorithm) if plan.author_checks else Unguarded(plan.algorithm)


def counters(msg: Rec, mem: Rec) -> list[int]:
    """versions() of a message and a memory without the names, for every client of every round."""
    return [v._version for v in leaves(msg, mem) if isinstance(v, Tensor)]


def versions(arguments: dict[str, Any]) -> dict[str, int]:
    """{dotted path: how often torch has seen this tensor changed in place}.

    >>> import torch
    >>> x = torch.zeros(2)
    >>> before = versions({"msg": x})
    >>> _ = x.add_(1)
    >>> versions({"msg": x})["msg"] - before["msg"]
    1
    """
    flat = {p: v for name, a in arguments.items() for p, v in fields(a, name).items()}
    return {path: v._version for path, v in flat.items() if isinstance(v, Tensor)}


def _unchanged(method: str, before: dict[str, int], arguments: dict[str, Any]) -> None:
    after = versions(arguments)
    if before != after:
        raise AuthorError(_changes(method, [p for p in before if before[p] != after[p]]))


def _named(method: str, arguments: tuple[Any, ...]) -> dict[str, Any]:
    """{path: leaf} of a call's arguments; functions and jobs are left out."""
    pairs = zip(_ARGUMENTS[method], arguments, strict=True)
    records = [(n, a) for n, a in pairs if not callable(a) and not isinstance(a, Job)]
    return {path: v for name, a in records for path, v in fields(a, name).items()}


def _free(watch: _Watch, argument: Any) -> Any:
    """An argument whose functions are not watched."""
    if isinstance(argument, Job):
        return argument._replace(full=watch.unwatched(argument.full))
    return watch.unwatched(argument) if callable(argument) else argument


def _pair(method: str, found: Any, what: str) -> tuple[Any, Any]:
    if not isinstance(found, tuple) or is_rec(found) or len(found) != 2:
        got = f"{len(found)} values" if isinstance(found, tuple) else f"a {type(found).__name__}"
        raise AuthorError(f"{method}() must give two values, {what}, got {got}")
    return found


def _vector(method: str, what: str, v: Any, like: Vec) -> None:
    if not isinstance(v, Tensor):
        raise AuthorError(f"{method}() gives {what} of type {type(v).__name__}; it is a vector")
    if v.shape != like.shape:
        raise AuthorError(
            f"{method}() gives {what} of shape {list(v.shape)} where x has {list(like.shape)}; "
            "return a vector as long as x"
        )
    if v.dtype != like.dtype:
        raise AuthorError(
            f"{method}() gives {what} of {str(v.dtype)[6:]} where x is {str(like.dtype)[6:]}; "
            "keep the type of x: make constants with zeros(x) or torch.full_like(x, ...)"
        )


def _record(method: str, what: str, value: Any) -> None:
    if not is_rec(value):
        raise AuthorError(
            f"{method}() gives {what} of type {type(value).__name__}; make it with rec(...)"
        )
    if all(isinstance(leaf, (Tensor, int, float)) for leaf in leaves(value)):
        return  # the paths are only worked out for the message
    for path, leaf in fields(value).items():
        if not isinstance(leaf, (Tensor, int, float)):
            raise AuthorError(
                f"{method}() gives {what} whose '{path}' is a {type(leaf).__name__}; a record "
                "holds tensors, numbers and records"
            )


def _kind(leaf: Any) -> Any:
    """Shape and type; a number may become a tensor where many clients are computed at once."""
    if isinstance(leaf, Tensor) and leaf.ndim:
        return list(leaf.shape), str(leaf.dtype)[6:]
    return "a number"


def _alike(old: Any, new: Any) -> bool:
    """Say that two records have the same fields of the same kinds, where that is quickly seen."""
    if isinstance(old, Tensor):
        return isinstance(new, Tensor) and old.shape == new.shape and old.dtype == new.dtype
    if not isinstance(old, tuple):
        return type(old) is type(new)
    return type(old) is type(new) and all(map(_alike, old, new))


def _memory(old: Rec, new: Rec) -> None:
    if new is old:
        return
    _record("finish", "a memory", new)
    if _alike(old, new):
        return
    before = {path: _kind(v) for path, v in fields(old).items()}
    after = {path: _kind(v) for path, v in fields(new).items()}
    if before == after:
        return
    odd = next(p for p in (*before, *after) if before.get(p) != after.get(p))
    was, now = (
        "nothing" if odd not in kinds else " ".join(map(str, kinds[odd]))
        if isinstance(kinds[odd], tuple) else kinds[odd]
        for kinds in (before, after)
    )  # fmt: skip
    raise AuthorError(
        f"finish() gives a memory whose '{odd}' is {now}, but it was {was}; a memory keeps the "
        "fields, lengths and types that client_init() gave it"
    )


def first_memory(plan: Plan, x: Vec) -> Rec:
    """Call client_init(): a record of tensors, numbers and records. Raises AuthorError."""
    memory = plan.algorithm.client_init(x)
    if plan.author_checks:
        _record("client_init", "a memory", memory)
    return memory


# ---------------------------------------------------------------------------------- at the server
def at_server(plan: Plan, seed: int, name: str, round: int, *arguments: Any) -> Any:
    """Call a method of the server's side. Raises ClientError naming algorithm, method and round.

    seed: the run's, from which torch's generator begins anew for every method and round. round:
    that are done. server_init(), broadcast() and server_step() give records with x.
    """
    algorithm, like = plan.algorithm, arguments[0] if name == "server_init" else arguments[0].x
    with own_draws(key(seed, "server", name, round), like):
        if not plan.author_checks:
            return getattr(algorithm, name)(*arguments)
        return _checked_at_server(algorithm, name, round, *arguments)


def _checked_at_server(algorithm: Algorithm, name: str, round: int, *arguments: Any) -> Any:
    own = _named(name, arguments)
    before, place = versions(own), f"{algorithm.method}: the server, round {round + 1}"
    try:
        found = getattr(algorithm, name)(*arguments)
        _unchanged(name, before, own)
        if name != "model":
            _with_x(name, found, own["x" if name == "server_init" else "srv.x"])
    except FedloomError as error:
        if not isinstance(error, AuthorError):
            raise
        raise ClientError(f"{place}: {error}") from None
    except Exception as error:
        raise ClientError(f"{place}: {name}(): {in_words(error)}") from error
    return found


def _with_x(method: str, found: Any, like: Vec) -> None:
    _record(method, "a message" if method == "broadcast" else "a state", found)
    if "x" not in found._fields:
        raise AuthorError(
            f"{method}() gives a record without x, only with "
            f"{', '.join(found._fields) or 'nothing'}; x is the model"
        )
    _vector(method, "x", found.x, like)


# ---------------------------------------------------------------------------------------- in words
def in_words(error: Exception) -> str:
    """An exception from an author's method, on one line, with what to do where that is known."""
    if isinstance(error, AuthorError):
        return str(error)
    text = " ".join(str(error).split())
    place = "".join(f"{note}: " for note in getattr(error, "__notes__", ())[:1])
    if isinstance(error, dataclasses.FrozenInstanceError):
        return f"it keeps state on itself ({text}); {_NOT_ON_SELF}"
    if "called random operation" in text:  # whoever called whom: most likely a model's forward
        return _RANDOM
    if text.startswith("vmap:"):
        return f"{place}{text.split('. ')[0]}; {_NO_VALUES}"
    if "Expected more than 1 value per channel" in text:
        return f"{place}{_ONE_VALUE}"
    return f"{place}{type(error).__name__}: {text}"
