"""Data of a federation: sources, partitions, and your own arrays.

>>> from fedloom.data import from_arrays, iid
"""

from __future__ import annotations

from fedloom.data.build import from_arrays, from_clients
from fedloom.data.cifar import cifar10, cifar100
from fedloom.data.client_tests import TESTS, with_client_tests
from fedloom.data.federated import FederatedData
from fedloom.data.fetch import data_root
from fedloom.data.folders import folders
from fedloom.data.heterogeneity import measure
from fedloom.data.leaf import celeba, femnist
from fedloom.data.own import from_datasets, hugging_face, table
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
    natural,
    pathological,
    replicated,
    shards,
    similarity,
    stratified,
    writers,
)
from fedloom.data.pictures import tiny_imagenet
from fedloom.data.ragged import MatchedPartition, Partition, Ragged
from fedloom.data.reviews import ag_news, sst2
from fedloom.data.shakespeare import shakespeare
from fedloom.data.sources import SOURCES, digits, fashion_mnist, mnist
from fedloom.data.transform import Images, Tokens, Transform
from fedloom.data.wikitext import wikitext2

__all__ = [
    "PARTITIONS",
    "SOURCES",
    "TESTS",
    "FederatedData",
    "Images",
    "MatchedPartition",
    "Partition",
    "Ragged",
    "Tokens",
    "Transform",
    "ag_news",
    "blocks",
    "by_lists",
    "celeba",
    "cifar10",
    "cifar100",
    "class_groups",
    "classes_per_client",
    "data_root",
    "digits",
    "dirichlet",
    "dirichlet_interleaved",
    "dirichlet_recycled",
    "dirichlet_unbalanced",
    "fashion_mnist",
    "femnist",
    "folders",
    "from_arrays",
    "from_clients",
    "from_datasets",
    "hugging_face",
    "iid",
    "lists",
    "measure",
    "mnist",
    "natural",
    "pathological",
    "replicated",
    "shakespeare",
    "shards",
    "similarity",
    "sst2",
    "stratified",
    "table",
    "tiny_imagenet",
    "wikitext2",
    "with_client_tests",
    "writers",
]
