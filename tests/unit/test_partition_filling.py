"""Partitions that fill clients sample by sample: FIARSE's and FedSMOO's."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from dealt import LABELS, SEEDS, counts_of, powers_of_ten
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloom.data import dirichlet_interleaved, dirichlet_recycled, drawn, pathological
from fedloom.data.partition.dirichlet_sampled import _log_dirichlet
from fedloom.errors import DataError

ALPHAS = powers_of_ten(-6, 6)


def repeats_are_those_of_whole_passes(lists, labels):
    """Every class is taken in passes: its samples' numbers of uses differ by at most one."""
    times = torch.bincount(lists.indices, minlength=len(labels))
    for label in labels.unique():
        of_class = times[labels == label]
        assert of_class.max() - of_class.min() <= 1


@settings(deadline=None, max_examples=120)
@given(labels=LABELS, share=st.floats(0, 1), alpha=ALPHAS, seed=SEEDS)
def test_recycled_has_equal_sizes_and_takes_classes_in_passes(labels, share, alpha, seed):
    clients = 1 + int(share * (len(labels) - 1))
    lists = dirichlet_recycled(alpha, clients).split(labels, seed)
    n, rest = divmod(len(labels), clients)
    assert lists.sizes.tolist() == [n + rest] + [n] * (clients - 1)  # the first gets the remainder
    repeats_are_those_of_whole_passes(lists, labels)


@settings(deadline=None, max_examples=120)
@given(labels=LABELS, share=st.floats(0, 1), classes=st.integers(1, 7), seed=SEEDS)
def test_pathological_clients_hold_no_other_classes(labels, share, classes, seed):
    clients, there = 1 + int(share * (len(labels) - 1)), len(labels.unique())
    if classes > there:
        with pytest.raises(DataError, match=f"cannot hold {classes} classes, the labels have"):
            pathological(classes, clients).split(labels, seed)
        return
    lists = pathological(classes, clients).split(labels, seed)
    n, rest = divmod(len(labels), clients)
    assert lists.sizes.tolist() == [n + rest] + [n] * (clients - 1)
    assert ((counts_of(lists, labels) > 0).sum(1) <= classes).all()
    repeats_are_those_of_whole_passes(lists, labels)


@settings(deadline=None, max_examples=60)
@given(labels=LABELS, alpha=ALPHAS, each=st.integers(1, 9), seed=SEEDS)
def test_drawn_has_as_many_clients_as_wanted_and_exactly_their_samples(labels, alpha, each, seed):
    lists = drawn(alpha, clients=60, each=each).split(labels, seed)
    assert lists.sizes.tolist() == [each] * 60
    assert int(lists.indices.min()) >= 0 and int(lists.indices.max()) < len(labels)


# ------------------------------------------------------------------------------------------- laws


def test_the_smallest_alpha_still_orders_all_classes():
    logs = _log_dirichlet(np.random.default_rng(0), 1e-9, 100, 10)
    assert np.isfinite(logs).all()
    assert all(len(set(row)) == 10 for row in logs.tolist())


def distinct_and_deviation(partition, labels, seeds):
    rows = []
    for seed in range(seeds):
        held = partition.split(labels, seed).indices
        totals = torch.bincount(labels[held]).double()
        rows.append([len(held.unique()) / len(labels), float(totals.std(correction=0))])
    return np.mean(rows, axis=0).tolist()


@pytest.mark.parametrize(
    ("partition", "classes", "distinct", "deviation"),
    [
        (dirichlet_recycled(0.1, 100), 10, 0.914, 1023),
        (dirichlet_recycled(0.6, 100), 10, 0.953, 577),
        (dirichlet_recycled(0.1, 100), 100, 0.880, 151),
        (pathological(3, 100), 10, 0.940, None),
        (pathological(20, 100), 100, 0.918, None),
    ],
)
def test_recycling_has_the_statistics_of_the_authors_code(partition, classes, distinct, deviation):
    # an independent re-implementation of FedSMOO's loop, mean over 20 draws, CIFAR's labels
    found = distinct_and_deviation(partition, torch.arange(50_000) % classes, 5)
    assert found[0] == pytest.approx(distinct, abs=0.02)
    if deviation is not None:
        assert found[1] == pytest.approx(deviation, rel=0.2)


def test_interleaved_has_the_statistics_of_the_authors_code():
    # FIARSE's loop on CIFAR-10's labels, alpha 0.3, 100 clients: 8.0 classes, largest share 0.45
    labels = torch.arange(50_000) % 10
    counts = [
        counts_of(dirichlet_interleaved(0.3, 100).split(labels, seed), labels) for seed in range(5)
    ]
    assert np.mean([float((c > 0).sum(1).double().mean()) for c in counts]) == pytest.approx(
        8.0, abs=0.3
    )
    assert np.mean([float(c.max(1).values.double().mean()) for c in counts]) == pytest.approx(
        0.45 * 500, rel=0.08
    )


def test_drawn_samples_follow_the_law():
    """A class's count at a client is beta-binomial; every sample of a class is as likely."""
    alpha, each, labels = 0.5, 4, torch.tensor([0] * 5 + [1] * 15)
    lists = drawn(alpha, clients=20_000, each=each).split(labels, 0)
    zeros = (labels[lists.indices].view(-1, each) == 0).sum(1)
    for k in range(each + 1):  # two classes: Beta(alpha, alpha) shares
        law = math.comb(each, k) * math.exp(
            math.lgamma(k + alpha) + math.lgamma(each - k + alpha) + math.lgamma(2 * alpha)
            - math.lgamma(each + 2 * alpha) - 2 * math.lgamma(alpha)
        )  # fmt: skip
        assert abs(float((zeros == k).double().mean()) - law) < 4 * math.sqrt(law / 20_000)
    times = torch.bincount(lists.indices, minlength=20).double()
    for own in (times[:5], times[5:]):
        assert (own / own.mean() - 1).abs().max() < 5 / math.sqrt(float(own.mean()))


def test_drawn_tests_follow_the_training_shares_without_a_class_that_tests_lack():
    labels, tests = torch.arange(300) % 3, torch.tensor([0, 1] * 20)
    split = drawn(0.01, clients=200, each=5)
    lists, own = split.split(labels, 3), split.split_tests(labels, tests, 3)
    main = labels[lists.indices].view(-1, 5).mode(1).values
    tested = tests[own.indices].view(-1, 5).mode(1).values
    assert (main == tested)[main < 2].double().mean() > 0.95
    with pytest.raises(DataError, match="class 3, which no training sample has"):
        split.split_tests(labels, torch.tensor([3]), 3)
