"""Which part of the model each client holds: all that engines ask about a sub-model scheme."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..core.net import Net
from ..core.rng import key, seed_torch
from ..core.vector import Rec, Vec, rec
from ..federation.federation import Federation
from ..submodels.base import Masked, SubModel, View, whole


class ClientViews:
    """The views of a run's clients. scheme: None: every client holds all of the model."""

    def __init__(self, scheme: SubModel | None, fed: Federation, net: Net) -> None:
        self.scheme, self._fed, self._net = scheme, fed, net
        self.whole = whole(net.layout)
        self._fixed: dict[float, View] = {}  # views that never change
        self._rows = None if scheme is None else scheme.rows(net)
        self._outputs = 0 if self._rows is None else int(self._rows.max()) + 1

    def of(self, x: Vec, capacity: float, round: int) -> View:
        """The view of the clients of a capacity in a round; x (d,) is the server's model."""
        view = self._fixed.get(capacity)
        if view is None:
            scheme, view = self.scheme, self.whole
            if scheme is not None:
                seed_torch(key(self._fed.seed, "view", round), x)
                view = scheme.view(x, self._net, capacity, round)
            if scheme is None or scheme.fixed:
                self._fixed[capacity] = view
        return view

    def told(self, view: View) -> Rec:
        """What a client must be told to make its view again."""
        return rec() if self.scheme is None else self.scheme.told(view)

    def again(self, description: Rec, capacity: float, round: int) -> View:
        """The view, at a client that was told() of it."""
        if self.scheme is None:
            return self.whole
        seed_torch(key(self._fed.seed, "view", round), self._net.params[0])
        return self.scheme.again(description, self._net, capacity, round)

    def masked(self, view: View) -> Masked | None:
        """What the scheme does in the steps of clients with this view; None: nothing."""
        if self.scheme is None or view.fit is None:
            return None
        return Masked(self.scheme, view.fit)

    def weights(self, weight: float, delta: Vec, view: View, i: int) -> Any:
        """How much a client's update counts: a number, with a scheme at each coordinate (m,)."""
        if self.scheme is None:
            return weight
        weights: Any = weight * self.scheme.covered(delta)
        return weights if self._rows is None else weights * self._owned(self._rows, view, i, delta)

    def _owned(self, rows: Tensor, view: View, i: int, like: Vec) -> Vec:
        """(m,): 1 where the client has samples of the class that a coordinate belongs to, or where
        it belongs to none.
        """
        classes = rows if view.held is None else rows.index_select(0, view.held)
        has = (self._fed.data.label_counts_of(i) > 0).to(rows.device)
        beyond = has.new_zeros(max(0, self._outputs - len(has)))  # outputs that stand for no class
        everybody = has.new_ones(1)  # where an index of -1 leads
        return torch.cat([has, beyond, everybody])[classes].to(like.dtype)
