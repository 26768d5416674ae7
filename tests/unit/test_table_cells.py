"""What cells of a table mean: categories, numbers, labels, conditions, missing ones, and rules that
were agreed.
"""

import json

import pytest
import torch
from published import write

from fedloom.config import resolve
from fedloom.data import iid, table
from fedloom.data.own.columns import as_table, labels_of
from fedloom.data.own.preparation import FitOptions, kinds_in, preparation_of, rules_of
from support.refusals import refused

pandas = pytest.importorskip("pandas", reason="the extra tables is not installed")
pytest.importorskip("sklearn", reason="the extra tables is not installed")

BIG = 2**60 + 1  # a float would round it
LONG, DIGITS = "1" + 23 * "0", "9" * 5000


def prepared(cells, kind=None, missing=None):
    """The rule of a column of these cells, and the inputs that it makes of them."""
    read = as_table("t.csv", {"x": cells})
    options = FitOptions(missing)
    kinds = kinds_in(read, ["x"], {"x": kind} if kind else {}, options)
    preparation = options.fit_all(kinds, read)
    return rules_of(preparation)[0], preparation.of(read).tolist()


@pytest.fixture
def load(tmp_path, monkeypatch):
    """A function that writes a table, loads it as one client's, and a test table if it is given."""
    monkeypatch.chdir(tmp_path)

    def make(rows, test=None, **options):
        write(tmp_path / "t.csv", rows)
        if test is not None:
            options["test"] = write(tmp_path / "u.csv", test)
        return table(None if "client" in options else iid(1), path="t.csv", **options)

    return make


# --------------------------------------------------------------------------- categories and numbers
@pytest.mark.parametrize(
    ("cells", "missing", "values", "places"),
    [
        (["1", "1.0", " 01 ", "+1", "1e0", "2"], None, ["1", "2"], [0, 0, 0, 0, 0, 1]),
        (["1", "1.0", "x"], None, ["1", "1.0", "x"], [0, 1, 2]),
        (["10", "9", "0.5", "-3"], None, ["-3", "0.5", "9", "10"], [3, 2, 1, 0]),
        (["0.10", ".1", "1e-1", LONG], None, ["0.1", LONG], [0, 0, 0, 1]),
        (["-0", "0", "0.0", "-0.0"], None, ["0"], [0, 0, 0, 0]),
        (["\u0661", "1"], None, ["1"], [0, 0]),
        (["1_0", "10"], None, ["10", "1_0"], [1, 0]),
        (["0x10", "16"], None, ["0x10", "16"], [0, 1]),
        (["1e400", "inf", "10"], None, ["10", "1e400", "inf"], [1, 2, 0]),
        ([" a", "a", "NAN"], None, [" a", "NAN", "a"], [0, 2, 1]),
        ([BIG, BIG + 1, None], "most_frequent", [str(BIG), str(BIG + 1)], [0, 1, 0]),
        ([str(BIG), str(BIG + 1), ""], "mean", [str(BIG), str(BIG + 1)], [0, 1, 0]),
        ([1.0, 2.0, float("nan")], "median", ["1", "2"], [0, 1, 0]),
        ([1, 2.5, None, " 1"], 3, ["1", "2.5"], [0, 1, 0, 0]),
        ([True, False, "1"], None, ["1", "False", "True"], [2, 1, 0]),
        (["b", "a", "NA", "null", "a", ""], "most_frequent", ["a", "b"], [1, 0, 0, 0, 0, 0]),
        (["b", "a", ""], "unknown", ["a", "b", "unknown"], [1, 0, 2]),
        (["1", "2", ""], {"x": 3}, ["1", "2", "3"], [0, 1, 2]),
        (["1", "2", ""], {"x": "none"}, ["1", "2", "none"], [0, 1, 2]),
    ],
)
def test_a_cell_is_one_category_however_a_number_is_written(cells, missing, values, places):
    rule, ordinal = prepared(cells, "ordinal", missing)
    assert rule["values"] == values and ordinal == [[place] for place in places]
    rule, wide = prepared(cells, "one_hot", missing)
    assert rule["values"] == values
    assert wide == [[float(place == i) for i in range(len(values))] for place in places]
    assert preparation_of([rule]).of(as_table("t.csv", {"x": cells})).tolist() == wide


