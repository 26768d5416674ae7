"""The wrapper that changes nothing; the others override what they change."""

from __future__ import annotations

import dataclasses

from ..algorithm import Algorithm, Grad, Job, Round
from ..core.vector import Num, Rec, Vec


class Wrapper(Algorithm):
    """Passes everything on to `inner`."""

    inner: Algorithm = dataclasses.field()

    def __post_init__(self) -> None:
        super().__post_init__()
        # what a method declares about itself is true of it inside a wrapper too
        for name in ("sent", "approximate"):
            object.__setattr__(self, name, getattr(self.inner, name))
        object.__setattr__(self, "traits", self.inner.traits | type(self).traits)

    @property
    def probes(self) -> bool:
        return self.inner.probes

    @property
    def asks(self) -> bool:
        return self.inner.asks

    @property
    def arrives(self) -> bool:
        return self.inner.arrives

    @property
    def personalises(self) -> bool:
        return self.inner.personalises

    @property
    def reports(self) -> bool:
        return self.inner.reports

    @property
    def plain(self) -> bool:
        return type(self).direction is Wrapper.direction and self.inner.plain

    @property
    def method(self) -> str:
        return self.inner.method

    def server_init(self, x: Vec, up: Rec) -> Rec:
        return self.inner.server_init(x, up)

    def broadcast(self, srv: Rec) -> Rec:
        return self.inner.broadcast(srv)

    def server_step(self, srv: Rec, up: Rec, rnd: Round) -> Rec:
        return self.inner.server_step(srv, up, rnd)

    def model(self, srv: Rec) -> Vec:
        return self.inner.model(srv)

    def probe(self, x: Vec, grad: Grad) -> Rec:
        return self.inner.probe(x, grad)

    def client_init(self, x: Vec) -> Rec:
        return self.inner.client_init(x)

    def start(self, msg: Rec, mem: Rec, job: Job) -> tuple[Vec, Rec]:
        return self.inner.start(msg, mem, job)

    def direction(
        self, x: Vec, loc: Rec, msg: Rec, mem: Rec, grad: Grad, job: Job
    ) -> tuple[Vec, Rec]:
        return self.inner.direction(x, loc, msg, mem, grad, job)

    def finish(self, x: Vec, loc: Rec, msg: Rec, mem: Rec, job: Job) -> tuple[Rec, Rec]:
        return self.inner.finish(x, loc, msg, mem, job)

    def uniform(self, up: Rec, job: Job) -> Rec:
        return self.inner.uniform(up, job)

    def ask(self, msg: Rec, mem: Rec, job: Job) -> tuple[Rec, Rec]:
        return self.inner.ask(msg, mem, job)

    def arrived(self, up: Rec, mem: Rec) -> Rec:
        return self.inner.arrived(up, mem)

    def personal(self, msg: Rec, mem: Rec) -> Vec:
        return self.inner.personal(msg, mem)

    def report(self, srv: Rec) -> Rec:
        return self.inner.report(srv)

    def pull_strength(self, job: Job) -> Num:
        return self.inner.pull_strength(job)

    # ------------------------------------------------------ second trajectories: see Job.move
    def begun(self, y: Rec) -> Rec:
        """A second trajectory at its beginning -> with this wrapper's state."""
        return y

    def along(self, d: Vec, y: Rec, job: Job) -> tuple[Vec, Rec]:
        """The direction of a step of a second trajectory -> the changed one, and y."""
        return d, y


def layers(algorithm: Algorithm) -> list[Wrapper]:
    """The wrappers around a method, innermost first."""
    found: list[Wrapper] = []
    while isinstance(algorithm, Wrapper):
        found.insert(0, algorithm)
        algorithm = algorithm.inner
    return found


def method_in(algorithm: Algorithm) -> Algorithm:
    """The method inside all wrappers."""
    around = layers(algorithm)
    return around[0].inner if around else algorithm


def trajectory_parts(algorithm: Algorithm) -> tuple[Wrapper, ...]:
    """The wrappers that change a second trajectory's steps, innermost first (Job.around)."""
    return tuple(w for w in layers(algorithm) if type(w).along is not Wrapper.along)
