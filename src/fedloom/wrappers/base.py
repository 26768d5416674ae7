"""The wrapper that changes nothing; the others override what they change."""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable
from typing import Any

from ..algorithm import METHODS, Algorithm, Job, LocalSGD
from ..core.vector import Rec, Vec


class Wrapper(LocalSGD):
    """Passes everything on to `inner`: every method of an algorithm, and what it says of itself,
    see below.
    """

    inner: Algorithm = dataclasses.field()

    def __post_init__(self) -> None:
        # what a method declares about itself is true of it inside a wrapper too
        for name in ("compressible_up", "compressible_down"):
            object.__setattr__(self, name, getattr(self.inner, name))
        object.__setattr__(self, "traits", self.inner.traits | type(self).traits)

    @property
    def plain(self) -> bool:
        return type(self).direction is Wrapper.direction and self.inner.plain

    # ------------------------------------------------------ second trajectories: see Job.move
    def begin(self, y: Rec) -> Rec:
        """A second trajectory at its beginning -> with this wrapper's state."""
        return y

    def along(self, d: Vec, y: Rec, job: Job) -> tuple[Vec, Rec]:
        """The direction of a step of a second trajectory -> the changed one, and y."""
        return d, y


def _passed_on(name: str) -> Callable[..., Any]:
    """A method of an algorithm that calls the inner one's."""

    @functools.wraps(getattr(LocalSGD, name))
    def method(wrapper: Wrapper, *arguments: Any) -> Any:
        return getattr(wrapper.inner, name)(*arguments)

    return method


for _name in METHODS:
    setattr(Wrapper, _name, _passed_on(_name))
for _name in ("probes", "asks", "arrives", "personalises", "reports", "method"):
    setattr(Wrapper, _name, property(operator.attrgetter(f"inner.{_name}")))


def layers(algorithm: Algorithm) -> list[Wrapper]:
    """The wrappers around a method, innermost first."""
    wrappers: list[Wrapper] = []
    while isinstance(algorithm, Wrapper):
        wrappers.insert(0, algorithm)
        algorithm = algorithm.inner
    return wrappers


def method_in(algorithm: Algorithm) -> Algorithm:
    """The method inside all wrappers."""
    around = layers(algorithm)
    return around[0].inner if around else algorithm


def trajectory_parts(algorithm: Algorithm) -> tuple[Wrapper, ...]:
    """The wrappers that change a second trajectory's steps, innermost first (Job.around)."""
    return tuple(w for w in layers(algorithm) if type(w).along is not Wrapper.along)
