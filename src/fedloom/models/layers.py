"""Layers that torch.nn does not have, and normalisation layers by name."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedloom.core.hyper import PositiveInt, checked
from fedloom.errors import ConfigError, DataError

if TYPE_CHECKING:
    from ..submodels.slicing import Flow, Part


def sequential(**blocks: nn.Module) -> nn.Sequential:
    """Make a Sequential of modules with these names."""
    return nn.Sequential(OrderedDict(blocks))


class Residual(nn.Module):
    """A residual block, relu(body(a) + shortcut(a)) (He et al., CVPR 2016, section 3.2).

    body and shortcut map to the same shape; shortcut None is the identity, for a body that keeps
    its input's shape. The width rules of fedloom.submodels can slice a network of such blocks.

    >>> import torch
    >>> block = Residual(nn.Conv2d(3, 8, 3, padding=1), shortcut=nn.Conv2d(3, 8, 1))
    >>> block(torch.zeros(2, 3, 5, 5)).shape
    torch.Size([2, 8, 5, 5])
    """

    def __init__(self, body: nn.Module, shortcut: nn.Module | None = None) -> None:
        super().__init__()
        self.body = body
        self.shortcut = shortcut

    def forward(self, inputs: Tensor) -> Tensor:
        other = inputs if self.shortcut is None else self.shortcut(inputs)
        return F.relu(self.body(inputs) + other)

    def cut(self, part: Part, flow: Flow) -> tuple[nn.Module, Flow]:
        """Slice both branches; see fedloom.submodels.Part. Raises CompositionError where they
        would keep different channels.
        """
        body, out = part.child("body", flow)
        shortcut, other = (None, flow) if self.shortcut is None else part.child("shortcut", flow)
        if not out.same(other):
            raise part.refuse(
                "its branches keep different channels",
                "give it a shortcut with weights where the input of the net goes in, and end the "
                "net with a classifier",
            )
        return Residual(body, shortcut), out


Norm = Literal["group", "instance", "static_batch", "batch"]
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


@checked
def norm_of(norm: Norm, groups: PositiveInt, widths: Sequence[int]) -> Callable[[int], nn.Module]:
    """Return the function that makes a normalisation layer for a number of channels.

    "group": GroupNorm of `groups` groups; "instance": one group per channel; "static_batch": batch
    norm with the statistics of the batch, in training and evaluation, and no running statistics
    (`with_statistics` computes some for evaluation); "batch": batch norm with running statistics,
    which the server averages over the clients. All have weights. widths: the numbers of channels.
    Raises ConfigError for an unknown name, and for groups that do not divide a width.

    >>> norm_of("group", 2, [8])(8).num_groups
    2
    """
    if norm == "group":
        for width in widths:
            if width % groups:
                raise ConfigError(
                    f"groups must divide the widths {', '.join(map(str, widths))}, got {groups}"
                )
        return lambda n: nn.GroupNorm(groups, n)
    if norm == "instance":
        return lambda n: nn.GroupNorm(n, n)
    return lambda n: nn.BatchNorm2d(n, track_running_stats=norm == "batch")


def with_statistics(module: nn.Module, batches: Iterable[Any]) -> nn.Module:
    """Return a copy in evaluation mode whose batch norms use the statistics of batches of inputs.

    For networks trained with "static_batch" (Diao et al., HeteroFL, ICLR 2021: static batch norm),
    once per size of sub-model: the mean over the batches of their means and of their unbiased
    variances. Use batches of 128 or more, shuffled over all clients and without augmentation:
    batches of one client each miss the variance between the clients. Existing running statistics
    are replaced.
    Raises DataError for a module without batch norm, and without batches.

    >>> net = nn.Sequential(nn.BatchNorm1d(1, affine=False, track_running_stats=False))
    >>> settled = with_statistics(net, [torch.tensor([[0.0], [2.0]]), torch.tensor([[4.0], [4.0]])])
    >>> settled[0].running_mean, settled[0].running_var
    (tensor([2.5000]), tensor([1.]))
    """
    out = copy.deepcopy(module).eval()
    norms = [m for m in out.modules() if isinstance(m, _BATCH_NORMS)]
    if not norms:
        raise DataError(
            f"{type(module).__name__} has no batch norm, so there are no statistics to compute; "
            "evaluate it as it is"
        )
    like = next(module.parameters(), torch.empty(0))
    for norm in norms:
        norm.track_running_stats = True
        norm.momentum = None  # a plain mean over the batches
        norm.register_buffer("running_mean", like.new_zeros(norm.num_features))
        norm.register_buffer("running_var", like.new_ones(norm.num_features))
        count = torch.zeros((), dtype=torch.int64, device=like.device)
        norm.register_buffer("num_batches_tracked", count)
        norm.train()
    any_batch = False
    with torch.no_grad():
        for batch in batches:
            out(batch)
            any_batch = True
    if not any_batch:
        raise DataError("there are no batches to compute statistics of; give at least one")
    return out.eval()
