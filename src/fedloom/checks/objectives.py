"""The contract of an objective."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..core.vector import is_rec
from ..objectives import Objective
from .compare import unlike
from .engine_agreement import TOLERANCE, PartChecks, Runs, held_by_parts
from .outcome import BrokenError, Check
from .purity import ARGUMENTS, FIELDS, KEPT, REPEAT, Notes, twice
from .tiny_federation import SMALL, Given, Trial, experiment
from .tiny_losses import Case, case_for


def objective_checks(part: Objective, engines: Sequence[str], given: Given = SMALL) -> list[Check]:
    """Every check of an objective, in order."""
    own = _Checks(part, given)
    return [
        Check("shape of the loss", own.shape, needed=True),
        Check("mean() is the mean of loss()", own.mean),
        Check("each example alone", own.alone),
        Check("gradient", own.gradient),
        Check(FIELDS, own.fields),
        Check(ARGUMENTS, functools.partial(own.noted, ARGUMENTS)),
        Check(REPEAT, functools.partial(own.noted, REPEAT)),
        Check("runs", own.runs.starts, needed=True),
        Check(KEPT, own.nothing_kept),
        *own.runs.checks(engines),
        Check("clients with a part of the model", own.parts),
    ]


class _Checks(PartChecks):
    part: Objective

    def __init__(self, part: Objective, given: Given) -> None:
        super().__init__(part, Runs(part, self._make))
        self.given = given

    def _make(self, part: Objective, dtype: torch.dtype, **changes: Any) -> Trial:
        problem = self.case.problem
        given = {"objective": part, "model": problem.network, "data": problem.data(dtype)}
        return experiment(dtype, **(given | self.given.settings(dtype) | changes))

    @functools.cached_property
    def case(self) -> Case:
        """A batch of what the loss is meant for."""
        return case_for(self.part, self.given)

    # ------------------------------------------------------------------------------------- checks
    def shape(self) -> None:
        """One value per example, or one number."""
        case = self.case
        self.part.check(case.net, case.batch[0])
        self._scalar(case.loss(), "loss()")
        with torch.no_grad():
            value = self.part.score(case.net(case.x, case.batch[0]), case.batch)
        self._scalar(value, "score()")

    def _scalar(self, value: Any, name: str) -> None:
        if not isinstance(value, Tensor):
            raise BrokenError(
                f"{name} must return a tensor, got {type(value).__name__}: it is differentiated, "
                "so it must be made of what net(x, inputs) gives"
            )
        shape, size = list(value.shape), len(self.case.batch[1])
        if not value.is_floating_point():
            raise BrokenError(f"{name} gives {str(value.dtype)[6:]}; it must give floating values")
        if shape not in ([], [size]):
            raise BrokenError(
                f"{name} has the shape {shape} for a batch of {size}: it must give one value per "
                f"example, [{size}], or one number for the batch, []; average over all axes but "
                "the first, value.flatten(1).mean(1)"
            )

    def mean(self) -> None:
        """The fused mean is the mean."""
        case, want = self.case, self.case.loss().mean()
        got = case.masked(
            lambda: self.part.mean(case.net, case.x, case.batch, case.ref, case.memory)
        )
        if found := unlike(got, want, TOLERANCE):
            raise BrokenError(
                f"mean() is not the mean of loss(): {found}. A subclass of CrossEntropy inherits a "
                "fused mean() that knows nothing of your loss(); write `mean = Objective.mean` "
                "into the class"
            )

    def alone(self) -> str | None:
        """An example's loss does not depend on the others, so that a batch may be padded."""
        case = self.case
        if not case.loss().ndim:
            return "its loss is one number for the batch, which is never padded"
        full, head = case.settled(), case.settled(2)
        if found := unlike(head, full[:2], TOLERANCE):
            raise BrokenError(
                f"the loss of an example depends on the other examples of its batch: {found}. The "
                "vectorised engine fills short batches up, so that such a loss would be another "
                "one there: return one number for the batch"
            )
        return None

    def gradient(self) -> None:
        """The loss can be differentiated with respect to x."""
        x = self.case.x.clone().requires_grad_()
        value = self.case.loss(x=x).mean()
        if not value.requires_grad:
            raise BrokenError(
                "the loss does not depend on x: run the model with the x that is given, "
                "net(x, inputs), and outside of torch.no_grad(), .detach() and .item()"
            )
        (g,) = torch.autograd.grad(value, x)
        if not bool(torch.isfinite(g).all()):
            raise BrokenError("the gradient of the loss is not finite: a norm or a root of 0?")

    def fields(self) -> None:
        """Memory keeps its fields."""
        case, part = self.case, self.part
        begin = case.first
        made: dict[str, Callable[[], Any]] = {
            "begin()": lambda: case.memory,
            "carry()": lambda: case.carried,
            "finish()": lambda: part.finish(case.x, case.ref, case.carried),
        }
        for name, make in made.items():
            mem = make()
            if not is_rec(mem) or mem._fields != begin._fields:
                have = ", ".join(mem._fields) if is_rec(mem) else type(mem).__name__
                raise BrokenError(
                    f"{name} returns a memory with {have or 'no field'}, but init() began with "
                    f"{', '.join(begin._fields) or 'no field'}: return the same fields"
                )

    @functools.cached_property
    def notes(self) -> Notes:
        """Every method called twice."""
        notes, part, case = Notes(), self.part, self.case
        net, x, batch, ref, mem = case.net, case.x, case.batch, case.ref, case.carried
        with torch.no_grad():
            z = net(x, batch[0])
        calls = (
            (part.init, (case.info,)),
            (part.begin, (case.first, case.now)),
            (part.loss, (net, x, batch, ref, mem)),
            (part.mean, (net, x, batch, ref, mem)),
            (part.carry, (net, x, batch, mem)),
            (part.score, (z, batch)),
            (part.finish, (x, ref, mem)),
        )
        for method, arguments in calls:

            def masked(*given: Any, method: Callable[..., Any] = method) -> Any:
                return case.masked(lambda: method(*given))

            twice(notes, functools.wraps(method)(masked), arguments, arguments)
        return notes

    def parts(self) -> None:
        """Clients that train a smaller network."""
        why = "take lengths from x and from the network's outputs, not from the whole model"
        held_by_parts(self.case.problem.rule, functools.partial(self._make, self.part), why)
