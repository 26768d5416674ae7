"""Index lists that were saved or published, client test sets, and measures of heterogeneity."""

import json
import math
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloom.config import resolve
from fedloom.data import (
    PARTITIONS,
    FederatedData,
    Ragged,
    by_lists,
    dirichlet,
    dirichlet_interleaved,
    drawn,
    from_arrays,
    from_clients,
    iid,
    lists,
    measure,
    pathological,
    with_client_tests,
)
from fedloom.data.client_test_sets import proportional
from fedloom.data.heterogeneity import by_client, gini
from support.refusals import refused


def dealt_four():
    labels, partition = torch.arange(60) % 3, dirichlet(0.3, 4)
    data = from_arrays(torch.zeros(60, 1), labels, partition, (torch.zeros(12, 1), labels[:12]))
    return with_client_tests(data, partition)


def six(**changes):
    """Two clients with five of six samples."""
    parts = {
        "name": "small", "inputs": torch.zeros(6, 2), "targets": torch.tensor([0, 1, 2, 0, 1, 0]),
        "test_inputs": torch.zeros(3, 2), "test_targets": torch.tensor([0, 3, 1]),
        "clients": Ragged.from_lists([[0, 5], [1, 2, 3]]),
    }  # fmt: skip
    return FederatedData(**{**parts, **changes})


def test_a_saved_split_is_a_partition(tmp_path):
    data = dealt_four()
    data.save_indices(tmp_path / "split.npz")
    again = lists(str(tmp_path / "split.npz"))
    assert again.split(data.targets, seed=5).digest() == data.clients.digest()
    tests = again.split_tests(data.targets, data.test_targets, 5)
    assert tests.digest() == data.test_clients.digest()
    assert again.about() == {"kind": "lists", "clients": 4, "sha256": data.clients.digest()}
    refused(lambda: again.split(data.targets[:59], 0), "made for 60 samples, but there are 59")
    few = lambda: again.split_tests(data.targets, data.test_targets[:5], 0)
    refused(few, "test samples 0 to 11, but there are 5 test samples")


def test_split_files_that_do_not_fit_are_refused(tmp_path):
    path, offsets = tmp_path / "split.npz", np.array([0, 1])
    load = lambda: lists(str(path)).split(torch.zeros(6), 0)
    refused(load, path, "not a readable .npz")
    path.write_bytes(b"PK\x03\x04 nonsense")
    refused(load, path, "not a readable .npz")
    for arrays, says in (
        ({}, "no array 'indices'"),
        ({"indices": np.array([0.0])}, "float64; integers"),
        ({"indices": np.array([{}], dtype=object)}, "not a readable .npz"),
        ({"indices": np.array([0]), "samples": 7}, "made for 7 samples, but there are 6"),
    ):
        np.savez(path, offsets=offsets, **arrays)
        refused(load, says)
    refused(lambda: six().save_indices(tmp_path / "no" / "folder"), "cannot be written")


# --------------------------------------------------------------------------------- files of others
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.json", "[[4, 2], [0]]"),
        ("a.json", '{"0": [4, 2], "1": [0]}'),
        ("a.txt", "{0: [4, 2], 1: [0]}"),  # as FedACG's are published
        ("a", "[(4, 2), (0,)]"),
        ("a.txt", "{1: [0], 0: [4, 2]}"),
    ],
)
def test_published_texts_can_be_read(name, text, tmp_path):
    (tmp_path / name).write_text(text)
    dealt = lists(str(tmp_path / name)).split(torch.zeros(5), 0)
    assert [dealt.of(i).tolist() for i in (0, 1)] == [[4, 2], [0]]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"[[0], [1]", "neither JSON nor a Python literal"),
        (b"__import__('os').getcwd()", "neither JSON nor a Python literal"),
        (b"[]", "holds no lists"),
        (b"3", "holds no lists"),
        (b"{}", "holds no lists"),
        (b'{"0": [1], "2": [0]}', "keys are not 0 to 1"),
        (b"[[0.5]]", "indices of client 0"),
        (b"[[[0]]]", "indices of client 0"),
        (b"[0, 1]", "indices of client 0"),
        (b"\xff\xfe\x00", "it is no text"),
        (None, "cannot be read: No such file"),
    ],
)
def test_a_text_that_holds_no_lists_is_refused(text, says, tmp_path):
    if text is not None:
        (tmp_path / "a.txt").write_bytes(text)
    refused(lambda: lists(str(tmp_path / "a.txt")), "a.txt", says)
    refused(lambda: lists(str(tmp_path)), "cannot be read: Is a directory")


