"""The score of a model on data, batch by batch: sums over examples, in ranges that add up."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Real
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from ..core.net import Net, logits_of
from ..core.rng import key, seed_all, seed_torch, substream
from ..core.vector import Vec, aligned
from ..errors import ClientError, DataError, FedloomError
from ..federation.federation import Federation
from ..plan import Plan
from .author_rules import in_words, with_note
from .heartbeat import beat

EVALUATION_BATCH = 500  # labels, or tokens; part of the bits of a loss, hence no setting
PIXELS = 1 << 18  # that are evaluated at once: 16 channels of them take 16 MiB


class Score(NamedTuple):
    """Sums over examples: the loss, and every metric with its weights. each, each_weights: the
    metrics and their weights per example, but for those of a whole set and those that give means of
    batches. bins: of a node's examples, see reliability.Bins.
    """

    examples: int
    loss: float
    values: dict[str, float]
    weights: dict[str, float]
    each: dict[str, Tensor]
    each_weights: dict[str, Tensor]
    bins: Sequence[Sequence[float]] = ()

    def mean(self, name: str, metrics: Mapping[str, Any]) -> float:
        """The value of a metric, or the mean loss if there is no metric of this name."""
        if name not in metrics:
            return self.loss / max(self.examples, 1)
        return final(metrics[name], self.values[name] / (self.weights[name] or 1.0))


def final(metric: Any, mean: float) -> float:
    """The value of a metric, from its mean."""
    make = getattr(metric, "final", None)
    return mean if make is None else float(make(mean))


def is_whole(metric: Any) -> bool:
    """True if a metric is an object that is measured on a whole set."""
    return all(callable(getattr(metric, name, None)) for name in ("update", "compute"))


def _of_labels(metric: Any) -> bool:
    """True for torchmetrics' metrics of labels, most of which take whole numbers alone."""
    return type(metric).__module__.startswith("torchmetrics.classification")


class Whole:
    """Copies of the metrics that are measured on a whole set, for one set."""

    def __init__(self, metrics: Mapping[str, Any]) -> None:
        self._metrics = {k: copy.deepcopy(m) for k, m in metrics.items() if is_whole(m)}
        for metric in self._metrics.values():
            if callable(reset := getattr(metric, "reset", None)):
                reset()

    def update(self, outputs: Any, targets: Tensor) -> None:
        """Add one batch, on the CPU, because such objects keep what they gather."""
        on_cpu, targets = outputs.cpu() if isinstance(outputs, Tensor) else outputs, targets.cpu()
        for name, metric in self._metrics.items():
            converted = targets
            if targets.is_floating_point() and _of_labels(metric):  # several of an example
                converted = targets.long()
            with_note(f"metric '{name}'", metric.update, on_cpu, converted)

    def values(self) -> dict[str, float]:
        """{name: value}. Raises DataError for a value that is no number."""
        values = {k: with_note(f"metric '{k}'", m.compute) for k, m in self._metrics.items()}
        for name, value in values.items():
            tensor = isinstance(value, Tensor)
            if not (value.numel() == 1 if tensor else isinstance(value, Real)):
                kind = f"shape {list(value.shape)}" if tensor else f"a {type(value).__name__}"
                raise DataError(f"metric '{name}': compute() gave {kind}; it must give one number")
        return {name: float(value) for name, value in values.items()}


def per_example(value: Any, count: int, source: str) -> Tensor:
    """A loss or metric as (B,), also if a user's function gives only the batch's mean."""
    if isinstance(value, Real):
        value = torch.tensor(float(value))
    if not isinstance(value, Tensor):
        raise DataError(
            f"{source} gave a {type(value).__name__}; it must give a tensor with one value per "
            "example, or the batch's mean as a number"
        )
    # booleans and integers have no mean in torch
    each: Tensor = value if value.is_floating_point() else value.to(_wide(value))
    if each.ndim == 0:
        return each.expand(count)
    if len(each) != count:
        raise DataError(
            f"{source} gave shape {list(each.shape)} for a batch of {count}; "
            "it must give one value per example, or the batch's mean as a scalar"
        )
    return each.reshape(count, -1).mean(1)


