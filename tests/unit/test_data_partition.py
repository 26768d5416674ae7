"""Partitions: disjoint, complete, of the promised sizes, of the promised distribution."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch
from dealt import LABELS, SEEDS, even_sizes, everything_once, powers_of_ten
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloom.data import (
    PARTITIONS,
    blocks,
    by_lists,
    class_groups,
    classes_per_client,
    dirichlet,
    dirichlet_interleaved,
    dirichlet_recycled,
    dirichlet_unbalanced,
    drawn,
    from_arrays,
    iid,
    pathological,
    replicated,
    shards,
    similarity,
    stratified,
)
from fedloom.data.partition.dirichlet import _draw_counts
from fedloom.errors import ConfigError, DataError

ALPHAS = powers_of_ten(-6, 6)


@settings(deadline=None, max_examples=150)
@given(labels=LABELS, share=st.floats(0, 1), alpha=ALPHAS, alike=st.floats(0, 1), seed=SEEDS)
def test_these_deal_everything_once_in_even_sizes(labels, share, alpha, alike, seed):
    clients, n = 1 + int(share * (len(labels) - 1)), len(labels)
    for partition in (
        *(iid(clients), blocks(clients), stratified(clients), similarity(clients, alike)),
        *(dirichlet(alpha, clients), dirichlet_interleaved(alpha, clients), shards(clients, 1)),
    ):
        lists = partition.split(labels, seed)
        assert everything_once(lists, n), partition
        assert sorted(lists.sizes.tolist(), reverse=True) == even_sizes(n, clients), partition
        if "dirichlet" in str(partition) or "iid" in str(partition):  # the first ones get more
            assert lists.sizes.tolist() == even_sizes(n, clients)
            for i in range(clients):
                assert torch.equal(lists.of(i), lists.of(i).sort().values)


@settings(deadline=None, max_examples=100)
@given(labels=LABELS, clients=st.integers(1, 4), alpha=ALPHAS, capped=st.booleans(), seed=SEEDS)
def test_unbalanced_deals_everything_once_or_says_why_not(labels, clients, alpha, capped, seed):
    try:
        lists = dirichlet_unbalanced(alpha, clients, tries=20, capped=capped).split(labels, seed)
    except DataError as error:
        assert "clients" in str(error)
        return
    assert everything_once(lists, len(labels)) and lists.sizes.min() >= 1


# the first digits of the digests of what seed 1 gives, for training and for tests, since 0.1
PINNED = [
    (iid(7), "731398b8", "d87853ab"),
    (blocks(7), "31adbddb", "e9b331f4"),
    (replicated(7), "714b6301", "900bfb69"),
    (stratified(7), "58d11975", "c97da44c"),
    (similarity(7, 0.5), "da1d2eac", "50cb1f37"),
    (dirichlet(0.3, 7), "94469c3b", "6230072b"),
    (dirichlet_interleaved(0.3, 7), "578fec77", "681d2b42"),
    (dirichlet_recycled(0.3, 7), "0ae26407", "2522586a"),
    (drawn(0.3, 7, 5), "65490fd4", "65afe86c"),
    (dirichlet_unbalanced(0.5, 7), "90bd4c43", "6163831e"),
    (dirichlet_unbalanced(0.5, 7, capped=True), "5e00c968", "45bb61cd"),
    (pathological(2, 7), "f3d0371a", "7fc3ec66"),
    (classes_per_client(3, 7), "121af6c7", "03465139"),
    (classes_per_client(3, 7, equal=False), "99724a32", "52689c1e"),
    (class_groups(7), "67c79683", "06c99795"),
    (shards(7), "cfdbd427", "da983eda"),
]


@pytest.mark.parametrize(("partition", "train", "test"), PINNED, ids=str)
def test_a_seed_makes_the_split_and_always_the_same(partition, train, test):
    labels, tests = torch.arange(200) * 7 % 10, torch.arange(60) * 3 % 10
    first, again, other = (partition.split(labels, seed).digest() for seed in (1, 1, 2))
    assert first == again and first[:8] == train
    assert (first == other) == isinstance(partition, (blocks, replicated))
    assert partition.split_tests(labels, tests, 1).digest()[:8] == test


MANY = [
    *(f(a, 10_000) for f in (dirichlet_interleaved, dirichlet_recycled) for a in (1e-6, 1, 1e6)),
    *(pathological(2, 10_000), classes_per_client(2, 10_000), similarity(10_000)),
    *(shards(10_000), class_groups(10_000), stratified(10_000), iid(10_000)),
]


@pytest.mark.parametrize(
    "partition",
    [dirichlet(0.3, 10_000), *(pytest.param(p, marks=pytest.mark.slow) for p in MANY)],
    ids=str,
)
def test_ten_thousand_clients_take_under_five_seconds(partition):
    begin = time.process_time()
    lists = partition.split(torch.arange(60_000) % 10, seed=0)
    assert time.process_time() - begin < 5
    assert lists.count == 10_000 and int(lists.sizes.min()) >= 1
    if isinstance(partition, dirichlet):
        assert lists.sizes.unique().tolist() == [6]


def test_a_weight_of_1e_300_against_zero_is_still_a_weight():
    counts = _draw_counts(
        np.random.default_rng(0), np.array([1e-300, 0.0, 1e-310]), np.array([5, 5, 5]), 10
    )
    assert counts.tolist() == [5, 0, 5]


def shares(alpha, seeds=4):
    """Mean largest label share and classes present, for CIFAR-10's labels over 100 clients."""
    labels = torch.arange(50_000) % 10
    rows = []
    for seed in range(seeds):
        data = from_arrays(torch.zeros(50_000, 1), labels, dirichlet(alpha, 100), seed=seed)
        counts = data.label_counts().double()
        largest = counts.max(1).values / 500
        present = (counts > 0).double().sum(1).mean()
        rows.append([largest.mean(), present])
    return torch.tensor(rows).mean(0).tolist()


