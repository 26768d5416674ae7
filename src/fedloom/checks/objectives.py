"""The contract of an objective."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..core.dropout import seeded
from ..core.net import Net
from ..core.rng import generator
from ..core.vector import Rec, rec
from ..data import FederatedData, from_clients
from ..engines.author_rules import FIELDS, same_fields
from ..errors import AuthorError
from ..federation.federation import Federation
from ..models import lstm_language_model
from ..objectives import Needs, Objective
from ..submodels import FIARSE, FjORD, HeteroFL, SubModel
from .compare import Notes, twice, unlike
from .engine_agreement import TOLERANCE, Contract, check_parts
from .outcome import Check
from .tiny_federation import (
    SIZES,
    SMALL,
    Setup,
    federation,
    local_for,
    network_for,
    one_output,
    survival,
)


class ObjectiveContract(Contract):
    kind = Objective
    part: Objective

    def checks(self, engines: Sequence[str]) -> list[Check]:
        return [
            Check("shape of the loss", self.shape, required=True),
            Check("mean() is the mean of loss()", self.mean),
            Check("each example alone", self.independent),
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

    def fields(self) -> None:
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
        why = "take lengths from x and from the network's outputs, not from the whole model"
        make = functools.partial(self.trial, self.part)
        return self.fitting(check_parts, self.case.problem.rule, make, why)


WORDS, LENGTH = 7, 3  # a vocabulary of another size than a window, so that its axis is known
_SEED = 5  # of the model and of the dropout masks


def language_network() -> nn.Module:
    """Two LSTM layers that carry their state from window to window, with dropout: 701 parameters,
    all of one size, so that a mask of the largest has some of every layer.
    """
    network = lstm_language_model(WORDS, embedding=4, hidden=6, dropout=0.25)
    with torch.no_grad():
        for p in network.parameters():
            p.uniform_(-0.4, 0.4)
    return network


@functools.cache
def texts(dtype: torch.dtype) -> FederatedData:
    """Six clients, each with the windows of a text in order, and the next words."""
    draw = generator(0, "checks", "texts")

    def windows(i: int, n: int) -> tuple[Tensor, Tensor]:
        jumps = (torch.rand(n * LENGTH + 1, generator=draw) < 0.3).long()
        words = (torch.cumsum(1 + i % 3 + jumps, 0)) % WORDS
        return words[:-1].view(n, LENGTH), words[1:].view(n, LENGTH)

    pairs = [windows(i, n) for i, n in enumerate(SIZES)]
    return from_clients(pairs, test=windows(2, 20), dtype=dtype)


class Problem(NamedTuple):
    """A model, data of a type, and the rule by which clients hold a part of such a model."""

    network: Callable[[], nn.Module]
    data: Callable[[torch.dtype], FederatedData]
    rule: SubModel


def problems(part: Objective) -> tuple[Problem, ...]:
    """What a loss may be meant for, the likeliest first."""
    network = functools.partial(network_for, part)
    submodel: SubModel = FjORD() if part.needs is Needs.DRAWN_PARTS else HeteroFL()
    labels = Problem(network, federation, submodel)
    numbers = Problem(network, functools.partial(federation, labels=False), submodel)
    # recurrent layers cannot be cut, so a client trains them behind a mask
    text = Problem(language_network, texts, FIARSE())
    if part.needs is Needs.SURVIVAL:
        return (Problem(one_output, survival, submodel),)
    return (text, labels, numbers) if part.needs is Needs.TEXT_ORDER else (labels, numbers, text)


class Case:
    """One batch of one client, in float64, as an engine hands it to a loss."""

    def __init__(self, part: Objective, problem: Problem) -> None:
        self.part, self.problem = part, problem
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(_SEED)
            self.net = Net(problem.network(), torch.float64)
        self.fed = Federation(problem.data(torch.float64), local_for(part))
        # with the most examples, so that there are several whole batches
        self.client = max(range(self.fed.population), key=self.fed.weight)

    def given(self) -> Rec:
        """What a loss is given in the first round, all of it new: one that writes into it fails one
        check, not all. ref: the received model x (d,); x: a little away from it; batch: the
        client's first; info, now: what init() and begin() are told; first, memory: the client's
        memory at its first participation, and as the round begins.
        """
        fed, ref, (examples, batches) = self.fed, self.net.init(), self.fed.pass_of(self.client)
        no_classes = fed.data.classes is None
        counts = ref.new_zeros(0) if no_classes else fed.data.label_counts_of(self.client).to(ref)
        info = rec(counts=counts, d=len(ref), net=self.net, examples=examples, batches=batches)
        now = rec(round=0, last=-1.0, first=fed.first(self.client, 0))
        first = self.part.init(info)
        return rec(
            ref=ref,
            x=ref + 0.01,
            batch=fed.batch(fed.batches(self.client, 0)[0]),
            info=info,
            now=now,
            first=first,
            memory=self.part.begin(first, now),
        )

    def carried(self) -> Rec:
        """The client's memory after the first step."""
        g = self.given()
        return self.masked(lambda: self.part.carry(self.net, g.x, g.batch, g.memory))

    def loss(self, x: Tensor | None = None) -> Any:
        """loss() of the first batch at x, as an engine calls it in a step."""
        g = self.given()
        at = g.x if x is None else x
        return self.masked(lambda: self.part.loss(self.net, at, g.batch, g.ref, g.memory))

    def settled(self, size: int | None = None) -> Any:
        """The same of its first examples, without dropout and derivatives."""
        g = self.given()
        self.net.train(False)
        with torch.no_grad():
            batch = g.batch[0][:size], g.batch[1][:size]
            return self.part.loss(self.net, g.x, batch, g.ref, g.memory)

    def masked(self, call: Callable[[], Any]) -> Any:
        """Call with the dropout masks of one training step."""
        self.net.train()
        with seeded(_SEED):
            return call()

    def fits(self) -> bool:
        try:
            self.part.check(self.net, self.given().batch[0])
            self.loss()
        except Exception:  # an author's code may raise anything on what it is not meant for
            return False
        return True


def case_for(part: Objective, setup: Setup = SMALL) -> Case:
    """A batch of what is given, else of the first problem that the loss can be computed on; of the
    likeliest if there is none: the check of its shape says what is wrong.
    """
    if setup.data is not None:
        make = setup.model if not isinstance(setup.model, nn.Module) else lambda: setup.model
        return Case(part, Problem(make, setup.data.astype, FIARSE()))
    likeliest, *others = problems(part)
    first = Case(part, likeliest)
    if first.fits():
        return first
    return next((case for problem in others if (case := Case(part, problem)).fits()), first)
