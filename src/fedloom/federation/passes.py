"""Passes over a client's data that go on from round to round, and their order; your own is a class
below Passes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..core.hyper import NonNegativeInt, Part, hyper
from ..core.registry import Registry
from ..core.rng import generator


class Pass(NamedTuple):
    """A pass of a client over its data. number: 0, 1, ..., of this client's. Of every client:
    examples, how many it has; batches, in a pass; steps, of a round.
    """

    seed: int
    client: int
    number: int
    examples: Sequence[int]
    batches: Sequence[int]
    steps: Sequence[int]


class Passes(Part):
    """The order of a client's examples in each pass. A pass goes on in the client's next round
    where the last one ended. Subclasses become frozen dataclasses whose fields are the
    hyper-parameters; order() sees only its argument.
    """

    @property
    def name(self) -> str:
        """The name in errors."""
        return type(self).__name__

    def order(self, now: Pass) -> Tensor:
        """-> every number from 0 to the client's examples - 1 once, (n,) int64. Batches are cut
        from it in a row; the last one of a pass may be short.
        """
        raise NotImplementedError  # every order has its own


class Continue(Passes):
    """A client's pass over its data goes on in its next round; each pass is shuffled anew."""

    def order(self, now: Pass) -> Tensor:
        source = generator(now.seed, "pass", now.client, now.number)
        return torch.randperm(now.examples[now.client], generator=source)


class FLamby(Passes):
    """The order of FLamby's authors (du Terrail et al., NeurIPS 2022): torch's generator gets the
    run's seed, and a loader draws a number for itself and one for its order, client by client.

    A loader is made before the seed is set, so that its first pass draws one number; with `before`
    also that one is drawn earlier.
    Reference: https://github.com/owkin/FLamby
    """

    who: Literal["all", "cycle", "alone"] = hyper(
        "all",
        "who trains in a round: all, one of a random cycle, or alone one client (baselines)",
    )
    before: NonNegativeInt | None = hyper(
        None,
        "loaders with worker processes: numbers drawn between an earlier seeding and the loaders",
    )

    files: tuple[int, ...] = hyper(
        (),
        "of all rows at one client: at which row here each file begins, in their order",
    )

    def order(self, now: Pass) -> Tensor:
        n = now.examples[now.client]
        ends = dict(itertools.pairwise([*sorted(self.files), n]))
        rows = [torch.arange(a, ends[a]) for a in self.files]
        source = torch.Generator().manual_seed(now.seed)

        def draw() -> int:
            return int(torch.empty((), dtype=torch.int64).random_(generator=source))

        first: dict[int, int] = {}
        if self.before is not None:
            earlier = [draw() for _ in range(self.before + 2 * len(now.examples))]
            first = dict(enumerate(earlier[self.before + 1 :: 2]))
            source.manual_seed(now.seed)
        for client, number in self.passes_in_order(now):
            if number or self.who == "alone":
                draw()  # the loader's own
            seed = first[client] if first and not number else draw()
            if (client, number) == (now.client, now.number):
                break
        order = torch.Generator().manual_seed(seed)
        permutation = torch.randperm(n, generator=order)
        return torch.cat(rows)[permutation] if rows else permutation

    def passes_in_order(self, now: Pass) -> Iterator[tuple[int, int]]:
        """(client, number) of every pass in the order in which they begin."""
        visits = self._visits(now)
        steps_done = [0] * len(now.examples)
        for client in visits:
            end = steps_done[client] + now.steps[client]
            for step in range(steps_done[client], end):
                if step % now.batches[client] == 0:
                    yield client, step // now.batches[client]
            steps_done[client] = end

    def _visits(self, now: Pass) -> Iterator[int]:
        """The clients in the order in which they train, without end."""
        cycles = np.random.default_rng(now.seed)
        while True:
            if self.who == "cycle":
                yield from cycles.permutation(len(now.examples)).tolist()
            else:
                yield from [now.client] if self.who == "alone" else range(len(now.examples))


PASSES: Registry[type[Passes]] = Registry(
    "order", {"continue": Continue, "flamby": FLamby}, own=Passes
)
