"""A round of a run once more: who took part, what a client did in it, and who spoilt it.

The run goes on in memory from its newest checkpoint before the round, and its folder stays as it
is. A round is a function of the settings, so it has the same bits as then.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core.vector import Rec, Vec, tree
from ..engines import Auto, Vectorised, Workers
from ..engines.base import Engine, one_thread
from ..engines.client_results import RangeResult
from ..engines.extra_exchanges import NO_ANSWERS
from ..engines.summation import push, root, spread
from ..engines.traced import ClientTrace, traced
from ..errors import CheckpointError, ConfigError, FedloomError
from ..server.exchanges import Training
from ..server.rounds import Run
from ..server.server_step import Step
from ..server.state import State
from ..storage.identity import bits_of
from ..storage.manifest import deployed
from ..storage.run_directory import RunDirectory
from .provenance import engine_text

Row = dict[str, Any]
FAR = 3.0  # times the median: such an update outweighs the others
_CLOCK = "seconds"  # the column of a row that no round has twice


class ClientBlame(NamedTuple):
    """What a client did to a round. norm: of its update as the server read it; ratio: that over the
    median of all; cosine: with the mean of the others'; loss: of the model of the round without it,
    None if nothing tells; why: why it sent nothing, or "".
    """

    client: int
    examples: int
    norm: float
    ratio: float
    cosine: float
    loss: float | None
    why: str


def check_repeatable(folder: RunDirectory) -> None:
    """Raise CheckpointError for a run whose rounds cannot be computed here."""
    folder.open()
    if deployed(folder.path):
        raise CheckpointError(
            f"'{folder.path}' is a federation's run: the data of its clients are at the nodes, so "
            "that nobody can repeat its rounds here"
        )


@contextmanager
def replayed(run: Run, round: int, rounds: int) -> Iterator[Replay]:
    """A run before a round (from 1) of all its rounds, with its engine open inside. run: at its
    folder, before its first round. Raises ConfigError for a round that the run has not reached.
    """
    folder = run.checkpoints.folder
    assert folder is not None
    if run.plan.aggregation.unkeyed:
        raise CheckpointError(
            f"'{folder.path}': its noise is drawn from no seed, so that nobody can take it off; "
            "its rounds cannot be repeated"
        )
    run.engine.open(run.plan, run.fed, run.net)
    try:
        rows = run.checkpoints.before(run, round)
        count = len(rows)
        if not 1 <= round <= min(count + 1, max(rounds, count)):
            more = f", and may have failed in round {count + 1}" if count < rounds else ""
            raise ConfigError(
                f"round {round} of '{folder.path}' has not been run; it has {count} rounds{more}"
            )
        yield Replay(run, round, rows)
    finally:
        run.engine.close()


class Replay:
    """A round of a run. began: rounds that were done at the beginning; rows: of the log; row: of
    the round, as it came out here, and error: why there is none; unlike: (the first round, its
    columns) that differ from the log. before, after: the server's model (d,).
    """

    def __init__(self, run: Run, round: int, rows: list[Row]) -> None:
        self.run, self.round, self.rows, self.began = run, round, rows, run.state.round
        self.unlike: tuple[int, list[str]] | None = None
        self.row: Row | None = None
        self.error = ""

    @property
    def seconds(self) -> float:
        """How long these rounds took in the run."""
        return math.fsum(row.get(_CLOCK, 0.0) for row in self.rows[self.began : self.round])

    @property
    def logged(self) -> Row | None:
        """The round's row in the log; None if it failed there."""
        return self.rows[self.round - 1] if self.round <= len(self.rows) else None

    def go(self) -> None:
        """Repeat the rounds up to this one, and this one. Raises FedloomError if it fails before
        its clients train.
        """
        run = self.run
        while run.state.round < self.round - 1:
            logged = self.rows[run.state.round]
            self._compare(run.repeat(logged), logged)
        self.before = self.after = run.model().clone()
        run.step = self._step = _RecordingStep(run)
        try:
            self.row = run.repeat(self.logged)
        except FedloomError as error:
            if not self._step.training.contacted:
                raise
            self.error = str(error)
            return
        self.after = run.model()
        if self.logged is not None:
            self._compare(self.row, self.logged)

    def _compare(self, row: Row, logged: Row) -> None:
        other = [k for k in row if k != _CLOCK and json.dumps(row[k]) != json.dumps(logged.get(k))]
        if other and self.unlike is None:
            self.unlike = row["round"], other

    # ------------------------------------------------------------------------------- its clients
    @property
    def cohort(self) -> list[int]:
        """The clients that trained."""
        return sorted(i for part in self._step.training.parts for i in part.cohort)

    def name(self, i: int) -> str:
        """A client's name, or its number."""
        names = self.run.fed.data.client_names
        return names[i] if names else str(i)

    def number(self, name: int | str) -> int:
        """The client of a number, or of a name. Raises ConfigError if it did not train in this
        round.
        """
        numbers = {self.name(i): i for i in self.cohort}
        client = numbers.get(str(name), int(name) if str(name).isdecimal() else -1)
        if client not in self.cohort:
            trained = ", ".join(numbers) or "nobody"
            raise ConfigError(
                f"client {name} did not train in round {self.round}; those that did: {trained}"
            )
        return client

    def client(self, name: int | str, step: int | None = None) -> ClientTrace:
        """A client's round, with the run's bits. step: whose points are kept, from 0. Raises
        ConfigError if it did not train in this round.
        """
        engine = self.run.engine
        kind = bits_of(engine_text(engine)).partition(":")[0]
        chunk = None
        if kind in ("vectorised", "streams") and isinstance(engine, Auto | Vectorised | Workers):
            chunk = engine.chunk
        return self._traced(self.number(name), chunk, step, kind == "streams")

    def _traced(self, i: int, *more: Any) -> ClientTrace:
        run = self.run
        part = next(part for part in self._step.training.parts if i in part.cohort)
        with one_thread(run.fed.local.precision):
            return traced(run.plan, run.fed, run.net, part, i, *more)

    def cosine(self, trace: ClientTrace) -> float:
        """Between a client's update and the move of the model."""
        return _cosine(self._delta(trace), (self.after - self.before).double())

    def _delta(self, trace: ClientTrace) -> Vec:
        """A client's move as the server read it, (d,), float64; zeros if it sent none."""
        if trace.sent is None or trace.sent.why:
            return torch.zeros_like(self.before, dtype=torch.float64)
        whole: Vec = spread(trace.sent.up.delta, trace.download.wire)
        return whole.double()

    # ------------------------------------------------------------------------------ who spoilt it
    def blame(self) -> list[ClientBlame]:
        """The clients of the round, each computed alone: first those that failed, then those with
        far longer updates than the others, then by the loss that the model would have without them.
        """
        traces = {i: self._traced(i) for i in self.cohort}
        leaves = {i: leaf for i, t in traces.items() if (leaf := _leaf(t)) is not None}
        deltas = {i: self._delta(t) for i, t in traces.items()}
        whole = torch.zeros_like(self.before, dtype=torch.float64)
        for delta in deltas.values():
            whole += delta
        norms = {i: float(delta.norm()) for i, delta in deltas.items()}
        middle = statistics.median(norms.values()) if norms else 0.0
        results = []
        for i, t in traces.items():
            others = {j: leaf for j, leaf in leaves.items() if j != i}
            why = t.error or (t.sent.why if t.sent else "")
            close = _cosine(deltas[i], whole - deltas[i])
            ratio, examples = norms[i] / (middle or 1.0), int(self.run.fed.data.sizes[i])
            loss = self._loss(others, traces)
            results.append(ClientBlame(i, examples, norms[i], ratio, close, loss, why))
        worst = lambda b: (not b.why, -b.norm if b.ratio > FAR else 0.0, _or_last(b.loss), -b.norm)
        return sorted(results, key=worst)

    def loss(self) -> float | None:
        """The loss of the model after the round; None if it failed, or nothing measures it."""
        return None if self.error else self._measured()

    def _loss(self, leaves: Mapping[int, Rec], traces: Mapping[int, ClientTrace]) -> float | None:
        """The loss if these clients alone had taken part."""
        stack: list[Any] = []
        for index, leaf in enumerate(leaves.values()):  # the sums write into the first ones
            push(stack, 0, index, tree(lambda v: v.clone() if isinstance(v, Tensor) else v, leaf))
        results = [t.result for i, t in traces.items() if i in leaves and t.result]
        stats = [cost for result in results for cost in result.stats]
        run, step, now = self.run, self._step, self.run.state
        result = RangeResult(stack, {}, stats)
        run.state = step.next_state(step.now, result, step.training.answers.mean)
        try:
            return self._measured()
        finally:
            run.state = now

    def _measured(self) -> float | None:
        """The loss of the model on the test set, or else on the validation split."""
        scores = self.run.scores()
        score = scores.get("test") or scores.get("validation")
        return None if score is None else score.loss / score.examples


class _RecordingStep(Step):
    """Keeps what the step of a round is made of, before anybody trains."""

    def __init__(self, run: Run) -> None:
        super().__init__(run.plan, run.fed, run.net)
        self.training = Training([], NO_ANSWERS, 0)

    def checked(self, engine: Engine, training: Training, now: State) -> tuple[RangeResult, State]:
        self.training, self.now = training, now
        return super().checked(engine, training, now)


def _cosine(a: Vec, b: Vec) -> float:
    """The cosine between two vectors; nan if one is zero or not finite."""
    return float(a @ b / (a.norm() * b.norm()))


def _leaf(trace: ClientTrace) -> Rec:
    """A client's part of the sums; None if it sent nothing."""
    return None if trace.result is None else root(trace.result.nodes)


def _or_last(loss: float | None) -> float:
    return math.inf if loss is None or math.isnan(loss) else loss
