"""Partitions of one data set among clients. A partition is a frozen value; the seed comes later.

`docs/partitions.md` lists the properties and the source of each.
"""

from __future__ import annotations

from collections.abc import Callable

from fedloom.core.registry import Registry
from fedloom.data.client_indices import Partition
from fedloom.data.partition.base import from_function
from fedloom.data.partition.dirichlet import (
    dirichlet,
    dirichlet_interleaved,
    dirichlet_recycled,
    dirichlet_unbalanced,
    drawn,
    pathological,
)
from fedloom.data.partition.label_skew import (
    class_groups,
    classes_per_client,
    shards,
    similarity,
    stratified,
)
from fedloom.data.partition.without_labels import (
    blocks,
    by_lists,
    iid,
    lists,
    natural,
    writers,
)

__all__ = ["PARTITIONS", "blocks", "by_lists", "iid", "lists", "natural", "writers"]
__all__ += ["class_groups", "classes_per_client", "shards", "similarity", "stratified"]
__all__ += ["dirichlet", "dirichlet_interleaved", "dirichlet_recycled", "dirichlet_unbalanced"]
__all__ += ["drawn", "pathological"]

_ALL: tuple[Callable[..., Partition], ...] = (
    *(iid, blocks, stratified, similarity),
    *(dirichlet, dirichlet_interleaved, dirichlet_recycled, dirichlet_unbalanced),
    drawn,
    *(pathological, classes_per_client, class_groups, shards, natural, writers, lists),
)
PARTITIONS: Registry[Callable[..., Partition]] = Registry(
    "partition", {make.__name__: make for make in _ALL}, own=Partition, made_of=from_function
)