@pytest.mark.parametrize(
    ("cells", "order", "missing", "values", "places"),
    [
        (["I", "II", "I"], ["I", "II", "III"], None, ["I", "II", "III"], [0, 1, 0]),
        (["1", "2.0", ""], [2, "1.0", 3], {"x": "3.0"}, ["2", "1", "3"], [1, 0, 2]),
        (["a", "b"], ["a", "a", "b"], None, ["a", "a", "b"], [1, 2]),
    ],
)
def test_an_order_of_values_is_kept(cells, order, missing, values, places):
    rule, inputs = prepared(cells, order, missing)
    assert rule["values"] == values and inputs == [[place] for place in places]


@pytest.mark.parametrize(
    ("cells", "missing", "fill", "numbers"),
    [
        (["1", "", "4"], "mean", 2.5, [1, 2.5, 4]),
        (["1", "N/A", "4", "10"], "median", 4.0, [1, 4, 4, 10]),
        (["4", "", "1", "4", "1"], "most_frequent", 1.0, [4, 1, 1, 4, 1]),
        ([None, 2, 3.0, True], -1, -1.0, [-1, 2, 3, 1]),
        ([" 1_0 ", "1e1", "\u0661", "-.5"], None, None, [10, 10, 1, -0.5]),
    ],
)
def test_cells_of_numbers_are_what_python_reads(cells, missing, fill, numbers):
    rule, inputs = prepared(cells, None, missing)
    assert (rule["kind"], rule.get("fill")) == ("number", fill)
    assert inputs == [[number] for number in numbers]


@pytest.mark.parametrize(
    ("cells", "kind", "missing", "says"),
    [
        (["1", "x", "3"], None, None, "column 'x', row 2: 'x' is no finite number"),
        (["1", "1e39"], None, None, "row 2: '1e39' is no finite number"),
        ([1, 10**400], None, None, "row 2: 1000"),
        (["NAN", "1", "NAN"], None, "mean", "row 1: 'NAN' is no finite number"),
        (["x", "y", ""], "number", "mean", "row 1: 'x' is no finite number"),
        (["x", "y", ""], "number", "most_frequent", "row 1: 'x' is no finite number"),
        (["1", "", "2"], None, None, "row 2 is empty; fill such cells by missing = median, mean"),
        (["a", "", "b"], "one_hot", None, "row 2 is empty; fill such cells by missing = most_fr"),
        (["a", "x", "3"], None, None, "row 1: 'a' is a text; write columns.x = one_hot, or ordin"),
        (["", "NA"], "one_hot", None, "t.csv, column 'x' is empty in every row; leave it out"),
        (["I", "IV"], ["I"], None, "row 2: 'IV' has no place in the order of the column (I)"),
        (["I", ""], ["I"], "II", "row 2: '' has no place in the order of the column (I)"),
    ],
)
def test_a_cell_that_means_nothing_is_named(cells, kind, missing, says):
    refused(lambda: prepared(cells, kind, missing), says)


@pytest.mark.parametrize(
    ("cells", "kind", "labels", "classes"),
    [
        (["0", "2", " 1"], "int64", [0, 2, 1], ()),
        (["1e1", "02"], "int64", [10, 2], ()),
        (["0", "2.0"], "float32", [0, 2], ()),
        (["-1.5", "0"], "float32", [-1.5, 0], ()),
        ([0.0, 1.0], "float32", [0, 1], ()),
        ([True, False], "int64", [1, 0], ()),
        (["yes", "1", "no"], "int64", [2, 0, 1], ("1", "no", "yes")),
        (["NA", "a"], "int64", [0, 1], ("NA", "a")),
        (["x1", "x01"], "int64", [1, 0], ("x01", "x1")),
    ],
)
def test_a_target_column_is_labels_numbers_or_classes(cells, kind, labels, classes):
    targets, names = labels_of(as_table("t.csv", {"y": cells}), "y")
    assert (str(targets.dtype), targets.tolist(), names) == (f"torch.{kind}", labels, classes)


