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
    lists = [data.clients.of(i) for i in unseen]
    tests = None if data.test_clients is None else [data.test_clients.of(i) for i in unseen]
    rows = [(data.inputs, data.targets, indices) for indices in lists]
    parts = [(x[i.to(x.device)], y[i.to(y.device)]) for x, y, i in rows]
    if tests is not None and data.test_inputs is not None and data.test_targets is not None:
        more = [(data.test_inputs[indices], data.test_targets[indices]) for indices in tests]
        parts = [
            (torch.cat([x, a]), torch.cat([y, b]))
            for (x, y), (a, b) in zip(parts, more, strict=True)
        ]
    names = tuple(map(data.client_name, unseen))
    return _without(data, rest, unseen_of(names, parts), tests is not None)


def unseen_of(names: tuple[str, ...], parts: Sequence[tuple[Tensor, Tensor]]) -> Unseen:
    """The inputs and targets of some clients, one pair for each."""
    sizes = torch.tensor([len(x) for x, _ in parts])
    lists = Ragged.from_sizes(sizes, torch.arange(int(sizes.sum())))
    return Unseen(names, torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts]), lists)


def _without(
    data: FederatedData, rest: Sequence[int], unseen: Unseen, own_tests: bool
) -> FederatedData:
    """The data of the clients that stay; test rows that were of the others are no test rows."""
    changes: dict[str, Any] = {}
    if own_tests and data.test_clients is not None and data.test_inputs is not None:
        lists = [data.test_clients.of(i) for i in rest]
        free = torch.ones(len(data.test_inputs), dtype=torch.bool)
        free[data.test_clients.indices] = False
        free[torch.cat(lists)] = True
        positions = free.cumsum(0) - 1
        assert data.test_targets is not None
        changes = {
            "test_inputs": data.test_inputs[free],
            "test_targets": data.test_targets[free],
            "test_clients": Ragged.from_lists([positions[indices] for indices in lists]),
        }
    about = {**data.about, "unseen": list(unseen.names)}
    names = tuple(map(data.client_name, rest))  # those without names keep the numbers that they had
    clients = Ragged.from_lists([data.clients.of(i) for i in rest])
    changes |= {"clients": clients, "client_names": names, "about": about, "unseen": unseen}
    return dataclasses.replace(data, **changes)
