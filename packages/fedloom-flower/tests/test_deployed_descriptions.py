"""Sites are described before anything is trained: they tell what their people agreed to, and one
preparation is made of it for all.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner

pytest.importorskip("pandas", reason="the extra tables is not installed")

from federations.places import Here, folder, site_file, table
from fedloom.cli.__main__ import cli
from fedloom.cli.describe import in_tables
from fedloom.config import resolve
from fedloom.config.sources import read
from fedloom.data.own.cells import inputs
from fedloom.data.own.description import ColumnDescription, Description
from fedloom.data.own.notices import notices
from fedloom.data.own.preparation import Column, preparation_of
from fedloom.errors import CompositionError, ConfigError, DataError
from fedloom_flower.agreed_rules import agreed_rules
from fedloom_flower.describing import describe, descriptions
from fedloom_flower.message import ANSWER, Ask, decode, encode
from fedloom_flower.server import serve
from fedloom_flower.sites import ClientSite, describe_site
from fedloom_flower.telling import Preparation, read_consent, write_consent

SETTINGS = """
name = "wards"
rounds = 2
cohort = 3
algorithm = "fedavg"
model = {name = "mlp", inputs = 1, hidden = [4], classes = 2}
local = {epochs = 1, batch = 8, lr = 0.1}
[data]
name = "table"
target = "outcome"
partition = "natural"
columns = {ward = "one_hot"}
missing = "median"
standardise = true
"""
WARDS = (["Chirurgie", "Innere"], ["Innere", "Nephrologie"], ["Innere", "Chirurgie"])


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


def agree(fed, sites):
    for i, file in enumerate(sites):
        write_consent(fed.node(i), describe_site(fed.node(i), file))


def test_sites_that_agreed_are_described_and_get_one_preparation(fed, sites):
    agree(fed, sites)
    here = Here(fed, sites)
    with pytest.raises(
        CompositionError, match=r"data.columns is found .*run `fedloom deploy descr"
    ):
        serve(fed, lambda clients: here)
    describe(fed, lambda clients: here)
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
    own = here.places[1]._data.inputs
    assert own.shape == (60, 5) and own[7, 2:].tolist() == [0, 0, 0]  # a ward that nobody told
    describe(fed, lambda clients: here)  # once more, and nothing changes
    assert fed.run_file.read_text("utf-8") == runs[0]
    ours = serve(fed, lambda clients: here)
    assert ours.history[-1]["answered"] == 3


def test_the_server_sees_the_description_and_nothing_else(fed, sites, tmp_path):
    agree(fed, sites)
    place, sent = ClientSite(fed.node(1), sites[1]), []
    for what in ("describe", "join", "probe", "round", "evaluate"):
        run = "r@described" if what == "describe" else place._run
        ask = Ask(run=run, what=what, round=-1, client=1, taken=-1, kept=0)
        sent.append(decode(ANSWER, place.answer(encode(ask, {}))))
    (head, parts), *others = sent
    assert {*parts} == {"description"} and json.loads(parts["description"])["rows"] == 60
    assert b"Augen" not in parts["description"]
    assert head.model_dump().keys() == {"run", "what", "round", "client", "parts", "kind", "digest"}
    assert {answer.why for answer, _ in others} == {
        "this node waits to be described; run `fedloom deploy describe`"
    }


def test_who_says_no_tells_nothing_and_another_table_is_another_question(fed, sites, tmp_path):
    def asked():
        return CliRunner().invoke(cli, ["deploy", "describe", *words], input="n\n")

    words = [str(fed.path), "--client", "1", "--data", str(sites[1])]
    assert (no := asked()).exit_code == 2 and "error: nothing is told" in no.output
    # Augen is rare, and the ward of the first row is withheld with it
    assert "Innere: 21, Nephrologie: -" in no.output and "Augen" not in no.output
    agree(fed, [sites[0]])
    says = "client 1 cannot be described: its people have not agreed to what would be told"
    with pytest.raises(DataError, match=says):
        describe(fed, lambda clients: Here(fed, sites))
    assert CliRunner().invoke(cli, ["deploy", "describe", *words, "--yes"]).exit_code == 0
    assert "agreed before" in asked().output and fed.node(1).description_file.is_file()
    hospital(tmp_path / "1.csv", WARDS[1], 5)
    assert asked().exit_code == 2
    with pytest.raises(DataError, match=says):
        describe(fed, lambda clients: Here(fed, sites))
    assert not fed.description_file.is_file() and not read(fed.run_file)["data"]["rules"]
    other = CliRunner().invoke(cli, ["deploy", "describe", str(fed.path), "--yes"])
    assert other.exit_code == 2 and "--yes are for a site" in other.output


def test_rules_that_a_site_does_not_know_are_refused_there(fed, sites, caplog):
    agree(fed, sites)
    place = ClientSite(fed.node(0), sites[0])

    def answer(rules):
        made = Preparation(rules=rules, class_names=["ill", "well"])
        ask = Ask(run="r@described", what="prepare", round=-1, client=0, taken=-1, kept=0)
        parts = {"preparation": made.model_dump_json().encode()}
        return decode(ANSWER, place.answer(encode(ask, parts)))[0]

    age = {"name": "age", "fill": 50.0}
    for rules, says in (
        ([{"name": "patient"}], "uses column 'patient', of which this site told nothing"),
        ([{"name": "outcome"}], "uses column 'outcome', of which"),
        ([{"name": "sex", "kind": "one_hot", "values": ["0"]}], "its table cannot be used: its n"),
    ):
        assert says in answer(rules).why and not read(fed.node(0).run_file)["data"]["rules"]
    assert "is none of the agreed values (0)" in caplog.text  # here, and not at the server
    made = answer([age])
    assert made.kind == "told", made.why
    assert read(fed.node(0).run_file)["data"]["rules"] == [age]
    assert answer([age]).digest == made.digest
    assert "its run.toml has other rules already" in answer([{"name": "age"}]).why


def test_a_table_that_cannot_be_described_is_named_at_its_site(fed, sites, tmp_path):
    whole = (tmp_path / "1.csv").read_text("utf-8")
    words = ["deploy", "describe", str(fed.path), "--client", "1", "--data", str(sites[1])]
    for text, says in (
        ("", "1.csv is empty; it needs a header"),
        (whole.replace("outcome", "end"), "1.csv has no column 'outcome'"),
        (whole.replace("\n", "\n?,1,Innere,ill\n", 1), "column 'age', row 1: '?' is no finite"),
    ):
        (tmp_path / "1.csv").write_text(text, encoding="utf-8")
        end = CliRunner().invoke(cli, words)
        assert end.exit_code == 2 and says in end.output and end.output.count("\n") == 1
    (tmp_path / "1.csv").write_text(whole.replace("ward,", "dept,"), encoding="utf-8")
    agree(fed, sites)
    with pytest.raises(DataError, match="client 1 has no column 'ward', which north has; give all"):
        describe(fed, lambda clients: Here(fed, sites))
    with pytest.raises(DataError, match="client 2 has not been described within 60 s; start its n"):
        describe(fed, lambda clients: Here(fed, sites, off=[2]))
    with pytest.raises(CompositionError, match="data 'digits' cannot be described: only a table"):
        digits = folder(tmp_path / "d", resolve("digits"))
        describe(digits, lambda clients: None)
    sites[1].write_text('[data]\nname = "folders"\n')
    with pytest.raises(ConfigError, match="only a table can be described; it needs"):
        describe_site(fed.node(1), sites[1])


def rules(*columns, **data):
    of = [ColumnDescription(**{"missing": 0} | column) for column in columns]
    label = ColumnDescription(kind="values", missing=0, counts={"0": 100})
    told = {
        f"site {i}": Description(least=10, rows=100, target="y", columns={"a": c, "y": label})
        for i, c in enumerate(of)
    }
    plain = {"target": "y", "inputs": (), "standardise": False}
    return agreed_rules(told, plain | {"class_names": (), "per_client": False} | data)[0]


NUMBERS = {"kind": "number", "mean": 3.0, "deviation": 2.0, "quantiles": [1.0, 2.0, 3.0, 4.0, 5.0]}


def test_fills_and_scales_are_those_of_all_rows():
    """Two sites of 100 rows: means 3 and 7, deviations 2 and 0, so all have 5 and sqrt(2 + 4)."""
    other = {"kind": "number", "mean": 7.0, "deviation": 0.0, "quantiles": [7.0] * 5}
    (scaled,) = rules(NUMBERS, other, standardise=True)
    assert scaled == {"name": "a", "kind": "number", "mean": 5.0, "std": 2.44949}
    (filled,) = rules(NUMBERS, other | {"missing": None}, missing="median")
    assert filled == {"name": "a", "kind": "number", "fill": 5.0}
    withheld = {"kind": "values", "counts": {"0": None, "1": 20}}
    (scaled,) = rules(withheld, standardise=True)
    assert scaled["mean"] == 0.2 and scaled["std"] == 0.4
    assert rules(NUMBERS, withheld) == [{"name": "a", "kind": "number"}]
    assert rules(NUMBERS, withheld, standardise=True, per_client=True) == rules(NUMBERS, withheld)
    (scaled,) = rules(withheld, columns={"a": "one_hot"}, standardise="with_categories")
    assert scaled["mean"] == [0.8, 0.2] and scaled["std"] == [0.4, 0.4]
    (scaled,) = rules(withheld, columns={"a": "dummy"}, standardise="with_categories")
    assert scaled["mean"] == [0.2] and "others" not in scaled


def test_a_category_that_nobody_told_is_none_in_an_export_too():
    rule = Column("a", "one_hot", ("x", "y"), predefined=True, others=True).rule()
    cells = np.array(["z", "y"], dtype=object)
    assert inputs(cells, rule, strict=True).tolist() == [[0, 0], [0, 1]]
    with pytest.raises(ValueError, match="'z' is none of x, y"):
        inputs(cells, rule | {"others": False}, strict=True)
    with pytest.raises(DataError, match=r"others = true is for one_hot, got True of dummy"):
        preparation_of([{"name": "a", "kind": "dummy", "others": True}])


def test_what_cannot_be_agreed_is_said():
    texts = {"kind": "texts", "counts": {"x": 60, "y": None}}
    assert rules(texts, columns={"*": "one_hot"})[0]["values"] == ["x", "y"]
    assert rules(texts, columns={"a": ("y", "x", "z")})[0] == {
        "name": "a",
        "kind": "ordinal",
        "values": ["y", "x", "z"],
    }
    for given, data, says in (
        ([texts], {}, "column 'a' holds texts at site 0; write data.columns.a = one_hot"),
        ([NUMBERS, texts], {}, "column 'a' holds numbers at site 0 and texts at site 1"),
        ([texts | {"counts": {}}], {"columns": {"*": "one_hot"}}, "no value that a site may tell"),
        ([{"kind": "number"}], {"standardise": True}, "column 'a' has no value that a site may te"),
        ([NUMBERS | {"missing": 12}], {}, "column 'a' has or may have empty cells at site 0; fill"),
        ([texts], {"columns": {"a": "onehot"}}, "data.columns.a: unknown kind of column 'onehot'"),
        ([NUMBERS], {"missing": "most_frequent"}, None),
        (
            [NUMBERS | {"missing": None}],
            {"missing": "most_frequent"},
            "no site tells which number is most frequent in 'a'; take median",
        ),
    ):
        if says is None:
            assert rules(*given, **data)
            continue
        with pytest.raises(DataError, match=says):
            rules(*given, **data)
    with pytest.raises(DataError, match="no site has as many rows as its least count"):
        agreed_rules({"a": Description(least=10, rows=None)}, {})
    with pytest.raises(
        DataError, match=r"site 0 tells nothing of column 'b', which run\.toml name"
    ):
        rules(NUMBERS, inputs=["b"])


def texts(rows=60, **counts):
    return ColumnDescription(kind="texts", missing=0, counts=counts)


def test_sites_of_one_class_and_columns_without_a_common_value_are_named():
    def site(sex, label):
        return Description(least=10, rows=60, target="y", columns={"sex": sex, "y": label})

    both, none = texts(no=40, yes=20), texts(no=60)
    kiel = site(texts(w=30, m=30), none)
    bonn, ulm = site(texts(F=30, M=30), both), site(texts(F=30, M=30), texts(no=None, yes=None))
    codes = ColumnDescription(kind="values", missing=0, counts={"1": 30, "2": 30})
    said = notices({"bonn": bonn, "kiel": kiel, "ulm": ulm})
    assert len(said) == 2 and said[0].startswith("kiel: all training rows are 'no': are its labels")
    assert said[1].startswith("column 'sex': bonn has F, M and kiel w, m, none in common. If they")
    assert said[1].endswith('below [data]: recode.sex = { "w" = "...", "m" = "M" }')
    (said,) = notices({"bonn": bonn, "lyon": site(codes, both)})
    assert said.endswith('recode.sex = { "1" = "...", "2" = "..." }')
    assert notices({"bonn": bonn, "ulm": ulm, "lyon": site(texts(F=30, X=30), both)}) == []
    assert notices({"a": site(codes, both), "b": site(codes, both), "c": bonn}) != []
    assert notices({"few": Description(least=10, rows=None, target="y"), "bonn": bonn}) == []
    assert "warning: kiel: all training rows are 'no'" in in_tables({"kiel": kiel})


def test_a_site_of_one_class_is_named_before_round_1(tmp_path):
    files = [
        site_file(tmp_path / f"{i}.toml", path := table(tmp_path / f"{i}.csv", 12, seed=i), path)
        for i in range(3)
    ]
    lines = (tmp_path / "1.csv").read_text().splitlines()
    alike = [lines[0], *(f"{line.rpartition(',')[0]},2" for line in lines[1:])]
    (tmp_path / "1.csv").write_text("\n".join(alike) + "\n")
    words = ["model=logistic", "model.inputs=3", "model.classes=3", "cohort=3", "rounds=1"]
    fed = folder(tmp_path, resolve("digits", words), evaluate="nodes")
    serve(fed, lambda clients: Here(fed, files))
    (said,) = fed.notices_file.read_text().splitlines()
    assert said.startswith("client 1: all training rows are of one class: are its labels read as")
    assert "one_class" not in fed.agreement_file.read_text()  # other sites do not learn it


def test_a_site_recodes_its_cells_before_they_are_described_and_used(fed, sites, tmp_path):
    agree(fed, sites)
    text = (tmp_path / "1.csv").read_text("utf-8")
    (tmp_path / "1.csv").write_text(text.replace("Innere", "INN").replace("ill", "krank"))
    words = '"INN" = "Innere" }\noutcome = { krank = "ill" }\n'
    sites[1].write_text(sites[1].read_text() + f"[data.recode]\nward = {{ {words}")
    assert describe_site(fed.node(1), sites[1]) == read_consent(fed.node(1))
    here = Here(fed, sites)
    describe(fed, lambda clients: here)
    assert read(fed.run_file)["data"]["rules"][2]["values"] == [
        "Chirurgie",
        "Innere",
        "Nephrologie",
    ]
    assert here.places[1]._data.inputs[:, 3].sum() > 10
    sites[1].write_text(sites[1].read_text().replace("ward =", "dept ="))
    with pytest.raises(
        DataError, match=r"1.csv has no column 'dept'; known: age, outcome, sex, ward"
    ):
        describe_site(fed.node(1), sites[1])
