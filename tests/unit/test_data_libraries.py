"""Parquet and Hugging Face through the libraries themselves, where they are installed."""

from __future__ import annotations

import datetime
import decimal
import io
import types

import numpy as np
import pytest
import torch
from published import refused

from fedloom.data import from_partitions, hugging_face, iid, table
from fedloom.errors import DataError

SITES = ["a", "b", "a"]


# ---- Parquet


@pytest.fixture
def parquet(tmp_path):
    """A function that writes columns, or pairs of name and column, and loads them."""
    arrow = pytest.importorskip("pyarrow", reason="the extra tables is not installed")
    from pyarrow import parquet

    def load(columns, **options):
        pairs = columns.items() if isinstance(columns, dict) else columns
        arrays = [arrow.array(values) for _, values in pairs]
        path = tmp_path / "t.parquet"
        parquet.write_table(arrow.Table.from_arrays(arrays, names=[n for n, _ in pairs]), path)
        return table(path=path, client="site", **options)

    return load


def test_types_of_columns_are_read_for_what_they_hold(parquet):
    arrow = pytest.importorskip("pyarrow")
    plain = {"site": SITES, "label": [0, 1, 1]}
    columns = {
        "half": np.array([1, 2, 3], np.float16),
        "byte": np.array([1, 2, 3], np.uint8),
        "exact": [decimal.Decimal("1.50"), decimal.Decimal(2), decimal.Decimal(3)],
        "yes": [True, False, True],
    }
    data = parquet(plain | columns)
    assert data.client(0)[0].tolist() == [[1, 1, 1.5, 1], [3, 3, 3, 1]]
    assert data.client(1)[1].tolist() == [1] and data.targets.dtype == torch.int64
    lists = parquet(plain | {"x": [[[1.0, 2.0]], [[3.0, 4.0]], [[5.0, 6.0]]]})
    assert lists.inputs.shape == (3, 1, 2) and lists.client(1)[0].flatten().tolist() == [3, 4]
    coded = parquet(
        {
            "site": arrow.array(SITES).dictionary_encode(),
            "x": [1.0, 2.0, 3.0],
            "label": arrow.array(["no", "yes", "no"]).dictionary_encode(),
        }
    )
    assert coded.class_names == ("no", "yes") and coded.about["client_names"] == ["a", "b"]
    numbers = parquet({"site": [10.0, 9.0, 10.0], "x": [1, 2, 3], "label": [0.5, 1.5, 2.0]})
    assert numbers.about["client_names"] == ["9", "10"] and numbers.classes is None
    texts = parquet({"site": SITES, "t": ["b a", "a", "a"], "label": [0, 1, 0]}, text="t", length=2)
    assert texts.inputs.tolist() == [[3, 2], [2, 0], [2, 0]]


def test_tables_with_holes_are_refused_by_column_and_row(parquet):
    whole = {"site": SITES, "x": [1.0, 2.0, 3.0], "label": [0, 1, 1]}
    for name, values, says in (
        ("x", [1.0, None, 3.0], "column 'x', row 2: None is no finite number"),
        ("x", [datetime.date(2020, 1, 1)] * 3, "column 'x', row 1: datetime.date(2020, 1, 1)"),
        ("x", [{"u": 1}] * 3, "column 'x', row 1: {'u': 1} is no finite number"),
        ("site", ["a", None, "b"], "column 'site', row 2 is empty"),
        ("site", ["a", "b", ""], "column 'site', row 3 is empty"),
        ("label", [None, 0, 1], "column 'label', row 1 is empty"),
        ("label", ["no", "yes", None], "column 'label', row 3 is empty"),
    ):
        refused(lambda name=name, values=values: parquet(whole | {name: values}), says)
    twice = [*whole.items(), ("x", [1.0, 2.0, 3.0])]
    refused(lambda: parquet(twice), "names a column twice: site, x, label, x")
    refused(lambda: parquet({name: values[:0] for name, values in whole.items()}), "has no rows")


