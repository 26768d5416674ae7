"""Between which numbers the columns of a table lie, for whoever uses a model of them."""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch import Tensor

from fedloom.data.federated import FederatedData
from fedloom.data.own.making import PerClient
from fedloom.data.own.preparation import Column, Preparation
from fedloom.data.raw_inputs import Columns

Ranges = dict[str, list[float]]


def ranges(data: FederatedData, client: int | None = None) -> Ranges:
    """The lowest and the highest number of all training rows in each column of numbers, in the
    column's own unit. Nothing for inputs of another kind, and where rows are elsewhere. client: of
    its rows alone.
    """
    raw = data.raw
    if data.roll is not None or data.inputs.ndim != 2:
        return {}
    if isinstance(raw, PerClient):
        by_client = raw.by_client
        clients = [(i, n) for i, n in enumerate(data.client_names) if client in (None, i)]
        return _merge([_of(by_client[n], data.client(i)[0]) for i, n in clients if n in by_client])
    if isinstance(raw, Columns):
        raw = Preparation(tuple(Column(name, "number") for name in raw.names))
    inputs = data.inputs if client is None else data.client(client)[0]
    return _of(raw, inputs) if isinstance(raw, Preparation) else {}


def _of(preparation: Preparation, inputs: Tensor) -> Ranges:
    """inputs: (n, k), in float32, so to seven digits of the largest number of a column."""
    lows, highs = inputs.double().amin(0).numpy(), inputs.double().amax(0).numpy()
    ranges, offset = {}, 0
    for column in preparation.columns:
        if column.kind == "number":
            mean, std = column.mean, column.std
            assert isinstance(mean, float) and isinstance(std, float)  # lists are of categories
            ends = [float(v[offset] * std + mean) for v in (lows, highs)]
            digits = 6 - math.floor(math.log10(max(std, *map(abs, ends))))
            ranges[column.name] = [round(end, digits) for end in ends]
        offset += len(column.heads)
    return ranges


def _merge(parts: list[Ranges]) -> Ranges:
    """The ranges of all parts."""
    out: Ranges = {}
    for name, (low, high) in (pair for part in parts for pair in part.items()):
        bounds: Mapping[str, list[float]] = {name: [math.inf, -math.inf], **out}
        out[name] = [min(low, bounds[name][0]), max(high, bounds[name][1])]
    return out
