"""The interface of sub-model schemes: a rule says which coordinates a client of some capacity holds
in a round.

The client's algorithm, state and link work on vectors of length m = len(held). A client sends
nothing about its view, because the server made it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from ..algorithm import Job
from ..core.hyper import Part
from ..core.layout import Layout
from ..core.net import Net
from ..core.vector import Rec, Vec, rec, tree
from ..errors import ConfigError
from ..objectives import Needs


class View(NamedTuple):
    """The part of a model that a client holds.

    held (m,): int64, the held coordinates in rising order; None: all of them. net: a really smaller
    Net whose m coordinates are those, in that order; None: the full net, with zeros elsewhere. fit:
    a record of tensors that the rule's grad() needs; None: grad() is not asked. layout: of the m
    coordinates. d: length of the whole model.

    >>> view = View(torch.tensor([0, 2]), None, None, Layout(("x",), ((2,),)), 3)
    >>> part = view.take(rec(x=torch.tensor([5.0, 6.0, 7.0]), n=2.0))
    >>> part
    rec(x=tensor([5., 7.]), n=2.0)
    >>> view.seen(part.x)
    tensor([5., 0., 7.])
    """

    held: Tensor | None
    net: Net | None
    fit: Rec
    layout: Layout
    d: int

    def take(self, record: Rec) -> Rec:
        """Gather the client's part of a record: every vector (d,) becomes (m,), the rest stays."""
        held = self.held
        if held is None:
            return record
        return tree(lambda v: v.index_select(0, held) if self._is_whole(v) else v, record)

    def put(self, part: Rec, record: Rec) -> Rec:
        """Scatter the client's part into a record, as a new record.

        Coordinates that the client does not hold keep their bits. Both records have the same
        fields.
        """
        held = self.held
        if held is None:
            return part
        return tree(lambda p, v: v.index_copy(0, held, p) if self._is_whole(v) else p, part, record)

    def seen(self, x: Vec) -> Vec:
        """x (m,) for the net of the loss: (m,) if it is sliced, else embedded in (d,)."""
        if self.held is None or self.net is not None:
            return x
        return x.new_zeros(self.d).scatter(0, self.held, x)

    def _is_whole(self, value: Any) -> bool:
        return isinstance(value, Tensor) and value.shape == (self.d,)


def whole(layout: Layout) -> View:
    """The view of a client that holds everything.

    >>> whole(Layout(("x",), ((3,),))).held is None
    True
    """
    return View(None, None, None, layout, layout.d)


def behind_mask(held: Tensor, layout: Layout, fit: Rec = None) -> View:
    """The view of held (m,) without a net of its own: the full net runs, with zeros elsewhere.

    In its layout the rest of a layer has no shape, only a length.

    >>> behind_mask(torch.tensor([0, 3, 4]), Layout(("w", "b"), ((2, 2), (2,)))).layout.shapes
    ((2,), (1,))
    """
    ends = torch.tensor(layout.sizes, device=held.device).cumsum(0)
    upto = [0, *torch.searchsorted(held, ends).tolist()]
    shapes = tuple((b - a,) for a, b in pairwise(upto))
    return View(held, None, fit, Layout(layout.names, shapes), layout.d)


def off_its_size(submodel: SubModel, view: View, capacity: float, advice: str) -> list[str]:
    """A remark if a sub-model is larger by half, or smaller by a third, than its capacity."""
    size = view.layout.d / view.d
    if 2 / 3 <= size / capacity <= 3 / 2:
        return []
    return [
        f"{submodel.name}: a client of capacity {capacity:g} holds {size:.2%} of the model "
        f"({view.layout.d:,} of {view.d:,}); {advice}"
    ]


def check_capacity(submodel: SubModel, capacity: float) -> None:
    """Raise ConfigError unless capacity is a share of the model, in (0, 1]."""
    if not 0 < capacity <= 1:
        raise ConfigError(
            f"{submodel.name}: a capacity must be in (0, 1], got {capacity!r}; it is the share "
            "of the model that a client can hold, 1 for all of it"
        )