# -------------------------------------------------------------------- whole tables, and their cells
@pytest.mark.parametrize(
    ("rows", "options", "inputs"),
    [
        # blank lines are no rows; a row that ends early has empty cells
        ('"a ",b,label\n"1","2 ",0\n\n 3 ,,1\n', {"missing": 7}, [[1, 2], [3, 7]]),
        # a byte order mark, and lines as Windows ends them
        (b"\xef\xbb\xbflabel,x\r\n0,1.5\r\n1,2.5\r\n", {}, [[1.5], [2.5]]),
        (
            "a,b,label\n?,-999,0\n2,-999.0,1\n4,7,1\n",
            {"na_values": ["?", -999], "missing": {"a": "mean", "b": -1}},
            [[3, -1], [2, -1], [4, 7]],
        ),
        # b is no input, and 5 has no label
        ("a,b,label\n1,,0\n,2,1\n3,4,1\n5,6,\n", {"inputs": ["a"], "missing": "drop"}, [[1], [3]]),
    ],
)
def test_cells_of_a_table_become_inputs(load, rows, options, inputs):
    assert load(rows, **options).inputs.tolist() == inputs


def test_a_parquet_file_has_markers_too(tmp_path):
    pytest.importorskip("pyarrow", reason="the extra tables is not installed")
    frame = pandas.DataFrame({"a": [1, None, 3], "b": [-999, 5, 6], "label": [0, 1, 1]})
    frame.to_parquet(tmp_path / "t.parquet")
    data = table(iid(1), path=tmp_path / "t.parquet", na_values=[-999], missing="drop")
    assert data.inputs.tolist() == [[3, 6]] and data.about["dropped"] == 2


ROWS = "site,age,dose,label\nlyon,40,1.5,no\nbonn,50,2,yes\nlyon,60,0,yes\n"
SITE = {"client": "site"}
ONE, A = "a,label\n1,0\n", {"name": "a"}
HOT = {"kind": "one_hot", "values": ["x"]}
agreed = lambda **entry: {"rules": [A | entry]}


