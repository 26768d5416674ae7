"""Checks of arrays and index lists; every error names the row, sample or client."""

from __future__ import annotations

import torch
from torch import Tensor

from fedloom.data.client_indices import Ragged
from fedloom.data.transforms import Images, Transform
from fedloom.errors import DataError

MOST = 1 << 24  # classes, or tokens


def kind(array: Tensor) -> str:
    """Shape and type of one sample, as text."""
    return f"{tuple(array.shape[1:])} {str(array.dtype).removeprefix('torch.')}"


def check_arrays(prefix: str, inputs: Tensor, targets: Tensor, transform: Transform | None) -> None:
    """Raise DataError for unusable inputs and targets; prefix: "" or "test "."""
    for name, array in (("inputs", inputs), ("targets", targets)):
        if array.device.type != "cpu":
            raise DataError(
                f"{prefix}{name} lie on {array.device}; give data on the CPU: a run moves them to "
                "its device"
            )
    if transform is None and inputs.dtype not in (torch.float32, torch.float64, torch.int64):
        images = "give transform=Images(...), or divide images by 255"
        advice = images if inputs.dtype == torch.uint8 else "convert them first"
        raise DataError(
            f"{prefix}inputs have type {inputs.dtype}; float32, float64 and int64 (tokens) are "
            f"allowed: {advice}"
        )
    labels = targets.dtype == torch.int64
    if not labels and targets.dtype not in (torch.float32, torch.float64):
        raise DataError(
            f"{prefix}targets have type {targets.dtype}; int64 (labels), float32 and float64 are "
            "allowed"
        )
    if inputs.ndim == 0 or targets.ndim == 0 or len(inputs) != len(targets):
        raise DataError(
            f"{prefix}inputs have shape {tuple(inputs.shape)} and {prefix}targets "
            f"{tuple(targets.shape)}; the first dimension counts the samples and must be the same"
        )
    numbers = len(transform.mean) if isinstance(transform, Images) else 1
    if inputs.ndim > 1 and numbers not in (1, inputs.shape[1]):
        raise DataError(
            f"mean and std have {numbers} numbers and {prefix}images {inputs.shape[1]} channels; "
            "give one number per channel"
        )
    if len(inputs) == 0:
        raise DataError(f"{prefix or 'training '}data have no samples")
    for name, array in (("inputs", inputs), ("targets", targets)):
        check_finite(prefix + name, array)
    if labels and not targets.numel():
        raise DataError(
            f"{prefix}targets have type int64 and shape {tuple(targets.shape)}; labels must be one "
            "number a sample, tokens (samples, length), labels of pixels (samples, height, width), "
            "regression targets floats"
        )
    if labels and int(targets.min()) < 0:
        entry = (targets < 0).nonzero()[0].tolist()
        raise DataError(
            f"{prefix}targets row {entry[0]} is {int(targets[tuple(entry)])}; labels must be 0, 1, "
            "2, ..."
            + "; pixels that do not count may be 255, with ignore = 255"
            * (targets.ndim > 2)
        )
    if labels and int(targets.max()) >= MOST:
        entry = (targets >= MOST).nonzero()[0].tolist()
        raise DataError(
            f"{prefix}targets row {entry[0]} is {int(targets[tuple(entry)])}; labels count the "
            f"classes from 0, and must be below {MOST:,}"
        )


def check_finite(subject: str, array: Tensor) -> None:
    # a finite sum needs no second pass and no second array: no NaN or infinity can be in it
    if not array.is_floating_point() or bool(array.sum().isfinite()):
        return
    rows = (~array.isfinite()).reshape(len(array), -1).any(dim=1).nonzero()
    if len(rows):
        raise DataError(
            f"{subject} row {int(rows[0])} holds NaN or infinity ({len(rows)} of {len(array)} rows "
            "do); repair or drop these rows"
        )


def check_lists(subject: str, lists: Ragged, samples: int, split: str) -> None:
    """Raise DataError for lists that are not complete or name more samples than there are."""
    offsets, indices = lists
    rising = offsets.ndim == 1 and offsets.dtype == torch.int64 and len(offsets) > 1
    rising = rising and int(offsets[0]) == 0 and int(offsets[-1]) == len(indices)
    if not rising or bool((lists.sizes < 0).any()):
        raise DataError(
            f"{subject} needs int64 offsets of at least one client that rise from 0 to the number "
            f"of indices ({len(indices)}); build it by Ragged.from_lists"
        )
    check_indices(subject, indices, samples, split)


def check_indices(subject: str, indices: Tensor, samples: int, split: str) -> None:
    """Raise DataError for values that are no indices into that many samples."""
    if indices.dtype != torch.int64 or indices.ndim != 1:
        raise DataError(
            f"{subject} indices have type {indices.dtype} and shape {tuple(indices.shape)}; int64 "
            "in one dimension is needed"
        )
    outside = ((indices < 0) | (indices >= samples)).nonzero()
    if len(outside):
        raise DataError(
            f"{subject} names sample {int(indices[outside[0]])}, but there are {samples} {split} "
            f"samples, numbered 0 to {samples - 1}"
        )
