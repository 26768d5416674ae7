"""Digits, MNIST's writers, CIFAR, Tiny-ImageNet, FEMNIST and CelebA, on tiny files of their
publishers' layout.
"""

import dataclasses
import gzip
import hashlib
import pickle
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from published import idx, leaf, picture, python2, write

from fedloom.config import resolve
from fedloom.data import (
    PARTITIONS,
    Images,
    celeba,
    cifar100,
    digits,
    femnist,
    iid,
    mnist,
    natural,
    tiny_imagenet,
    writers,
)
from fedloom.data.published import images
from fedloom.data.published.download import md5_of
from fedloom.data.published.files import FOLDER, unpickled
from fedloom.storage import identity
from support.refusals import refused

pytest.importorskip("PIL.Image", reason="the extra images is not installed")


def test_digits_have_every_image_once_in_the_fixed_stratified_split():
    from sklearn.datasets import load_digits

    original, data, other = load_digits(), digits(), digits(seed=1)
    assert data.inputs.shape[1:] == (1, 8, 8) and data.inputs.dtype == torch.float32
    assert data.inputs.min() == 0 and data.inputs.max() == 1
    everything = torch.cat([data.inputs, data.test_inputs]).view(1797, 64) * 16
    rows = sorted(map(tuple, everything.int().tolist()))
    assert rows == sorted(map(tuple, original.data.astype(int).tolist()))
    counts = np.bincount(original.target)
    assert torch.bincount(data.test_targets).tolist() == [round(0.2 * n) for n in counts]
    assert data.population == 50 and data.classes == 10
    assert torch.equal(data.test_inputs, other.test_inputs)
    assert torch.equal(data.inputs, other.inputs)
    assert data.clients.digest() != other.clients.digest(), "the seed deals them"


def test_the_share_of_the_digits_is_kept():
    assert digits(iid(5), test_share=0).test_inputs is None
    assert digits(iid(5), test_share=0).sizes.sum() == 1797
    assert digits(iid(5), test_share=0.999).label_counts().sum(0).tolist() == [1] * 10
    for share in (1, -0.1, float("nan")):
        refused(lambda share=share: digits(test_share=share), "test_share must be in [0, 1)")


def test_the_digits_are_the_same_where_scikit_learn_keeps_its_file_elsewhere(monkeypatch):
    want = digits()
    monkeypatch.setattr(images, "find_spec", lambda name: SimpleNamespace(origin="/gone/x.py"))
    assert torch.equal(digits().inputs, want.inputs)
    assert torch.equal(digits().targets, want.targets)
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "sklearn", None)
    refused(digits, "pip install", "[digits]'")


def test_mnists_writers_are_those_of_its_labels(tmp_path, monkeypatch):
    def put(folder, file, array, code=8):
        raw = gzip.compress(idx(array, code))
        write(tmp_path / folder / file.name, raw)
        return dataclasses.replace(file, md5=hashlib.md5(raw).hexdigest())

    pictures, labels = np.zeros((4, 2, 2), np.uint8), np.array([3, 1, 3, 0], np.uint8)
    records = np.zeros((4, 8), ">i4")
    records[:, 0], records[:, 2] = labels, [2100, 77, 77, 2100]
    content = (pictures, labels, pictures, labels)
    files = tuple(put("mnist", f, x) for f, x in zip(images.MNIST.files, content, strict=True))
    load = lambda: mnist(writers(), data_dir=tmp_path, download=False)
    own = {"files": files, "writers": put("qmnist", images.QMNIST, records, 0x0C)}
    monkeypatch.setattr(images, "MNIST", dataclasses.replace(images.MNIST, **own))
    assert [load().clients.of(i).tolist() for i in range(2)] == [[1, 2], [0, 3]]
    choose = lambda: writers().choose(torch.tensor([1]), "roles", 0)
    refused(choose, "are roles, not writers", "natural")
    assert PARTITIONS["natural"] is natural and PARTITIONS["writers"] is writers


