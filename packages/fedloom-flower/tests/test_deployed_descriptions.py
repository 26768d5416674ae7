"""Sites are described before anything is trained: they tell what their people agreed to, and one
preparation is made of it for all.
"""

from __future__ import annotations

import json

import numpy as np
import pytest

pytest.importorskip("pandas", reason="the extra tables is not installed")

from federations.places import WARDS_TOML, Here, asking, folder, said_by, site_file, typed
from fedloom.cli.describe import in_tables
from fedloom.config import resolve
from fedloom.config.sources import read
from fedloom.data.own.cells import inputs
from fedloom.data.own.description import ColumnDescription, Description, notices
from fedloom.data.own.preparation import Column, preparation_of
from fedloom.errors import CompositionError, ConfigError, DataError
from fedloom_flower.agreed_rules import agreed_rules
from fedloom_flower.message import ANSWER, decode, encode
from fedloom_flower.server import describe, descriptions
from fedloom_flower.sites import ClientSite, describe_site
from fedloom_flower.telling import Preparation, read_consent, write_consent

SETTINGS = WARDS_TOML + 'columns = {ward = "one_hot"}\nmissing = "median"\nstandardise = true\n'
WARDS = (["Chirurgie", "Innere"], ["Innere", "Nephrologie"], ["Innere", "Chirurgie"])
rules_of = lambda fed: read(fed.run_file)["data"]["rules"]


