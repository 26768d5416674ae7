"""Unstructured sub-models: the largest weights, and the gradient through their mask."""

from __future__ import annotations

import math
from collections.abc import Callable
from fnmatch import fnmatch
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from ..compression.codecs.index_coding import plan, read, write
from ..core.hyper import hyper
from ..core.layout import Layout
from ..core.net import Net, Variables
from ..core.vector import Rec, Vec, rec
from ..errors import CompositionError, ConfigError, DataError
from .base import SubModel, View, behind_mask, check_capacity, whole

NORMS: tuple[type[nn.Module], ...] = (
    nn.GroupNorm,
    nn.LayerNorm,
    nn.RMSNorm,
    nn.modules.batchnorm._NormBase,
)

Group = Literal["model", "stage", "layer", "shard"]
Count = Literal["holders", "nonzero"]


class FIARSE(SubModel):
    """FIARSE (Wu et al., NeurIPS 2024, Algorithm 1 with Eq. 2 and 3): hold the largest weights.

    A client holds the coordinates with |x| >= tau, where tau is the floor(capacity * n)-th largest
    magnitude of the n maskable ones (at least one). tau is fixed for the round; the mask M = 1[|x|
    >= tau] is made again from the local x at every step (line 7). The loss is taken at x * M, and

        gradient = grad(x * M) * M * (1 + 2 |x| tau / (|x| + tau)^2)        (Eq. 3)

    whose factor lies in (1, 1.5]. A weight that falls below tau stops where it is, unless the
    method adds something to the gradient (prox, a control variate); momentum_mask = "update" stops
    it then too. Several values equal to tau are all held: only ties make a part larger than its
    capacity.

    Maskable are weights with two or more axes and the biases of Linear layers. Norms, other biases
    and scalars are held by everybody and not counted in n. Override maskable() for another choice.

    group: one threshold for the "model", per "stage" (child of the top module), per "layer"
    (tensor) or per "shard". shards: for the last, patterns of names such as "encoder.*"; a
    parameter belongs to the first that it fits, and is exempt if it fits none. count: a
    coordinate's mean is over its "holders" (Appendix C.1) or over the clients whose delta is not 0
    there ("nonzero", section 3 and the released code). Not 0 is above eps times the update's
    largest entry, eps the type's relative precision (1.2e-7 in float32): a smaller one is what
    rounding left of a sum of such entries, 0 or not by the order of its terms; the released code
    compares with 0 itself. dynamic: re-make the mask at every step. biased: the factor above. Both
    off is greedy pruning; static and biased, a weight below tau has factor 1. momentum_mask: under
    momentum or Adam, a weight that has fallen below tau moves on ("grad": gradients alone are
    masked, as with torch's SGD) or stops ("update": so is the step); weight decay is masked in
    both. mask_bias, mask_first, mask_classifier: whether the Linear layers' biases, the first and
    the last layer compete.

    Differs from the paper: line 10 as printed would send x itself off the mask; here, as in the
    code, nothing is sent there. Differs from the released code: its factor is never applied (the
    mask is boolean, so its backward does not run); biased=False is that. Capacity 1 has tau 0, so
    it is the base algorithm. Per "layer" there is a threshold per tensor; the code's layer-wise
    files have one per stage.
    Reference: https://github.com/HarliWu/FIARSE

    >>> net = Net(nn.Linear(4, 1, bias=False))
    >>> x = torch.tensor([0.1, -0.4, 0.3, -0.2])
    >>> view = FIARSE().view(x, net, 0.5, 0)
    >>> view.held
    tensor([1, 2])
    >>> FIARSE().grad(torch.ones_like, view.take(x), view.fit)
    tensor([1.4898, 1.5000])
    """

    group: Group = hyper("model", "where one threshold holds", "model in FIARSE D.1")
    shards: tuple[str, ...] = hyper(
        (),
        "name patterns of the groups, for group = shard",
        "FIARSE D.1; three in its code for texts",
    )
    count: Count = hyper(
        "holders", "which clients count in a coordinate's mean", "FIARSE C.1; section 3"
    )
    dynamic: bool = hyper(True, "make the mask anew at every local step", "FIARSE, Algorithm 1")
    biased: bool = hyper(True, "add the importance term to the gradient", "FIARSE, Eq. 3")
    momentum_mask: Literal["grad", "update"] = hyper(
        "grad", "what is masked behind momentum and decay", "grad: torch's SGD, FIARSE's code"
    )
    mask_bias: bool = hyper(True, "biases are masked too", "FIARSE's code")
    mask_first: bool = hyper(True, "the first layer is masked too", "FIARSE's code")
    mask_classifier: bool = hyper(True, "the last layer is masked too", "FIARSE's code for images")

    def __post_init__(self) -> None:
        if bool(self.shards) != (self.group == "shard"):
            raise ConfigError(
                f"{self.name}: group = '{self.group}' and shards = {[*self.shards]!r}; patterns "
                "in shards go with group = 'shard', and it needs some"
            )

    @property
    def name(self) -> str:
        """FIARSE, or the name of the variant that its two switches make."""
        return super().name if self.dynamic or self.biased else "Pruning-Greedy"

    def counted(self, net: Net) -> tuple[bool, ...]:
        return tuple(group >= 0 for group in self._groups(net))

    def maskable(self, net: Net) -> tuple[bool, ...]:
        """Which pieces of net.layout may be masked, one truth value per piece."""
        owners, matrices = _owners(net), _matrices(net)
        exempt = [] if self.mask_first else [owners[i] for i in matrices[:1]]
        exempt += [] if self.mask_classifier else [owners[i] for i in matrices[-1:]]

        def competes(module: nn.Module, axes: int) -> bool:
            if isinstance(module, NORMS) or module in exempt:
                return False
            if axes > 1 or isinstance(module, Variables):
                return True
            return self.mask_bias and isinstance(module, nn.Linear)

        return tuple(map(competes, owners, map(len, net.layout.shapes)))

    def view(self, x: Vec | None, net: Net, capacity: float, round: int) -> View:
        check_capacity(self, capacity)
        if capacity == 1:
            return whole(net.layout)
        if x is None:
            raise DataError(
                f"{self.name} chooses by the server's model, but got none; "
                "a client makes its view with again()"
            )
        a, groups = x.abs(), self._groups(net)
        tau = self._thresholds(a, groups, net.layout, capacity)
        held = (a >= _spread(tau, groups, net.layout)).nonzero()[:, 0]
        return self._masked_view(held, tau, groups, net.layout)

    def grad(self, grad: Callable[[Vec], Vec], x: Vec, fit: Rec) -> Vec:
        if fit is None:
            return grad(x)
        a = x.abs()
        mask = a >= fit.tau
        g = torch.where(mask, grad(torch.where(mask, x, 0.0)), 0.0) if self.dynamic else grad(x)
        if not self.biased:
            return g
        least = torch.finfo(x.dtype).smallest_normal  # 0/0 is 0: no mask, no slope
        ratio = fit.tau / a.add_(fit.tau).clamp_min_(least)
        slope = (1 - ratio).mul_(ratio.mul_(2)).add_(1)
        return g.mul_(slope) if self.dynamic else torch.where(mask, g * slope, g)

    def move(self, d: Vec, x: Vec, fit: Rec) -> Vec:
        if self.momentum_mask == "grad" or not self.dynamic:
            return d
        return torch.where(x.abs() >= fit.tau, d, 0.0)

    def kept(self, x: Vec, fit: Rec) -> Vec:
        return torch.where(x.abs() >= fit.tau, x, 0.0) if self.dynamic else x

    @property
    def counts_values(self) -> bool:
        return self.count == "nonzero"

    def covered(self, delta: Vec) -> Vec:
        if self.count == "nonzero":
            size = delta.abs()
            return (size > torch.finfo(delta.dtype).eps * size.max()).to(delta.dtype)
        return torch.ones_like(delta)

    def told(self, view: View) -> Rec:
        """mask: uint8, which of the maskable coordinates are held, in the cheapest coding; tau: one
        threshold per group.
        """
        if view.held is None:
            return rec()
        competes = view.fit.competes.cpu().numpy()
        exempt = np.cumsum(~competes)  # all are held: the number of them among the first is known
        index = view.held.cpu().numpy()[competes] - exempt[competes]
        d = view.d - int((~competes).sum())
        coding = plan(index, d)
        head = np.array([coding.coding, *len(index).to_bytes(4, "little")], dtype=np.uint8)
        block = np.frombuffer(write(index, d, coding), dtype=np.uint8)
        return rec(mask=torch.from_numpy(np.concatenate([head, block])), tau=view.fit.groups)

    def again(self, message: Rec, net: Net, capacity: float, round: int) -> View:
        check_capacity(self, capacity)
        if capacity == 1:
            return whole(net.layout)
        raw, groups = message.mask.cpu().numpy(), self._groups(net)
        free = torch.tensor([group >= 0 for group in groups])
        competing = free.repeat_interleave(torch.tensor(net.layout.sizes)).numpy()
        held = ~competing
        index = read(raw[5:], int(raw[0]), int(competing.sum()), int.from_bytes(raw[1:5], "little"))
        held[np.flatnonzero(competing)[index]] = True
        where = torch.from_numpy(np.flatnonzero(held)).to(net.device)
        return self._masked_view(where, message.tau.to(net.device), groups, net.layout)

    def _groups(self, net: Net) -> list[int]:
        """The group of every piece: 0, 1, ..., or -1 if it is exempt."""
        groups: dict[str, int] = {}
        places = []
        for name, masked in zip(net.layout.names, self.maskable(net), strict=True):
            label = self._label(name) if masked else None
            places.append(-1 if label is None else groups.setdefault(label, len(groups)))
        if idle := [p for p in self.shards if p not in groups]:
            raise CompositionError(
                f"{self.name} and {type(net.module).__name__}: the shard '{idle[0]}' fits no "
                f"parameter that may be masked; they are {', '.join(self._names(net))}"
            )
        if not groups:
            raise CompositionError(
                f"{self.name} and {type(net.module).__name__}: no parameter may be masked, only "
                "weights with two or more axes and biases of Linear layers are; switch on "
                "mask_first, mask_classifier or mask_bias, or override maskable()"
            )
        return places

    def _label(self, name: str) -> str | None:
        """The group of a parameter; None if it belongs to none."""
        if self.group == "shard":
            return next((p for p in self.shards if fnmatch(name, p)), None)
        return {"model": "", "stage": name.split(".")[0], "layer": name}[self.group]

    def _names(self, net: Net) -> list[str]:
        """A few names of parameters that may be masked, for messages."""
        both = zip(net.layout.names, self.maskable(net), strict=True)
        names = [name for name, masked in both if masked]
        return names if len(names) <= 8 else [*names[:4], "...", *names[-3:]]

    def _thresholds(self, a: Vec, groups: list[int], layout: Layout, capacity: float) -> Vec:
        pieces = [piece.reshape(-1) for piece in layout.pieces(a)]
        members = [
            torch.cat([piece for piece, group in zip(pieces, groups, strict=True) if group == g])
            for g in range(max(groups) + 1)
        ]
        return torch.stack([_kth_largest(m, _quota(capacity, len(m))) for m in members])

    def _masked_view(self, held: Tensor, tau: Vec, groups: list[int], layout: Layout) -> View:
        free = torch.tensor([group >= 0 for group in groups], device=held.device)
        sizes = torch.tensor(layout.sizes, device=held.device)
        competes = free.repeat_interleave(sizes)[held]
        fit = rec(tau=_spread(tau, groups, layout)[held], groups=tau, competes=competes)
        return behind_mask(held, layout, fit)

    def remarks(self, view: View, net: Net, capacity: float) -> list[str]:
        """Warnings: the first or last layer, which every path needs, is masked completely."""
        matrices = _matrices(net)
        return [
            f"{self.name}: nothing of '{net.layout.names[i]}' is held at capacity {capacity:g}, so "
            "a client that small learns little until others have raised it; exempt it (mask_first, "
            "mask_classifier), or take group='layer'"
            for i in dict.fromkeys(matrices[:1] + matrices[-1:])
            if view.layout.sizes[i] == 0
        ]


