"""What an objective's first client state is made from."""

from __future__ import annotations

from torch import Tensor

from ..core.net import Net
from ..core.vector import Vec
from ..federation.federation import Federation


class First:
    """What Objective.init receives for a client that takes part for the first time. Labels are
    counted only if they are asked for.
    """

    def __init__(self, fed: Federation, client: int, x: Vec, net: Net) -> None:
        self._fed, self._client, self._x = fed, client, x
        self.d, self.net = x.numel(), net
        self.examples, self.batches = fed.pass_of(client)

    @property
    def counts(self) -> Tensor:
        data = self._fed.data
        if data.classes is None:
            return self._x.new_zeros(0)
        return data.label_counts_of(self._client).to(self._x)