class SubModel(Part):
    """A sub-model scheme makes the views. A view is made at the server, once per distinct capacity
    and round.

    Subclasses become frozen dataclasses whose fields are the hyper-parameters. All methods are
    pure. grad(), move() and covered() may run for many clients at once under vmap: no branch on
    tensor values, no shape that depends on them. The rest runs outside. Capacity 1 must give
    whole(), so that the base algorithm stays as it is, bit for bit, unless parts are drawn.
    """

    # cuts: the views have smaller nets, whose layers keep their shapes
    # fixed: held depends on the capacity alone, not on x or the round: a view may be kept
    # trains: what a client trains in a step, if not simply all that it holds: EXITS, every exit
    #   that it has, which its loss must use; DRAWN_PARTS, a part that the net draws
    cuts: ClassVar[bool] = False
    fixed: ClassVar[bool] = False
    trains: ClassVar[Needs | None] = None

    @property
    def name(self) -> str:
        """The name in reports and errors."""
        return type(self).__name__

    @property
    def counts_values(self) -> bool:
        """True if covered() depends on the values of an update: then no codec may change them."""
        return False

    def settled(self, levels: Sequence[float]) -> SubModel:
        """-> the rule, once the capacities of the federation are known."""
        return self

    def counted(self, net: Net) -> tuple[bool, ...]:
        """Which pieces of net.layout a capacity is a share of, one truth value per piece: all,
        except those that every client holds.
        """
        return (True,) * len(net.layout.names)

    def view(self, x: Vec | None, net: Net, capacity: float, round: int) -> View:
        """-> the view of a client of this capacity in this round; x (d,) is the server's model.

        A rule that needs no x must not use it: again() passes None. Raises ConfigError for a
        capacity outside (0, 1], CompositionError for a net that it cannot handle.
        """
        raise NotImplementedError

    def remarks(self, view: View, net: Net, capacity: float) -> list[str]:
        """Warnings about a view of the first model, before a run."""
        return []

    def grad(self, grad: Callable[[Vec], Vec], x: Vec, fit: Rec) -> Vec:
        """-> the algorithm's gradient at x (m,); grad: the plain one. Needs the view's fit."""
        return grad(x)

    def move(self, d: Vec, x: Vec, fit: Rec) -> Vec:
        """-> the direction (m,) in which x (m,) really moves, from the direction after momentum and
        weight decay. Called only if the view has a fit.
        """
        return d

    def kept(self, x: Vec, fit: Rec) -> Vec:
        """-> x (m,) with zeros where the mask drops it at this step: weight decay acts on the rest.
        Called only if the view has a fit.
        """
        return x

    def covered(self, delta: Vec) -> Vec:
        """-> (m,): 1 where this client's delta (m,) counts in the mean, else 0.

        The server divides each coordinate's sum by the weights of the updates that count there;
        where none does, the model keeps its value.
        """
        return torch.ones_like(delta)

    def rows(self, net: Net) -> Tensor | None:
        """-> (d,) int64: the class that each coordinate of the whole model belongs to, -1 if none.

        There a client update counts in the mean only if the client has training samples of the
        class. None: it counts everywhere. Called once; the server knows a client's classes as it
        knows its capacity. Raises CompositionError for a net without such coordinates.
        """
        return None

    def told(self, view: View) -> Rec:
        """What the client receives to rebuild its view, as a record of tensors; its bytes are
        counted.

        A structured view follows from the capacity and the round, which a client knows: nothing.
        """
        return rec()

    def again(self, message: Rec, net: Net, capacity: float, round: int) -> View:
        """The same view at the client, rebuilt from told()."""
        return self.view(None, net, capacity, round)


class Masked(NamedTuple):
    """What a sub-model scheme changes in the steps of a client whose view has a fit; x (m,)."""

    rule: SubModel
    fit: Rec

    def grad(self, grad: Callable[[Vec], Vec], x: Vec) -> Vec:
        """See SubModel.grad."""
        return self.rule.grad(grad, x, self.fit)

    def move(self, d: Vec, x: Vec) -> Vec:
        """See SubModel.move."""
        return self.rule.move(d, x, self.fit)

    def kept(self, x: Vec) -> Vec:
        """See SubModel.kept, Job.kept."""
        return self.rule.kept(x, self.fit)

    def begin(self, y: Rec) -> Rec:
        """A second trajectory at its beginning."""
        return y

    def along(self, d: Vec, y: Rec, job: Job) -> tuple[Vec, Rec]:
        """The direction in which the second trajectory y really moves."""
        return self.move(d, y.x), y
