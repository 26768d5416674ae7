"""The user's own data: folders, tables, torch Datasets, Hugging Face, the natural partition."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import io
import os
import sys
import types

import numpy as np
import published
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from published import refused

from fedloom.data import (
    PARTITIONS,
    folders,
    from_datasets,
    from_partitions,
    hugging_face,
    iid,
    mnist,
    table,
    writers,
)
from fedloom.data.client_indices import read_arrays
from fedloom.data.dataset import Arrays
from fedloom.data.partition import natural
from fedloom.data.published import images
from fedloom.errors import DataError

# ---- natural partitions, and blocks


@settings(deadline=None)
@given(
    st.lists(st.integers(-1, 9), min_size=1, max_size=60),
    st.integers(1, 4),
    st.integers(0, 5),
)
def test_natural_clients_are_the_owners_with_enough(owners, least, seed):
    counts = {o: owners.count(o) for o in set(owners) - {-1}}
    enough = sorted(o for o, n in counts.items() if n >= least)
    choose = lambda **options: natural(min_size=least, **options).choose(
        torch.tensor(owners), "people", seed
    )
    if not enough:
        refused(choose, f"none of the {len(counts)} people has {least} samples")
        return
    lists, who = choose()
    assert who.tolist() == enough
    for client, owner in enumerate(enough):
        assert lists.of(client).tolist() == [i for i, o in enumerate(owners) if o == owner]
    some = 1 + len(enough) // 2
    if some <= len(enough):
        kept = choose(clients=some)[1].tolist()
        assert len(kept) == some and set(kept) <= set(enough) and kept == sorted(kept)
        assert kept == choose(clients=some)[1].tolist()
    refused(lambda: choose(clients=len(enough) + 1), f"there are {len(enough)} people")


def test_which_clients_are_kept_is_the_seeds():
    owners = torch.arange(200)
    kept = [natural(clients=20).choose(owners, "people", seed)[1].tolist() for seed in range(5)]
    assert len({tuple(k) for k in kept}) == 5


def test_clients_take_their_own_tests_along():
    arrays = Arrays(
        name="a",
        inputs=torch.arange(6.0)[:, None],
        targets=torch.tensor([0, 1, 0, 1, 0, 1]),
        test_inputs=torch.arange(10.0, 15)[:, None],
        test_targets=torch.tensor([0, 1, 0, 1, 1]),
        owners=torch.tensor([4, 2, 4, 9, 2, 4]),
        test_owners=torch.tensor([9, 4, 7, 4, 9]),
    )
    data = arrays.divided(natural(min_size=2), seed=0)
    assert data.sizes.tolist() == [2, 3], "2 and 4; 9 has one sample only"
    assert data.test_inputs.flatten().tolist() == [11, 13]
    assert [data.test_clients.of(i).tolist() for i in range(2)] == [[], [0, 1]]
    everyone = arrays.divided(natural(), seed=0)
    tests = [everyone.test_inputs[everyone.test_clients.of(i)] for i in range(3)]
    assert [t.flatten().tolist() for t in tests] == [[], [11, 13], [10, 14]]
    assert len(arrays.divided(iid(2), seed=0).test_inputs) == 5


def test_natural_is_refused_where_nobody_made_the_samples():
    refused(lambda: natural().split(torch.zeros(3), 0), "femnist", "iid")
    refused(lambda: natural(clients=0), "clients must be")
    refused(lambda: natural(min_size=0), "min_size must be")
    plain = Arrays(name="a", inputs=torch.zeros(2, 1), targets=torch.zeros(2))
    refused(lambda: plain.divided(natural(), 0), "who made each sample")
    refused(
        lambda: writers().choose(torch.tensor([1]), "roles", 0), "are roles, not writers", "natural"
    )
    assert PARTITIONS["natural"] is natural and PARTITIONS["writers"] is writers


def test_mnists_writers_are_those_of_its_labels(tmp_path, monkeypatch):
    def put(folder, file, array, code=8):
        raw = gzip.compress(published.idx(array, code))
        published.write(tmp_path / folder / file.name, raw)
        return dataclasses.replace(file, md5=hashlib.md5(raw).hexdigest())

    pictures, labels = np.zeros((4, 2, 2), np.uint8), np.array([3, 1, 3, 0], np.uint8)
    records = np.zeros((4, 8), ">i4")
    records[:, 0], records[:, 2] = labels, [2100, 77, 77, 2100]
    content = (pictures, labels, pictures, labels)
    files = tuple(put("mnist", f, x) for f, x in zip(images.MNIST.files, content, strict=True))
    for wrong in (False, True):
        records[1, 0] += 7 * wrong
        own = {"files": files, "writers": put("qmnist", images.QMNIST, records, 0x0C)}
        monkeypatch.setattr(images, "MNIST", dataclasses.replace(images.MNIST, **own))
        load = lambda: mnist(writers(), data_dir=tmp_path, download=False)
        if wrong:
            refused(load, "image 1 shows 8, but its label is 1")
        else:
            assert [load().clients.of(i).tolist() for i in range(2)] == [[1, 2], [0, 3]]


# ---- tables

ROWS = "site,age,dose,label\nlyon,40,1.5,no\nbonn,50,2,yes\nlyon,60,0,yes\n"


def test_a_table_has_a_client_per_value_of_a_column(tmp_path):
    path = published.write(tmp_path / "visits.csv", ROWS)
    test = published.write(tmp_path / "test.csv", "label,site,dose,age\nno,bonn,1,30\nyes,oslo,1,3")
    data = table(path=path, client="site", test=test)
    assert data.about["client_names"] == ["bonn", "lyon"] and data.class_names == ("no", "yes")
    assert data.client_names == ("bonn", "lyon")
    assert table(natural(min_size=2), path=path, client="site").client_names == ("lyon",)
    assert data.client(0)[0].tolist() == [[50, 2]] and data.client(1)[1].tolist() == [0, 1]
    assert data.test_inputs.tolist() == [[30, 1]], "oslo trains on nothing"
    assert data.test_clients.sizes.tolist() == [1, 0]
    away = published.write(tmp_path / "away.csv", "label,site,dose,age\nno,oslo,1,30\n")
    refused(
        lambda: table(path=path, client="site", test=away), away, "'oslo'", "leave out the column"
    )
    dealt = table(iid(3), path=path, inputs=["dose"])
    assert dealt.client_names == ()
    assert dealt.sizes.tolist() == [1, 1, 1] and dealt.inputs.flatten().tolist() == [1.5, 2, 0]


def test_a_column_of_texts_becomes_words(tmp_path):
    path = published.write(tmp_path / "t.csv", 'who,text,label\na,"Good, good",1\nb,bad,0\n')
    data = table(path=path, client="who", text="text", length=4, vocabulary=10)
    assert data.inputs.tolist() == [[2, 3, 2, 0], [4, 0, 0, 0]]
    refused(lambda: table(path=path, client="who", text="text", inputs=["x"]), "keep one of them")


@pytest.mark.parametrize(
    ("rows", "options", "says"),
    [
        (ROWS, {"client": "cite"}, "no column 'cite'; did you mean 'site'?"),
        (ROWS, {}, "give client="),
        (ROWS, {"client": "site", "target": "x"}, "no column 'x'"),
        (ROWS + "bonn,1\n", {"client": "site"}, "column 'dose', row 4: '' is no finite"),
        ("site,age,label\na,1,-1\n", {"client": "site"}, "row 1: label -1"),
        ("a,a\n1,2\n", {"client": "a"}, "names a column twice"),
        (ROWS + "bonn,1,1,no,5\n", {"client": "site"}, "Expected 4 fields in line 5, saw 5"),
        (ROWS + '"bonn,1,1,no\n', {"client": "site"}, "no whole CSV file: Error tokenizing"),
        ("a,b\n", {"client": "a"}, "no rows below its header"),
        ("\n", {"client": "a"}, "is empty; it needs a header"),
        ("a;b\n1;2\n", {"client": "a"}, 'by semicolons; give sep = ";" (and'),
        ("a\tb\n1\t2\n", {"client": "a"}, "by tabs; give sep"),
        ("site,label\na,1\n", {"client": "site"}, "no columns besides label and site"),
    ],
)
def test_tables_that_do_not_fit_are_refused_by_column_and_row(tmp_path, rows, options, says):
    path = published.write(tmp_path / "t.csv", rows)
    refused(lambda: table(path=path, **options), path if "give" not in says else "", says)


def test_a_class_that_only_the_test_has_is_refused(tmp_path):
    path = published.write(tmp_path / "t.csv", ROWS)
    test = published.write(tmp_path / "u.csv", "site,age,dose,label\nlyon,1,1,maybe\n")
    refused(lambda: table(path=path, client="site", test=test), "'maybe'", "no, yes")
    refused(lambda: table(path=path, client="site", test=tmp_path / "v.csv"), "there is no file")
    os.mkfifo(tmp_path / "pipe.csv")
    (tmp_path / "ring.csv").symlink_to("ring.csv")
    for name in ("pipe", "ring"):
        odd = tmp_path / f"{name}.csv"
        refused(lambda odd=odd: table(path=odd, client="site"), "is no ordinary file")
    refused(lambda: table(path="", client="site"), "needs path=")
    (tmp_path / "w.csv").write_bytes("né,x\n1,2\n".encode("latin1"))
    refused(lambda: table(path=tmp_path / "w.csv"), "not UTF-8")


@pytest.mark.parametrize(("ending", "library"), [("parquet", "pyarrow"), ("csv", "pandas")])
def test_tables_need_their_extra(tmp_path, monkeypatch, ending, library):
    path = published.write(tmp_path / f"t.{ending}", b"x,label\n")
    monkeypatch.setitem(sys.modules, library, None)
    says = f"to read t.{ending} needs {library}, which cannot be imported; run: pip install"
    refused(lambda: table(path=path, client="site"), says)


# ---- tables of several files

SITES = {
    "lyon": "age,sex,day,outcome\n40,f,2024-01-02,home\n50,m,2024-01-03,ward\n"
    "60,f,2024-03-01,home\n",
    "bonn": "age,sex,day,outcome\n,m,2024-01-09,ward\n30,,2024-02-01 10:30,home\n",
}


@pytest.fixture
def hospitals(tmp_path):
    for name, rows in SITES.items():
        published.write(tmp_path / "hospitals" / f"{name}.csv", rows)
    return tmp_path / "hospitals"


PREPARED = {"target": "outcome", "missing": "median", "inputs": ["age", "sex"]}


def test_every_file_is_a_client_of_its_name(hospitals):
    data = table(f"{hospitals}/*.csv", target="outcome", inputs=["age"], missing="mean")
    assert data.name == "hospitals" and data.client_names == ("bonn", "lyon")
    assert data.sizes.tolist() == [2, 3] and data.class_names == ("home", "ward")
    assert data.client(1)[0].flatten().tolist() == [40, 50, 60]
    assert data.client(0)[0].flatten().tolist() == [45, 30], "the mean of all training rows"
    one = [str(hospitals / "lyon.csv")]
    assert table(one, target="outcome", inputs=["age"]).client_names == ("lyon",)
    dealt = table(iid(5), path=f"{hospitals}/*.csv", target="outcome", inputs=["age"], missing=0)
    assert dealt.client_names == () and dealt.sizes.tolist() == [1] * 5


def test_files_of_one_name_take_their_folders(tmp_path):
    for site in ("b", "a"):
        published.write(tmp_path / site / "visits.csv", "x,label\n1,0\n")
    assert table(f"{tmp_path}/*/visits.csv").client_names == ("a/visits", "b/visits")


def test_texts_and_missing_cells_become_numbers_by_the_training_rows(hospitals):
    data = table(f"{hospitals}/*.csv", columns={"sex": "one_hot"}, standardise=True, **PREPARED)
    assert data.raw.heads == ("age", "sex=f", "sex=m")
    ages = np.array([45, 30, 40, 50, 60.0])
    expected = (ages - ages.mean()) / ages.std()
    assert np.allclose(data.inputs[:, 0], expected)
    sex = data.inputs[:, 1:].tolist()
    assert sex == [[0, 1], [1, 0], [1, 0], [0, 1], [1, 0]], "of two values the first by name"
    assert data.about["prepared"] == [
        "age: missing values as 45 (1 in training), less 45, divided by 10",
        "sex: one input for each of 2 values, missing values as 'f' (1 in training)",
    ]
    order = table(
        f"{hospitals}/*.csv",
        target="outcome",
        inputs=["sex", "age"],
        columns={"sex": ["unknown", "m", "f"]},
        missing={"sex": "unknown", "*": 0},
    )
    assert order.inputs.tolist() == [[1, 0], [0, 30], [2, 40], [1, 50], [2, 60]]
    assert order.about["prepared"][0].startswith("sex: 0 to 2 for unknown < m < f")


def test_rows_from_a_day_on_are_the_test_set(hospitals):
    rules = {"columns": {"*": "ordinal"}, "date": "day", "test_from": "2024-02-01"}
    data = table(f"{hospitals}/*.csv", target="outcome", missing="median", **rules)
    assert data.sizes.tolist() == [1, 2] and data.test_clients.sizes.tolist() == [1, 1]
    assert data.inputs.tolist() == [[45, 1], [40, 0], [50, 1]], "no test row decides the median"
    assert data.test_inputs.tolist() == [[30, 1], [60, 0]]
    published.write(hospitals / "later" / "lyon.csv", SITES["lyon"])
    own = table(
        f"{hospitals}/*.csv",
        test=f"{hospitals}/later/*.csv",
        columns={"sex": "one_hot"},
        **PREPARED,
    )
    assert own.test_clients.sizes.tolist() == [0, 3]
    published.write(hospitals / "later" / "lyon.csv", SITES["lyon"].replace("f,", "x,"))
    strange = table(
        f"{hospitals}/*.csv",
        test=f"{hospitals}/later/*.csv",
        columns={"sex": "one_hot"},
        **PREPARED,
    )
    assert strange.test_inputs[0].tolist() == [40, 0, 0], "no training row has this value"


def test_clients_of_a_column_without_earlier_rows_are_left_out(hospitals, tmp_path, caplog):
    rows = "id,x,day,label\n1,1,2024-01-01,0\n2,2,2024-02-01,1\n1,3,2024-02-02,1\n"
    path = published.write(tmp_path / "t.csv", rows)
    data = table(path, client="id", date="day", test_from="2024-02-01")
    assert data.client_names == ("1",) and data.test_inputs.tolist() == [[3]]
    assert "1 of 2 test rows are left out: they are of clients" in caplog.text
    assert "to train on, 2" in caplog.text


def test_rows_of_clients_that_do_not_train_are_named_or_count(tmp_path, caplog):
    train = published.write(tmp_path / "train.csv", "who,x,label\nA,1,0\nA,2,1\nB,3,0\nB,4,1\n")
    test = published.write(tmp_path / "test.csv", "who,x,label\nA,5,0\nC,6,1\nC,7,1\n")
    data = table(train, test=test, client="who")
    assert data.test_inputs.tolist() == [[5]]
    assert "test.csv: 2 of 3 test rows are left out" in caplog.text and "on, C" in caplog.text
    caplog.clear()
    divided = table(iid(clients=2), path=train, test=test, client="who")
    assert len(divided.test_inputs) == 3 and not caplog.text, "nobody owns a row"


HOT = {"sex": "one_hot"}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"path": "nowhere/*.csv"}, "no file matches 'nowhere/*.csv'"),
        ({"path": "."}, ". is a folder; give the files in it, as in ./*.csv"),
        ({"path": []}, "needs path="),
        ({}, "bonn.csv, column 'sex', row 1: 'm' is a text; write columns.sex = one_hot"),
        ({"columns": HOT}, "bonn.csv, column 'age', row 1 is empty; fill"),
        ({"columns": {"sex": "onehot"}}, "columns.sex: unknown kind of column 'onehot'"),
        ({"columns": {"sax": "one_hot"}}, "columns.sax: there is no input of this name; did"),
        ({"missing": {"age": "modus"}, "columns": HOT}, "missing.age must be"),
        ({"target": "x"}, "bonn.csv has no column 'x'; known: age"),
        ({"date": "day"}, "date and test_from go together"),
        ({"date": "day", "test_from": "May"}, "test_from = 'May' is no date"),
        ({"date": "age", "test_from": "2024-02-01"}, "column 'age', row 1: '' is no date"),
        ({"date": "day", "test_from": "2025-01-01"}, "no rows on or after 2025-01-01"),
        ({"date": "day", "test_from": "2023-01-01"}, "no rows before 2023-01-01"),
        ({"date": "day", "test_from": "2024-01-05"}, "client 'bonn' has no rows before"),
        ({"test": "*/lyon.csv", "date": "day", "test_from": "2024-02-01"}, "test and test_f"),
    ],
)
def test_files_that_do_not_fit_are_refused_by_name(hospitals, options, says):
    inputs = [] if "date" in options or "target" in options else ["age", "sex"]
    given = {"path": f"{hospitals}/*.csv", "target": "outcome", "inputs": inputs}
    refused(lambda: table(**given | options), says)


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ("age,sex,day\n1,f,2024-01-01\n", "oslo.csv has no column 'outcome'; known: age, day, sex"),
        ("age,sex,day,outcome,x\n1,f,2,home,1\n", "bonn.csv has no column 'x', which"),
        ("age,sex,day,outcome\n", "oslo.csv has no rows below its header"),
    ],
)
def test_a_file_that_does_not_fit_the_others_is_refused_by_name(hospitals, rows, says):
    published.write(hospitals / "oslo.csv", rows)
    refused(lambda: table(f"{hospitals}/*.csv", target="outcome"), says)


def test_names_that_differ_by_capitals_or_blanks_alone_are_said(tmp_path, caplog):
    rows = "site,sex,label\nbonn,F,yes\nlyon,f,Yes\nlyon,m,no\nBonn ,m, no\n"
    path = published.write(tmp_path / "t.csv", rows)
    columns = {"sex": ["F", "f", "m"]}
    data = table(path=path, client="site", columns={"sex": "one_hot"}, test_share=0.0)
    assert data.class_names == (" no", "Yes", "no", "yes")
    assert [
        message.partition(" differ")[0].removeprefix(f"{path}, column ")
        for message in caplog.messages
        if "differ by capitals" in message
    ] == [
        "'sex': 'F' and 'f'",
        "'label': ' no' and 'no'; 'Yes' and 'yes'",
        "'site': 'Bonn ' and 'bonn'",
    ]
    caplog.clear()
    listed = ["no", "yes", "Yes", " no"]
    table(iid(1), path=path, columns=columns, inputs=["sex"], class_names=listed)
    assert "'label'" not in caplog.text


def test_classes_that_are_numbers_in_training_and_texts_in_the_test_are_refused(tmp_path):
    path = published.write(tmp_path / "t.csv", "site,x,label\na,1,0\nb,2,1\n")
    test = published.write(tmp_path / "u.csv", "site,x,label\na,1,no\nb,2,yes\n")
    refused(
        lambda: table(path=path, client="site", test=test),
        "column 'label' holds torch.int64 in",
        "and the texts no, yes in",
    )


def test_one_number_in_two_forms_beside_a_text_is_said(tmp_path, caplog):
    """As in these files where a "?" stands for a missing cell."""
    path = published.write(tmp_path / "t.csv", "slope,label\n1.0,0\n?,1\n1,0\n2,1\n")
    data = table(iid(1), path=path, columns={"slope": "one_hot"})
    assert data.raw.columns[0].values == ("1", "1.0", "2", "?")
    assert "t.csv, column 'slope': '1.0' and '1' are two values, because '?' is a" in caplog.text


# ---- folders


def arrays(folder, **values):
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / "data.npz", **{k: np.asarray(v) for k, v in values.items()})


def test_a_folder_per_client_with_arrays(tmp_path):
    arrays(tmp_path / "b", inputs=[[1.0], [2.0]], targets=[0, 1])
    arrays(tmp_path / "a", inputs=[[3.0]], targets=[1], test_inputs=[[9.0]], test_targets=[0])
    (tmp_path / ".hidden").mkdir()
    data = folders(path=tmp_path)
    assert data.about["client_names"] == ["a", "b"] and data.sizes.tolist() == [1, 2]
    assert data.client_names == ("a", "b")
    assert data.client(1)[0].flatten().tolist() == [1, 2]
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
    (tmp_path / "b" / "data.npz").write_bytes(b"PK\3\4 and then nothing")
    refused(load, "client b", "damaged")
    refused(lambda: folders(path=tmp_path / "none"), "there is no folder")
    (tmp_path / "empty").mkdir()
    refused(lambda: folders(path=tmp_path / "empty"), "holds no folders")


def test_class_folders_that_differ_by_capitals_alone_are_said(tmp_path, caplog):
    pillow = pytest.importorskip("PIL.Image", reason="the extra images is not installed")
    for place in ("ana/Cat", "bo/cat"):
        (tmp_path / place).mkdir(parents=True)
        pillow.new("L", (4, 3)).save(tmp_path / place / "1.png")
    assert folders(path=tmp_path).class_names == ("Cat", "cat")
    assert "folders of classes: 'Cat' and 'cat' differ by capitals" in caplog.text


def test_a_folder_per_client_with_pictures(tmp_path):
    Image = pytest.importorskip("PIL.Image")

    def picture(path, value, size=(4, 3)):
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", size, value).save(path)

    picture(tmp_path / "ana" / "train" / "cat" / "1.png", 10)
    picture(tmp_path / "ana" / "train" / "dog" / "1.png", 20)
    picture(tmp_path / "ana" / "test" / "dog" / "1.png", 30)
    picture(tmp_path / "bo" / "emu" / "2.png", 40)
    data = folders(path=tmp_path, crop=1)
    assert data.inputs.shape == (3, 1, 3, 4) and data.inputs.dtype == torch.uint8
    assert data.inputs[:, 0, 0, 0].tolist() == [10, 20, 40]
    assert data.class_names == ("cat", "dog", "emu") and data.targets.tolist() == [0, 1, 2]
    assert data.test_clients.sizes.tolist() == [1, 0] and data.transform.crop == 1
    picture(tmp_path / "bo" / "emu" / "3.png", 40, (5, 5))
    refused(lambda: folders(path=tmp_path), "client bo", "3.png", "size=")
    assert folders(path=tmp_path, size=6).inputs.shape == (4, 1, 6, 6)
    (tmp_path / "bo" / "emu" / "3.png").write_bytes(b"no picture")
    refused(lambda: folders(path=tmp_path), "client bo", "3.png is no whole picture")
    (tmp_path / "cy").mkdir()
    refused(lambda: folders(path=tmp_path), "client bo")
    (tmp_path / "bo" / "emu" / "3.png").unlink()
    refused(lambda: folders(path=tmp_path), "client cy", "neither data.npz nor pictures")


DEEP = {  # modes whose values pillow cuts off at 255, and what an error calls them
    "uint16": "16 bits a pixel (mode I;16)",
    "int32": "32 bits a pixel (mode I)",
    "float32": "32 bits a pixel (mode F)",
}


@pytest.mark.parametrize("kind", DEEP)
@pytest.mark.parametrize("size", [None, 4])
def test_pictures_of_more_than_8_bits_are_refused_by_name(tmp_path, kind, size):
    pillow = pytest.importorskip("PIL.Image", reason="the extra images is not installed")
    deep = pillow.fromarray((np.arange(64).reshape(8, 8) * 900).astype(kind))
    for client, picture in (("ana", pillow.new("L", (8, 8), 7)), ("bo", deep)):
        (tmp_path / client / "cat").mkdir(parents=True)
        picture.save(tmp_path / client / "cat" / "1.tif")
    refused(lambda: folders(path=tmp_path, size=size), "client bo", "bo/cat/1.tif", DEEP[kind])
    refused(lambda: from_datasets([[(deep, 0)]]), "client 0, sample 0", DEEP[kind])
    few = Split(image=[pillow.new("L", (8, 8)), deep], label=[0, 1])
    refused(lambda: from_partitions([few]), "client 0, column 'image', row 2", DEEP[kind])


def test_pages_of_a_picture_are_not_dropped_and_grey_ones_stay_grey(tmp_path):
    pillow = pytest.importorskip("PIL.Image", reason="the extra images is not installed")
    (tmp_path / "ana" / "cat").mkdir(parents=True)
    path = tmp_path / "ana" / "cat" / "1.tif"
    pillow.new("LA", (4, 3), (7, 255)).save(path)
    assert folders(path=tmp_path).inputs.unique().tolist() == [7]
    assert folders(path=tmp_path).inputs.shape == (1, 1, 3, 4)
    pillow.new("L", (4, 3), 7).save(path, save_all=True, append_images=[pillow.new("L", (4, 3))])
    refused(lambda: folders(path=tmp_path), "ana/cat/1.tif has 2 pages")


@pytest.mark.skipif(sys.platform != "linux", reason="looks at the process's open files")
def test_no_file_stays_open_behind_an_error(tmp_path):
    Image = pytest.importorskip("PIL.Image")
    arrays(tmp_path / "archive", inputs=[[1.0]], targets=[0])
    whole = (tmp_path / "archive" / "data.npz").read_bytes()
    buffers = {kind: io.BytesIO() for kind in ("png", "jpeg", "gif", "bmp")}
    for kind, buffer in buffers.items():
        Image.new("L", (9, 9), 7).save(buffer, kind)
    cases = [
        ("cut/data.npz", whole[: len(whole) // 2]),
        ("begun/data.npz", whole[:8]),
        ("renamed/inputs.npy", whole),
        ("empty/inputs.npy", b""),
    ]
    cases += [(f"{k}/cat/1.{k}", b.getvalue()[:40]) for k, b in buffers.items()]
    for name, content in cases:
        published.write(tmp_path / "clients" / name, content)
        client = tmp_path / "clients" / name.split("/")[0]
        before = len(os.listdir("/proc/self/fd"))
        with pytest.raises(DataError) as held:  # keeps what the error's frames refer to
            folders(path=client.parent)
        assert len(os.listdir("/proc/self/fd")) == before, name
        assert str(client) in str(held.value)
        client.rename(tmp_path / client.name)
    published.write(tmp_path / "split.npz", whole[:-30])
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(DataError) as held:
        read_arrays(tmp_path / "split.npz")
    assert len(os.listdir("/proc/self/fd")) == before and "split.npz" in str(held.value)


# ---- Hugging Face, with a stand-in for the library


class Split:
    """What fedloom uses of a datasets.Dataset."""

    def __init__(self, **columns):
        self.columns = columns
        self.column_names = list(columns)

    def __len__(self):
        return len(next(iter(self.columns.values())))

    def __getitem__(self, name):
        return self.columns[name]

    def with_format(self, kind):
        return self


@pytest.fixture
def hub(monkeypatch):
    sets = {}

    def load_dataset(path, config=None):
        if path not in sets:
            raise FileNotFoundError(f"Couldn't reach '{path}'\non the Hub")
        return sets[path]

    library = types.SimpleNamespace(load_dataset=load_dataset, load_from_disk=load_dataset)
    monkeypatch.setitem(sys.modules, "datasets", library)
    return sets


def test_pictures_texts_and_numbers_of_the_hub(hub):
    Image = pytest.importorskip("PIL.Image")
    shades = [Image.new("L", (4, 4), 10 * i) for i in range(4)]
    hub["me/shades"] = {
        "train": Split(image=shades, label=[0, 1, 0, 1], who=["b", "a", "b", "b"]),
        "test": Split(image=shades[:1], label=[1], who=["b"]),
    }
    data = hugging_face(path="me/shades", client="who", flip=True)
    assert data.inputs.shape == (4, 1, 4, 4) and data.sizes.tolist() == [1, 3]
    assert data.ready(data.inputs)[1, 0, 0, 0].item() == pytest.approx((10 / 255 - 0.5) / 0.5)
    hub["news"] = {"train": Split(text=["a b", "b"], label=[0, 1])}
    texts = hugging_face(iid(2), path="news", inputs="text", test_split=None, length=2)
    assert texts.inputs.tolist() == [[3, 2], [2, 0]] and texts.test_inputs is None
    hub["rows"] = {"train": Split(x=[[1, 2], [3, 4]], label=[0.5, 1.5])}
    rows = hugging_face(iid(1), path="rows", inputs="x", test_split=None)
    assert rows.inputs.tolist() == [[1, 2], [3, 4]] and rows.classes is None


def test_what_the_hub_does_not_have_is_said_in_one_line(hub, monkeypatch):
    hub["rows"] = {
        "train": Split(x=[[1.0], [2.0, 3.0]], label=[0, 1], none=[], bad=[[1.0], [np.nan]])
    }
    load = lambda **options: hugging_face(
        iid(1), path="rows", **({"inputs": "x", "test_split": None} | options)
    )
    refused(load, "column 'x', row 2 has shape (2,)")
    refused(lambda: load(inputs="y"), "no column 'y'")
    refused(lambda: load(inputs="bad"), "row 2 holds NaN")
    refused(lambda: load(test_split="dev"), "no split 'dev'")
    refused(lambda: hugging_face(iid(1), path="nowhere"), "'nowhere' cannot be loaded", "reach")
    refused(lambda: hugging_face(iid(1)), "needs path=")
    monkeypatch.setitem(sys.modules, "datasets", None)
    refused(load, "[huggingface]'")
