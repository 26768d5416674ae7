"""Measures of heterogeneity, from their definitions."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloom.data import by_lists, drawn, from_arrays, from_clients, iid, measure
from fedloom.data.heterogeneity import by_client, gini

COUNTS = st.integers(1, 5).flatmap(
    lambda n: st.lists(
        st.lists(st.integers(0, 6), min_size=n, max_size=n).filter(any), min_size=1, max_size=6
    )
)


def kl(p, q):
    return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True) if a)


def distance(p, q):
    return sum(abs(a - b) for a, b in zip(p, q, strict=True)) / 2


@settings(max_examples=80)
@given(COUNTS)
def test_every_measure_is_its_definition(counts):
    labels = [[c for c, n in enumerate(row) for _ in range(n)] for row in counts]
    measures = measure(from_clients([([[0.0]] * len(own), own) for own in labels])).labels
    counts = [row[: measures.classes] for row in counts]  # the last classes may be nobody's
    p = [[n / sum(row) for n in row] for row in counts]
    g = [sum(column) / sum(map(sum, counts)) for column in zip(*counts, strict=True)]
    middle = [[(a + b) / 2 for a, b in zip(row, g, strict=True)] for row in p]
    js = [(kl(row, m) + kl(g, m)) / 2 / math.log(2) for row, m in zip(p, middle, strict=True)]
    pairs = [distance(p[i], p[j]) for i in range(len(p)) for j in range(i)] or [0.0]
    entropy = [-sum(a * math.log(a) for a in row if a) for row in p]
    near = lambda value: pytest.approx(np.mean(value), abs=1e-12)
    assert measures.pairs == near(pairs)
    assert measures.divergence == near([kl(row, g) for row in p])
    assert measures.jensen_shannon == near(js)
    assert measures.from_all == near([distance(row, g) for row in p])
    assert measures.effective.mean == near(np.exp(entropy))
    assert measures.present.mean == near([sum(n > 0 for n in row) for row in counts])
    assert measures.largest.max == near(max(map(max, p)))


@given(st.lists(st.integers(0, 50), min_size=1, max_size=12))
def test_gini_is_the_mean_difference_over_twice_the_mean(values):
    n, mean = len(values), sum(values) / len(values)
    differences = sum(abs(a - b) for a in values for b in values) / n**2
    assert gini(values) == pytest.approx(differences / (2 * mean) if mean else 0.0, abs=1e-12)


def test_uneven_use_of_the_samples_is_counted():
    measures = measure(
        from_arrays(torch.zeros(6, 1), torch.arange(6), by_lists([[0, 1, 1], [1, 2]]))
    )
    assert (measures.unused, measures.shared, measures.samples, measures.clients) == (3, 1, 6, 2)
    assert (measures.sizes.min, measures.sizes.median, measures.sizes.max) == (2, 2.5, 3)
    assert measures.tests is None
    regression = measure(from_arrays(torch.rand(5, 1), torch.rand(5), iid(2)))
    assert regression.labels is None and regression.sizes.max == 3


def test_of_many_clients_a_thousand_are_shown():
    few, many = (
        from_arrays(torch.zeros(9, 1), torch.arange(9) % 3, drawn(0.3, clients=n, each=2))
        for n in (10, 25_000)
    )
    counts = few.label_counts().tolist()
    assert by_client(few) == {"counts": counts, "sizes": [2] * 10, "class_names": []}
    table = by_client(many)
    assert (table["clients"], table["every"]) == (25_000, 25)
    assert table["counts"] == many.label_counts()[::25].tolist() and len(table["sizes"]) == 1000
