"""What a measure is: a value that looks at a run between two rounds and changes nothing; and the
mean loss of a model over data, as a function of its parameters.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from ..core.hyper import Part, PositiveInt, hyper
from ..core.net import logits_of
from ..core.rng import generator, key, seed_torch
from ..core.vector import Vec
from ..engines.base import one_thread
from ..engines.scores import EVALUATION_BATCH, evaluation_batch, per_example
from ..errors import ConfigError
from ..server.rounds import Run

Loss = Callable[[Any, Any], Tensor]  # (outputs, targets) -> (B,), or the batch's mean
Score = Callable[[Any, tuple[Tensor, Tensor]], Tensor]  # (outputs, (inputs, targets)) -> the same


class MeanLoss:
    """f(x) = the mean of a loss over all examples, in evaluation mode, without augmentation or
    decay. x (d,) are the parameters with requires_grad, in the module's order.

    loss: by default cross-entropy for labels and squared error for numbers. ready: what makes model
    inputs of stored ones. batch: how many examples go through the model at once; no setting of the
    result, but for the last digits. score: a loss (outputs, (inputs, targets)) instead.

    >>> line = nn.Linear(1, 1, bias=False)
    >>> _ = nn.init.constant_(line.weight, 3.0)
    >>> f = MeanLoss(line, torch.ones(4, 1), torch.ones(4, 1))
    >>> f.value(), f.product(torch.tensor([1.0]))  # (w - 1)^2, whose second derivative is 2
    (4.0, tensor([2.]))
    """

    def __init__(
        self,
        module: nn.Module,
        inputs: Tensor,
        targets: Tensor,
        loss: Loss | None = None,
        *,
        ready: Callable[[Tensor], Tensor] = lambda inputs: inputs,
        batch: int = EVALUATION_BATCH,
        score: Score | None = None,
    ) -> None:
        self.module, self.inputs, self.targets = module, inputs, targets
        usual = loss or (_squared if targets.is_floating_point() else _entropy)
        self.score = score or (lambda outputs, batch: usual(outputs, batch[1]))
        self.ready, self.batch = ready, batch
        self.params = [p for p in module.parameters() if p.requires_grad]
        if not self.params:
            raise ConfigError(f"{type(module).__name__} has no parameter to differentiate by")
        if not len(inputs):
            raise ConfigError("the loss is measured on no examples")

    @classmethod
    def of(cls, run: Run, on: str, examples: int, seed: int) -> MeanLoss:
        """A run's model and loss on part of its data. on: "train" or "test"; examples: how many of
        them, drawn by the seed (all if there are fewer).
        """
        inputs, targets = sample_examples(run, on, examples, seed)
        fed, net = run.fed, copy.deepcopy(run.net)  # whose parameters are moved
        net.load_buffers(run.state.buffers)
        net.bind(run.model().clone())

        def ready(stored: Tensor) -> Tensor:
            return fed.formatted(fed.data.ready(stored))

        size, score = evaluation_batch(targets), run.plan.objective.score
        return cls(net.module, inputs, targets, ready=ready, batch=size, score=score)

    @property
    def d(self) -> int:
        """The length of x."""
        return sum(p.numel() for p in self.params)

    @property
    def x(self) -> Vec:
        """The parameters now, as a new vector (d,)."""
        return parameters_to_vector(self.params).detach().clone()

    def at(self, x: Vec) -> float | None:
        """f at other parameters (d,), None if it is not finite; afterwards they are as before."""
        before = self.x
        vector_to_parameters(x, self.params)
        try:
            value = self.value()
        finally:
            vector_to_parameters(before, self.params)
        return value if math.isfinite(value) else None

    def on_square(
        self, middle: Vec, first: Vec, second: Vec, span: float, points: int
    ) -> tuple[list[float], list[list[float | None]]]:
        """Places a, b from -span to span; f(middle + a first + b second), rows are a's."""
        n = points
        places = [span * (2 * i / (n - 1) - 1) if n > 1 else 0.0 for i in range(n)]
        return places, [[self.at(middle + a * first + b * second) for b in places] for a in places]

    def value(self) -> float:
        """f at the parameters as they are."""
        with torch.no_grad(), _evaluating(self.module):
            return sum(float(part.double()) for part in self._parts())

    def product(self, v: Vec) -> Vec:
        """The Hessian of f times v: (d,) -> (d,), by two passes backwards for each batch."""
        out = torch.zeros_like(v)
        pieces = torch.split(v, [p.numel() for p in self.params])
        # cuDNN's recurrent layers cannot be differentiated twice
        safe = torch.backends.cudnn.flags(enabled=False)
        with torch.enable_grad(), safe, _evaluating(self.module):
            for part in self._parts():
                slopes = self._slopes(part, create_graph=True)
                along = sum((g.reshape(-1) * p).sum() for g, p in zip(slopes, pieces, strict=True))
                if isinstance(along, Tensor) and along.requires_grad:  # a linear loss is not bent
                    out += torch.cat([b.reshape(-1) for b in self._slopes(along)]).to(out)
        return out

    def _slopes(self, value: Tensor, create_graph: bool = False) -> tuple[Tensor, ...]:
        """The gradients of a value by each parameter."""
        return torch.autograd.grad(
            value, self.params, create_graph=create_graph, materialize_grads=True
        )

    def _parts(self) -> Iterator[Tensor]:
        """The batches' shares of the mean loss (0-d)."""
        count = len(self.inputs)
        for a in range(0, count, self.batch):
            inputs = self.ready(self.inputs[a : a + self.batch])
            batch = inputs, self.targets[a : a + self.batch]
            losses = self.score(logits_of(self.module(inputs)), batch)
            yield per_example(losses, len(inputs), "the loss").sum() / count


