"""A client's local steps as pure functions, and the only copy of them: the serial loop calls them
one after another, the vectorised engine maps begin, step and end over an axis of clients.

Both bring the gradient of a minibatch, and move x along the direction that a step gives.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..algorithm import Grad, Job
from ..core.arithmetic import total
from ..core.dropout import seeded
from ..core.rng import FINISH, Draws, key
from ..core.vector import Rec, Vec, rec
from ..federation.federation import Federation
from ..objectives import Objective
from ..plan import Plan
from ..stage import Download, Stage, asked
from ..submodels.base import View
from ..wrappers.base import trajectory_parts
from .author_checks import Guard
from .author_rules import noted
from .gradient import seed_torch


class ClientStep:
    """The local steps of every client of a run. own, obj: what a client remembers of method and
    objective, as long as the vectors of its steps. Methods raise AuthorError.
    """

    def __init__(self, plan: Plan, fed: Federation, stages: tuple[Stage, ...]) -> None:
        self.plan, self.fed, self._turning = plan, fed, asked(stages, "along")
        self.guard, self._around = Guard(plan.algorithm), trajectory_parts(plan.algorithm)
        loss = type(plan.objective)  # most have no client state, and are not asked
        self._carries = plan.objective.carries
        self._begins = loss.begin is not Objective.begin
        self._finishes = loss.finish is not Objective.finish

    def begun(self, share: Download, memory: Rec, i: int, round: int, seed: int) -> tuple[Rec, Rec]:
        """-> own and obj of a client (d,) at the beginning of a round. Torch's generators begin at
        its seed if the objective may draw.
        """
        own, obj = share.view.take(memory.alg), memory.obj
        if share.view.net is not None:  # the net that computes the loss is as long as the part
            obj = share.view.take(obj)
        if self._begins:
            seed_torch(seed, share.msg.x)
            info = rec(round=round, last=float(memory.last), first=self.fed.first(i, round))
            obj = self.plan.objective.begin(obj, info)
        return own, obj

    def rates(self, i: int, round: int) -> list[float]:
        """The rates of a client's steps."""
        return self.plan.rates(self.fed.local, round, self.fed.steps(i), self.fed.pace(i))

    def job(
        self, i: int, round: int, last: float, share: Download, rates: list[float], full: Any = None
    ) -> Job:
        """What a client is told about its round, at the first step. last: the round of its last
        participation.
        """
        fed, masked = self.fed, share.masked
        return Job(
            weight=fed.weight(i),
            steps=float(len(rates)),
            lr=rates[0],
            lr_sum=total(rates),
            round=float(round),
            step=0.0,
            last=float(last),
            full=full,
            size=fed.relative_size(i),
            kept=None if masked is None else masked.kept,
            around=self._around if masked is None else (*self._around, masked),
            relative_weight=fed.relative_weight(i),
            draws=Draws(key(fed.seed, "author", round, i), share.msg.x),
            client=float(i),
            layers=share.layers,
        )

    def plain(self, view: View) -> bool:
        """True if x moves along the gradient itself, and nothing else happens in a step."""
        more = self._carries or self._turning or view.fit is not None
        in_place = view.held is None or view.net is not None
        return self.plan.algorithm.plain and not more and in_place

    def step(
        self,
        k: int,
        x: Vec,
        loc: Rec,
        obj: Rec,
        share: Download,
        own: Rec,
        job: Job,
        grad: Grad,
        batch: tuple[Any, ...],
        seed: int | Tensor,
    ) -> tuple[Vec, Rec, Rec]:
        """-> the direction (m,) in which x moves in step k, and the new loc and obj. seed: of what
        the model draws in this step.
        """
        job.draws.step(k)
        d, loc = self.guard.direction(x, loc, share.msg, own, grad, job)
        if share.masked is not None:
            d = share.masked.move(d, x)
        for stage in self._turning:
            d = noted(f"{type(stage).__name__}.along()", stage.along, d, x, job)
        if self._carries:
            with seeded(seed):
                obj = self.plan.objective.carry(share.net, share.view.seen(x), batch, obj)
        return d, loc, obj

    def end(
        self, x: Vec, loc: Rec, obj: Rec, share: Download, own: Rec, job: Job
    ) -> tuple[Rec, Rec, Rec]:
        """-> the client update, and the new own and obj. x (m,): where the steps ended."""
        job.draws.at(FINISH)
        up, own = self.guard.finish(x, loc, share.msg, own, job)
        if self._finishes:
            seen = share.view.seen
            obj = self.plan.objective.finish(seen(x), seen(share.msg.x), obj)
        return up, own, obj

    def remembered(self, view: View, memory: Rec, own: Rec, obj: Rec) -> Rec:
        """The client state (d,) after the steps."""
        obj = view.put(obj, memory.obj) if view.net is not None else obj
        return memory._replace(alg=view.put(own, memory.alg), obj=obj)
