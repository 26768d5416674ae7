"""Data of other libraries: torch Datasets, Parquet, Hugging Face, and partitions of all these."""

import datetime
import decimal
import io
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from published import rows_of
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from fedloom.data import (
    Images,
    from_arrays,
    from_clients,
    from_datasets,
    from_partitions,
    hugging_face,
    iid,
    table,
)
from support.refusals import refused

SITES = ["a", "b", "a"]


# ---------------------------------------------------------------------------------- torch Datasets
class Squares(Dataset):
    def __init__(self, count, bad=None):
        self.count, self.bad = count, bad

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        if i == self.bad:
            raise RuntimeError("disk gone")
        return torch.full((2,), float(i)), i % 3


class Named(Dataset):
    """As torchvision's: labels are numbers of `classes`, perhaps changed by target_transform."""

    def __init__(self, classes, labels, target_transform=None):
        self.classes, self.labels, self.target_transform = classes, labels, target_transform

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        label = self.classes.index(self.labels[i])
        return torch.zeros(2), self.target_transform(label) if self.target_transform else label


class Noisy(Dataset):
    """Flips a picture in half of all cases, as torchvision's RandomHorizontalFlip."""

    def __len__(self):
        return 8

    def __getitem__(self, i):
        picture = torch.arange(4.0).view(1, 2, 2)
        return picture.flip(-1) if torch.rand(()) < 0.5 else picture, i % 2


def test_a_dataset_per_client():
    data = from_datasets([Squares(2), Squares(4)], test=Squares(3))
    assert data.sizes.tolist() == [2, 4] and data.client(1)[0][:, 0].tolist() == [0, 1, 2, 3]
    assert data.test_targets.tolist() == [0, 1, 2] and data.targets.dtype == torch.int64
    own = from_datasets([Squares(2), Squares(4)], client_tests=[Squares(1), Squares(2)])
    assert own.test_clients.sizes.tolist() == [1, 2]


def test_datasets_that_name_their_classes_are_joined_by_name(caplog):
    a, b = Named(["cat", "dog"], ["dog", "cat"]), Named(["dog", "emu"], ["dog", "emu", "dog"])
    data = from_datasets([a, Subset(b, [1, 2])], test=Named(["emu", "cat"], ["emu", "cat"]))
    assert data.class_names == ("cat", "dog", "emu")
    assert data.targets.tolist() == [1, 0, 2, 1] and data.test_targets.tolist() == [2, 0]
    named = from_datasets({"x": a, "y": b}, class_names=["emu", "dog", "cat"])
    assert named.targets.tolist() == [1, 2, 1, 0, 1] and named.class_names[0] == "emu"
    own = from_datasets({"x": a, "y": b}, client_tests={"y": Named(["emu"], ["emu"])})
    assert own.test_targets.tolist() == [2] and not caplog.messages
    same = from_datasets([a, a], class_names=["Katze", "Hund"])
    assert same.targets.tolist() == [1, 0, 1, 0] and same.class_names == ("Katze", "Hund")
    reverse = Named(["dog", "cat"], ["dog"], target_transform=lambda label: 1 - label)
    assert from_datasets([Named(["cat", "dog"], ["dog"]), reverse]).targets.tolist() == [1, 1]
    from_datasets([a, Named(["Cat"], ["Cat"])])
    assert "'cat' and 'Cat' differ by capitals, blanks or" in caplog.text


def test_pictures_of_a_dataset_are_augmented_by_a_transform():
    pillow = pytest.importorskip("PIL.Image", reason="the extra images is not installed")
    one = [(pillow.new("L", (4, 3), 51), 0)]
    assert from_datasets([one]).inputs.unique().tolist() == pytest.approx([0.2])
    data = from_datasets([one], test=one, transform=Images(mean=(0.0,), std=(1.0,), flip=True))
    assert data.inputs.dtype == torch.uint8 and data.inputs.shape == (1, 1, 3, 4)
    assert data.test_inputs.unique().tolist() == [51] and data.transform.flip


