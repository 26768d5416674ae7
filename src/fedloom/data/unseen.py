"""Clients that never train: their rows say how good a model is where nobody has trained it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from fedloom.core.rng import generator
from fedloom.data.client_indices import Ragged
from fedloom.data.client_names import ClientNumbers
from fedloom.errors import ConfigError

if TYPE_CHECKING:
    from fedloom.data.federated import FederatedData


class Unseen(NamedTuple):
    """The rows of clients that never train. names: of each; inputs (n, ...) as stored and targets
    (n, ...) of all; clients: whose each row is.
    """

    names: tuple[str, ...]
    inputs: Tensor
    targets: Tensor
    clients: Ragged


def set_apart(data: FederatedData, which: float | Sequence[int | str], seed: int) -> FederatedData:
    """The data without some clients, whose rows, of training and of tests, only measure. which: by
    name or number, or a share of all, of which at least one, drawn from the seed. Raises
    ConfigError.
    """
    count, setting = data.population, "evaluate.unseen"
    if isinstance(which, Sequence):
        unseen = [*ClientNumbers(data.client_names, count).all_of(which, setting)]
    else:
        order = torch.randperm(count, generator=generator(seed, "unseen"))
        unseen = sorted(order[: max(1, round(which * count))].tolist())
    if len(unseen) >= count:
        raise ConfigError(f"{setting} sets all {count} clients apart; one at least must train")
    if data.roll is not None:
        raise ConfigError(f"{setting} is of a simulation: in a federation no rows leave their site")
    rest = [i for i in range(count) if i not in set(unseen)]
    parts = [data.client(i) for i in unseen]
    changes: dict[str, Any] = {}
    tests, inputs, targets = data.test_clients, data.test_inputs, data.test_targets
    if tests is not None and inputs is not None and targets is not None:
        lists = [tests.of(i) for i in unseen]
        parts = [
            (torch.cat([x, inputs[rows]]), torch.cat([y, targets[rows]]))
            for (x, y), rows in zip(parts, lists, strict=True)
        ]
        remaining = tests.select(rest)
        free = torch.ones(len(inputs), dtype=torch.bool)  # all but what others alone have
        free[tests.indices] = False
        free[remaining.indices] = True
        places = (free.cumsum(0) - 1)[remaining.indices]
        changes["test_clients"] = Ragged(remaining.offsets, places)
        changes |= {"test_inputs": inputs[free], "test_targets": targets[free]}
    names = tuple(map(data.client_name, unseen))
    owned = Ragged.from_sizes(torch.tensor([len(x) for x, _ in parts]))
    x, y = (torch.cat(arrays) for arrays in zip(*parts, strict=True))
    return dataclasses.replace(
        data,
        clients=data.clients.select(rest),
        client_names=tuple(map(data.client_name, rest)),  # without names the numbers that they had
        about={**data.about, "unseen": list(names)},
        unseen=Unseen(names, x, y, owned),
        **changes,
    )
