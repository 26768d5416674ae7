"""Index lists: those that were saved, those that others published, and a partition of one's own."""

import json
import re

import numpy as np
import pytest
import torch

from fedloom.config import resolve
from fedloom.data import FederatedData, Ragged, dirichlet, from_arrays, lists, with_client_tests
from support.refusals import refused


def federation():
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


# ----------------------------------------------------------------------------------- files of ours
def test_a_saved_split_is_a_partition(tmp_path):
    data = federation()
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
    for given in ("[[0, 1], [2, 3]]", str([[*range(9000)], [2]])):
        word = f"data.partition={given}"
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
        (
            ["partition=mine.py:cut", "data.partition.clients=3"],
            "'mine.py:cut' has no key 'clients'",
        ),
    ):
        refused(lambda words=words: sizes(*words), says)
