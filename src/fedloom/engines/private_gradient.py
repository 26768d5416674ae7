"""The private gradient of DP-SGD: every example's gradient, computed in a batch of its own so that
no layer mixes it with others, shortened; their sum; and noise.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, vmap

from ..core.dropout import seeded
from ..core.vector import Rec, Vec, zeros
from ..errors import CompositionError
from ..federation.private_examples import one_gradient
from ..objectives import Objective
from ..plan import Plan
from ..stage import Download
from .author_rules import with_note
from .grad_and_value import grad_and_value

AT_ONCE = 1 << 24  # numbers in the gradients of the examples that are computed together
_APART = 1 << 20  # calls of dropout layers in an example's forward pass, at most

# x (m,), one example's inputs and target, its place in the batch -> its loss, 0-d
ExampleLoss = Callable[[Vec, Tensor, Tensor, Tensor], Tensor]


def example_loss(
    plan: Plan, download: Download, ref: Vec, memory: Rec, seed: int | Tensor
) -> ExampleLoss:
    """The loss of an example alone. ref (d,): the received model; memory: of the objective."""
    objective, net, view = plan.objective, download.net, download.view

    def loss(x: Vec, inputs: Tensor, target: Tensor, place: Tensor) -> Tensor:
        batch = inputs[None], target[None]
        with seeded(seed, place * _APART):  # each has dropout masks of its own
            arguments = net, view.seen(x), batch, ref, memory
            value = with_note(loss_label(objective), objective.loss, *arguments)
        return objective.checked(value, batch).reshape(())

    return loss


def clipped_sum(
    loss: ExampleLoss,
    x: Vec,
    batch: tuple[Tensor, ...],
    weights: Tensor,
    clip: float,
    clients: int = 1,
) -> Vec:
    """The sum over the examples of a batch (B, ...) of their gradients (m,) at x, each shortened to
    the norm `clip` and then weighted; one that is not finite counts as 0. weights (B,): 0 for
    padding; clients: that are computed together.
    """
    inputs, targets = batch
    total, few = zeros(x), max(1, AT_ONCE // max(1, x.numel() * clients))
    places = torch.arange(1, len(targets) + 1, device=x.device)

    def gradient(*example: Tensor) -> Vec:
        return grad_and_value(lambda y: loss(y, *example), x)[0]

    for start in range(0, len(targets), few):
        some = slice(start, start + few)
        each = vmap(gradient)(inputs[some], targets[some], places[some])
        norms = torch.linalg.vector_norm(each, dim=1)
        factors = clip / norms.clamp_min(clip) * weights[some]
        good = norms.isfinite()[:, None]
        total = total + torch.where(good, each * factors[:, None], 0.0).sum(0)
    return total


def undisclosed(plan: Plan, quantity: str) -> CompositionError:
    """The error about a method that looks at the data beside its one gradient in a step."""
    return CompositionError(one_gradient(plan.algorithm.method, f"it asks for {quantity}"))


def loss_label(objective: Objective) -> str:
    """Who is to blame for an exception of a loss: not the method."""
    return f"the model or its loss, {objective.name}"
