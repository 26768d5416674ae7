"""Rows that two sites have are counted by digests whose key the server lacks."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

pytest.importorskip("pandas", reason="the extra tables is not installed")

from fedloom.cli.__main__ import cli
from fedloom.cli.describe import in_tables
from fedloom.config import resolve
from fedloom.data.own.columns import as_table
from fedloom.deployment.describing import describe, descriptions
from fedloom.deployment.description import described_clients, described_table
from fedloom.deployment.duplicates import SIZE, digested, from_bytes
from fedloom.deployment.message import ANSWER, Ask, opened, sealed
from fedloom.deployment.sites import Place, told_at
from fedloom.deployment.telling import agree_to
from fedloom.errors import ConfigError, WireError
from support.places import Here, folder, site_file

KEY = "k" * 32
PEOPLE = [f"Person {n:02d},{1940 + n}-01-02,{20 + n}" for n in range(80)]
OWN = {  # north has 30 of client 1's patients, south four of north's, and one of its own twice
    "north": PEOPLE[:50],
    "client 1": [line.upper().replace(" ", "  ") for line in PEOPLE[20:60]],
    "south": [*PEOPLE[46:50], *PEOPLE[60:80], PEOPLE[60]],
}
SETTINGS = """
rounds = 1
cohort = 3
algorithm = "fedavg"
model = {name = "mlp", inputs = 1, hidden = [2], classes = 2}
local = {epochs = 1, batch = 8, lr = 0.1}
[data]
name = "table"
target = "outcome"
partition = "natural"
identity = ["name", "birth"]
standardise = true
"""


@pytest.fixture
def sites(tmp_path):
    files = []
    for i, (name, lines) in enumerate(OWN.items()):
        file = tmp_path / f"{name}.csv"
        rows = [f"{line},{'ill' if n % 2 else 'well'}" for n, line in enumerate(lines)]
        file.write_text("\n".join(["name,birth,age,outcome", *rows]) + "\n", encoding="utf-8")
        site = site_file(tmp_path / f"{i}.toml", file)
        (tmp_path / f"{i}.key").write_text(KEY + "\n" * i)
        site.write_text(f'duplicates_key = "{i}.key"\n{site.read_text()}')
        files.append(site)
    return files


@pytest.fixture
def fed(tmp_path):
    (tmp_path / "my.toml").write_text(SETTINGS, encoding="utf-8")
    return folder(tmp_path, resolve(tmp_path / "my.toml"), evaluate="nodes")


def told(fed, sites):
    for i, file in enumerate(sites):
        agree_to(fed.node(i), told_at(fed.node(i), file))
    describe(fed, lambda clients: Here(fed, sites))
    return descriptions(fed)


def test_a_federation_counts_what_one_place_would(fed, sites, tmp_path):
    found = told(fed, sites)
    shared = {name: site.duplicates.shared for name, site in found.items()}
    assert shared["north"] == {"client 1": 30, "south": None}, "four are below the least count"
    assert shared["client 1"] == {"north": 30, "south": None}
    options = {"path": [str(tmp_path / f"{name}.csv") for name in OWN], "target": "outcome"}
    here = described_clients(options | {"identity": ["name", "birth"]}, 10)
    assert here == found
    assert "name" not in found["north"].columns and "age" in found["north"].columns
    said = " ".join(in_tables(found).split())
    want = "rows alike at two sites, by name, birth: north and client 1: 30; of the others fewer"
    assert want in said and "duplicates_key" not in said
    south = tmp_path / "south.csv"
    for shared in (4, None):  # in all columns, until the age of one is another
        every = described_clients(options, 4)["south"].duplicates
        assert every.shared == {"north": shared, "client 1": shared} and len(every.columns) == 4
        south.write_text(south.read_text().replace("-02,66", "-02,67"))
    assert "Person" not in fed.told_file.read_text("utf-8")


def test_another_key_and_none_are_said(fed, sites, tmp_path):
    (tmp_path / "1.key").write_text("another key " * 3)
    sites[2].write_text(sites[2].read_text().replace('duplicates_key = "2.key"\n', ""))
    found = told(fed, sites)
    assert found["north"].duplicates.shared == {} and found["south"].duplicates is None
    said = " ".join(in_tables(found).split())
    assert "warning: these have different keys (duplicates_key): north and client 1" in said
    assert "rows at two sites are not looked for at south: no duplicates_key there" in said


def test_what_a_site_sends_is_digests_that_its_people_agreed_to(fed, sites, tmp_path):
    words = ["deploy", "describe", str(fed.path), "--client", "2", "--data", str(sites[2])]
    asked = CliRunner().invoke(cli, words, input="n\n").output
    assert "of each row a keyed digest of name, birth" in asked and KEY not in asked
    for i, file in enumerate(sites):
        agree_to(fed.node(i), told_at(fed.node(i), file))
    ask = Ask(run="r@described", what="describe", round=-1, client=2, taken=-1, kept=0)
    place = Place(fed.node(2), sites[2])
    parts = opened(ANSWER, place.answer(sealed(ask, {})))[1]
    assert len(parts["digests"]) == 24 * SIZE, "25 rows, one of them twice"
    assert KEY.encode() not in parts["description"] + parts["digests"]
    csv = tmp_path / "south.csv"
    csv.write_text(csv.read_text().replace("Person 70", "Person 99"))  # all else told is as before
    head, _ = opened(ANSWER, place.answer(sealed(ask, {})))
    assert "its people have not agreed" in head.why
    for text, says in (
        (None, "0.key' cannot be read: No such file"),
        ("short", "5 characters, an"),
    ):
        (tmp_path / "0.key").unlink() if text is None else (tmp_path / "0.key").write_text(text)
        with pytest.raises(ConfigError, match=says):
            told_at(fed.node(0), sites[0])


def test_which_rows_are_alike(tmp_path):
    def of(*rows, key=b"k" * 32, run="r", named=True):
        cells = {"a": [row[0] for row in rows], "b": [row[1] for row in rows]}
        return digested(as_table("here.csv", cells), ["a", "b"], named, key, run)[1]

    one = of(("Ann  LEE", "01"))
    assert len(one) == SIZE == 16
    assert one == of((" ann lee", "1.0")) == of(("\uff21nn Lee", " 1"))  # a wide A is an A
    others = (of(("Ann Li", "1")), of(("1", "Ann Lee")), of(("Ann Lee1", "")), of(("Ann", "Lee 1")))
    assert all(one != other for other in others)
    assert one != of(("Ann Lee", "1"), key=b"j" * 32) and one != of(("Ann Lee", "1"), run="s")
    assert of(("Ann", ""), ("", "")) == b"" and len(of(("Ann", ""), ("", ""), named=False)) == SIZE
    assert from_bytes(one, 1) == {one}
    for raw in (one[1:], one * 2):
        with pytest.raises(WireError, match="digests of"):
            from_bytes(raw, 1)
    (tmp_path / "x.csv").write_text("y\n" + "1\n" * 9)
    few = {"path": str(tmp_path / "x.csv"), "target": "y", "inputs": ["y"]}
    assert described_table(few, 10, b"k" * 32)[1] == b"", "a site of few rows tells nothing"
    assert json.loads(described_table(few, 9, b"k" * 32)[0].model_dump_json())["duplicates"]
