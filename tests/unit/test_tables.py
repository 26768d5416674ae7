"""`table`: how files are read, who is a client, what is tested, how cells become inputs."""

import bz2
import gzip
import io
import lzma
import os
import sys
import zipfile

import numpy as np
import pytest
import torch
from published import write

from fedloom.config import resolve
from fedloom.data import heart, iid, natural, table
from fedloom.data.published.heart import COLUMNS, INPUTS, heart_files
from support.refusals import refused

pandas = pytest.importorskip("pandas", reason="the extra tables is not installed")
pytest.importorskip("sklearn", reason="the extra tables is not installed")

ONE = iid(clients=1)
ROWS = "site,age,dose,label\nlyon,40,1.5,no\nbonn,50,2,yes\nlyon,60,0,yes\n"


@pytest.fixture
def load(tmp_path, monkeypatch):
    """A function that writes a table, t.csv if nothing else is said, and loads it."""
    monkeypatch.chdir(tmp_path)

    def make(rows, partition=None, name="t.csv", **options):
        write(tmp_path / name, rows)
        alone = partition is None and "client" not in options  # the file is a client
        return table(partition or natural(), path=[name] if alone else name, **options)

    return make


# ---------------------------------------------------------------------------- clients of one column
def test_a_table_has_a_client_per_value_of_a_column(load, tmp_path):
    test = write(tmp_path / "test.csv", "label,site,dose,age\nno,bonn,1,30\nyes,oslo,1,3")
    data = load(ROWS, client="site", test=test)
    assert data.class_names == ("no", "yes")
    assert data.client_names == ("bonn", "lyon")
    assert load(ROWS, natural(min_size=2), client="site").client_names == ("lyon",)
    assert data.client(0)[0].tolist() == [[50, 2]] and data.client(1)[1].tolist() == [0, 1]
    assert data.test_inputs.tolist() == [[30, 1]], "oslo trains on nothing"
    assert data.test_clients.sizes.tolist() == [1, 0]
    dealt = load(ROWS, iid(3), inputs=["dose"])
    assert dealt.client_names == () and dealt.sizes.tolist() == [1, 1, 1]
    assert dealt.inputs.flatten().tolist() == [1.5, 2, 0]


def test_a_column_of_texts_becomes_words(load):
    rows = 'who,text,label\na,"Good, good",1\nb,bad,0\n'
    data = load(rows, client="who", text="text", length=4, vocabulary=10)
    assert data.inputs.tolist() == [[2, 3, 2, 0], [4, 0, 0, 0]]


@pytest.mark.parametrize(
    ("cells", "names"),
    [
        (["10", "9"], ("9", "10")),
        (["10", "9", "x"], ("10", "9", "x")),
        (["1.5", "10.5", "9.5"], ("1.5", "10.5", "9.5")),
        (["-1", "1", "-10"], ("-10", "-1", "1")),
        (["NA", "nan", " a"], (" a", "NA", "nan")),
        (["²", "9" * 5000], ("9" * 5000, "²")),
        # names of one number have an order, not that of a set, which differs between processes
        (
            [f"{zeros}{n}" for n in range(19, 0, -1) for zeros in ("", "0", "00")],
            tuple(f"{zeros}{n}" for n in range(1, 20) for zeros in ("00", "0", "")),
        ),
    ],
)
def test_clients_are_in_the_order_of_their_names(load, cells, names):
    rows = "".join(f"{cell},{i},0\n" for i, cell in enumerate(cells))
    data = load(f"who,x,label\n{rows}", client="who")
    assert data.client_names == names
    assert [cells[int(data.client(i)[0].item())] for i in range(len(names))] == list(names)