@pytest.mark.parametrize(
    ("rows", "options", "says"),
    [
        # columns
        (ROWS, {"client": "cite"}, "t.csv ... no column 'cite'; did you mean 'site'?"),
        (ROWS, SITE | {"target": "x"}, "no column 'x'"),
        (ROWS, {"text": "x", "inputs": ["x"]}, "keep one of them"),
        ("a,a\n1,2\n", {"client": "a"}, "names a column twice"),
        ("a,b\n", {"client": "a"}, "no rows below its header"),
        ("\n", {"client": "a"}, "is empty; it needs a header"),
        ("a;b\n1;2\n", {"client": "a"}, 'by semicolons; give sep = ";" (and'),
        ("a\tb\n1\t2\n", {"client": "a"}, "by tabs; give sep"),
        ("site,label\na,1\n", SITE, "no columns besides label and site"),
        ("1,0\n2,1\n", {}, "has no column 'label'; its first row, 1, 0, holds no names: give nam"),
        ("1,0\n2,1\n", {"names": ["x"]}, "has 2 columns, and names has 1; name each"),
        # rows and cells
        (ROWS + "bonn,1\n", SITE, "column 'dose', row 4: '' is no finite"),
        (ROWS + "bonn,1,1,no,5\n", SITE, "Expected 4 fields in line 5, saw 5"),
        (ROWS + '"bonn,1,1,no\n', SITE, "no whole CSV file: Error tokenizing"),
        ("site,age,label\na,1,-1\n", SITE, "row 1: label -1"),
        ("a,label\n,0\n1,0\n", {"standardise": True}, "column 'a', row 1 is empty"),
        ("a,label\n1,0\n2,\n", {"missing": 7}, "column 'label', row 2 is empty"),
        ("x,label\n1.5,0\n5;1,1\n", {}, "column 'x', row 2: '5;1'"),
        ("x;label\n1,5;0\n2;1\n", {}, 'by semicolons; give sep = ";" (and decimal = "," if'),
        ("x;label\n1,5;0\n2;1\n", {"sep": ";"}, "row 1: '1,5' has a decimal comma; give decimal"),
        ("x,label\n2024-01-31,0\n", {}, "row 1: '2024-01-31' is a date; leave the column out"),
        ("x,label\n31.01.2024,0\n", {}, "row 1: '31.01.2024' is a date; leave the column out"),
        (f"x,label\n2,1\n{DIGITS},0\n", {}, "row 2: '999"),
        ("x,label\n2,1\n1e39,0\n", {}, "no finite number"),
        (f"x,label\n2,1\n1,{DIGITS}\n", {}, "row 2"),
        ("x,label\n2,1\n1,99999999999\n", {}, "labels count the classes"),
        ("x,label\n2,1\n²,0\n", {}, "no finite number"),
        # settings
        ("x,label\n1,0\n2,1\n", {"test_share": 1.0}, "test_share must be in [0, 1), got 1"),
        ("x,label\n1,0\n", {"test_share": 0.5}, "has 1 rows, too few for test_share = 0.5"),
        ("x,label\n1,0\n", {"per_client": True}, "per_client = true says where missing and stand"),
        ("a,b,label\n1,,0\n", {"missing": "drop"}, "t.csv: every row ... column 'b', so missing"),
        ("a,label\n1,0\n", {"missing": {"a": "drop"}}, "missing = drop is for all columns, not"),
        ("x,label\n1,0\n", {"sep": {"keil": ";"}}, "sep.keil = ';': no file is called 'keil'"),
        ("x,label\n1,0\n", {"encoding": {"keil": "ansi"}}, "no file is called 'keil'; there are t"),
        ("x,label\n1,0\n", {"decimal": {"t": ";"}}, 'decimal must be "." or ",", got \';\''),
        ("x,label\n1,0\n", {"encoding": "ansi"}, "encoding = 'ansi' is none that Python knows"),
        # conditions on columns
        ("x,label\n1,0\n", {"target": "x > y"}, "has no column 'y'"),
        ("x,label\n1,0\n,1\n", {"target": "x > 1"}, "column 'x', row 2 is empty"),
        ("x,label\n1,0\nb,1\n3,1\n", {"target": "x > 1"}, "row 2: 'b' is no finite number"),
        ("x,label\na,0\nb,1\n", {"target": "x > 1"}, "x is of texts and 1 of numbers, which never"),
        ("x,label\n1,0\n", {"target": "__import__('os') == 1"}, "(it holds a Call)"),
        ("x,label\n1,0\n", {"target": "x.label > 1"}, "(it holds a Attribute)"),
        ("x,label\n1,0\n", {"target": "x > 'a' * 9"}, "(it holds a BinOp)"),
        ("x,label\n1,0\n", {"target": "x >"}, "is no condition on columns (invalid syntax"),
        # no row would fulfil these, or every row: all labels of that file would be wrong
        ("x,y\n1,0\n", {"target": "y in ['yes', '1']"}, "y is of numbers and ['yes', '1'] of te"),
        ("x,y\n1,0\n", {"target": "not ('1' == y)"}, "'1' is of texts and y of numbers"),
        ("x,y\n1,0\n", {"target": "`y` != 'no' and y < 3"}, "y is of numbers and 'no' of texts"),
        ("x,y\n1,a\n", {"target": "y in [1, 2]"}, "y is of texts and [1, 2] of numbers"),
        ("x,z,y\n1,1,a\n", {"target": "y == 2 * z"}, "y is of texts and 2 * z of numbers"),
        # agreed rules
        (ONE, {"rules": [{"kind": "number"}]}, "rules: an entry has no name: {'kind': 'number'}"),
        (ONE, {"rules": [A, A]}, "rules, column 'a': it has two entries; keep one"),
        (ONE, agreed(filll=1), "column 'a': unknown key 'filll'; did you mean 'fill'?"),
        (ONE, agreed(kind="onehot"), "column 'a': unknown kind 'onehot'; did you mean"),
        (ONE, agreed(kind="one_hot"), "values must be a list of texts or numbers, got"),
        (ONE, agreed(kind="ordinal", values=["1", 1.0]), "the value 1 is there tw"),
        (ONE, agreed(values=["x"]), "a number has no values; take kind = one_hot or"),
        (ONE, agreed(fill="x"), "fill must be a number, got 'x'"),
        (ONE, agreed(std=0), "std must be above 0, got 0"),
        (ONE, agreed(mean=float("nan")), "mean must be a number, got nan"),
        (ONE, agreed(**HOT, fill="y"), "fill must be one of its values (x), got 'y'"),
        (ONE, agreed(**HOT, std=2.0), "std must be 1 numbers, one an input, got 2.0"),
        (ONE, agreed() | {"missing": 0}, "rules and missing are both given: rules say it all"),
        (ONE, agreed() | {"inputs": ["a"]}, "rules and inputs are both given"),
        (ONE, agreed() | {"text": "a"}, "rules and text are both given"),
        # test tables
        (ROWS, SITE | {"test": ROWS.replace("yes", "maybe")}, "'maybe' ... no, yes"),
        (ROWS, SITE | {"test": ROWS.replace("lyon", "oslo").replace("bonn", "oslo")}, "'oslo'"),
        (
            "site,x,label\na,1,0\n",
            SITE | {"test": "site,x,label\na,1,no\n"},
            "int64 in ... the texts no",
        ),
    ],
)
def test_files_and_options_that_do_not_fit_say_what_to_do(load, rows, options, says):
    refused(lambda: load(rows, **options), says)


