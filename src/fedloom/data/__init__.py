"""Data of a federation: sources, partitions, and your own arrays.

>>> from fedloom.data import from_arrays, iid
"""

from __future__ import annotations

from fedloom.data.build import from_arrays, from_clients
from fedloom.data.client_tests import TESTS, with_client_tests
from fedloom.data.federated import FederatedData
from fedloom.data.fetch import data_root
from fedloom.data.heterogeneity import measure
from fedloom.data.partition import (
    PARTITIONS,
    blocks,
    by_lists,
    class_groups,
    classes_per_client,
    dirichlet,
    dirichlet_interleaved,
    dirichlet_recycled,
    dirichlet_unbalanced,
    iid,
    lists,
    pathological,
    replicated,
    shards,
    similarity,
    stratified,
)
from fedloom.data.ragged import MatchedPartition, Partition, Ragged
from fedloom.data.sources import SOURCES, digits, fashion_mnist, mnist

__all__ = [
    "PARTITIONS",
    "SOURCES",
    "TESTS",
    "FederatedData",
    "MatchedPartition",
    "Partition",
    "Ragged",
    "blocks",
    "by_lists",
    "class_groups",
    "classes_per_client",
    "data_root",
    "digits",
    "dirichlet",
    "dirichlet_interleaved",
    "dirichlet_recycled",
    "dirichlet_unbalanced",
    "fashion_mnist",
    "from_arrays",
    "from_clients",
    "iid",
    "lists",
    "measure",
    "mnist",
    "pathological",
    "replicated",
    "shards",
    "similarity",
    "stratified",
    "with_client_tests",
]