def test_a_damaged_parquet_file_is_named_in_one_line(parquet, tmp_path):
    parquet({"site": SITES, "x": [1.0, 2.0, 3.0], "label": [0, 1, 1]})
    whole = (tmp_path / "t.parquet").read_bytes()
    for content in (b"", whole[:200], whole[:20] + b"\xff" * 40 + whole[60:]):
        (tmp_path / "u.parquet").write_bytes(content)
        refused(lambda: table(path=tmp_path / "u.parquet", client="site"), "u.parquet is no whole")


# ---- Hugging Face


@pytest.fixture
def saved(tmp_path, monkeypatch):
    """A function that saves a data set of splits, and gives its folder."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    datasets = pytest.importorskip("datasets", reason="the extra huggingface is not installed")

    def save(**splits):
        path = tmp_path / f"set{len(list(tmp_path.iterdir()))}"
        datasets.DatasetDict(splits).save_to_disk(str(path))
        return str(path)

    return save


def test_saved_data_sets_of_the_library_are_read(saved):
    import datasets

    pictures = [
        np.random.default_rng(i).integers(0, 256, (4, 5, 3), dtype=np.uint8) for i in range(6)
    ]
    kinds = datasets.Features(
        {
            "image": datasets.Image(),
            "label": datasets.ClassLabel(names=["cat", "dog"]),
            "who": datasets.Value("string"),
        }
    )
    columns = {"image": pictures, "label": [0, 1] * 3, "who": list("bababc")}
    train = datasets.Dataset.from_dict(columns, features=kinds)
    data = hugging_face(path=saved(train=train, test=train.select([5])), client="who", flip=True)
    assert data.inputs.dtype == torch.uint8 and data.sizes.tolist() == [2, 3, 1]
    expected = torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2)
    assert torch.equal(data.client(0)[0], expected[[1, 3]]), "PNG loses nothing"
    assert data.test_clients.sizes.tolist() == [0, 0, 1]

    rows = {"x": [[1.0, 2.0], [3.0, 4.0]], "text": ["b a", "a"], "label": [0, 1]}
    for kind in (None, "torch", "numpy"):  # a data set may be saved to give tensors
        made = datasets.Dataset.from_dict(rows).with_format(kind)
        load = lambda made=made, **options: hugging_face(
            iid(1), path=saved(train=made), test_split=None, **options
        )
        assert load(inputs="x").inputs.tolist() == rows["x"]
        assert load(inputs="text", length=2).inputs.tolist() == [[3, 2], [2, 0]]


def test_saved_data_sets_that_do_not_fit_are_refused_by_row(saved, tmp_path):
    import datasets
    from PIL import Image

    def png(value):
        out = io.BytesIO()
        Image.new("L", (4, 4), value).save(out, "png")
        return {"bytes": out.getvalue(), "path": None}

    damaged = {"bytes": b"no picture", "path": None}
    for pictures, says in (
        ([png(1), damaged], "column 'image', row 2 is no whole picture"),
        ([damaged, png(1)], "column 'image', row 1 is no whole picture"),
        ([png(1), None], "column 'image', row 2 is a NoneType"),
    ):
        made = datasets.Dataset.from_dict({"image": pictures, "label": [0, 1]})
        path = saved(train=made.cast_column("image", datasets.Image()))
        refused(lambda path=path: hugging_face(iid(1), path=path, test_split=None), says)
    holes = saved(train=datasets.Dataset.from_dict({"x": [[1.0], [2.0]], "label": [0, None]}))
    refused(
        lambda: hugging_face(iid(1), path=holes, inputs="x", test_split=None),
        "column 'label', row 2 is empty",
    )
    refused(lambda: hugging_face(iid(1), path=holes, inputs="x"), "has no split 'test'")
    datasets.Dataset.from_dict({"x": [[1.0]], "label": [0]}).save_to_disk(str(tmp_path / "one"))
    refused(lambda: hugging_face(iid(1), path=str(tmp_path / "one"), inputs="x"), "has no splits")


# ---- partitions of other libraries


class Rows:
    """What from_partitions needs of a Dataset."""

    def __init__(self, **columns):
        self.columns, self.column_names = columns, list(columns)
        names = types.SimpleNamespace(names=["cat", "dog"])
        self.features = {"label": names} if "label" in columns else {}

    def with_format(self, kind):
        return self

    def __len__(self):
        return len(self.columns["x"])

    def __getitem__(self, name):
        return self.columns[name]


ONE, TWO = (
    Rows(x=[[1.0, 2.0]], label=[0], more=["a"]),
    Rows(x=[[3.0, 4.0], [5.0, 6.0]], label=[1, 0], more=["b", "c"]),
)


class Flower:
    """What from_partitions needs of Flower's FederatedDataset."""

    def __init__(self, count=2, **more):
        self.partitioners = {"train": types.SimpleNamespace(num_partitions=count, **more)}

    def load_partition(self, i):
        return (ONE, TWO)[i]

    def load_split(self, name):
        assert name == "test"
        return TWO


