"""An algorithm under watch: every method is called twice, on arguments that are compared before and
after, and what it returns is measured. What is wrong is noted; the run goes on as far as it can.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..algorithm import Grad, Job, Round
from ..core.vector import Rec, Vec, fields, is_rec
from ..wrappers import Wrapper
from .compare import bits, changed, imprint

ARGUMENTS, REPEAT = "arguments stay as they are", "the same answer twice"
SHAPES, FIELDS = "lengths and types", "declared fields"
AT_SERVER = ("server_init", "broadcast", "server_step", "model")
_PAIRS = {"start": "x, loc", "direction": "d, loc", "finish": "up, mem"}


@dataclasses.dataclass
class Notes:
    """What a watch saw. wrong: {check: paragraph}, the first of each kind."""

    wrong: dict[str, str] = dataclasses.field(default_factory=dict)
    messages: list[Rec] = dataclasses.field(default_factory=list)
    answers: list[Rec] = dataclasses.field(default_factory=list)
    probes: list[tuple[Vec, Rec]] = dataclasses.field(default_factory=list)

    def note(self, check: str, why: str) -> None:
        """Keep the first paragraph of each kind."""
        self.wrong.setdefault(check, why)


def twice(
    notes: Notes, method: Callable[..., Any], arguments: tuple[Any, ...], again: tuple[Any, ...]
) -> Any:
    """Call a method with these arguments, and once more -> what it gave first.

    again: the arguments of the second call, where they may not be the same objects (a generator).
    """
    name = getattr(method, "__name__", "it")
    before, drawn = [imprint(a) for a in arguments], torch.get_rng_state()
    one = method(*arguments)
    if name in AT_SERVER:  # where torch's generator begins anew for every method and round
        torch.set_rng_state(drawn)
    given = list(inspect.signature(method).parameters)
    for label, a, was in zip(given, arguments, before, strict=False):
        if path := changed(was, imprint(a)):
            inside = "" if path == "value" else f" (its '{path}')"
            notes.note(
                ARGUMENTS,
                f"{name}() changes its argument {label}{inside}. Arguments belong to the engine "
                "and are read again by it, by wrappers and by other clients: return new values, "
                f"x + y instead of x.add_(y) or x += y; a copy is {label}.clone()",
            )
            return one  # a second call would see something else, and that is the same fault
    first = imprint(one)
    if path := changed(first, imprint(method(*again))):
        inside = "" if path == "value" else f" in '{path}'"
        notes.note(
            REPEAT,
            f"{name}(), called twice with the same arguments, gives something else{inside} the "
            "second time. It draws random numbers, or remembers something outside of its records: "
            "what a client remembers goes into mem, what lasts for a round into loc, and "
            "randomness comes from the engine",
        )
    elif path := changed(first, imprint(one)):
        notes.note(
            ARGUMENTS,
            f"{name}() changes in its second call what it returned from the first ('{path}'): it "
            "keeps a tensor and writes into it again; return new values",
        )
    return one


class Watch(Wrapper):
    """The algorithm inside, and notes on everything that it does wrong."""

    notes: Notes = dataclasses.field(default_factory=Notes)

    def _call(self, name: str, x: Vec, *arguments: Any) -> Any:
        out = twice(self.notes, getattr(self.inner, name), arguments, arguments)
        wrong = _pair(name, out) or _measure(name, out, x)
        if wrong:
            self.notes.note(SHAPES, wrong)
        return out

    def server_init(self, x: Vec, up: Rec) -> Rec:
        return self._call("server_init", x, x, up)

    def broadcast(self, srv: Rec) -> Rec:
        msg = self._call("broadcast", srv.x, srv)
        self.notes.messages.append(msg)
        return msg

    def server_step(self, srv: Rec, up: Rec, rnd: Round) -> Rec:
        new = self._call("server_step", srv.x, srv, up, rnd)
        if is_rec(new) and new._fields != srv._fields:
            self.notes.note(FIELDS, _unlike("server_step() returns a server", new, srv))
        return new

    def model(self, srv: Rec) -> Vec:
        x: Vec = self._call("model", srv.x, srv)
        return x

    def probe(self, x: Vec, grad: Grad) -> Rec:
        up = self._call("probe", x, x, grad)
        self.notes.probes.append((x, up))
        return up

    def client_init(self, x: Vec) -> Rec:
        return self._call("client_init", x, x)

    def start(self, msg: Rec, mem: Rec, job: Job) -> tuple[Vec, Rec]:
        out: tuple[Vec, Rec] = self._call("start", msg.x, msg, mem, job)
        return out

    def direction(
        self, x: Vec, loc: Rec, msg: Rec, mem: Rec, grad: Grad, job: Job
    ) -> tuple[Vec, Rec]:
        out: tuple[Vec, Rec] = self._call("direction", x, x, loc, msg, mem, grad, job)
        if not _pair("direction", out) and out[1]._fields != loc._fields:
            why = _unlike("direction() returns a loc", out[1], loc)
            self.notes.note(FIELDS, why + "; give start() the same fields")
        return out

    def finish(self, x: Vec, loc: Rec, msg: Rec, mem: Rec, job: Job) -> tuple[Rec, Rec]:
        out: tuple[Rec, Rec] = self._call("finish", x, x, loc, msg, mem, job)
        if not _pair("finish", out):
            self.notes.answers.append(out[0])
            if is_rec(out[1]) and out[1]._fields != mem._fields:
                why = _unlike("finish() returns a memory", out[1], mem)
                self.notes.note(FIELDS, why + "; give client_init() the same fields")
        return out

    def uniform(self, up: Rec, job: Job) -> Rec:
        out = self._call("uniform", up.delta, up, job)
        return out


def _unlike(what: str, new: Rec, old: Rec) -> str:
    have, had = ", ".join(new._fields) or "none", ", ".join(old._fields) or "none"
    return f"{what} with the fields {have}, but it began with {had}"


def _pair(name: str, out: Any) -> str:
    """What is wrong with the outer shape of a result; "" if nothing is."""
    if name not in _PAIRS:
        if name == "model" or is_rec(out):
            return ""
        return f"{name}() must return a record made by rec(...), got {type(out).__name__}"
    if isinstance(out, tuple) and not is_rec(out) and len(out) == 2:
        first, second = out
        if (isinstance(first, Tensor) or name == "finish") and is_rec(second):
            return ""
    return (
        f"{name}() must return a pair ({_PAIRS[name]}), the second one a record made by rec(...); "
        f"got {_kind(out)}"
    )


def _kind(out: Any) -> str:
    if isinstance(out, tuple) and not is_rec(out):
        return f"({', '.join(map(_kind, out))})"
    return "a record" if is_rec(out) else type(out).__name__


def _measure(name: str, out: Any, x: Vec) -> str:
    """What is wrong with the tensors of a result; "" if nothing is."""
    if missing := _missing(name, out):
        return missing
    for path, v in _named(name, out):
        if not isinstance(v, Tensor):
            continue
        if v.is_floating_point() and v.dtype != x.dtype:
            return (
                f"{name}() gives {path} as {str(v.dtype)[6:]}, but the model is "
                f"{str(x.dtype)[6:]}: make tensors like those that are given (zeros(x), "
                "x.new_zeros(...)), and keep numpy and float64 out"
            )
        if v.shape != x.shape and path in ("x", "d", "delta", "the model"):
            return (
                f"{name}() gives {path} with the shape {list(v.shape)}; it must be "
                f"{list(x.shape)}, one number per coordinate that the client holds"
            )
    return ""


def _missing(name: str, out: Any) -> str:
    """Fields that every message of its kind has."""
    needed: tuple[str, ...] = ()
    if name in ("server_init", "broadcast", "server_step"):
        needed = ("x",)
    elif name == "finish":
        out, needed = out[0], ("delta", "weight")
    if needed and not is_rec(out):
        return f"{name}() must return a record made by rec(...), got {type(out).__name__}"
    lacking = [f for f in needed if f not in out._fields]
    if not lacking:
        return ""
    return (
        f"{name}() must return a record with {' and '.join(needed)}, got one with "
        f"{', '.join(out._fields) or 'no field'}: engines and wrappers read them by these names"
    )


def _named(name: str, out: Any) -> list[tuple[str, Any]]:
    """(what a person calls it, tensor) of a result."""
    if name == "model":
        return [("the model", out)]
    if name in ("start", "direction"):
        first = "x" if name == "start" else "d"
        return [(first, out[0]), *fields(out[1]).items()]
    if name == "finish":
        return [*fields(out[0]).items(), *fields(out[1], "mem").items()]
    return list(fields(out).items())


KEPT = "nothing kept on itself"


def look(part: Any) -> dict[str, Any]:
    """{place: value} of everything that a part could keep something in, deep enough to compare."""
    kind, out = type(part), {}
    for name, value in vars(part).items():
        if not isinstance(getattr(kind, name, None), functools.cached_property):
            out[f"self.{name}"] = _frozen(value)
    for owner in _own_classes(kind):
        for name, value in vars(owner).items():
            if not name.startswith("__") and not _is_code(value):
                out[f"{owner.__name__}.{name}"] = _frozen(value)
            if isinstance(value, types.FunctionType):
                out |= _globals(value)
    return out


def _own_classes(kind: type) -> list[type]:
    """The class and those it is made of, but not fedloom's."""
    return [c for c in kind.__mro__ if not c.__module__.startswith("fedloom.") and c is not object]


