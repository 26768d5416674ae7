"""`fedloom paper run`: a list of tables is worked through, stopped, paused and gone on with."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest

from fedloom_papers import run as papers_run
from fedloom_papers.schedule import read_items
from tiny import Fedloom

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
WORDS = ("paper", "run", "plan.toml", "--out", "out")


@pytest.fixture
def listed(fedloom: Fedloom) -> Fedloom:
    """A command line in a folder with a list of two small tables."""
    Path("plan.toml").write_text(LIST)
    return fedloom


def lines() -> list[dict[str, object]]:
    """What has been run."""
    file = Path("out/lines.jsonl")
    return [json.loads(x) for x in file.read_text().splitlines()] if file.is_file() else []


def test_a_list_is_run_once_table_by_table(listed: Fedloom) -> None:
    before = listed(*WORDS, "--dry-run").output
    assert [x.split()[:4] for x in before.splitlines()[1:]] == [
        ["fedsmoo:8", "smoke", "4", "4"],
        ["fafed:2c", "smoke", "1", "1"],
    ]
    listed(*WORDS, "--quiet")
    found = lines()
    names = [x["settings"]["algorithm.name"] for x in found]  # type: ignore[index]
    assert names == ["fedavg", "feddyn"] * 2 + ["fedavg"], "all rows at a seed, then the next"
    assert [x["seed"] for x in found] == [0, 0, 1, 1, 0]
    assert found[-1]["settings"]["local.lr"] == 0.02 and found[-1]["rounds"] == 3  # type: ignore[index]
    listed(*WORDS, "--quiet", "--jobs", "2")
    assert len(lines()) == 5
    after = listed(*WORDS, "--dry-run").output
    assert [x.split()[3] for x in after.splitlines()[1:]] == ["0", "0"]


def test_it_stops_when_time_is_up_and_goes_on(listed: Fedloom) -> None:
    said = listed(*WORDS, "--quiet", "--hours", "1e-9").output
    assert "time is up; run the same command again to resume" in said and not lines()
    listed(*WORDS, "--quiet", "--only", "fafed:2c", "--hours", "1")
    assert len(lines()) == 1


def test_it_waits_while_the_file_is_there(listed: Fedloom, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(papers_run, "_POLL", 0.05)
    Path("out").mkdir()
    pause = Path("out/pause").absolute()
    pause.touch()
    seen: list[int] = []

    def release() -> None:
        time.sleep(1.5)
        seen.append(len(lines()))
        pause.unlink()

    thread = threading.Thread(target=release)
    thread.start()
    listed(*WORDS, "--quiet", "--only", "fafed:2c")
    thread.join()
    assert seen == [0] and len(lines()) == 1


def test_lines_of_another_commit_are_not_mixed(listed: Fedloom) -> None:
    listed(*WORDS, "--quiet")
    file = Path("out/lines.jsonl")
    kept = [x | {"commit": "0123456789abcdef"} for x in lines()][1:]
    file.write_text("".join(json.dumps(x) + "\n" for x in kept))
    said = listed(*WORDS, "--quiet").output
    assert "left out: fedsmoo:8: its lines are of commit 0123456789ab" in said
    assert len(lines()) == 4
    listed(*WORDS, "--quiet", "--mix")
    assert len(lines()) == 5


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
def test_a_list_that_is_none_is_refused(listed: Fedloom, text: str, says: str) -> None:
    Path("plan.toml").write_text(text)
    with pytest.raises(Exception, match=says):
        read_items(Path("plan.toml"))
    listed(*WORDS, code=2)


def test_the_committed_list_can_be_run() -> None:
    items = read_items(Path(__file__).parents[3] / "docs/results/plan.toml")
    assert {item.id.partition(":")[0] for item in items} == {
        *("fafed", "fiarse", "fedacg", "fedsmoo", "cfedavg", "fedwmsam")
    }
    assert all(item.hours > 0 for item in items)
