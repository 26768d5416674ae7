"""Files in which other frameworks keep the data of clients: LEAF, PFLlib, HDF5 with groups."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
import torch
from published import refused

from fedloom.config.resolve import resolve
from fedloom.data import from_clients, hdf5, leaf, pfllib


def pair(seed, n):
    draw = np.random.default_rng(seed)
    return draw.normal(size=(n, 2, 3)).astype("float32"), draw.integers(0, 3, n)


TRAIN = {"lyon": pair(0, 4), "bonn": pair(1, 5)}
TESTS = {"lyon": pair(2, 2), "bonn": pair(3, 3), "rome": pair(4, 6)}  # which trains nobody


def same(found, names=("lyon", "bonn")):
    want = from_clients({**TRAIN, "rome": ([], [])}, client_tests=TESTS)
    for name in ("inputs", "targets", "test_inputs", "test_targets"):
        assert torch.equal(getattr(found, name), getattr(want, name)), name
    assert found.client_names == names
    assert torch.equal(found.clients.indices, want.clients.indices)
    assert torch.equal(found.unseen.targets, want.unseen.targets)


def leaf_file(folder, split, parts):
    (folder / split).mkdir(parents=True, exist_ok=True)
    data = {name: {"x": x.tolist(), "y": y.tolist()} for name, (x, y) in parts.items()}
    content = {"users": list(parts), "num_samples": [], "user_data": data}
    (folder / split / "all_data.json").write_text(json.dumps(content))


def test_leafs_json_of_any_set(tmp_path):
    leaf_file(tmp_path, "train", TRAIN)
    leaf_file(tmp_path, "test", TESTS)
    found = leaf(tmp_path)
    same(found)
    assert found.name == tmp_path.name
    bad = {"lyon": (np.array([["a"]]), np.array([0]))}
    leaf_file(tmp_path, "train", bad)
    refused(lambda: leaf(tmp_path), "user lyon: x and y must be numbers", "data.text")
    refused(lambda: leaf(tmp_path / "none"), "there is no folder")


def pfllib_file(folder, split, parts):
    (folder / split).mkdir(parents=True, exist_ok=True)
    for k, (x, y) in parts.items():
        np.savez_compressed(folder / split / f"{k}.npz", data={"x": x, "y": y})


class Evil:
    def __reduce__(self):
        return (print, ("this was run",))


def test_pfllibs_folders(tmp_path, capsys):
    numbers = {"lyon": "0", "bonn": "10", "rome": "2"}
    for split, parts in (("train", TRAIN), ("test", TESTS)):
        pfllib_file(tmp_path, split, {numbers[name]: p for name, p in parts.items()})
    same(pfllib(tmp_path), names=("0", "10"))
    np.savez(tmp_path / "train/0.npz", data=np.array(Evil(), dtype=object))
    refused(lambda: pfllib(tmp_path), "0.npz", "cut short or altered")
    assert "this was run" not in capsys.readouterr().out
    np.savez(tmp_path / "train/0.npz", data=np.zeros(3))
    refused(lambda: pfllib(tmp_path), "0.npz is no file of PFLlib's", "no dictionary")
    (tmp_path / "train/0.npz").write_bytes(b"PK\x03\x04" + bytes(40))
    refused(lambda: pfllib(tmp_path), "0.npz is no file of PFLlib's")
    assert pickle  # whose loads() would have run it


@pytest.mark.parametrize("top", ["", "examples/"])
def test_groups_of_an_hdf5_file(tmp_path, top):
    h5py = pytest.importorskip("h5py", reason="the extra hdf5 is not installed")
    for name, parts in (("train", TRAIN), ("test", TESTS)):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            for client, (x, y) in parts.items():
                file[f"{top}{client}/pixels"], file[f"{top}{client}/label"] = x, y
    both = {"test": tmp_path / "test.h5", "inputs": "pixels", "target": "label"}
    found = hdf5(tmp_path / "train.h5", **both)
    assert found.client_names == ("bonn", "lyon") and found.name == "train"  # in HDF5's order
    assert torch.equal(found.client(1)[0], torch.from_numpy(TRAIN["lyon"][0]))
    assert found.unseen.names == ("rome",)
    refused(lambda: hdf5(tmp_path / "train.h5"), "client bonn has no 'x' and 'y'", "data.inputs")
    (tmp_path / "bad.h5").write_bytes(b"\x89HDF" + bytes(99))
    refused(lambda: hdf5(tmp_path / "bad.h5"), "bad.h5 is no whole HDF5 file")


def test_they_are_sources_of_a_file_too(tmp_path):
    leaf_file(tmp_path, "train", TRAIN)
    config = resolve("digits", ["data=leaf", f"data.path={tmp_path}", "model=logistic"])
    assert config.data().population == 2
