"""What `table` does with real files: how they are read, missing markers, test rows, scales by
client, conditions, transformers."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zipfile

import numpy as np
import published
import pytest
import torch
from published import refused

from fedloom.config import resolve
from fedloom.data import heart, iid, table
from fedloom.data.published.heart import COLUMNS, INPUTS, heart_files
from fedloom.errors import DataError

pandas = pytest.importorskip("pandas", reason="the extra tables is not installed")
pytest.importorskip("sklearn", reason="the extra tables is not installed")

HEART = {
    "names": COLUMNS,
    "na_values": ["?"],
    "missing": "drop",
    "inputs": INPUTS,
    "columns": {"*": "dummy", "cp": "dummy", "restecg": "dummy"},
    "standardise": "with_categories",
    "ddof": 1,
    "per_client": True,
    "target": "num > 0",
    "class_names": ["healthy", "ill"],
    "test_share": 0.34,
    "test_seed": 43,
}


@pytest.mark.parametrize("per_client", [True, False])
def test_the_hospitals_are_a_table_with_settings(per_client, caplog):
    """As in docs/tables.md: what `heart` does, anybody's table can do."""
    data = table(heart_files(), **HEART | {"per_client": per_client})
    same = heart(per_client=per_client)
    assert torch.equal(data.inputs, same.inputs) and torch.equal(data.targets, same.targets)
    assert torch.equal(data.test_inputs, same.test_inputs)
    assert data.test_clients.digest() == same.test_clients.digest()
    assert "all training rows of client 'switzerland' (ill) are of one class" in caplog.text


# ---- how files are read

GERMAN = "größe;dosis;label\n1,5;-2;0\n3;4,25;1\n"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "cp1252", "utf-16"])
def test_files_of_four_encodings(tmp_path, encoding):
    how = {"sep": ";", "decimal": ","}
    path = published.write(tmp_path / "kiel.csv", GERMAN.encode(encoding))
    data = table([path], encoding=encoding, **how)
    assert data.inputs.tolist() == [[1.5, -2], [3, 4.25]] and data.raw.names[0] == "größe"
    published.write(tmp_path / "bonn.csv", GERMAN.replace(",", ".").replace(";", "\t"))
    kiel = {"encoding": {"kiel": encoding}, "sep": {"kiel": ";", "*": "\t"}}
    whole = table(f"{tmp_path}/*.csv", **kiel, decimal={"kiel": ","})
    assert torch.equal(whole.client(0)[0], whole.client(1)[0])
    if encoding in ("cp1252", "utf-16"):
        says = "line 1 is not UTF-8 text; give encoding = cp1252 (of Western Europe), utf-16"
        refused(lambda: table([path], **how), path, says)
    says = r"encoding.keil = 'cp1252': no file is called 'keil'; there are kiel, without folder"
    refused(lambda: table([path], encoding={"keil": "cp1252"}, **how), says)
    refused(lambda: table([path], sep={"keil": ";"}), "sep.keil = ';': no file is called 'keil'")
    refused(lambda: table([path], decimal={"kiel": ";"}), 'decimal must be "." or ",", got \';\'')
    refused(lambda: table([path], encoding="ansi"), "encoding = 'ansi' is none that Python knows")


def test_markers_of_missing_cells_are_theirs_alone(tmp_path):
    rows = "a,b,label\n?,-999,0\n2,-999.0,1\n4,7,1\n"
    path = published.write(tmp_path / "t.csv", rows)
    data = table(iid(1), path=path, na_values=["?", -999], missing={"a": "mean", "b": -1})
    assert data.inputs.tolist() == [[3, -1], [2, -1], [4, 7]]


def test_a_parquet_file_has_markers_too(tmp_path):
    pytest.importorskip("pyarrow", reason="the extra tables is not installed")
    frame = pandas.DataFrame({"a": [1, None, 3], "b": [-999, 5, 6], "label": [0, 1, 1]})
    frame.to_parquet(tmp_path / "t.parquet")
    data = table(iid(1), path=tmp_path / "t.parquet", na_values=[-999], missing="drop")
    assert data.inputs.tolist() == [[3, 6]] and data.about["dropped"] == 2


