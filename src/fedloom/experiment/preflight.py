"""Checks before a run: do model, data, loss and device fit together?"""

from __future__ import annotations

import copy
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..core.bfloat16 import has_bfloat16
from ..core.metric_direction import higher_is_better
from ..core.net import Net, logits_of
from ..data import FederatedData
from ..engines.base import Remote
from ..engines.evaluation import evaluation_batch
from ..engines.metrics import accuracy, is_whole
from ..errors import CompositionError, ConfigError, DataError
from ..federation.capacities import Capacities, assign_capacities, levels_of
from ..federation.federation import Federation
from ..federation.local import Local
from ..federation.sampling import Cohorts
from ..objectives import CrossEntropy, Objective, SquaredError
from ..plan import Plan
from ..server.evaluation import Evaluation, check_share
from ..submodels.base import Rule, check_capacity
from .attack_and_aggregation import check_aggregation
from .shape_check import check_pairs, check_values
from .target_check import check_classes

_log = logging.getLogger(__name__)

NORMS: tuple[type[nn.Module], ...] = (nn.GroupNorm, nn.modules.batchnorm._NormBase)


def check_parts(
    plan: Plan, fed: Federation, net: Net, cohorts: Cohorts, most: int, rounds: int
) -> None:
    """Raise ConfigError or CompositionError for parts that do not suit model, device or cohorts.
    most: clients of a server step.
    """
    check_precision(fed.local, net)
    check_singles(net, fed, plan.rule, cohorts)
    check_aggregation(plan.aggregation, net, cohorts, most, rounds)
    fed.check_devices()
    if plan.private is not None:
        plan.private.kept(net)  # refuses a model of which all or nothing would be private


def warn_of(plan: Plan, local: Local, rounds: int) -> None:
    """Say what does not do what its paper says, or does nothing."""
    check_rate(local, rounds)
    for said in plan.warnings():
        _log.warning(said)


@torch.random.fork_rng(devices=[])  # the model may draw
def takes_channels_last(net: Net, data: FederatedData, wanted: bool | None) -> bool:
    """True if images go to the model as channels-last. A model that flattens with view() cannot
    take them; one forward pass shows that.
    """
    inputs = data.ready(data.inputs[:2]).to(net.device)
    if wanted is not None or inputs.ndim != 4:
        return bool(wanted) and inputs.ndim == 4
    if not any(isinstance(m, nn.Conv2d) for m in net.module.modules()):
        return False
    net.train(False)
    try:
        with torch.no_grad():
            net(net.init(), inputs.to(memory_format=torch.channels_last))
    except RuntimeError:
        return False
    return True


def check_precision(local: Local, net: Net) -> None:
    """Raise ConfigError for a precision that the device or the type does not have; warn of one that
    it only imitates.
    """
    if local.precision == "tf32" and net.device.type != "cuda":
        raise ConfigError(
            f"local.precision = tf32 is arithmetic of CUDA GPUs, and the run is on {net.device}; "
            "take full or bf16"
        )
    if local.precision == "bf16" and net.dtype != torch.float32:
        raise ConfigError(
            f"local.precision = bf16 goes with dtype = float32, not {str(net.dtype)[6:]}"
        )
    if local.precision == "bf16" and not has_bfloat16(net.device):
        _log.warning(
            "local.precision = bf16: this processor has no bfloat16 and imitates it, which is "
            "slower than full"
        )


@torch.random.fork_rng(devices=[])  # the model may draw
def check_fit(net: Net, data: FederatedData, objective: Objective) -> None:
    """Run the model once on two samples. Raises DataError if they do not fit."""
    index = data.tried[:2]
    if data.inputs.dtype == torch.int64 and data.inputs.ndim > 1:
        # tokens: the largest must be in the model's vocabulary
        highest = data.inputs.amax(tuple(range(1, data.inputs.ndim))).argmax()
        index = torch.cat([index, highest.view(1)])
    inputs, targets = data.ready(data.inputs[index]), data.targets[index]
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
        tokens = not inputs.is_floating_point() and isinstance(error, IndexError)
        upto = f" with tokens up to {int(inputs.max())}" if tokens else ""
        raise DataError(
            f"the model cannot take inputs of shape {list(inputs.shape)}{upto}: "
            f"{str(error).splitlines()[0]}{_hint(net.module, inputs, str(error))}"
        ) from error
    objective.check(net, inputs)
    if isinstance(objective, SquaredError) and not targets.is_floating_point():
        raise DataError(
            f"squared error needs floating targets, but they are {targets.dtype} labels; "
            "take cross_entropy, or give targets.float()"
        )
    if isinstance(objective, CrossEntropy):
        check_classes(outputs, targets, data)


