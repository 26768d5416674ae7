"""Every name of fedloom.data, which loads them when the first one is used."""

from __future__ import annotations

from collections.abc import Callable

import fedloom.data.partition as partition
from fedloom.core.registry import Registry
from fedloom.data.client_indices import MatchedPartition, Partition, Ragged
from fedloom.data.client_test_sets import TESTS, with_client_tests
from fedloom.data.federated import FederatedData
from fedloom.data.heterogeneity import measure
from fedloom.data.own.folders import folders
from fedloom.data.own.hugging_face import from_partitions, hugging_face
from fedloom.data.own.in_memory import from_arrays, from_clients, from_datasets
from fedloom.data.own.tables import table
from fedloom.data.partition import *  # noqa: F403  # its __all__: every partition
from fedloom.data.published.download import data_root
from fedloom.data.published.heart import heart, tcga
from fedloom.data.published.images import (
    cifar10,
    cifar100,
    digits,
    fashion_mnist,
    mnist,
    shapes,
    tiny_imagenet,
)
from fedloom.data.published.leaf import celeba, femnist, shakespeare
from fedloom.data.published.texts import ag_news, wikitext2
from fedloom.data.transforms import Images, Tokens, Transform

SOURCES: Registry[Callable[..., FederatedData]] = Registry(
    "data set",
    {
        source.__name__: source
        for source in (
            *(digits, heart, shapes, mnist, fashion_mnist, cifar10, cifar100),
            *(tiny_imagenet, femnist, celeba),
            *(shakespeare, wikitext2, ag_news, tcga, folders, table, hugging_face),
        )
    },
    own=FederatedData,
)

__all__ = ["SOURCES", "TESTS", "FederatedData", "MatchedPartition", "Partition", "Ragged"]
__all__ += ["Images", "Tokens", "Transform", "data_root", "measure", "with_client_tests"]
__all__ += ["celeba", "cifar10", "cifar100", "digits", "fashion_mnist", "femnist", "heart", "mnist"]
__all__ += ["ag_news", "shakespeare", "shapes", "tcga", "tiny_imagenet", "wikitext2"]
__all__ += ["folders", "from_arrays", "from_clients", "from_datasets", "from_partitions"]
__all__ += ["hugging_face", "table"]
__all__ += partition.__all__