def test_rows_of_clients_that_do_not_train_are_named_or_count(load, tmp_path, caplog):
    rows = "id,x,day,label\n1,1,2024-01-01,0\n2,2,2024-02-01,1\n1,3,2024-02-02,1\n"
    data = load(rows, client="id", date="day", test_from="2024-02-01")
    assert data.client_names == ("1",) and data.test_inputs.tolist() == [[3]]
    assert "1 of 2 test rows are left out: they are of clients" in caplog.text
    assert "to train on, 2" in caplog.text
    train = "who,x,label\nA,1,0\nA,2,1\nB,3,0\nB,4,1\n"
    test = write(tmp_path / "test.csv", "who,x,label\nA,5,0\nC,6,1\nC,7,1\n")
    assert load(train, test=test, client="who").test_inputs.tolist() == [[5]]
    assert "test.csv: 2 of 3 test rows are left out" in caplog.text and "on, C" in caplog.text
    caplog.clear()
    divided = load(train, iid(clients=2), test=test, client="who")
    assert len(divided.test_inputs) == 3 and not caplog.text, "nobody owns a row"


def test_names_that_differ_by_capitals_or_blanks_alone_are_said(load, caplog):
    rows = "site,sex,label\nbonn,F,yes\nlyon,f,Yes\nlyon,m,no\nBonn ,m, no\n"
    data = load(rows, client="site", columns={"sex": "one_hot"}, test_share=0.0)
    assert data.class_names == (" no", "Yes", "no", "yes")
    notes = [text.partition(" differ by capitals") for text in caplog.messages]
    assert [said.removeprefix("t.csv, column ") for said, there, _ in notes if there] == [
        "'sex': 'F' and 'f'",
        "'label': ' no' and 'no'; 'Yes' and 'yes'",
        "'site': 'Bonn ' and 'bonn'",
    ]
    caplog.clear()
    given = {"columns": {"sex": ["F", "f", "m"]}, "class_names": ["no", "yes", "Yes", " no"]}
    load(rows, ONE, inputs=["sex"], **given)
    assert "'label'" not in caplog.text
    rows = "slope,label\n1.0,0\n?,1\n1,0\n2,1\n"  # as where a "?" stands for a missing cell
    assert load(rows, ONE, columns={"slope": "one_hot"}).raw.columns[0].values == (
        *("1", "1.0", "2", "?"),
    )
    assert "t.csv, column 'slope': '1.0' and '1' differ by capitals, blanks or the" in caplog.text


# -------------------------------------------------------------------------------- one file a client
SITES = {
    "lyon": "age,sex,day,outcome\n40,f,2024-01-02,home\n50,m,2024-01-03,ward\n"
    "60,f,2024-03-01,home\n",
    "bonn": "age,sex,day,outcome\n,m,2024-01-09,ward\n30,,2024-02-01 10:30,home\n",
}
HOT = {"sex": "one_hot"}


@pytest.fixture
def hospitals(tmp_path):
    """A function that loads the two hospitals."""
    for name, rows in SITES.items():
        write(tmp_path / "hospitals" / f"{name}.csv", rows)

    def make(partition=None, **options):
        given = {"path": f"{tmp_path}/hospitals/*.csv", "target": "outcome"}
        given["inputs"] = [] if "date" in options or "target" in options else ["age", "sex"]
        return table(partition or natural(), **given | options)

    return make


def test_every_file_is_a_client_of_its_name(hospitals, tmp_path):
    data = hospitals(inputs=["age"], missing="mean")
    assert data.name == "hospitals" and data.client_names == ("bonn", "lyon")
    assert data.sizes.tolist() == [2, 3] and data.class_names == ("home", "ward")
    assert data.client(1)[0].flatten().tolist() == [40, 50, 60]
    assert data.client(0)[0].flatten().tolist() == [45, 30], "the mean of all training rows"
    one = [str(tmp_path / "hospitals" / "lyon.csv")]
    assert hospitals(path=one, inputs=["age"]).client_names == ("lyon",)
    dealt = hospitals(iid(5), inputs=["age"], missing=0)
    assert dealt.client_names == () and dealt.sizes.tolist() == [1] * 5
    for site in ("b", "a"):
        write(tmp_path / site / "visits.csv", "x,label\n1,0\n")
    assert table(f"{tmp_path}/*/visits.csv").client_names == ("a/visits", "b/visits")


