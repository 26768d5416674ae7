"""Blocks that torch.nn does not have: residual ones, norms by name, early exits, several inputs."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedloom.core.hyper import PositiveInt, checked
from fedloom.errors import ConfigError, DataError

if TYPE_CHECKING:
    from ..submodels.slicing import Flow, Part

Inputs = Mapping[str, Tensor] | Sequence[Tensor]
EXACT = 2**24  # float32 has every whole number up to here


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


# -------------------------------------------------------------------------------------- early exits
class Answers(NamedTuple):
    """Outputs of a multi-exit model in training. logits: of the last exit; earlier: of the other
    exits, in order.
    """

    logits: Any
    earlier: tuple[Any, ...]


class MultiExit(nn.Module):
    """A sequence of stages, with an exit after some of them.

    stages: {name: module}; the last stage computes the outputs, or its exit does if it has one.
    exits: {name of a stage: module}. In training the model returns Answers. In evaluation it
    returns the outputs alone and runs no other exit. Raises ConfigError for an exit without a
    stage.

    >>> import torch
    >>> net = MultiExit({"fc": nn.Linear(2, 4), "head": nn.Linear(4, 3)}, {"fc": nn.Linear(4, 3)})
    >>> answers = net(torch.zeros(5, 2))
    >>> answers.logits.shape, len(answers.earlier), net.eval()(torch.zeros(5, 2)).shape
    (torch.Size([5, 3]), 1, torch.Size([5, 3]))
    """

    def __init__(self, stages: Mapping[str, nn.Module], exits: Mapping[str, nn.Module]) -> None:
        super().__init__()
        if odd := sorted(set(exits) - set(stages)):
            raise ConfigError(f"an exit is behind '{odd[0]}', but the stages are {[*stages]}")
        self.stages, self.exits = tuple(stages), tuple(name for name in stages if name in exits)
        for name, stage in stages.items():
            self.add_module(name, stage)
        for name in self.exits:
            self.add_module(f"exit_{name}", exits[name])

    @property
    def blocks(self) -> list[str]:
        """The stages, if the last one computes the outputs; see Net.blocks."""
        return [] if self._ends_early else list(self.stages)

    @property
    def _ends_early(self) -> bool:
        return self.stages[-1] in self.exits

    def forward(self, inputs: Tensor) -> Tensor | Answers:
        h, answers = inputs, []
        for name in self.stages:
            h = self.get_submodule(name)(h)
            last = self._ends_early and name == self.stages[-1]
            if name in self.exits and (self.training or last):
                answers.append(self.get_submodule(f"exit_{name}")(h))
        out: Tensor = answers.pop() if self._ends_early else h
        return Answers(out, tuple(answers)) if self.training else out

    def cut(self, part: Part, flow: Flow) -> tuple[nn.Module, Flow]:
        """Slice the stages, and keep only those up to the exit part.how.exits; see
        fedloom.submodels.Part.
        """
        stages: dict[str, nn.Module] = {}
        exits: dict[str, nn.Module] = {}
        out = None
        for name in self.stages:
            if out is not None:
                part.leave_out(name)
                if name in self.exits:
                    part.leave_out(f"exit_{name}")
                continue
            final = name == self.stages[-1] and not self._ends_early
            stages[name], flow = part.child(name, flow, head=final)
            if name in self.exits:
                exits[name], reached = part.child(f"exit_{name}", flow, head=True)
                if part.how.exits == len(exits):
                    out = reached
        return MultiExit(stages, exits), flow if out is None else out


def with_exits(net: nn.Sequential, channels: Mapping[str, int], classes: int) -> MultiExit:
    """Add exits to a Sequential of named stages. channels: {name of a stage: channels of its output
    map}; an exit is the mean over the map's positions and a linear layer.
    """
    exits = {
        name: sequential(
            pool=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten(), linear=nn.Linear(n, classes)
        )
        for name, n in channels.items()
    }
    return MultiExit(dict(net.named_children()), exits)


# ----------------------------------------------------------------------------------- several inputs
def joined(inputs: Inputs) -> Tensor:
    """Inputs of n examples, each (n, ...) -> one tensor (n, all values of an example), float32.
    Raises DataError for different n, and for whole numbers that float32 does not have.

    >>> joined((torch.tensor([[1, 2], [3, 4]]), torch.tensor([0.5, 1.5])))
    tensor([[1.0000, 2.0000, 0.5000],
            [3.0000, 4.0000, 1.5000]])
    """
    parts = [*inputs.values()] if isinstance(inputs, Mapping) else [*inputs]
    if len({len(part) for part in parts}) != 1:
        raise DataError(f"inputs of {[len(part) for part in parts]} examples; give as many of each")
    for part in parts:
        if not part.is_floating_point() and part.numel() and part.abs().max() > EXACT:
            raise DataError(
                f"whole numbers up to {int(part.abs().max())}; at most {EXACT} is exact"
            )
    return torch.cat([part.reshape(len(part), -1).to(torch.float32) for part in parts], 1)


class SeveralInputs(nn.Module):
    """A network of several inputs, on what joined() makes of them. inputs: those of one example or
    more, for names, shapes and types; of a dictionary they are net's arguments by name.
    """

    def __init__(self, net: nn.Module, inputs: Inputs) -> None:
        super().__init__()
        self.net = net
        self.names: tuple[str, ...] = tuple(inputs) if isinstance(inputs, Mapping) else ()
        parts = inputs.values() if isinstance(inputs, Mapping) else inputs
        self.kinds = [(tuple(part.shape[1:]), part.dtype) for part in parts]
        self.sizes = [max(1, part[:1].numel()) for part in parts]

    def forward(self, x: Tensor) -> Any:
        """x (n, all values of an example) -> what net gives of its inputs."""
        pieces = zip(torch.split(x, self.sizes, 1), self.kinds, strict=True)
        parts = [
            piece.reshape(-1, *shape).to(x.dtype if kind.is_floating_point else kind)
            for piece, (shape, kind) in pieces
        ]
        if self.names:
            return self.net(**dict(zip(self.names, parts, strict=True)))
        return self.net(*parts)