def check_shapes(
    net: Net, data: FederatedData, objective: Objective, metrics: Mapping[str, Any]
) -> None:
    """Try the metrics, and the loss if outputs and targets have as many values in different shapes.
    Raises DataError if one compares every output with every target, or a metric gives no number.
    """
    count = 4 if data.classes == 3 else 3  # a value per class is no value per example
    index = data.tried[:count].repeat(count)[:count].to(data.inputs.device)
    inputs, targets = data.ready(data.inputs[index]), data.targets[index]
    net.train(False)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        outputs = logits_of(net(net.init(), inputs))
        check_pairs("the loss", lambda o, t: objective.score(o, (inputs, t)), outputs, targets)
        for name, metric in metrics.items():
            call = copy.deepcopy(metric).update if is_whole(metric) else metric
            check_pairs(f"metric '{name}'", call, outputs, targets)
            check_values(name, metric, outputs, targets)


def _hint(module: nn.Module, inputs: Tensor, said: str) -> str:
    """What to change, if integers go to a layer that takes numbers, or the first layer is linear
    and of another width than an example. said: by torch.
    """
    if inputs.dtype == torch.int64 and "long" in said.lower():
        return (
            "; integer inputs stay integers, as the tokens of a text do: give floats, such as "
            "inputs.float(), or a model that begins with nn.Embedding"
        )
    layers = (m for m in module.modules() if not list(m.children()) and list(m.parameters(False)))
    first, width = next(layers, None), inputs[0].numel()
    if not isinstance(first, nn.Linear) or first.in_features == width:
        return ""
    return (
        f"; an example has {width} values, the model's first layer takes {first.in_features}: "
        f"give a model for {width} (model.inputs={width} of fedloom's mlp and logistic)"
    )


def check_rate(local: Local, rounds: int) -> None:
    """Warn about a list of learning rates that is shorter than the run, and about rounds in which
    nothing is learnt, because the schedule has ended before the run.
    """
    if isinstance(local.lr, Sequence) and len(local.lr) < rounds:
        _log.warning(
            "local.lr has %d learning rates for %d rounds; the last one, %g, holds from then on",
            len(local.lr),
            rounds,
            local.lr[-1],
        )
    if rounds < 1 or local.rate(rounds - 1, 0) != 0:
        return
    first = next(t for t in range(rounds) if local.rate(t, 0) == 0)
    _log.warning(
        "local.schedule is 0 from round %d of %d on, and clients learn nothing there; give a "
        "schedule that lasts as long as the run, or one with a floor",
        first + 1,
        rounds,
    )


def check_evaluation(
    evaluation: Evaluation, parted: bool, headline: Any, data: FederatedData, engine: Any
) -> None:
    """Warn about settings that have no effect without sub-models (not `parted`) or a test set.
    Raises ConfigError for a target that an accuracy, if the headline metric is ours, cannot reach.
    """
    target = evaluation.target
    if headline is accuracy and target is not None:
        check_share(target, f"evaluate.target = {target:g}")
    if target is not None and data.test_inputs is None and not isinstance(engine, Remote):
        _log.warning(
            "evaluate.target = %g has no effect: it is looked for on a test set, and '%s' has "
            "none; give test samples, or leave evaluate.target out",
            *(target, data.name),
        )
    if parted:
        return
    for key in ("sizes", "sizes_every"):
        if getattr(evaluation, key) not in ((), None):
            _log.warning("evaluate.%s has no effect: without a sub-model all hold all of it", key)


def direction(target: float | None, name: str, metric: Any, said: bool | None) -> bool | None:
    """Whether a larger headline metric is better: given, or known. Raises ConfigError if it is
    unknown, and a target needs it.
    """
    higher = higher_is_better(name, metric) if said is None else said
    if higher is not None:
        return higher
    text = (
        f"nothing says whether the metric '{name}' is better higher or lower; set "
        f"{name}.higher_is_better = True or False beside the function, or in Python give "
        "Experiment(higher_is_better=...)"
    )
    if target is not None:
        raise ConfigError(f"evaluate.target = {target:g}: {text}; or evaluate.target = none")
    _log.warning("%s: until then no value is the best", text)
    return None


def checked_capacities(
    rule: Rule | None, given: Capacities | None, net: Net, data: FederatedData, seed: int
) -> tuple[float, ...]:
    """One capacity per client; none without a scheme. Raises CompositionError."""
    if rule is None or given is None:
        return ()
    for level in levels_for(given, rule):
        _try_capacity(rule, level, net)
    _check_rows(rule, net, data)
    return assign_capacities(given, data.population, seed)


def _try_capacity(rule: Rule, level: float, net: Net) -> None:
    """Make one view, so that a model that cannot be sliced is refused before the run. The scheme's
    remarks become warnings.
    """
    check_capacity(rule, level)
    if net.buffer_layout.d and level < 1:
        raise CompositionError(
            f"{rule.name} and {type(net.module).__name__}: nets of several sizes cannot share "
            f"the running statistics '{net.buffer_layout.names[0]}'; use GroupNorm, or "
            "batch norm with track_running_stats=False"
        )
    view = rule.view(net.init(), net, level, 0)
    for remark in rule.remarks(view, net, level):
        _log.warning("%s", remark)


