"""Client test sets: like the client's training samples, or independent of them."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloom.data import (
    PARTITIONS,
    by_lists,
    dirichlet,
    dirichlet_interleaved,
    from_arrays,
    from_clients,
    iid,
    measure,
    pathological,
    with_client_tests,
)
from fedloom.data.client_test_sets import proportional
from support.refusals import refused

OPTIONS = {f"dirichlet{kind}": {"alpha": 0.3} for kind in ("", "_interleaved", "_recycled")}
OPTIONS |= {"similarity": {"share": 0.5}, "dirichlet_unbalanced": {"alpha": 0.5}}
OPTIONS |= {"classes_per_client": {"classes": 5}, "pathological": {"classes": 3}}
PLAIN = ("iid", "blocks", "stratified", "class_groups", "shards", "replicated")
EVERY = {name: PARTITIONS[name](clients=20, **OPTIONS.get(name, {})) for name in [*PLAIN, *OPTIONS]}
EVERY["capped"] = PARTITIONS["dirichlet_unbalanced"](0.5, 20, capped=True)
AGAIN = ("dirichlet_recycled", "pathological", "replicated")  # deal samples several times
UNEVEN = ("dirichlet_unbalanced", "capped")


def federation(partition, train=10_000, test=2000, seed=0):
    labels, tests = torch.arange(train) % 10, torch.arange(test) % 10
    common = torch.zeros(test, 1), tests
    return from_arrays(torch.zeros(train, 1), labels, partition, common, seed=seed)


@pytest.mark.parametrize("name", EVERY)
def test_matched_labels_are_like_the_clients_own_and_dealt_once(name):
    partition = EVERY[name]
    matched, other = (
        with_client_tests(federation(partition), partition, kind, seed=0)
        for kind in ("matched", "independent")
    )
    # between two samples of the same law, 500 and 100 labels of at most 10 classes, the distance is
    # below sum_c sqrt(p (1 - p) (1/500 + 1/100)) / 2 < 0.17
    distance = measure(matched).tests.distance
    assert distance < 0.2
    if name in ("dirichlet", "dirichlet_interleaved", "pathological"):
        assert measure(other).tests.distance > distance + 0.2
    lists = matched.test_clients
    if name not in AGAIN:
        assert torch.equal(lists.indices.sort().values, torch.arange(2000))
        assert name in UNEVEN or (lists.sizes == 100).all()
    assert len(matched.test_inputs) == 2000, "the common test set stays whole"
    assert matched.about["tests"] == {"kind": "matched", "seed": 0}


def test_independent_test_sets_are_as_far_as_the_published_ones():
    # FIARSE's release: CIFAR-10, alpha 0.3, 100 clients: mean total variation 0.68
    partition = dirichlet_interleaved(0.3, 100)
    data = with_client_tests(federation(partition, 50_000, 10_000), partition, "independent", 0)
    assert measure(data).tests.distance == pytest.approx(0.68, abs=0.03)


@pytest.mark.parametrize("kind", ["matched", "independent"])
def test_a_seed_makes_the_test_sets(kind):
    partition = EVERY["dirichlet"]
    one, same, other = (
        with_client_tests(federation(partition, seed=s), partition, kind, s).test_clients.digest()
        for s in (1, 1, 2)
    )
    assert one == same != other


# ------------------------------------------------------------------------------------ proportional
@settings(max_examples=80)
@given(
    train=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), min_size=1, max_size=60),
    tests=st.lists(st.integers(0, 4), min_size=1, max_size=60),
    seed=st.integers(0, 99),
)
def test_every_count_is_the_exact_share_rounded_up_or_down(train, tests, seed):
    labels, tests = torch.tensor([y for _, y in train]), torch.tensor(tests)
    own = [[k for k, (i, _) in enumerate(train) if i == who] for who in range(4)]
    lists = proportional(labels, by_lists(own).lists, tests, seed)
    assert torch.equal(lists.indices.sort().values, torch.isin(tests, labels).nonzero()[:, 0])
    for label in labels.unique():
        held = [int((labels[k] == label).sum()) for k in own]
        for who in range(4):
            exact = held[who] / sum(held) * int((tests == label).sum())
            assert abs(int((tests[lists.of(who)] == label).sum()) - exact) < 1


class Halves:
    """A partition of somebody's own, without test sets."""

    def split(self, targets, seed):
        return by_lists([range(len(targets) // 2), range(len(targets) // 2, len(targets))]).lists

    def about(self):
        return {"kind": "halves"}


def test_a_partition_without_test_sets_gets_proportional_parts():
    labels = torch.tensor([0] * 6 + [1] * 2 + [1] * 4 + [2] * 4)
    tests = torch.tensor([0] * 3 + [1] * 3 + [2] * 2)
    data = from_arrays(torch.zeros(16, 1), labels, Halves(), (torch.zeros(8, 1), tests))
    lists = with_client_tests(data, Halves()).test_clients
    assert [sorted(tests[lists.of(i)].tolist()) for i in (0, 1)] == [[0, 0, 0, 1], [1, 1, 2, 2]]
    partition, numbers = by_lists([range(30), range(30, 40)]), torch.rand(48)  # of a regression
    test = torch.rand(8, 2), numbers[40:]
    data = from_arrays(torch.rand(40, 2), numbers[:40], partition, test)
    assert with_client_tests(data, partition).test_clients.sizes.tolist() == [6, 2]


# ------------------------------------------------------------------------------------------ refused
@pytest.mark.parametrize(
    ("partition", "labels", "tests", "kind", "says"),
    [
        (dirichlet(0.3, 2), [0, 1] * 9, [0, 1, 5], "matched", "class 5, which no training sample"),
        (pathological(1, 4), [0, 1, 2, 3], [0] * 8, "matched", "no samples of any class of client"),
        (dirichlet(1, 3), [0, 1, 2] * 3, [0, 1], "matched", "3 clients cannot share 2"),
        (dirichlet(1, 3), [0, 1, 2] * 3, [0, 1], "independent", "3 clients cannot share 2"),
        (iid(2), range(4), None, "matched", "has no test set to divide"),
        (iid(2), range(4), [0], "match", "did you mean 'matched'"),
    ],
)
def test_tests_that_cannot_be_dealt_are_refused(partition, labels, tests, kind, says):
    arrays = lambda labels: (torch.zeros(len(labels), 1), torch.tensor(labels))
    data = from_arrays(*arrays(labels), partition, None if tests is None else arrays(tests))
    refused(lambda: with_client_tests(data, partition, kind), says)
    own = from_clients([([[0.0]], [0])], client_tests=[([[1.0]], [0])])
    refused(lambda: with_client_tests(own, iid(1)), "have test sets of their own")