def test_rows_with_an_empty_cell_that_counts_are_dropped(tmp_path):
    rows = "a,b,day,label\n1,,x,0\n,2,x,1\n3,4,,1\n5,6,x,\n7,8,x,0\n"
    path = published.write(tmp_path / "t.csv", rows)
    data = table(iid(1), path=path, inputs=["a"], missing="drop")
    assert data.inputs.flatten().tolist() == [1, 3, 7], "b is no input, and 5 has no label"
    empty = published.write(tmp_path / "u.csv", "a,b,day,label\n1,,x,0\n")
    says = "u.csv: every row has an empty cell, most often in column 'b', so missing = drop"
    refused(lambda: table([path, empty], inputs=["a", "b"], missing="drop"), says)
    says = "missing = drop is for all columns, not for one"
    refused(lambda: table([path], inputs=["a"], missing={"a": "drop"}), says)


@pytest.mark.parametrize(
    ("rows", "options", "says"),
    [
        ("1,0\n2,1\n", {}, "has no column 'label'; its first row, 1, 0, holds no names: give nam"),
        ("1,0\n2,1\n", {"names": ["x"]}, "has 2 columns, and names has 1; name each"),
        ("x,label\n1.5,0\n5;1,1\n", {}, "column 'x', row 2: '5;1'"),
        ("x;label\n1,5;0\n2;1\n", {}, 'by semicolons; give sep = ";" (and decimal = "," if'),
        ("x;label\n1,5;0\n2;1\n", {"sep": ";"}, "row 1: '1,5' has a decimal comma; give decimal"),
        ("x,label\n2024-01-31,0\n", {}, "row 1: '2024-01-31' is a date; leave the column out"),
        ("x,label\n31.01.2024,0\n", {}, "row 1: '31.01.2024' is a date; leave the column out"),
        ("x,label\n1,0\n2,1\n", {"test_share": 1.0}, "test_share must be in [0, 1), got 1"),
        ("x,label\n1,0\n", {"test_share": 0.5}, "has 1 rows, too few for test_share = 0.5"),
        ("x,label\n1,0\n", {"per_client": True}, "per_client = true says where missing and stand"),
        ("x,label\n1,0\n", {"target": "x > y"}, "has no column 'y'"),
        ("x,label\n1,0\n,1\n", {"target": "x > 1"}, "column 'x', row 2 is empty"),
        ("x,label\n1,0\nb,1\n3,1\n", {"target": "x > 1"}, "row 2: 'b' is no finite number"),
        ("x,label\na,0\nb,1\n", {"target": "x > 1"}, "x is of texts and 1 of numbers, which never"),
        ("x,label\n1,0\n", {"target": "__import__('os') == 1"}, "(it holds a Call)"),
        ("x,label\n1,0\n", {"target": "x.label > 1"}, "(it holds a Attribute)"),
        ("x,label\n1,0\n", {"target": "x > 'a' * 9"}, "(it holds a BinOp)"),
        ("x,label\n1,0\n", {"target": "x >"}, "is no condition on columns (invalid syntax"),
        ("p,x,label\n7,1,0\n7,2,1\n", {"patient": "p"}, "column 'p', row 2: '7' is in row 1 too"),
        ("p,x,label\n7,1,0\n,2,1\n", {"patient": "p"}, "column 'p', row 2 is empty"),
    ],
)
def test_files_and_options_that_do_not_fit_say_what_to_do(
    tmp_path, monkeypatch, rows, options, says
):
    monkeypatch.chdir(tmp_path)
    published.write(tmp_path / "t.csv", rows)
    refused(lambda: table(["t.csv"], **options), says)


def test_a_patient_may_be_at_two_sites(tmp_path):
    """Whether it is one person, nobody can see without a common secret."""
    for name in ("a", "b"):
        published.write(tmp_path / f"{name}.csv", "p,x,label\n7,1,0\n8,2,1\n")
    data = table(f"{tmp_path}/*.csv", patient="p")
    assert data.raw.names == ("x",), "a name is no input"


# ---- test rows, targets, scales


def visits(path, rows=40, seed=0):
    draw = np.random.default_rng(seed)
    lines = [f"{draw.normal(seed, 1 + seed):.3f},{int(draw.random() < 0.25)}" for _ in range(rows)]
    return published.write(path, "\n".join(["x,label", *lines]) + "\n")