def test_a_condition_is_what_pandas_says(load):
    rows = "age,stage,a b,label>0\n70,III,1,5\n40,I,2,0\n66,I,3,7\n"
    for target, labels in (
        ("age >= 65 and stage == 'III'", [1, 0, 0]),
        ("not (age > 60) or `a b` in [3, 4]", [0, 1, 1]),
        ("60 < age < 70", [0, 0, 1]),
        ("`a b` * 2 > `a b` + 1.5", [0, 1, 1]),
        ("`a b` in ['yes', 1]", [1, 0, 0]),
        ("stage in ['III', 1]", [1, 0, 0]),
        ("(stage == 'III') == (age < 80)", [1, 0, 0]),
        ("label>0", [5, 0, 7]),
        (["age", "a b"], [[70, 1], [40, 2], [66, 3]]),
    ):
        data = load(rows, target=target, columns={"*": "ordinal"})
        assert data.targets.tolist() == labels, target
    data = load(rows, target="age > 0", columns={"*": "ordinal"})
    assert data.class_names == ("no", "yes") and "age" not in data.raw.heads


# --------------------------------------------------------------------------------- agreed rules
WARDS = ["Chirurgie", "Gynäkologie", "Innere", "Nephrologie"]
RULES = [
    {"name": "age", "fill": 50.0, "mean": 40.0, "std": 10.0},
    {"name": "ward", "kind": "one_hot", "values": WARDS, "fill": "Innere"},
    {"name": "stage", "kind": "ordinal", "values": [1, "2.0", 3]},
]
SITES = {
    "bonn": "age,ward,stage,label\n40,Innere,1,no\n,Chirurgie,3,yes\n",
    "kiel": "age,ward,stage,label\n,Innere,1.0,yes\n,,2.0,yes\n",
    "ulm": "stage,ward,age,label\n2,Nephrologie,60,no\n",
}