@pytest.fixture
def small_cifar100(tmp_path, monkeypatch):
    """A CIFAR-100 of one image a class, as if that were published -> pixels and labels."""
    draw, folder = np.random.default_rng(0), tmp_path / "cifar-100-python"
    arrays = {}
    for name in ("train", "test"):
        rows = draw.integers(0, 256, (100, 3072), dtype=np.uint8)
        fine = draw.permutation(100).tolist()
        arrays[name] = rows, fine
        batch = {b"data": rows, b"fine_labels": fine, b"coarse_labels": [0] * 100}
        python2(folder / name, batch)
    python2(folder / "meta", {b"fine_label_names": [f"class {i}".encode() for i in range(100)]})
    refused(lambda: cifar100(iid(3), data_dir=tmp_path), "cifar-100-python/train is damaged")
    files = [
        dataclasses.replace(file, md5=md5_of(folder / file.name)) for file in images.CIFAR100.files
    ]
    kind = dataclasses.replace(images.CIFAR100, files=tuple(files))
    monkeypatch.setattr(images, "CIFAR100", kind)
    return arrays["train"]


def test_cifar100_is_read_from_its_pickles(small_cifar100, tmp_path):
    rows, labels = small_cifar100
    data = cifar100(iid(10), data_dir=tmp_path, download=False)
    assert data.inputs.dtype == torch.uint8 and data.inputs.shape == (100, 3, 32, 32)
    assert torch.equal(data.inputs.flatten(1), torch.from_numpy(rows))
    assert data.targets.tolist() == labels
    assert data.class_names[7] == "class 7" and len(data.test_inputs) == 100
    pixel = (float(rows[0, 0]) / 255 - 0.5071) / 0.2673  # the first of the red plane
    assert data.ready(data.inputs[:1])[0, 0, 0, 0].item() == pytest.approx(pixel, abs=1e-6)
    options = {"crop": 4, "flip": True, "rotate": 10.0, "std": [0.5, 0.5, 0.5]}
    data = cifar100(iid(10), data_dir=tmp_path, **options)
    assert data.transform.draws and data.transform.std == (0.5, 0.5, 0.5)
    assert data.about["crop"] == 4 and data.about["flip"] is True
    # a list from a file or the command line, as the authors' normalisation is written
    two = {"mean": [0.5, 0.5], "std": [0.5, 0.5]}
    refused(lambda: cifar100(iid(10), data_dir=tmp_path, **two), "mean and std have 2 numbers", "3")
    table = resolve("fiarse_cifar10", ["data.mean=[0.5, 0.4, 0.3]"]).values["data"]
    assert (table["mean"], table["std"]) == ([0.5, 0.4, 0.3], [0.2023, 0.1994, 0.2010])


def test_batches_follow_each_other_and_an_altered_one_is_named_with_both_checksums(tmp_path):
    folder, draw = tmp_path / "cifar-10-batches-py", np.random.default_rng(1)
    rows = draw.integers(0, 256, (3, 4, 3072), dtype=np.uint8)
    for name, batch in zip(("data_batch_1", "data_batch_2", "test_batch"), rows, strict=True):
        python2(folder / name, {b"data": batch, b"labels": [0, 9, 1, 2]})
    python2(folder / "batches.meta", {b"label_names": [b"a"] * 10})
    files = tuple(
        dataclasses.replace(file, md5=md5_of(folder / file.name))
        for file in images.CIFAR10.files
        if (folder / file.name).is_file()
    )
    kind = dataclasses.replace(images.CIFAR10, files=files)
    plain = Images(mean=(0.5,) * 3, std=(0.5,) * 3)
    load = lambda: images.load(kind, iid(1), 0, tmp_path, False, plain)
    assert torch.equal(load().inputs.flatten(1), torch.from_numpy(rows[:2].reshape(8, 3072)))
    assert load().targets.tolist() == [0, 9, 1, 2] * 2
    path = folder / "data_batch_2"
    path.write_bytes(path.read_bytes()[:-1])
    refused(load, path, md5_of(path), kind.files[1].md5, "damaged")
    path.unlink()
    refused(load, "data_batch_2 is not in", folder)


def test_nothing_inside_a_pickle_is_run(tmp_path):
    class Evil:
        def __reduce__(self):
            return subprocess.call, (["touch", str(tmp_path / "ran")],)

    write(tmp_path / "b", pickle.dumps({b"data": Evil()}))
    refused(lambda: unpickled(tmp_path / "b"), "subprocess.call")
    assert not (tmp_path / "ran").exists()
    write(tmp_path / "b", b"\x80\x02}q")
    refused(lambda: unpickled(tmp_path / "b"), "cut short")