def test_texts_and_missing_cells_become_numbers_by_the_training_rows(hospitals):
    data = hospitals(columns=HOT, standardise=True, missing="median")
    assert data.raw.heads == ("age", "sex=f", "sex=m")
    ages = np.array([45, 30, 40, 50, 60.0])
    assert np.allclose(data.inputs[:, 0], (ages - ages.mean()) / ages.std())
    sex = data.inputs[:, 1:].tolist()
    assert sex == [[0, 1], [1, 0], [1, 0], [0, 1], [1, 0]], "of two values the first by name"
    assert data.about["prepared"] == [
        "age: missing values as 45 (1 in training), less 45, divided by 10",
        "sex: one input for each of 2 values, missing values as 'f' (1 in training)",
    ]
    ordered = {"columns": {"sex": ["unknown", "m", "f"]}, "missing": {"sex": "unknown", "*": 0}}
    order = hospitals(inputs=["sex", "age"], **ordered)
    assert order.inputs.tolist() == [[1, 0], [0, 30], [2, 40], [1, 50], [2, 60]]
    assert order.about["prepared"][0].startswith("sex: 0 to 2 for unknown < m < f")


def test_rows_from_a_day_on_or_other_files_are_the_test_set(hospitals, tmp_path):
    rules = {"columns": {"*": "ordinal"}, "date": "day", "test_from": "2024-02-01"}
    data = hospitals(missing="median", **rules)
    assert data.sizes.tolist() == [1, 2] and data.test_clients.sizes.tolist() == [1, 1]
    assert data.inputs.tolist() == [[45, 1], [40, 0], [50, 1]], "no test row decides the median"
    assert data.test_inputs.tolist() == [[30, 1], [60, 0]]
    given = {"test": f"{tmp_path}/later/*.csv", "columns": HOT, "missing": "median"}
    write(tmp_path / "later" / "lyon.csv", SITES["lyon"])
    assert hospitals(**given).test_clients.sizes.tolist() == [0, 3]
    write(tmp_path / "later" / "lyon.csv", SITES["lyon"].replace("f,", "x,"))
    strange = hospitals(**given).test_inputs[0].tolist()
    assert strange == [40, 0, 0], "no training row has this value"


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
        ({"target": "age > 1", "class_names": ["a"]}, "class_names = ['a']: target = 'age > 1'"),
        ({"target": "age > 1", "class_names": ["a", "b", "c"]}, "has two classes; give two names"),
        ({"target": "age > 1", "class_names": ["a", "a"]}, "has two classes; give two names"),
        (
            {"columns": HOT, "missing": "mean", "class_names": ["home", "home"]},
            "class_names has 'home' twice",
        ),
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
    refused(lambda: hospitals(**options), says)


@pytest.mark.parametrize("per_client", [False, True])
def test_one_file_has_no_natural_clients_without_a_column(hospitals, tmp_path, per_client):
    options = {"path": f"{tmp_path}/hospitals/lyon.csv", "columns": HOT, "per_client": per_client}
    says = "give several files ... or client, the column"
    refused(lambda: hospitals(**options, standardise=True), says)


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ("age,sex,day\n1,f,2024-01-01\n", "oslo.csv has no column 'outcome'; known: age, day, sex"),
        ("age,sex,day,outcome,x\n1,f,2,home,1\n", "bonn.csv has no column 'x', which"),
        ("age,sex,day,outcome\n", "oslo.csv has no rows below its header"),
    ],
)
def test_a_file_that_does_not_fit_the_others_is_refused_by_name(hospitals, tmp_path, rows, says):
    write(tmp_path / "hospitals" / "oslo.csv", rows)
    refused(lambda: hospitals(inputs=[]), says)