@pytest.fixture
def sites(tmp_path):
    for name, rows in SITES.items():
        write(tmp_path / f"{name}.csv", rows)
    return tmp_path


def test_one_file_alone_gives_what_all_give(sites):
    """Also a file with an empty column, or with few of the values."""
    options = {"rules": RULES, "class_names": ["no", "yes"]}
    whole = table(f"{sites}/*.csv", **options)
    rows = [[0, 0, 0, 1, 0, 0], [1, 1, 0, 0, 0, 2], [1, 0, 0, 1, 0, 0], [1, 0, 0, 1, 0, 1]]
    assert whole.inputs.tolist() == [*rows, [2, 0, 0, 0, 1, 1]]
    for i, site in enumerate(SITES):
        alone = table(iid(1), path=sites / f"{site}.csv", **options)
        assert torch.equal(alone.inputs, whole.client(i)[0])
        assert torch.equal(alone.targets, whole.client(i)[1]) and alone.class_names == ("no", "yes")


def test_fitted_rules_written_out_give_the_same_inputs(sites):
    """By way of TOML, which the settings of a run are written in."""
    (sites / "my.toml").write_text(
        'rounds = 1\nalgorithm = "fedavg"\nmodel = {name = "mlp", inputs = 6, classes = 2}\n'
        f'[data]\nname = "table"\npath = "{sites}/*.csv"\npartition = "natural"\n'
        'inputs = ["age", "ward", "stage"]\nmissing = "mean"\nstandardise = true\n'
        'columns = {ward = "one_hot", stage = "one_hot"}\n'
    )
    config = resolve(sites / "my.toml")
    data = config.data()
    rules = rules_of(data.raw)
    wards = ["Chirurgie", "Innere", "Nephrologie"]
    assert rules[1] == {"name": "ward", "kind": "one_hot", "values": wards, "fill": "Innere"}
    kept = {"name": "table", "path": config.values["data"]["path"], "rules": rules}
    values = {**config.values, "data": kept | {"partition": "natural"}}
    (sites / "again.toml").write_text(type(config)(values, config.origin).to_toml())
    again = resolve(sites / "again.toml").data()
    about = json.loads(json.dumps(data.raw.about()))["rules"]  # as partition.json has them
    assert rules_of(preparation_of(about)) == rules_of(again.raw) == rules
    assert torch.equal(again.inputs, data.inputs) and again.inputs[:, 0].unique().numel() > 2


def test_a_fill_that_is_no_value_is_left_out(load):
    data = load("ward,label\nA,0\nB,1\n", columns={"ward": "one_hot"}, missing="unknown")
    assert rules_of(data.raw) == [{"name": "ward", "kind": "one_hot", "values": ["A", "B"]}]


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("Nephrologie", "Augen", "'ward', row 1: 'Augen' is none of the agreed values (Chirurg"),
        ("Nephrologie", "Augen", "correct the cell, take the row out, or add"),
        ("2,N", "4,N", "column 'stage', row 1: '4' is none of the agreed values (1, 2, 3"),
        ("2,N", ",N", "column 'stage', row 1 is empty; fill such cells by fill = ... in"),
        ("60", "old", "column 'age', row 1: 'old' is no finite number"),
        ("ward", "Ward", "has no column 'ward'; did you mean 'Ward'?"),
        ("no", "maybe", "column 'label', row 1: class 'maybe' is none of no, yes"),
    ],
)
def test_cells_that_do_not_fit_rules_are_named(sites, old, new, says):
    path = write(sites / "ulm.csv", SITES["ulm"].replace(old, new, 1))
    load = lambda: table(iid(1), path=path, rules=RULES, class_names=["no", "yes"])
    refused(load, "ulm.csv", says)
