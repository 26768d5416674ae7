"""Deal the samples of one data set to clients. A partition is a frozen value; the seed comes later.

    iid                    at random, sizes differ by at most one
    blocks                 in the order of the file, one block each
    stratified             every class evenly (FAFED, moderate)
    replicated             everybody holds everything (FAFED, low, as coded)
    similarity             a share at random, the rest sorted by label (FAFED, low; SCAFFOLD)
    dirichlet              equal sizes, label shares from Dir(alpha) per client (FedACG)
    dirichlet_interleaved  the same, sample by sample in a random order of the clients (FIARSE)
    dirichlet_recycled     the same, from pools that begin again when they are empty (FedSMOO)
    dirichlet_unbalanced   per class, shares over the clients from Dir(alpha): unequal sizes
    pathological           c random classes per client from such pools (FedSMOO)
    classes_per_client     c classes per client, every class at equally many (CFedAvg)
    class_groups           groups of clients with groups of classes (FAFED, high)
    shards                 the labels sorted and cut, some pieces per client (FedAvg)
    natural, writers       who made the samples: FEMNIST's writers, LEAF's roles, your client column
    lists                  index lists of a file; by_lists: of your own

`docs/partitions.md` says of each what it promises and where it comes from.
"""

from __future__ import annotations

from collections.abc import Callable

from fedloom.data.client_indices import Partition
from fedloom.data.partition.dirichlet import dirichlet, dirichlet_unbalanced
from fedloom.data.partition.dirichlet_sampled import (
    dirichlet_interleaved,
    dirichlet_recycled,
    pathological,
)
from fedloom.data.partition.iid import blocks, iid, replicated
from fedloom.data.partition.index_lists import by_lists, lists
from fedloom.data.partition.label_skew import (
    class_groups,
    classes_per_client,
    shards,
    similarity,
    stratified,
)
from fedloom.data.partition.natural import natural, writers

__all__ = [
    "PARTITIONS",
    "blocks",
    "by_lists",
    "class_groups",
    "classes_per_client",
    "dirichlet",
    "dirichlet_interleaved",
    "dirichlet_recycled",
    "dirichlet_unbalanced",
    "iid",
    "lists",
    "natural",
    "pathological",
    "replicated",
    "shards",
    "similarity",
    "stratified",
    "writers",
]

_ALL: tuple[Callable[..., Partition], ...] = (
    *(iid, blocks, stratified, replicated, similarity),
    *(dirichlet, dirichlet_interleaved, dirichlet_recycled, dirichlet_unbalanced),
    *(pathological, classes_per_client, class_groups, shards, natural, writers, lists),
)
PARTITIONS = {make.__name__: make for make in _ALL}
