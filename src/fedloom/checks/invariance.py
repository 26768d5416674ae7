"""What an algorithm's methods may not depend on: one argument is changed, and what they give is
compared. The arguments are those of a run, which purity.CallRecorder has noted.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..algorithm import Algorithm, Oracle, Trait
from ..core.rng import Draws
from ..core.vector import Rec, Vec, fields, tree
from ..errors import AuthorError
from .compare import unequal
from .purity import Notes

_ROUNDING = 1e-9  # in float64, of the largest value
_READS_RATES = {Trait.READS_THE_MOVE, Trait.DIVIDES_BY_RATES}


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
