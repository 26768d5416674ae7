"""Agreed rules of a table's columns: a column means the same in every file."""

from __future__ import annotations

import json

import pytest
import torch

from fedloom.config import resolve
from fedloom.data import iid, table
from fedloom.data.own.preparation import preparation_of, rules_of
from fedloom.errors import DataError

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
        (tmp_path / f"{name}.csv").write_text(rows, encoding="utf-8")
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


def test_found_rules_written_out_give_the_same_inputs(sites):
    """By way of TOML, which the settings of a run are written in."""
    (sites / "my.toml").write_text(
        f"""rounds = 1
algorithm = "fedavg"
model = {{name = "mlp", inputs = 6, classes = 2}}
[data]
name = "table"
path = "{sites}/*.csv"
partition = "natural"
inputs = ["age", "ward", "stage"]
columns = {{ward = "one_hot", stage = "one_hot"}}
missing = "mean"
standardise = true
"""
    )
    config = resolve(sites / "my.toml")
    found = config.data()
    kept = {"name": "table", "path": config.values["data"]["path"], "rules": rules_of(found.raw)}
    assert kept["rules"][1] == {
        "name": "ward",
        "kind": "one_hot",
        "values": ["Chirurgie", "Innere", "Nephrologie"],
        "fill": "Innere",
    }
    values = {**config.values, "data": kept | {"partition": "natural"}}
    (sites / "again.toml").write_text(type(config)(values, config.origin).to_toml())
    again = resolve(sites / "again.toml").data()
    told = json.loads(json.dumps(found.raw.about()))["rules"]  # as partition.json has them
    assert rules_of(preparation_of(told)) == kept["rules"]
    assert torch.equal(again.inputs, found.inputs) and again.inputs[:, 0].unique().numel() > 2
    assert rules_of(again.raw) == kept["rules"]


def test_a_fill_that_is_no_value_is_left_out(tmp_path):
    (tmp_path / "t.csv").write_text("ward,label\nA,0\nB,1\n")
    how = {"columns": {"ward": "one_hot"}, "missing": "unknown"}
    found = table(iid(1), path=tmp_path / "t.csv", **how)
    assert rules_of(found.raw) == [{"name": "ward", "kind": "one_hot", "values": ["A", "B"]}]


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (
            "Nephrologie",
            "Augen",
            "ulm.csv, column 'ward', row 1: 'Augen' is none of the agreed values (Chirurgie, "
            "Gynäkologie, Innere, Nephrologie); correct the cell, take the row out, or add",
        ),
        ("2,N", "4,N", "ulm.csv, column 'stage', row 1: '4' is none of the agreed values (1, 2, 3"),
        ("2,N", ",N", "ulm.csv, column 'stage', row 1 is empty; fill such cells by fill = ... in"),
        ("60", "old", "ulm.csv, column 'age', row 1: 'old' is no finite number"),
        ("ward", "Ward", "ulm.csv has no column 'ward'; did you mean 'Ward'?"),
        ("no", "maybe", "ulm.csv, column 'label', row 1: class 'maybe' is none of no, yes"),
    ],
)
def test_cells_that_do_not_fit_are_named(sites, old, new, says):
    file = sites / "ulm.csv"
    file.write_text(file.read_text("utf-8").replace(old, new, 1), encoding="utf-8")
    with pytest.raises(DataError) as found:
        table(iid(1), path=file, rules=RULES, class_names=["no", "yes"])
    assert says in str(found.value) and "\n" not in str(found.value)


@pytest.mark.parametrize(
    ("rules", "options", "says"),
    [
        ([{"kind": "number"}], {}, "rules: an entry has no name: {'kind': 'number'}"),
        ([{"name": "a"}, {"name": "a"}], {}, "rules, column 'a': it has two entries; keep one"),
        ([{"name": "a", "filll": 1}], {}, "column 'a': unknown key 'filll'; did you mean 'fill'?"),
        ([{"name": "a", "kind": "onehot"}], {}, "column 'a': unknown kind 'onehot'; did you mean"),
        ([{"name": "a", "kind": "one_hot"}], {}, "values must be a list of texts or numbers, got"),
        ([{"name": "a", "kind": "ordinal", "values": ["1", 1.0]}], {}, "the value 1 is there tw"),
        ([{"name": "a", "values": ["x"]}], {}, "a number has no values; take kind = one_hot or"),
        ([{"name": "a", "fill": "x"}], {}, "fill must be a number, got 'x'"),
        ([{"name": "a", "std": 0}], {}, "std must be above 0, got 0"),
        ([{"name": "a", "mean": float("nan")}], {}, "mean must be a number, got nan"),
        (
            [{"name": "a", "kind": "one_hot", "values": ["x"], "fill": "y"}],
            {},
            "fill must be one of its values (x), got 'y'",
        ),
        (
            [{"name": "a", "kind": "one_hot", "values": ["x"], "std": 2.0}],
            {},
            "std must be 1 numbers, one an input, got 2.0",
        ),
        ([{"name": "a"}], {"missing": 0}, "rules and missing are both given: rules say it all"),
        ([{"name": "a"}], {"inputs": ["a"]}, "rules and inputs are both given"),
        ([{"name": "a"}], {"text": "a"}, "rules and text are both given"),
    ],
)
def test_rules_that_cannot_be_are_refused(tmp_path, rules, options, says):
    (tmp_path / "t.csv").write_text("a,label\n1,0\n")
    with pytest.raises(DataError) as found:
        table(iid(1), path=tmp_path / "t.csv", rules=rules, **options)
    assert says in str(found.value) and "\n" not in str(found.value)
