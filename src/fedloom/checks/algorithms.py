"""The contract of an algorithm: the guard of a run, and what only a whole run shows."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..algorithm import Algorithm, Oracle, Trait
from ..core.rng import Draws
from ..core.vector import Rec, Vec, fields, tree
from ..engines.author_rules import (
    DECLARED,
    FIELDS,
    REPEAT,
    SHAPES,
    check_declarations,
    check_sent,
    differs,
)
from ..engines.guard import personal_model
from ..engines.summation import finite
from ..errors import AuthorError, CompositionError
from ..federation.clock import Asynchronous
from ..submodels import FIARSE, HeteroFL
from .compare import CallRecorder, Notes, differing_path, imprint, unequal, unlike
from .engine_agreement import TOLERANCE, Contract, check_parts
from .outcome import Check, root
from .tiny_federation import End, run

_WHY = (
    "take lengths from the vectors that are given (zeros(x)), or declare Trait.WHOLE_MODEL if it "
    "makes no sense when clients hold different coordinates"
)


class AlgorithmContract(Contract):
    """See Contract. end: of the run in which every method is called twice, if it came to one."""

    kind = Algorithm
    end: End | None = None

    def settings(self, part: Any, dtype: torch.dtype) -> dict[str, Any]:
        return {"algorithm": part}

    def checks(self, engines: Sequence[str]) -> list[Check]:
        part = self.part
        own = (
            Check("personal models", self.personal_models),
            Check("the server's move", lambda: move_of_the_server(part, self.notes)),
            Check("only ratios of weights count", self.weights),
            Check("rates are declared", lambda: rates_are_declared(part, self.notes)),
            Check("norms are declared", lambda: norms_are_declared(part, self.notes)),
        )
        return [
            Check(DECLARED, lambda: check_declarations(part)),
            self.rule(SHAPES, required=True),
            self.rule(FIELDS, required=True),
            *self.common(engines, *own),
            Check("clients with a part of the model", self.parts),
            Check("asynchronous clock", self.late),
            Check("steps can be replayed", functools.partial(self.fitting, self.replayed)),
        ]

    def call(self, notes: Notes) -> None:
        """One run, in which the guard looks on as well."""
        try:
            self.end = run(self.trial(CallRecorder(inner=self.part, notes=notes), torch.float32))
            check_sent(self.part, notes.calls["finish"][0][1][0])
            if field := unequal(self.end.srv, self.serial(torch.float32).srv):
                raise AuthorError(
                    f"with every method called twice, the run learns another '{field}': it counts "
                    "its calls, or remembers something outside of its records",
                    REPEAT,
                )
        except Exception as error:  # whatever an author's code raises: "runs" says why
            if isinstance(first := root(error), AuthorError):
                notes.add(first)

    def personal_models(self) -> str | None:
        """A client's own model is a vector like x, from its state and the message alone."""
        if not self.part.personalises:
            return "it has none: personal() is not overridden"
        assert self.end is not None
        msg = self.part.broadcast(self.end.srv)
        for row in (None, *(row.alg for row in self.end.memory.values())):
            one, other = (personal_model(self.part, msg.x, msg, row) for _ in range(2))
            if differing_path(imprint(one), imprint(other)):
                raise differs("personal", "")
        return None

    def weights(self) -> None:
        """Weights four times as large, whose means are the same bits, change nothing."""
        sizes = self.trial(self.part, torch.float64).data.sizes.tolist()
        end = run(self.trial(self.part, torch.float64, weighting=[4.0 * n for n in sizes]))
        want = self.serial(torch.float64)
        if difference := unlike((end.srv, end.memory), (want.srv, want.memory), TOLERANCE):
            raise AuthorError(
                f"with every client's weight four times as large the run learns something else "
                f"({difference}): the engine multiplies delta by its weight and divides by their "
                "sum, so give delta = x - msg.x without the weight, and take job.size for a "
                "client's share of the examples"
            )

    def late(self) -> str | None:
        """Updates that were made from older broadcasts, or a refusal by name."""
        try:
            population = self.trial(self.part, torch.float64).data.population
            clock = Asynchronous(buffer=min(2, population))
            srv = run(self.trial(self.part, torch.float64, clock=clock)).srv
        except CompositionError as error:
            return str(error)
        if finite(srv):
            return None
        raise AuthorError(
            "under an asynchronous clock the server's record has values that are not finite: there "
            "server_step() gets updates that were made from older broadcasts; if it takes them to "
            "be made from its newest one, declare Trait.ONE_BROADCAST"
        )

    def parts(self) -> str | None:
        """Clients that hold slices, and the largest weights."""
        if Trait.WHOLE_MODEL in self.part.traits:
            return "it declares Trait.WHOLE_MODEL"
        if self.part.personalises:
            return "its clients use models of their own, which are whole ones"
        make = functools.partial(self.trial, self.part)
        out = [self.fitting(check_parts, scheme, make, _WHY) for scheme in (HeteroFL(), FIARSE())]
        return "; ".join(filter(None, out)) or None