CATS, DOGS = Named(["cat", "dog"], ["dog"]), Named(["dog", "cat"], ["dog"])
LOADER = DataLoader(TensorDataset(torch.rand(6, 2), torch.zeros(6).long()), batch_size=2)
NOISE = "is another one when it is read twice ... transform=Images("


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            lambda: from_datasets([Squares(2), Squares(4, 3)]),
            "1, sample 3: Squares raised ... disk",
        ),
        (lambda: from_datasets([[(torch.zeros(2), 0), (torch.zeros(3), 0)]]), "sample 1 ... (3,)"),
        (lambda: from_datasets([[(1, 2, 3)]]), "client 0, sample 0 ... a pair of inputs"),
        (lambda: from_datasets([iter([])]), "client 0 ... has no len()"),
        (lambda: from_datasets([Squares(1), []]), "client 1 has no training samples"),
        (lambda: from_datasets([Squares(2), Noisy()]), f"client 1, sample ... {NOISE}"),
        (lambda: from_datasets([Squares(2)], test=Noisy()), f"test, sample ... {NOISE}"),
        (lambda: from_datasets([[(torch.tensor([torch.nan]), 0)]]), "row 0 holds NaN"),
        (lambda: from_datasets([CATS, DOGS, Squares(2)]), "client 2 lists none"),
        (lambda: from_datasets([CATS, DOGS, Squares(2)]), "client 1 ... dog, cat ... cat, dog"),
        (lambda: from_datasets([CATS, DOGS], class_names=["x", "y"]), "cat, dog ... are x, y"),
        (lambda: from_datasets([LOADER]), "is a DataLoader; give its dataset"),
        (lambda: from_clients({"lyon": LOADER}), "is a DataLoader; give its dataset"),
        (lambda: from_arrays(LOADER, None, iid(2)), "is a DataLoader; give its dataset"),
    ],
)
def test_datasets_that_do_not_fit_are_refused_by_client_and_sample(make, says):
    torch.manual_seed(0)
    refused(make, says)


# ----------------------------------------------------------------------------------------- Parquet
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
    import pyarrow as arrow

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
    coded = {
        "site": arrow.array(SITES).dictionary_encode(),
        "x": [1.0, 2.0, 3.0],
        "label": arrow.array(["no", "yes", "no"]).dictionary_encode(),
    }
    data = parquet(coded)
    assert data.class_names == ("no", "yes") and data.client_names == ("a", "b")
    numbers = parquet({"site": [10.0, 9.0, 10.0], "x": [1, 2, 3], "label": [0.5, 1.5, 2.0]})
    assert numbers.client_names == ("9", "10") and numbers.classes is None
    texts = parquet({"site": SITES, "t": ["b a", "a", "a"], "label": [0, 1, 0]}, text="t", length=2)
    assert texts.inputs.tolist() == [[3, 2], [2, 0], [2, 0]]


@pytest.mark.parametrize(
    ("name", "values", "says"),
    [
        ("x", [1.0, None, 3.0], "column 'x', row 2: None is no finite number"),
        ("x", [datetime.date(2020, 1, 1)] * 3, "column 'x', row 1: datetime.date(2020, 1, 1)"),
        ("x", [{"u": 1}] * 3, "column 'x', row 1: {'u': 1} is no finite number"),
        ("site", ["a", None, "b"], "column 'site', row 2 is empty"),
        ("site", ["a", "b", ""], "column 'site', row 3 is empty"),
        ("label", [None, 0, 1], "column 'label', row 1 is empty"),
        ("label", ["no", "yes", None], "column 'label', row 3 is empty"),
        ("x twice", [1.0, 2.0, 3.0], "names a column twice: site, x, label, x"),
    ],
)
def test_tables_with_holes_are_refused_by_column_and_row(parquet, name, values, says):
    columns = {"site": SITES, "x": [1.0, 2.0, 3.0], "label": [0, 1, 1]}
    if name == "x twice":
        columns = [*columns.items(), ("x", values)]
    else:
        columns[name] = values
    refused(lambda: parquet(columns), says)


def test_a_damaged_or_empty_parquet_file_is_named(parquet, tmp_path):
    refused(lambda: parquet({"site": [], "x": [], "label": []}), "has no rows")
    parquet({"site": SITES, "x": [1.0, 2.0, 3.0], "label": [0, 1, 1]})
    whole = (tmp_path / "t.parquet").read_bytes()
    for content in (b"", whole[:200], whole[:20] + b"\xff" * 40 + whole[60:]):
        (tmp_path / "u.parquet").write_bytes(content)
        refused(lambda: table(path=tmp_path / "u.parquet", client="site"), "u.parquet is no whole")