def sample_examples(run: Run, on: str, examples: int, seed: int) -> tuple[Tensor, Tensor]:
    """Stored inputs and targets of a run, so many by the seed. Raises ConfigError without tests."""
    data = run.fed.data
    inputs, targets = data.inputs, data.targets
    if on == "test":
        if data.test_inputs is None or data.test_targets is None:
            raise ConfigError("this run has no test set to measure on; measure on=train")
        inputs, targets = data.test_inputs, data.test_targets
    places = torch.arange(len(inputs))
    if on == "train" and data.validation is not None:
        places = places[~torch.isin(places, data.validation.cpu())]
    if len(places) > examples:
        order = torch.randperm(len(places), generator=generator(seed, "measure"))
        places = places[order[:examples].sort().values]
    places = places.to(inputs.device)
    return inputs[places], targets[places]


@contextmanager
def _evaluating(module: nn.Module) -> Iterator[None]:
    """Inside, a module is in evaluation mode; afterwards every layer is as before."""
    modes = [(m, m.training) for m in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for m, mode in modes:
            m.training = mode


def _entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets, reduction="none")


def _squared(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.reshape(targets.shape) - targets).square()


Readings = dict[str, Any]  # fit for JSON


class Measure(Part, ABC):
    """every: how many rounds apart a run takes it, and after the last one."""

    every: PositiveInt = hyper(50, "rounds between two measurements of a run")

    def __call__(self, run: Run) -> dict[str, float]:
        """The columns of a round's row."""
        return self.columns(self.of(run))

    def of(self, run: Run) -> Readings:
        """Measure a run between two rounds. Raises ConfigError or CompositionError."""
        with one_thread():
            seed_torch(key(run.fed.seed, "measured", run.state.round), run.net.params[0])
            return {"round": run.state.round, **self._of(run)}

    @abstractmethod
    def _of(self, run: Run) -> Readings: ...

    @abstractmethod
    def columns(self, result: Mapping[str, Any]) -> dict[str, float]:
        """The numbers of a result that make a curve, {column: value}."""
