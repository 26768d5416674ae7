"""Partitions by class, by similarity and without labels: FAFED's, CFedAvg's, FedAvg's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from dealt import LABELS, SEEDS, counts_of, everything_once
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloom.data import (
    blocks,
    class_groups,
    classes_per_client,
    replicated,
    shards,
    similarity,
    stratified,
)
from fedloom.errors import DataError

FASHION = torch.arange(60_000) % 10


# ------------------------------------------------------------------------------ complete, disjoint


@settings(deadline=None, max_examples=60)
@given(labels=LABELS, share=st.floats(0, 1), each=st.integers(1, 4), seed=SEEDS)
def test_shards_deal_everything_once(labels, share, each, seed):
    clients = 1 + int(share * (len(labels) - 1))
    if clients * each > len(labels):
        with pytest.raises(DataError, match="cannot be cut into"):
            shards(clients, each).split(labels, seed)
        return
    lists = shards(clients, each).split(labels, seed)
    assert everything_once(lists, len(labels))
    low = len(labels) // (clients * each) * each
    assert low <= int(lists.sizes.min()) <= int(lists.sizes.max()) <= low + each


@settings(deadline=None, max_examples=100)
@given(labels=LABELS, clients=st.integers(1, 12), seed=SEEDS)
def test_two_groups_deal_everything_once_or_say_why_not(labels, clients, seed):
    there = len(labels.unique())
    try:
        lists = class_groups(clients).split(labels, seed)
    except DataError as error:
        assert "clients" in str(error)
        return
    assert everything_once(lists, len(labels))
    counts = counts_of(lists, labels)[:, labels.unique()]
    halves = [counts[:, : -(-there // 2)].sum(1) > 0, counts[:, -(-there // 2) :].sum(1) > 0]
    assert not (halves[0] & halves[1]).any()


@settings(deadline=None, max_examples=150)
@given(
    labels=LABELS,
    clients=st.integers(1, 20),
    classes=st.integers(1, 7),
    equal=st.booleans(),
    seed=SEEDS,
)
def test_every_client_holds_exactly_its_classes_or_it_says_why_not(
    labels, clients, classes, equal, seed
):
    try:
        lists = classes_per_client(classes, clients, equal).split(labels, seed)
    except DataError as error:
        assert "classes" in str(error) or "clients" in str(error)
        return
    held = counts_of(lists, labels)[:, labels.unique()] > 0
    assert (held.sum(1) == classes).all()
    owners = held.sum(0)
    assert int(owners.max() - owners.min()) <= 1  # c N / C clients for each class
    assert len(lists.indices.unique()) == len(lists.indices)
    if equal:
        shortest = min(
            int((labels == x).sum()) // int(k) for x, k in zip(labels.unique(), owners, strict=True)
        )
        assert (lists.sizes == classes * shortest).all()
    else:
        assert everything_once(lists, len(labels))


# ----------------------------------------------------------------------------- the papers' numbers


def test_cfedavg_on_mnist_cuts_every_piece_to_the_shortest():
    # with one class each ten clients share one: 5421 // 10 = 542 samples, in test 892 // 10 = 89
    train = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    test = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    labels, tests = (
        torch.repeat_interleave(torch.arange(10), torch.tensor(n)) for n in (train, test)
    )
    partition = classes_per_client(1, 100)
    assert (partition.split(labels, 0).sizes == 542).all()
    assert (partition.split_tests(labels, tests, 0).sizes == 89).all()
    loose = classes_per_client(1, 100, equal=False)
    assert everything_once(loose.split(labels, 0), 60_000)


def test_fafed_high_has_two_groups_with_600_of_each_class():
    counts = counts_of(class_groups(20).split(FASHION, 0), FASHION)
    assert (counts[:10, :5] == 600).all() and (counts[:10, 5:] == 0).all()
    assert (counts[10:, 5:] == 600).all() and (counts[10:, :5] == 0).all()
    mnist = class_groups(20, [[0, 1, 2, 5, 9], [3, 4, 6, 7, 8]]).split(FASHION, 0)
    assert (counts_of(mnist, FASHION)[3] > 0).nonzero()[:, 0].tolist() == [0, 1, 2, 5, 9]


def test_fafed_moderate_has_all_classes_evenly():
    counts = counts_of(stratified(20).split(FASHION, 0), FASHION)
    assert (counts == 300).all()
    odd = torch.tensor([0] * 5 + [1] * 7 + [2] * 3)
    rows = counts_of(stratified(4).split(odd, 0), odd)
    assert (rows.max(0).values - rows.min(0).values <= 1).all()


def test_blocks_keep_the_order_of_the_file_whatever_the_seed():
    lists = blocks(20).split(FASHION, seed=9)
    assert [lists.of(i)[0].item() for i in range(20)] == list(range(0, 60_000, 3000))
    assert torch.equal(lists.indices, torch.arange(60_000))


def test_replicated_gives_everybody_everything():
    lists = replicated(3).split(torch.rand(4, 2), seed=0)
    assert [lists.of(i).tolist() for i in range(3)] == [[0, 1, 2, 3]] * 3
    with pytest.raises(DataError, match=r"600,000,000 indices.*at most 3333 clients"):
        replicated(10_000).split(FASHION, 0)


@pytest.mark.parametrize("share", [0.0, 0.5, 0.95])
def test_similar_clients_have_that_share_at_random(share):
    clients = 20
    counts = counts_of(similarity(clients, share).split(FASHION, 0), FASHION).double()
    sorted_part = round((1 - share) * 3000)
    # of 20 clients two share a class: the sorted rest of a client is of its own class alone, but
    # where chance moves a border: by the hypergeometric number of samples of the classes before it
    # that were drawn at random. The random part has a spread of its own.
    border, mixed = np.sqrt(60_000 * share * (1 - share) / 4), np.sqrt(share * 300)
    loose = 5 * (border + mixed)
    own = torch.arange(clients) // 2
    others = torch.arange(10)[None] != own[:, None]
    assert counts[~others].numpy() == pytest.approx(
        [sorted_part + share * 300] * clients, abs=loose
    )
    assert counts[others].numpy() == pytest.approx(share * 300, abs=loose)