@pytest.fixture
def hub(monkeypatch):
    sets = {}

    def load_dataset(path, config=None):
        if path not in sets:
            raise FileNotFoundError(f"Couldn't reach '{path}'\non the Hub")
        return sets[path]

    library = SimpleNamespace(load_dataset=load_dataset, load_from_disk=load_dataset)
    monkeypatch.setitem(sys.modules, "datasets", library)
    return sets


def test_pictures_texts_and_numbers_of_the_hub(hub):
    pillow = pytest.importorskip("PIL.Image", reason="the extra images is not installed")
    shades = [pillow.new("L", (4, 4), 10 * i) for i in range(4)]
    hub["me/shades"] = {
        "train": rows_of(image=shades, label=[0, 1, 0, 1], who=["b", "a", "b", "b"]),
        "test": rows_of(image=shades[:1], label=[1], who=["b"]),
    }
    data = hugging_face(path="me/shades", client="who", flip=True)
    assert data.inputs.shape == (4, 1, 4, 4) and data.sizes.tolist() == [1, 3]
    assert data.ready(data.inputs)[1, 0, 0, 0].item() == pytest.approx((10 / 255 - 0.5) / 0.5)
    hub["news"] = {"train": rows_of(text=["a b", "b"], label=[0, 1])}
    texts = hugging_face(iid(2), path="news", inputs="text", test_split=None, length=2)
    assert texts.inputs.tolist() == [[3, 2], [2, 0]] and texts.test_inputs is None
    hub["rows"] = {"train": rows_of(x=[[1, 2], [3, 4]], label=[0.5, 1.5])}
    rows = hugging_face(iid(1), path="rows", inputs="x", test_split=None)
    assert rows.inputs.tolist() == [[1, 2], [3, 4]] and rows.classes is None


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "column 'x', row 2 has shape (2,)"),
        ({"inputs": "y"}, "no column 'y'"),
        ({"inputs": "bad"}, "row 2 holds NaN"),
        ({"inputs": "x", "test_split": "dev"}, "no split 'dev'"),
        ({"path": "nowhere"}, "'nowhere' cannot be loaded ... reach"),
        ({"path": ""}, "needs path="),
        ({"library": None}, "[huggingface]'"),
    ],
)
def test_what_the_hub_does_not_have_is_said(hub, monkeypatch, options, says):
    columns = {"x": [[1.0], [2.0, 3.0]], "label": [0, 1], "none": [], "bad": [[1.0], [np.nan]]}
    hub["rows"] = {"train": rows_of(**columns)}
    given = {"path": "rows", "inputs": "x", "test_split": None} | options
    if "library" in given:
        monkeypatch.setitem(sys.modules, "datasets", given.pop("library"))
    refused(lambda: hugging_face(iid(1), **given), says)