def test_each_client_fills_and_scales_by_its_own(tmp_path):
    rows = {"a": "x,s,label\n1,m,0\n3,f,1\n,m,1\n", "b": "x,s,label\n10,f,0\n30,,1\n50,f,1\n"}
    for name, text in rows.items():
        write(tmp_path / f"{name}.csv", text)
    ways = {"missing": {"x": "mean", "s": "most_frequent"}, "columns": {"s": "one_hot"}}
    load = lambda partition=None, **more: table(
        partition or natural(), path=f"{tmp_path}/*.csv", per_client=True, **ways | more
    )
    data = load(standardise=True)
    spread = [float(np.std([1, 3, 2])), float(np.std([10, 30, 50]))]
    expected = [[-1 / spread[0], 0, 1], [1 / spread[0], 1, 0], [0, 0, 1]]
    expected += [[-20 / spread[1], 1, 0], [0, 1, 0], [20 / spread[1], 1, 0]]
    assert np.allclose(data.inputs, expected)
    about = data.raw.about()
    assert about["kind"] == "cells_per_client"
    assert about["sites"]["b"]["x"] == {"fill": 30, "mean": 30, "std": spread[1]}
    assert about["rules"][0]["fill"] is None and about["rules"][1]["values"] == ["f", "m"]
    refused(lambda: load(iid(2)), "take partition = natural, or per_client = false")
    write(tmp_path / "b.csv", "x,s,label\n,f,0\n,f,1\n")
    refused(load, "b.csv, column 'x' is empty in every row; leave it out of inputs, or say what")
    assert load(missing={"x": 7, "*": "median"}).inputs[:, 0].tolist() == [1, 3, 7, 7, 7]
    write(tmp_path / "b.csv", "x,s,label\n1,f,0\n")
    few = lambda: load(standardise=True, ddof=1)
    refused(few, "b.csv, column 'x': 1 training rows have no deviation with ddof = 1")


HEART = {
    "names": COLUMNS, "na_values": ["?"], "missing": "drop", "inputs": INPUTS,
    "columns": {"*": "dummy", "cp": "dummy", "restecg": "dummy"},
    "standardise": "with_categories", "ddof": 1, "test_share": 0.34, "test_seed": 43,
    "target": "num > 0", "class_names": ["healthy", "ill"],
}  # fmt: skip


@pytest.mark.parametrize("per_client", [True, False])
def test_the_hospitals_are_a_table_with_settings(per_client, caplog):
    """As in docs/tables.md: what `heart` does, anybody's table can do."""
    data = table(heart_files(), **HEART, per_client=per_client)
    same = heart(per_client=per_client)
    assert torch.equal(data.inputs, same.inputs) and torch.equal(data.targets, same.targets)
    assert torch.equal(data.test_inputs, same.test_inputs)
    assert data.test_clients.digest() == same.test_clients.digest()
    assert "all training rows of client 'switzerland' (ill) are of one class" in caplog.text


def test_a_share_of_each_client_is_held_out_as_scikit_learn_does(load, tmp_path):
    from sklearn.model_selection import train_test_split

    for seed, name in enumerate(("a", "b")):
        draw = np.random.default_rng(seed)
        rows = [f"{draw.normal():.3f},{int(draw.random() < 0.25)}" for _ in range(40 + 7 * seed)]
        write(tmp_path / f"{name}.csv", "\n".join(["x,label", *rows]) + "\n")
    held = {"test_share": 0.3, "test_seed": 5}
    data = table(f"{tmp_path}/*.csv", **held)
    for i, name in enumerate(("a", "b")):
        frame = pandas.read_csv(tmp_path / f"{name}.csv")
        train, test = train_test_split(
            np.arange(len(frame)), test_size=0.3, random_state=5, stratify=frame["label"]
        )
        x = torch.tensor(frame["x"].to_numpy(np.float32))
        assert torch.equal(data.client(i)[0].flatten(), x[np.sort(train)]), "in the file's order"
        own = data.test_inputs[data.test_clients.of(i)].flatten()
        assert torch.equal(own, x[np.sort(test)])
    alone = table([tmp_path / "b.csv"], **held)
    assert torch.equal(alone.client(0)[0], data.client(1)[0]), "at a site as in a simulation"
    rare = load("x,label\n" + "1,a\n" * 9 + "2,b\n", test_share=0.2)
    assert rare.class_names == ("a", "b") and len(rare.test_inputs) == 2
    assert len(load("x,label\n" + "1,0.5\n" * 10, test_share=0.2).test_targets) == 2


