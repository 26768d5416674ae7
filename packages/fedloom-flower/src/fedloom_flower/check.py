"""`fedloom deploy check`: both halves in this process, against the simulation, and what is sent."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedloom.core.vector import fields
from fedloom.engines.serial import Serial
from fedloom.experiment.experiment import Experiment
from fedloom.server.rounds import Run

from .clients import KEYS_MADE_HERE, Clients
from .engine import FederationEngine
from .folder import Deployment, Folder, evaluation
from .masked_sums import Identity
from .message import ANSWER, Blocks, Head, Measured, Site, decode
from .node import Node
from .sites import experiment_of, must_join, settings_of

ROUNDS = 2  # that are compared


class Checked(NamedTuple):
    """What a check found. difference: the largest between the two server states; bills: whether
    both count the same bytes; up, down: bytes of one client's messages in a round by field;
    header_fields: numbers that an update says of itself; state: bytes that a node keeps.
    """

    rounds: int
    difference: float
    bills: bool
    up: dict[str, int]
    down: dict[str, int]
    header_fields: tuple[str, ...]
    state: int
    refused: list[str]


def check(fed: Folder) -> Checked:
    """Compare. Raises ConfigError, DataError, CompositionError."""
    config = settings_of(fed)
    data = config.data()
    rounds = min(ROUNDS, int(config.values["rounds"]))

    def experiment() -> Experiment:
        return experiment_of(config, data)

    simulation = _run(experiment(), Serial(), rounds)
    with tempfile.TemporaryDirectory(prefix="fedloom-") as folder:
        nodes = Nodes(experiment(), Path(folder), fed.settings().run)
        engine = FederationEngine(nodes, run=fed.settings().run, rehearsal=True)
        deployed = _run(experiment(), engine, rounds)
        state = max((_size(path) for path in Path(folder).iterdir()), default=0)
    one, other = fields(simulation.state.srv), fields(deployed.state.srv)
    gaps = [float((one[k] - other[k]).abs().max()) for k, v in one.items() if _vector(v)]
    bill = deployed.state.ledger
    answers = max(1, sum(row["answered"] for row in deployed.log.history))
    asks = max(1, sum(row["cohort"] for row in deployed.log.history))
    return Checked(
        rounds,
        max(gaps, default=0.0),
        simulation.state.ledger.up == bill.up and simulation.state.ledger.down == bill.down,
        {k: n // answers for k, n in bill.up.items()},
        {k: n // asks for k, n in bill.down.items()},
        nodes.header_fields,
        state,
        [r.why for r in engine.refused],
    )


def other_disclosures(
    settings: Deployment, clients: Clients, table: bool, rounds: int
) -> list[tuple[str, str]]:
    """What else leaves a site: when, and the fields of those messages. table: data are a table."""
    out = []
    if table:
        out.append(("if it is described", "what its people agree to (`fedloom deploy describe`)"))
    if must_join(settings, clients):
        out.append(("when it joins", ", ".join(_own_fields(Site))))
    if settings.standardise:
        out.append(("when it joins", "sums of each feature, and of its squares"))
    if settings.evaluate == "nodes":
        out.append(("when it measures", ", ".join(_own_fields(Measured)) + ": sums over its tests"))
    if notice := evaluation(settings.evaluate, rounds):
        out.append(("evaluation", notice))
    names = [clients.label(i) for i, entry in clients.members.items() if entry.key_made_here]
    if names:
        text = ", ".join(names[:5]) + ", ..." * (len(names) > 5)
        out.append(("keys", f"of {text}: {KEYS_MADE_HERE}"))
    return out


def _own_fields(kind: type[Head]) -> list[str]:
    return [name for name in kind.model_fields if name not in Head.model_fields and name != "kind"]


class Nodes:
    """All clients of an experiment in this process, as an exchange. options: what a client's node
    is given beside its place and key; header_fields: what an update last said of itself.
    """

    def __init__(
        self,
        experiment: Experiment,
        folder: Path,
        run: str,
        options: Callable[[int], Mapping[str, Any]] = lambda i: {"rehearsal": True},
    ) -> None:
        self._loop, self._options = experiment.build(), options
        self._folder, self._run = folder, run
        masked = self._loop.plan.aggregation.masked
        self._keys = Identity.rehearsed(self._loop.fed.population) if masked else []
        self.nodes: dict[int, Node] = {}
        self.header_fields: tuple[str, ...] = ()

    def __call__(self, messages: dict[int, bytes], *_: float) -> dict[int, bytes]:
        answers = {i: self.node(i).answer(raw) for i, raw in messages.items()}
        for raw in answers.values():
            head = decode(ANSWER, raw)[0]
            if not isinstance(head, Blocks):
                fields = head.model_dump(exclude={*Head.model_fields, "kind"})
                self.header_fields = tuple(k for k, v in fields.items() if v is not None)
        return answers

    def node(self, i: int) -> Node:
        """A client's node, which is made when it is asked for the first time."""
        if i not in self.nodes:
            self.nodes[i] = self.start_node(i)
        return self.nodes[i]

    def start_node(self, i: int) -> Node:
        """A client's node, begun anew on its folder."""
        loop, identity = self._loop, self._keys[i] if self._keys else None
        arguments = loop.plan, loop.fed, loop.net, i, self._folder / str(i), self._run
        return Node(*arguments, identity=identity, **self._options(i))


def _run(experiment: Experiment, engine: Serial | FederationEngine, rounds: int) -> Run:
    experiment.engine = engine
    loop = experiment.build()
    try:
        loop.engine.open(loop.plan, loop.fed, loop.net)
        loop.begin()
        loop.until(rounds)
    finally:
        loop.engine.close()
    return loop


def _vector(v: object) -> bool:
    return isinstance(v, Tensor) and v.numel() > 0 and v.dtype != torch.bool


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