# ------------------------------------------------------------------- and by the library itself
@pytest.fixture
def datasets(tmp_path, monkeypatch):
    """The library, with a function `saved` that saves splits, and gives their folder."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    library = pytest.importorskip("datasets", reason="the extra huggingface is not installed")

    def save(**splits):
        path = tmp_path / f"set{len(list(tmp_path.iterdir()))}"
        library.DatasetDict(splits).save_to_disk(str(path))
        return str(path)

    monkeypatch.setattr(library, "saved", save, raising=False)
    return library


def test_saved_data_sets_of_the_library_are_read(datasets):
    pictures = [
        np.random.default_rng(i).integers(0, 256, (4, 5, 3), dtype=np.uint8) for i in range(6)
    ]
    kinds = {
        "image": datasets.Image(),
        "label": datasets.ClassLabel(names=["cat", "dog"]),
        "who": datasets.Value("string"),
    }
    columns = {"image": pictures, "label": [0, 1] * 3, "who": list("bababc")}
    train = datasets.Dataset.from_dict(columns, features=datasets.Features(kinds))
    path = datasets.saved(train=train, test=train.select([5]))
    data = hugging_face(path=path, client="who", flip=True)
    assert data.inputs.dtype == torch.uint8 and data.sizes.tolist() == [2, 3, 1]
    expected = torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2)
    assert torch.equal(data.client(0)[0], expected[[1, 3]]), "PNG loses nothing"
    assert data.test_clients.sizes.tolist() == [0, 0, 1]
    rows = {"x": [[1.0, 2.0], [3.0, 4.0]], "text": ["b a", "a"], "label": [0, 1]}
    for kind in (None, "torch", "numpy"):  # a data set may be saved to give tensors
        path = datasets.saved(train=datasets.Dataset.from_dict(rows).with_format(kind))
        given = {"path": path, "test_split": None}
        assert hugging_face(iid(1), inputs="x", **given).inputs.tolist() == rows["x"]
        texts = hugging_face(iid(1), inputs="text", length=2, **given)
        assert texts.inputs.tolist() == [[3, 2], [2, 0]]


def test_saved_data_sets_that_do_not_fit_are_refused_by_row(datasets, tmp_path):
    pillow = pytest.importorskip("PIL.Image", reason="the extra images is not installed")
    pillow.new("L", (4, 4), 1).save(out := io.BytesIO(), "png")
    whole, damaged = ({"bytes": raw, "path": None} for raw in (out.getvalue(), b"no picture"))
    for pictures, says in (
        ([whole, damaged], "column 'image', row 2 is no whole picture"),
        ([damaged, whole], "column 'image', row 1 is no whole picture"),
        ([whole, None], "column 'image', row 2 is a NoneType"),
    ):
        rows = datasets.Dataset.from_dict({"image": pictures, "label": [0, 1]})
        path = datasets.saved(train=rows.cast_column("image", datasets.Image()))
        refused(lambda path=path: hugging_face(iid(1), path=path, test_split=None), says)
    rows = datasets.Dataset.from_dict({"x": [[1.0], [2.0]], "label": [0, None]})
    load = lambda path, **options: hugging_face(iid(1), path=path, inputs="x", **options)
    holes = datasets.saved(train=rows)
    refused(lambda: load(holes, test_split=None), "column 'label', row 2 is empty")
    refused(lambda: load(holes), "has no split 'test'")
    rows.save_to_disk(str(tmp_path / "one"))
    refused(lambda: load(str(tmp_path / "one")), "has no splits")


def test_splits_of_a_saved_data_set_are_joined_by_the_names_of_classes(datasets):
    def split(names, labels):
        kinds = {"x": datasets.Value("float32"), "label": datasets.ClassLabel(names=names)}
        columns = {"x": [0.0] * len(labels), "label": labels}
        return datasets.Dataset.from_dict(columns, features=datasets.Features(kinds))

    train, test = split(["no", "yes"], ["yes", "no"]), split(["yes", "no"], ["yes"])
    data = hugging_face(iid(1), path=datasets.saved(train=train, test=test), inputs="x")
    assert data.class_names == ("no", "yes")
    assert data.targets.tolist() == [1, 0] and data.test_targets.tolist() == [1]


def test_a_transform_of_a_partition_is_not_dropped(datasets):
    rows = datasets.Dataset.from_dict({"x": [[1.0, 2.0]], "label": [0]})
    halved = lambda batch: batch | {"x": [[v / 2 for v in row] for row in batch["x"]]}
    for part in (rows.with_transform(halved), rows.with_format("torch", dtype=torch.int8)):
        load = lambda part=part: from_partitions([part], inputs="x")
        refused(load, "client 0 has a format with ... apply it by .map")
    kept = from_partitions([rows.map(halved, batched=True).with_format("torch")], inputs="x")
    assert kept.inputs.tolist() == [[0.5, 1.0]]


def test_flowers_own_partitions_are_clients(datasets, monkeypatch):
    flower = pytest.importorskip("flwr_datasets", reason="flwr-datasets is not installed")
    from flwr_datasets import partitioner

    columns = {"x": [[float(i), 0.0] for i in range(9)], "label": [0, 1, 1] * 3}
    rows = datasets.Dataset.from_dict(columns | {"site": ["b", "a", "a"] * 3})
    whole = datasets.DatasetDict(train=rows, test=rows.select([0, 1]))
    for maker, names in (
        (partitioner.IidPartitioner(3), ()),
        (partitioner.NaturalIdPartitioner("site"), ("a", "b")),
    ):
        parts = flower.FederatedDataset(dataset="own", partitioners={"train": maker})
        monkeypatch.setattr(datasets, "load_dataset", lambda **_: whole)
        data = from_partitions(parts, inputs="x")
        assert data.client_names == names and sum(data.sizes.tolist()) == 9
        assert len(data.test_inputs) == 2


# ------------------------------------------------------------------- partitions of other libraries
ONE = rows_of(["cat", "dog"], x=[[1.0, 2.0]], label=[0])
TWO = rows_of(["cat", "dog"], x=[[3.0, 4.0], [5.0, 6.0]], label=[1, 0])


class Flower:
    """What from_partitions needs of Flower's FederatedDataset."""

    def __init__(self, **more):
        self.partitioners = {"train": SimpleNamespace(num_partitions=2, **more)}

    def load_partition(self, i):
        return (ONE, TWO)[i]

    def load_split(self, name):
        assert name == "test"
        return TWO


