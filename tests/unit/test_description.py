"""What is told of a table: no number of few rows, and none that follows from others."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict

import numpy as np
import pytest

pytest.importorskip("pandas", reason="the extra tables is not installed")

from fedloom.data.own.columns import as_table
from fedloom.data.own.description import _cells, described, labels_of, parsed
from fedloom.errors import DataError, WireError


def test_no_rare_value_follows_from_what_is_told() -> None:
    """Whoever knows the rule, the total and what is told still has several numbers for each rarer
    value, and for each that is withheld. All tables of four values with at most eight rows each.
    """
    least, same = 4, defaultdict(list)
    for counts in itertools.product(range(9), repeat=4):
        if sum(counts) < least:  # a site with so few rows tells nothing
            continue
        there = {name: n for name, n in zip("abcd", counts, strict=True) if n}
        told = _cells(there, least)
        assert all(n is None or n == there[name] for name, n in told.items())
        assert all(there[name] >= least for name in told)
        same[sum(counts), tuple(sorted(told.items(), key=str))].append(there)
    for (_, told), tables in same.items():
        hidden = {name for there in tables for name in there if dict(told).get(name) is None}
        for name in hidden:
            able = {there[name] for there in tables if name in there}
            if max(able) < 8 and min(map(len, tables)) < 4:  # else larger tables tell the same
                assert len(able) > 1, (told, name, tables)


@pytest.mark.parametrize("rare", [1, 3, 9])
def test_one_fact_in_two_columns_tells_no_more_than_in_one(rare) -> None:
    """A code and a word: each rule by itself would withhold another value, and so tell both."""
    rows = [("1", "z"), ("2", "y"), ("3", "")] * 20
    rows = [row for row in rows if row[0] != "3"] + [("3", "")] * rare + [("2", "y")] * 25
    for order in itertools.permutations(range(3)):
        words = {str(k + 1): "zy "[k].strip() for k in order}
        mixed = sorted(rows, key=lambda row: (order.index(int(row[0]) - 1), row))
        table = as_table("here.csv", {"code": [c for c, _ in mixed], "word": [w for _, w in mixed]})
        found = described(table, ["code", "word"], None, 10).columns
        withheld = [
            {words[code] for code in words if found["code"].counts.get(code) is None},
            {
                w
                for w in words.values()
                if (found["word"].counts | {"": found["word"].missing}).get(w) is None
            },
        ]
        assert withheld[0] == withheld[1] and len(withheld[0]) >= 2, (order, found)


def told_of(values, least=10, target=None):
    return described(as_table("here.csv", {"a": values}), ["a"], target, least).columns["a"]


def test_no_quantile_is_one_rows_value_and_no_extreme_shows() -> None:
    draw = np.random.default_rng(0)
    values = draw.normal(50, 9, 200)
    found = told_of([*map(str, values)])
    assert found.kind == "number" and found.missing == 0 and found.mean is not None
    assert found.quantiles == sorted(found.quantiles)
    ordered = np.sort(values)
    assert ordered[9] < found.quantiles[0] < ordered[20]
    assert ordered[-21] < found.quantiles[-1] < ordered[-10]
    assert found.mean == pytest.approx(values.mean(), abs=1) and found.deviation == 8.4
    values[:5], values[5:8] = 1e9, -1e9
    worse = told_of([*map(str, values)])
    assert worse.quantiles[2] == pytest.approx(found.quantiles[2], abs=2)
    assert max(worse.quantiles) < 80 and worse.mean < 60 and worse.deviation < 20


@pytest.mark.parametrize("rows", [*range(30, 61), 64, 70, 95, 100, 107, 250])
def test_a_quantile_is_about_the_number_at_its_place(rows: int) -> None:
    """Of the numbers 1.5, 2.5, ... in order, for odd and even numbers of groups. The outer groups
    count for nothing, so low and high, and with few groups the quarters, lie further inwards.
    """
    for values in (np.arange(rows) + 1.5, np.arange(rows)[::-1] + 1.5):
        found = told_of([*map(str, values)]).quantiles
        lowest, highest = values.min(), values.max()
        assert found[2] == pytest.approx(np.median(values), abs=1)
        told = [number for number in found if number is not None]
        assert told == sorted(told) and lowest + 9 < told[0] and told[-1] < highest - 9
        if rows >= 60:
            assert found[1] == pytest.approx(np.quantile(values, 0.25), abs=1)
            assert found[3] == pytest.approx(np.quantile(values, 0.75), abs=1)
        digit = 1 if values.std() > 12 else 0.1  # what std has two digits of
        assert all(number == pytest.approx(round(number / digit) * digit) for number in told)
        if rows >= 50:  # what a quantile tells of one end it tells of the other
            assert np.add(found, found[::-1]) == pytest.approx(lowest + highest, abs=2)


def test_a_quantile_of_alike_numbers_is_that_number() -> None:
    values = [*map(str, range(11, 21)), *["25"] * 50, *map(str, range(31, 41))]
    assert told_of(values).quantiles[1:4] == [25, 25, 25]


def test_few_numbers_tell_less() -> None:
    numbers = [f"{n}.5" for n in range(49)]
    assert told_of(numbers[:29]).model_dump() == {
        "kind": "number",
        "missing": 0,
        "counts": {},
        "mean": None,
        "deviation": None,
        "quantiles": [],
    }
    middle = told_of(numbers).quantiles
    assert [v is None for v in middle] == [True, True, False, True, True]
    one = described(as_table("here.csv", {"a": numbers[:9]}), ["a"], None, 10)
    assert one.rows is None and one.columns == {}


def test_empty_cells_are_a_value_like_others() -> None:
    assert told_of(["I"] * 30 + ["II"] * 20 + [""] * 12).missing == 12
    found = told_of(["I"] * 30 + ["II"] * 20 + [""] * 2)
    assert found.missing is None and found.counts == {"I": None, "II": 20}
    numbers = [f"{n}.5" for n in range(60)]
    assert told_of([*numbers, *[""] * 9]).missing is None
    assert told_of([*numbers, *[""] * 10]).missing == 10
    for rows in (38, 58):  # with 9 or fewer empty cells: what is told is alike
        told = [told_of([*numbers[: rows - n], *[""] * n]).quantiles for n in (1, 5, 9)]
        assert len({tuple(v is None for v in quantiles) for quantiles in told}) == 1
    assert told_of([*numbers[:11], *[""] * 9]).kind == "number"
    assert told_of([""] * 40).missing == 40
    assert told_of([""] * 35 + ["I"] * 5).missing is None


def test_numbers_of_few_values_are_counted() -> None:
    found = told_of(["1"] * 12 + ["1.0"] * 3 + ["0"] * 30 + ["10"] * 11)
    assert found.kind == "values" and found.counts == {"0": 30, "1": 15, "10": 11}
    mixed = as_table("here.csv", {"a": ["1"] * 20 + ["?"]})
    with pytest.raises(DataError, match=r"here.csv, column 'a', row 21: '\?' is no finite number"):
        described(mixed, ["a"], None, 10)
    with pytest.raises(DataError, match=r"here.csv, column 'a', row 2: '1,5' has a decimal comma"):
        described(as_table("here.csv", {"a": ["", *["1,5"] * 20]}), ["a"], None, 10)
    assert told_of(["1,5 mg"] * 20).counts == {"1,5 mg": 20}
    strange = as_table("here.csv", {"a": ["I\x1b[2J"] * 20})
    with pytest.raises(DataError, match=r"here.csv, column 'a' cannot be described: .*String sh"):
        described(strange, ["a"], None, 10)


def test_labels_differ_by_what_is_told() -> None:
    def site(**counts):
        labels = [name for name, n in counts.items() for _ in range(n)]
        return described(as_table("x", {"y": labels}), [], "y", 10)

    told = {"a": site(no=50, yes=50), "b": site(no=100), "c": site(no=96, yes=4), "d": site(no=3)}
    names, counts, found = labels_of(told)
    assert names == ["no", "yes"]
    assert counts == {"a": [50, 50, 0], "b": [100, 0, 0], "c": [100, 0, 0]}  # c: about
    assert found is not None and found.pairs == pytest.approx((0.5 + 0.5 + 0) / 3)
    assert labels_of({"d": told["d"]})[2] is None


def hostile(**column) -> bytes:
    told = {"least": 10, "rows": 8, "columns": {"a": {"missing": 0} | column}}
    return json.dumps(told).encode()


def test_a_description_comes_back_from_its_json_or_is_refused() -> None:
    made = described(as_table("x", {"y": ["a"] * 30 + ["b"] * 3}), [], "y", 10)
    assert parsed(made.model_dump_json().encode()) == made
    for raw, says in (
        (b"{", "wrong at the whole: Invalid JSON"),
        (b'{"least": 10, "rows": -1}', "wrong at rows: Input should be greater than"),
        (b'{"least": 10, "rows": 1, "more": 2}', "wrong at more: Extra inputs are not"),
        (b'{"least": 10, "rows": 1, "columns": {"a\\u001b": {}}}', "wrong at columns"),
        (b'{"least": 10, "rows": 1, "target": "y"}', "the target is no column"),
        (hostile(kind="values", counts={"x": 1}), "a value is no number"),
        (hostile(kind="texts", counts={"x": 9}), "a column has more cells than there are rows"),
        (hostile(kind="number", mean=1.0), "mean, deviation and quantiles are told together"),
        (hostile(kind="number", mean=1e300), "wrong at columns.a.mean: Input should be less"),
    ):
        with pytest.raises(WireError, match=says):
            parsed(raw)
