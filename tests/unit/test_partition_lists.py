"""Index lists of files: what was saved, and what others published."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import torch

from fedloom.config import resolve
from fedloom.data import dirichlet, from_arrays, lists, with_client_tests
from fedloom.errors import ConfigError, DataError


def federation():
    labels, partition = torch.arange(60) % 3, dirichlet(0.3, 4)
    data = from_arrays(torch.zeros(60, 1), labels, partition, (torch.zeros(12, 1), labels[:12]))
    return with_client_tests(data, partition)


def test_a_saved_split_is_the_same_split(tmp_path):
    data = federation()
    data.save_indices(tmp_path / "split.npz")
    again = lists(str(tmp_path / "split.npz"))
    assert again.split(data.targets, seed=5).digest() == data.clients.digest()
    tests = again.split_tests(data.targets, data.test_targets, 5)
    assert tests.digest() == data.test_clients.digest()
    assert again.about() == {"kind": "lists", "clients": 4, "sha256": data.clients.digest()}
    with pytest.raises(DataError, match="made for 60 samples, but there are 59"):
        again.split(data.targets[:59], 0)
    with pytest.raises(DataError, match="test samples 0 to 11, but there are 5 test samples"):
        again.split_tests(data.targets, data.test_targets[:5], 0)


def test_lists_in_place_of_a_partition_are_refused_with_what_to_write(tmp_path):
    made = '{name = "lists", file = "split.json"}'
    for given in ("[[0, 1], [2, 3]]", str([[*range(9000)], [2]])):
        with pytest.raises(ConfigError, match=r"data\.partition must be a name, got ") as caught:
            resolve("digits", [f"data.partition={given}"])
        assert made in str(caught.value) and len(str(caught.value)) < 250
    (tmp_path / "split.json").write_text("[[0, 1], [2, 3]]")
    table = made.replace("split.json", f"{tmp_path}/split.json")
    text = resolve("digits").to_toml()
    text = re.sub(r"(?s)\[data\.partition\]\n.*?(?=\n\[|$)", "", text)
    text = text.replace("[data]\n", f"[data]\npartition = {table}\n")
    (tmp_path / "my.toml").write_text(text)
    assert resolve(tmp_path / "my.toml").data().clients.of(1).tolist() == [2, 3]
    for wrong in ([[0, 1], [2, 3]], "iid"):
        with pytest.raises(DataError, match=r"for lists of indices give by_lists\(\[\["):
            from_arrays(torch.zeros(4, 1), torch.arange(4) % 2, wrong)


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
    file = tmp_path / name
    file.write_text(text)
    found = lists(str(file)).split(torch.zeros(5), 0)
    assert [found.of(i).tolist() for i in (0, 1)] == [[4, 2], [0]]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[[0], [1]", "neither JSON nor a Python literal"),
        ("__import__('os').getcwd()", "neither JSON nor a Python literal"),
        ("[]", "holds no lists"),
        ("3", "holds no lists"),
        ("{}", "holds no lists"),
        ('{"0": [1], "2": [0]}', "keys are not 0 to 1"),
        ("[[0.5]]", "indices of client 0"),
        ("[[[0]]]", "indices of client 0"),
        ("[0, 1]", "indices of client 0"),
    ],
)
def test_a_text_that_holds_no_lists_is_refused(text, says, tmp_path):
    file = tmp_path / "a.txt"
    file.write_text(text)
    with pytest.raises(DataError, match=says) as error:
        lists(str(file))
    assert "a.txt" in str(error.value)
    assert "\n" not in str(error.value)


def test_files_that_cannot_be_read_are_named(tmp_path):
    with pytest.raises(DataError, match=r"gone\.txt cannot be read: No such file"):
        lists(str(tmp_path / "gone.txt"))
    with pytest.raises(DataError, match=r"gone\.npz is not a readable"):
        lists(str(tmp_path / "gone.npz"))
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="it is no text"):
        lists(str(tmp_path / "bytes.txt"))
    np.savez(tmp_path / "part.npz", offsets=np.array([0, 1]))
    with pytest.raises(DataError, match="has no array 'indices'"):
        lists(str(tmp_path / "part.npz"))
    with pytest.raises(DataError, match="cannot be read: Is a directory"):
        lists(str(tmp_path))


def test_lists_without_test_lists_get_proportional_test_sets(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps([[0, 1, 2], [3, 4, 5]]))
    labels, tests = torch.tensor([0, 0, 0, 1, 1, 1]), torch.tensor([1, 0, 1, 0])
    found = lists(str(tmp_path / "a.json")).split_tests(labels, tests, 0)
    assert [found.of(i).tolist() for i in (0, 1)] == [[1, 3], [0, 2]]


OWN = """
class Odd:
    def __init__(self, clients: int = 2):
        self.clients = clients

    def split(self, targets, seed):
        return [range(i, len(targets), self.clients) for i in range(self.clients)]

    def about(self):
        return {"kind": "odd", "clients": self.clients}


def cut(targets, seed, at: int = 2):
    return [list(range(at)), list(range(at, len(targets)))]


def made(clients: int = 3):
    return Odd(clients)


def wrong(targets, seed):
    return {0: [1]}


def floats(targets, seed):
    return [[0.5]]
"""


def test_a_partition_of_a_users_own_returns_lists_of_indices(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)

    def sizes(*changes):
        return resolve("digits", changes).experiment().data.sizes.tolist()

    assert len(sizes("data.partition=mine.py:Odd")) == 50  # another name keeps `clients`
    assert sizes("data.partition=mine.py:Odd", "data.partition.clients=3") == [480, 479, 479]
    assert sizes("partition=mine.py:cut") == [2, 1436]
    assert sizes("partition=mine.py:cut", "data.partition.at=5") == [5, 1433]
    assert sizes("partition=mine.py:made", "data.partition.clients=2") == [719, 719]
    written = 'rounds = 1\nalgorithm = "fedavg"\nmodel = "logistic"\n[data]\nname = "digits"\n'
    (tmp_path / "t.toml").write_text(written + 'partition = { name = "mine.py:cut", at = 7 }\n')
    data = resolve(tmp_path / "t.toml", ["data.tests=matched"]).experiment().data
    assert data.sizes.tolist() == [7, 1431] and data.test_clients.count == 2
    assert data.about["partition"] == {"kind": "cut", "at": 7}
    for name, says in (
        ("wrong", "partition wrong returned a dict; return a list of indices for each client"),
        ("floats", "partition floats: the indices of client 0 have .* type float64"),
    ):
        with pytest.raises(DataError, match=says):
            sizes(f"partition=mine.py:{name}")
    with pytest.raises(ConfigError, match=r"'mine\.py:cut' has no key 'clients'"):
        sizes("partition=mine.py:cut", "data.partition.clients=3")


def test_a_partition_in_python_may_return_lists():
    class Halves:
        def split(self, targets, seed):
            return [torch.arange(2), [2, 3]]

        def about(self):
            return {"kind": "halves"}

    data = from_arrays(torch.zeros(4, 1), torch.arange(4), Halves())
    assert data.client(1)[1].tolist() == [2, 3]
