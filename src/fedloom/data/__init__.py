"""Data of a federation: sources, partitions, and your own arrays.

>>> from fedloom.data import from_arrays, iid
"""

from __future__ import annotations

from fedloom.data.build import from_arrays, from_clients
from fedloom.data.cifar import cifar10, cifar100
from fedloom.data.federated import FederatedData
from fedloom.data.fetch import data_root
from fedloom.data.folders import folders
from fedloom.data.leaf import celeba, femnist
from fedloom.data.natural import contiguous, natural, writers
from fedloom.data.own import from_datasets, hugging_face, table
from fedloom.data.partition import PARTITIONS, by_lists, dirichlet, dirichlet_unbalanced, iid
from fedloom.data.pictures import tiny_imagenet
from fedloom.data.ragged import Partition, Ragged
from fedloom.data.reviews import ag_news, sst2
from fedloom.data.shakespeare import shakespeare
from fedloom.data.sources import SOURCES, digits, fashion_mnist, mnist
from fedloom.data.transform import Images, Tokens, Transform
from fedloom.data.wikitext import wikitext2

__all__ = [
    "PARTITIONS",
    "SOURCES",
    "FederatedData",
    "Images",
    "Partition",
    "Ragged",
    "Tokens",
    "Transform",
    "ag_news",
    "by_lists",
    "celeba",
    "cifar10",
    "cifar100",
    "contiguous",
    "data_root",
    "digits",
    "dirichlet",
    "dirichlet_unbalanced",
    "fashion_mnist",
    "femnist",
    "folders",
    "from_arrays",
    "from_clients",
    "from_datasets",
    "hugging_face",
    "iid",
    "mnist",
    "natural",
    "shakespeare",
    "sst2",
    "table",
    "tiny_imagenet",
    "wikitext2",
    "writers",
]
