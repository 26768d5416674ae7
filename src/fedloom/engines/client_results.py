"""What a client's round, and a range of a cohort, gives."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..algorithm import Job
from ..core.net import Net
from ..core.vector import Rec, Vec
from ..submodels.base import View
from .summation import Node

Sizes = dict[str, int]  # {field: bytes}
Squares = tuple[float, float] | None


class Stats(NamedTuple):
    """What a client's round cost. bytes_down, bytes_up: {field: bytes} of the two messages.
    squares: ||delta||^2, and ||e||^2 of the error feedback of delta, if delta is compressed.
    passes: how many of the gradients belong to passes over all data of the client (Job.full).
    values: losses computed without a gradient; value_passes: those in passes over all data.
    """

    client: int
    answered: bool
    # mean over the steps of the loss at each step's first gradient; None if none was computed
    loss: float | None
    steps: int
    gradients: int
    bytes_down: Sizes
    bytes_up: Sizes
    squares: Squares = None
    passes: int = 0
    values: int = 0
    value_passes: int = 0


def cost(
    client: int, steps: int, work: Any, down: Sizes, up: Sizes, squares: Squares = None
) -> Stats:
    """What these local steps cost. work: says its loss, gradients, passes, values, value_passes."""
    more = (squares, work.passes, work.values, work.value_passes)
    return Stats(client, True, work.loss, steps, work.gradients, down, up, *more)


class Asked(NamedTuple):
    """What an engine is asked in a round, of a cohort (sorted) or a range of one, which begins at
    place `first`. memories: {client: state} of those that took part before. scale: the factor of
    each move as the server takes it.
    """

    msg: Rec
    buffers: Vec
    memories: dict[int, Rec]
    cohort: list[int]
    round: int
    first: int = 0
    scale: float = 1.0

    def range(self, begin: int, end: int) -> Asked:
        """The same of the clients from place `begin` to `end` of these."""
        return self._replace(cohort=self.cohort[begin:end], first=self.first + begin)


class Share(NamedTuple):
    """What all clients of one capacity receive in a round. wire: the view of what travels, where
    that is less than what they hold. buffers: of the module, at the server.
    """

    view: View
    net: Net
    msg: Rec
    down: Sizes
    wire: View
    buffers: Vec


class Done(NamedTuple):
    """The result of local training. buffers: the module's buffers after training, empty if it has
    none. gradients, passes, values, value_passes: see Stats. x (m,): where the steps ended, until
    the next client's steps overwrite it.

    Once it is sent: up is what the server reads, or {field: bytes} where these travel; sizes:
    {field: bytes}; squares: see Stats; memory holds if the server takes the update; buffers are
    those that travel. why: why nothing can be sent, or "".
    """

    up: Any
    memory: Rec
    job: Job
    loss: float | None
    gradients: int
    buffers: Vec
    x: Vec
    passes: int = 0
    values: int = 0
    value_passes: int = 0
    sizes: Sizes = {}
    squares: Squares = None
    why: str = ""


class RangeResult(NamedTuple):
    """The result of a range of a cohort: partial sums, new client states, statistics."""

    nodes: list[Node]
    memories: dict[int, Rec]
    stats: list[Stats]
