"""The handwritten digits that scikit-learn carries: data without a download."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from fedloom.core.rng import key
from fedloom.data.client_indices import Partition
from fedloom.data.dataset import Arrays
from fedloom.data.federated import FederatedData
from fedloom.data.partition import dirichlet
from fedloom.data.partition.base import Floats
from fedloom.data.raw_inputs import Pixels
from fedloom.errors import DataError


def digits(
    partition: Partition | None = None, seed: int = 0, test_share: float = 0.2
) -> FederatedData:
    """Load the 1,797 handwritten digits of 8 x 8 pixels that scikit-learn carries: no download.

    Inputs are (n, 1, 8, 8) float32 in [0, 1]. The test set is test_share (in [0, 1)) of every
    class by one fixed permutation: it does not depend on seed. The default partition is
    dirichlet(0.3, clients=50). Raises DataError without scikit-learn or for a share out of range.

    Source: Alpaydin and Kaynak 1998, UCI repository, as given by sklearn.datasets.load_digits.
    """
    if not 0 <= test_share < 1:
        raise DataError(f"test_share must be in [0, 1), got {test_share}; 0.2 holds out a fifth")
    table, raw = _table(), Pixels(16)
    images = raw.store(table[:, :-1].reshape(-1, 8, 8)).unsqueeze(1)
    labels = torch.from_numpy(table[:, -1].astype(np.int64))
    test = torch.zeros(len(labels), dtype=torch.bool)
    for label in range(10):
        rows = (labels == label).nonzero().flatten()
        order = np.random.default_rng(key(0, "digits test split", label)).permutation(len(rows))
        # a class keeps at least one sample for training
        held = min(round(test_share * len(rows)), len(rows) - 1)
        test[rows[torch.from_numpy(order[:held])]] = True
    arrays = Arrays(
        name="digits",
        inputs=images[~test],
        targets=labels[~test],
        test_inputs=images[test],
        test_targets=labels[test],
        class_names=tuple("0123456789"),
        raw=raw,
        details={"scale": "1/16", "test_share": test_share},
    )
    return arrays.divided(dirichlet(0.3, clients=50) if partition is None else partition, seed)


def _table() -> Floats:
    """The 64 pixels and the label of each image, (1797, 65), from scikit-learn's own file: to
    import scikit-learn takes longer than 30 rounds.
    """
    found = find_spec("sklearn")
    if found is None or found.origin is None:
        raise DataError(
            "the digits come with scikit-learn, which is missing; pip install fedloom[digits]"
        )
    file = Path(found.origin).parent / "datasets" / "data" / "digits.csv.gz"
    if file.is_file():
        return np.loadtxt(file, delimiter=",")
    from sklearn.datasets import load_digits  # of a version that keeps the file elsewhere

    return np.column_stack(load_digits(return_X_y=True))