def test_lists_without_test_lists_get_proportional_test_sets(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps([[0, 1, 2], [3, 4, 5]]))
    labels, tests = torch.tensor([0, 0, 0, 1, 1, 1]), torch.tensor([1, 0, 1, 0])
    dealt = lists(str(tmp_path / "a.json")).split_tests(labels, tests, 0)
    assert [dealt.of(i).tolist() for i in (0, 1)] == [[1, 3], [0, 2]]


def test_lists_in_place_of_a_partition_are_refused_with_what_to_write(tmp_path):
    table = '{name = "lists", file = "split.json"}'
    for typed in ("[[0, 1], [2, 3]]", str([[*range(9000)], [2]])):
        word = f"data.partition={typed}"
        said = refused(
            lambda word=word: resolve("digits", [word]), "data.partition must be a name, got", table
        )
        assert len(said) < 250
    for wrong in ([[0, 1], [2, 3]], "iid"):
        make = lambda wrong=wrong: from_arrays(torch.zeros(4, 1), torch.arange(4) % 2, wrong)
        refused(make, "for lists of indices give by_lists([[")
    (tmp_path / "split.json").write_text("[[0, 1], [2, 3]]")
    table = table.replace("split.json", f"{tmp_path}/split.json")
    text = re.sub(r"(?s)\[data\.partition\]\n.*?(?=\n\[|$)", "", resolve("digits").to_toml())
    text = text.replace("[data]\n", f"[data]\npartition = {table}\n")
    (tmp_path / "my.toml").write_text(text)
    assert resolve(tmp_path / "my.toml").data().clients.of(1).tolist() == [2, 3]


# ---------------------------------------------------------------------- a partition of a user's own
OWN = """
class Odd:
    def __init__(self, clients: int = 2): self.clients = clients
    def split(self, targets, seed):
        return [range(i, len(targets), self.clients) for i in range(self.clients)]
    def about(self): return {"kind": "odd", "clients": self.clients}

def cut(targets, seed, at: int = 2): return [list(range(at)), list(range(at, len(targets)))]
def made(clients: int = 3): return Odd(clients)
def wrong(targets, seed): return {0: [1]}
def floats(targets, seed): return [[0.5]]
def fails(targets, seed): return [targets.nothing]
"""


def test_a_partition_of_a_users_own_returns_lists_of_indices(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)

    def sizes(*changes):
        return resolve("digits", changes).experiment().data.sizes.tolist()

    assert len(sizes("data.partition=mine.py:Odd")) == 50, "another name keeps `clients`"
    assert sizes("data.partition=mine.py:Odd", "data.partition.clients=3") == [480, 479, 479]
    assert sizes("partition=mine.py:cut") == [2, 1436]
    assert sizes("partition=mine.py:cut", "data.partition.at=5") == [5, 1433]
    assert sizes("partition=mine.py:made", "data.partition.clients=2") == [719, 719]
    written = 'rounds = 1\nalgorithm = "fedavg"\nmodel = "logistic"\n[data]\nname = "digits"\n'
    (tmp_path / "t.toml").write_text(written + 'partition = { name = "mine.py:cut", at = 7 }\n')
    data = resolve(tmp_path / "t.toml", ["data.tests=matched"]).experiment().data
    assert data.sizes.tolist() == [7, 1431] and data.test_clients.count == 2
    assert data.about["partition"] == {"kind": "cut", "at": 7}
    for words, says in (
        (["partition=mine.py:wrong"], "partition wrong returned a dict; return a list of indices"),
        (["partition=mine.py:floats"], "partition floats: the indices of client 0 ... float64"),
        (["partition=mine.py:fails"], "partition fails failed, mine.py, line 12: AttributeError"),
        (["partition=mine.py:cut", "data.partition.clients=3"], "mine.py:cut' has no key 'clients"),
    ):
        refused(lambda words=words: sizes(*words), says)


OPTIONS = {f"dirichlet{kind}": {"alpha": 0.3} for kind in ("", "_interleaved", "_recycled")}
OPTIONS |= {"similarity": {"share": 0.5}, "dirichlet_unbalanced": {"alpha": 0.5}}
OPTIONS |= {"classes_per_client": {"classes": 5}, "pathological": {"classes": 3}}
PLAIN = ("iid", "blocks", "stratified", "class_groups", "shards")
EVERY = {name: PARTITIONS[name](clients=20, **OPTIONS.get(name, {})) for name in [*PLAIN, *OPTIONS]}
EVERY["capped"] = PARTITIONS["dirichlet_unbalanced"](0.5, 20, capped=True)
AGAIN = ("dirichlet_recycled", "pathological")  # deal samples several times
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