def test_a_share_of_each_client_is_held_out_as_scikit_learn_does(tmp_path):
    from sklearn.model_selection import train_test_split

    for seed, name in enumerate(("a", "b")):
        visits(tmp_path / f"{name}.csv", 40 + 7 * seed, seed)
    data = table(f"{tmp_path}/*.csv", test_share=0.3, test_seed=5)
    for i, name in enumerate(("a", "b")):
        frame = pandas.read_csv(tmp_path / f"{name}.csv")
        train, test = train_test_split(
            np.arange(len(frame)), test_size=0.3, random_state=5, stratify=frame["label"]
        )
        x = torch.tensor(frame["x"].to_numpy(np.float32))
        assert torch.equal(data.client(i)[0].flatten(), x[np.sort(train)]), "in the file's order"
        own = data.test_inputs[data.test_clients.of(i)].flatten()
        assert torch.equal(own, x[np.sort(test)])
    alone = table([tmp_path / "b.csv"], test_share=0.3, test_seed=5)
    assert torch.equal(alone.client(0)[0], data.client(1)[0]), "at a site as in a simulation"
    rare = published.write(tmp_path / "c.csv", "x,label\n" + "1,a\n" * 9 + "2,b\n")
    data = table([rare], test_share=0.2)
    assert data.class_names == ("a", "b") and len(data.test_inputs) == 2
    numbers = published.write(tmp_path / "d.csv", "x,label\n" + "1,0.5\n" * 10)
    assert len(table([numbers], test_share=0.2).test_targets) == 2


@pytest.mark.parametrize("by_file", [True, False])
def test_a_tab_is_written_as_the_error_proposes_it(tmp_path, by_file):
    (tmp_path / "ulm.csv").write_text("a\tlabel\n1\t0\n2\t1\n")
    path = f"data.path={tmp_path}/ulm.csv"
    words = ["data=table", path, "data.partition=iid", "data.partition.clients=1"]
    refused(resolve("digits", words).data, 'sep = "\\t"', 'sep.ulm = "\\t"')
    for tab in (r"\t", r'"\t"'):
        word = f"data.sep{'.ulm' * by_file}={tab}"
        assert resolve("digits", [*words, word]).data().inputs.tolist() == [[1], [2]]


@pytest.mark.parametrize(
    ("cells", "target", "says"),
    [
        ("01", "y in ['yes', '1']", "y is of numbers and ['yes', '1'] of texts, which never match"),
        ("01", "not ('1' == y)", "'1' is of texts and y of numbers"),
        ("01", "`y` != 'no' and y < 3", "y is of numbers and 'no' of texts"),
        ("ab", "y in [1, 2]", "y is of texts and [1, 2] of numbers"),
        ("ab", "y == 2 * z", "y is of texts and 2 * z of numbers"),
        ("01", "y in ['yes', 1]", None),
        ("ab", "y in ['a', 1]", None),
        ("ab", "(y == 'a') == (z < 9)", None),
    ],
)
def test_numbers_are_not_compared_with_texts(tmp_path, cells, target, says):
    """No row would fulfil it, or every row: all labels of that file would be wrong."""
    (tmp_path / "t.csv").write_text(f"x,z,y\n1,1,{cells[0]}\n2,2,{cells[1]}\n")
    given = {"target": target, "inputs": ["x"]}
    if says is None:
        assert table(iid(clients=1), path=tmp_path / "t.csv", **given).targets.sum() == 1
        return
    with pytest.raises(DataError) as found:
        table(iid(clients=1), path=tmp_path / "t.csv", **given)
    assert says in str(found.value) and "\n" not in str(found.value)


def test_a_condition_is_what_pandas_says(tmp_path):
    rows = "age,stage,a b,label>0\n70,III,1,5\n40,I,2,0\n66,I,3,7\n"
    path = published.write(tmp_path / "t.csv", rows)
    for target, labels in (
        ("age >= 65 and stage == 'III'", [1, 0, 0]),
        ("not (age > 60) or `a b` in [3, 4]", [0, 1, 1]),
        ("60 < age < 70", [0, 0, 1]),
        ("`a b` * 2 > `a b` + 1.5", [0, 1, 1]),
        ("label>0", [5, 0, 7]),
    ):
        data = table(iid(1), path=path, target=target, inputs=["age"])
        assert data.targets.tolist() == labels, target
    data = table(iid(1), path=path, target="age > 0", columns={"*": "ordinal"})
    assert data.class_names == ("no", "yes") and "age" not in data.raw.heads
    assert table(iid(1), path=path, target=["age", "a b"], columns={"*": "one_hot"}).targets[
        1
    ].tolist() == [40, 2]