@pytest.fixture
def tiny(tmp_path):
    root = tmp_path / "tiny-imagenet-200"
    write(root / "wnids.txt", "n02\nn01\n")
    write(root / "words.txt", "n01\tgoldfish, Carassius\nn02\tbullfrog\n")
    for number, shade in (("n01", 200), ("n02", 40)):
        for i in range(2):
            path = root / "train" / number / "images" / f"{number}_{i}.JPEG"
            picture(path, (shade, 0, i), (64, 64), "RGB")
    picture(root / "val" / "images" / "val_0.JPEG", 77, (64, 64))
    write(root / "val" / "val_annotations.txt", "val_0.JPEG\tn01\t0\t0\t9\t9\n")
    return root


def test_tiny_imagenet_is_read_once_from_its_folders(tiny, tmp_path):
    for _ in range(2):
        data = tiny_imagenet(iid(2), data_dir=tmp_path, download=False)
        assert data.inputs.shape == (4, 3, 64, 64) and data.targets.tolist() == [0, 0, 1, 1]
        assert data.class_names == ("bullfrog", "goldfish")
        reds = data.inputs[:, 0].float().mean((1, 2)).tolist()
        assert reds == pytest.approx([40, 40, 200, 200], abs=3)
        grey = data.test_inputs[0].float().mean((1, 2)).tolist()
        assert grey == pytest.approx([77] * 3, abs=1) and data.test_targets.tolist() == [1]
        for path in tiny.glob("train/*/images/*"):
            path.write_bytes(b"")  # no longer looked at
    (arrays,) = (tiny / FOLDER).iterdir()
    assert arrays.stat().st_mode == tiny.stat().st_mode, "it follows the umask: others may read it"


def test_pictures_that_are_not_whole_are_named(tiny, tmp_path, monkeypatch):
    load = lambda: tiny_imagenet(iid(2), data_dir=tmp_path, download=False)
    path, notes = tiny / "train/n01/images/n01_1.JPEG", tiny / "val" / "val_annotations.txt"
    whole = path.read_bytes()
    path.write_bytes(whole[:300])
    refused(load, path, "get it again")
    picture(path, (1, 2, 3), (32, 64), "RGB")
    refused(load, path, "64 x 32 pixels, expected 64 x 64")
    path.write_bytes(whole)
    for line, says in (
        ("val_9.JPEG\tn01\n", "val_9.JPEG is missing"),
        ("val_0.JPEG\tn07\n", "val_0.JPEG is of no class"),
    ):
        write(notes, line)
        refused(load, says)
    assert not list((tiny / FOLDER).iterdir()), "what failed left nothing"
    write(notes, "val_0.JPEG\tn01\n")
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    refused(load, "[images]'")


def glyph(value):
    return [value / 255] * 783 + [1.0]


@pytest.fixture
def letters(tmp_path):
    folder = tmp_path / "leaf" / "femnist"
    one = {"x": [glyph(0), glyph(7)], "y": [61, 0]}
    leaf(folder / "train", b={"x": [glyph(3)], "y": [5]}, a=one)
    leaf(folder / "test", c={"x": [glyph(9)], "y": [1]}, a={"x": [glyph(8)], "y": [2]})
    return folder


