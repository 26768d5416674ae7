"""Multi-exit models: an early exit, which is a classifier, after some of their stages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor, nn

from fedloom.errors import ConfigError
from fedloom.models.layers import sequential

if TYPE_CHECKING:
    from ..submodels.slicing import Flow, Part


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
