"""The rounds: cohort, the engine's work, the server's step, and the row of each."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..aggregation import Aggregation, IntegerRing
from ..core.interrupts import stoppable, undisturbed
from ..core.net import Net
from ..core.ranks import ALONE, Group
from ..core.vector import Rec, Vec, rec
from ..engines.base import Engine, Remote
from ..engines.client_results import ClientCost, Request, TrainTask
from ..engines.evaluation import Score
from ..engines.guard import at_server
from ..errors import FedloomError
from ..federation.federation import Federation
from ..federation.sampling import Cohorts
from ..plan import Plan
from ..storage import world
from ..storage.client_state import ClientStates
from .aggregation_columns import aggregated, published
from .arrivals import Arrivals
from .billing import all_billed, simulated_seconds, together, wasted, with_masks
from .callbacks import RunLog, tell
from .checkpoints import Checkpoints
from .client_selection import Broadcast, Chooser
from .evaluation import Curve
from .evaluator import Evaluator
from .example_accounts import accounts_of
from .exchanges import RoundOutcome, exchanged
from .ledger import Ledger, bytes_of, own_columns, row_of, squares
from .server_step import ServerState, Step

_log = logging.getLogger(__name__)
Row = dict[str, Any]


@dataclass
class Loop:
    """A run, and the step from one round to the next. chooser: says who takes part; group: the
    ranks of the run: what a clock or a user decides, the first decides; state: of the server, set
    by begin() or restore().
    """

    plan: Plan
    fed: Federation
    net: Net
    engine: Engine
    cohorts: Cohorts
    chooser: Chooser | Arrivals
    memory: ClientStates
    evaluator: Evaluator
    checkpoints: Checkpoints
    log: RunLog
    group: Group = ALONE
    state: ServerState = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        self.step = Step(self.plan, self.fed, self.net)
        self._finished = time.perf_counter()  # when the last row was
        self.accounts = accounts_of(self.fed)

    # ------------------------------------------------------------------------------- what is known
    @property
    def aggregation(self) -> Aggregation:
        """The rule of the run's plan."""
        return self.step.aggregation

    @property
    def headline(self) -> str:
        """The name of the metric for curves and targets."""
        return next(iter(self.fed.metrics), "loss")

    @property
    def round(self) -> int:
        """Rounds that are done."""
        return self.log.round

    @property
    def history(self) -> list[Row]:
        """Their rows."""
        return self.log.history

    @property
    def ledger(self) -> Ledger:
        """What they cost."""
        return self.log.ledger

    @property
    def curve(self) -> Curve:
        """The headline metric so far."""
        return self.evaluator.curve

    @property
    def srv(self) -> Rec:
        """The method's record at the server."""
        return self.state.srv

    @property
    def buffers(self) -> Vec:
        """The model's buffers at the server."""
        return self.state.buffers

    @property
    def at_link(self) -> Rec:
        """The server's state of the link."""
        return self.state.stages.link

    @property
    def at_down(self) -> Rec:
        """The server's state of the downlink."""
        return self.state.stages.down

    def message(self) -> tuple[Rec, Rec]:
        """See Step.message()."""
        return self.step.message(self.state, self.round, self.engine)

    def broadcast(self) -> Rec:
        """The next broadcast, before stages and link."""
        return self._asked("broadcast", self.srv)

    def model(self) -> Vec:
        """The current model, which is evaluated and exported."""
        x: Vec = self._asked("model", self.srv)
        return x

    def scores(self) -> dict[str, Score]:
        """See Evaluator.scores()."""
        return self.evaluator.scores(self)

    def size_scores(self) -> dict[float, Score]:
        """See Evaluator.size_scores()."""
        return self.evaluator.size_scores(self)

    def _asked(self, name: str, *arguments: Any) -> Any:
        """Call a server-side method of the algorithm, and name the round in its errors."""
        return at_server(self.plan.algorithm, self.fed.seed, name, self.round, *arguments)

    def allowed(self, rounds: int) -> int:
        """How many of so many rounds are run: a privacy budget may end the run before."""
        if self.accounts is not None and self.accounts.over:
            return min(rounds, self.round)
        return self.aggregation.allowed(self.state.aggregation, rounds)

    # ------------------------------------------------------------------------------- the beginning
    def begin(self) -> None:
        """Start at round 0: nothing is learnt yet."""
        x, buffers = self.net.init(), self.net.init_buffers()
        up = self._probe(x, buffers) if self.plan.algorithm.probes else None
        srv = self._asked("server_init", x, up)
        self.state = self.step.begun(x, srv, buffers, self.cohorts)
        if self.evaluator.sizes is not None:
            self.evaluator.sizes.begin(self.broadcast().x, 0)

    def restore(self) -> None:
        """Start at the newest checkpoint: see Checkpoints.restore()."""
        self.checkpoints.restore(self)

    def _probe(self, x: Vec, buffers: Vec) -> Rec:
        """The mean of the exchange before round 1 with all available clients (or the first)."""
        started, cohorts = time.perf_counter(), self.cohorts
        everybody = cohorts.present(0, cohorts.waits(0.0)) or cohorts.example
        asked = TrainTask(rec(x=x), buffers, {}, list(everybody), -1)
        results = self.engine.map(Request.PROBE, asked)
        up = self.step.probed(results)
        self.ledger.add(results.stats, time.perf_counter() - started)
        return up

    # --------------------------------------------------------------------------------- the rounds
    @stoppable()
    def run(self, rounds: int) -> None:
        """Continue until this many rounds are done in all. KeyboardInterrupt (Ctrl-C, SIGTERM,
        SIGHUP) abandons the current round, saves, and is raised again.
        """
        last_save, rounds = world.monotonic(), self.allowed(rounds)
        self._finished = time.perf_counter()
        try:
            while self.round < rounds:
                self._round(rounds)
                if self.accounts is not None and self.accounts.over:
                    _log.warning("no client has privacy budget left (local.dp): the run ends")
                    rounds = self.round
                if self.checkpoints.due(self, last_save):
                    self._finish_row(rounds)
                    self.checkpoints.save(self, final=self.checkpoints.saved < 0)
                    last_save = world.monotonic()
            self._finish_row(rounds)
        except KeyboardInterrupt:
            with undisturbed():
                try:
                    self._finish_row(rounds)
                finally:  # the caller's callback may fail: a terminal that is gone
                    self.checkpoints.save(self)
            raise
        self.checkpoints.save(self, final=True)

    def repeat(self, logged: Row | None = None) -> Row:
        """Do the next round without evaluating the model -> its row so far. logged: the row in the
        log, with what was measured then; it stands in the history instead.
        """
        self._round(self.round + 1)
        row = self.history[-1]
        self.history[-1] = row if logged is None else logged
        self.log.logged = len(self.history)
        return row

    def _round(self, rounds: int) -> None:
        self._finish_row(rounds)
        started = time.perf_counter()
        with self._saved_after_an_error():
            msg, states = self.message()
            told = Broadcast(msg, self.buffers, states)
            done = exchanged(self.chooser, self.step, told, self, self._states)
            own = self.step.reported(done.learnt.srv, self.round + 1)
        stats = [done.chosen.candidates, done.answers, done.results.stats]
        rule = self.aggregation
        if isinstance(rule, IntegerRing) and rule.masked and not isinstance(self.engine, Remote):
            stats[-1] = with_masks(stats[-1], rule)
        with undisturbed():
            bills = all_billed(done.chosen, stats, states.down, self.memory, self.round)
            self._commit(done, started, *bills, own)

    @undisturbed()  # a library may make another error of a Ctrl-C
    def _states(self, cohort: list[int]) -> dict[int, Rec]:
        return self.memory.get(cohort)

    @contextlib.contextmanager
    def _saved_after_an_error(self) -> Iterator[None]:
        """What earlier rounds have learnt is not lost. Of several ranks one may fail alone, and
        saving would wait for the others: there only errors that all of them have.
        """
        try:
            yield
        except Exception as error:
            if self.group.size == 1 or isinstance(error, FedloomError):
                self.checkpoints.save(self, pending=bool(self.log.pending))
            raise

    def _commit(
        self,
        done: RoundOutcome,
        started: float,
        exchanges: list[list[ClientCost]],
        absent: list[ClientCost],
        own: Row,
    ) -> None:
        """The only place where the state of the run changes. exchanges: what candidates, answers
        and client updates cost; absent: the same of who gave none; own: what the method reports.
        """
        t, chosen, rule, sizes = self.round, done.chosen, self.aggregation, self.evaluator.sizes
        (stats, others), told = together(exchanges), not rule.unkeyed  # a bill tells who was there
        few = {} if done.needed is None else {"needed": done.needed}
        if not any(s.answered for s in stats) and not rule.private and not few:
            _log.warning("round %d: no client update arrived; the model stays as it was", t + 1)
        self.state, self.chooser.under_way = done.learnt, chosen.under_way
        self.memory.put(done.results.memories)
        sums = self.ledger
        seconds = time.perf_counter() - started if told else 0.0  # who was slow was there
        explained, names = bool(few) or isinstance(self.engine, Remote), self.fed.data.client_names
        private = {}
        if self.accounts is not None:
            self.accounts.add([*stats, *absent])
            private = self.accounts.columns()
        before = dict(sums.down), dict(sums.up)
        simulated = simulated_seconds(self.fed, chosen, exchanges) if told else None
        billed = (stats, [*others, *absent]) if told else ([], [])
        sums.add(billed[0], seconds, simulated or 0.0, billed[1])
        self.log.round += 1
        self.memory.drop(self.cohorts.forgotten(self.round))
        row = {
            "round": self.round,
            "lr": self.fed.local.rate(t, 0),
            **row_of(stats, others, t + 1, chosen.named, names, explained),
            **few,
            **bytes_of("down", sums.down, before[0]),
            **bytes_of("up", sums.up, before[1]),
            "seconds": round(seconds, 6),
            **({} if simulated is None else {"simulated_seconds": simulated}),
            **squares(stats),
            **wasted(chosen.columns, absent),
            **private,
            **aggregated(rule, self.state.aggregation, t, stats, self.fed),
        }
        self.history.append(row := published(rule, row))
        if sizes is not None:
            sizes.moved(self.broadcast().x, self.round, [s.client for s in stats])
            row.update(sizes.explored())
        row.update(own_columns(own, row, "report()"))

    def _finish_row(self, rounds: int) -> None:
        """Evaluate and log the last round, if an interruption came before that."""
        log, folder, last = self.log, self.checkpoints.folder, self.round >= rounds
        if not log.pending:
            return
        due, row = self.evaluator.settings.due(self.round), self.history[-1]
        with self._saved_after_an_error():
            scores = self.scores() if due or last else {}
            found = self.evaluator.columns(self, scores, last)
        with undisturbed():
            row.update(found)
            self._count_all_time(row)
            name = f"test_{self.headline}"
            if due and name in row:
                spent = self.ledger.traffic, self.ledger.seconds
                row[f"{name}_ema"] = self.curve.add(self.round, row[name], *spent)
            if folder is not None:
                folder.append_round(row)
            log.logged = len(self.history)
            for said in log.watch.see(row, last=last):
                _log.warning(said)
        evaluated, others = log.on_evaluation if scores else [], [*log.on_round, *log.watching]
        model = lambda: self.net.export(self.model(), self.buffers).cpu()
        with self._saved_after_an_error():
            self.group.first(lambda: tell(evaluated, others, row, model))

    def _count_all_time(self, row: Row) -> None:
        """A deployed run's seconds are all that passed since the row before: nodes that measure, or
        that the server waits for, cost its people time as well.
        """
        now = time.perf_counter()
        if isinstance(self.engine, Remote) and "seconds" in row:
            passed = round(now - self._finished, 6)
            self.ledger.seconds += passed - row["seconds"]
            row["seconds"] = passed
        self._finished = now