# ------------------------------------------------------------------------------ kinds of files
GERMAN = "größe;dosis;label\n1,5;-2;0\n3;4,25;1\n"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "cp1252", "utf-16"])
def test_files_of_four_encodings(load, tmp_path, encoding):
    raw, how = GERMAN.encode(encoding), {"sep": ";", "decimal": ",", "name": "kiel.csv"}
    data = load(raw, encoding=encoding, **how)
    assert data.inputs.tolist() == [[1.5, -2], [3, 4.25]] and data.raw.names[0] == "größe"
    write(tmp_path / "bonn.csv", GERMAN.replace(",", ".").replace(";", "\t"))
    kiel = {"encoding": {"kiel": encoding}, "sep": {"kiel": ";", "*": "\t"}}
    whole = table(f"{tmp_path}/*.csv", **kiel, decimal={"kiel": ","})
    assert torch.equal(whole.client(0)[0], whole.client(1)[0])
    if encoding in ("cp1252", "utf-16"):
        says = "line 1 is not UTF-8 text; give encoding = cp1252 (of Western Europe), utf-16"
        refused(lambda: load(raw, **how), "kiel.csv", says)


def packed(how: str) -> bytes:
    """A table of two columns as people compress it."""
    raw = b"label,x\n0,1\n1,2\n"
    if how == "zip":
        with zipfile.ZipFile(out := io.BytesIO(), "w") as archive:
            archive.writestr("t.csv", raw)
        return out.getvalue()
    return {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}[how](raw)


@pytest.mark.parametrize("ending", ["gz", "bz2", "xz"])
def test_a_compressed_table_is_read(load, tmp_path, ending):
    one = load(packed(ending), ONE, name=f"t.csv.{ending}", target="label")
    assert one.inputs.tolist() == [[1], [2]] and one.name == "t"
    broken = lambda: load(packed(ending)[:-4], ONE, name=f"u.csv.{ending}")
    refused(broken, f"u.csv.{ending}", "cannot be read whole")
    for name in ("lyon", "bonn"):
        write(tmp_path / f"sites/{name}.csv.{ending}", packed(ending))
    sites = table(f"{tmp_path}/sites/*", target="label", sep={"bonn": ",", "*": ","})
    assert sites.client_names == ("bonn", "lyon")


def workbook(path, **sheets):
    openpyxl = pytest.importorskip("openpyxl", reason="the extra tables is not installed")
    book = openpyxl.Workbook()
    book.remove(book.active)
    for name, rows in sheets.items():
        sheet = book.create_sheet(name)
        for row in rows:
            sheet.append(row)
    book.save(path)
    return path


PATIENTS = [["age", "ward", "dose", "sick"], [41, "a", 0.5, "no"], [63, "b", 1.25, "yes"]]
PATIENTS += [[70, "a", 2, "yes"], [22, "b", 0.25, "no"]]


@pytest.mark.parametrize("ending", ["xlsx", "csv"])
def test_a_workbook_is_read_as_its_sheet_saved_as_csv(load, tmp_path, ending):
    path = workbook(tmp_path / f"u.{ending}", patients=PATIENTS, empty=[])
    how = {"target": "sick", "columns": {"ward": "one_hot"}}
    one = table(ONE, path=path, **how)
    other = load("\n".join(",".join(map(str, row)) for row in PATIENTS), ONE, **how)
    assert torch.equal(one.inputs, other.inputs) and torch.equal(one.targets, other.targets)
    assert one.class_names == other.class_names == ("no", "yes")


