"""Measures of heterogeneity: numbers about the clients' labels and sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedloom.core.skew import Floats, Ints, between_pairs, gini
from fedloom.data.client_indices import count_labels
from fedloom.data.federated import FederatedData

_LISTED, _SHOWN = 10_000, 1000  # clients of which each is shown; of more so many are


@dataclass(frozen=True)
class Spread:
    """Minimum, median, maximum and mean of some numbers."""

    min: float
    median: float
    max: float
    mean: float

    @classmethod
    def of(cls, values: Any) -> Spread:
        """The spread of numbers (N,).

        >>> Spread.of([4, 1, 1])
        Spread(min=1.0, median=1.0, max=4.0, mean=2.0)
        """
        v = np.asarray(values, dtype=np.float64)
        return cls(float(v.min()), float(np.median(v)), float(v.max()), float(v.mean()))


@dataclass(frozen=True)
class Labels:
    """Measures of the label distributions p_i of the clients and g of all clients together.

    present: classes with at least one sample at a client. effective: exp of the entropy of p_i, the
    number of equally frequent classes with the same entropy. largest: max_c p_ic. pairs: total
    variation sum_c |p_ic - p_jc| / 2 between two clients, mean over all pairs, in [0, 1]. from_all:
    total variation between p_i and g. divergence: KL(p_i || g) in nats. jensen_shannon: between p_i
    and g in bits, in [0, 1].
    """

    classes: int
    present: Spread
    effective: Spread
    largest: Spread
    pairs: float
    from_all: float
    divergence: float
    jensen_shannon: float


@dataclass(frozen=True)
class Tests:
    """Measures of the client test sets. sizes: test samples per client; without: clients that have
    none; distance: total variation between a client's labels in training and in test, mean over the
    clients with test samples; None for regression.
    """

    sizes: Spread
    without: int
    distance: float | None


@dataclass(frozen=True)
class Heterogeneity:
    """sizes: samples per client; gini: of the sizes, 0 if they are equal. unused: samples that no
    client holds; shared: samples that several clients hold. labels: None for regression; tests:
    None without client test sets.
    """

    clients: int
    samples: int
    unused: int
    shared: int
    sizes: Spread
    gini: float
    labels: Labels | None
    tests: Tests | None


def measure(data: FederatedData) -> Heterogeneity:
    """The measures of a federation.

    >>> import torch
    >>> from fedloom.data import by_lists, from_arrays
    >>> halves = by_lists([[0, 1], [2, 3]])
    >>> report = measure(from_arrays(torch.zeros(4, 1), torch.tensor([0, 0, 1, 1]), halves))
    >>> report.labels.pairs, report.labels.from_all, round(report.labels.jensen_shannon, 3)
    (1.0, 0.5, 0.311)
    """
    times = np.bincount(data.clients.indices.numpy(), minlength=len(data.inputs))
    sizes = data.sizes.numpy()
    labels = None
    if data.classes is not None and data.targets.ndim == 1:
        labels = labels_of_counts(data.label_counts().numpy())
    tests = None if data.test_clients is None else _tests(data, labels is not None)
    return Heterogeneity(
        clients=data.population,
        samples=len(data.inputs),
        unused=int((times == 0).sum()),
        shared=int((times > 1).sum()),
        sizes=Spread.of(sizes),
        gini=gini(sizes),
        labels=labels,
        tests=tests,
    )


def by_client(data: FederatedData) -> dict[str, Any]:
    """Sizes (N,) and, of one label per sample, label counts (N, C) of the clients, as lists fit for
    JSON. Of more than 10,000 clients about a thousand stand for all: every so many-th. majority: of
    clients with test rows the accuracy of always saying the class that most of its training rows
    have, None without test rows.
    """
    every = 1 if data.population <= _LISTED else data.population // _SHOWN
    clients, labels = range(0, data.population, every), None
    if data.classes is not None and data.targets.ndim == 1 and data.roll is None:
        # of tokens there are too many kinds for a table by client; and some data are elsewhere
        all_ = every == 1
        rows = data.label_counts() if all_ else [data.label_counts_of(i) for i in clients]
        labels = [row.tolist() for row in rows]
    out = {"counts": labels, "sizes": data.sizes[::every].tolist()}
    if labels is not None and every == 1 and data.test_clients is not None:
        out["majority"] = _majority(data)
    names: dict[str, Any] = {"class_names": list(data.class_names)}
    if data.client_names:
        names["client_names"] = list(data.client_names[::every])
    return out | names | ({} if every == 1 else {"clients": data.population, "every": every})


def _majority(data: FederatedData) -> list[float | None]:
    assert data.test_clients is not None and data.test_targets is not None
    assert data.classes is not None
    tests = count_labels(data.test_clients, data.test_targets.cpu(), data.classes)
    hits = tests.gather(1, data.label_counts().argmax(1, keepdim=True)).flatten().tolist()
    return [n / m if m else None for n, m in zip(hits, tests.sum(1).tolist(), strict=True)]


def labels_of_counts(counts: Ints | Floats) -> Labels:
    """The measures of label counts (N, C), every client having a sample."""
    p = counts / counts.sum(axis=1, keepdims=True)
    g = counts.sum(axis=0) / counts.sum()
    middle = (p + g) / 2
    jensen = (_relative(p, middle) + _relative(np.broadcast_to(g, p.shape), middle)) / 2
    return Labels(
        classes=counts.shape[1],
        present=Spread.of((counts > 0).sum(axis=1)),
        effective=Spread.of(np.exp(-(p * np.log(np.where(p > 0, p, 1.0))).sum(axis=1))),
        largest=Spread.of(p.max(axis=1)),
        pairs=between_pairs(p),
        from_all=float(np.abs(p - g).sum(axis=1).mean() / 2),
        divergence=float(_relative(p, np.broadcast_to(g, p.shape)).mean()),
        jensen_shannon=float(jensen.mean() / np.log(2)),
    )


def _tests(data: FederatedData, labelled: bool) -> Tests:
    assert data.test_clients is not None and data.test_targets is not None
    lists, distance = data.test_clients, None
    sizes = lists.sizes.numpy()
    if labelled and sizes.any():
        assert data.classes is not None
        counts = count_labels(lists, data.test_targets, data.classes).numpy()
        tested = sizes > 0
        train_counts = data.label_counts().numpy()[tested]
        p = train_counts / train_counts.sum(axis=1, keepdims=True)
        q = counts[tested] / sizes[tested, None]
        distance = float(np.abs(p - q).sum(axis=1).mean() / 2)
    return Tests(Spread.of(sizes), int((sizes == 0).sum()), distance)


def _relative(p: Floats, q: Any) -> Floats:
    """KL(p || q) in nats, row by row; q > 0 wherever p > 0."""
    inside = p > 0
    ratio = np.divide(p, q, out=np.ones_like(q, dtype=np.float64), where=inside)
    total: Floats = (p * np.log(ratio)).sum(axis=1)
    return np.maximum(total, 0.0)  # rounding
