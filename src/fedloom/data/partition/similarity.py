"""A share of every client's samples at random, the rest by label."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from fedloom.data.client_indices import Ragged
from fedloom.data.partition.base import (
    Pools,
    by_owner,
    check_count,
    even_sizes,
    pools_for_tests,
    pools_for_training,
)
from fedloom.errors import DataError


@dataclass(frozen=True, kw_only=True)
class Similarity:
    """Deal a share at random and the rest by label; see `similarity`."""

    clients: int
    share: float = 0.95

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        check_count("clients", self.clients)
        number = isinstance(self.share, int | float) and not isinstance(self.share, bool)
        if not number or not 0 <= self.share <= 1:
            raise DataError(
                f"share must be in [0, 1], got {self.share!r}; 0.95 is FAFED's low heterogeneity, "
                "0 sorts everything by label"
            )

    def split(self, targets: Tensor, seed: int) -> Ragged:
        """Return the lists for labels (n,)."""
        return self._deal(*pools_for_training(targets, self.clients, seed, "similarity"))

    def split_tests(self, targets: Tensor, tests: Tensor, seed: int) -> Ragged:
        """Return test lists by the same procedure: the same labels, but for their shares."""
        return self._deal(*pools_for_tests(targets, tests, self.clients, seed, "similarity"))

    def _deal(self, pools: Pools, rng: np.random.Generator) -> Ragged:
        by_label = np.concatenate(pools)
        sizes = even_sizes(len(by_label), self.clients)
        alike = np.floor(self.share * sizes + 0.5).astype(np.int64)
        mixed = np.zeros(len(by_label), dtype=bool)
        mixed[rng.permutation(len(by_label))[: int(alike.sum())]] = True
        clients = np.arange(self.clients)
        order = np.concatenate([rng.permutation(by_label[mixed]), by_label[~mixed]])
        whose = np.concatenate([np.repeat(clients, alike), np.repeat(clients, sizes - alike)])
        return by_owner(order, whose, self.clients)

    def about(self) -> dict[str, Any]:
        """Describe the partition, fit for JSON."""
        return {"kind": "similarity", "clients": self.clients, "share": self.share}


def similarity(clients: int, share: float = 0.95) -> Similarity:
    """Deal a share of every client's samples at random, the rest sorted by label and in order.

    Of n_i samples (n // N, the first clients one more where that is needed) round(share n_i) are
    drawn at random from all; what nobody drew is sorted by label and cut in the clients' order.
    share 1 is i.i.d., 0 gives neighbouring clients neighbouring labels. Disjoint and complete.

    Source: Karimireddy et al., SCAFFOLD, ICML 2020, section 7 (after Hsu et al., 2019); 0.95 is
    FAFED's "low" heterogeneity. Raises DataError for a share outside [0, 1].

    >>> import torch
    >>> labels = torch.arange(40) % 4
    >>> [labels[similarity(4, share=0).split(labels, seed=0).of(i)].unique().item()
    ...  for i in range(4)]
    [0, 1, 2, 3]
    """
    return Similarity(clients=clients, share=share)
