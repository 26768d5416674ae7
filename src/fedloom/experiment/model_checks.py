"""Of the model before a run: does it fit to data, loss, metrics and device?"""

from __future__ import annotations

import copy
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from ..objectives.base import is_one
from ..submodels.base import SubModel
from .data_checks import check_classes

_log = logging.getLogger(__name__)
NORMS: tuple[type[nn.Module], ...] = (nn.GroupNorm, nn.modules.batchnorm._NormBase)
# these compare entry by entry within one call, and broadcast as the operators do
_BY_ENTRY = {"mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "poisson_nll_loss"}


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
    for training, where, advice in _singles(fed, cohorts):
        nets = [net]
        if submodel is not None and submodel.cuts and fed.capacities:
            x, small = net.init(), min(fed.capacities)
            nets.append(submodel.view(x, net, small, 0).net or net)
        for one in nets:
            module = copy.deepcopy(one.module).train(training)  # statistics may move
            if (
                norm := _find_refusing_norm(module, fed.batch(fed.data.trial_indices[:1])[0])
            ) is not None:
                raise CompositionError(
                    f"{type(one.module).__name__}: {norm} has one value to normalise in a batch of "
                    f"one example, as {where}; {advice}, or take a norm over more values (such as "
                    "fewer groups)"
                )


def _singles(fed: Federation, cohorts: ClientSampler) -> Iterator[tuple[bool, str, str]]:
    """Where a batch of one example occurs: whether in training, as text, and what to do."""
    if isinstance(cohorts.size, Sequence):
        clients = sorted({i for cohort in cohorts.size for i in cohort})
    else:  # with changing availability, some clients may never take part
        clients = [] if cohorts.churn else list(range(fed.population))
    for i in clients:
        if 1 in fed.sizes(i):
            n, batch = int(fed.data.sizes[i]), fed.local.batch
            batches = f"{n} in batches of {batch}" if batch and n > 1 else f"{n} in all"
            yield True, f"client {i} has ({batches})", "take another local.batch or local.drop_last"
            break
    tests = fed.data.test_targets
    if tests is not None and len(tests) % evaluation_batch(tests) == 1:
        size = evaluation_batch(tests)
        words = f"the test set ends with ({len(tests)} in batches of {size})"
        yield False, words, "give another number of test samples"


def _find_refusing_norm(module: nn.Module, inputs: Tensor) -> str | None:
    """The norm that cannot take this one example; None if all can."""
    last_norm = [""]
    for path, m in module.named_modules():
        if isinstance(m, NORMS):
            name = f"{type(m).__name__} '{path}'"
            m.register_forward_pre_hook(lambda *_, name=name: last_norm.__setitem__(0, name))
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):  # dropout may draw
            module(inputs)
    except ValueError as error:
        return last_norm[0] if "Expected more than 1" in str(error) else None
    except (RuntimeError, TypeError, LookupError, AttributeError):
        return None  # it needs more than inputs, or is wrong: the run reports that with its place
    return None