def _check_rows(rule: Rule, net: Net, data: FederatedData) -> None:
    """Raise CompositionError for a scheme that needs to know which clients have a class, if the
    labels are no classes or the model has no row for each.
    """
    rows = rule.rows(net)
    if rows is None:
        return
    outputs = int(rows.max()) + 1
    if data.classes is None or outputs < data.classes:
        labels = "no labels" if data.classes is None else f"labels up to {data.classes - 1}"
        raise CompositionError(
            f"{rule.name} averages a class's row of the classifier over the clients that have the "
            f"class, but '{data.name}' has {labels} and {type(net.module).__name__} {outputs} "
            "outputs; take submodel.owners = false, or a model with an output for every class"
        )


def check_singles(net: Net, fed: Federation, rule: Rule | None, cohorts: Cohorts) -> None:
    """Run the model, and its smallest sub-model, on one example if a batch of one occurs: at a
    client that may take part, or at the end of the test set.

    Raises CompositionError if a norm then has one value to normalise, which torch refuses.
    """
    if not any(isinstance(m, NORMS) for m in net.module.modules()):
        return
    for training, who, advice in _singles(fed, cohorts):
        nets = [net]
        if rule is not None and rule.cuts and fed.capacities:
            x, small = net.init(), min(fed.capacities)
            nets.append(rule.view(x, net, small, 0).net or net)
        for one in nets:
            module = copy.deepcopy(one.module).train(training)  # statistics may move
            if (norm := _refused(module, fed.batch(fed.data.tried[:1])[0])) is not None:
                raise CompositionError(
                    f"{type(one.module).__name__}: {norm} has one value to normalise in a batch of "
                    f"one example, as {who}; {advice}, or take a norm over more values (such as "
                    "fewer groups)"
                )


def _singles(fed: Federation, cohorts: Cohorts) -> Iterator[tuple[bool, str, str]]:
    """Where a batch of one example occurs: whether in training, as text, and what to do."""
    if isinstance(cohorts.size, Sequence):
        clients = sorted({i for cohort in cohorts.size for i in cohort})
    else:  # with changing availability, some clients may never take part
        clients = [] if cohorts.churn else list(range(fed.population))
    for i in clients:
        if 1 in fed.sizes(i):
            n, batch = int(fed.data.sizes[i]), fed.local.batch
            what = f"{n} in batches of {batch}" if batch and n > 1 else f"{n} in all"
            yield True, f"client {i} has ({what})", "take another local.batch or local.drop_last"
            break
    tests = fed.data.test_targets
    if tests is not None and len(tests) % evaluation_batch(tests) == 1:
        size = evaluation_batch(tests)
        words = f"the test set ends with ({len(tests)} in batches of {size})"
        yield False, words, "give another number of test samples"


def _refused(module: nn.Module, inputs: Tensor) -> str | None:
    """The norm that cannot take this one example; None if all can."""
    at = [""]
    for path, m in module.named_modules():
        if isinstance(m, NORMS):
            name = f"{type(m).__name__} '{path}'"
            m.register_forward_pre_hook(lambda *_, name=name: at.__setitem__(0, name))
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):  # dropout may draw
            module(inputs)
    except ValueError as error:
        return at[0] if "Expected more than 1" in str(error) else None
    except (RuntimeError, TypeError, LookupError, AttributeError):
        return None  # it needs more than inputs, or is wrong: the run reports that with its place
    return None


def on_device(
    data: FederatedData, device: torch.device, dtype: torch.dtype | None = None
) -> FederatedData:
    """The data with their arrays on this device, and floating targets of this type; the lists of
    indices stay on the CPU, where clients and batches are drawn.
    """
    kind = dtype if dtype and data.targets.is_floating_point() else data.targets.dtype
    if data.inputs.device == device and data.targets.dtype == kind:
        return data
    moved = copy.copy(data)  # checked already
    for name in ("inputs", "targets", "test_inputs", "test_targets"):
        if (array := getattr(data, name)) is not None:
            object.__setattr__(moved, name, array.to(device, kind if "targets" in name else None))
    return moved


def levels_for(given: Capacities | None, rule: Rule | None) -> tuple[float, ...]:
    """All capacities. Raises ConfigError for some without a sub-model, or the other way round."""
    if given is None or (not isinstance(given, Path) and not len(given)):
        if rule is None:
            return ()
        raise ConfigError(
            f"submodel {rule.name} needs capacities: levels such as ['1/4', 1], or one for "
            "every client"
        )
    if rule is None:
        raise ConfigError("capacities are given without a submodel; give submodel= too")
    return tuple(sorted(set(levels_of(given))))


def weights_of(source: Mapping[str, Tensor] | str | os.PathLike[str]) -> dict[str, Tensor]:
    """Weights as they are, or read from a safetensors file. Raises DataError."""
    if isinstance(source, Mapping):
        return dict(source)
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(source)
    except SafetensorError as error:
        raise DataError(
            f"weights '{source}' are no safetensors file ({error}); of a file that torch.save "
            "wrote give what torch.load gives"
        ) from None
    except OSError as error:
        raise DataError(f"weights '{source}' cannot be read: {error}") from None