def _globals(function: types.FunctionType) -> dict[str, Any]:
    """The containers, tensors and numbers of the file that a function names."""
    found, out = function.__globals__, {}
    for name in function.__code__.co_names:
        value = found.get(name)
        if isinstance(value, (list, dict, set, Tensor, int, float, str)):
            out[f"the global {name}"] = _frozen(value)
    return out


def _is_code(value: Any) -> bool:
    return callable(value) or isinstance(value, (property, classmethod, staticmethod))


def _frozen(value: Any, depth: int = 4) -> Any:
    """A value as something that later changes cannot reach."""
    if isinstance(value, Tensor):
        return "tensor", tuple(value.shape), bits(value)
    if depth and isinstance(value, (list, tuple)):
        return [_frozen(v, depth - 1) for v in value]
    if depth and isinstance(value, dict):
        return {repr(k): _frozen(v, depth - 1) for k, v in value.items()}
    if isinstance(value, (int, float, str, bool, set, type(None))):
        return repr(value)
    if depth and hasattr(value, "__dict__") and not _is_code(value):
        return {k: _frozen(v, depth - 1) for k, v in vars(value).items()}
    return id(value)


def kept(before: dict[str, Any], after: dict[str, Any]) -> str:
    """A paragraph on the first place that has changed; "" if none has."""
    for place in after:
        if place not in before or before[place] != after[place]:
            return (
                f"{place} changed during a run. The same object serves all clients, and copies of "
                "it serve them in other processes, so that what it keeps is mixed up or lost: what "
                "a client must remember goes into mem, what must last for a round into loc, what "
                "the server must remember into srv"
            )
    return ""
