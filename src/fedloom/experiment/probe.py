"""A few small passes before round 1: what a run would take for something else without a word."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ..core.net import Net, logits_of
from ..core.rng import others_restored, seed_all
from ..core.vector import Vec, rec
from ..data import FederatedData
from ..engines.base import one_thread
from ..objectives import Objective
from ..objectives.base import Batch, Function

_log = logging.getLogger(__name__)
_FEW, _SEED = 4, 7
_NEAR = 1e-3  # relative: rounding in any type that trains


def probe(net: Net, original: nn.Module, data: FederatedData, objective: Objective) -> list[str]:
    """What is to be warned of before a run; nothing of the run changes. original: the user's own
    module, of which `net` has a copy. A model or loss that fails here is left to the run.
    """
    try:
        # of so few examples a second thread takes no part, and waits for its processor
        with one_thread(), others_restored(), torch.enable_grad():
            return [*_Passes(net, data, objective).remarks(original)]
    except Exception:  # whatever a user's model or loss raises, the run says with its place
        return []


class _Passes:
    """Forward and backward passes of a copy of the model on a few examples."""

    def __init__(self, net: Net, data: FederatedData, objective: Objective) -> None:
        self.net, self.loss = copy.deepcopy(net), copy.deepcopy(objective)
        self.x, self.buffers = net.init(), net.init_buffers()
        device, few = data.inputs.device, data.trial_indices[: 2 * _FEW]
        self.batches = [
            tuple(v.to(net.device) for v in (data.ready(data.inputs[i]), data.targets[i]))
            for i in (few[:_FEW].to(device), few[-_FEW:].to(device))
        ]

    def value(self, x: Vec, batch: Batch) -> Tensor:
        """The mean loss of a batch, 0-d."""
        if type(self.loss).init is Objective.init:
            return self.loss.mean(self.net, x, batch, x.detach(), rec())
        return self.loss.score(logits_of(self.net(x, batch[0])), batch).mean()

    def gradient(self, batch: Batch, training: bool = True) -> tuple[Tensor, Vec, Tensor]:
        """-> the loss with its graph, its gradient (d,), and the point."""
        self.net.load_buffers(self.buffers)
        self.net.train(training)
        seed_all(_SEED, self.x)
        x = self.x.clone().requires_grad_()
        loss = self.value(x, batch)
        (gradient,) = torch.autograd.grad(loss, x, retain_graph=True, allow_unused=True)
        return loss, torch.zeros_like(x) if gradient is None else gradient, x

    def remarks(self, original: nn.Module) -> Iterator[str]:
        first, second = self.batches
        loss, one, x = self.gradient(first)
        if count := _count_untrained(loss, x):
            yield (
                f"the loss has {count} trainable values of its own, which no client trains: put "
                "such parameters into the model, or set requires_grad = False if they are fixed"
            )
        self.gradient(second)
        again, other, _ = self.gradient(first)
        if not (torch.equal(loss, again) and _near(one, other)):
            yield (
                "two passes over one batch with one seed differ: the model or the loss keeps "
                "something from call to call, or draws from a generator of its own, so that two "
                "runs of one seed differ; draw from torch (torch.rand), and keep nothing on self"
            )
        yield from self._of_a_sum(first)
        if _trains_otherwise(original, self, first):
            yield (
                f"{type(original).__name__} has gradient hooks on its parameters (register_hook), "
                "and a run works on a copy without them; multiply in forward(), or set "
                "requires_grad = False for what is frozen"
            )

    def _of_a_sum(self, batch: Batch) -> Iterator[str]:
        """The loss of a batch is that of the batch twice, or it is no mean."""
        if isinstance(self.loss, Function):
            return
        twice: Any = tuple(torch.cat([v, v]) for v in batch)
        single, double = (self.gradient(b, training=False)[0].item() for b in (batch, twice))
        if single and abs(double / single - 2) < _NEAR:
            yield (
                f"the loss {self.loss.name} of a batch twice is twice as large: it is a sum, and "
                "is taken for a mean, so that steps and printed losses are as many times too large "
                "as a batch has examples; give the mean, such as reduction='mean'"
            )


def _count_untrained(loss: Tensor, x: Tensor) -> int:
    """How many values beside x the loss has a gradient for."""
    visited, count, pending = set(), 0, [loss.grad_fn]
    while pending:
        node = pending.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        leaf = getattr(node, "variable", None)  # of the node where a gradient is added up
        if leaf is not None and leaf is not x:
            count += leaf.numel()
        pending += [before for before, _ in node.next_functions]
    return count


def _near(one: Vec, other: Vec) -> bool:
    largest = max(float(one.abs().max()), float(other.abs().max()))
    return float((one - other).abs().max()) <= _NEAR * largest


def _trains_otherwise(original: nn.Module, passes: _Passes, batch: Batch) -> bool:
    """Whether the user's own module has the same loss there, and another gradient."""
    trained = [p for p in original.parameters() if p.requires_grad]
    weights = torch.cat([p.detach().reshape(-1) for p in trained])
    if weights.dtype != passes.x.dtype or not isinstance(passes.loss, Objective):
        return False
    passes.x = weights.to(passes.x.device)
    loss, gradient, _ = passes.gradient(batch, training=False)
    modes = [(m, m.training) for m in original.modules()]
    original.eval()
    try:
        inputs, targets = (v.to(weights.device) for v in batch)
        seed_all(_SEED, weights)
        original_loss = passes.loss.score(logits_of(original(inputs)), (inputs, targets)).mean()
        gradients = torch.autograd.grad(original_loss, trained, allow_unused=True)
    finally:
        for module, training in modes:
            module.training = training
    original_gradient = torch.cat(
        [
            (torch.zeros_like(p) if g is None else g).reshape(-1)
            for g, p in zip(gradients, trained, strict=True)
        ]
    )
    same = abs(original_loss.item() - loss.item()) <= _NEAR * abs(loss.item())
    return same and not _near(original_gradient.to(gradient.device), gradient)
