"""All clients of an experiment in this process, whose answers may be lost or changed."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from fedloom import FedAvg, Local
from fedloom.aggregation import IntegerRing
from fedloom.checks.tiny_federation import experiment, run
from fedloom_flower import check
from fedloom_flower.engine import FederationEngine
from fedloom_flower.message import ANSWER, ASK, decode
from support import modules
from support.without import Without
from tiny import clusters, same


class Nodes(check.Nodes):
    """away(what, round, client): whether a message is lost; apart: no node has the others' data;
    options: see check.Nodes. bytes, down: of blocks both ways, and to the clients; sent: each
    answer with its place, header and blocks.
    """

    def __init__(
        self,
        trial,
        folder,
        away=lambda *_: False,
        awry=lambda i, raw: raw,
        apart=False,
        options=lambda i: {"rehearsal": True},
    ):
        """awry(client, raw): what becomes of an answer."""
        super().__init__(trial, folder, "r", options)
        self._trial, self._apart, self.away, self.awry = trial, apart, away, awry
        self.bytes, self.down, self.sent = 0, 0, []
        for i in range(self._loop.fed.population):
            self.node(i)

    def start_node(self, i):
        if self._apart:
            self._loop = dataclasses.replace(self._trial, data=self._trial.data.only(i)).build()
        return super().start_node(i)

    def __call__(self, messages, *more):
        out = {}
        for i, raw in messages.items():
            ask, parts = decode(ASK, raw)
            self.down += sum(map(len, parts.values()))
            if self.away(ask.what, ask.round, i):
                continue
            answer = super().__call__({i: raw})[i]
            head, parts = decode(ANSWER, answer)
            self.bytes += sum(map(len, parts.values()))
            self.sent.append((ask.what, ask.round, i, head, parts))
            out[i] = self.awry(i, answer)
        return out

    @property
    def both(self):
        return self.bytes + self.down


def deployed(make, nodes, **settings):
    """The end of a run whose clients are nodes (an exchange, or a folder), and its engine."""
    exchange = Nodes(make(), nodes) if isinstance(nodes, Path) else nodes
    engine = FederationEngine(exchange, run="r", **settings)
    return simulated(make, engine), engine


def simulated(make, engine):
    """The end of a run. engine: or the updates, (round, client), that did not come."""
    given = make()
    given.engine = Without(engine) if isinstance(engine, set | frozenset) else engine
    return run(given)


def states_are(nodes, alone):
    """Whether nodes keep the client states of a run, those of the last round that counted."""
    for i, state in alone.memory.items():
        version = nodes[i].states.at(int(state.last), 0)
        assert version is not None and same(version.state, state), i
    return True


def normed(**more):
    """A model with running statistics of two norms, and clients without a batch of one example."""
    return {"model": modules.normed, "data": clusters(sizes=[4, 8, 12] * 2), **more}


def masked(**settings):
    """A function: changes -> a run of masked sums."""
    ring, local = IntegerRing(secure=True), Local(epochs=1, batch=4, lr=0.05)
    of_all = {"algorithm": FedAvg(), "aggregation": ring, "cohort": 5, "local": local, "rounds": 2}
    return lambda **more: experiment(**(of_all | settings | more))
