"""What single cells of a table mean: as categories, numbers, labels and clients."""

from __future__ import annotations

import pytest

pytest.importorskip("pandas", reason="the extra tables is not installed")

from fedloom.data import iid, table
from fedloom.data.own.columns import as_table, labels_of
from fedloom.data.own.fitting import FitOptions, fit
from fedloom.data.own.preparation import preparation_of, rules_of
from fedloom.errors import DataError

BIG = 2**60 + 1  # a float would round it
LONG = "1" + 23 * "0"


def prepared(cells, kind=None, missing=None):
    """The rule of a column of these cells, and the inputs that it makes of them."""
    found = as_table("t.csv", {"x": cells})
    made = fit(found, ["x"], {"x": kind} if kind else {}, FitOptions(missing))
    return rules_of(made)[0], made.of(found).tolist()


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
        (
            ["b", "a", "NA", "null", "a", "b", ""],
            "most_frequent",
            ["a", "b"],
            [1, 0, 0, 0, 0, 1, 0],
        ),
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
        (["1", "N/A", "4", "7"], "median", 4.0, [1, 4, 4, 7]),
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
    with pytest.raises(DataError) as found:
        prepared(cells, kind, missing)
    assert says in str(found.value) and "\n" not in str(found.value)


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
    made, known = labels_of(as_table("t.csv", {"y": cells}), "y")
    assert (str(made.dtype), made.tolist()) == (f"torch.{kind}", labels)
    assert known == classes


@pytest.mark.parametrize(
    ("cells", "names"),
    [
        (["10", "9"], ("9", "10")),
        (["10", "9", "x"], ("10", "9", "x")),
        (["1.5", "10.5", "9.5"], ("1.5", "10.5", "9.5")),
        (["-1", "1", "-10"], ("-10", "-1", "1")),
        (["NA", "nan", " a"], (" a", "NA", "nan")),
    ],
)
def test_clients_are_in_the_order_of_their_names(tmp_path, cells, names):
    rows = "".join(f"{cell},{i},0\n" for i, cell in enumerate(cells))
    (tmp_path / "t.csv").write_text(f"who,x,label\n{rows}")
    data = table(path=tmp_path / "t.csv", client="who")
    assert data.client_names == names
    owners = [data.client(i)[0].item() for i in range(len(names))]
    assert [cells[int(row)] for row in owners] == list(names)


def test_names_of_one_number_have_an_order(tmp_path):
    """Not that of a set of texts, which differs between two processes."""
    names = [f"{zeros}{number}" for number in range(1, 20) for zeros in ("00", "0", "")]
    rows = "".join(f"{name},1,0\n" for name in reversed(names))
    (tmp_path / "t.csv").write_text(f"who,x,label\n{rows}")
    assert table(path=tmp_path / "t.csv", client="who").client_names == tuple(names)


def test_quotes_blank_lines_and_short_rows_are_what_pandas_reads(tmp_path):
    """Blank lines are no rows; a row that ends early has empty cells."""
    (tmp_path / "t.csv").write_text('"a ",b,label\n"1","2 ",0\n\n 3 ,,1\n5\n')
    with pytest.raises(DataError, match="column 'b', row 2 is empty"):
        table(iid(1), path=tmp_path / "t.csv", standardise=True)
    with pytest.raises(DataError, match="column 'label', row 3 is empty"):
        table(iid(1), path=tmp_path / "t.csv", missing=7)
    (tmp_path / "t.csv").write_text('"a ",b,label\n"1","2 ",0\n\n 3 ,,1\n')
    data = table(iid(1), path=tmp_path / "t.csv", missing=7)
    assert data.inputs.tolist() == [[1, 2], [3, 7]] and data.raw.heads == ("a", "b")
