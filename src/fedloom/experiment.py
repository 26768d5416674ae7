"""An experiment: the parts of a run in one place, and run(), which returns what came of it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .algorithm import Algorithm, Round, check_ranges, hyper
from .cohorts import Cohorts
from .data import FederatedData
from .describe import describe, fingerprint
from .devices import Devices
from .engines import Choice, choose, make_engine
from .engines.base import Engine
from .errors import CheckpointError, CompositionError, ConfigError, DataError
from .evaluation import Curve, Evaluation
from .link import Link, Via
from .local import Local
from .loop import Loop, Saving
from .memory import ClientMemory
from .metrics import default_metrics
from .net import Net
from .objectives import CrossEntropy, Objective, SquaredError, UserLoss
from .plan import Federation, Plan
from .progress import Progress, say
from .result import Result, finish
from .rng import key
from .rundir import RunDirectory
from .views.base import Rule, check_capacity
from .zoo import label_of

__all__ = ["Experiment", "Local", "Saving"]

Row = dict[str, Any]


@dataclass(kw_only=True)
class Experiment:
    """One federated training run.

    algorithm: the method alone; clipping, momentum and decay are `local`'s. model: an nn.Module,
    whose weights are the start, or a function that makes one, which is called under the seed.
    cohort: share (float), number (int) or lists of clients per round. loss: an Objective, or any
    loss(outputs, targets); by default cross-entropy for labels and squared error for numbers.
    metrics: {name: f(outputs, targets)}, the first one is the headline. submodel, capacities: which
    part of the model a client holds: a rule, and levels dealt out in turn, or one per client.
    compress: how answers travel, and messages (Link.down). devices: how fast clients are, for
    simulated seconds and local.seconds. weights: what to start from, {name: tensor} or a
    safetensors file. channels_last: memory format of images; None: where the model has
    convolutions and takes it. on_round, on_evaluation: called with the round's row.

    >>> from fedloom.data import digits, dirichlet
    >>> from fedloom.models import mlp
    >>> from fedloom.algorithms import FedAvg
    >>> parts = dict(algorithm=FedAvg(), model=lambda: mlp(64), data=digits())
    >>> len(Experiment(**parts, rounds=2, cohort=5).run().history)
    2
    """

    algorithm: Algorithm
    model: nn.Module | Callable[[], nn.Module]
    data: FederatedData
    rounds: int
    cohort: float | int | Sequence[Sequence[int]] = 1.0
    local: Local = dataclasses.field(default_factory=Local)
    loss: Objective | Callable[[Any, Any], Tensor] | None = None
    metrics: Mapping[str, Callable[[Any, Any], Tensor]] | None = None
    higher_is_better: bool | None = None
    submodel: Rule | None = None
    capacities: Sequence[float] | None = None
    compress: Link | Via | None = None
    devices: Devices | None = None
    seed: int = 0
    sampling: str = "fixed"
    weighting: str = "examples"
    nonfinite: str = "stop"
    evaluation: Evaluation = dataclasses.field(default_factory=Evaluation)
    engine: str | Engine = "serial"
    device: str = "auto"
    dtype: torch.dtype | None = None
    channels_last: bool | None = None
    weights: Mapping[str, Tensor] | str | Path | None = None
    name: str = ""
    saving: Saving = dataclasses.field(default_factory=Saving)
    resident_bytes: int | None = hyper(None)
    on_round: Sequence[Callable[[Row], None]] = ()
    on_evaluation: Sequence[Callable[[Row], None]] = ()
    config: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        check_ranges(self)
        if isinstance(self.rounds, bool) or not isinstance(self.rounds, int) or self.rounds < 1:
            raise ConfigError(f"rounds must be a whole number from 1, got {self.rounds!r}")
        if not isinstance(self.algorithm, Algorithm):
            raise ConfigError(
                f"algorithm must be an Algorithm such as FedAvg(), got {self.algorithm!r}"
            )
        if self.evaluation.validation and self.data.validation is None:
            self.data = self.data.with_validation(self.evaluation.validation, self.seed)
        self._net: Net | None = None
        self.choice: Choice | None = None
        self._cohorts = Cohorts(self.cohort, self.data.population, self.seed, self.sampling)

    # ---------------------------------------------------------------------------------- the parts
    @property
    def objective(self) -> Objective:
        """The loss at the clients."""
        if self.loss is None:
            return SquaredError() if self.data.targets.is_floating_point() else CrossEntropy()
        return self.loss if isinstance(self.loss, Objective) else UserLoss(call=self.loss)

    def plan(self) -> Plan:
        """The four axes together. Raises CompositionError for parts that do not fit."""
        link = self.compress or Link()
        return Plan(
            self.local.around(self.algorithm),
            self.objective,
            self.nonfinite,
            self.submodel,
            Link(link) if isinstance(link, Via) else link,
            self.net().layout.d,
        )

    def _capacities(self) -> tuple[float, ...]:
        """One capacity per client; levels are dealt out in turn, so that groups are equal."""
        levels = tuple(self.capacities or ())
        if self.submodel is None:
            if levels:
                raise ConfigError("capacities are given without a submodel; give submodel= too")
            return ()
        if not levels:
            raise ConfigError(
                f"submodel {self.submodel.name} needs capacities: levels such as [0.25, 1.0], "
                "or one for every client"
            )
        for level in dict.fromkeys(levels):
            self._try_capacity(self.submodel, level)
        n = self.data.population
        return levels if len(levels) == n else tuple(levels[i % len(levels)] for i in range(n))

    def _try_capacity(self, rule: Rule, level: float) -> None:
        """Make one view, so that a model which cannot be cut is refused before anything runs."""
        check_capacity(rule, level)
        net = self.net()
        if rule.cuts and net.buffer_layout.d and level < 1:
            raise CompositionError(
                f"{rule.name} and {type(net.module).__name__}: nets of several sizes cannot share "
                f"the running statistics '{net.buffer_layout.names[0]}'; use GroupNorm, or "
                "batch norm with track_running_stats=False"
            )
        rule.view(net.init(), net, level, Round(0, math.nan, math.nan))

    def net(self) -> Net:
        """The model, checked against the data on one small batch. Raises DataError if they do not
        fit.
        """
        if self._net is None:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(key(self.seed, "model"))
                module = self.model if isinstance(self.model, nn.Module) else self.model()
            if not isinstance(module, nn.Module):
                raise ConfigError(f"model must give an nn.Module, got {type(module).__name__}")
            net = Net(module, self.dtype)
            if self.weights is not None:
                net.start_from(_weights(self.weights))
            self._check_fit(net)
            self._net = net.to(self._device())
        return self._net

    def _device(self) -> torch.device:
        if self.device != "auto":
            try:
                return torch.zeros(1, device=self.device).device
            except (RuntimeError, AssertionError) as error:
                why = str(error).splitlines()[0]
                raise ConfigError(f"device '{self.device}' cannot be used: {why}") from None
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")

    def _format(self, net: Net) -> bool:
        """Say whether images go to the model as channels-last. A model that flattens with view()
        cannot take them; that shows in one forward pass.
        """
        inputs = self.data.inputs[:2].to(net.device)
        if self.channels_last is not None or inputs.ndim != 4:
            return bool(self.channels_last) and inputs.ndim == 4
        if not any(isinstance(m, nn.Conv2d) for m in net.module.modules()):
            return False
        net.train(False)
        try:
            with torch.no_grad():
                net(net.init(), inputs.to(memory_format=torch.channels_last))
        except RuntimeError:
            return False
        return True

    def _check_fit(self, net: Net) -> None:
        """Run the model once on two samples."""
        data = self.data
        index = data.clients.indices[:2]
        inputs, targets = data.inputs[index], data.targets[index]
        if inputs.is_floating_point() and inputs.dtype != net.dtype:
            raise DataError(
                f"inputs are {inputs.dtype} and the model is {net.dtype}; "
                "give dtype= to the experiment or to the data so that they agree"
            )
        net.train(False)
        try:
            with torch.no_grad():
                outputs = net(net.init(), inputs)
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            raise DataError(
                f"the model cannot take inputs of shape {list(inputs.shape)}: "
                f"{str(error).splitlines()[0]}"
            ) from error
        self.objective.check(net, inputs)
        if isinstance(self.objective, SquaredError) and not targets.is_floating_point():
            raise DataError(
                f"squared error needs floating targets, but they are {targets.dtype} labels; "
                "take cross_entropy, or give targets.float()"
            )
        if isinstance(self.objective, CrossEntropy):
            _check_classes(outputs, targets, data.classes)

    def build(self) -> Loop:
        """The run before its first round, without a directory. The engine is not open yet."""
        net, metrics = self.net(), self.metrics
        data = _on(self.data, net.device)
        if metrics is None:
            metrics = default_metrics(self.objective, data)
        higher = self.higher_is_better
        if higher is None:
            higher = next(iter(metrics), "loss") not in ("loss", "error", "mse", "rmse", "mae")
        plan = self.plan()
        fed = Federation(
            data,
            self.local,
            self.seed,
            self.weighting,
            dict(metrics),
            self._format(net),
            self._capacities(),
            self.devices,
        )
        return Loop(
            plan=plan,
            fed=fed,
            net=net,
            engine=self._engine(plan, fed, net),
            cohorts=self._cohorts,
            evaluation=self.evaluation,
            memory=ClientMemory(None, self.resident_bytes, net.device),
            curve=Curve(self.evaluation.ema, self.evaluation.target, higher),
            saving=self.saving,
            on_round=list(self.on_round),
            on_evaluation=list(self.on_evaluation),
        )

    def _engine(self, plan: Plan, fed: Federation, net: Net) -> Engine:
        """The engine; "auto" is measured once, and is that engine's name from then on."""
        if self.engine == "auto":
            self.choice = choose(plan, fed, net, self._cohorts.of(0), self.rounds)
            self.engine = self.choice.engine
        return make_engine(self.engine) if isinstance(self.engine, str) else self.engine

    # ------------------------------------------------------------------------------------- to run
    def run(self, out: str | Path | None = None, progress: bool = False) -> Result:
        """Run from the beginning. out: a new directory for configuration, log, checkpoints and
        results.
        """
        loop = self.build()
        if progress and self.choice is not None:
            say(f"{self.label}, seed {self.seed}: {self.choice}")
        if out is not None:
            folder = RunDirectory(out)
            folder.create()
            self._attach(loop, folder)
            describe(self, loop, folder)
        return self._go(loop, progress, loop.begin)

    def resume(self, out: str | Path, progress: bool = False) -> Result:
        """Go on in a run's directory, from its newest whole checkpoint; `rounds` may have grown.

        Raises CheckpointError if the directory holds a run of another configuration.
        """
        folder = RunDirectory(out)
        folder.open()
        if self.engine == "auto":  # what the run began with
            self.engine = str(folder.read_config().get("engine", "serial"))
        loop = self.build()
        known, own = folder.read_json("fingerprint.json"), fingerprint(self, loop)
        other = sorted(k for k in own if known.get(k) != own[k])
        if other:
            raise CheckpointError(
                f"'{out}' holds a run of another configuration: {', '.join(other)} differ; "
                "resume with the settings it was started with, or start in another folder"
            )
        self._attach(loop, folder)

        def restore() -> None:
            loop.restore()
            if loop.round > self.rounds:
                raise ConfigError(
                    f"'{out}' has {loop.round} rounds already; "
                    f"rounds = {self.rounds} is less than that"
                )
            describe(self, loop, folder)

        return self._go(loop, progress, restore)

    def _attach(self, loop: Loop, folder: RunDirectory) -> None:
        loop.folder = folder
        loop.memory = ClientMemory(folder.memory_folder, self.resident_bytes, loop.net.device)

    def _go(self, loop: Loop, progress: bool, begin: Callable[[], None]) -> Result:
        try:
            loop.engine.open(loop.plan, loop.fed, loop.net)
            begin()
            return self._rounds(loop, progress)
        finally:
            loop.engine.close()

    def _rounds(self, loop: Loop, progress: bool) -> Result:
        shown = (
            Progress(f"{self.label}, seed {self.seed}", self.rounds, loop.headline, loop.round)
            if progress
            else None
        )
        if shown is not None:
            loop.on_round.append(shown.update)
            shown.start()
        try:
            loop.run(self.rounds)
            return finish(self, loop)
        finally:
            if shown is not None:
                shown.stop()

    @property
    def label(self) -> str:
        """A short name for progress bars and legends."""
        return self.name or str((self.config or {}).get("label") or label_of(self.algorithm))


def _on(data: FederatedData, device: torch.device) -> FederatedData:
    if data.inputs.device == device:
        return data
    names = ("inputs", "targets", "test_inputs", "test_targets")
    moved = {n: v.to(device) for n in names if (v := getattr(data, n)) is not None}
    return dataclasses.replace(data, **moved)


def _weights(source: Mapping[str, Tensor] | str | Path) -> dict[str, Tensor]:
    if isinstance(source, Mapping):
        return dict(source)
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(source)
    except (OSError, SafetensorError) as error:
        raise DataError(f"weights '{source}' cannot be read: {error}") from None


def _check_classes(outputs: Any, targets: Tensor, classes: int | None) -> None:
    if classes is None:
        raise DataError(
            f"cross-entropy needs integer labels, but the targets are {targets.dtype}; "
            "give another loss, or targets.long()"
        )
    if not isinstance(outputs, Tensor) or outputs.ndim < 2:
        got = list(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        raise DataError(f"cross-entropy needs outputs (batch, classes) of the model, got {got}")
    if outputs.shape[1] < classes:
        raise DataError(
            f"the model gives {outputs.shape[1]} outputs per example, "
            f"but labels go up to {classes - 1}; it needs {classes}"
        )
