"""Partitions without labels: at random, in blocks, and everything for every client."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedloom.core.hyper import hyper
from fedloom.data.client_indices import Ragged
from fedloom.data.partition.base import (
    Clients,
    NamedPartition,
    check_enough,
    even_sizes,
    in_order,
    partition,
    stream,
)
from fedloom.errors import DataError

_MOST = 200_000_000  # entries of replicated lists: 1.6 GB


@partition
class iid(NamedPartition):
    """Assign all samples at random; sizes differ by at most one. Fits any targets.

    >>> iid(clients=3).split(torch.zeros(7), seed=0).sizes.tolist()
    [3, 2, 2]
    """

    clients: Clients = hyper()

    def split(self, targets: Tensor, seed: int) -> Ragged:
        """Return the lists for targets (n, ...) of any type."""
        return self._assign(len(targets), stream(seed, "iid"))

    def split_tests(self, targets: Tensor, tests: Tensor, seed: int) -> Ragged:
        """Return test lists: at random too."""
        return self._assign(len(tests), stream(seed, "iid", "tests"))

    def _assign(self, samples: int, rng: np.random.Generator) -> Ragged:
        check_enough(self.clients, samples)
        return in_order(rng.permutation(samples), even_sizes(samples, self.clients))


class _Unshuffled(NamedPartition):
    """A partition that draws nothing; test samples are assigned like training samples."""

    def split(self, targets: Tensor, seed: int) -> Ragged:
        """Return the lists for targets (n, ...) of any type; the seed changes nothing."""
        raise NotImplementedError

    def split_tests(self, targets: Tensor, tests: Tensor, seed: int) -> Ragged:
        """Return test lists, made in the same way."""
        return self.split(tests, seed)


@partition
class blocks(_Unshuffled):
    """Assign blocks of neighbouring samples in the order of the file. Fits any targets and text.

    FAFED's "moderate" on MNIST and Fashion-MNIST, whose files are in no order of labels, so that
    blocks are nearly i.i.d.; its shards of a text are blocks too. Sizes differ by at most one.

    Source: Wu et al., FAFED, AAAI 2023, and the code that is taken for its authors'.

    >>> [blocks(clients=2).split(torch.zeros(5), seed=0).of(i).tolist() for i in (0, 1)]
    [[0, 1, 2], [3, 4]]
    """

    clients: Clients = hyper()

    def split(self, targets: Tensor, seed: int) -> Ragged:
        """Return the lists for targets (n, ...) of any type; the seed changes nothing."""
        check_enough(self.clients, len(targets))
        sizes = torch.from_numpy(even_sizes(len(targets), self.clients))
        return Ragged.from_sizes(sizes, torch.arange(len(targets)))


@partition
class replicated(_Unshuffled):
    """Give every client the whole training set: no heterogeneity at all. Fits any targets.

    FAFED's "low" as another code of its author has it; the paper's words are `similarity`. An epoch
    costs as many times more as there are clients. Raises DataError beyond 200 million indices.

    >>> replicated(clients=2).split(torch.zeros(3), seed=0).of(1).tolist()
    [0, 1, 2]
    """

    clients: Clients = hyper()

    def split(self, targets: Tensor, seed: int) -> Ragged:
        """Return the lists for targets (n, ...) of any type; the seed changes nothing."""
        samples = len(targets)
        if self.clients * samples > _MOST:
            raise DataError(
                f"{self.clients} clients with {samples} samples each are "
                f"{self.clients * samples:,} indices; at most {_MOST:,} are allowed: take at most "
                f"{max(_MOST // samples, 1)} clients"
            )
        sizes = torch.full((self.clients,), samples)
        return Ragged.from_sizes(sizes, torch.arange(samples).repeat(self.clients))