def test_each_client_fills_and_scales_by_its_own(tmp_path):
    published.write(tmp_path / "a.csv", "x,s,label\n1,m,0\n3,f,1\n,m,1\n")
    published.write(tmp_path / "b.csv", "x,s,label\n10,f,0\n30,,1\n50,f,1\n")
    ways = {"missing": {"x": "mean", "s": "most_frequent"}, "columns": {"s": "one_hot"}}
    data = table(f"{tmp_path}/*.csv", standardise=True, per_client=True, **ways)
    spread = [float(np.std([1, 3, 2])), float(np.std([10, 30, 50]))]
    expected = [[-1 / spread[0], 0, 1], [1 / spread[0], 1, 0], [0, 0, 1]]
    expected += [[-20 / spread[1], 1, 0], [0, 1, 0], [20 / spread[1], 1, 0]]
    assert np.allclose(data.inputs, expected)
    about = data.raw.about()
    assert about["kind"] == "cells_per_client" and about["sites"]["b"]["x"] == {
        "fill": 30,
        "mean": 30,
        "std": spread[1],
    }
    assert about["rules"][0]["fill"] is None and about["rules"][1]["values"] == ["f", "m"]
    says = "take partition = natural, or per_client = false"
    refused(lambda: table(iid(2), path=f"{tmp_path}/*.csv", per_client=True, **ways), says)
    published.write(tmp_path / "b.csv", "x,s,label\n,f,0\n,f,1\n")
    says = "b.csv, column 'x' is empty in every row; leave it out of inputs, or say what stands"
    refused(lambda: table(f"{tmp_path}/*.csv", per_client=True, **ways), says)
    given = ways | {"missing": {"x": 7, "*": "median"}}
    data = table(f"{tmp_path}/*.csv", per_client=True, **given)
    assert data.inputs[:, 0].tolist() == [1, 3, 7, 7, 7]
    one = published.write(tmp_path / "c.csv", "x,s,label\n1,f,0\n")
    says = "c.csv, column 'x': 1 training rows have no deviation with ddof = 1"
    refused(lambda: table([one], per_client=True, standardise=True, ddof=1, **ways), says)


def test_a_fitted_transformer_makes_the_inputs(tmp_path, monkeypatch):
    from sklearn.compose import make_column_transformer
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    path = published.write(tmp_path / "t.csv", "x,s,label\n1,m,0\n3,f,1\n,m,1\n")
    numbers = make_pipeline(SimpleImputer(), StandardScaler())
    made = make_column_transformer((numbers, ["x"]), (OneHotEncoder(), ["s"]))
    refused(lambda: table([path], preparation=made), "cannot transform its rows")
    made.fit(pandas.read_csv(path)[["x", "s"]])
    data = table([path], preparation=made)
    assert np.allclose(data.inputs[:, 0], [-1 / np.sqrt(2 / 3), 1 / np.sqrt(2 / 3), 0])
    assert data.inputs[:, 1:].tolist() == [[0, 1], [1, 0], [0, 1]]
    assert data.raw.about()["kind"] == "own"
    refused(lambda: table([path], preparation=made, missing=0), "preparation says it all")
    monkeypatch.chdir(tmp_path)
    code = "import pandas\nfrom sklearn.preprocessing import StandardScaler\n"
    code += "scaler = StandardScaler().fit(pandas.DataFrame({'x': [1.0, 3.0]}))\n"
    (tmp_path / "prep.py").write_text(code)
    words = ["data=table", f"data.path=['{path}']", "data.missing=drop", "data.target=label"]
    words += ["data.partition=natural", "data.preparation=prep.py:scaler", "model.inputs=1"]
    config = resolve("heart", words)
    assert config.data().inputs.tolist() == [[-1], [1]]


def packed(how: str) -> bytes:
    """A table of two columns as people compress it."""
    raw = b"label,x\n0,1\n1,2\n"
    if how == "zip":
        with zipfile.ZipFile(out := io.BytesIO(), "w") as archive:
            archive.writestr("t.csv", raw)
        return out.getvalue()
    return {"gzip": gzip.compress, "bzip2": bz2.compress, "xz": lzma.compress}[how](raw)


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])  # in which any bytes are text
def test_a_zip_archive_is_called_so(tmp_path, encoding):
    path = published.write(tmp_path / "t.csv.zip", packed("zip"))
    refused(lambda: table(iid(1), path=path, encoding=encoding), str(path), "zip", "unpack it")


