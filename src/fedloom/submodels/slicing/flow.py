"""What a module needs to slice itself: its place in the net, and the channels that reach it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from ...errors import CompositionError

KNOWN = (
    "build the net of nn.Sequential, fedloom.models.layers.Residual, Linear, Conv2d, GroupNorm, "
    "activations, pooling, Flatten and Dropout, or give the module a method cut(part, flow)"
)


Choose = Callable[[int, int], Tensor]


class Cut(NamedTuple):
    """How a net is sliced to a share of every hidden width.

    rule is named in errors. choose(units, keep) -> which `keep` of `units` are kept, increasing.
    exact: widths that a GroupNorm normalises are sliced in whole groups; otherwise the number of
    groups stays. scaler: layers divide their outputs by the share in "training", "always", or never
    (""). exits: how many exits a net of several keeps; None: all.
    """

    rule: str
    share: float
    choose: Choose
    exact: bool = True
    scaler: str = ""
    exits: int | None = None


class Flow(NamedTuple):
    """The channels between two layers.

    ids (kept,): which of `total` channels are left, in rising order; None: the input of the net,
    of which everything is left. kind: "maps" are channels on axis 1 with places behind (N, C, H,
    W), "rows" are features on the last axis, "flat" are maps made into rows, channel by channel.
    """

    ids: Tensor | None = None
    total: int = 0
    kind: Literal["input", "maps", "rows", "flat"] = "input"

    def same(self, other: Flow) -> bool:
        """True if two branches carry the same channels, so that they may be added."""
        if self.ids is None or other.ids is None:
            return self.all_left() and other.all_left()
        return self.total == other.total and torch.equal(self.ids, other.ids)

    def all_left(self) -> bool:
        """True if no channel is missing."""
        return self.ids is None or len(self.ids) == self.total


class Cuttable(Protocol):
    """A module that knows how to be cut.

    cut(part, flow) returns the smaller module and what flows out of it. `part.child` cuts a
    submodule, `part.channels(n)` chooses among n outputs, `part.keep` cuts one of the module's own
    parameters; every parameter must be named to `part` exactly once, and the smaller module must
    have the same parameters under the same names.
    """

    def cut(self, part: Part, flow: Flow) -> tuple[nn.Module, Flow]:
        """-> the smaller module, and its output flow."""


class Walk(Protocol):
    """The walk through a net that Part reports to; see walk.py."""

    how: Cut
    selection: dict[str, tuple[Tensor | None, ...]]
    left_out: set[str]
    heads: set[int]

    def add_head(self, module: nn.Module) -> None:
        """The last layer with weights of this module gives outputs of the net."""

    def channels(self, n: int) -> Tensor:
        """Which of n channels are kept."""

    def module(self, m: nn.Module, flow: Flow, path: str) -> tuple[nn.Module, Flow]:
        """Cut the module at `path`, which the channels of `flow` reach -> the smaller module, and
        the channels that leave it. Raises CompositionError if no way to cut it is known.
        """


class Part:
    """What a module needs to slice itself: its place in the net, and methods for its parts."""

    def __init__(self, walk: Walk, module: nn.Module, path: str) -> None:
        self._walk, self._module, self.path = walk, module, path

    def child(self, name: str, flow: Flow, head: bool = False) -> tuple[nn.Module, Flow]:
        """Cut the submodule of this name. head: its last layer with weights gives outputs of the
        net, so that it keeps all its rows.
        """
        module = self._module.get_submodule(name)
        if head:
            self._walk.add_head(module)
        return self._walk.module(module, flow, self._at(name))

    def leave_out(self, name: str) -> None:
        """Drop the submodule of this name from the smaller module."""
        inner = self._module.get_submodule(name).named_parameters(prefix=self._at(name))
        self._walk.left_out.update(full for full, _ in inner)

    def channels(self, n: int) -> Tensor:
        """Choose which of n outputs are kept, in rising order. It depends on n alone, so that
        branches of one width agree.
        """
        return self._walk.channels(n)

    def keep(self, name: str, *ids: Tensor | None) -> nn.Parameter | None:
        """Cut a parameter of this module: ids[i] (int64) is what is kept along axis i, None all.

        Returns the smaller parameter; None for one that the module does not have.
        """
        value = getattr(self._module, name)
        if value is None:
            return None
        self._walk.selection[self._at(name)] = ids
        piece = value.detach()
        for axis, some in enumerate(ids):
            piece = piece if some is None else piece.index_select(axis, some.to(piece.device))
        return nn.Parameter(piece.clone(), requires_grad=value.requires_grad)

    def refuse(self, why: str, do: str) -> CompositionError:
        """The error that says why this module cannot be cut, and what to do."""
        kind = type(self._module).__name__
        return CompositionError(
            f"{self._walk.how.rule} cannot cut {kind} '{self.path or 'the model'}': {why}; {do}"
        )

    def is_head(self) -> bool:
        """True for the last layer with weights before outputs of the net: it keeps all its rows."""
        return id(self._module) in self._walk.heads

    @property
    def how(self) -> Cut:
        """How the net is sliced."""
        return self._walk.how

    def _at(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name
