"""CIFAR, Tiny-ImageNet, FEMNIST and CelebA, on tiny files of their publishers' layout."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import pickle
import subprocess
import zipfile

import numpy as np
import published
import pytest
import torch
from published import refused

from fedloom.config import resolve
from fedloom.data import Images, celeba, cifar100, femnist, iid, tiny_imagenet
from fedloom.data.partition import natural
from fedloom.data.published import images
from fedloom.data.published.cache import FOLDER
from fedloom.data.published.download import PublishedFile, fetch_archive, md5_of
from fedloom.data.published.files import read_batch
from fedloom.storage import identity
from support.downloads import FromFiles

Image = pytest.importorskip("PIL.Image")
PLAIN = Images(mean=(0.5,) * 3, std=(0.5,) * 3)


# ---- CIFAR


def small_cifar100(tmp_path, monkeypatch):
    """A CIFAR-100 of one image a class, as if that were published -> pixels and labels."""
    folder = tmp_path / "cifar-100-python"
    made = published.cifar100(folder)
    files = [
        dataclasses.replace(file, md5=md5_of(folder / file.name)) for file in images.CIFAR100.files
    ]
    kind = dataclasses.replace(images.CIFAR100, files=tuple(files))
    monkeypatch.setattr(images, "CIFAR100", kind)
    return made


def test_cifar100_is_read_from_its_pickles(tmp_path, monkeypatch):
    rows, labels = small_cifar100(tmp_path, monkeypatch)
    data = cifar100(iid(10), data_dir=tmp_path, download=False)
    assert data.inputs.dtype == torch.uint8 and data.inputs.shape == (100, 3, 32, 32)
    assert torch.equal(data.inputs.flatten(1), torch.from_numpy(rows))
    assert data.targets.tolist() == labels.tolist()
    assert data.class_names[7] == "class 7" and len(data.test_inputs) == 100
    pixel = (float(rows[0, 0]) / 255 - 0.5071) / 0.2673  # the first of the red plane
    assert data.ready(data.inputs[:1])[0, 0, 0, 0].item() == pytest.approx(pixel, abs=1e-6)


def test_cifar_options_reach_the_transform(tmp_path, monkeypatch):
    small_cifar100(tmp_path, monkeypatch)
    options = {"crop": 4, "flip": True, "rotate": 10.0, "std": [0.5, 0.5, 0.5]}
    data = cifar100(iid(10), data_dir=tmp_path, **options)
    assert data.transform.draws and data.transform.std == (0.5, 0.5, 0.5)
    # a list from a file or the command line, as the authors' normalisation is written
    two = {"mean": [0.5, 0.5], "std": [0.5, 0.5]}
    refused(lambda: cifar100(iid(10), data_dir=tmp_path, **two), "mean and std have 2 numbers", "3")
    table = resolve("fiarse_cifar10", ["data.mean=[0.5, 0.4, 0.3]"]).values["data"]
    assert (table["mean"], table["std"]) == ([0.5, 0.4, 0.3], [0.2023, 0.1994, 0.2010])
    assert data.about["crop"] == 4 and data.about["flip"] is True


@pytest.fixture
def small(tmp_path):
    """A CIFAR-10 of two batches with checksums of its own."""
    folder, draw = tmp_path / "cifar-10-batches-py", np.random.default_rng(1)
    rows = {}
    for name in ("data_batch_1", "data_batch_2", "test_batch"):
        rows[name] = draw.integers(0, 256, (4, 3072), dtype=np.uint8)
        published.python2(folder / name, {b"data": rows[name], b"labels": [0, 9, 1, 2]})
    published.python2(folder / "batches.meta", {b"label_names": [b"a"] * 10})
    files = tuple(
        dataclasses.replace(file, md5=md5_of(folder / file.name))
        for file in images.CIFAR10.files
        if (folder / file.name).is_file()
    )
    return dataclasses.replace(images.CIFAR10, files=files), folder, rows


def test_batches_follow_each_other(small, tmp_path):
    kind, _, rows = small
    arrays = images.load(kind, iid(1), 0, tmp_path, False, PLAIN)
    expected = np.concatenate([rows["data_batch_1"], rows["data_batch_2"]])
    assert torch.equal(arrays.inputs.flatten(1), torch.from_numpy(expected))
    assert arrays.targets.tolist() == [0, 9, 1, 2] * 2


def test_an_altered_batch_is_named_with_both_checksums(small, tmp_path):
    kind, folder, _ = small
    path = folder / "data_batch_2"
    path.write_bytes(path.read_bytes()[:-1])
    load = lambda: images.load(kind, iid(1), 0, tmp_path, False, PLAIN)
    refused(load, path, md5_of(path), kind.files[1].md5, "damaged")
    path.unlink()
    refused(load, "data_batch_2 is not in", folder)


@pytest.mark.parametrize(
    ("batch", "says"),
    [
        ({b"data": np.zeros((2, 3071), np.uint8), b"labels": [0, 0]}, "no batch of CIFAR"),
        ({b"data": np.zeros((2, 3072), np.uint8), b"labels": [0]}, "2 images, but 1 labels"),
        ({b"data": np.zeros((2, 3072), np.uint8), b"labels": [0, 10]}, "label 1 is 10"),
        ({b"data": np.zeros((2, 3072), np.uint8), b"labels": [-1, 0]}, "label 0 is -1"),
        ({b"data": np.zeros((2, 3072), np.float32), b"labels": [0, 1]}, "no batch of CIFAR"),
        ({b"labels": [0]}, "no batch of CIFAR"),
    ],
)
def test_batches_of_something_else_are_refused(tmp_path, batch, says):
    published.python2(tmp_path / "b", batch)
    refused(lambda: read_batch(tmp_path / "b", b"labels", 10), tmp_path / "b", says)


def test_nothing_inside_a_pickle_is_run(tmp_path):
    class Evil:
        def __reduce__(self):
            return subprocess.call, (["touch", str(tmp_path / "ran")],)

    (tmp_path / "b").write_bytes(pickle.dumps({b"data": Evil()}))
    refused(lambda: read_batch(tmp_path / "b", b"labels", 10), "subprocess.call")
    assert not (tmp_path / "ran").exists()
    (tmp_path / "b").write_bytes(b"\x80\x02}q")
    refused(lambda: read_batch(tmp_path / "b", b"labels", 10), "cut short")


def test_another_cifar100_than_the_published_one_is_refused(tmp_path):
    published.cifar100(tmp_path / "cifar-100-python")
    refused(lambda: cifar100(iid(3), data_dir=tmp_path), "cifar-100-python/train is damaged")


# ---- archives


@pytest.fixture
def archive(tmp_path, monkeypatch):
    """A zip whose address is a file: no network is needed to get it."""
    monkeypatch.setattr("pooch.HTTPDownloader", FromFiles)
    monkeypatch.setattr("fedloom.data.published.download.RETRIES", 0)
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as packed:
        packed.writestr("set/a.txt", "content")
    home = published.write(tmp_path / "home" / "set.zip", content.getvalue())
    md5 = hashlib.md5(content.getvalue()).hexdigest()
    return PublishedFile(name="set.zip", md5=md5, url=home.as_uri())


def test_an_archive_is_verified_unpacked_and_not_kept(archive, tmp_path):
    root = tmp_path / "root"
    for _ in range(2):
        folder = fetch_archive(archive, root, "set")
        assert (folder / "a.txt").read_text() == "content"
    assert [p.name for p in root.iterdir()] == ["set"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"md5": "0" * 32}, "0" * 32),
        ({"url": "file:///nowhere/set.zip"}, "set.zip is not in"),
    ],
)
def test_an_archive_that_fails_leaves_nothing(archive, tmp_path, change, says):
    root = tmp_path / "root"
    other = dataclasses.replace(archive, **change)
    refused(lambda: fetch_archive(other, root, "set"), says)
    assert list(root.iterdir()) == []
    refused(lambda: fetch_archive(archive, root, "other"), "holds no folder other")
    assert list(root.iterdir()) == []
    assert fetch_archive(archive, root, "set").is_dir()


# ---- Tiny-ImageNet


def picture(path, size, value, mode="RGB"):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value).save(path, quality=95)


@pytest.fixture
def tiny(tmp_path):
    root = tmp_path / "tiny-imagenet-200"
    published.write(root / "wnids.txt", "n02\nn01\n")
    published.write(root / "words.txt", "n01\tgoldfish, Carassius\nn02\tbullfrog\n")
    for number, shade in (("n01", 200), ("n02", 40)):
        for i in range(2):
            name = f"{number}_{i}.JPEG"
            picture(root / "train" / number / "images" / name, (64, 64), (shade, 0, i))
    picture(root / "val" / "images" / "val_0.JPEG", (64, 64), 77, "L")
    published.write(root / "val" / "val_annotations.txt", "val_0.JPEG\tn01\t0\t0\t9\t9\n")
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
    (made,) = (tiny / FOLDER).iterdir()
    assert made.stat().st_mode == tiny.stat().st_mode, "it follows the umask: others may read it"


def test_pictures_that_are_not_whole_are_named(tiny, tmp_path):
    load = lambda: tiny_imagenet(iid(2), data_dir=tmp_path, download=False)
    path = tiny / "train" / "n01" / "images" / "n01_1.JPEG"
    whole = path.read_bytes()
    path.write_bytes(whole[:300])
    refused(load, path, "get it again")
    picture(path, (32, 64), (1, 2, 3))
    refused(load, path, "64 x 32 pixels, expected 64 x 64")
    path.write_bytes(whole)
    published.write(tiny / "val" / "val_annotations.txt", "val_9.JPEG\tn01\n")
    refused(load, "val_9.JPEG is missing")
    published.write(tiny / "val" / "val_annotations.txt", "val_0.JPEG\tn07\n")
    refused(load, "val_0.JPEG is of no class")
    assert not list((tiny / FOLDER).iterdir()), "what failed left nothing"


def test_without_pillow_the_message_names_the_extra(tiny, tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    load = lambda: tiny_imagenet(iid(2), data_dir=tmp_path, download=False)
    refused(load, "[images]'")


# ---- FEMNIST


def glyph(value):
    return [value / 255] * 783 + [1.0]


@pytest.fixture
def letters(tmp_path):
    folder = tmp_path / "leaf" / "femnist"
    one = {"x": [glyph(0), glyph(7)], "y": [61, 0]}
    published.leaf(folder / "train", b={"x": [glyph(3)], "y": [5]}, a=one)
    published.leaf(folder / "test", c={"x": [glyph(9)], "y": [1]}, a={"x": [glyph(8)], "y": [2]})
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


def test_femnist_can_be_dealt_otherwise_and_then_all_tests_count(letters, tmp_path):
    data = femnist(iid(3), data_dir=tmp_path)
    assert data.sizes.tolist() == [1, 1, 1] and data.test_targets.tolist() == [1, 2]
    assert data.test_clients is None


def test_arrays_are_made_again_when_a_file_changes(letters, tmp_path):
    femnist(natural(), data_dir=tmp_path)
    published.leaf(letters / "train", z={"x": [glyph(1)] * 5, "y": [1, 2, 3, 4, 5]})
    assert femnist(natural(), data_dir=tmp_path).sizes.tolist() == [5]
    assert len(list((letters / FOLDER).iterdir())) == 1


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({"x": [glyph(1)], "y": [62]}, "label 0 is 62"),
        ({"x": [glyph(1)], "y": [0, 1]}, "user a has 1 samples, but 2 labels"),
        ({"x": [[0.5] * 783], "y": [0]}, "user a has images that are not 784 numbers"),
        ({"x": [[1.5] * 784], "y": [0]}, "user a, sample 0 has pixels outside [0, 1] or NaN"),
        ({"x": [glyph(1), [float("nan")] * 784], "y": [0, 0]}, "user a, sample 1"),
        ({"x": [glyph(1)], "y": ["0"]}, "labels that are no whole numbers"),
        ({"x": [glyph(1)]}, "no lists x and y"),
    ],
)
def test_femnist_that_is_altered_is_named_with_file_and_writer(letters, tmp_path, data, says):
    published.leaf(letters / "train", a=data)
    refused(lambda: femnist(natural(), data_dir=tmp_path), letters / "train", says)


def test_json_that_is_cut_short_or_in_another_encoding_is_named(letters, tmp_path):
    path = letters / "train" / "all_data_0.json"
    whole = path.read_bytes()
    load = lambda: femnist(natural(), data_dir=tmp_path)
    path.write_bytes(whole[:-30])
    refused(load, path, "no whole JSON file")
    path.write_bytes(whole.replace(b'"users"', b'"us\xe9rs"'))
    refused(load, path, "not UTF-8 text: byte 0xe9")
    path.write_text("[1, 2]")
    refused(load, path, "no file of LEAF's")
    path.write_text('{"users": ["q"], "user_data": {}}')
    refused(load, path, "names user q, but holds no data")
    path.unlink()
    refused(load, letters / "train", "preprocess.sh", "FEDLOOM_DATA")


# ---- CelebA


def test_celeba_has_a_client_per_celebrity(tmp_path):
    folder = tmp_path / "leaf" / "celeba"
    for i in range(4):
        picture(folder / "img_align_celeba" / f"{i}.jpg", (178, 218), (50 * i, 10, 10))
    published.leaf(folder / "train", **{"7": {"x": ["2.jpg", "0.jpg"], "y": [1, 0]}})
    published.leaf(folder / "test", **{"7": {"x": ["3.jpg"], "y": [1]}})
    data = celeba(natural(), data_dir=tmp_path)
    assert data.inputs.shape == (2, 3, 84, 84) and data.sizes.tolist() == [2]
    assert data.inputs[:, 0].float().mean((1, 2)).tolist() == pytest.approx([100, 0], abs=3)
    assert data.test_clients.sizes.tolist() == [1] and data.class_names[1] == "smiling"
    assert float(data.ready(data.inputs[1:]).max()) < 0.1  # bytes / 255, as LEAF has them
    halves = celeba(natural(), data_dir=tmp_path, mean=[0.5] * 3, std=[0.5] * 3)
    assert float(halves.ready(halves.inputs[1:]).min()) == pytest.approx(-1, abs=0.05)
    # runs of before these settings go on
    before = {"data": {"name": "celeba", "flip": False}, "local": {"lr": 0.1}}
    told = {"name": "celeba", "flip": False, "mean": [0.0] * 3, "std": [1.0] * 3}
    assert identity.fixed_parts(before | {"data": told}) == before
    other = before | {"data": told | {"std": [0.5] * 3}}
    assert "std" in identity.fixed_parts(other)["data"]
    assert "mean" in identity.fixed_parts({"data": told | {"name": "cifar10"}})["data"]
    (folder / "img_align_celeba" / "0.jpg").unlink()
    published.leaf(folder / "train", **{"7": {"x": ["0.jpg"], "y": [0]}})
    refused(lambda: celeba(natural(), data_dir=tmp_path), "celebrity 7", "0.jpg is missing")
