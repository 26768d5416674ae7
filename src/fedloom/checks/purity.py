"""Every method called twice, on arguments that are compared before and after, byte by byte."""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import torch

from ..algorithm import Job
from ..engines.author_rules import METHODS, changes, differs
from ..errors import AuthorError
from ..wrappers import Wrapper
from .compare import differing_path, imprint

_AT_SERVER = ("server_init", "broadcast", "server_step", "model")


class Notes:
    """What was seen. broken: {rule: the first error of its kind}. calls: {method of an algorithm:
    its arguments and what it gave, of every call}.
    """

    def __init__(self) -> None:
        self.broken: dict[str, AuthorError] = {}
        self.calls: dict[str, list[tuple[tuple[Any, ...], Any]]] = {name: [] for name in METHODS}

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
    again = again or tuple(map(_rewind, arguments))
    name = getattr(method, "__name__", "it")
    before, rng_state = [imprint(a) for a in arguments], torch.get_rng_state()
    one = method(*arguments)
    if name in _AT_SERVER:  # where torch's generator begins anew for every method and round
        torch.set_rng_state(rng_state)
    labels = inspect.signature(method).parameters
    changed = [
        label if path == "value" else f"{label}.{path}"
        for label, a, old in zip(labels, arguments, before, strict=False)
        if (path := differing_path(old, imprint(a)))
    ]
    if changed:
        notes.add(changes(name, changed))
        return one  # a second call would see something else, and that is the same fault
    first = imprint(one)
    if path := differing_path(first, imprint(method(*again))):
        notes.add(differs(name, "" if path == "value" else f" in '{path}'"))
    elif path := differing_path(first, imprint(one)):
        notes.add(changes(name, [f"what it gave before ('{path}')"]))
    return one


def _rewind(argument: Any) -> Any:
    """A job that draws the same numbers once more, whatever was drawn in between."""
    if not isinstance(argument, Job) or argument.draws is None:
        return argument
    return argument._replace(draws=copy.copy(argument.draws))


class CallRecorder(Wrapper):
    """The algorithm inside, with every method called twice, and notes of what it is given and
    gives. What the methods do is `call`.
    """

    notes: Notes = dataclasses.field(default_factory=Notes)

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a method of the algorithm inside."""
        out = twice(self.notes, getattr(self.inner, name), arguments)
        self.notes.calls[name].append((arguments, out))
        return out


def _recorded(name: str) -> Callable[..., Any]:
    return lambda watch, *arguments: watch.call(name, *arguments)


for _name in METHODS:
    setattr(CallRecorder, _name, _recorded(_name))
