"""Rows that two sites have are counted where their tables lie together."""

from __future__ import annotations

import pytest

pytest.importorskip("pandas", reason="the extra tables is not installed")

from fedloom.cli.describe import in_tables
from fedloom.data.own.columns import as_table
from fedloom.data.own.description import described_clients
from fedloom.data.own.duplicates import rows_of

PEOPLE = [f"Person {n:02d},{1940 + n}-01-02,{20 + n}" for n in range(80)]
OWN = {  # north has 30 of kiel's patients, south four of north's, and one of its own twice
    "north": PEOPLE[:50],
    "kiel": [line.upper().replace(" ", "  ") for line in PEOPLE[20:60]],
    "south": [*PEOPLE[46:50], *PEOPLE[60:80], PEOPLE[60]],
}


def test_patients_at_two_sites_are_counted(tmp_path):
    for name, lines in OWN.items():
        rows = [f"{line},{'ill' if n % 2 else 'well'}" for n, line in enumerate(lines)]
        text = "\n".join(["name,birth,age,outcome", *rows]) + "\n"
        (tmp_path / f"{name}.csv").write_text(text, encoding="utf-8")
    options = {"path": [str(tmp_path / f"{name}.csv") for name in OWN], "target": "outcome"}
    found = described_clients(options | {"identity": ["name", "birth"]}, 10)
    shared = {name: site.duplicates.shared for name, site in found.items()}
    assert shared["north"] == {"kiel": 30, "south": None}, "four are below the least count"
    assert shared["kiel"] == {"north": 30, "south": None}
    said = " ".join(in_tables(found).split())
    assert "rows alike at two sites, by name, birth: kiel and north: 30; of the others" in said
    south = tmp_path / "south.csv"
    for count in (4, None):  # in all columns, until the age of one is another
        every = described_clients(options, 4)["south"].duplicates
        assert every.shared == {"north": count, "kiel": count} and len(every.columns) == 4
        south.write_text(south.read_text().replace("-02,66", "-02,67"))


def test_which_rows_are_alike():
    def of(*rows, named=True):
        cells = {"a": [row[0] for row in rows], "b": [row[1] for row in rows]}
        return rows_of(as_table("here.csv", cells), ["a", "b"], named)

    one = of(("Ann  LEE", "01"))
    assert len(one) == 1
    assert one == of((" ann lee", "1.0")) == of(("\uff21nn Lee", " 1"))  # a wide A is an A
    others = (of(("Ann Li", "1")), of(("1", "Ann Lee")), of(("Ann Lee1", "")), of(("Ann", "Lee 1")))
    assert all(one != other for other in others)
    assert not of(("Ann", ""), ("", "")) and len(of(("Ann", ""), ("", ""), named=False)) == 1
