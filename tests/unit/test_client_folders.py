"""A folder per client: arrays, or pictures."""

import io
import os
import sys

import numpy as np
import pytest
import torch
from published import picture, rows_of, write

from fedloom.data import folders, from_datasets, from_partitions
from fedloom.data.client_indices import read_arrays
from fedloom.errors import DataError
from support.refusals import refused

Image = pytest.importorskip("PIL.Image", reason="the extra images is not installed")


def arrays(folder, **values):
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / "data.npz", **{k: np.asarray(v) for k, v in values.items()})


def test_a_folder_per_client_with_arrays(tmp_path):
    arrays(tmp_path / "b", inputs=[[1.0], [2.0]], targets=[0, 1])
    arrays(tmp_path / "a", inputs=[[3.0]], targets=[1], test_inputs=[[9.0]], test_targets=[0])
    (tmp_path / ".hidden").mkdir()
    data = folders(path=tmp_path)
    assert data.client_names == ("a", "b") and data.sizes.tolist() == [1, 2]
    assert data.client_names == ("a", "b") and data.client(1)[0].flatten().tolist() == [1, 2]
    assert data.test_inputs.tolist() == [[9]] and data.test_clients.sizes.tolist() == [1, 0]
    (tmp_path / "c").mkdir()
    np.save(tmp_path / "c" / "inputs.npy", np.ones((2, 1)))
    np.save(tmp_path / "c" / "targets.npy", np.array([1, 1]))
    assert folders(path=tmp_path).sizes.tolist() == [1, 2, 2]


def test_arrays_that_do_not_fit_name_the_client(tmp_path):
    load = lambda: folders(path=tmp_path)
    arrays(tmp_path / "a", inputs=[[1.0], [2.0]], targets=[0, 1])
    for values, says in (
        ({"inputs": [[1.0]], "targets": [0, 1]}, "has 1 inputs, but 2 targets"),
        ({"inputs": np.zeros((0, 1)), "targets": []}, "hold no samples"),
        ({"inputs": [[1.0]]}, "has no array targets"),
        ({"inputs": [[float("nan")]], "targets": [0]}, "inputs row 0 holds NaN or infinity"),
        ({"inputs": [[1.0, 2.0]], "targets": [0]}, "inputs of shape (2,)"),
        ({"inputs": [[1.0]], "targets": [0.5]}, "targets of shape ()"),
    ):
        arrays(tmp_path / "b", **values)
        refused(load, "client b", says)
    write(tmp_path / "b" / "data.npz", b"PK\3\4 and then nothing")
    refused(load, "client b", "damaged")
    refused(lambda: folders(path=tmp_path / "none"), "there is no folder")
    (tmp_path / "empty").mkdir()
    refused(lambda: folders(path=tmp_path / "empty"), "holds no folders")


def test_a_folder_per_client_with_pictures(tmp_path, caplog):
    picture(tmp_path / "ana" / "train" / "cat" / "1.png", 10)
    picture(tmp_path / "ana" / "train" / "dog" / "1.png", 20)
    picture(tmp_path / "ana" / "test" / "dog" / "1.png", 30)
    picture(tmp_path / "bo" / "emu" / "2.png", 40)
    data = folders(path=tmp_path, crop=1)
    assert data.inputs.shape == (3, 1, 3, 4) and data.inputs.dtype == torch.uint8
    assert data.inputs[:, 0, 0, 0].tolist() == [10, 20, 40]
    assert data.class_names == ("cat", "dog", "emu") and data.targets.tolist() == [0, 1, 2]
    assert data.test_clients.sizes.tolist() == [1, 0] and data.transform.crop == 1
    third = picture(tmp_path / "bo" / "emu" / "3.png", 40, (5, 5))
    refused(lambda: folders(path=tmp_path), "client bo", "3.png", "size=")
    assert folders(path=tmp_path, size=6).inputs.shape == (4, 1, 6, 6)
    write(third, b"no picture")
    refused(lambda: folders(path=tmp_path), "client bo", "3.png is no whole picture")
    third.unlink()
    (tmp_path / "cy").mkdir()
    refused(lambda: folders(path=tmp_path), "client cy", "neither data.npz nor pictures")
    picture(tmp_path / "cy" / "Cat" / "1.png", 1)
    assert folders(path=tmp_path).class_names == ("Cat", "cat", "dog", "emu")
    assert "folders of classes: 'Cat' and 'cat' differ by capitals" in caplog.text


@pytest.mark.parametrize(
    ("kind", "says"),  # modes whose values pillow cuts off at 255
    [
        ("uint16", "16 bits a pixel (mode I;16)"),
        ("int32", "32 bits a pixel (mode I)"),
        ("float32", "32 bits a pixel (mode F)"),
    ],
)
def test_pictures_of_more_than_8_bits_are_refused_by_name(tmp_path, kind, says):
    deep = Image.fromarray((np.arange(64).reshape(8, 8) * 900).astype(kind))
    picture(tmp_path / "ana" / "cat" / "1.tif", 7, (8, 8))
    (tmp_path / "bo" / "cat").mkdir(parents=True)
    deep.save(tmp_path / "bo" / "cat" / "1.tif")
    for size in (None, 4):
        load = lambda size=size: folders(path=tmp_path, size=size)
        refused(load, "client bo", "bo/cat/1.tif", says)
    refused(lambda: from_datasets([[(deep, 0)]]), "client 0, sample 0", says)
    few = rows_of(image=[Image.new("L", (8, 8)), deep], label=[0, 1])
    refused(lambda: from_partitions([few]), "client 0, column 'image', row 2", says)


def test_pages_of_a_picture_are_not_dropped_and_grey_ones_stay_grey(tmp_path):
    path = picture(tmp_path / "ana" / "cat" / "1.tif", (7, 255), mode="LA")
    data = folders(path=tmp_path)
    assert data.inputs.unique().tolist() == [7] and data.inputs.shape == (1, 1, 3, 4)
    Image.new("L", (4, 3), 7).save(path, save_all=True, append_images=[Image.new("L", (4, 3))])
    refused(lambda: folders(path=tmp_path), "ana/cat/1.tif has 2 pages")


@pytest.mark.skipif(sys.platform != "linux", reason="looks at the process's open files")
def test_no_file_stays_open_behind_an_error(tmp_path):
    def assert_closed(load, place):
        before = len(os.listdir("/proc/self/fd"))
        with pytest.raises(DataError) as held:  # keeps what the error's frames refer to
            load()
        assert len(os.listdir("/proc/self/fd")) == before, place
        assert str(place) in str(held.value)

    arrays(tmp_path / "archive", inputs=[[1.0]], targets=[0])
    whole = (tmp_path / "archive" / "data.npz").read_bytes()
    cases = [("data.npz", whole[: len(whole) // 2]), ("data.npz", whole[:8])]
    cases += [("inputs.npy", whole[:40]), ("inputs.npy", b"")]
    for kind in ("png", "jpeg", "gif", "bmp"):
        Image.new("L", (9, 9), 7).save(begun := io.BytesIO(), kind)
        cases.append((f"cat/1.{kind}", begun.getvalue()[:40]))
    for number, (name, content) in enumerate(cases):
        clients = tmp_path / f"clients {number}"
        write(clients / "ann" / name, content)
        assert_closed(lambda path=clients: folders(path=path), clients / "ann")
    split = write(tmp_path / "split.npz", whole[:-30])
    assert_closed(lambda: read_arrays(split), split)