def test_partitions_of_other_libraries_are_clients():
    for parts, names in (
        ([ONE, TWO], ()),
        ({"ana": ONE, "bo": TWO}, ("ana", "bo")),
        (Flower(), ()),
        (Flower(partition_id_to_natural_id={0: "ana", 1: "bo"}), ("ana", "bo")),
    ):
        data = from_partitions(parts, test=TWO, inputs="x")
        assert data.sizes.tolist() == [1, 2] and data.client_names == names
        assert data.client(1)[0].tolist() == [[3, 4], [5, 6]] and data.client(1)[1].tolist() == [
            1,
            0,
        ]
        assert data.class_names == ("cat", "dog") and len(data.test_inputs) == 2
    assert len(from_partitions(Flower(), inputs="x").test_inputs) == 2
    with_test = from_partitions({"ana": ONE, "test": TWO}, inputs="x")
    assert with_test.client_names == ("ana",) and len(with_test.test_inputs) == 2
    assert from_partitions([ONE], inputs="x").test_inputs is None


def test_named_classes_of_partitions_are_numbered_as_in_training():
    rows = lambda *labels: named(None, *labels)
    train = [rows("no", "yes"), rows("maybe")]
    data = from_partitions(train, test=rows("yes", "no"), inputs="x")
    assert data.class_names == ("maybe", "no", "yes") and data.targets.tolist() == [1, 2, 0]
    assert data.test_targets.tolist() == [2, 1]
    refused(lambda: from_partitions(train, test=rows("never"), inputs="x"), "test, column 'label'")


def named(classes, *labels):
    """Rows whose labels are texts, or the numbers of these classes."""
    values = [name if classes is None else classes.index(name) for name in labels]
    made = Rows(x=[[float(len(name))] for name in labels], label=values)
    made.features = {} if classes is None else {"label": types.SimpleNamespace(names=classes)}
    return made


def test_classes_of_partitions_are_joined_by_name(caplog):
    a = named(["healthy", "ill"], "healthy", "healthy", "ill")
    b = named(["ill", "unknown", "healthy"], "healthy", "unknown", "ill")
    test = named(["unknown", "ill"], "ill", "unknown")
    data = from_partitions({"a": a, "b": b}, test=test, inputs="x")
    assert data.class_names == ("healthy", "ill", "unknown")
    assert data.targets.tolist() == [0, 0, 1, 0, 2, 1] and data.test_targets.tolist() == [1, 2]
    texts = from_partitions([a], test=named(None, "ill", "healthy"), inputs="x")
    assert texts.test_targets.tolist() == [1, 0]
    assert not caplog.messages
    twice = from_partitions([a, named(["Ill", "healthy"], "Ill")], inputs="x")
    assert twice.targets.tolist() == [0, 0, 1, 2]
    assert "column 'label': 'ill' and 'Ill' differ by capitals or blanks alone" in caplog.text


