"""An experiment: the parts of a run in one place, and run(), which returns its result."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from ..aggregation import Aggregation
from ..algorithm import Algorithm
from ..algorithms.registry import label_of
from ..compression.link import FieldCodec, Link
from ..core.device import move_to
from ..core.hyper import hyper, part
from ..core.interrupts import stoppable, undisturbed
from ..core.net import Net
from ..core.ranks import ALONE, Group, join
from ..core.rng import key, others_restored, seed_others
from ..data import FederatedData
from ..data.clients import ClientNumbers, set_apart
from ..engines import Choice, bits_of, is_auto, numberless
from ..engines.base import Engine, Remote
from ..engines.ranks import RankSettings
from ..errors import CheckpointError, ConfigError
from ..evaluation.clients import untested
from ..evaluation.named_metrics import by_name
from ..evaluation.settings import Curve, Evaluation
from ..evaluation.stopping import DivergenceMonitor, selection_of
from ..evaluation.threshold import Threshold
from ..federation.attacks import Attack
from ..federation.availability import Availability
from ..federation.capacities import Capacities
from ..federation.choice import ClientChoice
from ..federation.clock import Asynchronous, Clock
from ..federation.devices import Devices, LogNormal
from ..federation.federation import Federation
from ..federation.local import Local
from ..federation.sampling import Churn, ClientSampler
from ..objectives import METHODS, CrossEntropy, Objective, SquaredError, UserLoss
from ..plan import Plan
from ..server.arrivals import chooser
from ..server.checkpoints import Checkpoints, state_of
from ..server.client_selection import Durations
from ..server.evaluator import Evaluator
from ..server.progress import Progress, shows_progress
from ..server.rounds import Run
from ..server.row import Measuring, RunLog
from ..stage import Stage
from ..storage.run_directory import Checkpoint, RunDirectory
from ..submodels.base import SubModel
from ..submodels.private import Private
from ..trackers import Trackers
from . import processes, settings
from .checks import (
    check_clock,
    check_evaluation,
    check_parts,
    check_rounds,
    check_simulated,
    checked_capacities,
    direction,
    levels_for,
    say_simulated,
    words_for,
)
from .fit_checks import (
    check_fit,
    check_shapes,
    check_targets,
    on_device,
    takes_channels_last,
    weights_of,
)
from .probe import probe
from .provenance import check_same, configuration, describe
from .result import Result, finish
from .tracking import Tracking, trackers_of

if TYPE_CHECKING:
    from .replay import Replay

Row = dict[str, Any]
T = TypeVar("T")
_log = logging.getLogger(__name__)


class Experiment(settings.Settings, frozen=False):
    """One federated training run. Arguments that a file can hold have the same names there, and are
    explained by `fedloom show run`, and `local`, `evaluate`, `checkpoint`, `churn`, ...

    algorithm: the method alone; clipping, momentum and decay are `local`'s. model: an nn.Module,
    whose weights are the initial model, or a function that makes one, which is called under the
    seed. objective: an Objective, or any loss(outputs, targets); by default cross-entropy for
    labels and squared error for numbers. metrics: {name: f(outputs, targets)}, the first one is the
    headline, one function, or names ("auc", "mine.py:f"); f gives a value per example or the
    batch's mean, averaged over examples; an object with update() and compute() is measured on the
    whole set. higher_is_better: of the headline, if it is not known. submodel, capacities: which
    part of the model a client holds: a scheme, and levels assigned in turn, one per client, {level:
    share of the clients}, or a file with one per client; "1/4" may be written for 0.25. private:
    the layers that each client keeps for itself. stages: parts of a round of your own, in the order
    in which an update passes them. compress: the codecs of client updates and of
    broadcasts (Link.down); "topk:0.01" is short. devices: how fast clients are. choose: a rule that
    chooses each round's clients. clock: when the server steps, by default once per round.
    aggregation: what the server makes of the updates, their mean by default. attack: what a share
    of the clients does instead of its work. weights: the initial model, {name: tensor} or a
    safetensors file. on_round, on_evaluation: called with the round's row; on_evaluation(row,
    model) with the model too. tracker: who sees every row. measures: of fedloom.measures.

    >>> from fedloom.data import digits, dirichlet
    >>> from fedloom.models import mlp
    >>> from fedloom.algorithms import FedAvg
    >>> parts = dict(algorithm=FedAvg(), model=lambda: mlp(64), data=digits())
    >>> len(Experiment(**parts, rounds=2, cohort=5).run().history)
    2
    """

    algorithm: Algorithm = hyper(example="an Algorithm such as FedAvg()")
    model: nn.Module | Callable[[], nn.Module] = hyper(
        example="an nn.Module, or a function that makes one"
    )
    data: FederatedData = hyper(example="data such as digits() or from_clients([(x, y), ...])")
    local: Local = part(Local, "Local(epochs=5, lr=0.1)")
    objective: Objective | Callable[[Any, Any], Tensor] | None = hyper(
        None, example="an Objective or loss(outputs, targets)"
    )
    submodel: SubModel | None = hyper(None, example="a scheme such as FIARSE()")
    capacities: Capacities | None = None
    private: Private | None = hyper(None, example="a scheme such as FedPer()")
    stages: Sequence[Stage] = ()
    compress: Link | FieldCodec | str | None = hyper(
        None, example="a codec's name such as 'topk:0.01', or a Link"
    )
    devices: Devices | None = hyper(None, example="a profile such as LogNormal()")
    aggregation: Aggregation | str | None = hyper(None, example="Median(), or such a rule's name")
    attack: Attack | None = hyper(None, example="an Attack such as SignFlip(share=0.2)")
    churn: Churn | None = hyper(None, example="Churn(active=250)")
    availability: Availability | None = hyper(None, example="Availability(dropout=0.1)")
    choose: ClientChoice | None = hyper(None, example="a rule such as PowerOfChoice(among=20)")
    clock: Clock | None = hyper(None, example="a clock such as Asynchronous(buffer=10)")
    evaluate: Evaluation = part(Evaluation, "Evaluation(every=5, target=0.8)")
    checkpoint: Checkpoint = part(Checkpoint, "Checkpoint(every_seconds=60.0, keep=2)")
    ranks: RankSettings = part(RankSettings, "RankSettings(timeout=600)")
    metrics: settings.Metrics = None  # type: ignore[assignment]  # a file holds names alone
    higher_is_better: bool | None = hyper(None, example="True, False or None")
    weights: Mapping[str, Tensor] | str | os.PathLike[str] | None = hyper(
        None, example="{name: tensor} or a safetensors file"
    )
    on_round: Sequence[Callable[[Row], object]] | Callable[[Row], object] = hyper(
        (), example=settings.CALLED
    )
    on_evaluation: Sequence[Callable[..., object]] | Callable[..., object] = hyper(
        (), example=settings.CALLED
    )
    tracker: Trackers = hyper(None, example="a name such as 'tensorboard', or a list of them")
    measures: Sequence[Measuring] | Measuring = hyper(
        (), example="measures of a run, such as [Hessian(every=50)] of fedloom.measures"
    )
    config: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.config is None:  # of a file they are loaded
            self.metrics = settings.load_metrics(self.metrics)
        super().__post_init__()
        self._link = settings.link_of(self.compress)
        self._aggregation = settings.aggregation_of(self.aggregation)
        self._on_round = settings.several(self.on_round)
        self._on_evaluation = settings.several(self.on_evaluation)
        self._measures = settings.measures_of(self.measures)
        if self.evaluate.unseen and self.data.unseen is None:
            self.data = set_apart(self.data, self.evaluate.unseen, self.seed)
        if self.evaluate.validation and self.data.validation is None:
            self.data = self.data.with_validation(self.evaluate.validation, self.seed)
        if self._dtype is not None:
            self.data = self.data.astype(self._dtype)
        self.data = self.data.ignoring(settings.ignored_by(self.objective))
        self._net: Net | None = None
        self._module: nn.Module | None = None  # as it was given, until the run begins
        self._group: Group = ALONE
        self.choice: Choice | None = None
        self._old_engine, self.used_engine = "", self.engine  # first: of the run resumed
        self._clients = ClientNumbers(self.data.client_names, self.data.population)
        options = self.data.population, self.seed, self.sampling, self.churn, self.availability
        self._cohorts = ClientSampler(self.cohort, *options, names=self.data.client_names)
        if self.devices is None and isinstance(self.clock, Asynchronous):
            self.devices = LogNormal()
        check_clock(self.clock, self._cohorts, self.choose, self.devices)
        if self._cohorts.single_warning:
            _log.warning("%s", self._cohorts.single_warning)

    def __repr__(self) -> str:
        return f"<Experiment {self.called}: {self.rounds} rounds, {self.data!r}>"

    # ---------------------------------------------------------------------------------- the parts
    @property
    def loss_at_clients(self) -> Objective:
        """The given objective, or the one that follows from the data."""
        loss = self.objective
        if loss is None:
            loss = SquaredError() if self.data.targets.is_floating_point() else CrossEntropy()
        padding = self.data.about.get("target_padding")
        if isinstance(loss, CrossEntropy) and loss.ignore is None and padding is not None:
            loss = dataclasses.replace(loss, ignore=padding)
        return self._to_device(loss if isinstance(loss, Objective) else UserLoss(call=loss))

    def _to_device(self, part: T) -> T:
        """A loss or a metric with its tensors on the run's device."""
        device = self._device()
        return part if device.type == "cpu" else move_to(part, device)

    def _device(self) -> torch.device:
        return processes.device_for(self.device, self._old_engine or self.engine, self._group)

    @property
    def weights_by_client(self) -> str | Sequence[float]:
        """Client weights as Federation takes them. Raises ConfigError."""
        if isinstance(self.weighting, Mapping):
            return self._clients.values(self.weighting, "weighting")
        return self.weighting

    @property
    def _capacities(self) -> Capacities | None:
        """Capacities, one for each client where they are given by name."""
        capacities, names = self.capacities, self.data.client_names
        if isinstance(capacities, Mapping) and any(client in names for client in capacities):
            return self._clients.values(capacities, "capacities")
        return capacities

    def plan(self) -> Plan:
        """The axes together. Raises CompositionError for parts that do not fit."""
        levels = levels_for(self._capacities, self.submodel)
        submodel = None if self.submodel is None else self.submodel.settled(levels)
        method = self.local.around(self.algorithm), self.loss_at_clients, self.nonfinite, submodel
        more = self.private, self._aggregation, tuple(self.stages)
        return Plan(*method, self._link, self.net().layout.d, settings.setting_of(self), *more)

    def net(self) -> Net:
        """The model, checked on one small batch. Raises DataError if the data do not fit."""
        if self._net is None:
            with torch.random.fork_rng(devices=[]), others_restored():
                model_seed = key(self.seed, "model") if self.model_seed is None else self.model_seed
                torch.manual_seed(model_seed)
                seed_others(model_seed)
                self._module = settings.module_of(self.model)
            net = Net(self._module, self._dtype).to("cpu")  # where it is checked against the data
            if self.weights is not None:
                net.start_from(weights_of(self.weights))
            check_fit(net, self.data, self.loss_at_clients)
            self._net = net.to(self._device())
        return self._net

    def build(self) -> Run:
        """The run before its first round, without a directory. The engine is not open yet."""
        if torch.is_inference_mode_enabled():
            raise ConfigError(
                "torch.inference_mode() is on, and a run trains; call run() outside of it"
            )
        self._trackers = trackers_of(self.tracker)
        net = self.net()
        data = self.data
        if self.attack is not None:
            options = data.population, self.seed, data.client_names
            data = self.attack.data(data, self.attack.hostile(*options))
        data = on_device(data, net.device, self._dtype)
        threshold = Threshold(self.evaluate.threshold)
        metrics = by_name(self._metrics, self.loss_at_clients, data, threshold)
        moved_metrics = {name: self._to_device(metric) for name, metric in metrics.items()}
        check_targets(self.data, self.objective is None)
        check_shapes(net, data, self.loss_at_clients, moved_metrics)
        plan = self.plan()
        scheme = plan.submodel
        fed = Federation(
            data,
            self.local,
            self.seed,
            self.weights_by_client,
            moved_metrics,
            takes_channels_last(net, self.data, self.channels_last),
            checked_capacities(scheme, self._capacities, net, self.data, self.seed),
            self.devices,
            self.attack,
        )
        check_parts(plan, fed, net, self._cohorts, self._most_clients, self.rounds)
        if self.choose is None and not isinstance(self.clock, Asynchronous):
            check_rounds(plan.aggregation, self._cohorts, self.rounds)
        name = next(iter(metrics), "loss")
        higher = direction(self.evaluate.target, name, metrics.get(name), self.higher_is_better)
        on = self.data, self.engine
        check_evaluation(self.evaluate, scheme is not None, metrics.get(name), *on)
        stopping = self.evaluate.stop, self.checkpoint.keep_best, self.evaluate.every
        selected = selection_of(*stopping, fed, higher)
        engine = self._engine(plan, fed, net)
        curve = Curve(self.evaluate.ema, higher)
        chooser_parts = self._cohorts, fed, Durations(plan, fed, net)
        monitor = DivergenceMonitor(
            fed, untested(plan, fed), plan.objective, used=not plan.personalises
        )
        return Run(
            plan,
            fed,
            net,
            engine,
            self._cohorts,
            chooser(self.clock, self.choose, self._group, *chooser_parts),
            processes.states_for(engine, None, self.resident_bytes, net.device, fed.parted),
            Evaluator(plan, fed, net, self.evaluate, curve, self._measures, threshold),
            Checkpoints(self.checkpoint),
            RunLog(monitor, self._on_round, self._on_evaluation, selected),
            self._group,
        )

    def _engine(self, plan: Plan, fed: Federation, net: Net) -> Engine:
        """The engine; what a rule chooses for "auto" or "vectorised" is written behind it."""
        group, cohorts, clients = self._group, self._cohorts, self._most_clients
        self.used_engine = self._old_engine or self.engine
        if is_auto(self.used_engine) or (numberless(self.used_engine) and not self._old_engine):
            usual = min(clients, round(cohorts.expected))
            self.choice = processes.choose_engine(
                plan, fed, net, usual, group, str(self.used_engine)
            )
            self.used_engine = self.choice.engine
        engine = processes.engine_for(self.used_engine, group, clients, self.rounds)
        check_simulated(self.clock, cohorts, engine)
        return engine

    @property
    def _most_clients(self) -> int:
        """The most clients of a server step."""
        clock = self.clock
        return clock.buffer if isinstance(clock, Asynchronous) else self._cohorts.largest

    # ------------------------------------------------------------------------------------- to run
    def run(
        self, out: str | Path | None = None, progress: bool | None = None, go_on: bool = False
    ) -> Result:
        """Run from the beginning. out: a new directory for all files of the run; progress: by
        default in notebooks; go_on: if it holds a run already, resume that.
        """
        with self._join_ranks():
            folder = None if out is None else RunDirectory(out, self._group)
            processes.check_bound(folder, self.resident_bytes)
            if folder is not None and go_on and folder.holds_run():
                with folder.locked():
                    return self._resume(folder, progress)
            return self._run(folder, progress)

    def _run(self, folder: RunDirectory | None, progress: bool | None) -> Result:
        run = self.build()
        if self.choice is not None:
            _log.info("%s, seed %d: %s", self.called, self.seed, self.choice)
        self._probe(run)
        if folder is None:
            return self._compute(run, progress, run.begin)
        with folder.locked(new=True):
            self._attach(run, folder)
            self._group.first(lambda: describe(configuration(self, run), self.data, run))
            return self._compute(run, progress, run.begin)

    def _probe(self, run: Run) -> None:
        """Warn of what a few passes show, once: see probe.py."""
        module, self._module = self._module, None
        if module is None or self._group.rank or isinstance(run.engine, Remote):
            return
        for remark in probe(run.net, module, run.fed.data, run.plan.objective):
            _log.warning("%s", remark)

    def resume(self, out: str | Path, progress: bool | None = None) -> Result:
        """Continue in a run's directory, from its newest whole checkpoint; `rounds` may have grown.
        Raises CheckpointError if the directory holds a run of another configuration.
        """
        with self._join_ranks():
            folder = RunDirectory(out, self._group)
            folder.open()
            with folder.locked():
                return self._resume(folder, progress)

    def open(self, out: str | Path) -> Run:
        """A run as the newest checkpoint of its directory left it, to be measured: no file changes.
        Raises CheckpointError if there is none, or it is of a run of another configuration.
        """
        folder = RunDirectory(out)
        folder.open()
        engine, self.engine = self.engine, "serial"  # nothing is run; it may be a larger machine's
        try:
            run = self.build()
        finally:
            self.engine = engine
        check_same(folder, configuration(self, run), self.data, run, but=("engine",))
        self._attach(run, folder)
        state = folder.load(run.memory, run.net.device, older=False)
        if state is None:
            raise CheckpointError(
                f"'{out}' has no checkpoint yet, so there is no model to measure; {folder.resume} "
                "first"
            )
        run.state = state_of(run, state)
        run.checkpoints.folder = None
        return run

    def replay(
        self, out: str | Path, round: int, engine: str | None = None
    ) -> AbstractContextManager[Replay]:
        """A round (from 1) of a run's directory once more, in memory: no file changes. engine: with
        the bits of the run's, by default in this process. Raises CheckpointError for a run of
        another configuration, and for one that cannot be repeated.
        """
        from .replay import check_repeatable, replayed

        folder = RunDirectory(out)
        check_repeatable(folder)
        first_engine = str(folder.read_config().get("engine", "serial"))
        saved = self.engine, self.resident_bytes
        if isinstance(self.engine, str):
            self.engine = self._old_engine = engine or bits_of(first_engine)
        self.resident_bytes = None  # without a bound no client state is written
        try:
            run = self.build()
            check_same(folder, configuration(self, run), self.data, run)
            self._attach(run, folder)
        finally:
            self.engine, self.resident_bytes = saved
        return replayed(run, round, self.rounds)

    def _resume(self, folder: RunDirectory, progress: bool | None) -> Result:
        first_engine = str(folder.read_config().get("engine", "serial"))
        self._old_engine = first_engine if is_auto(self.engine) else ""
        if numberless(self.engine):  # the rule's number was written when the run began
            self._old_engine = f"{self.engine}{''.join(bits_of(first_engine).partition(':')[1:])}"
        run = self.build()
        but = () if self.data.roll is None else ("clients",)  # who is elsewhere may change
        identity = configuration(self, run), self.data, run, but
        self._group.first(lambda: check_same(folder, *identity))
        self._attach(run, folder)

        if (count := self._group.first(folder.least_rounds)) > self.rounds:
            raise ConfigError(
                f"'{folder.path}' has {count} rounds already; rounds = {self.rounds} is less than "
                "that"
            )

        def restore() -> None:
            run.restore()
            self._group.first(lambda: describe(configuration(self, run), self.data, run))

        return self._compute(run, progress, restore)

    def _join_ranks(self) -> AbstractContextManager[None]:
        self._group, self._old_engine = join(self.ranks.timeout), ""
        return processes.as_one(self._group)

    def _attach(self, run: Run, folder: RunDirectory) -> None:
        run.checkpoints.folder, where = folder, folder.memory_folder
        options = (where, self.resident_bytes, run.net.device, run.fed.parted)
        run.memory = processes.states_for(run.engine, *options)

    @stoppable()
    def _compute(self, run: Run, progress: bool | None, begin: Callable[[], None]) -> Result:
        processes.check_alike(self._group, configuration(self, run), self.data, run)
        say_simulated(run.plan.aggregation, run.engine)
        with others_restored():
            try:
                run.engine.open(run.plan, run.fed, run.net)
                begin()
                return self._rounds(run, progress)
            finally:
                with undisturbed():
                    run.engine.close()

    def _rounds(self, run: Run, progress: bool | None) -> Result:
        bar, config = None, configuration(self, run)
        if shows_progress(progress) and self._group.rank == 0:
            bar = Progress.of(run, f"{self.called}, seed {self.seed}", self.rounds)
            run.log.watching.append(bar.update)
        with bar or nullcontext(), Tracking(self._trackers, config, self.called, run) as tracking:
            run.until(self.rounds)
            name = (self.config or {}).get("algorithm", {}).get("name", self.algorithm.method)
            names = {"algorithm": name, "label": self.called, "name": self.name or name}
            rounds = run.allowed(self.rounds)
            result = tracking.record_result(finish(run, names, rounds, config))
        return result

    @property
    def called(self) -> str:
        """A short name for progress bars and legends."""
        loss, submodel = self.objective, self.submodel
        words = [label_of(self.algorithm), loss.name if isinstance(loss, METHODS) else ""]
        words += [submodel.name if submodel else "", *words_for(self._aggregation, self.attack)]
        return self.label or self.name or " + ".join(filter(None, words))
