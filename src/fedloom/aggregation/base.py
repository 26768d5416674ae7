"""What becomes of a round's client updates: the interface of aggregations, and the mean.

An engine turns the decoded update of every client into a leaf, adds the leaves up along the tree of
engines/summation.py, and the server reads its mean updates off the root.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from ..core.hyper import Part
from ..core.vector import Rec, Vec, rec, tree
from ..errors import ConfigError


class Aggregated(NamedTuple):
    """What the server reads off the root: up: delta and the fields of unweighted(), as server_step
    receives them; the model's buffers; the aggregation's state after the round.
    """

    up: Rec
    buffers: Vec
    state: Rec


class Reads(Enum):
    """What an aggregation needs of a round's updates."""

    SUM = "the sum of their leaves, in which clients may hold parts of the model"
    WHOLE_SUM = "the sum of leaves of whole models"
    RING = "the sum of leaves that clients make and send, whole models in integers of a ring"
    ROWS = "every single update, of whole models: see rows.py"


class Gives(Enum):
    """What the server's step receives from an aggregation."""

    MEAN = "the weighted mean, up to rounding"
    BOUNDED = "a mean of updates whose fields were shortened together; no running statistics"
    FIELDS = "each field by itself, so that they may be of different clients"
    CLIENTS = "something else, all its fields of the same clients"


class NoiseFrom(Enum):
    """What makes the noise that hides each client, and so from whom it hides them."""

    NOTHING = "there is none: the server may learn of a client whatever a round tells"
    SEED = "the run's seed: from all who do not know that, as in a simulation"
    SYSTEM = "the system's generator: from everybody"


class Aggregation(Part):
    """How the updates of a round become what the server's step receives.

    Subclasses become frozen dataclasses whose fields are the parameters. All methods are pure. A
    leaf is added to others: its vectors are new memory, its numbers Python floats.
    """

    reads: ClassVar[Reads] = Reads.SUM
    gives: ClassVar[Gives] = Gives.CLIENTS
    noise_from: ClassVar[NoiseFrom] = NoiseFrom.NOTHING
    fewer: ClassVar[str] = ""  # settings with which fewest() is less, for errors

    @property
    def name(self) -> str:
        """What errors and legends call it."""
        return type(self).__name__

    @property
    def plain(self) -> bool:
        """Whether it is the weighted mean itself, for which engines have a quicker way."""
        return type(self) is Mean

    @property
    def private(self) -> bool:
        """Whether nothing else of a client may be disclosed, not even its loss."""
        return self.noise_from is not NoiseFrom.NOTHING

    @property
    def unkeyed(self) -> bool:
        """Whether nobody can make its noise again."""
        return self.noise_from is NoiseFrom.SYSTEM

    @property
    def of_answers(self) -> Aggregation | None:
        """The aggregation of what clients answer before their local steps, see Algorithm.ask; None
        for one that is made for updates alone.
        """
        return Mean() if self.gives is Gives.MEAN else None

    @property
    def masked(self) -> bool:
        """Whether clients mask their leaves, so that nothing but their sum can be seen."""
        return False

    def fewest(self, clients: int, updates: int) -> int:
        """How many updates a step needs, where so many clients were asked and so many updates
        came; a round with fewer changes nothing, and counts.
        """
        return 0

    def check(self, count: int) -> None:
        """Raise ConfigError for rounds of so many clients, if no step can be made of them."""
        if (fewest := self.fewest(count, count)) > count:
            raise ConfigError(
                f"aggregation {self!r} needs {fewest} updates in a round, got {count}; take a "
                f"larger cohort{self.fewer and f', or a smaller {self.fewer}'}"
            )

    def init(self, x: Vec, expected: float, share: float) -> Rec:
        """-> the state before round 1. expected: how many updates a round has on average; share:
        of the clients that are there, the expected cohort.
        """
        return rec()

    def tell(self, msg: Rec, state: Rec) -> Rec:
        """The broadcast, with what the clients must know of the state; its bytes are counted."""
        return msg

    def leaf(self, part: Rec, msg: Rec, seed: int, round: int, client: int) -> Rec:
        """A client's part of the sums. msg: the broadcast, see tell(). part: n (1.0), mass (the
        weight), weight (with sub-models per coordinate), delta (not weighted), unweighted, buffers,
        and with sub-models holders and shares. Raises NotFiniteError for what cannot be added.
        """
        return weighted(part)

    def root(self, total: Rec, state: Rec, seed: int, round: int) -> Aggregated:
        """The sum of all leaves -> what the server receives."""
        return Aggregated(*means(total), state)

    def nobody(self, delta: Vec, averaged: Rec) -> Rec:
        """The sum of no leaves, if the server steps then too. delta, averaged: of an update that
        is 0.
        """
        return None

    def answered(self, total: Rec, state: Rec) -> float:
        """How many updates the mean is of: the participation ratio is this over all clients."""
        return float(total.n)

    def report(self, state: Rec, round: int) -> Mapping[str, Any]:
        """Columns of the row of a round (from 0), after it."""
        return {}

    def arrived(self, part: Rec, count: int = 1) -> Rec:
        """A leaf that came from a client (Reads.RING), or the sum of so many, with numbers as the
        sums need them. Raises NotFiniteError for one that cannot be added.
        """
        return part

    def summary(self, state: Rec, rounds: int) -> Mapping[str, Any]:
        """Entries of summary.json, after so many rounds."""
        return {}

    def allowed(self, state: Rec, rounds: int) -> int:
        """How many of so many rounds may be run."""
        return rounds


class Mean(Aggregation):
    """The weighted mean of the moves (McMahan et al., AISTATS 2017); the fields of unweighted() are
    plain means. One client can move it anywhere.
    """

    gives = Gives.MEAN


def weighted(part: Rec) -> Rec:
    """A client's part with delta and buffers times their weights, in new memory."""
    return part._replace(delta=part.delta * part.weight, buffers=part.mass * part.buffers)


def means(total: Rec) -> tuple[Rec, Tensor]:
    """Sums -> the means that server_step receives, and the mean of the models' buffers.

    delta and buffers are averaged by weight, the fields of unweighted() plainly. With sub-models
    each coordinate is averaged over the clients that hold it. A number of unweighted() is then a
    vector too: its mean over a coordinate's holders, or over all clients if it has none.
    """
    weight = total.weight
    if isinstance(weight, Tensor):  # per coordinate: 0 where no update holds it
        delta = torch.where(weight > 0, total.delta / weight, 0.0)
    else:
        delta = total.delta / weight
    unweighted = tree(lambda v: v / total.n, total.unweighted)
    if "holders" in total._fields:
        some = total.holders.clamp_min(1)  # where no client holds it, the sum is 0
        new = {k: v / some for k, v in total.unweighted._asdict().items() if isinstance(v, Tensor)}
        for name, v in total.shares._asdict().items():
            new[name] = torch.where(total.holders > 0, v / some, getattr(unweighted, name))
        unweighted = unweighted._replace(**new)
    return rec(delta=delta, **unweighted._asdict()), total.buffers / total.mass