def test_sheets_and_empty_cells_of_a_workbook(tmp_path):
    path = workbook(tmp_path / "u.xlsx", first=PATIENTS, second=PATIENTS[:3])
    how = {"path": path, "target": "sick", "inputs": ["age"], "partition": ONE}
    refused(lambda: table(**how), "2 sheets with cells, 'first', 'second'", "sheet =")
    assert len(table(sheet="second", **how).targets) == 2
    refused(lambda: table(sheet="secnd", **how), "no such sheet", "did you mean 'second'")
    workbook(path, one=[*PATIENTS, [None, "a", 1.0, "no"]])
    refused(lambda: table(**how), "column 'age', row 5", "is no finite number")
    assert float(table(**how, missing="median").inputs[-1]) == 52.0


def begun_workbook():
    """As Excel's begin; openpyxl's have these last."""
    with zipfile.ZipFile(out := io.BytesIO(), "w") as archive:
        for name in ("[Content_Types].xml", "_rels/.rels", "xl/workbook.xml"):
            archive.writestr(name, "<a/>")
    return out.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("u.xlsx", begun_workbook(), "u.xlsx is no whole Excel workbook"),
        ("u.csv", begun_workbook(), "u.csv is no whole Excel workbook"),
        ("t.csv.zip", packed("zip"), "t.csv.zip ... zip ... unpack it"),
        ("t.xls", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600), "of an old kind ... .xlsx"),
        ("t.csv", b"PAR1" + bytes(9), "t.csv is no whole Parquet file"),
        ("t.parquet", b"PAR1" + bytes(9), "t.parquet is no whole Parquet file"),
        ("w.csv", "né,x\n1,2\n".encode("latin1"), "not UTF-8"),
    ],
)
def test_files_of_another_kind_are_called_so(load, name, content, says):
    if "Parquet" in says:
        pytest.importorskip("pyarrow", reason="the extra tables is not installed")
    refused(lambda: load(content, ONE, name=name), says)
    if name == "t.csv.zip":  # an encoding in which any bytes are text
        refused(lambda: load(content, ONE, name=name, encoding="latin-1"), says)


def test_files_that_are_none_and_libraries_that_are_not_there_are_named(
    load, tmp_path, monkeypatch
):
    os.mkfifo(tmp_path / "pipe.csv")
    (tmp_path / "ring.csv").symlink_to("ring.csv")
    for name, says in (
        ("pipe", "is no ordinary file"),
        ("ring", "is no ordinary file"),
        ("none", "there is no file"),
    ):
        refused(lambda name=name: table(path=tmp_path / f"{name}.csv", client="site"), says)
    gone = lambda: load(ROWS, client="site", test=tmp_path / "v.csv")
    refused(gone, "there is no file")
    refused(lambda: table(path="", client="site"), "needs path=")
    refused(lambda: table(path=write(tmp_path / "t.csv", ROWS)), "give client=")
    for ending, library in (("parquet", "pyarrow"), ("csv", "pandas")):
        monkeypatch.setitem(sys.modules, library, None)
        says = f"to read t.{ending} needs {library}, which cannot be imported; run: pip install"
        refused(lambda name=f"t.{ending}": load("x,label\n", name=name, client="site"), says)


@pytest.mark.parametrize("by_file", [True, False])
def test_a_tab_is_written_as_the_error_proposes_it(tmp_path, by_file):
    (tmp_path / "ulm.csv").write_text("a\tlabel\n1\t0\n2\t1\n")
    path = f"data.path={tmp_path}/ulm.csv"
    words = ["data=table", path, "data.partition=iid", "data.partition.clients=1"]
    refused(resolve("digits", words).data, 'sep = "\\t"', 'sep.ulm = "\\t"')
    for tab in (r"\t", r'"\t"'):
        word = f"data.sep{'.ulm' * by_file}={tab}"
        assert resolve("digits", [*words, word]).data().inputs.tolist() == [[1], [2]]
