"""Of data and model before a run: are targets what was meant, and does the model fit to data, loss,
metrics and device?
"""

from __future__ import annotations

import copy
import logging
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..core.net import Net, logits_of
from ..core.parsing import user_path
from ..core.products import has_bfloat16
from ..data import FederatedData
from ..engines.scores import Whole, evaluation_batch, is_whole, per_example, weight_of
from ..errors import CompositionError, ConfigError, DataError
from ..federation.federation import Federation
from ..federation.local import Local
from ..federation.sampling import ClientSampler
from ..objectives import CrossEntropy, Objective, SquaredError
from ..objectives.base import by_class, is_one
from ..submodels.base import SubModel

_log = logging.getLogger(__name__)
_ROUNDED = 1e-3  # how far from 1 probabilities may sum
_FEW = 20  # different whole numbers: up to so many may be meant as classes
NORMS: tuple[type[nn.Module], ...] = (nn.GroupNorm, nn.modules.batchnorm._NormBase)
# these compare entry by entry within one call, and broadcast as the operators do
_BY_ENTRY = {"mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "poisson_nll_loss"}


# ---------------------------------------------------------------------------------------- the data
def check_targets(data: FederatedData, loss_inferred: bool) -> None:
    """Raise DataError for classes given as floats in columns, one 1 or probabilities in a row, if
    the loss is inferred from the targets' type. Warn of numbers that may be meant as classes, of
    labels that do not begin at 0, and if most of the data is held out.
    """
    y = data.targets
    _warn_of_values(data, loss_inferred)
    rows = loss_inferred and y.is_floating_point() and y.ndim > 1 and y.shape[1] > 1
    if rows and bool((y >= 0).all()) and bool(((y.sum(1) - 1).abs() < _ROUNDED).all()):
        one = bool((y.amax(1) == 1).all())
        how = (
            "targets.argmax(1)" if one else "the loss: objective=torch.nn.functional.cross_entropy"
        )
        raise DataError(
            f"the targets are floats of shape {list(y.shape)}, and every row "
            f"{'has one 1' if one else 'sums to 1, as probabilities of classes do'}: for classes "
            f"give {how}, for a regression on them objective=SquaredError()"
        )


def _warn_of_values(data: FederatedData, loss_inferred: bool) -> None:
    y = data.targets
    if y.is_floating_point():
        few = loss_inferred and y[0].numel() == 1 and bool((y == y.round()).all())
        values = sorted({*y.flatten().tolist()}) if few else []
        if 1 < len(values) <= _FEW:
            _log.warning(
                "the targets are the real numbers %s, so this is a regression (squared error); for "
                "classes give integers (0 and not 0.0), for a regression objective=squared_error",
                ", ".join(f"{v:.1f}" for v in values[:5]) + (", ..." if len(values) > 5 else ""),
            )
    elif y.ndim == 1 and data.roll is None and (least := _least(data)):
        _log.warning(
            "the labels are %d to %d, and classes are counted from 0: no sample is of class 0, for "
            "which the model has an output; subtract %d from the labels",
            *(least, (data.classes or 1) - 1, least),
        )
    elif data.outcome == "pixels" and data.roll is None:
        present = data.label_counts().sum(0) > 0
        classes = max(len(present), len(data.class_names))
        absent = [c for c in range(classes) if c >= len(present) or not present[c]]
        if absent:
            _log.warning(
                "no training row has a pixel of class %s, so no model can learn it here",
                ", ".join(data.class_names[c] if data.class_names else str(c) for c in absent),
            )


def _least(data: FederatedData) -> int:
    """The lowest label of all."""
    y, tests = data.targets, data.test_targets
    least = int(y.min())
    return least if tests is None or not len(tests) else min(least, int(tests.min()))


def check_classes(outputs: Any, targets: Tensor, data: FederatedData) -> None:
    """Raise DataError if the model's outputs for a few samples do not suit cross-entropy on their
    targets, or are too few for all classes.
    """
    classes = data.classes
    if classes is None:
        raise DataError(
            f"cross-entropy needs integer labels, but the targets are {targets.dtype}; write "
            "classes as integers (0 and not 0.0, targets.long() in Python), or take "
            "objective=squared_error for a regression"
        )
    shape = list(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
    if not isinstance(outputs, Tensor) or outputs.ndim < 2:
        raise DataError(f"cross-entropy needs outputs (batch, classes) of the model, got {shape}")
    logits = by_class(outputs, targets)
    if logits.shape[:1] + logits.shape[2:] != targets.shape:
        raise DataError(
            f"the model gives {shape} for targets of shape {list(targets.shape)}; cross-entropy "
            "needs (batch, classes) for labels, (batch, length, classes) for the tokens of a text, "
            "(batch, classes, height, width) for labels of pixels (batch, height, width)"
            + ": give targets[:, 0]"
            * (targets.ndim > 3 and targets.shape[1] == 1)
        )
    if logits.shape[1] < classes:
        least = _least(data)
        if logits.shape[1] >= classes - least:
            raise DataError(
                f"the labels are {least} to {classes - 1}, but classes are counted from 0: "
                f"subtract {least} from the labels, or give a model with {classes} outputs"
            )
        pixels = (
            f"; if {classes - 1} marks pixels that do not count, give objective.ignore = "
            f"{classes - 1} (CrossEntropy(ignore={classes - 1}) in Python)"
        ) * (data.outcome == "pixels")
        raise DataError(
            f"the model gives {logits.shape[1]} outputs per example, "
            f"but labels go up to {classes - 1}; it needs {classes}{pixels}"
        )


def on_device(
    data: FederatedData, device: torch.device, dtype: torch.dtype | None = None
) -> FederatedData:
    """The data with their arrays on this device, and floating targets of this type; the lists of
    indices stay on the CPU, where clients and batches are drawn.
    """
    kind = dtype if dtype and data.targets.is_floating_point() else data.targets.dtype
    if data.inputs.device == device and data.targets.dtype == kind:
        return data
    out = copy.copy(data)  # checked already
    for name in ("inputs", "targets", "test_inputs", "test_targets"):
        if (array := getattr(data, name)) is not None:
            object.__setattr__(out, name, array.to(device, kind if "targets" in name else None))
    if data.unseen is not None:
        unseen = data.unseen.inputs.to(device), data.unseen.targets.to(device, kind)
        object.__setattr__(out, "unseen", data.unseen._replace(inputs=unseen[0], targets=unseen[1]))
    return out


# --------------------------------------------------------------------------------------- the model
def weights_of(source: Mapping[str, Tensor] | str | os.PathLike[str]) -> dict[str, Tensor]:
    """Weights as they are, or read from a safetensors file. Raises DataError."""
    if isinstance(source, Mapping):
        return dict(source)
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(user_path(source))
    except SafetensorError as error:
        raise DataError(
            f"weights '{source}' are no safetensors file ({error}); of a file that torch.save "
            "wrote give what torch.load gives"
        ) from None
    except OSError as error:
        raise DataError(f"weights '{source}' cannot be read: {error}") from None


@torch.random.fork_rng(devices=[])  # the model may draw
def takes_channels_last(net: Net, data: FederatedData, setting: bool | None) -> bool:
    """True if images go to the model as channels-last. A model that flattens with view() cannot
    take them; one forward pass shows that.
    """
    inputs = data.ready(data.inputs[:2]).to(net.device)
    if setting is not None or inputs.ndim != 4:
        return bool(setting) and inputs.ndim == 4
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
    index = data.trial_indices[:2]
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
        one = type(objective) is CrossEntropy and data.classes == 2 and is_one(outputs, targets)
        if not one:
            check_classes(outputs, targets, data)


def _hint(module: nn.Module, inputs: Tensor, message: str) -> str:
    """What to change, if integers go to a layer that takes numbers, or the first layer is linear
    and of another width than an example. message: of torch.
    """
    if inputs.dtype == torch.int64 and "long" in message.lower():
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


def check_shapes(
    net: Net, data: FederatedData, objective: Objective, metrics: Mapping[str, Any]
) -> None:
    """Try the metrics, and the loss if outputs and targets have as many values in different shapes.
    Raises DataError if one compares every output with every target, or a metric gives no number.
    """
    count = 4 if data.classes == 3 else 3  # a value per class is no value per example
    index = data.trial_indices[:count].repeat(count)[:count].to(data.inputs.device)
    inputs, targets = data.ready(data.inputs[index]), data.targets[index]
    net.train(False)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        outputs = logits_of(net(net.init(), inputs))
        check_pairs("the loss", lambda o, t: objective.score(o, (inputs, t)), outputs, targets)
        for name, metric in metrics.items():
            call = copy.deepcopy(metric).update if is_whole(metric) else metric
            check_pairs(f"metric '{name}'", call, outputs, targets)
            check_values(name, metric, outputs, targets)


class _PairsError(Exception):
    """The function compares every output with every target: (n, 1) and (n,) broadcast to (n, n),
    and the mean of that looks like any other number.
    """


class _PairDetector(TorchFunctionMode):
    """Follows values made of outputs and of targets; an operation on one of each, still in their
    first shapes, may not give more values than they have.
    """

    def __init__(self, outputs: Tensor, targets: Tensor) -> None:
        super().__init__()
        self.shapes = outputs.shape, targets.shape
        self.most = outputs.numel()
        self.tracked = [outputs], [targets]  # kept, so that no other tensor gets their ids

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """See torch.overrides."""
        tensors = [v for v in (*args, *(kwargs or {}).values()) if isinstance(v, Tensor)]
        derived = [[v for v in tensors if any(v is m for m in tracked)] for tracked in self.tracked]
        both = all(
            any(v.shape == shape for v in part)
            for part, shape in zip(derived, self.shapes, strict=True)
        )
        if both and getattr(func, "__name__", "") in _BY_ENTRY:
            raise _PairsError  # inside, nothing is seen
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            if both and result.numel() > self.most:
                raise _PairsError
            for part, tracked in zip(derived, self.tracked, strict=True):
                if part:
                    tracked.append(result)
        return result


def check_pairs(subject: str, f: Callable[..., Any], outputs: Any, targets: Tensor) -> None:
    """Call f(outputs, targets), a loss or a metric, if both have as many values in different
    shapes.

    Raises DataError if it compares every output with every target; any other error is left to the
    run, which reports its place.
    """
    if not isinstance(outputs, Tensor) or outputs.shape == targets.shape:
        return
    if outputs.numel() != targets.numel():
        return
    try:
        with _PairDetector(outputs, targets):
            f(outputs, targets)
    except _PairsError:
        one, other = (_shape(v) for v in (outputs, targets))
        raise DataError(
            f"{subject} compares outputs of shape {one} with targets of shape {other}: every "
            "output with every target, [n, n]; give targets of the outputs' shape, or reshape one "
            "of them in the function (outputs.view_as(targets))"
        ) from None
    except Exception:
        return


def check_values(name: str, metric: Any, outputs: Any, targets: Tensor) -> None:
    """Call a metric once, so that what it gives is refused before the run. Raises DataError.

    An error of the metric's own is left to the run: it may need more examples, or all classes.
    """
    try:
        with warnings.catch_warnings(action="ignore"):  # of few examples
            if is_whole(metric):
                whole = Whole({name: metric})
                whole.update(outputs, targets)
                whole.values()
                return
            value = metric(outputs, targets)
            weight_of(name, metric, targets)
    except DataError:
        raise
    except Exception:
        return
    per_example(value, len(targets), f"metric '{name}'")


def _shape(v: Tensor) -> str:
    return f"[{', '.join(['n', *map(str, v.shape[1:])])}]"


def check_singles(
    net: Net, fed: Federation, submodel: SubModel | None, cohorts: ClientSampler
) -> None:
    """Run the model, and its smallest sub-model, on one example if a batch of one occurs: at a
    client that may take part, or at the end of the test set.

    Raises CompositionError if a norm then has one value to normalise, which torch refuses.
    """
    if not any(isinstance(m, NORMS) for m in net.module.modules()):
        return
    nets = [net]
    if submodel is not None and submodel.cuts and fed.capacities:
        nets.append(submodel.view(net.init(), net, min(fed.capacities), 0).net or net)
    for training, where, advice in _singles(fed, cohorts):
        for one in nets:
            module = copy.deepcopy(one.module).train(training)  # statistics may move
            if _refuses_one(module, fed.batch(fed.data.trial_indices[:1])[0]):
                raise CompositionError(
                    f"{type(one.module).__name__}: a norm has one value to normalise in a batch of "
                    f"one example, as {where}; {advice}, or take a norm over more values (such as "
                    "fewer groups)"
                )


def _singles(fed: Federation, cohorts: ClientSampler) -> Iterator[tuple[bool, str, str]]:
    """Where a batch of one example occurs: whether in training, as text, and what to do."""
    clients: Iterable[int] = range(fed.population)
    if isinstance(cohorts.size, Sequence):
        clients = sorted({i for cohort in cohorts.size for i in cohort})
    elif cohorts.churn:  # some clients may never take part
        clients = ()
    for i in clients:
        if 1 in fed.sizes(i):
            n, batch = int(fed.data.sizes[i]), fed.local.batch
            batches = f"{n} in batches of {batch}" if batch and n > 1 else f"{n} in all"
            yield True, f"client {i} has ({batches})", "take another local.batch or local.drop_last"
            break
    tests = fed.data.test_targets
    if tests is not None and len(tests) % (size := evaluation_batch(tests)) == 1:
        where = f"the test set ends with ({len(tests)} in batches of {size})"
        yield False, where, "give another number of test samples"


def _refuses_one(module: nn.Module, inputs: Tensor) -> bool:
    """Whether a norm cannot take this one example."""
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):  # dropout may draw
            module(inputs)
    except ValueError as error:
        return "Expected more than 1" in str(error)
    except (RuntimeError, TypeError, LookupError, AttributeError):
        pass  # it needs more than inputs, or is wrong: the run reports that with its place
    return False
