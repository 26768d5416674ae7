"""What runs under faults: kinds of federations, and what must hold of each beside of all."""

from __future__ import annotations

import functools
import json
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from fedloom import Local
from fedloom.aggregation import IntegerRing, privacy
from fedloom.algorithms import Scaffold
from fedloom.algorithms.registry import make_algorithm
from fedloom.checks.tiny_federation import End, Trial, experiment, run
from fedloom.compression.codecs import TopK
from fedloom.compression.error_feedback import Residual
from fedloom.compression.link import FieldCodec
from fedloom.federation import private_examples
from fedloom.federation.private_examples import ExamplePrivacy
from fedloom_flower import node as nodes
from fedloom_flower.message import Ask
from fedloom_flower.node import Node
from support.without import Without

CLIENTS, COHORT, ROUNDS = range(6), 5, 4
Row = dict[str, Any]
Blocks = Mapping[str, bytes]
Patch = pytest.MonkeyPatch


class ViolationError(Exception):
    """What must always hold does not."""


class Kind:
    """SCAFFOLD with top-k and its residual: all of it drifts apart at the first wrong version.
    plain: what is otherwise in the simulation; engine: of FederationEngine; billed: the ways on
    which every byte is looked at; leave: whether sites join late and leave for a while; often:
    rounds of a checkpoint, None: one or two.
    """

    settings: ClassVar[dict[str, Any]] = {
        "algorithm": Scaffold(),
        "compress": FieldCodec(TopK(ratio=0.2), Residual()),
        "local": Local(epochs=1, batch=8, lr=0.05),
    }
    plain: ClassVar[dict[str, Any]] = {}
    engine: ClassVar[dict[str, Any]] = {}
    billed: tuple[str, ...] = ("down", "up")
    leave = False
    often: int | None = None

    def make(self, **changes: Any) -> Trial:
        """The run, with the model that everything here shares."""
        trial = self._build(**changes)
        trial._net = self.parts[2]
        return trial

    def _build(self, **changes: Any) -> Trial:
        return experiment(**({"rounds": ROUNDS, "cohort": COHORT} | self.settings | changes))

    @functools.cached_property
    def parts(self) -> tuple[Any, ...]:
        """What all nodes are made of, which they do not change."""
        loop = self._build().build()
        return loop.plan, loop.fed, loop.net

    def node(self, i: int, folder: Path) -> Node:
        return Node(*self.parts, i, folder, "r", **self.of_node(i))

    def of_node(self, i: int) -> dict[str, Any]:
        return {}

    def begin(self, patch: Patch) -> None:
        """Before a run."""

    def check_disk(self, i: int, folder: Path) -> None:
        """Look at a node's disk, after an answer and after a crash."""

    def check_answer(self, i: int, ask: Ask, question: Blocks, answer: Blocks) -> None:
        """Look at what a node was asked and said, which the server may get."""

    def simulate(self, rows: list[Row]) -> End:
        """The run of exactly those who answered."""
        trial, missing, silent = self.make(**self.plain), set(), set()
        for t, row in enumerate(rows):
            missing |= {(t, i) for i in row["asked"] if i not in row["answered"]}
            silent |= {(t, i) for i in row["asked"] if i not in row.get("questioned", row["asked"])}
        draws = {t: len(row["redrawn"]) for t, row in enumerate(rows) if "redrawn" in row}
        trial.engine = Without(missing, silent, draws)
        return run(trial)

    def check(self, rows: list[Row], extra: Row, states: Mapping[int, Path]) -> None:
        """Look at the end: rows of clients.jsonl, a checkpoint's extra, and the nodes' folders."""


class TrainTask(Kind):
    """FedLin: clients are asked before their steps; what that changes of their state waits."""

    settings: ClassVar[dict[str, Any]] = Kind.settings | {
        "algorithm": make_algorithm("fedlin"),
        "cohort": 4,
    }
    billed = ()  # a bill says once what both messages bring


class Changing(Kind):
    """Sites come and go; rounds of too few are drawn again, and a run that ended so goes on."""

    engine: ClassVar[dict[str, Any]] = {"min_updates": 3, "redraws": 1, "max_failed_rounds": 2}
    leave = True