@pytest.mark.parametrize(
    ("parts", "names"),
    [
        ([ONE, TWO], ()),
        ({"ana": ONE, "bo": TWO}, ("ana", "bo")),
        (Flower(), ()),
        (Flower(partition_id_to_natural_id={0: "ana", 1: "bo"}), ("ana", "bo")),
    ],
)
def test_partitions_of_other_libraries_are_clients(parts, names):
    data = from_partitions(parts, test=TWO, inputs="x")
    assert data.sizes.tolist() == [1, 2] and data.client_names == names
    assert data.client(1)[0].tolist() == [[3, 4], [5, 6]] and data.client(1)[1].tolist() == [1, 0]
    assert data.class_names == ("cat", "dog") and len(data.test_inputs) == 2


def test_a_test_set_may_lie_among_the_partitions():
    assert len(from_partitions(Flower(), inputs="x").test_inputs) == 2
    with_test = from_partitions({"ana": ONE, "test": TWO}, inputs="x")
    assert with_test.client_names == ("ana",) and len(with_test.test_inputs) == 2
    assert from_partitions([ONE], inputs="x").test_inputs is None


def named(classes, *labels):
    """Rows whose labels are texts, or the numbers of these classes."""
    values = [name if classes is None else classes.index(name) for name in labels]
    return rows_of(classes, x=[[float(len(name))] for name in labels], label=values)


def test_classes_of_partitions_are_joined_by_name(caplog):
    a = named(["healthy", "ill"], "healthy", "healthy", "ill")
    b = named(["ill", "unknown", "healthy"], "healthy", "unknown", "ill")
    test = named(["unknown", "ill"], "ill", "unknown")
    data = from_partitions({"a": a, "b": b}, test=test, inputs="x")
    assert data.class_names == ("healthy", "ill", "unknown")
    assert data.targets.tolist() == [0, 0, 1, 0, 2, 1] and data.test_targets.tolist() == [1, 2]
    texts = from_partitions([a], test=named(None, "ill", "healthy"), inputs="x")
    assert texts.test_targets.tolist() == [1, 0]
    train = [named(None, "no", "yes"), named(None, "maybe")]
    data = from_partitions(train, test=named(None, "yes", "no"), inputs="x")
    assert data.class_names == ("maybe", "no", "yes") and data.targets.tolist() == [1, 2, 0]
    assert data.test_targets.tolist() == [2, 1] and not caplog.messages
    twice = from_partitions([a, named(["Ill", "healthy"], "Ill")], inputs="x")
    assert twice.targets.tolist() == [0, 0, 1, 2]
    assert "column 'label': 'ill' and 'Ill' differ by capitals, blanks or" in caplog.text


ILL, PLAIN = named(["healthy", "ill"], "healthy", "ill"), rows_of(x=[[1.0]], label=[0])
OUTSIDE = rows_of(["healthy", "ill"], x=[[1.0]], label=[-1])  # of a test set without labels


@pytest.mark.parametrize(
    ("parts", "test", "says"),
    [
        ([ILL, PLAIN], None, "client 1, column 'label', row 1: class 0 is none of healthy, ill"),
        ([PLAIN, ILL], None, "client 0 ... class 0 is none of"),
        ([PLAIN], named(None, "ill"), "'label' holds torch.int64 in the clients and the texts ill"),
        ([ILL], OUTSIDE, "class -1 is none of healthy"),
        ([ILL], named(None, "never"), "test, column 'label'"),
        ([ONE, rows_of(x=[[np.nan, 0]], label=[0])], None, "client 1, column 'x', row 1 holds NaN"),
        ({"a": ONE, "b": 3}, None, "client b is a int"),
        ([rows_of(y=[[1.0, 2.0]], label=[0])], None, "no column 'x'"),
        ([ONE, rows_of(x=[[1.0, 2.0]])], None, "client 1 has no column"),
        ([rows_of(x=[], label=[])], None, "client 0 is empty"),
        ([], None, "there are no partitions"),
    ],
)
def test_partitions_that_do_not_fit_are_refused_by_client(parts, test, says):
    refused(lambda: from_partitions(parts, test=test, inputs="x"), says)
