"""The contract of an aggregation."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..aggregation import Aggregation, Reads
from ..algorithms.registry import make_algorithm
from ..core.rng import generator
from ..core.vector import Rec, leaves, rec
from ..engines.summation import push, root
from ..errors import AuthorError
from ..submodels import HeteroFL
from .compare import Notes, twice, unlike
from .engine_agreement import Contract, check_parts
from .outcome import Check

_D, _CLIENTS = 12, 5
_ROUNDING = 1e-5  # of sums in float32


class AggregationContract(Contract):
    """See Contract. Runs are SCAFFOLD's, whose updates have a second field."""

    kind = Aggregation
    part: Aggregation

    def checks(self, engines: Sequence[str]) -> list[Check]:
        return [
            Check("leaves are memory of their own", self.new_memory, required=True),
            Check("what the server receives", self.received, required=True),
            Check("the order of the updates", self.order),
            *self.common(engines),
            Check("clients with a part of the model", self.parts),
        ]

    def settings(self, part: Any, dtype: torch.dtype) -> dict[str, Any]:
        more = {"sampling": "poisson", "weighting": "uniform"} if part.private else {}
        return {"aggregation": part, "algorithm": make_algorithm("scaffold"), "cohort": 6, **more}

    # ----------------------------------------------------------------------------- on a few updates
    @functools.cached_property
    def state(self) -> Rec:
        """The part's state before round 1, for vectors of length _D."""
        return self.part.init(torch.zeros(_D), float(_CLIENTS), 0.5)

    def update(self, i: int) -> Rec:
        """A client's part of the sums, as engines hand it over."""
        draw = generator(0, "checks", "aggregation", i)
        delta, other = torch.randn(2, _D, generator=draw)
        weight = 1.0 if self.part.private else float(i + 1)
        unweighted = rec(dc=other, tau=0.5 + i)
        numbers = {"n": 1.0, "mass": weight, "weight": weight}
        return rec(**numbers, delta=delta, unweighted=unweighted, buffers=delta[:0])

    @functools.cached_property
    def message(self) -> Rec:
        """What the part tells clients in round 1, at x = 0."""
        return self.part.tell(rec(x=torch.zeros(_D)), self.state)

    @functools.cached_property
    def total(self) -> Rec:
        return self.added(range(_CLIENTS))

    def added(self, clients: Sequence[int]) -> Rec:
        nodes: list[Any] = []
        for index, i in enumerate(clients):
            push(nodes, 0, index, self.part.leaf(self.update(i), self.message, 0, 0, i))
        return root(nodes)

    # ------------------------------------------------------------------------------------- checks
    def new_memory(self) -> None:
        """Sums write into the delta of a leaf."""
        part = self.update(0)
        leaf = self.part.leaf(part, self.message, 0, 0, 0)
        if self.part.reads is not Reads.ROWS and leaf.delta.data_ptr() == part.delta.data_ptr():
            raise AuthorError(
                "leaf() hands on the delta that it was given, and sums are written into it: give "
                "new memory, as weighted(part) does"
            )
        for v in leaves(leaf):
            if not isinstance(v, torch.Tensor | float | int):
                raise AuthorError(
                    f"leaf() gives a {type(v).__name__}: a leaf holds tensors and Python numbers, "
                    "which are added"
                )

    def received(self) -> None:
        """delta and the fields of unweighted(), as they were sent."""
        result = self.part.root(self.total, self.state, 0, 0)
        expected = {"delta": (_D,), "dc": (_D,), "tau": ()}
        shapes = {k: tuple(getattr(v, "shape", ())) for k, v in result.up._asdict().items()}
        if shapes != expected:
            raise AuthorError(
                f"root() gives the server {shapes} where clients sent {expected}: give every field "
                "that unweighted has, with its length, and delta"
            )
        if result.up.delta.dtype != torch.float32:
            raise AuthorError(
                f"root() gives delta as {result.up.delta.dtype} where clients sent torch.float32"
            )

    def order(self) -> None:
        """Places of a cohort say nothing of its updates."""
        one, other = (
            self.part.root(total, self.state, 0, 0).up
            for total in (self.total, self.added((3, 0, 4, 2, 1)))
        )
        if difference := unlike(other, one, _ROUNDING):
            raise AuthorError(
                f"of the same updates in another order root() makes something else ({difference}): "
                "their order is that of the clients' numbers, which say nothing; sort the values, "
                "or let ties and choices depend on the values alone"
            )

    def call(self, notes: Notes) -> None:
        part, state = self.part, self.state
        calls: tuple[tuple[Callable[..., Any], tuple[Any, ...]], ...] = (
            (part.init, (torch.zeros(_D), float(_CLIENTS), 0.5)),
            (part.tell, (rec(x=torch.zeros(_D)), state)),
            (part.leaf, (self.update(1), self.message, 0, 0, 1)),
            (part.root, (self.total, state, 0, 0)),
            (part.report, (part.root(self.total, state, 0, 0).state, 0)),
        )
        for method, arguments in calls:
            twice(notes, method, arguments)

    def parts(self) -> str | None:
        """Clients that hold half of the model."""
        if self.part.reads is not Reads.SUM:
            return f"it reads {self.part.reads.value}"
        make = functools.partial(self.trial, self.part)
        why = "weight is a vector there, one value per coordinate, and so are n's holders"
        return self.fitting(check_parts, HeteroFL(), make, why)
