"""How long clients take for a round on their devices, as far as it is known before they train."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..algorithm import Oracle
from ..core.net import Net
from ..core.rng import generator
from ..core.vector import Rec, Vec, rec, tree, zeros
from ..engines.base import one_thread
from ..engines.client_results import TrainTask
from ..engines.client_round import Client
from ..engines.summation import numbers
from ..errors import ConfigError
from ..federation.federation import Federation
from ..plan import Plan
from ..stage import Download
from ..trace import traced
from ..wrappers.base import method_in


class Durations:
    """What a client is sent, and when it will have answered: its steps, its passes over all data,
    and both messages. Where the size of an update depends on its values, as behind an entropy code,
    the time is that of an update of normal random numbers.
    """

    def __init__(self, plan: Plan, fed: Federation, net: Net) -> None:
        self._plan, self._fed, self._net = plan, fed, net
        self._sizes: dict[float, tuple[dict[str, int], int]] = {}

    def down(self, msg: Rec, client: int) -> dict[str, int]:
        """{field: bytes} of the broadcast that a client is sent, uncompressed."""
        return self._of(msg, client)[0]

    def seconds(self, msg: Rec, client: int, down: Mapping[str, int]) -> float:
        """Simulated seconds until a client has answered. down: what it is really sent."""
        fed, up = self._fed, self._of(msg, client)[1]
        batch = fed.local.batch or int(fed.data.sizes[client])
        work = fed.steps(client) + self._passes * -(-int(fed.data.sizes[client]) // batch)
        return fed.duration(client, work, sum(down.values()), up)

    @functools.cached_property
    def _client(self) -> Client:
        return Client(self._plan, self._fed, self._net)

    @functools.cached_property
    def _passes(self) -> int:
        """How often the method asks for the gradient or loss over all data in a round."""
        calls = 0

        def count(value: Any) -> Any:
            nonlocal calls
            calls += 1
            return value

        full = Oracle(lambda x: count(zeros(x)), lambda x: count(x.sum()))
        method = method_in(self._plan.algorithm)
        try:
            traced(method, self._net.layout.d, full)
        except Exception as error:  # an author's code may raise anything on zeros
            raise ConfigError(
                f"{method.method} fails on vectors of zeros ({error}), from which the time of a "
                "client's round is read; run it without a clock and over_selection"
            ) from error
        return calls

    def _of(self, msg: Rec, client: int) -> tuple[dict[str, int], int]:
        """The bytes that a client is sent and sends: the same for all of one capacity."""
        capacity = self._fed.capacity(client)
        if capacity not in self._sizes:
            with one_thread():
                task = TrainTask(msg, self._net.init_buffers(), {}, [client], 0)
                download = self._client.downloads(task)[capacity]
                self._sizes[capacity] = download.down, self._up(download, msg.x)
        return self._sizes[capacity]

    def _up(self, download: Download, x: Vec) -> int:
        trace, client = self._plan.trace, self._client
        update = rec(delta=x, weight=1.0) if trace is None else trace.up
        draw = generator(self._fed.seed, "typical")

        def typical(v: Any) -> Any:
            vector = isinstance(v, Tensor) and v.ndim
            return torch.randn(v.shape, generator=draw).to(x) if vector else v

        up = download.wire.take(numbers(tree(typical, update)))
        buffers = download.travelling(download.buffers)
        if client.leaves is not None:  # of integers of 8 bytes
            up, buffers = (
                tree(lambda v: v.long() if isinstance(v, Tensor) else v, up),
                buffers.long(),
            )
        state = client.link.client_init(x, download)
        _, sent, _ = client.link.coded(up, state, download, 0, 0)
        return sum(sent.values()) + buffers.nbytes
