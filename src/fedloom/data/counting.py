"""Counts over the clients' lists: labels, and samples that several of them share."""

from __future__ import annotations

import torch
from torch import Tensor

from fedloom.data.client_indices import Ragged
from fedloom.errors import DataError

_COUNTED = 100_000  # clients whose labels are counted at once


def count_labels(lists: Ragged, targets: Tensor, classes: int) -> Tensor:
    """Count the labels, or all tokens, of targets (n, ...) on every list: (N, C) int64."""
    counts = torch.zeros(lists.count, classes, dtype=torch.int64)
    for a in range(0, lists.count, _COUNTED):  # a million at once would take gigabytes
        part = Ragged(lists.offsets[a : a + _COUNTED + 1], lists.indices)
        held = targets[lists.indices[part.offsets[0] : part.offsets[-1]]]
        first = (part.owners() * classes).view(-1, *[1] * (held.ndim - 1))
        found = torch.bincount((first + held).flatten(), minlength=part.count * classes)
        counts[a : a + _COUNTED] = found.view(-1, classes)
    return counts


def refuse_shared_samples(clients: Ragged) -> None:
    """Raise DataError if a sample is on several clients' lists."""
    times = torch.bincount(clients.indices)
    if int(times.max()) > 1:
        raise DataError(
            f"sample {int(times.argmax())} is on {int(times.max())} clients' lists, so holding it "
            "out of one leaves it at another; choose validation samples before the partition"
        )