def test_dirichlet_has_the_statistics_of_the_published_cifar_split():
    # the lists shipped with FedACG, alpha 0.3 over 100 clients: 0.478 and 7.9
    largest, present = shares(0.3)
    assert largest == pytest.approx(0.478, abs=0.025)
    assert present == pytest.approx(7.9, abs=0.3)


def test_a_hopeless_split_is_given_up_soon():
    begin = time.process_time()
    with pytest.raises(DataError, match=r"10 tries .*clients or more came short"):
        dirichlet_unbalanced(1e-6, 10_000).split(torch.arange(60_000) % 10, 0)
    assert time.process_time() - begin < 5


@pytest.mark.parametrize("alpha", [1e-9, 1e-3, 1e9])
def test_the_ends_of_alpha_work(alpha):
    labels = torch.arange(1000) % 10
    assert everything_once(dirichlet(alpha, 30).split(labels, 0), 1000)
    assert everything_once(dirichlet_unbalanced(alpha, 1).split(labels, 0), 1000)


def test_fewer_clients_may_hold_as_much_as_those_of_the_paper():
    """20 of 600 images: each has its classes in equal parts, and nothing twice."""
    labels = torch.arange(60_000) % 10
    lists = classes_per_client(5, 20, samples=600).split(labels, seed=3)
    assert lists.sizes.tolist() == [600] * 20
    for i in range(20):
        assert sorted(torch.bincount(labels[lists.of(i)], minlength=10).tolist())[5:] == [120] * 5
    assert len(torch.cat([lists.of(i) for i in range(20)]).unique()) == 12_000
    whole = classes_per_client(5, 20).split(labels, seed=3)
    assert all(
        set(labels[whole.of(i)].tolist()) == set(labels[lists.of(i)].tolist()) for i in range(20)
    )
    alone = classes_per_client(2, 5, samples=10**6).split(TENS, seed=0)
    assert torch.equal(alone.indices, classes_per_client(2, 5).split(TENS, seed=0).indices)


def test_given_lists_stay_as_they_are():
    lists = by_lists([[4, 1], np.array([0]), torch.tensor([1, 1])]).split(torch.zeros(5), 0)
    assert [lists.of(i).tolist() for i in range(3)] == [[4, 1], [0], [1, 1]]


@pytest.mark.parametrize("name", sorted(set(PARTITIONS) - {"lists"}))
def test_about_rebuilds_the_partition(name):
    options = {"alpha": 0.3} if "dirichlet" in name else {}
    options |= {"alpha": 0.3, "each": 4} if name == "drawn" else {}
    options |= {"classes": 2} if name in ("pathological", "classes_per_client") else {}
    partition = PARTITIONS[name](**options, clients=3)
    about = partition.about()
    assert about.pop("kind") == name
    assert PARTITIONS[name](**about) == partition


LABELLED, FLOATS = torch.arange(6) % 3, torch.rand(6)
QUARTERS, TENS = torch.arange(12) % 4, torch.arange(30) % 10


