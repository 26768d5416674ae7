"""What is told of a table: no number of few rows, and none that follows from others."""

import itertools
import json
from collections import defaultdict

import numpy as np
import pytest

pytest.importorskip("pandas", reason="the extra tables is not installed")

from fedloom.data.own.columns import as_table
from fedloom.data.own.description import (
    _cells,
    described,
    labels_of,
    parsed,
)
from support.refusals import refused


def column(values, target=None):
    """What is told of a column of a table, where the least count is 10."""
    return described(as_table("here.csv", {"a": values}), ["a"], target, 10).columns["a"]


def test_no_rare_value_follows_from_what_is_told():
    """Whoever knows the rule, the total and what is told still has several numbers for each rarer
    value, and for each that is withheld. All tables of four values with at most eight rows each.
    """
    least, same = 4, defaultdict(list)
    for counts in itertools.product(range(9), repeat=4):
        if sum(counts) < least:  # a site with so few rows tells nothing
            continue
        there = {name: n for name, n in zip("abcd", counts, strict=True) if n}
        shown = _cells(there, least)
        assert all(n is None or n == there[name] for name, n in shown.items())
        assert all(there[name] >= least for name in shown)
        same[sum(counts), tuple(sorted(shown.items(), key=str))].append(there)
    for (_, shown), tables in same.items():
        hidden = {name for there in tables for name in there if dict(shown).get(name) is None}
        for name in hidden:
            able = {there[name] for there in tables if name in there}
            if max(able) < 8 and min(map(len, tables)) < 4:  # else larger tables tell the same
                assert len(able) > 1, (shown, name, tables)


@pytest.mark.parametrize("rare", [1, 3, 9])
def test_one_fact_in_two_columns_tells_no_more_than_in_one(rare):
    """A code and a word: each rule by itself would withhold another value, and so tell both."""
    words = {"1": "z", "2": "y", "3": ""}
    codes = ["1", "2"] * 20 + ["3"] * rare + ["2"] * 25
    for order in itertools.permutations(words):
        mixed = sorted(codes, key=order.index)
        table = as_table("here.csv", {"code": mixed, "word": [words[code] for code in mixed]})
        shown = described(table, ["code", "word"], None, 10).columns
        by_word = shown["word"].counts | {"": shown["word"].missing}
        withheld = {words[code] for code in words if shown["code"].counts.get(code) is None}
        assert withheld == {w for w in words.values() if by_word.get(w) is None}, order
        assert len(withheld) >= 2, (order, shown)


def test_empty_cells_are_a_value_like_others():
    numbers = [f"{n}.5" for n in range(60)]
    for values, missing in (
        (["I"] * 30 + ["II"] * 20 + [""] * 12, 12),
        (["I"] * 30 + ["II"] * 20 + [""] * 2, None),
        ([*numbers, *[""] * 9], None),
        ([*numbers, *[""] * 10], 10),
        ([""] * 40, 40),
        ([""] * 35 + ["I"] * 5, None),
    ):
        assert column(values).missing == missing
    assert column(["I"] * 30 + ["II"] * 20 + [""] * 2).counts == {"I": None, "II": 20}
    for rows in (38, 58):  # with 9 or fewer empty cells: what is told is alike
        shown = [column([*numbers[: rows - n], *[""] * n]).quantiles for n in (1, 5, 9)]
        assert len({tuple(v is None for v in quantiles) for quantiles in shown}) == 1
    assert column([*numbers[:11], *[""] * 9]).kind == "number"


def test_numbers_of_few_values_are_counted():
    few = column(["1"] * 12 + ["1.0"] * 3 + ["0"] * 30 + ["10"] * 11)
    assert few.kind == "values" and few.counts == {"0": 30, "1": 15, "10": 11}
    assert column(["1,5 mg"] * 20).counts == {"1,5 mg": 20}
    for values, says in (
        (["1"] * 20 + ["?"], "here.csv, column 'a', row 21: '?' is no finite number"),
        (["", *["1,5"] * 20], "here.csv, column 'a', row 2: '1,5' has a decimal comma"),
        (["I\x1b[2J"] * 20, "here.csv, column 'a' cannot be described: ... String sh"),
    ):
        refused(lambda values=values: column(values), says)


