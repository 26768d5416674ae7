"""The rounds: cohort, the engine's work, the server's step, evaluation, checkpoints."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import Tensor

from ..compression import downlink
from ..core.interrupts import stoppable, undisturbed
from ..core.net import Net
from ..core.ranks import ALONE, Group
from ..core.vector import Rec, Vec, rec
from ..engines.author_checks import at_server
from ..engines.base import Engine, Remote, one_thread
from ..engines.batch_statistics import evaluate_normed, keeps_no_statistics
from ..engines.client_round import Stats
from ..engines.evaluation import Score, add
from ..errors import CheckpointError, FedloomError
from ..federation.choice import ClientChoice
from ..federation.clock import Clock
from ..federation.federation import Federation
from ..federation.sampling import Cohorts
from ..plan import Plan
from ..storage.client_state import ClientStates
from ..storage.run_directory import Checkpoint, RunDirectory, State
from .aggregated import aggregated, check_spent, published
from .arrivals import as_json, chooser, restored
from .billing import all_billed, simulated_seconds, together, wasted
from .callbacks import Measuring, beside, columns, tell
from .choosing import Chosen, Told, UnderWay
from .client_evaluation import ClientTests, PerClient, untested
from .divergence import Watch
from .durations import Durations
from .evaluation import Curve, Evaluation, held_out
from .exchanges import exchanged
from .ledger import Ledger, bytes_of, own_columns, row_of, squares
from .saved import continued, unwritten, whole_record
from .server_step import Learnt, Step
from .submodel_evaluation import Sizes

_log = logging.getLogger(__name__)
Row = dict[str, Any]
Saving = Checkpoint  # what it was called in fedloom 0.1


@dataclass
class Loop:
    """The changing state of a run, and the step from one round to the next."""

    plan: Plan
    fed: Federation
    net: Net
    engine: Engine
    cohorts: Cohorts
    evaluation: Evaluation
    memory: ClientStates
    curve: Curve
    folder: RunDirectory | None = None
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    on_round: list[Callable[[Row], None]] = field(default_factory=list)
    on_evaluation: list[Callable[..., object]] = field(default_factory=list)
    watching: list[Callable[[Row], None]] = field(default_factory=list)  # may hear it a round later
    sizes: Sizes | None = None  # of sub-models
    choose: ClientChoice | None = None  # None: cohorts are drawn
    clock: Clock | None = None  # None: rounds
    measures: list[Measuring] = field(default_factory=list)
    group: Group = ALONE  # the ranks of the run: what a clock or a user decides, the first decides

    round: int = 0  # rounds that are done
    history: list[Row] = field(default_factory=list)
    logged: int = 0  # rows of the history that are evaluated and written
    ledger: Ledger = field(default_factory=Ledger)
    srv: Rec = None
    at_stages: Rec = None  # the server's states of the stages, by name
    at_down: Rec = None  # and of the downlink
    gathered: Rec = None  # and of the aggregation
    buffers: Vec = None  # type: ignore[assignment]  # set by begin() or restore()
    under_way: UnderWay | None = None  # of an asynchronous clock
    saved: int = -1
    at_nodes: dict[int, Score] = field(default_factory=dict)  # what nodes measured last
    _tested: tuple[Rec, Score] | None = None  # the server state that was tested last

    def __post_init__(self) -> None:
        parts = self.plan, self.fed, self.net
        self._names = self.fed.data.client_names
        said = untested(self.plan, self.fed)
        self.watch, self._step = Watch(self.fed, said, self.plan.objective), Step(*parts)
        self._clients = ClientTests(*parts, self.evaluation.statistics)
        found = self.group, self.cohorts, self.fed, Durations(*parts)
        self._chooser = chooser(self.clock, self.choose, *found)
        drawn = self.cohorts.expected, self.cohorts.share
        self.gathered = self.plan.aggregation.init(self.net.init(), *drawn)
        self._held_out = held_out(self.fed.data)

    @property
    def headline(self) -> str:
        """The name of the metric for curves and targets."""
        return next(iter(self.fed.metrics), "loss")

    def begin(self) -> None:
        """Start at round 0: nothing is learnt yet."""
        x, self.buffers = self.net.init(), self.net.init_buffers()
        self.at_stages = self._step.begun(x)
        up = self._probe(x) if self.plan.algorithm.probes else None
        self.srv = self._asked("server_init", x, up)
        self.at_down = rec()
        if codecs := self.plan.link.codes_down:
            msg = self._asked("broadcast", self.srv)
            self.at_down = downlink.first_state(codecs, msg, self.net.layout, self.fed.seed)
        if self.sizes is not None:
            self.sizes.begin(self._sent(), 0)

    @property
    def learnt(self) -> Learnt:
        """What the next round may change at the server."""
        return Learnt(self.srv, self.at_stages, self.buffers, self.gathered)

    @property
    def at_link(self) -> Rec:
        """The server's state of the link."""
        return self.at_stages.link

    def message(self) -> tuple[Rec, Rec]:
        """The next broadcast as its clients read it, and the server's new downlink state."""
        msg = self._asked("broadcast", self.srv)
        layout = self.net.layout
        place, far = (layout, self.fed.seed, self.round), isinstance(self.engine, Remote)
        read, state, packet = self.plan.link.announce(msg, self.at_down, *place, packed=far)
        if isinstance(self.engine, Remote):
            self.engine.announced(packet, self.round)
        return self.plan.aggregation.tell(read, self.gathered), state

    def _sent(self) -> Vec:
        """The model that the next cohort receives."""
        sent: Vec = self._asked("broadcast", self.srv).x
        return sent

    def model(self) -> Vec:
        """The current model, which is evaluated and exported."""
        x: Vec = self._asked("model", self.srv)
        return x

    def _asked(self, name: str, *arguments: Any) -> Any:
        """Call a server-side method of the algorithm, and name the round in its errors."""
        return at_server(self.plan.algorithm, self.fed.seed, name, self.round, *arguments)

    def _probe(self, x: Vec) -> Rec:
        """The mean of the exchange before round 1 with all available clients (or the first)."""
        started, cohorts = time.perf_counter(), self.cohorts
        everybody = cohorts.present(0, cohorts.waits(0.0)) or cohorts.example
        results = self.engine.probe(x, self.buffers, everybody)
        up = self._step.probed(self.engine, x, self.buffers, results)
        self.ledger.add(results.stats, time.perf_counter() - started)
        return up

    # --------------------------------------------------------------------------------- the rounds
    @stoppable()
    def run(self, rounds: int) -> None:
        """Continue until this many rounds are done in all. KeyboardInterrupt (Ctrl-C, SIGTERM,
        SIGHUP) abandons the current round, saves, and is raised again.
        """
        last_save, rule = time.monotonic(), self.plan.aggregation
        rounds = rule.allowed(self.gathered, rounds)  # a privacy budget may end the run before
        try:
            while self.round < rounds:
                if not beside(self):
                    self._finish_row(rounds)
                started = time.perf_counter()
                with self._saved_after_an_error():
                    msg, at_down = self.message()
                    told = Told(msg, self.buffers, at_down)
                    done = exchanged(self._chooser, self._step, told, self, self._states)
                    own = self._step.reported(done.learnt.srv, self.round + 1)
                paused = time.perf_counter()
                self._finish_row(rounds)  # what was evaluated beside
                started += time.perf_counter() - paused
                stats = [done.chosen.candidates, done.answers, done.results.stats]
                with undisturbed():
                    bills = all_billed(done.chosen, stats, at_down, self.memory, self.round)
                    came = done.results.memories, done.learnt
                    self._commit(done.chosen, *came, started, *bills, own)
                    self.at_down = at_down
                if self.folder and self.checkpoint.due(self.round, last_save, self.group):
                    self._finish_row(rounds)
                    self.save()
                    last_save = time.monotonic()
            self._finish_row(rounds)
        except KeyboardInterrupt:
            with undisturbed():
                try:
                    self._finish_row(rounds)
                finally:  # the caller's callback may fail: a terminal that is gone
                    self.save()
            raise
        self.save(final=True)

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
                self.save(pending=len(self.history) > self.logged)
            raise

    def _commit(
        self,
        chosen: Chosen,
        memories: dict[int, Rec],
        learnt: Learnt,
        started: float,
        exchanges: list[list[Stats]],
        absent: list[Stats],
        own: Row,
    ) -> None:
        """The only place where the state of the run changes. exchanges: what candidates, answers
        and client updates cost; absent: the same of who gave none; own: what the method reports.
        """
        t, local, rule = self.round, self.fed.local, self.plan.aggregation
        (stats, others), told = together(exchanges), not rule.unkeyed  # a bill tells who was there
        if not any(s.answered for s in stats) and not rule.private:
            _log.warning("round %d: no client update arrived; the model stays as it was", t + 1)
        self.srv, self.at_stages, self.buffers, self.gathered = learnt
        self.under_way = chosen.under_way
        self.memory.put(memories)
        sums = self.ledger
        seconds = time.perf_counter() - started if told else 0.0  # who was slow was there
        explained = isinstance(self.engine, Remote)
        before = dict(sums.down), dict(sums.up)
        simulated = simulated_seconds(self.fed, chosen, exchanges) if told else None
        billed = (stats, [*others, *absent]) if told else ([], [])
        sums.add(billed[0], seconds, simulated or 0.0, billed[1])
        self.round += 1
        self.memory.drop(self.cohorts.forgotten(self.round))
        row = {
            "round": self.round,
            "lr": local.rate(t, 0),
            **row_of(stats, others, t + 1, chosen.named, self._names, explained),
            **bytes_of("down", sums.down, before[0]),
            **bytes_of("up", sums.up, before[1]),
            "seconds": round(seconds, 6),
            **({} if simulated is None else {"simulated_seconds": simulated}),
            **squares(stats),
            **wasted(chosen.columns, absent),
            **aggregated(rule, self.gathered, t, stats, self.fed),
        }
        self.history.append(published(rule, row))
        if self.sizes is not None:
            self.sizes.moved(self._sent(), self.round, [s.client for s in stats])
            self.history[-1].update(self.sizes.explored())
        self.history[-1].update(own_columns(own, self.history[-1], "report()"))

    def _finish_row(self, rounds: int) -> None:
        """Evaluate and log the last round, if an interruption came before that."""
        if len(self.history) == self.logged:
            return
        due, row = self.evaluation.due(self.round), self.history[-1]
        with self._saved_after_an_error():
            scores = self.scores() if due or self.round >= rounds else {}
            found = columns(self, scores, self.round >= rounds)
        with undisturbed():
            row.update(found)
            name = f"test_{self.headline}"
            if due and name in row:
                spent = self.ledger.traffic, self.ledger.seconds
                row[f"{name}_ema"] = self.curve.add(self.round, row[name], *spent)
            if self.folder is not None:
                self.folder.append_round(row)
            self.logged = len(self.history)
            for said in self.watch.see(row, last=self.round >= rounds):
                _log.warning(said)
        evaluated = self.on_evaluation if scores else []
        model = lambda: self.net.export(self.model(), self.buffers).cpu()
        with self._saved_after_an_error():
            self.group.first(lambda: tell(evaluated, [*self.on_round, *self.watching], row, model))

    def client_values(self, score: Score) -> PerClient:
        """Every metric per client, with the model that it would use itself. score: of the common
        model on the test set.
        """
        told = lambda: (self.model(), self._asked("broadcast", self.srv), self.buffers)
        found = self.memory, self.group, told, self.round, self.at_nodes
        return self._clients.values(score, *found)

    def scores(self) -> dict[str, Score]:
        """The current model on the test set and on the validation split."""
        data = self.fed.data
        out = {} if self._held_out is None else {"validation": self.score(*self._held_out)}
        if isinstance(self.engine, Remote):
            self.at_nodes = self.engine.measured(self.model(), self.buffers, self.round)
            if self.at_nodes:
                return {"test": add([*self.at_nodes.values()]), **out}
        return out if data.test_inputs is None else {"test": self.tested(), **out}

    def tested(self) -> Score:
        """The current model on the common test set, measured once after each round."""
        if self._tested is None or self._tested[0] is not self.srv:
            data = self.fed.data
            assert data.test_inputs is not None and data.test_targets is not None
            self._tested = self.srv, self.score(data.test_inputs, data.test_targets, own=True)
        return self._tested[1]

    def score(self, inputs: Tensor, targets: Tensor, own: bool = False) -> Score:
        """The current model on data; own: on the common test set."""
        x, on = self.model(), (inputs, targets)
        if not keeps_no_statistics(self.net.module):
            return add(self.engine.scores(x, self.buffers, *on))
        with one_thread():
            self.net.load_buffers(self.buffers)
            by = (self.evaluation.statistics, own)
            return evaluate_normed(self.plan, self.fed, self.net, x, on, *by)

    def size_scores(self, whole: Score | None = None) -> dict[float, Score]:
        """The current sub-models on the test set, by capacity; nothing without sub-models."""
        if self.sizes is None:
            return {}
        return self.sizes.scores(self.engine, self.model(), self.buffers, self.round, whole)

    # -------------------------------------------------------------------------------- checkpoints
    @undisturbed()
    def save(self, final: bool = False, pending: bool = False) -> None:
        """Write a checkpoint. A full disk is a warning, but an error at the end. pending: also if
        the last row is not evaluated and written; the checkpoint keeps it, and a resumed run does.
        """
        unlogged = self.history[self.logged :]
        if self.folder is None or self.round == self.saved or (unlogged and not pending):
            return
        extra: Row = {"ledger": self.ledger.as_dict(), "curve": asdict(self.curve)}
        extra["population"] = self.fed.population
        if self.under_way is not None:
            extra["clock"] = as_json(self.under_way)
        if unlogged:
            extra["unlogged"] = unlogged
        try:
            record = whole_record(self.learnt, self.at_down, self.sizes, self.under_way)
            state = State(self.round, record, self.buffers, extra)
            self.folder.save(state, self.memory, self.checkpoint.keep)
            self.saved = self.round
        except OSError as error:
            message = unwritten(self.round, error, self.folder.resume)
            if final or self.plan.aggregation.unkeyed:  # a round that is repeated is paid twice
                raise CheckpointError(message) from error
            _log.warning(message)

    def restore(self) -> None:
        """Go back to the newest checkpoint of the folder, or to the beginning if there is none."""
        assert self.folder is not None
        state = self.folder.load(self.memory, self.net.device)
        check_spent(self.plan.aggregation, self.group.first(self.folder.least_rounds), state)
        if state is None:
            log = self.folder.rounds
            if self.group.first(lambda: log.exists() and log.stat().st_size > 0):
                _log.warning(
                    "'%s' has no checkpoint yet: begins again at round 1", self.folder.path
                )
            self.folder.rewind(0, -1)
            self.begin()
            return
        size = int(state.extra["log"])
        unlogged = state.extra.get("unlogged", [])
        self.history = self.folder.read_rounds(size, state.round - len(unlogged))
        self.folder.rewind(size, state.round)
        self.take(state)
        self.saved = state.round
        self.ledger = Ledger(**state.extra["ledger"])
        name = f"test_{self.headline}_ema"
        means = lambda: self.ledger.means(self.history, name)
        self.curve = continued(self.curve, state.extra["curve"], means)
        self.logged = len(self.history)
        for row in self.history:  # no warning twice
            self.watch.see(row)
        self.history += unlogged

    def take(self, state: State) -> None:
        """Go to the round of a checkpoint, without its history; the client states are there."""
        self.round, self.buffers = state.round, state.buffers
        learnt = state.srv
        self.srv, self.at_down = learnt.srv, learnt.down
        self.at_stages = self._step.continued(learnt)
        self.gathered = getattr(learnt, "gathered", self.gathered)
        if "clock" in state.extra:
            self.under_way = restored(learnt.told, state.extra["clock"])
        if self.sizes is not None:
            self.sizes.restore(getattr(learnt, "sizes", None), self._sent(), self.round)
