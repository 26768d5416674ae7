"""The contract of an objective."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..engines.alone import check_value
from ..engines.author_rules import FIELDS, same_fields
from ..errors import AuthorError
from ..objectives import Objective
from .compare import unlike
from .engine_agreement import TOLERANCE, Contract, check_parts
from .outcome import Check
from .purity import Notes, twice
from .tiny_losses import Case, case_for


class ObjectiveContract(Contract):
    """What `fedloom check` asks of an objective."""

    part: Objective

    def checks(self, engines: Sequence[str]) -> list[Check]:
        return [
            Check("shape of the loss", self.shape, required=True),
            Check("mean() is the mean of loss()", self.mean),
            Check("each example alone", self.independent),
            Check("gradient", self.gradient),
            Check(FIELDS, self.fields),
            *self.common(engines),
            Check("clients with a part of the model", self.parts),
            Check("steps can be replayed", functools.partial(self.fitting, self.replayed)),
        ]

    def settings(self, part: Any, dtype: torch.dtype) -> dict[str, Any]:
        problem = self.case.problem
        return {"objective": part, "model": problem.network, "data": problem.data(dtype)}

    @functools.cached_property
    def case(self) -> Case:
        """A batch of what the loss is meant for."""
        return case_for(self.part, self.setup)

    # ------------------------------------------------------------------------------------- checks
    def shape(self) -> None:
        """One value per example, or one number."""
        case, g = self.case, self.case.given()
        self.part.check(case.net, g.batch[0])
        self.part.checked(case.loss(), g.batch)
        with torch.no_grad():
            value = self.part.score(case.net(g.x, g.batch[0]), g.batch)
        self.part.checked(value, g.batch, "score")

    def mean(self) -> None:
        """The fused mean is the mean."""
        case, g = self.case, self.case.given()
        fused = case.masked(lambda: self.part.mean(case.net, g.x, g.batch, g.ref, g.memory))
        if difference := unlike(fused, case.loss().mean(), TOLERANCE):
            raise AuthorError(
                f"mean() is not the mean of loss(): {difference}. A subclass of CrossEntropy "
                "inherits a fused mean() that knows nothing of your loss(); write `mean = "
                "Objective.mean` into the class"
            )

    def independent(self) -> str | None:
        """An example's loss does not depend on the others, so that a batch may be padded."""
        case = self.case
        if not case.loss().ndim:
            return "its loss is one number for the batch, which is never padded"
        full, head = case.settled(), case.settled(2)
        if difference := unlike(head, full[:2], TOLERANCE):
            raise AuthorError(
                f"the loss of an example depends on the other examples of its batch: {difference}. "
                "The vectorised engine fills short batches up, so that such a loss would be "
                "another one there: return one number for the batch"
            )
        return None

    def gradient(self) -> None:
        """The loss can be differentiated with respect to x."""
        x = self.case.given().x.requires_grad_()
        value = self.case.loss(x=x).mean()
        check_value(self.part, value)
        (g,) = torch.autograd.grad(value, x)
        if not bool(torch.isfinite(g).all()):
            raise AuthorError("the gradient of the loss is not finite: a norm or a root of 0?")

    def fields(self) -> None:
        """Raise AuthorError if a later client state has other fields than init()'s."""
        case, g = self.case, self.case.given()
        same_fields("begin", "a client state", g.memory, g.first, "init")
        same_fields("carry", "a client state", case.carried(), g.first, "init")
        last = self.part.finish(g.x, g.ref, case.carried())
        same_fields("finish", "a client state", last, g.first, "init")

    def call(self, notes: Notes) -> None:
        part, case, g = self.part, self.case, self.case.given()
        net, mem = case.net, case.carried()
        with torch.no_grad():
            z = net(g.x, g.batch[0])
        calls = (
            (part.init, (g.info,)),
            (part.begin, (g.first, g.now)),
            (part.loss, (net, g.x, g.batch, g.ref, mem)),
            (part.mean, (net, g.x, g.batch, g.ref, mem)),
            (part.carry, (net, g.x, g.batch, mem)),
            (part.score, (z, g.batch)),
            (part.finish, (g.x, g.ref, mem)),
        )
        for method, arguments in calls:

            def masked(*args: Any, method: Callable[..., Any] = method) -> Any:
                return case.masked(lambda: method(*args))

            twice(notes, functools.wraps(method)(masked), arguments)

    def parts(self) -> str | None:
        """Clients that train a smaller network."""
        why = "take lengths from x and from the network's outputs, not from the whole model"
        make = functools.partial(self.trial, self.part)
        return self.fitting(check_parts, self.case.problem.rule, make, why)
