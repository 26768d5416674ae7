"""FederatedData and its constructors: what fits, what is refused, hold-out, split files."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloom.data import (
    FederatedData,
    Ragged,
    by_lists,
    dirichlet,
    from_arrays,
    from_clients,
    from_datasets,
    iid,
    natural,
)
from fedloom.data.dataset import Arrays
from fedloom.data.federated import Roll
from fedloom.data.heterogeneity import by_client
from fedloom.errors import DataError


def small(**changes):
    parts = {
        "name": "small",
        "inputs": torch.arange(12.0).view(6, 2),
        "targets": torch.tensor([0, 1, 2, 0, 1, 0]),
        "clients": Ragged.from_lists([[0, 5], [1, 2, 3]]),
        "test_inputs": torch.zeros(3, 2),
        "test_targets": torch.tensor([0, 3, 1]),
    }
    return FederatedData(**{**parts, **changes})


# ---- index lists


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 50), max_size=6), min_size=1, max_size=8))
def test_ragged_keeps_every_list(lists):
    ragged = Ragged.from_lists(lists)
    assert ragged.count == len(lists)
    assert [ragged.of(i).tolist() for i in range(ragged.count)] == lists
    assert ragged.sizes.tolist() == [len(part) for part in lists]
    assert ragged.owners().tolist() == [i for i, part in enumerate(lists) for _ in part]


def test_a_list_is_a_view():
    ragged = Ragged.from_lists([[1, 2], [3]])
    assert ragged.of(1).data_ptr() == ragged.indices[2:].data_ptr()


@pytest.mark.parametrize("client", [-1, 2])
def test_a_client_that_is_not_there_is_an_error(client):
    with pytest.raises(DataError, match="no client"):
        Ragged.from_lists([[1, 2], [3]]).of(client)


def test_the_digest_tells_the_same_indices_cut_elsewhere():
    digests = [Ragged.from_lists(x).digest() for x in ([[1, 2], [3]], [[1], [2, 3]], [[1, 2, 3]])]
    assert len(set(digests)) == 3


# ---- the facts


def test_the_facts_of_a_small_federation():
    data = small()
    assert data.population == 2
    assert data.sizes.tolist() == [2, 3]
    assert data.classes == 4  # label 3 occurs in the test set alone
    assert data.label_counts().tolist() == [[2, 0, 0, 0], [1, 1, 1, 0]]
    inputs, targets = data.client(1)
    assert inputs.tolist() == [[2, 3], [4, 5], [6, 7]] and targets.tolist() == [1, 2, 0]


def test_regression_has_no_classes():
    data = from_arrays(np.zeros((6, 2)), np.linspace(0, 1, 6), iid(2))
    assert data.classes is None and data.targets.dtype == torch.float32
    with pytest.raises(DataError, match="no labels"):
        data.label_counts()


def test_describe_is_json_and_says_what_there_is():
    told = json.loads(json.dumps(small(about={"source": "here"}).describe()))
    assert told["clients"] == 2 and told["samples"] == 6 and told["samples_held"] == 5
    assert told["samples_per_client"] == {"min": 2, "median": 2.5, "max": 3}
    assert told["input_shape"] == [2] and told["input_dtype"] == "float32"
    assert told["classes"] == 4 and told["test_samples"] == 3 and told["validation_samples"] == 0
    assert told["about"] == {"source": "here"} and told["split"] == small().clients.digest()


def test_the_data_of_one_client_know_all_clients():
    own = small().only(1)
    assert own.population == 2 and own.sizes.tolist() == [2, 3] and own.classes == 4
    assert torch.equal(own.client(1)[0], small().client(1)[0]) and len(own.inputs) == 3
    assert own.test_inputs is None and len(own.client(0)[0]) == 0
    for roll, said in (
        (Roll(torch.tensor([2, 4]), 4), "client 1 has 3 training samples, and the clients file"),
        (Roll(torch.tensor([3]), 4), "clients.toml.* has 1 clients, and there are 2 lists"),
        (Roll(torch.tensor([2, 3]), 2), "a label is 2, and the clients file .* 2 classes"),
    ):
        with pytest.raises(DataError, match=said):
            dataclasses.replace(own, roll=roll)


NAN = torch.tensor([[0.0, 0], [0, 0], [0, float("nan")], [0, 0], [float("inf"), 0], [0, 0]])


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"targets": torch.zeros(5, dtype=torch.int64)}, r"inputs have shape \(6, 2\).*\(5,\)"),
        ({"clients": Ragged.from_lists([[0], [], [1]])}, "client 1 has no training samples;"),
        ({"clients": Ragged.from_lists([[0], [6]])}, "sample 6, but there are 6 training"),
        ({"clients": Ragged.from_lists([[0], [-1]])}, "sample -1"),
        ({"clients": Ragged.from_lists([])}, "at least one client"),
        ({"clients": Ragged(torch.tensor([0, 3, 2]), torch.tensor([0, 1]))}, "rise from 0"),
        ({"clients": Ragged(torch.tensor([0, 1]), torch.tensor([0, 1]))}, "rise from 0"),
        ({"clients": Ragged(torch.tensor([0, 1]), torch.tensor([0.5]))}, "float32"),
        ({"inputs": NAN}, r"inputs row 2 holds NaN or infinity \(2 of 6"),
        ({"inputs": NAN.to(torch.uint8)}, "divide images by 255"),
        ({"inputs": torch.zeros(6, 2, dtype=torch.float16)}, "float16"),
        ({"targets": torch.zeros(6, dtype=torch.int32)}, "int32"),
        ({"targets": torch.tensor([0, 1, -1, 0, 0, 0])}, "targets row 2 is -1"),
        ({"targets": torch.zeros(6, 0, dtype=torch.int64)}, "one number a sample"),
        ({"test_targets": None}, "test_inputs are given without test_targets"),
        ({"test_inputs": None}, "test_targets are given without test_inputs"),
        ({"test_inputs": torch.zeros(2, 2)}, "test inputs have shape"),
        ({"test_inputs": torch.zeros(3, 4)}, r"test inputs are \(4,\) float32 a sample"),
        ({"test_inputs": torch.zeros(3, 2).double()}, "float64 a sample"),
        ({"test_targets": torch.zeros(3)}, r"test targets are \(\) float32 a sample"),
        ({"test_inputs": torch.full((3, 2), float("nan"))}, "test inputs row 0"),
        ({"test_clients": Ragged.from_lists([[0]])}, "1 lists for 2 clients"),
        ({"test_clients": Ragged.from_lists([[0], [3]])}, "sample 3, but there are 3 test"),
        ({"validation": torch.tensor([2])}, "sample 2 is in the validation set and at client 1"),
        ({"validation": torch.tensor([9])}, "validation names sample 9"),
        ({"class_names": ("a", "b")}, "2 class_names, but labels go up to 3"),
        ({"about": {"path": object()}}, "about must be fit for JSON"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(changes, says):
    with pytest.raises(DataError, match=says) as error:
        small(**changes)
    assert "\n" not in str(error.value)


def test_tests_without_test_arrays_are_refused():
    with pytest.raises(DataError, match="test_clients are given without"):
        small(test_inputs=None, test_targets=None, test_clients=Ragged.from_lists([[0], [1]]))


def test_regression_targets_are_searched_for_nan():
    with pytest.raises(DataError, match="targets row 4"):
        from_arrays(torch.zeros(6, 1), [0.0, 1, 2, 3, float("nan"), 5], iid(2))


def test_a_sum_that_overflows_is_not_taken_for_infinity():
    assert small(inputs=torch.full((6, 2), 3e38), test_inputs=None, test_targets=None).inputs.max()


# ---- validation


@settings(deadline=None)
@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    percent=st.integers(0, 99),
    seed=st.integers(0, 1000),
)
def test_every_client_gives_the_floor_of_its_share(sizes, percent, seed):
    lists = Ragged.from_sizes(torch.tensor(sizes), torch.randperm(sum(sizes)))
    data = from_arrays(torch.zeros(sum(sizes), 1), torch.zeros(sum(sizes)), by_lists(lists))
    floors = [percent * size // 100 for size in sizes]
    if percent and not any(floors):
        with pytest.raises(DataError, match="less than one sample each"):
            data.with_validation(percent / 100, seed)
        return
    held = data.with_validation(percent / 100, seed)
    assert held.sizes.tolist() == [size - n for size, n in zip(sizes, floors, strict=True)]
    kept = (
        held.clients.indices
        if held.validation is None
        else torch.cat([held.clients.indices, held.validation])
    )
    assert torch.equal(kept.sort().values, torch.arange(sum(sizes)))  # nothing lost, nothing twice
    for client in range(len(sizes)):
        assert set(held.clients.of(client).tolist()) <= set(lists.of(client).tolist())


@pytest.mark.parametrize(("share", "held"), [(0.29, 29), (0.58, 58), (1 - 1e-12, 99)])
def test_rounding_of_the_share_neither_loses_a_sample_nor_takes_the_last(share, held):
    data = from_arrays(torch.zeros(100, 1), torch.zeros(100), iid(1))
    assert len(data.with_validation(share, 0).validation) == held


def test_validation_depends_on_the_seed_alone_and_is_told():
    data = from_arrays(torch.zeros(60, 1), torch.arange(60) % 3, iid(4))
    first, again, other = (data.with_validation(0.2, seed) for seed in (1, 1, 2))
    assert torch.equal(first.validation, again.validation)
    assert not torch.equal(first.validation, other.validation)
    assert first.about["validation"] == {"share": 0.2, "seed": 1}
    assert data.validation is None and data.sizes.tolist() == [15] * 4


def test_a_clients_choice_does_not_depend_on_the_other_clients():
    inputs, targets = torch.zeros(40, 1), torch.zeros(40)
    lists = [list(range(20)), list(range(20, 40))]
    both = from_arrays(inputs, targets, by_lists(lists)).with_validation(0.5, 0)
    alone = from_arrays(inputs, targets, by_lists(lists[:1])).with_validation(0.5, 0)
    assert torch.equal(both.clients.of(0), alone.clients.of(0))


@pytest.mark.parametrize("share", [1.0, -0.1, float("nan")])
def test_a_share_out_of_range_is_refused(share):
    with pytest.raises(DataError, match="share must be in"):
        small().with_validation(share, 0)


def test_hold_out_of_shared_samples_and_a_second_one_are_refused():
    shared = small(clients=Ragged.from_lists([[0, 1, 2], [2, 3, 4]]))
    with pytest.raises(DataError, match="sample 2 is on 2 clients' lists"):
        shared.with_validation(0.5, 0)
    with pytest.raises(DataError, match="already has"):
        small().with_validation(0.5, 0).with_validation(0.5, 0)


# ---- split files


def test_a_saved_split_comes_back(tmp_path):
    data = small(test_clients=Ragged.from_lists([[0, 2], []])).with_validation(0.5, 3)
    data.save_indices(tmp_path / "split")  # no ending is added
    assert [p.name for p in tmp_path.iterdir()] == ["split"]
    back = small(about={"source": "x", "partition": {}, "seed": 5}).load_indices(tmp_path / "split")
    for mine, theirs in zip(
        back.clients + back.test_clients, data.clients + data.test_clients, strict=True
    ):
        assert torch.equal(mine, theirs)
    assert torch.equal(back.validation, data.validation)
    assert back.about == {
        "source": "x",
        "partition": {"kind": "lists", "clients": 2, "sha256": data.clients.digest()},
    }


def test_a_published_split_needs_no_more_than_offsets_and_indices(tmp_path):
    np.savez(tmp_path / "a.npz", offsets=np.array([0, 1, 4], "i4"), indices=np.array([3, 2, 1, 0]))
    data = small(validation=torch.tensor([4])).load_indices(tmp_path / "a.npz")
    assert data.clients.of(1).tolist() == [2, 1, 0]
    assert data.validation is None  # the split is replaced as a whole


def test_split_files_that_do_not_fit_are_refused(tmp_path):
    path = tmp_path / "split.npz"

    def refused(says):
        with pytest.raises(DataError, match=says) as error:
            small().load_indices(path)
        assert "\n" not in str(error.value) and str(path) in str(error.value)

    refused("not a readable .npz")
    path.write_bytes(b"PK\x03\x04 nonsense")
    refused("not a readable .npz")
    np.savez(path, offsets=np.array([0, 1]))
    refused("no array 'indices'")
    np.savez(path, offsets=np.array([0, 1]), indices=np.array([0.0]))
    refused("float64; integers")
    np.savez(path, offsets=np.array([0, 1]), indices=np.array([{}], dtype=object))
    refused("not a readable .npz")
    np.savez(path, offsets=np.array([0, 1]), indices=np.array([0]), samples=7)
    refused("7 samples, but 'small' has 6")
    with pytest.raises(DataError, match="cannot be written"):
        small().save_indices(tmp_path / "no" / "folder")


# ---- constructors


def test_clients_keep_their_samples_in_order():
    pairs = [(np.full((n, 3), n), np.full(n, n)) for n in (2, 1, 4)]
    data = from_clients(pairs)
    for client, (inputs, targets) in enumerate(pairs):
        mine = data.client(client)
        assert np.array_equal(mine[0], inputs) and np.array_equal(mine[1], targets)


@pytest.mark.parametrize(
    ("inputs", "dtype", "becomes"),
    [
        (np.zeros((2, 3)), torch.float32, torch.float32),
        (np.zeros((2, 3)), torch.float64, torch.float64),
        (np.zeros((2, 3), np.float32), torch.float64, torch.float64),
        (np.zeros((2, 3), ">f8"), torch.float32, torch.float32),
        (np.zeros((2, 3), np.float16), torch.float32, torch.float32),
        (np.zeros((2, 3), np.longdouble), torch.float64, torch.float64),
        (np.zeros((2, 3), np.int32), torch.float64, torch.int64),
        (np.zeros((2, 3), bool), torch.float32, torch.float32),
        (torch.zeros(2, 3).double(), torch.float32, torch.float32),
        (torch.zeros(2, 3, dtype=torch.int16), torch.float32, torch.int64),
        ([[0.5], [1.5]], torch.float32, torch.float32),
        (np.zeros((2, 3))[::-1], torch.float32, torch.float32),
        (np.broadcast_to(np.float32(0), (2, 3)), torch.float32, torch.float32),
    ],
)
def test_inputs_become_floats_or_tokens(inputs, dtype, becomes):
    data = from_clients([(inputs, [0, 1])], dtype=dtype)
    assert data.inputs.dtype == becomes and len(data.inputs) == 2


def test_float_targets_take_the_type_of_the_inputs_and_labels_are_int64():
    pairs = [(np.zeros((2, 3)), np.array([0.5, 1.5]))]
    assert from_clients(pairs, dtype=torch.float64).targets.dtype == torch.float64
    assert from_clients([(np.zeros((2, 3)), np.zeros(2, np.uint8))]).targets.dtype == torch.int64


def test_arrays_are_not_copied_without_need():
    inputs = torch.zeros(4, 2)
    assert from_arrays(inputs, torch.zeros(4), iid(2)).inputs.data_ptr() == inputs.data_ptr()


def test_a_read_only_array_is_copied_because_a_tensor_could_write_to_it():
    array = np.zeros((4, 2), np.float32)
    array.flags.writeable = False
    assert from_arrays(array, torch.zeros(4), iid(2)).inputs.data_ptr() != array.ctypes.data


def test_client_tests_make_the_common_test_set():
    data = from_clients(
        [(np.zeros((2, 1)), [0, 1])] * 3,
        client_tests=[([[1.0]], [0]), ([], []), ([[2.0], [3.0]], [1, 0])],
    )
    assert data.test_inputs.flatten().tolist() == [1, 2, 3]
    assert [data.test_clients.of(i).tolist() for i in range(3)] == [[0], [], [1, 2]]


ONE = ([[0.0]], [0])


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: from_clients([ONE, (np.zeros((1, 1), np.uint8), [0])]), "client 1.*divide.*255"),
        (lambda: from_clients([ONE, ([], [])]), "client 1 has no training samples"),
        (lambda: from_clients([ONE, ([[0.0]], [0, 1])]), "client 1 has 1 inputs, but 2 targets"),
        (lambda: from_clients([ONE, ([[0.0, 1.0]], [0])]), r"client 1 has inputs of shape \(2,\)"),
        (lambda: from_clients([ONE, ([[0.0]], [0.5])]), "client 1 has targets .*float32"),
        (lambda: from_clients([ONE, [1]]), "client 1 is not a pair"),
        (lambda: from_clients([ONE, 3]), "client 1 is not a pair"),
        (lambda: from_clients([([["a"]], [0])]), "client 0: inputs have type <U1"),
        (lambda: from_clients([([[1j]], [0])]), "complex"),
        (lambda: from_clients([([[1.0], [2.0, 3.0]], [0, 1])]), "not one array"),
        (lambda: from_clients([(1.0, [0])]), "single number"),
        (lambda: from_clients([]), "no clients"),
        (lambda: from_clients([ONE], test=ONE, client_tests=[ONE]), "not both|or client_tests"),
        (lambda: from_clients([ONE], client_tests=[ONE, ONE]), "2 pairs for 1 clients"),
        (lambda: from_clients({"lyon": ONE, "bonn": 3}), "client bonn is not a pair"),
        (lambda: from_clients({"lyon": ONE}, client_tests={"lion": ONE}), "'lion', .*mean 'lyon'"),
        (lambda: from_clients([ONE], client_tests={"lyon": ONE}), "give the clients names too"),
        (lambda: small(client_names=("a",)), "1 client_names for 2 clients"),
        (lambda: from_clients([ONE], test=([[0.0, 1.0]], [0])), "test inputs are"),
        (lambda: from_clients([ONE], dtype=torch.float16), "dtype must be"),
        (lambda: from_arrays([[0.0]], [0, 1], iid(1)), "1 inputs, but 2 targets"),
        (lambda: from_arrays([[0.0]], [0], iid(2)), "2 clients cannot share 1 samples"),
        (lambda: from_arrays([[0.0]], [0.5], dirichlet(1, 1)), "needs labels"),
    ],
)
def test_arrays_that_do_not_fit_are_refused_in_one_line(make, says):
    with pytest.raises(DataError, match=says) as error:
        make()
    assert "\n" not in str(error.value)


# ---- names, and what is shown


def test_clients_of_a_mapping_have_names_and_may_lack_tests():
    pairs = {"lyon": ([[1.0]], [0]), "bonn": ([[2.0], [3.0]], [1, 0])}
    data = from_clients(pairs, client_tests={"bonn": ([[9.0]], [1])})
    assert data.client_names == ("lyon", "bonn") and data.client_name(1) == "bonn"
    assert data.test_clients.sizes.tolist() == [0, 1] and data.test_inputs.tolist() == [[9]]
    assert data.with_validation(0.5, 0).client_names == data.client_names
    assert by_client(data)["client_names"] == ["lyon", "bonn"]
    assert "client_names" not in by_client(small()) and small().client_name(1) == "1"
    both = [(torch.zeros(2), 0)]
    assert from_datasets({"a": both, "b": both}).client_names == ("a", "b")


def test_the_text_of_data_is_one_line_without_samples():
    text = repr(small(inputs=torch.full((6, 2), 7.77), name="visits"))
    assert text == (
        "<FederatedData 'visits': 2 clients, 6 samples (2 to 3 each), inputs (2,) torch.float32, "
        "4 classes, 3 test samples>"
    )
    assert "no test samples" in repr(small(test_inputs=None, test_targets=None))


@pytest.mark.parametrize("alpha", [None, 0.3])
def test_each_makers_samples_are_divided_again(alpha):
    owners, tests = torch.arange(90) % 3, torch.arange(30) % 3
    arrays = Arrays(
        name="sites", inputs=torch.arange(90.0)[:, None], targets=torch.arange(90) // 3 % 2,
        test_inputs=torch.arange(30.0)[:, None], test_targets=torch.arange(30) // 3 % 2,
        owners=owners, test_owners=tests, owner_names=["a", "b", "c"], by="sites",
    )  # fmt: skip
    data = arrays.divided(natural(parts=2, parts_alpha=alpha), seed=1)
    assert data.client_names == ("a/0", "a/1", "b/0", "b/1", "c/0", "c/1")
    for maker in range(3):
        parts = [data.clients.of(2 * maker + part) for part in (0, 1)]
        assert sorted(torch.cat(parts).tolist()) == list(range(maker, 90, 3))
        own = torch.cat([data.test_clients.of(2 * maker + part) for part in (0, 1)])
        inputs = data.test_inputs[own].flatten().long()
        assert sorted(inputs.tolist()) == list(range(maker, 30, 3))
    again = arrays.divided(natural(parts=2, parts_alpha=alpha), seed=1)
    other = arrays.divided(natural(parts=2, parts_alpha=alpha), seed=2)
    assert torch.equal(again.clients.indices, data.clients.indices)
    assert not torch.equal(other.clients.indices, data.clients.indices)
    assert [arrays.divided(natural(), 0).clients.of(i).tolist() for i in range(3)] == [
        list(range(maker, 90, 3)) for maker in range(3)
    ]