def test_no_quantile_is_one_rows_value_and_no_extreme_shows():
    values = np.random.default_rng(0).normal(50, 9, 200)
    shown, ordered = column([*map(str, values)]), np.sort(values)
    assert shown.kind == "number" and shown.missing == 0 and shown.mean is not None
    assert shown.quantiles == sorted(shown.quantiles)
    assert ordered[9] < shown.quantiles[0] < ordered[20]
    assert ordered[-21] < shown.quantiles[-1] < ordered[-10]
    assert shown.mean == pytest.approx(values.mean(), abs=1) and shown.deviation == 8.4
    values[:5], values[5:8] = 1e9, -1e9
    worse = column([*map(str, values)])
    assert worse.quantiles[2] == pytest.approx(shown.quantiles[2], abs=2)
    assert max(worse.quantiles) < 80 and worse.mean < 60 and worse.deviation < 20
    alike = [*map(str, range(11, 21)), *["25"] * 50, *map(str, range(31, 41))]
    assert column(alike).quantiles[1:4] == [25, 25, 25]


@pytest.mark.parametrize("rows", [*range(30, 61), 64, 70, 95, 100, 107, 250])
def test_a_quantile_is_about_the_number_at_its_place(rows):
    """Of the numbers 1.5, 2.5, ... in order, for odd and even numbers of groups. The outer groups
    count for nothing, so low and high, and with few groups the quarters, lie further inwards.
    """
    for values in (np.arange(rows) + 1.5, np.arange(rows)[::-1] + 1.5):
        quantiles = column([*map(str, values)]).quantiles
        lowest, highest = values.min(), values.max()
        assert quantiles[2] == pytest.approx(np.median(values), abs=1)
        shown = [number for number in quantiles if number is not None]
        assert shown == sorted(shown) and lowest + 9 < shown[0] and shown[-1] < highest - 9
        if rows >= 60:
            assert quantiles[1] == pytest.approx(np.quantile(values, 0.25), abs=1)
            assert quantiles[3] == pytest.approx(np.quantile(values, 0.75), abs=1)
        digit = 1 if values.std() > 12 else 0.1  # what std has two digits of
        assert all(number == pytest.approx(round(number / digit) * digit) for number in shown)
        if rows >= 50:  # what a quantile tells of one end it tells of the other
            assert np.add(quantiles, quantiles[::-1]) == pytest.approx(lowest + highest, abs=2)


def test_few_numbers_tell_less():
    numbers = [f"{n}.5" for n in range(49)]
    nothing = {"missing": 0, "counts": {}, "mean": None, "deviation": None, "quantiles": []}
    assert column(numbers[:29]).model_dump() == {"kind": "number"} | nothing
    middle = column(numbers).quantiles
    assert [v is None for v in middle] == [True, True, False, True, True]
    one = described(as_table("here.csv", {"a": numbers[:9]}), ["a"], None, 10)
    assert one.rows is None and one.columns == {}


def test_labels_differ_by_what_is_told():
    def site(**counts):
        labels = [name for name, n in counts.items() for _ in range(n)]
        return described(as_table("x", {"y": labels}), [], "y", 10)

    shown = {"a": site(no=50, yes=50), "b": site(no=100), "c": site(no=96, yes=4), "d": site(no=3)}
    names, counts, measures = labels_of(shown)
    assert names == ["no", "yes"]
    assert counts == {"a": [50, 50, 0], "b": [100, 0, 0], "c": [100, 0, 0]}  # c: about
    assert measures is not None and measures.pairs == pytest.approx((0.5 + 0.5 + 0) / 3)
    assert labels_of({"d": shown["d"]})[2] is None


def hostile(**of_a) -> bytes:
    shown = {"least": 10, "rows": 8, "columns": {"a": {"missing": 0} | of_a}}
    return json.dumps(shown).encode()


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"{", "wrong at the whole: Invalid JSON"),
        (b'{"least": 10, "rows": -1}', "wrong at rows: Input should be greater than"),
        (b'{"least": 10, "rows": 1, "more": 2}', "wrong at more: Extra inputs are not"),
        (b'{"least": 10, "rows": 1, "columns": {"a\\u001b": {}}}', "wrong at columns"),
        (b'{"least": 10, "rows": 1, "target": "y"}', "the target is no column"),
        (hostile(kind="values", counts={"x": 1}), "a value is no number"),
        (hostile(kind="texts", counts={"x": 9}), "a column has more cells than there are rows"),
        (hostile(kind="number", mean=1.0), "mean, deviation and quantiles are told together"),
        (hostile(kind="number", mean=1e300), "wrong at columns.a.mean: Input should be less"),
    ],
)
def test_a_description_of_a_hostile_site_is_refused(raw, says):
    refused(lambda: parsed(raw), says)
    whole = described(as_table("x", {"y": ["a"] * 30 + ["b"] * 3}), [], "y", 10)
    assert parsed(whole.model_dump_json().encode()) == whole
