"""The rounds of a run: one state, and one place where it changes."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from torch import nn

from ..core.interrupts import stoppable, undisturbed
from ..core.net import Net
from ..core.ranks import ALONE, Group
from ..core.vector import Rec, Vec, rec
from ..engines.base import Engine, Remote, one_thread_below
from ..engines.client_results import Request, TrainTask
from ..engines.scores import Score
from ..errors import CheckpointError, FedloomError
from ..federation.federation import Federation
from ..federation.sampling import ClientSampler
from ..plan import Plan
from ..storage import world
from ..storage.atomic import remedy
from ..storage.client_state import ClientStates
from ..storage.manifest import BEST
from ..storage.records import write_model
from .arrivals import Arrivals
from .checkpoints import Checkpoints
from .client_selection import Broadcast, Chooser
from .evaluator import Evaluator
from .example_accounts import accounts_of, count_rounds
from .exchanges import bill_of, exchanged
from .row import Row, RunLog, row_of
from .server_step import Step
from .state import Ledger, State

_log = logging.getLogger(__name__)


class NextRound(NamedTuple):
    """A round's next state, its row before the evaluation, and the new states of its clients."""

    state: State
    row: Row
    clients: dict[int, Rec]


@dataclass
class Run:
    """A run, and the step from one round to the next. chooser: says who takes part; memory: the
    client states; group: the ranks of the run: what a clock or a user decides, the first decides;
    state: set by begin() or restore().
    """

    plan: Plan
    fed: Federation
    net: Net
    engine: Engine
    cohorts: ClientSampler
    chooser: Chooser | Arrivals
    memory: ClientStates
    evaluator: Evaluator
    checkpoints: Checkpoints
    log: RunLog
    group: Group = ALONE
    state: State = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        self.step = Step(self.plan, self.fed, self.net)
        self.accounts = accounts_of(self.fed)
        self._finished = time.perf_counter()  # when the last row was
        self.best_model: nn.Module | None = None  # of a run without a folder

    # ------------------------------------------------------------------------------- what is known
    @property
    def headline(self) -> str:
        """The name of the metric for curves and targets."""
        return next(iter(self.fed.metrics), "loss")

    def message(self) -> Broadcast:
        """See Step.message()."""
        return self.step.message(self.state, self.engine)

    def broadcast(self) -> Rec:
        """The next broadcast, before stages and link."""
        return self.step.broadcast(self.state)

    def model(self) -> Vec:
        """The current model (d,), which is evaluated and exported."""
        return self.step.model(self.state)

    def scores(self) -> dict[str, Score]:
        """See Evaluator.scores()."""
        return self.evaluator.scores(self)

    def size_scores(self) -> dict[float, Score]:
        """See Evaluator.size_scores()."""
        return self.evaluator.size_scores(self)

    @undisturbed()  # a library may make another error of a Ctrl-C
    def client_states(self, cohort: list[int]) -> dict[int, Rec]:
        """{client: its state} of those that have one."""
        return self.memory.get(cohort)

    def allowed(self, rounds: int) -> int:
        """How many of so many rounds are run: a budget, a metric or a function may end the run."""
        if self.accounts is not None and self.accounts.over(self.state.trained):
            return min(rounds, self.state.round)
        if self.state.ends is not None:
            rounds = min(rounds, self.state.ends)
        if self.log.selection.over:
            rounds = min(rounds, self.state.round)
        return self.plan.aggregation.allowed(self.state.aggregation, rounds)

    # ------------------------------------------------------------------------------- the beginning
    def begin(self) -> None:
        """Start at round 0: nothing is learnt yet."""
        x, buffers, up, ledger = self.net.init(), self.net.init_buffers(), None, Ledger()
        if self.plan.algorithm.probes:  # all available clients, or the first
            started, cohorts = time.perf_counter(), self.cohorts
            everybody = cohorts.present(0, cohorts.waits(0.0)) or cohorts.example
            task = TrainTask(rec(x=x), buffers, {}, list(everybody), -1)
            results = self.engine.map(Request.PROBE, task)
            up = self.step.probed(results)
            ledger = ledger.after(results.stats, time.perf_counter() - started)
        with one_thread_below(self.net.layout.d):
            srv, curve = self.step.first(x, up), self.evaluator.curve
            state = self.step.initial_state(x, srv, buffers, self.cohorts, curve, ledger)
        if self.evaluator.sizes is not None:
            explored = self.evaluator.sizes.begin(self.step.broadcast(state).x, 0)
            state = state._replace(explored=explored)
        self.state = state

    def restore(self) -> None:
        """Start at the newest checkpoint: see Checkpoints.restore()."""
        self.checkpoints.restore(self)

    # --------------------------------------------------------------------------------- the rounds
    @stoppable()
    def until(self, rounds: int) -> State:
        """Continue until this many rounds are done in all. KeyboardInterrupt (Ctrl-C, SIGTERM,
        SIGHUP) abandons the current round, saves, and is raised again.
        """
        last_save, rounds = world.monotonic(), self.allowed(rounds)
        self._finished = time.perf_counter()
        try:
            if self.log.pending:  # an error came between a round and its evaluation
                self._evaluate(last=self.state.round >= rounds)
                self._tell()
                rounds = self.allowed(rounds)
            while self.state.round < rounds:
                with self._saved_after_an_error():
                    new = self.round(self.state)
                with undisturbed():
                    self._commit(new)
                    if self.accounts is not None and self.accounts.over(self.state.trained):
                        _log.warning("no client has privacy budget left (local.dp): the run ends")
                        rounds = self.state.round
                    self._evaluate(last=self.state.round >= rounds)
                self._tell()
                rounds = self.allowed(rounds)
                if self.checkpoints.due(self, last_save):
                    self.checkpoints.save(self, final=self.checkpoints.saved < 0)
                    last_save = world.monotonic()
        except KeyboardInterrupt:
            with undisturbed():
                try:
                    self._tell()
                finally:  # the caller's callback may fail: a terminal that is gone
                    self.checkpoints.save(self)
            raise
        self.checkpoints.save(self, final=True)
        return self.state

    def repeat(self, logged: Row | None = None) -> Row:
        """Do the next round without evaluating the model -> its row so far. logged: the row in the
        log, with what was measured then; it stands in the history instead.
        """
        new = self.round(self.state)
        with undisturbed():
            self._commit(new)
            history = self.log.history
            self.log.begin(history if logged is None else [*history[:-1], logged], len(history))
        return new.row

    def round(self, state: State) -> NextRound:
        """The round after this state. Nothing changes: the round counts when it is committed."""
        started, sizes = time.perf_counter(), self.evaluator.sizes
        aggregation = self.plan.aggregation
        with one_thread_below(self.net.layout.d):
            outcome = exchanged(self, state, self.step.message(state, self.engine))
            reported = self.step.reported(outcome.learnt.srv, state.round + 1)
        with undisturbed():
            bill = bill_of(self, state, outcome, time.perf_counter() - started)
        new = outcome.learnt._replace(
            round=state.round + 1,
            ledger=bill.paid(state.ledger, disclosed=not aggregation.unkeyed),
            under_way=outcome.participants.under_way,
        )
        if self.accounts is not None:
            new = new._replace(trained=count_rounds(state.trained, [*bill.cohort, *bill.absent]))
        if sizes is not None:
            x, clients = self.step.broadcast(new).x, [s.client for s in bill.cohort]
            new = new._replace(explored=sizes.advance(state.explored, x, new.round, clients))
        row = row_of(self, state, new, outcome, bill, reported)
        return NextRound(new, row, outcome.results.memories)

    def _commit(self, new: NextRound) -> None:
        """The only place where a run takes the state of a round."""
        self.memory.put(new.clients)
        self.state = new.state
        self.memory.drop(self.cohorts.forgotten(new.state.round))
        self.log.history.append(new.row)

    @undisturbed()
    def _evaluate(self, last: bool) -> None:
        """Evaluate the last round, and write its row. last: no round follows."""
        log, folder, state, row = self.log, self.checkpoints.folder, self.state, {}
        with self._saved_after_an_error():
            row = log.history[-1] | self.evaluator.columns(self, last)
            if log.selection.see(row):
                self._keep_best()
            if log.selection.over and not last:
                last = True
                row |= self.evaluator.columns(self, last)
                log.selection.say()
        ledger, curve, name = self._all_time(row), replace(state.curve), f"test_{self.headline}"
        if self.evaluator.settings.due(state.round) and name in row:
            row[f"{name}_ema"] = curve.add(state.round, row[name])
        self.state, log.history[-1] = state._replace(curve=curve, ledger=ledger), row
        if folder is not None:
            folder.append_round(row)
        log.logged = len(log.history)
        for warning in log.monitor.see(row, last=last):
            _log.warning(warning)

    def _all_time(self, row: Row) -> Ledger:
        """The ledger in which a deployed run's seconds are all that passed since the row before:
        nodes that measure, or that the server waits for, cost its people time as well.
        """
        now, ledger = time.perf_counter(), self.state.ledger
        if isinstance(self.engine, Remote) and "seconds" in row:
            passed = round(now - self._finished, 6)
            ledger = replace(ledger, seconds=ledger.seconds + (passed - row["seconds"]))
            row["seconds"] = passed
        self._finished = now
        return ledger

    def _tell(self) -> None:
        """Call the user's functions, and trackers, with the last row. One may end the run with this
        row, or with the next if it was not evaluated.
        """
        with self._saved_after_an_error():
            if self.group.first(lambda: self.log.tell(self.exported)):
                row = self.log.history[-1]
                measured = "test_loss" in row or "validation_loss" in row
                self.state = self.state._replace(ends=self.state.round + (not measured))

    def exported(self) -> nn.Module:
        """The current model as a module on the CPU, in evaluation mode."""
        return self.net.export(self.model(), self.state.buffers).cpu()

    def _keep_best(self) -> None:
        """Keep the current model, in the run's folder or in memory. Raises CheckpointError."""
        folder = self.checkpoints.folder
        if folder is None:
            self.best_model = self.exported()
            return
        try:
            self.group.first(lambda: write_model(folder.path / BEST, self.exported()))
        except OSError as error:
            raise CheckpointError(
                f"the best model, of round {self.state.round}, could not be written: "
                f"{error.strerror or error}; {remedy(error)}, then {folder.resume}"
            ) from error

    @contextlib.contextmanager
    def _saved_after_an_error(self) -> Iterator[None]:
        """What earlier rounds have learnt is not lost. Of several ranks one may fail alone, and
        saving would wait for the others: there only errors that all of them have.
        """
        try:
            yield
        except Exception as error:
            if self.group.size == 1 or isinstance(error, FedloomError):
                self.checkpoints.save(self)
            raise
