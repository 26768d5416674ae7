"""Data of a federation: sources, partitions, and your own arrays.

>>> from fedloom.data import from_arrays, iid
"""

from __future__ import annotations

from fedloom.data.build import from_arrays, from_clients
from fedloom.data.federated import FederatedData
from fedloom.data.fetch import data_root
from fedloom.data.partition import PARTITIONS, by_lists, dirichlet, dirichlet_unbalanced, iid
from fedloom.data.ragged import Partition, Ragged
from fedloom.data.sources import SOURCES, digits, fashion_mnist, mnist

__all__ = [
    "PARTITIONS",
    "SOURCES",
    "FederatedData",
    "Partition",
    "Ragged",
    "by_lists",
    "data_root",
    "digits",
    "dirichlet",
    "dirichlet_unbalanced",
    "fashion_mnist",
    "from_arrays",
    "from_clients",
    "iid",
    "mnist",
]