def hospital(path, wards, seed, rows=60):
    draw = np.random.default_rng(seed)
    lines = ["age,sex,ward,outcome"]
    for row in range(rows):
        age = int(draw.integers(20, 90))
        ward = "Augen" if row == 7 else draw.choice(wards, p=[0.4, 0.6])
        shown = "" if draw.random() < 0.03 else age
        lines.append(f"{shown},{row % 2},{ward},{'ill' if age > 55 else 'well'}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def sites(tmp_path):
    files = [hospital(tmp_path / f"{i}.csv", wards, i) for i, wards in enumerate(WARDS)]
    return [site_file(file.with_suffix(".toml"), file, file) for file in files]


@pytest.fixture
def fed(tmp_path):
    (tmp_path / "my.toml").write_text(SETTINGS, encoding="utf-8")
    return folder(tmp_path, resolve(tmp_path / "my.toml"), evaluate="nodes")


@pytest.fixture
def agreed(fed, sites):
    """Of all sites what would be told was agreed to."""
    for i, file in enumerate(sites):
        write_consent(fed.node(i), describe_site(fed.node(i), file))


def described(fed, sites, **more):
    here = Here(fed, sites, **more)
    describe(fed, lambda clients: here)
    return here


# ------------------------------ what is told
def test_sites_that_agreed_are_described_and_get_one_preparation(fed, sites, agreed):
    with pytest.raises(CompositionError, match=r"data.columns is found .*run `fedloom deploy desc"):
        Here(fed, sites).serve()
    here = described(fed, sites)
    told = descriptions(fed)
    assert [*told] == ["north", "client 1", "south"] and told["north"].rows == 60
    runs = [place.run_file.read_text("utf-8") for place in (fed, *map(fed.node, range(3)))]
    assert len({*runs}) == 1 and runs[0].startswith("# data.rules, data.class_names: agreed, ")
    values = read(fed.run_file)
    age, sex, ward = values["data"]["rules"]
    assert ward["values"] == ["Chirurgie", "Innere", "Nephrologie"] and ward["others"] is True
    assert sex["name"] == "sex" and sex["mean"] == 0.5 == sex["std"]
    assert 50 < age["fill"] < 60 and 18 < age["std"] < 22
    assert values["data"]["class_names"] == ["ill", "well"] and values["model"]["inputs"] == 5
    assert Preparation.in_table(values["data"]).digest in runs[0].splitlines()[0]
    describe(fed, lambda clients: here)  # once more, and nothing changes
    assert fed.run_file.read_text("utf-8") == runs[0]
    assert here.serve().history[-1]["answered"] == 3
    own = here.data(1).inputs
    assert own.shape == (60, 5) and own[7, 2:].tolist() == [0, 0, 0]  # a ward that nobody told


def test_the_server_sees_the_description_and_nothing_else(fed, sites, agreed):
    place = ClientSite(fed.node(1), sites[1])
    raw = place.answer(encode(asking("describe", -1, 1, "r@described"), {}))
    head, parts = decode(ANSWER, raw)
    assert {*parts} == {"description"} and json.loads(parts["description"])["rows"] == 60
    assert b"Augen" not in parts["description"]
    assert head.model_dump().keys() == {"run", "what", "round", "client", "parts", "kind"}
    for what in ("join", "probe", "round", "evaluate"):
        why = said_by(place, asking(what, -1, 1)).why
        assert why == "this node waits to be described; run `fedloom deploy describe`"


def test_who_says_no_tells_nothing_and_another_table_is_another_question(fed, sites, tmp_path):
    words = ("deploy", "describe", fed.path, "--client", "1", "--data", sites[1])
    no = typed(*words, input="n\n", code=2)
    # Augen is rare, and the ward of the first row is withheld with it
    assert "error: nothing is told" in no and "Augen" not in no
    assert "Innere: 21, Nephrologie: -" in no
    write_consent(fed.node(0), describe_site(fed.node(0), sites[0]))
    says = "client 1 cannot be described: its people have not agreed to what would be told"
    with pytest.raises(DataError, match=says):
        described(fed, sites)
    typed(*words, "--yes")
    assert "agreed before" in typed(*words) and fed.node(1).description_file.is_file()
    hospital(tmp_path / "1.csv", WARDS[1], 5)
    typed(*words, input="n\n", code=2)
    with pytest.raises(DataError, match=says):
        described(fed, sites)
    assert not fed.description_file.is_file() and not rules_of(fed)
    assert "--yes are for a site" in typed("deploy", "describe", fed.path, "--yes", code=2)


def test_rules_that_a_site_does_not_know_are_refused_there(fed, sites, agreed, caplog):
    place = ClientSite(fed.node(0), sites[0])

    def answer(*rules):
        made = Preparation(rules=[*rules], class_names=["ill", "well"]).model_dump_json().encode()
        return said_by(place, asking("prepare", run="r@described"), {"preparation": made})

    age = {"name": "age", "fill": 50.0}
    for rule, says in (
        ({"name": "patient"}, "uses column 'patient', of which this site told nothing"),
        ({"name": "outcome"}, "uses column 'outcome', of which"),
        ({"name": "sex", "kind": "one_hot", "values": ["0"]}, "its table cannot be used: its n"),
    ):
        assert says in answer(rule).why and not rules_of(fed.node(0))
    assert "is none of the agreed values (0)" in caplog.text  # here, and not at the server
    made = answer(age)
    assert made.kind == "blocks" and rules_of(fed.node(0)) == [age]
    assert answer(age) == made
    assert "its run.toml has other rules already" in answer({"name": "age"}).why


def test_a_table_that_cannot_be_described_is_named_at_its_site(fed, sites, tmp_path):
    whole = (tmp_path / "1.csv").read_text("utf-8")
    for text, says in (
        ("", "1.csv is empty; it needs a header"),
        (whole.replace("outcome", "end"), "1.csv has no column 'outcome'"),
        (whole.replace("\n", "\n?,1,Innere,ill\n", 1), "column 'age', row 1: '?' is no finite"),
    ):
        (tmp_path / "1.csv").write_text(text, encoding="utf-8")
        words = ("deploy", "describe", fed.path, "--client", "1", "--data", sites[1])
        said = typed(*words, code=2)
        assert says in said and said.count("\n") == 1
    sites[1].write_text('[data]\nname = "folders"\n')
    with pytest.raises(ConfigError, match="only a table can be described; it needs"):
        describe_site(fed.node(1), sites[1])


def test_who_cannot_be_described_is_named(fed, sites, tmp_path):
    text = (tmp_path / "1.csv").read_text("utf-8")
    (tmp_path / "1.csv").write_text(text.replace("ward,", "dept,"), encoding="utf-8")
    for i, file in enumerate(sites):
        write_consent(fed.node(i), describe_site(fed.node(i), file))
    with pytest.raises(DataError, match="client 1 has no column 'ward', which north has; give all"):
        described(fed, sites)
    with pytest.raises(DataError, match="client 2 has not been described within 60 s; start its n"):
        described(fed, sites, off=[2])
    with pytest.raises(CompositionError, match="data 'digits' cannot be described: only a table"):
        describe(folder(tmp_path / "d", resolve("digits")), lambda clients: None)


def test_a_site_recodes_its_cells_before_they_are_described_and_used(fed, sites, agreed, tmp_path):
    text = (tmp_path / "1.csv").read_text("utf-8")
    (tmp_path / "1.csv").write_text(text.replace("Innere", "INN").replace("ill", "krank"))
    words = '"INN" = "Innere" }\noutcome = { krank = "ill" }\n'
    sites[1].write_text(sites[1].read_text() + f"[data.recode]\nward = {{ {words}")
    assert describe_site(fed.node(1), sites[1]) == read_consent(fed.node(1))
    here = described(fed, sites)
    assert rules_of(fed)[2]["values"] == ["Chirurgie", "Innere", "Nephrologie"]
    here.serve()
    assert here.data(1).inputs[:, 3].gt(0).sum() > 10
    sites[1].write_text(sites[1].read_text().replace("ward =", "dept ="))
    known = r"1.csv has no column 'dept'; known: age, outcome, sex, ward"
    with pytest.raises(DataError, match=known):
        describe_site(fed.node(1), sites[1])


# ------------------------------ the rules that are agreed
def rules(*columns, **data):
    label = ColumnDescription(kind="values", missing=0, counts={"0": 100})
    about = {"least": 10, "rows": 100, "target": "y"}
    of = [ColumnDescription(**{"missing": 0} | column) for column in columns]
    told = {
        f"site {i}": Description(**about, columns={"a": c, "y": label}) for i, c in enumerate(of)
    }
    plain = {"target": "y", "inputs": (), "standardise": False}
    return agreed_rules(told, plain | {"class_names": (), "per_client": False} | data)[0]


NUMBERS = {"kind": "number", "mean": 3.0, "deviation": 2.0, "quantiles": [1.0, 2.0, 3.0, 4.0, 5.0]}
SEVENS = {"kind": "number", "mean": 7.0, "deviation": 0.0, "quantiles": [7.0] * 5}
FLAGS = {"kind": "values", "counts": {"0": None, "1": 20}}  # of 100 rows
TEXTS = {"kind": "texts", "counts": {"x": 60, "y": None}}
WITH = {"standardise": "with_categories"}
counted = lambda kind="texts", **counts: ColumnDescription(kind=kind, missing=0, counts=counts)


@pytest.mark.parametrize(
    ("columns", "data", "rule"),
    [
        # means 3 and 7, deviations 2 and 0, so all rows have 5 and sqrt(2 + 4)
        ([NUMBERS, SEVENS], {"standardise": True}, {"kind": "number", "mean": 5.0, "std": 2.44949}),
        (
            [NUMBERS, SEVENS | {"missing": None}],
            {"missing": "median"},
            {"kind": "number", "fill": 5.0},
        ),
        ([FLAGS], {"standardise": True}, {"kind": "number", "mean": 0.2, "std": 0.4}),
        ([NUMBERS, FLAGS], {}, {"kind": "number"}),
        ([NUMBERS, FLAGS], {"standardise": True, "per_client": True}, {"kind": "number"}),
        ([NUMBERS], {"missing": "most_frequent"}, {"kind": "number"}),
        ([FLAGS], WITH | {"columns": {"a": "one_hot"}}, {"mean": [0.8, 0.2], "std": [0.4, 0.4]}),
        ([FLAGS], WITH | {"columns": {"a": "dummy"}}, {"mean": [0.2], "others": None}),
        ([TEXTS], {"columns": {"*": "one_hot"}}, {"values": ["x", "y"]}),
        (
            [TEXTS],
            {"columns": {"a": ("y", "x", "z")}},
            {"kind": "ordinal", "values": ["y", "x", "z"]},
        ),
    ],
)
def test_fills_scales_and_values_are_those_of_all_rows(columns, data, rule):
    (made,) = rules(*columns, **data)
    assert {key: made.get(key) for key in rule} == rule
    if made["kind"] == "number":
        assert made == {"name": "a"} | rule


@pytest.mark.parametrize(
    ("columns", "data", "says"),
    [
        ([TEXTS], {}, "column 'a' holds texts at site 0; write data.columns.a = one_hot"),
        ([NUMBERS, TEXTS], {}, "column 'a' holds numbers at site 0 and texts at site 1"),
        ([TEXTS | {"counts": {}}], {"columns": {"*": "one_hot"}}, "no value that a site may tell"),
        ([{"kind": "number"}], {"standardise": True}, "column 'a' has no value that a site may te"),
        ([NUMBERS | {"missing": 12}], {}, "column 'a' has or may have empty cells at site 0; fill"),
        ([TEXTS], {"columns": {"a": "onehot"}}, "data.columns.a: unknown kind of column 'onehot'"),
        (
            [NUMBERS | {"missing": None}],
            {"missing": "most_frequent"},
            "no site tells which number is most frequent in 'a'; take median",
        ),
        ([NUMBERS], {"inputs": ["b"]}, r"site 0 tells nothing of column 'b', which run\.toml name"),
    ],
)
def test_what_cannot_be_agreed_is_said(columns, data, says):
    with pytest.raises(DataError, match=says):
        rules(*columns, **data)


def test_sites_of_too_few_rows_agree_on_nothing():
    with pytest.raises(DataError, match="no site has as many rows as its least count"):
        agreed_rules({"a": Description(least=10, rows=None)}, {})


def test_a_category_that_nobody_told_is_none_in_an_export_too():
    rule = Column("a", "one_hot", ("x", "y"), predefined=True, others=True).rule()
    cells = np.array(["z", "y"], dtype=object)
    assert inputs(cells, rule, strict=True).tolist() == [[0, 0], [0, 1]]
    with pytest.raises(ValueError, match="'z' is none of x, y"):
        inputs(cells, rule | {"others": False}, strict=True)
    with pytest.raises(DataError, match=r"others = true is for one_hot, got True of dummy"):
        preparation_of([{"name": "a", "kind": "dummy", "others": True}])


# ------------------------------ what looks like a mistake
def test_sites_of_one_class_and_columns_without_a_common_value_are_named():
    def site(sex, label):
        return Description(least=10, rows=60, target="y", columns={"sex": sex, "y": label})

    both, none = counted(no=40, yes=20), counted(no=60)
    kiel, bonn = site(counted(w=30, m=30), none), site(counted(F=30, M=30), both)
    ulm = site(counted(F=30, M=30), counted(no=None, yes=None))
    codes = site(counted("values", **{"1": 30, "2": 30}), both)
    said = notices({"bonn": bonn, "kiel": kiel, "ulm": ulm})
    assert len(said) == 2 and said[0].startswith("kiel: all training rows are 'no': are its labels")
    assert said[1].startswith("column 'sex': bonn has F, M and kiel w, m, none in common. If they")
    assert said[1].endswith('below [data]: recode.sex = { "w" = "...", "m" = "M" }')
    (said,) = notices({"bonn": bonn, "lyon": codes})
    assert said.endswith('recode.sex = { "1" = "...", "2" = "..." }')
    assert notices({"bonn": bonn, "ulm": ulm, "lyon": site(counted(F=30, X=30), both)}) == []
    assert notices({"a": codes, "b": codes, "c": bonn}) != []
    assert notices({"few": Description(least=10, rows=None, target="y"), "bonn": bonn}) == []
    assert "warning: kiel: all training rows are 'no'" in in_tables({"kiel": kiel})
