"""Client test sets: like the client's training samples, or independent of them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloom.data import (
    blocks,
    by_lists,
    class_groups,
    classes_per_client,
    dirichlet,
    dirichlet_interleaved,
    dirichlet_recycled,
    dirichlet_unbalanced,
    from_arrays,
    from_clients,
    iid,
    measure,
    pathological,
    replicated,
    shards,
    similarity,
    stratified,
    with_client_tests,
)
from fedloom.data.client_test_sets import proportional
from fedloom.errors import DataError

CLIENTS = 20
ONCE = (
    iid(CLIENTS),
    blocks(CLIENTS),
    stratified(CLIENTS),
    similarity(CLIENTS, 0.5),
    dirichlet(0.3, CLIENTS),
    dirichlet_interleaved(0.3, CLIENTS),
    dirichlet_unbalanced(0.5, CLIENTS),
    dirichlet_unbalanced(0.5, CLIENTS, capped=True),
    classes_per_client(5, CLIENTS),
    class_groups(CLIENTS),
    shards(CLIENTS),
)
AGAIN = (dirichlet_recycled(0.3, CLIENTS), pathological(3, CLIENTS), replicated(CLIENTS))


def federation(partition, train=10_000, test=2000, seed=0):
    labels, tests = torch.arange(train) % 10, torch.arange(test) % 10
    data = from_arrays(
        torch.zeros(train, 1), labels, partition, (torch.zeros(test, 1), tests), seed=seed
    )
    return data


def test_counts(data):
    lists, labels = data.test_clients, data.test_targets
    out = torch.zeros(lists.count, 10, dtype=torch.int64)
    where = lists.owners(), labels[lists.indices]
    return out.index_put_(where, torch.ones(len(lists.indices), dtype=torch.int64), accumulate=True)


test_counts.__test__ = False


@pytest.mark.parametrize("partition", ONCE, ids=str)
def test_the_whole_test_set_is_dealt_once_where_the_training_set_is(partition):
    data = with_client_tests(federation(partition), partition, "matched", seed=0)
    lists = data.test_clients
    assert torch.equal(lists.indices.sort().values, torch.arange(2000))
    if not partition.about()["kind"].startswith("dirichlet_unbalanced"):
        assert (lists.sizes == 100).all()
    assert len(data.test_inputs) == 2000  # the common test set stays whole
    assert data.about["tests"] == {"kind": "matched", "seed": 0}


@pytest.mark.parametrize("partition", [*ONCE, *AGAIN], ids=str)
def test_matched_labels_are_like_the_clients_own(partition):
    distances = {}
    for kind in ("matched", "independent"):
        data = with_client_tests(federation(partition), partition, kind, seed=0)
        distances[kind] = measure(data).tests.distance
    # between two samples of the same law, 500 and 100 labels of at most 10 classes, the distance is
    # below sum_c sqrt(p (1 - p) (1/500 + 1/100)) / 2 < 0.17
    assert distances["matched"] < 0.2
    if partition.about()["kind"] in ("dirichlet", "dirichlet_interleaved", "pathological"):
        assert distances["independent"] > distances["matched"] + 0.2


def test_independent_test_sets_are_as_far_as_the_published_ones():
    # FIARSE's release: CIFAR-10, alpha 0.3, 100 clients: mean total variation 0.68
    partition = dirichlet_interleaved(0.3, 100)
    data = federation(partition, 50_000, 10_000)
    data = with_client_tests(data, partition, "independent", 0)
    assert measure(data).tests.distance == pytest.approx(0.68, abs=0.03)


def test_a_seed_makes_the_test_sets():
    partition = dirichlet(0.3, CLIENTS)
    for kind in ("matched", "independent"):
        one, same, other = (
            with_client_tests(federation(partition, seed=s), partition, kind, s) for s in (1, 1, 2)
        )
        assert one.test_clients.digest() == same.test_clients.digest()
        assert one.test_clients.digest() != other.test_clients.digest()


# ------------------------------------------------------------------------------------ proportional
@settings(deadline=None, max_examples=80)
@given(
    train=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), min_size=1, max_size=60),
    tests=st.lists(st.integers(0, 4), min_size=1, max_size=60),
    seed=st.integers(0, 99),
)
def test_every_count_is_the_exact_share_rounded_up_or_down(train, tests, seed):
    labels, tests = torch.tensor([y for _, y in train]), torch.tensor(tests)
    clients = by_lists(
        [[k for k, (i, _) in enumerate(train) if i == who] for who in range(4)]
    ).lists
    lists = proportional(labels, clients, tests, seed)
    known = torch.isin(tests, labels)
    assert torch.equal(lists.indices.sort().values, known.nonzero()[:, 0])
    for who in range(4):
        for label in range(5):
            held = [int((labels[clients.of(i)] == label).sum()) for i in range(4)]
            if sum(held):
                exact = held[who] / sum(held) * int((tests == label).sum())
                got = int((tests[lists.of(who)] == label).sum())
                assert abs(got - exact) < 1


class Halves:
    """A partition of somebody's own, without test sets."""

    def split(self, targets, seed):
        return by_lists([range(len(targets) // 2), range(len(targets) // 2, len(targets))]).lists

    def about(self):
        return {"kind": "halves"}


def test_a_partition_of_ones_own_gets_proportional_parts():
    labels = torch.tensor([0] * 6 + [1] * 2 + [1] * 4 + [2] * 4)
    tests = torch.tensor([0] * 3 + [1] * 3 + [2] * 2)
    zeros = torch.zeros(16, 1), torch.zeros(8, 1)
    data = from_arrays(zeros[0], labels, Halves(), (zeros[1], tests))
    data = with_client_tests(data, Halves())
    rows = [sorted(tests[data.test_clients.of(i)].tolist()) for i in (0, 1)]
    assert rows == [[0, 0, 0, 1], [1, 1, 2, 2]]


def test_regression_is_dealt_by_size():
    partition = by_lists([range(30), range(30, 40)])
    data = from_arrays(
        torch.rand(40, 2), torch.rand(40), partition, (torch.rand(8, 2), torch.rand(8))
    )
    assert with_client_tests(data, partition).test_clients.sizes.tolist() == [6, 2]


# --------------------------------------------------------------------------------------- bad input
def test_a_class_that_training_does_not_know_matches_nobody():
    partition = dirichlet(0.3, 2)
    labels, tests = torch.arange(20) % 2, torch.tensor([0, 1, 5])
    data = from_arrays(torch.zeros(20, 1), labels, partition, (torch.zeros(3, 1), tests))
    with pytest.raises(DataError, match="class 5, which no training sample has"):
        with_client_tests(data, partition)


def test_a_client_whose_classes_have_no_test_samples_is_named():
    partition = pathological(1, 4)
    labels, tests = torch.arange(40) % 4, torch.zeros(8, dtype=torch.int64)
    data = from_arrays(torch.zeros(40, 1), labels, partition, (torch.zeros(8, 1), tests))
    with pytest.raises(DataError, match="no samples of any class of client"):
        with_client_tests(data, partition)


def test_what_cannot_be_done_is_refused():
    partition = iid(2)
    data = from_arrays(torch.zeros(4, 1), torch.arange(4), partition)
    with pytest.raises(DataError, match="has no test set to divide"):
        with_client_tests(data, partition)
    with pytest.raises(DataError, match="did you mean 'matched'"):
        with_client_tests(data, partition, "match")
    own = from_clients([([[0.0]], [0])], client_tests=[([[1.0]], [0])])
    with pytest.raises(DataError, match="have test sets of their own"):
        with_client_tests(own, iid(1))
    few = from_arrays(
        torch.zeros(9, 1),
        torch.arange(9) % 3,
        dirichlet(1, 3),
        (torch.zeros(2, 1), torch.tensor([0, 1])),
    )
    for kind in ("matched", "independent"):
        with pytest.raises(DataError, match="3 clients cannot share 2"):
            with_client_tests(few, dirichlet(1, 3), kind)
