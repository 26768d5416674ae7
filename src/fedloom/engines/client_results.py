"""What an engine is asked in a round, and what it gives."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Any, NamedTuple

from ..core.vector import Rec, Vec
from ..stage import Sizes, Squares
from .scores import Score
from .summation import Node, push


class ClientCost(NamedTuple):
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


class Work(NamedTuple):
    """What a client computed: see ClientCost."""

    loss: float | None
    gradients: int
    passes: int
    values: int
    value_passes: int


def cost(
    client: int, steps: int, work: Any, down: Sizes, up: Sizes, squares: Squares = None
) -> ClientCost:
    """What a client's round cost. work: a record that has the fields of Work."""
    return ClientCost(
        client=client,
        answered=True,
        loss=work.loss,
        steps=steps,
        gradients=work.gradients,
        bytes_down=down,
        bytes_up=up,
        squares=squares,
        passes=work.passes,
        values=work.values,
        value_passes=work.value_passes,
    )


class Request(Enum):
    """What an engine asks clients for, or computes of a model on data."""

    PROBE = "before round 1, see Algorithm.probe"
    ASK = "before their local steps, see Algorithm.ask"
    LOSSES = "their losses over all data, in ClientCost.loss"
    TRAIN = "their updates"
    TEST = "the scores of msg.x on batches of the test set"
    VALIDATION = "the scores of msg.x on batches of the validation split"

    @property
    def evaluates(self) -> bool:
        """True if the cohort of a task are batches, see evaluation_batches.py, and not clients."""
        return self in (Request.TEST, Request.VALIDATION)


class TrainTask(NamedTuple):
    """The task of an engine in a round, for a cohort (sorted) or a range of one, which begins at
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

    def range(self, begin: int, end: int) -> TrainTask:
        """The same of the clients from place `begin` to `end` of these."""
        return self._replace(cohort=self.cohort[begin:end], first=self.first + begin)


class RangeResult(NamedTuple):
    """Partial sums, new client states and costs of a range; of an evaluation a score per batch."""

    nodes: list[Node]
    memories: dict[int, Rec]
    stats: list[ClientCost]
    scores: Sequence[Score] = ()


def join_results(parts: Iterable[RangeResult]) -> RangeResult:
    """The results of ranges, in order, as one."""
    out, scores = RangeResult([], {}, []), list[Score]()
    for part in parts:
        for node in part.nodes:
            push(out.nodes, *node)
        out.memories.update(part.memories)
        out.stats.extend(part.stats)
        scores += part.scores
    return out._replace(scores=scores)
