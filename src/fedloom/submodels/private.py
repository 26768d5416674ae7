"""Layers that clients keep: a client trains the whole model, sends the shared layers, and goes on
with its own ones in its next round.

The server's private layers stay what they were in the beginning. A client's own ones, and the
statistics of its private norms, are part of its client state, and no bytes are counted for them.
"""

from __future__ import annotations

from fnmatch import fnmatch
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from ..algorithm import Job
from ..core.hyper import Part, ShareBelow1, hyper
from ..core.layout import Layout
from ..core.net import Net
from ..core.registry import Registry
from ..core.vector import Rec, Vec, rec
from ..errors import CompositionError
from .base import View
from .fiarse import NORMS


class PersonalLayers(NamedTuple):
    """What a client keeps: indices (p,), which coordinates; buffers (b,), which of the buffers.
    shared, shared_buffers: the view of the other coordinates, and which other buffers, which
    travel. mask (d,): 1 at its own coordinates.
    """

    indices: Tensor
    buffers: Tensor
    shared: View
    shared_buffers: Tensor
    mask: Tensor

    def state(self, x: Vec, buffers: Vec) -> Rec:
        """The part of a client's state: its own coordinates of x (d,), and of the buffers."""
        index = self.buffers.to(buffers.device)
        return rec(x=x.index_select(0, self.indices), buffers=buffers.index_select(0, index))

    def fill(self, x: Vec, state: Rec) -> Vec:
        """x (d,) with a client's own coordinates."""
        return x.index_copy(0, self.indices, state.x)

    def fill_buffers(self, buffers: Vec, state: Rec) -> Vec:
        """The buffers with a client's own ones."""
        return buffers.index_copy(0, self.buffers.to(buffers.device), state.buffers)


class Private(Part):
    """Says which layers a client keeps. Subclasses become frozen dataclasses whose fields are the
    hyper-parameters; all methods are pure.
    """

    # what to do with a model of which nothing, or all, would be private
    advice: ClassVar[str] = "take another scheme"
    keeps_all: ClassVar[bool] = False  # whether all layers may be private

    @property
    def name(self) -> str:
        """The name in reports and errors."""
        return type(self).__name__

    @property
    def alternates(self) -> bool:
        """True if moved() changes a direction."""
        return type(self).moved is not Private.moved

    def keeps(self, name: str, module: nn.Module, last: str) -> bool:
        """-> whether clients keep the layer `module` of this name; last: the last layer's."""
        raise NotImplementedError

    def moved(self, d: Vec, mask: Vec, job: Job) -> Vec:
        """-> the direction (d,) in which x really moves in this step; mask: 1 where it is private.
        It may run for many clients at once: no branch on values.
        """
        return d

    def split(self, net: Net) -> PersonalLayers:
        """-> what the clients keep of a model. Raises CompositionError if that is none or all."""
        parts = {name: m for name, m in net.module.named_modules() if _has_own(m)}
        last = [
            name for name, m in parts.items() if next(m.parameters(recurse=False), None) is not None
        ][-1]
        names = {name for name, m in parts.items() if self.keeps(name, m, last)}
        marks = [name.rpartition(".")[0] in names for name in net.layout.names]
        if not any(marks) or (all(marks) and not self.keeps_all):
            which = "none" if not any(marks) else "every one"
            raise CompositionError(
                f"{self.name}: of the model's layers {which} would be private: {', '.join(parts)}; "
                f"{self.advice}"
            )
        index = _where(net.layout, marks, net)
        rest = _where(net.layout, [not o for o in marks], net)
        pieces = zip(net.layout.names, net.layout.shapes, marks, strict=True)
        others = [(n, s) for n, s, o in pieces if not o]
        layout = Layout(tuple(n for n, _ in others), tuple(s for _, s in others))
        buffers = [name.rpartition(".")[0] in names for name in net.buffer_layout.names]
        mask = torch.zeros(net.layout.d, dtype=net.dtype, device=net.device)
        return PersonalLayers(
            index,
            _where(net.buffer_layout, buffers, net),
            View(rest, None, None, layout, net.layout.d),
            _where(net.buffer_layout, [not o for o in buffers], net),
            mask.index_fill_(0, index, 1.0),
        )


def _has_own(module: nn.Module) -> bool:
    """True if parameters or buffers belong to this module itself."""
    tensors = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
    return bool(tensors)


def _where(layout: Layout, marks: list[bool], net: Net) -> Tensor:
    """The coordinates of the marked pieces, rising (p,) int64."""
    sizes = torch.tensor(layout.sizes, dtype=torch.int64)
    index = torch.tensor(marks, dtype=torch.bool).repeat_interleave(sizes).nonzero()[:, 0]
    return index.to(net.device)


class FedPer(Private):
    """FedPer (Arivazhagan et al., 2019, Algorithm 1): the last layers are each client's own.

    layers: names of layers, or patterns such as "head.*"; none: the last layer alone. All layers
    are trained together. Differs from the paper: none.
    Reference: https://arxiv.org/abs/1912.00818
    """

    advice = "name some of them in private.layers"
    layers: tuple[str, ...] = hyper(
        (),
        "names of private layers, or patterns; none: the last one",
        "K_P = 1 to 4 last layers in section 4",
    )

    def keeps(self, name: str, module: nn.Module, last: str) -> bool:
        if not self.layers:
            return name == last
        return any(fnmatch(name, p) or name.startswith(f"{p}.") for p in self.layers)


class FedRep(FedPer):
    """FedRep (Collins et al., ICML 2021, Algorithm 1): FedPer in turns, first the head, then the
    representation.

    The first `head` of a client's local steps train its private layers, the others the shared ones;
    at least the last step is the shared ones'. A client of one step trains all. Differs from the
    paper: the client learns the head on the model that it received, as the paper's; both have the
    same rate.
    Reference: https://arxiv.org/abs/2102.07078
    """

    head: ShareBelow1 = hyper(0.9, "share of the local steps for the head", "10 of 11 epochs")

    def moved(self, d: Vec, mask: Vec, job: Job) -> Vec:
        steps = torch.as_tensor(job.steps, dtype=d.dtype, device=d.device)
        heads = torch.minimum(self.head * steps, steps - 1)
        private = torch.as_tensor(job.step, dtype=d.dtype, device=d.device) < heads
        moves = torch.where(private, mask, 1 - mask)
        return torch.where((moves > 0) | (steps < 2), d, 0.0)


class FedBN(Private):
    """FedBN (Li et al., ICLR 2021, Algorithm 1): the norms are each client's own.

    Of every normalisation its parameters and its running statistics.
    Differs from the paper: group and layer norms are private as batch norms are.
    Reference: https://arxiv.org/abs/2102.07623
    """

    advice = "it is for models with normalisations beside other layers"

    def keeps(self, name: str, module: nn.Module, last: str) -> bool:
        return isinstance(module, NORMS)


class Alone(Private):
    """Local-only training, the baseline of every federation: all layers are each client's own.

    Each client goes on with its own model in every round that it takes part in, nothing travels,
    and the server's model stays what it was in the beginning.
    """

    keeps_all = True

    def keeps(self, name: str, module: nn.Module, last: str) -> bool:
        return True


PRIVATE: Registry[type[Private]] = Registry(
    "private layers", {"fedper": FedPer, "fedrep": FedRep, "fedbn": FedBN, "alone": Alone}
)