_ROUNDING = 1e-9  # in float64, of the largest value
_READS_RATES = {Trait.READS_THE_MOVE, Trait.DIVIDES_BY_RATES}


# ------------------------------------------- one argument is changed, and what comes of it compared
def move_of_the_server(part: Algorithm, notes: Notes) -> str | None:
    """server_step() moves x by the same vector wherever x is."""
    if Trait.SEVERAL_MODELS in part.traits:
        return "it declares Trait.SEVERAL_MODELS"
    (srv, up, rnd), _ = notes.calls["server_step"][-1]
    srv, up, rnd = (tree(_double, v) for v in (srv, up, rnd))
    elsewhere = srv._replace(x=srv.x + torch.linspace(0.5, 1.5, len(srv.x), dtype=srv.x.dtype))
    one, other = (_stepped(part, s, up, rnd) - s.x for s in (srv, elsewhere))
    gap = float((one - other).abs().max())
    if gap > _ROUNDING * max(1.0, float(elsewhere.x.abs().max()), float(one.abs().max())):
        raise AuthorError(
            f"server_step() moves x by another vector where x is another (by {gap:.2g}): server "
            "optimisers and the look-ahead run it at x = 0, and would learn something else; add "
            "to srv.x what follows from up and the rest of srv, or declare Trait.SEVERAL_MODELS"
        )
    return None


def rates_are_declared(part: Algorithm, notes: Notes) -> str | None:
    """Who reads job.lr_sum says so, or momentum and other local optimisers are let around it."""
    if _READS_RATES & part.traits:
        return "its traits say that it reads job.lr_sum"
    (*arguments, job), (up, _) = notes.calls["finish"][-1]
    job, other = (
        _no_pass(job, arguments[0], 1.0)._replace(lr_sum=by * job.lr_sum) for by in (1.0, 2.0)
    )
    field = unequal(*(part.finish(*[*arguments, one]) for one in (job, other)))
    method = "finish()" if field else "unweighted()"
    if field or unequal(part.unweighted(up, job), part.unweighted(up, other)):
        raise AuthorError(
            f"{method} reads job.lr_sum, and no trait says so: a local optimiser makes the move "
            "another sum than that of lr times direction; declare Trait.READS_THE_MOVE, or "
            "Trait.DIVIDES_BY_RATES if the sum of the gradients' weights serves as well"
        )
    return None


def norms_are_declared(part: Algorithm, notes: Notes) -> str | None:
    """Who makes a number of a whole vector says so, or clients with a part of it are let in."""
    if Trait.WHOLE_MODEL in part.traits or part.personalises:
        return "it takes no clients with a part of the model"
    (*arguments, job), (up, _) = notes.calls["finish"][-1]
    x = arguments[0]
    finished, averaged = [], []
    for factor in (1.0, 2.0):
        longer = [tree(lambda v, by=factor: _longer(v, x, by), a) for a in (*arguments, up)]
        finished.append(part.finish(*[*longer[:-1], _no_pass(job, x, factor)])[0])
        averaged.append(part.unweighted(longer[-1], job._replace(full=None)))
    for method, (one, other) in (("finish", finished), ("unweighted", averaged)):
        if name := _number(one, other, x):
            raise AuthorError(
                f"{method}() makes '{name}', which is no vector like x, of vectors, as a norm is: "
                "of clients with a part of the model it would be that of their parts; declare "
                "Trait.WHOLE_MODEL"
            )
    return None


def _stepped(part: Algorithm, srv: Rec, up: Rec, rnd: Any) -> Vec:
    """x after a step of the server, which may draw."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        x: Vec = part.server_step(srv, up, rnd).x
        return x


def _double(v: Any) -> Any:
    return v.double() if isinstance(v, Tensor) and v.is_floating_point() else v


def _longer(v: Any, like: Vec, factor: float) -> Any:
    return v * factor if isinstance(v, Tensor) and v.shape == like.shape else v


def _no_pass(job: Any, x: Vec, factor: float) -> Any:
    """A job whose gradients and losses over all data cost no pass; the gradients are as long as
    factor says, the losses are equal. Its random numbers are the same in every one.
    """
    job = job._replace(draws=Draws(0, x))
    if job.full is None:
        return job
    full = Oracle(lambda y: torch.full_like(y, factor), lambda y: x.new_ones(()))
    return job._replace(full=full)


def _number(one: Rec, other: Rec, like: Vec) -> str:
    """The first field that is no vector like x and differs; "" if there is none."""
    after = fields(other)
    for name, v in fields(one).items():
        vector = isinstance(v, Tensor) and v.shape == like.shape
        if not vector and unequal(v, after[name]):
            return name
    return ""
