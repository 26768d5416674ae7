"""Records, lists and dictionaries compared, to the bit or within rounding; and every method called
twice, on arguments that are compared before and after.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from ..algorithm import Job
from ..core.vector import as_bytes
from ..engines.author_rules import METHODS, changes, differs
from ..errors import AuthorError
from ..wrappers import Wrapper


def imprint(value: Any) -> dict[str, Any]:
    """Everything in a value as {path: what later changes cannot reach}. Callables are left out.

    >>> imprint((torch.ones(1), 2.0))
    {'0': ('torch.float32', (1,), b'\\x00\\x00\\x80?'), '1': '2.0'}
    """
    out: dict[str, Any] = {}
    for path, leaf in _leaves(value, ""):
        if isinstance(leaf, Tensor):
            out[path] = str(leaf.dtype), tuple(leaf.shape), as_bytes(leaf).numpy().tobytes()
        elif not callable(leaf):
            out[path] = repr(leaf) if isinstance(leaf, float) else leaf  # NaN is NaN, and 1.0 no 1
    return out


def _leaves(value: Any, path: str) -> list[tuple[str, Any]]:
    pairs: Iterable[tuple[Any, Any]]
    if isinstance(value, dict):
        pairs = value.items()
    elif isinstance(value, (tuple, list)):
        pairs = zip(getattr(value, "_fields", range(len(value))), value, strict=True)
    else:
        return [(path, value)]
    join = f"{path}." if path else ""
    return [leaf for name, v in pairs for leaf in _leaves(v, f"{join}{name}")]


def differing_path(before: dict[str, Any], after: dict[str, Any]) -> str:
    """The first path at which two imprints differ; "" where none does."""
    for path in [*before, *after]:
        if path not in before or path not in after or before[path] != after[path]:
            return path or "value"
    return ""


def unequal(one: Any, other: Any) -> str:
    """Where two records differ in a bit; "" where they do not.

    >>> from fedloom.core.vector import rec
    >>> unequal(rec(x=torch.ones(2)), rec(x=torch.zeros(2)))
    'x'
    """
    return differing_path(imprint(one), imprint(other))


def unlike(one: Any, other: Any, tolerance: float) -> str:
    """Where two records differ by more than rounding of their largest value; "" if nowhere."""
    a, b = dict(_leaves(one, "")), dict(_leaves(other, ""))
    if a.keys() != b.keys():
        return f"the fields {', '.join(sorted(set(a) ^ set(b)))} are only in one of them"
    for path in a:
        p, q = (torch.as_tensor(v, dtype=torch.float64) for v in (a[path], b[path]))
        if p.shape != q.shape:
            return f"'{path}' has the shapes {list(p.shape)} and {list(q.shape)}"
        if not p.numel():
            continue
        gap, scale = float((p - q).abs().max()), max(1.0, float(q.abs().max()))
        if not gap <= tolerance * scale:
            return f"'{path}' differs by {gap:.3g}, where {tolerance * scale:.0e} is rounding"
    return ""


# ----------------------------------------------------------------------------------- called twice
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


def twice(notes: Notes, method: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Call a method with these arguments, and once more -> what it gave first."""
    again = tuple(map(_rewind, arguments))
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
    """What draws the same numbers once more, whatever is drawn in between."""
    if isinstance(argument, torch.Generator):
        return argument.clone_state()
    if not isinstance(argument, Job) or argument.draws is None:
        return argument
    return argument._replace(draws=copy.copy(argument.draws))


class CallRecorder(Wrapper):
    """The algorithm inside, with every method called twice, and notes of all calls."""

    notes: Notes = dataclasses.field(default_factory=Notes)

    def call(self, name: str, *arguments: Any) -> Any:
        out = twice(self.notes, getattr(self.inner, name), arguments)
        self.notes.calls[name].append((arguments, out))
        return out


def _recorded(name: str) -> Callable[..., Any]:
    return lambda watch, *arguments: watch.call(name, *arguments)


for _name in METHODS:
    setattr(CallRecorder, _name, _recorded(_name))
