"""The small problems that a loss is checked on: labels, numbers, or a text that is read on."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..core.dropout import seeded
from ..core.net import Net
from ..core.rng import generator
from ..core.vector import Rec, rec
from ..data import FederatedData, from_clients
from ..federation.federation import Federation
from ..models import lstm_language_model
from ..objectives import Needs, Objective
from ..submodels import FIARSE, FjORD, HeteroFL, SubModel
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
    """Six clients, each with the windows of one text in their order, and the next words: in every
    text another word follows most often.
    """
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
        """Say whether the loss can be computed on this problem."""
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