class Private(Kind):
    """local.dp, with a budget for one round more than there are. The noise is a simulation's, so
    that what it gives can be compared, and every round that is computed counts as if it were not.
    """

    settings: ClassVar[dict[str, Any]] = Kind.settings | {
        "local": Local(
            steps=2,
            batch=4,
            lr=0.05,
            dp=ExamplePrivacy(noise=0.5, clip=1.0, max_epsilon=1.0 * ROUNDS + 1),
        )
    }
    engine: ClassVar[dict[str, Any]] = {"rehearsal": True}

    def of_node(self, i: int) -> dict[str, Any]:
        return {"rehearsal": True}

    def begin(self, patch: Patch) -> None:
        """A step costs 0.5; every half round of a client is counted."""
        self.spent = Counter[int]()
        half = nodes.Client.client_half

        def counting_half(client: Any, share: Any, memory: Any, at: Any, *more: Any) -> Any:
            self.spent[at.client] += 1
            return half(client, share, memory, at, *more)

        patch.setattr(nodes.Client, "client_half", counting_half)
        for module in (privacy, private_examples):
            patch.setattr(module, "epsilon", lambda noise, share, delta, steps: 0.5 * steps)

    def check_disk(self, i: int, folder: Path) -> None:
        if (counted := account(folder)) < self.spent[i]:
            raise ViolationError(
                f"client {i} has computed {self.spent[i]} rounds, and its account says {counted}"
            )
        if self.spent[i] > ROUNDS + 1:
            raise ViolationError(f"client {i} has spent more than its budget")

    def check(self, rows: list[Row], extra: Row, states: Mapping[int, Path]) -> None:
        for i in CLIENTS:
            taken = sum(i in row["answered"] for row in rows)
            counted = extra["examples"].get(str(i), 0)
            if not taken <= counted <= account(states[i]):
                raise ViolationError(
                    f"the server took {taken} updates of client {i}, and counts {counted}; its "
                    f"node counts {account(states[i])}"
                )


def account(folder: Path) -> int:
    file = folder / "examples.json"
    return json.loads(file.read_text())["local.dp"]["rounds"] if file.is_file() else 0


class Masked(Kind):
    """Masked sums, and what the messages would tell a server that remembers all of them."""

    settings: ClassVar[dict[str, Any]] = Kind.settings | {
        "aggregation": IntegerRing(secure=True),
        "compress": None,
    }
    plain: ClassVar[dict[str, Any]] = {"aggregation": IntegerRing()}
    engine: ClassVar[dict[str, Any]] = {"redraws": 1}
    billed = ("down",)
    often = 1  # a round is unmasked once
    needed = IntegerRing(secure=True).needed(COHORT)  # all are neighbours

    @functools.cached_property
    def identities(self) -> list[Any]:
        from fedloom_flower.masked_sums import Identity

        return Identity.rehearsed(len(CLIENTS))

    def of_node(self, i: int) -> dict[str, Any]:
        return {"identity": self.identities[i]}

    def begin(self, patch: Patch) -> None:
        from cryptography.hazmat.primitives.asymmetric import ec

        from fedloom_flower import masked_sums

        patch.setattr(masked_sums, "CURVE", ec.SECP256R1())  # P-384 takes ten times as long
        self._now: dict[int, tuple[bytes, list[int]]] = {}  # of a client: its sum, who is there
        self._sums: dict[bytes, set[int]] = defaultdict(set)  # whose masked values came, of a sum
        self._keys: dict[bytes, tuple[int, bytes]] = {}  # a mask key: whose, in which sum
        self._shares: dict[tuple[bytes, int, bool], set[int]] = defaultdict(set)
        self._sum_of: dict[tuple[int, int], bytes] = {}  # (round, client): of which sum

    def check_answer(self, i: int, ask: Ask, question: Blocks, answer: Blocks) -> None:
        block = question.get("masks", b"")
        if ask.what == "keys":
            members = [
                int.from_bytes(block[at : at + 8], "little") for at in range(16, len(block), 8)
            ]
            self._now[i] = block[:16], members
            key = answer["masks"][:32]
            if self._keys.setdefault(key, (i, block[:16])) != (i, block[:16]):
                raise ViolationError(f"client {i} has the same mask key in two sums")
        elif ask.what == "round":
            name, members = self._now[i]
            present = [j for j, flag in zip(members, block, strict=False) if flag]
            self._now[i] = name, present
            self._sums[name].add(i)
            self._members = members
        elif ask.what == "unmask":
            self._unmasked(i, ask.round, block)

    def _unmasked(self, i: int, round: int, flags: bytes) -> None:
        name, present = self._now[i]
        if self._sum_of.setdefault((round, i), name) != name:
            raise ViolationError(f"client {i} gave shares of two sums of round {round + 1}")
        if len(self._sums[name]) < self.needed.clients:
            raise ViolationError(f"shares of a sum of {len(self._sums[name])} clients were given")
        senders = {j for j, flag in zip(self._members, flags, strict=False) if flag}
        for j in present:
            self._shares[name, j, j in senders].add(i)
            if all(
                len(self._shares[name, j, seed]) >= self.needed.shares for seed in (True, False)
            ):
                raise ViolationError(f"both secrets of client {j} are known")


KINDS: dict[str, Kind] = {
    "updates": Kind(),
    "masked": Masked(),
    "private": Private(),
    "asked": TrainTask(),
    "changing": Changing(),
}