def evaluation_batch(targets: Tensor) -> int:
    """How many examples are evaluated at once. Texts have fewer, because logits of 500 texts of 35
    words and a vocabulary of 33,278 need more than two gigabytes; so have large pictures with a
    label for each pixel.

    >>> [evaluation_batch(torch.zeros(shape).long()) for shape in ((9,), (9, 35), (9, 128, 128))]
    [500, 14, 16]
    """
    if targets.ndim > 2 and not targets.is_floating_point():
        return max(1, min(EVALUATION_BATCH, PIXELS // math.prod(targets.shape[1:])))
    tokens = targets.shape[1] if targets.ndim == 2 and not targets.is_floating_point() else 1
    return max(1, EVALUATION_BATCH // tokens)


def weight_of(name: str, metric: Any, targets: Tensor) -> Tensor:
    """How much each example counts in a metric's mean (B,)."""
    weigh = getattr(metric, "weight", None)
    weight = weigh(targets) if callable(weigh) else targets.new_ones(len(targets))
    if isinstance(weight, Tensor) and weight.shape == targets.shape[:1]:
        return weight
    shape = getattr(weight, "shape", None)
    actual = f"a {type(weight).__name__}" if shape is None else f"shape {list(shape)}"
    raise DataError(
        f"metric '{name}': weight() gave {actual} for a batch of {len(targets)}; it must give a "
        "tensor with one number per example"
    )


def score_of(
    plan: Plan, fed: Federation, net: Net, x: Vec, parts: Iterable[tuple[Tensor, Tensor]]
) -> Score:
    """The score of a model, with metrics of the whole set. The caller has loaded the buffers."""
    whole = Whole(fed.metrics)
    scores: list[Score] = []
    for part in parts:
        scores += evaluate_range(plan, fed, net, x, *part, len(scores), whole)
    total = add(scores)
    with _users_errors(plan):
        whole_values = whole.values()
    values, weights = total.values | whole_values, total.weights | dict.fromkeys(whole_values, 1.0)
    names = [k for k in fed.metrics if k in values]
    return total._replace(
        values={k: values[k] for k in names}, weights={k: weights[k] for k in names}
    )


@contextmanager
def _users_errors(plan: Plan) -> Iterator[None]:
    """Turn any error of a user's metric into an error of fedloom."""
    try:
        yield
    except FedloomError:
        raise
    except Exception as error:
        why = in_words(error)
        raise ClientError(f"evaluation of {plan.algorithm.method}: {why}") from error


def _wide(value: Tensor) -> torch.dtype:
    """Double, where the value's device has it."""
    return torch.float32 if value.device.type == "mps" else torch.float64


def evaluate_range(
    plan: Plan,
    fed: Federation,
    net: Net,
    x: Vec,
    inputs: Tensor,
    targets: Tensor,
    first: int = 0,
    whole: Whole | None = None,
) -> list[Score]:
    """One Score per evaluation batch, in order, for metrics that are functions. Metrics in `whole`
    see every batch. first: the number of the first batch in all of the data: what a model draws
    depends on the batch, not on who evaluates it. The caller has loaded the buffers.
    """
    functions = {k: f for k, f in fed.metrics.items() if not is_whole(f)}
    by_example = dict.fromkeys(functions)  # whose values are those of examples
    seed = key(fed.seed, "evaluate")
    rows: list[list[Tensor]] = []  # of a batch the losses, the metrics, their weights: (B,) each
    net.train(False)
    net.bind(x)
    seed_all(substream(seed, first), x)
    with torch.no_grad():
        size = evaluation_batch(targets)
        for number, a in enumerate(range(0, len(inputs), size), first):
            beat()
            seed_torch(substream(seed, number), x)
            batch = fed.formatted(aligned(fed.data.ready(inputs[a : a + size])))
            expected = aligned(targets[a : a + size])
            with Slices():
                outputs, count = logits_of(net.evaluated(batch)), len(batch)
            with _users_errors(plan):
                loss = plan.objective.score(outputs, (batch, expected))
                values = {
                    k: with_note(f"metric '{k}'", f, outputs, expected)
                    for k, f in functions.items()
                }
                if whole is not None:
                    whole.update(outputs, expected)
                row = [per_example(v, count, f"metric '{k}'") for k, v in values.items()]
                weights = [weight_of(k, f, expected) for k, f in functions.items()]
                rows.append([per_example(loss, count, "the loss"), *row, *weights])
            for name, value in values.items() if count > 1 else ():
                if not isinstance(value, Tensor) or value.ndim == 0:
                    by_example.pop(name, None)  # one value for several examples
    return _scores(rows, list(functions), list(by_example)) if rows else []


def _scores(rows: list[list[Tensor]], names: list[str], by_example: list[str]) -> list[Score]:
    """A Score per batch. All values go to the host by one copy, and are added in double."""
    columns = [torch.cat(column) for column in zip(*rows, strict=True)]
    table = torch.stack([column.to(_wide(column)) for column in columns]).cpu().double()
    scores = []
    for part in torch.split(table, [len(row[0]) for row in rows], 1):
        each = dict(zip(names, part[1:], strict=False))
        weights = dict(zip(names, part[1 + len(names) :], strict=True))
        sums = {k: float((v * weights[k]).sum()) for k, v in each.items()}
        mass = {k: float(v.sum()) for k, v in weights.items()}
        of_examples = {k: each[k] for k in by_example}, {k: weights[k] for k in by_example}
        scores.append(Score(part.shape[1], float(part[0].sum()), sums, mass, *of_examples))
    return scores


def add(scores: list[Score]) -> Score:
    """The sum of scores from left to right: its bits do not depend on where ranges are cut."""

    def total(values: Any) -> float:
        return functools.reduce(lambda a, b: a + b, values, 0.0)

    names = scores[0].values if scores else {}
    by_example = [k for k in names if all(k in s.each for s in scores)]  # of every example
    return Score(
        sum(s.examples for s in scores),
        total(s.loss for s in scores),
        {k: total(s.values[k] for s in scores) for k in names},
        {k: total(s.weights[k] for s in scores) for k in names},
        {k: torch.cat([s.each[k] for s in scores]) for k in by_example},
        {k: torch.cat([s.each_weights[k] for s in scores]) for k in by_example},
    )


_PLAIN = {"padding": 0, "dilation": 1, "ceil_mode": False, "return_indices": False}
FEW = 20  # channels in channels-last order up to which slices are faster; in torch's order always


class Slices(TorchFunctionMode):
    """Inside, maximum pooling of 2 x 2 takes the largest of four slices, where that is faster:
    torch also finds where the maximum was, five times as long for a few channels.

    >>> x = torch.rand(3, 2, 5, 7)
    >>> with torch.no_grad(), Slices():
    ...     y = torch.nn.MaxPool2d(2)(x)
    >>> torch.equal(y, torch.nn.MaxPool2d(2)(x))
    True
    """

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is functional.max_pool2d and _fits(*args, **(kwargs or {})):
            return _largest(args[0])
        return func(*args, **(kwargs or {}))


def _fits(x: Tensor, kernel_size: Any, stride: Any = None, **how: Any) -> bool:
    """how: padding and its like, by torch's names."""
    two = _both(kernel_size) == 2 and _both(stride or kernel_size) == 2
    if not two or any(_both(value) != _PLAIN.get(name) for name, value in how.items()):
        return False
    if x.ndim != 4 or min(x.shape[2:]) < 2 or x.device.type != "cpu" or torch.is_grad_enabled():
        return False
    return x.is_contiguous() or x.shape[1] <= FEW


def _both(value: Any) -> Any:
    """The number that is meant for both axes; None if they differ."""
    if not isinstance(value, tuple | list):
        return value
    return value[0] if len(set(value)) == 1 else None


def _largest(x: Tensor) -> Tensor:
    """(n, C, H, W) -> (n, C, H // 2, W // 2)."""
    x = x[:, :, : x.shape[2] // 2 * 2, : x.shape[3] // 2 * 2]
    rows = torch.maximum(x[:, :, ::2], x[:, :, 1::2])
    return torch.maximum(rows[..., ::2], rows[..., 1::2])
