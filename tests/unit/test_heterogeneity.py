"""Measures of heterogeneity, from their definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloom.data import by_lists, drawn, from_arrays, from_clients, iid, measure
from fedloom.data.heterogeneity import by_client, gini

COUNTS = st.integers(1, 5).flatmap(
    lambda classes: st.lists(
        st.lists(st.integers(0, 6), min_size=classes, max_size=classes).filter(any),
        min_size=1,
        max_size=6,
    )
)


def federation(counts):
    """Clients with these label counts (N, C)."""
    pairs = []
    for row in counts:
        labels = [c for c, n in enumerate(row) for _ in range(n)]
        pairs.append(([[0.0]] * len(labels), labels))
    return from_clients(pairs)


def kl(p, q):
    return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True) if a)


@settings(deadline=None, max_examples=80)
@given(COUNTS)
def test_every_measure_is_its_definition(counts):
    found = measure(federation(counts)).labels
    classes = found.classes
    counts = [row[:classes] for row in counts]  # the last classes may be nobody's
    p = [[n / sum(row) for n in row] for row in counts]
    g = [sum(column) / sum(map(sum, counts)) for column in zip(*counts, strict=True)]
    pairs = [
        sum(abs(a - b) for a, b in zip(p[i], p[j], strict=True)) / 2
        for i in range(len(p))
        for j in range(i)
    ]
    assert found.pairs == pytest.approx(np.mean(pairs) if pairs else 0.0, abs=1e-12)
    assert found.divergence == pytest.approx(np.mean([kl(row, g) for row in p]), abs=1e-12)
    middle = [[(a + b) / 2 for a, b in zip(row, g, strict=True)] for row in p]
    js = [(kl(row, m) + kl(g, m)) / 2 / math.log(2) for row, m in zip(p, middle, strict=True)]
    assert found.jensen_shannon == pytest.approx(np.mean(js), abs=1e-12)
    from_all = [sum(abs(a - b) for a, b in zip(row, g, strict=True)) / 2 for row in p]
    assert found.from_all == pytest.approx(np.mean(from_all), abs=1e-12)
    entropy = [-sum(a * math.log(a) for a in row if a) for row in p]
    assert found.effective.mean == pytest.approx(np.mean(np.exp(entropy)))
    assert found.present.mean == pytest.approx(np.mean([sum(n > 0 for n in row) for row in counts]))
    assert found.largest.max == pytest.approx(max(map(max, p)))


@given(st.lists(st.integers(0, 50), min_size=1, max_size=12))
def test_gini_is_the_mean_difference_over_twice_the_mean(values):
    n, mean = len(values), sum(values) / len(values)
    differences = sum(abs(a - b) for a in values for b in values) / n**2
    expected = differences / (2 * mean) if mean else 0.0
    assert gini(values) == pytest.approx(expected, abs=1e-12)


def test_uneven_use_of_the_samples_is_counted():
    found = measure(from_arrays(torch.zeros(6, 1), torch.arange(6), by_lists([[0, 1, 1], [1, 2]])))
    assert (found.unused, found.shared, found.samples, found.clients) == (3, 1, 6, 2)
    assert (found.sizes.min, found.sizes.median, found.sizes.max) == (2, 2.5, 3)
    assert found.tests is None


def test_regression_has_sizes_only():
    found = measure(from_arrays(torch.rand(5, 1), torch.rand(5), iid(2)))
    assert found.labels is None
    assert found.sizes.max == 3


def test_of_many_clients_a_thousand_are_shown():
    few = from_arrays(torch.zeros(9, 1), torch.arange(9) % 3, drawn(0.3, clients=10, each=2))
    assert by_client(few) == {
        "counts": few.label_counts().tolist(),
        "sizes": [2] * 10,
        "class_names": [],
    }
    many = from_arrays(torch.zeros(9, 1), torch.arange(9) % 3, drawn(0.3, clients=25_000, each=2))
    table = by_client(many)
    assert (table["clients"], table["every"]) == (25_000, 25)
    assert table["counts"] == many.label_counts()[::25].tolist() and len(table["sizes"]) == 1000
