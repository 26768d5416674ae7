"""`fedloom paper run`: a list of tables is worked through, stopped, paused and gone on with."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest

from fedloom_papers import run as papers_run
from fedloom_papers.schedule import read_items

LIST = """
[[table]]
id = "fedsmoo:8"
scale = "smoke"
seeds = 2
rows = ["fedavg", "feddyn"]

[[table]]
id = "fafed:2c"
scale = "smoke"
seeds = 1
protocols = ["fashion-high"]
rows = ["fedavg"]
points = { fedavg = "local.lr=0.02" }
changes = ["rounds=3"]
"""
PLAN, OUT = Path("plan.toml"), Path("out")


@pytest.fixture
def run(fedloom):
    """`fedloom paper run` in a folder with a list of two small tables -> what it says."""
    PLAN.write_text(LIST)
    return lambda *words, **more: fedloom("paper", "run", PLAN, "--out", OUT, *words, **more).output


def lines():
    file = OUT / "lines.jsonl"
    return [json.loads(x) for x in file.read_text().splitlines()] if file.is_file() else []


def test_a_list_is_run_once_table_by_table(run):
    planned = lambda: [line.split()[:4] for line in run("--dry-run").splitlines()[1:]]
    assert planned() == [["fedsmoo:8", "smoke", "4", "4"], ["fafed:2c", "smoke", "1", "1"]]
    run("--quiet")
    made = lines()
    names = [line["settings"]["algorithm.name"] for line in made]
    assert names == ["fedavg", "feddyn"] * 2 + ["fedavg"], "all rows at a seed, then the next"
    assert [line["seed"] for line in made] == [0, 0, 1, 1, 0]
    assert made[-1]["settings"]["local.lr"] == 0.02 and made[-1]["rounds"] == 3
    run("--quiet", "--jobs", "2")
    assert len(lines()) == 5 and [left for *_, left in planned()] == ["0", "0"]
    # lines of another commit are not mixed
    old = [json.dumps(line | {"commit": "0123456789abcdef"}) + "\n" for line in lines()[1:]]
    (OUT / "lines.jsonl").write_text("".join(old))
    said = "left out: fedsmoo:8: its lines are of commit 0123456789ab"
    assert said in run("--quiet") and len(lines()) == 4
    run("--quiet", "--mix")
    assert len(lines()) == 5


def test_it_stops_when_time_is_up_and_goes_on(run):
    said = run("--quiet", "--hours", "1e-9")
    assert "time is up; run the same command again to resume" in said and not lines()
    run("--quiet", "--only", "fafed:2c", "--hours", "1")
    assert len(lines()) == 1


def test_it_waits_while_the_file_is_there(run, monkeypatch):
    monkeypatch.setattr(papers_run, "_POLL", 0.05)
    OUT.mkdir()
    pause, seen = (OUT / "pause").absolute(), []
    pause.touch()

    def release():
        time.sleep(1.5)
        seen.append(len(lines()))
        pause.unlink()

    thread = threading.Thread(target=release)
    thread.start()
    run("--quiet", "--only", "fafed:2c")
    thread.join()
    assert seen == [0] and len(lines()) == 1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", r"must have entries \[\[table\]\]"),
        ("[[table]]\nid = 'fedsmoo:8'\nname = 1", "has no key 'name'"),
        ("[[table]]\nseeds = 3", "table 1: id: Field required"),
        ("[[table]]\nid = 'fedsmoo:99'", "no table or figure|fedsmoo:99"),
        ("[[table]]\nid = 'fedsmoo:8'\nrows = ['fedavgg']", "did you mean 'fedavg'"),
        ("[[table]]\nid = 'fedsmoo:8'\nprotocols = ['c10']", "has no protocol 'c10'"),
        ("[[table]]\nid = 'fedsmoo:8'\npoints = { fedav = 'a=1' }", "has no row 'fedav'"),
        ("[[table]]\nid = 'fedsmoo:8'\nseeds = 0", "seeds: Input should be greater than 0"),
        ("[[table]]\nid = 'fedsmoo:4'", "has no runs"),
        ("[[table", "is no TOML"),
    ],
)
def test_a_list_that_is_none_is_refused(run, text, says):
    PLAN.write_text(text)
    with pytest.raises(Exception, match=says):
        read_items(PLAN)
    run("--quiet", code=2)


def test_the_committed_list_can_be_run():
    items = read_items(Path(__file__).parents[3] / "docs/results/plan.toml")
    papers = {"fafed", "fiarse", "fedacg", "fedsmoo", "cfedavg", "fedwmsam"}
    assert {item.id.partition(":")[0] for item in items} == papers
    assert all(item.hours > 0 for item in items)
