"""The data of a federation: arrays, and for every client a list of indices into them."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from os import PathLike
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedloom.core.parsing import user_path
from fedloom.core.rng import generator
from fedloom.data.client_indices import (
    Ragged,
    check_indices,
    check_lists,
    count_labels,
    refuse_shared_samples,
)
from fedloom.data.clients import Unseen
from fedloom.data.raw_inputs import Raw
from fedloom.data.transforms import Images, Transform
from fedloom.errors import DataError

MOST = 1 << 24  # classes, or tokens
LARGEST_TABLE = 1 << 28  # cells of label_counts()
LONGEST_LIST = 1000  # names that a description holds
_FILE = "the clients file (clients.toml)"  # which says what a Roll holds; or Python does


class Roll(NamedTuple):
    """What is known of all clients: training samples of each, (N,) int64, and the number of
    classes, None for regression.
    """

    sizes: Tensor
    classes: int | None


@dataclass(frozen=True, eq=False)
class FederatedData:
    """Training and test arrays, and the owner of every sample.

    inputs: (n, ...) float32 or float64, int64 tokens, or any stored type with a transform, which
    makes the model's inputs batch by batch: uint8 images stay a quarter of the size. targets: (n,)
    int64 labels from 0, (n, T) int64 tokens, (n, H, W) int64 labels of pixels, or floating (n, ...)
    for regression. clients: training indices per client; lists may overlap. test_clients: indices
    into the test arrays per client (a list may be empty). validation: indices into inputs that no
    client holds. about: source, partition and seed, fit for JSON, for the run directory. raw: how
    the inputs were made from published samples; an exported model includes it. roll: what is known
    of all clients where the samples of only some are here; the others' lists are empty.
    client_names: one per client, or none. unseen: the rows of clients that never train. Tensors are
    shared, never copied: treat them as constants. Raises DataError for anything that does not fit
    (`validate`).

    >>> data = FederatedData(
    ...     name="two", inputs=torch.rand(5, 2), targets=torch.tensor([0, 1, 1, 0, 2]),
    ...     clients=Ragged.from_lists([[0, 1, 2], [3, 4]]))
    >>> data.population, data.classes, data.label_counts().tolist()
    (2, 3, [[1, 2, 0], [1, 0, 1]])
    """

    name: str
    inputs: Tensor
    targets: Tensor
    clients: Ragged
    test_inputs: Tensor | None = None
    test_targets: Tensor | None = None
    test_clients: Ragged | None = None
    validation: Tensor | None = None
    class_names: tuple[str, ...] = ()
    about: Mapping[str, Any] = field(default_factory=dict)
    transform: Transform | None = None
    raw: Raw | None = None
    roll: Roll | None = None
    client_names: tuple[str, ...] = ()
    unseen: Unseen | None = None

    def __post_init__(self) -> None:
        """Refuse data that do not fit together."""
        self.validate()

    def __repr__(self) -> str:
        """One line without samples."""
        sizes, shape = self.sizes, tuple(self.inputs.shape[1:])
        each = f"{int(sizes.min())} to {int(sizes.max())} each"
        classes = "numbers to predict" if self.classes is None else f"{self.classes} classes"
        tests = 0 if self.test_inputs is None else len(self.test_inputs)
        return (
            f"<FederatedData {self.name!r}: {self.population:,} clients, {len(self.inputs):,} "
            f"samples ({each}), inputs {shape} {self.inputs.dtype}, {classes}, "
            f"{f'{tests:,}' if tests else 'no'} test samples>"
        )

    def client_name(self, i: int) -> str:
        """The name of client i; its number, if clients have no names."""
        return self.client_names[i] if self.client_names else str(i)

    @property
    def population(self) -> int:
        """The number of clients N."""
        return self.clients.count

    @property
    def sizes(self) -> Tensor:
        """Training samples per client, (N,) int64."""
        return self.clients.sizes if self.roll is None else self.roll.sizes

    @functools.cached_property
    def classes(self) -> int | None:
        """The number of classes C (largest label or token of all + 1), or None for regression."""
        if self.targets.is_floating_point():
            return None
        if self.roll is not None:
            return self.roll.classes
        largest = self._largest(self.targets)
        if self.test_targets is not None and len(self.test_targets):
            largest = max(largest, self._largest(self.test_targets))
        return largest + 1

    @property
    def ignored(self) -> int | None:
        """The label of the pixels that do not count, such as 255, which is no class; None without
        one. (Padding of tokens is a token that the model has an output for.)
        """
        return self.about.get("target_padding") if self.targets.ndim > 2 else None

    def _largest(self, labels: Tensor) -> int:
        """The largest label, or token; -1 if none counts."""
        if self.ignored is not None:
            labels = torch.where(labels == self.ignored, -1, labels)
        return int(labels.max())

    def ignoring(self, label: int | None) -> FederatedData:
        """A copy in which pixels of this label do not count. Raises DataError if the data name
        another one.
        """
        if label is None or self.outcome != "pixels" or self.ignored == label:
            return self
        if self.ignored is not None:
            raise DataError(
                f"the loss ignores label {label} and '{self.name}' label {self.ignored}; give the "
                "same, or leave out the loss's"
            )
        return replace(self, about={**self.about, "target_padding": label})

    @property
    def outcome(self) -> str:
        """What the targets are: "classes", one of an example; "tokens"; "pixels", a class of each;
        "marks", numbers that are all 0 or 1; or "numbers".
        """
        if self.classes is not None:
            return ("classes", "tokens", "pixels")[min(self.targets.ndim, 3) - 1]
        marks = bool(((self.targets == 0) | (self.targets == 1)).all())
        return "marks" if marks else "numbers"

    def label_counts(self) -> Tensor:
        """Count the labels, or all tokens, of every client: (N, C) int64.

        Raises DataError for regression, and for a table of more than 2^28 cells (2 GiB).
        """
        classes = self._countable()
        if self.population * classes > LARGEST_TABLE:
            raise DataError(
                f"a table of {self.population} clients by {classes} classes is too large; count "
                "client by client with label_counts_of"
            )
        return count_labels(self.clients, self.targets.cpu(), classes, self.ignored)

    def label_counts_of(self, i: int) -> Tensor:
        """Count the labels, or all tokens, of client i: (C,) int64, where the targets are. Raises
        DataError for regression.
        """
        classes, labels = self._countable(), self.client(i)[1].flatten()
        if self.ignored is not None:
            labels = labels[labels != self.ignored]
        return torch.bincount(labels, minlength=classes)

    def _countable(self) -> int:
        if self.classes is None:
            raise DataError(f"'{self.name}' has floating targets, so there are no labels to count")
        return self.classes

    def ready(self, inputs: Tensor, draws: Tensor | None = None) -> Tensor:
        """Stored inputs (n, ...) as model inputs; with draws (n, k) augmented as in training."""
        if self.transform is None:
            return inputs
        if draws is None:
            return self.transform.plain(inputs)
        return self.transform.augmented(inputs, draws)

    def astype(self, dtype: torch.dtype) -> FederatedData:
        """A copy with floating model inputs of this type, if they are of another; tokens stay."""
        if self.transform is not None:
            return replace(self, transform=self.transform.astype(dtype))
        if not self.inputs.is_floating_point() or self.inputs.dtype == dtype:
            return self
        tests = None if self.test_inputs is None else self.test_inputs.to(dtype)
        unseen = self.unseen
        if unseen is not None:
            unseen = unseen._replace(inputs=unseen.inputs.to(dtype))
        return replace(self, inputs=self.inputs.to(dtype), test_inputs=tests, unseen=unseen)

    def client(self, i: int) -> tuple[Tensor, Tensor]:
        """Return the inputs (as stored) and targets of client i, (n_i, ...) each."""
        indices = self.clients.of(i).to(self.inputs.device)
        return self.inputs[indices], self.targets[indices]

    def describe(self) -> dict[str, Any]:
        """The data in plain numbers, fit for JSON; `split` is the digest of the lists."""
        sizes = self.sizes
        names = {"class_names": self.class_names, "client_names": self.client_names}
        return {
            "name": self.name,
            "clients": self.population,
            "samples": len(self.inputs),
            "samples_held": int(sizes.sum()),
            "samples_per_client": {
                "min": int(sizes.min()),
                "median": float(np.median(sizes.numpy())),
                "max": int(sizes.max()),
            },
            "input_shape": list(self.inputs.shape[1:]),
            "input_dtype": str(self.inputs.dtype).removeprefix("torch."),
            "classes": self.classes,
            **{k: list(v) for k, v in names.items() if 0 < len(v) <= LONGEST_LIST},
            "test_samples": 0 if self.test_inputs is None else len(self.test_inputs),
            "validation_samples": 0 if self.validation is None else len(self.validation),
            "split": self.clients.digest(),
            "about": dict(self.about),
        }

    @property
    def trial_indices(self) -> Tensor:
        """Training samples to try a model on: of clients, or if all of these are elsewhere, any."""
        indices = self.clients.indices
        return indices if len(indices) else torch.arange(len(self.inputs))

    def only(self, client: int, tests: bool = False) -> FederatedData:
        """What is at a client's own place: its samples, and what is known of all clients. tests:
        its test samples too, if it has any. Raises DataError if there is no such client.
        """
        inputs, targets = self.client(client)
        sizes = torch.zeros_like(self.sizes)
        sizes[client] = len(inputs)
        test_inputs = test_targets = None
        if tests and self.test_clients is not None and len(rows := self.test_clients.of(client)):
            assert self.test_inputs is not None and self.test_targets is not None
            test_inputs, test_targets = self.test_inputs[rows], self.test_targets[rows]
        return replace(
            self,
            inputs=inputs,
            targets=targets,
            clients=Ragged.from_sizes(sizes),
            test_inputs=test_inputs,
            test_targets=test_targets,
            test_clients=None,
            validation=None,
            roll=Roll(self.sizes, self.classes),
        )

    def elsewhere(self, roll: Roll) -> FederatedData:
        """What is at a server: the tests, and a few training samples to try the model on; what
        clients hold is elsewhere.
        """
        few, none = slice(0, 3), torch.zeros(len(roll.sizes), dtype=torch.int64)
        tests = self.test_clients
        alike = tests is not None and tests.count == len(roll.sizes)
        return replace(
            self,
            inputs=self.inputs[few].clone(),
            targets=self.targets[few].clone(),
            clients=Ragged.from_sizes(none),
            test_clients=tests if alike else None,
            validation=None,
            roll=roll,
        )

    def with_validation(self, share: float, seed: int) -> FederatedData:
        """A copy in which floor(share n_i) random samples of every client are moved to validation.

        share is in [0, 1): every client keeps at least one sample; 0 changes nothing. Raises
        DataError if clients share samples (one would hold what another gave away), if there is a
        validation set already, and if no client has enough samples to give one.
        """
        if not 0 <= share < 1:
            raise DataError(f"share must be in [0, 1), got {share}; 0.1 holds out a tenth")
        if share == 0:
            return self
        if self.validation is not None:
            raise DataError(f"'{self.name}' already has {len(self.validation)} validation samples")
        refuse_shared_samples(self.clients)
        sizes = self.sizes.tolist()
        held_out = torch.zeros(len(self.clients.indices), dtype=torch.bool)
        counts, start = [], 0
        for client, size in enumerate(sizes):
            # 0.29 * 100 is 28.999999999999996, and 29 is meant
            count = min(math.floor(share * size + 1e-9), size - 1)
            if count:
                order = torch.randperm(size, generator=generator(seed, "validation", client))
                held_out[start + order[:count]] = True
            counts.append(count)
            start += size
        if not any(counts):
            raise DataError(
                f"share {share} of clients with at most {max(sizes)} samples is less than one "
                "sample each; take a larger share or fewer clients"
            )
        rest = Ragged.from_sizes(self.sizes - torch.tensor(counts), self.clients.indices[~held_out])
        about = {**self.about, "validation": {"share": share, "seed": seed}}
        validation = self.clients.indices[held_out].sort().values
        return replace(self, clients=rest, validation=validation, about=about)

    def save_indices(self, path: str | PathLike[str]) -> None:
        """Write the split (not the samples) as .npz for the partition `lists`: samples, offsets,
        indices, and if there are any test_offsets, test_indices. Raises DataError if it cannot be
        written.
        """
        arrays: dict[str, Any] = {"samples": np.int64(len(self.inputs))}
        for prefix, lists in (("", self.clients), ("test_", self.test_clients)):
            if lists is not None:
                arrays |= {f"{prefix}{k}": v.numpy() for k, v in lists._asdict().items()}
        try:
            with open(user_path(path), "wb") as file:  # given a name, savez adds an ending to it
                np.savez(file, **arrays)
        except OSError as error:
            raise DataError(f"the split cannot be written to {path}: {error.strerror}") from error

    def validate(self) -> None:
        """Raise DataError at the first thing that does not fit, and name the row or client."""
        check_arrays("", self.inputs, self.targets, self.transform)
        check_lists("clients", self.clients, len(self.inputs), "training")
        if self.roll is not None:
            self._validate_roll(self.roll)
        if bool((self.sizes == 0).any()):
            empty = int((self.sizes == 0).nonzero()[0])
            raise DataError(
                f"client {empty} has no training samples; leave it out, or choose fewer clients or "
                "a partition with a least size"
            )
        if len(self.client_names) not in (0, self.population):
            raise DataError(
                f"there are {len(self.client_names)} client_names for {self.population} clients; "
                "give one each, or none"
            )
        self._validate_test()
        if self.validation is not None:
            check_indices("validation", self.validation, len(self.inputs), "training")
            in_validation = torch.zeros(len(self.inputs), dtype=torch.bool)
            in_validation[self.validation] = True
            both = in_validation[self.clients.indices].nonzero()
            if len(both):
                sample, owner = self.clients.indices[both[0]], self.clients.owners()[both[0]]
                raise DataError(
                    f"sample {int(sample)} is in the validation set and at client {int(owner)}; no "
                    "client may train on validation samples"
                )
        classes = self.classes
        if classes == 0 and self.roll is None:
            raise DataError(f"no pixel counts: all have the label {self.ignored}, which is ignored")
        if self.class_names and (classes or 0) > len(self.class_names):
            pixels = "; if it marks pixels that do not count, give ignore" * (self.targets.ndim > 2)
            raise DataError(
                f"there are {len(self.class_names)} class_names, but labels go up to "
                f"{(classes or 0) - 1}; give one name per class, or none{pixels}"
            )
        try:
            json.dumps(dict(self.about))
        except (TypeError, ValueError) as error:
            raise DataError(f"about must be fit for JSON: {error}") from error

    def _validate_roll(self, roll: Roll) -> None:
        """Whoever has samples here has as many as the clients file says."""
        sizes = self.clients.sizes
        if len(sizes) != len(roll.sizes):
            raise DataError(
                f"{_FILE} has {len(roll.sizes)} clients, and there are {len(sizes)} lists; give an "
                "empty list for each client whose samples are elsewhere"
            )
        wrong = ((sizes > 0) & (sizes != roll.sizes)).nonzero()
        if len(wrong):
            i = int(wrong[0])
            raise DataError(
                f"client {i} has {int(sizes[i])} training samples, and {_FILE} says "
                f"{int(roll.sizes[i])}; its weight in the mean would be wrong"
            )
        largest = -1 if self.targets.is_floating_point() else self._largest(self.targets)
        if roll.classes is not None and largest >= roll.classes:
            raise DataError(
                f"a label is {largest}, and {_FILE} says that there are {roll.classes} classes, "
                f"numbered 0 to {roll.classes - 1}"
            )

    def _validate_test(self) -> None:
        if (self.test_inputs is None) != (self.test_targets is None):
            present, lacking = ("test_inputs", "test_targets")
            if self.test_inputs is None:
                present, lacking = lacking, present
            raise DataError(f"{present} are given without {lacking}; give both or neither")
        if self.test_inputs is None or self.test_targets is None:
            if self.test_clients is not None:
                raise DataError("test_clients are given without test_inputs; give both or neither")
            return
        check_arrays("test ", self.test_inputs, self.test_targets, self.transform)
        inputs, targets = (self.inputs, self.test_inputs), (self.targets, self.test_targets)
        for part, (train, test) in (("inputs", inputs), ("targets", targets)):
            if train.shape[1:] != test.shape[1:] or train.dtype != test.dtype:
                raise DataError(
                    f"test {part} are {kind(test)} a sample, but training {part} {kind(train)}; "
                    "they must be of one shape and type"
                )
        if self.test_clients is not None:
            check_lists("test_clients", self.test_clients, len(self.test_inputs), "test")
            if self.test_clients.count != self.population:
                raise DataError(
                    f"test_clients has {self.test_clients.count} lists for {self.population} "
                    "clients; give one for each (it may be empty)"
                )


# ------------------------------------------------------------------------------- checks of arrays
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