def test_femnist_has_a_client_per_writer_with_its_own_tests(letters, tmp_path):
    for _ in range(2):
        data = femnist(natural(), data_dir=tmp_path)
        assert data.sizes.tolist() == [1, 2] and data.targets.tolist() == [5, 61, 0]
        assert data.inputs[:, 0, 0, 0].tolist() == [3, 0, 7] and data.inputs.max() == 255
        assert data.ready(data.inputs)[2, 0, 0, 0].item() == pytest.approx(7 / 255)
        # the test images of c, who trains on nothing, are nobody's
        assert data.test_targets.tolist() == [2]
        assert data.test_clients.sizes.tolist() == [0, 1]
    assert data.about["partition"] == {"kind": "natural", "min_size": 1}
    dealt = femnist(iid(3), data_dir=tmp_path)
    assert dealt.sizes.tolist() == [1, 1, 1] and dealt.test_targets.tolist() == [1, 2]
    assert dealt.test_clients is None
    leaf(letters / "train", z={"x": [glyph(1)] * 5, "y": [1, 2, 3, 4, 5]})
    assert femnist(natural(), data_dir=tmp_path).sizes.tolist() == [5], "made again when it changed"
    assert len(list((letters / FOLDER).iterdir())) == 1


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (
            {"x": [glyph(1)], "y": [62]},
            "user a: labels must be whole ... from 0 to 61; get the file",
        ),
        ({"x": [glyph(1)], "y": [0, 1]}, "user a: there are no lists x and y of one length"),
        ({"x": [[0.5] * 783], "y": [0]}, "user a: cannot reshape array of size 783"),
        ({"x": [[1.5] * 784], "y": [0]}, "user a: pixels must be in [0, 1]"),
        ({"x": [glyph(1), [float("nan")] * 784], "y": [0, 0]}, "user a: pixels must be"),
        ({"x": [glyph(1)], "y": ["0"]}, "labels must be whole numbers"),
        ({"x": [glyph(1)]}, "no lists x and y"),
    ],
)
def test_femnist_that_is_altered_is_named_with_file_and_writer(letters, tmp_path, data, says):
    leaf(letters / "train", a=data)
    refused(lambda: femnist(natural(), data_dir=tmp_path), letters / "train", says)


def test_json_that_is_cut_short_or_in_another_encoding_is_named(letters, tmp_path):
    path = letters / "train" / "all_data_0.json"
    whole = path.read_bytes()
    load = lambda: femnist(natural(), data_dir=tmp_path)
    for content, says in (
        (whole[:-30], "no whole JSON file"),
        (whole.replace(b'"users"', b'"us\xe9rs"'), "not UTF-8 text: byte 0xe9"),
        (b"[1, 2]", "no file of LEAF's"),
        (b'{"users": ["q"], "user_data": {}}', "names user q, but holds no data"),
    ):
        path.write_bytes(content)
        refused(load, path, says)
    path.unlink()
    refused(load, letters / "train", "preprocess.sh", "FEDLOOM_DATA")


def test_celeba_has_a_client_per_celebrity(tmp_path):
    folder = tmp_path / "leaf" / "celeba"
    for i in range(4):
        picture(folder / "img_align_celeba" / f"{i}.jpg", (50 * i, 10, 10), (178, 218), "RGB")
    leaf(folder / "train", **{"7": {"x": ["2.jpg", "0.jpg"], "y": [1, 0]}})
    leaf(folder / "test", **{"7": {"x": ["3.jpg"], "y": [1]}})
    data = celeba(natural(), data_dir=tmp_path)
    assert data.inputs.shape == (2, 3, 84, 84) and data.sizes.tolist() == [2]
    assert data.inputs[:, 0].float().mean((1, 2)).tolist() == pytest.approx([100, 0], abs=3)
    assert data.test_clients.sizes.tolist() == [1] and data.class_names[1] == "smiling"
    assert float(data.ready(data.inputs[1:]).max()) < 0.1  # bytes / 255, as LEAF has them
    halves = celeba(natural(), data_dir=tmp_path, mean=[0.5] * 3, std=[0.5] * 3)
    assert float(halves.ready(halves.inputs[1:]).min()) == pytest.approx(-1, abs=0.05)
    (folder / "img_align_celeba" / "0.jpg").unlink()
    leaf(folder / "train", **{"7": {"x": ["0.jpg"], "y": [0]}})
    refused(lambda: celeba(natural(), data_dir=tmp_path), "user 7", "0.jpg is missing")


def test_runs_of_before_celebas_settings_go_on():
    before = {"data": {"name": "celeba", "flip": False}, "local": {"lr": 0.1}}
    settings = {"name": "celeba", "flip": False, "mean": [0.0] * 3, "std": [1.0] * 3}
    assert identity.fixed_parts(before | {"data": settings}) == before
    assert "std" in identity.fixed_parts(before | {"data": settings | {"std": [0.5] * 3}})["data"]
    assert "mean" in identity.fixed_parts({"data": settings | {"name": "cifar10"}})["data"]