@pytest.mark.parametrize(
    ("use", "says"),
    [
        (lambda: iid(0), "clients must be a whole number from 1, got 0"),
        (lambda: iid(True), "got True"),
        (lambda: dirichlet(0.3, clients=2.0), "got 2.0"),
        (lambda: dirichlet(0, clients=2), "alpha must be .*got 0"),
        (lambda: dirichlet(-1.0, clients=2), "got -1.0"),
        (lambda: dirichlet(float("nan"), clients=2), "got nan"),
        (lambda: dirichlet_unbalanced(float("inf"), clients=2), "got inf"),
        (lambda: dirichlet_unbalanced(1.0, clients=2, min_size=0), "min_size"),
        (lambda: dirichlet_unbalanced(1.0, clients=2, tries=0), "tries"),
        (lambda: iid(7).split(LABELLED, 0), "7 clients cannot share 6 samples"),
        (lambda: dirichlet(0.3, 7).split(LABELLED, 0), "7 clients cannot share 6 samples"),
        (lambda: dirichlet(0.3, 2).split(FLOATS, 0), "needs labels.*iid, blocks or by_lists"),
        (lambda: dirichlet_unbalanced(0.3, 2).split(FLOATS, 0), "needs labels"),
        (lambda: dirichlet_unbalanced(1.0, 2, min_size=4).split(LABELLED, 0), "need 8 samples"),
        (
            lambda: dirichlet_unbalanced(1e-6, 6, tries=5).split(LABELLED, 0),
            "alpha=1e-06.*5 tries .best try: 0.*larger alpha",
        ),
        (lambda: by_lists([[0], [6]]).split(LABELLED, 0), "0 to 6, but there are 6"),
        (lambda: by_lists([[0], [-1]]).split(LABELLED, 0), "-1 to 0"),
        (lambda: by_lists([[0], [0.5]]), "client 1 .*float64"),
        (lambda: by_lists([[[0, 1]]]), "client 0 have shape"),
        (lambda: by_lists([[0, [1]]]), "client 0 are not a flat list"),
        (lambda: classes_per_client(5, 4).split(QUARTERS, 0), "cannot hold 5 classes.*have 4"),
        (lambda: classes_per_client(1, 3).split(QUARTERS, 0), "to nobody; take at least 4 clients"),
        (lambda: classes_per_client(4, 4).split(QUARTERS, 0), "fewer samples than clients"),
        (lambda: classes_per_client(4, 4, samples=3).split(QUARTERS, 0), "samples = 3 are fewer"),
        (lambda: classes_per_client(0, 4), "classes must be"),
        (lambda: classes_per_client(1, 0), "clients must be"),
        (lambda: classes_per_client(2, 3).split(QUARTERS.double(), 0), "needs labels"),
        (lambda: shards(7, 2).split(QUARTERS, 0), "12 samples cannot be cut into 14 shards"),
        (lambda: shards(3, 0), "per_client must be"),
        (lambda: similarity(3, 1.5), r"share must be in \[0, 1\], got 1.5"),
        (lambda: similarity(3, float("nan")), "got nan"),
        (lambda: similarity(13).split(QUARTERS, 0), "13 clients cannot share 12 samples"),
        (lambda: stratified(0), "clients must be"),
        (lambda: blocks(13).split(QUARTERS, 0), "13 clients cannot share 12 samples"),
        (lambda: class_groups(2, [[0, 1], [2, 3, 3]]), "each of its classes once"),
        (lambda: class_groups(2, [[0, 1], []]), "at least one class"),
        (lambda: class_groups(1, [[0, 1], [2, 3]]), "2 groups of classes need as many clients"),
        (lambda: class_groups(2, [[0, 1], [2]]).split(QUARTERS, 0), "class 3 is in no group"),
        (
            lambda: class_groups(2, [[0, 1], [2, 3, 9]]).split(QUARTERS, 0),
            "class 9 is in the groups but has no samples",
        ),
        (lambda: class_groups(2, [[0.5]]), "lists of classes"),
        (lambda: class_groups(11, [[0], [1, 2, 3]]).split(QUARTERS, 0), "3 samples for 6 clients"),
        (lambda: replicated(0), "clients must be"),
        (lambda: pathological(11, 2).split(TENS, 0), "cannot hold 11 classes, the labels have 10"),
        (lambda: pathological(0, 2), "classes must be a whole number from 1, got 0"),
        (lambda: pathological(2, 0), "clients must be"),
        (lambda: dirichlet_recycled(0, 2), "alpha must be"),
        (lambda: dirichlet_interleaved(-1, 2), "alpha must be"),
        (lambda: dirichlet_recycled(1, 31).split(TENS, 0), "31 clients cannot share 30 samples"),
        (lambda: dirichlet_interleaved(1, 31).split(TENS, 0), "31 clients cannot share 30"),
        (lambda: pathological(1, 2).split(TENS.double(), 0), "needs labels"),
    ],
)
def test_what_cannot_be_dealt_is_refused_in_one_line(use, says):
    with pytest.raises((ConfigError, DataError), match=says) as error:
        use()
    assert "\n" not in str(error.value)


def test_groups_that_share_a_class_cut_it_by_their_numbers_of_clients():
    """Exact classes for each of four clients, as in the field's "two classes of each"."""
    labels = torch.arange(120) % 4
    lists = class_groups(4, [[0, 1], [1, 2], [2, 3], [3]]).split(labels, seed=1)
    found = [labels[lists.of(i)].bincount(minlength=4).tolist() for i in range(4)]
    assert found == [[30, 15, 0, 0], [0, 15, 15, 0], [0, 0, 15, 15], [0, 0, 0, 15]]
    lists = class_groups(3, [[0, 1, 2], [2, 3]]).split(labels, seed=1)  # of two clients and of one
    found = [labels[lists.of(i)].bincount(minlength=4).tolist() for i in range(3)]
    assert found == [[15, 15, 10, 0], [15, 15, 10, 0], [0, 0, 10, 30]]
    assert sorted(lists.indices.tolist()) == list(range(120))