@pytest.mark.parametrize(("how", "ending"), [("gzip", "gz"), ("bzip2", "bz2"), ("xz", "xz")])
def test_a_compressed_table_is_read(tmp_path, how, ending):
    path = published.write(tmp_path / f"t.csv.{ending}", packed(how))
    plain = published.write(tmp_path / "t.csv", b"label,x\n0,1\n1,2\n")
    one, other = (table(iid(1), path=p, target="label") for p in (path, plain))
    assert torch.equal(one.inputs, other.inputs) and one.name == other.name == "t"
    broken = published.write(tmp_path / f"u.csv.{ending}", packed(how)[:-4])
    refused(lambda: table(iid(1), path=broken), str(broken), "is no whole compressed file")


def test_files_that_are_compressed_are_clients_by_their_names(tmp_path):
    for name in ("lyon", "bonn"):
        published.write(tmp_path / f"{name}.csv.gz", packed("gzip"))
    data = table(path=str(tmp_path / "*.csv.gz"), target="label", sep={"bonn": ",", "*": ","})
    assert data.client_names == ("bonn", "lyon")


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


ROWS = [["age", "ward", "dose", "sick"], [41, "a", 0.5, "no"], [63, "b", 1.25, "yes"]]
ROWS += [[70, "a", 2, "yes"], [22, "b", 0.25, "no"]]


@pytest.mark.parametrize("ending", ["xlsx", "csv"])
def test_a_workbook_is_read_as_its_sheet_saved_as_csv(tmp_path, ending):
    path = workbook(tmp_path / f"u.{ending}", patients=ROWS, empty=[])
    lines = "\n".join(",".join(map(str, row)) for row in ROWS)
    plain = published.write(tmp_path / "v.csv", lines.encode())
    how = {"target": "sick", "columns": {"ward": "one_hot"}, "partition": iid(1)}
    one, other = (table(path=p, **how) for p in (path, plain))
    assert torch.equal(one.inputs, other.inputs) and torch.equal(one.targets, other.targets)
    assert one.class_names == other.class_names == ("no", "yes")


def test_which_sheet_of_a_workbook_is_said(tmp_path):
    path = workbook(tmp_path / "u.xlsx", first=ROWS, second=ROWS[:3])
    how = {"target": "sick", "inputs": ["age"], "partition": iid(1)}
    refused(lambda: table(path=path, **how), "2 sheets with cells, 'first', 'second'", "sheet =")
    assert len(table(path=path, sheet="second", **how).targets) == 2
    refused(
        lambda: table(path=path, sheet="secnd", **how), "no such sheet", "did you mean 'second'"
    )


def test_an_empty_cell_of_a_workbook_is_a_missing_value(tmp_path):
    path = workbook(tmp_path / "u.xlsx", one=[*ROWS, [None, "a", 1.0, "no"]])
    how = {"path": path, "target": "sick", "inputs": ["age"], "partition": iid(1)}
    refused(lambda: table(**how), "column 'age', row 5", "is no finite number")
    assert float(table(**how, missing="median").inputs[-1]) == 52.0


@pytest.mark.parametrize("ending", ["xlsx", "csv"])
def test_a_broken_workbook_is_called_so(tmp_path, ending):
    pytest.importorskip("openpyxl", reason="the extra tables is not installed")
    path = tmp_path / f"u.{ending}"
    with zipfile.ZipFile(path, "w") as archive:  # as Excel's begin, openpyxl's have these last
        for name in ("[Content_Types].xml", "_rels/.rels", "xl/workbook.xml"):
            archive.writestr(name, "<a/>")
    refused(lambda: table(iid(1), path=path), "u." + ending, "is no whole Excel workbook")


def test_workbooks_of_old_excel_and_parquet_called_csv_are_called_so(tmp_path):
    old = published.write(tmp_path / "t.xls", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600))
    refused(lambda: table(iid(1), path=old), "t.xls is a workbook of an old or other kind", ".xlsx")
    parquet = published.write(tmp_path / "t.csv", b"PAR1" + bytes(9))
    refused(lambda: table(iid(1), path=parquet), "t.csv is a Parquet file", "call it .parquet")
    pytest.importorskip("pyarrow", reason="the extra tables is not installed")
    named = published.write(tmp_path / "t.parquet", b"PAR1" + bytes(9))
    refused(lambda: table(iid(1), path=named), "t.parquet is no whole Parquet file")
