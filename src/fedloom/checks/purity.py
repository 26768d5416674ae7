"""Every method called twice, on arguments that are compared before and after, byte by byte."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import torch

from ..algorithm import Grad, Job, Round
from ..core.vector import Rec, Vec
from ..engines.author_rules import changes, differs
from ..errors import AuthorError
from ..wrappers import Wrapper
from .compare import changed, imprint

_AT_SERVER = ("server_init", "broadcast", "server_step", "model")


class Notes:
    """What was seen. broken: {rule: the first error of its kind}; and an algorithm's messages."""

    def __init__(self) -> None:
        self.broken: dict[str, AuthorError] = {}
        self.messages: list[Rec] = []
        self.answers: list[Rec] = []
        self.probes: list[tuple[Vec, Rec]] = []

    def add(self, error: AuthorError) -> None:
        """Keep the first error of each kind."""
        self.broken.setdefault(error.rule, error)


def twice(
    notes: Notes,
    method: Callable[..., Any],
    arguments: tuple[Any, ...],
    again: tuple[Any, ...] = (),
) -> Any:
    """Call a method with these arguments, and once more -> what it gave first.

    again: the arguments of the second call, where they may not be the same objects (a generator).
    """
    name = getattr(method, "__name__", "it")
    before, drawn = [imprint(a) for a in arguments], torch.get_rng_state()
    one = method(*arguments)
    if name in _AT_SERVER:  # where torch's generator begins anew for every method and round
        torch.set_rng_state(drawn)
    for label, a, was in zip(inspect.signature(method).parameters, arguments, before, strict=False):
        if path := changed(was, imprint(a)):
            notes.add(changes(name, [label if path == "value" else f"{label}.{path}"]))
            return one  # a second call would see something else, and that is the same fault
    first = imprint(one)
    if path := changed(first, imprint(method(*(again or arguments)))):
        notes.add(differs(name, "" if path == "value" else f" in '{path}'"))
    elif path := changed(first, imprint(one)):
        notes.add(changes(name, [f"what it gave before ('{path}')"]))
    return one


class Watch(Wrapper):
    """The algorithm inside, with every method called twice, and notes of what it does and sends."""

    notes: Notes = dataclasses.field(default_factory=Notes)

    def _call(self, name: str, *arguments: Any) -> Any:
        return twice(self.notes, getattr(self.inner, name), arguments)

    def server_init(self, x: Vec, up: Rec) -> Rec:
        return self._call("server_init", x, up)

    def broadcast(self, srv: Rec) -> Rec:
        msg = self._call("broadcast", srv)
        self.notes.messages.append(msg)
        return msg

    def server_step(self, srv: Rec, up: Rec, rnd: Round) -> Rec:
        return self._call("server_step", srv, up, rnd)

    def model(self, srv: Rec) -> Vec:
        x: Vec = self._call("model", srv)
        return x

    def probe(self, x: Vec, grad: Grad) -> Rec:
        up = self._call("probe", x, grad)
        self.notes.probes.append((x, up))
        return up

    def client_init(self, x: Vec) -> Rec:
        return self._call("client_init", x)

    def start(self, msg: Rec, mem: Rec, job: Job) -> tuple[Vec, Rec]:
        out: tuple[Vec, Rec] = self._call("start", msg, mem, job)
        return out

    def direction(
        self, x: Vec, loc: Rec, msg: Rec, mem: Rec, grad: Grad, job: Job
    ) -> tuple[Vec, Rec]:
        out: tuple[Vec, Rec] = self._call("direction", x, loc, msg, mem, grad, job)
        return out

    def finish(self, x: Vec, loc: Rec, msg: Rec, mem: Rec, job: Job) -> tuple[Rec, Rec]:
        out: tuple[Rec, Rec] = self._call("finish", x, loc, msg, mem, job)
        if isinstance(out, tuple):
            self.notes.answers.append(out[0])
        return out

    def uniform(self, up: Rec, job: Job) -> Rec:
        return self._call("uniform", up, job)
