"""Natural partitions: the makers of the samples are the clients."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from fedloom.core.hyper import PositiveInt, hyper
from fedloom.data.client_indices import Ragged
from fedloom.data.partition.base import NamedPartition, partition, stream
from fedloom.errors import DataError


@partition
class natural(NamedPartition):
    """Make a client of everyone who made samples: the writers of FEMNIST and MNIST, the celebrities
    of CelebA, the roles of Shakespeare, the folders or the client column of your own data.

    min_size: leave out makers with fewer training samples. clients: keep this many, drawn at random
    by the seed; all by default. A client keeps its own test samples, if the data have them, and
    those of all clients together are the test set. Raises DataError when there are too few.

    Source: LEAF, Caldas et al. 2018.

    >>> natural(min_size=2).choose(torch.tensor([7, 4, 7, -1]), "writers", seed=0)[1].tolist()
    [7]
    """

    by: ClassVar[str | None] = None  # what the makers must be
    clients: PositiveInt | None = hyper(None, "clients to keep, drawn by the seed; none: all")
    min_size: PositiveInt = hyper(1, "fewest training samples of a client that is kept")

    def split(self, targets: Tensor, seed: int) -> Ragged:
        """Refuse: labels do not say who made a sample. A data set with owners calls `choose`."""
        raise DataError(
            "partition natural needs data that say who made each sample: femnist, celeba, "
            "shakespeare, mnist, or your own folders and tables; others take iid or dirichlet"
        )

    def choose(self, owners: Tensor, by: str, seed: int) -> tuple[Ragged, Tensor]:
        """-> the samples of every client, and the owners that are clients (N,), in ascending order.

        owners: (n,) int64, the maker of each sample; -1: nobody. by: what these owners are called.
        """
        if self.by not in (None, by):
            raise DataError(f"the clients of these data are {by}, not {self.by}; use natural")
        made = owners.numpy()
        order = np.argsort(made, kind="stable")
        order = order[np.searchsorted(made[order], 0) :]
        who, sizes = np.unique(made[order], return_counts=True)
        ends = np.cumsum(sizes)
        enough = np.flatnonzero(sizes >= self.min_size)
        if not len(enough):
            raise DataError(
                f"none of the {len(who)} {by} has {self.min_size} samples (most: "
                f"{int(sizes.max()) if len(sizes) else 0}); take a smaller min_size"
            )
        if self.clients is not None:
            if self.clients > len(enough):
                raise DataError(
                    f"there are {len(enough)} {by} with at least {self.min_size} samples, fewer "
                    f"than clients = {self.clients}; take fewer clients or a smaller min_size"
                )
            rng = stream(seed, "natural")
            enough = np.sort(rng.permutation(enough)[: self.clients])
        parts = [order[ends[c] - sizes[c] : ends[c]] for c in enough]
        indices = torch.from_numpy(np.concatenate(parts).astype(np.int64))
        lists = Ragged.from_sizes(torch.from_numpy(sizes[enough].astype(np.int64)), indices)
        return lists, torch.from_numpy(who[enough].astype(np.int64))

    def about(self) -> dict[str, Any]:
        """Describe the partition, fit for JSON."""
        out: dict[str, Any] = {"kind": type(self).__name__, "min_size": self.min_size}
        return out if self.clients is None else out | {"clients": self.clients}


@partition
class writers(natural):
    """Make a client of every writer of MNIST (539 by QMNIST's records) or FEMNIST: `natural`,
    refused where the makers are not writers.
    """

    by = "writers"