def greedy(
    group: Group = "model",
    count: Count = "holders",
    shards: tuple[str, ...] = (),
    mask_bias: bool = True,
    mask_first: bool = True,
    mask_classifier: bool = True,
) -> FIARSE:
    """Pruning-Greedy (Zhou et al. 2023, as FIARSE's tables describe it): the largest weights at the
    start of the round, and a plain gradient behind that mask until its end.

    >>> greedy(group="layer").dynamic
    False
    """
    return FIARSE(
        group=group,
        shards=shards,
        count=count,
        dynamic=False,
        biased=False,
        mask_bias=mask_bias,
        mask_first=mask_first,
        mask_classifier=mask_classifier,
    )


def _owners(net: Net) -> list[nn.Module]:
    """The module that each parameter belongs to."""
    return [net.module.get_submodule(name.rpartition(".")[0]) for name in net.layout.names]


def _matrices(net: Net) -> list[int]:
    """Which parameters are weights of two or more axes, those of norms apart."""
    pieces = enumerate(zip(_owners(net), net.layout.shapes, strict=True))
    return [i for i, (m, shape) in pieces if len(shape) > 1 and not isinstance(m, NORMS)]


def _quota(capacity: float, n: int) -> int:
    """floor(capacity * n), at least 1; rounded first, so that 0.29 of 100 is 29."""
    return max(1, math.floor(round(capacity * n, 6)))


def _kth_largest(values: Vec, k: int) -> Tensor:
    return values.kthvalue(len(values) - k + 1).values


def _spread(tau: Vec, groups: list[int], layout: Layout) -> Vec:
    """Thresholds (groups,) -> (d,); 0 for the pieces that are exempt, so that they are all held."""
    device = tau.device
    piecewise = torch.cat([tau, tau.new_zeros(1)])[torch.tensor(groups, device=device)]
    return piecewise.repeat_interleave(torch.tensor(layout.sizes, device=device))