def test_labels_that_have_names_in_some_parts_alone_are_refused():
    a, plain = named(["healthy", "ill"], "healthy", "ill"), Rows(x=[[1.0]], label=[0])
    plain.features = {}
    says = "client 1, column 'label', row 1: class 0 is none of healthy, ill"
    refused(lambda: from_partitions([a, plain], inputs="x"), says)
    refused(lambda: from_partitions([plain, a], inputs="x"), "client 0", "class 0 is none of")
    refused(
        lambda: from_partitions([plain], test=named(None, "ill"), inputs="x"),
        "column 'label' holds torch.int64 in the clients and the texts ill in test",
    )
    outside = named(["healthy", "ill"], "healthy")
    outside.columns["label"] = [-1]  # of a test set without labels
    refused(lambda: from_partitions([a], test=outside, inputs="x"), "class -1 is none of healthy")


def test_a_transform_of_a_partition_is_not_dropped(saved):
    import datasets

    rows = datasets.Dataset.from_dict({"x": [[1.0, 2.0]], "label": [0]})
    halved = lambda batch: batch | {"x": [[v / 2 for v in row] for row in batch["x"]]}
    for made in (rows.with_transform(halved), rows.with_format("torch", dtype=torch.int8)):
        with pytest.raises(DataError, match=r"client 0 has a format with .*apply it by \.map"):
            from_partitions([made], inputs="x")
    kept = from_partitions([rows.map(halved, batched=True).with_format("torch")], inputs="x")
    assert kept.inputs.tolist() == [[0.5, 1.0]]


def test_splits_of_a_saved_data_set_are_joined_by_the_names_of_classes(saved):
    import datasets

    def split(names, labels):
        kinds = {"x": datasets.Value("float32"), "label": datasets.ClassLabel(names=names)}
        columns = {"x": [0.0] * len(labels), "label": labels}
        return datasets.Dataset.from_dict(columns, features=datasets.Features(kinds))

    path = saved(train=split(["no", "yes"], ["yes", "no"]), test=split(["yes", "no"], ["yes"]))
    data = hugging_face(iid(1), path=path, inputs="x")
    assert data.class_names == ("no", "yes")
    assert data.targets.tolist() == [1, 0] and data.test_targets.tolist() == [1]


def test_partitions_that_do_not_fit_are_refused_by_client():
    bad = Rows(x=[[float("nan"), 0.0]], label=[0])
    refused(
        lambda: from_partitions([ONE, bad], inputs="x"), "client 1, column 'x', row 1 holds NaN"
    )
    refused(lambda: from_partitions({"a": ONE, "b": 3}, inputs="x"), "client b is a int")
    refused(lambda: from_partitions([ONE], inputs="y"), "no column 'y'")
    refused(
        lambda: from_partitions([ONE, Rows(x=[[1.0, 2.0]])], inputs="x"), "client 1 has no column"
    )
    refused(lambda: from_partitions([Rows(x=[], label=[])], inputs="x"), "client 0 is empty")
    refused(lambda: from_partitions([]), "there are no partitions")


def test_flowers_own_partitions_are_clients(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    datasets = pytest.importorskip("datasets", reason="the extra huggingface is not installed")
    flower = pytest.importorskip("flwr_datasets", reason="flwr-datasets is not installed")
    from flwr_datasets import partitioner

    columns = {"x": [[float(i), 0.0] for i in range(9)], "label": [0, 1, 1] * 3}
    rows = datasets.Dataset.from_dict(columns | {"site": ["b", "a", "a"] * 3})
    whole = datasets.DatasetDict(train=rows, test=rows.select([0, 1]))
    for maker, names in (
        (partitioner.IidPartitioner(3), ()),
        (partitioner.NaturalIdPartitioner("site"), ("a", "b")),
    ):
        made = flower.FederatedDataset(dataset="own", partitioners={"train": maker})
        monkeypatch.setattr(datasets, "load_dataset", lambda **_: whole)
        data = from_partitions(made, inputs="x")
        assert data.client_names == names and sum(data.sizes.tolist()) == 9
        assert len(data.test_inputs) == 2
