"""What partitions are asked about: samples dealt once, even sizes, labels held."""

from __future__ import annotations

import torch
from hypothesis import strategies as st

LABELS = st.lists(st.integers(0, 6), min_size=1, max_size=120).map(torch.tensor)
SEEDS = st.integers(0, 2**31)


def powers_of_ten(low, high):
    """alpha, evenly on a logarithmic scale."""
    return st.floats(low, high).map(lambda power: 10.0**power)


def everything_once(lists, samples):
    return torch.equal(lists.indices.sort().values, torch.arange(samples))


def even_sizes(samples, clients):
    return [samples // clients + (i < samples % clients) for i in range(clients)]


def counts_of(lists, labels):
    """(clients, classes): how many samples of each class."""
    out = torch.zeros(lists.count, int(labels.max()) + 1, dtype=torch.int64)
    where = lists.owners(), labels[lists.indices]
    return out.index_put_(where, torch.ones(len(lists.indices), dtype=torch.int64), accumulate=True)
