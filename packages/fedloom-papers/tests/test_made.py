"""Pages that are made from lines: a number that somebody changes on one of them is noticed."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fedloom_papers.results import fill, made

ROOT = Path(__file__).parents[3]


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """The pages and their sources as they are committed."""
    found = made.digests(ROOT)
    for name in (made.FILE, *found["pages"], *found["sources"]):
        target = tmp_path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target)
    return tmp_path


def test_the_committed_pages_are_as_they_were_made() -> None:
    assert not made.wrong(ROOT)


def test_each_of_thirty_wrong_numbers_is_noticed(
    copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One digit of one number, on README and every page of results in turn."""
    pages, draw = [*made.digests(copied)["pages"]], random.Random(0)
    for n in range(30):
        name = "README.md" if n % 3 == 0 else draw.choice(pages)
        file = copied / name
        text = file.read_text("utf-8")
        at = draw.choice([found.start() for found in re.finditer(r"\d", text)])
        digit = str((int(text[at]) + draw.randint(1, 9)) % 10)
        file.write_text(text[:at] + digit + text[at + 1 :], encoding="utf-8")
        assert made.main(["--check", "--root", str(copied)]) == 1
        (said,) = capsys.readouterr().out.splitlines()
        assert said == f"{name} is not as it was made; make the pages again: nox -s results"
        file.write_text(text, encoding="utf-8")


@pytest.mark.parametrize("name", ["docs/results/zoo.jsonl", "README.md.in"])
def test_a_source_that_changed_since_is_named(copied: Path, name: str) -> None:
    with (copied / name).open("a", encoding="utf-8") as file:
        file.write("{}\n")
    (said,) = made.wrong(copied)
    assert said == f"{name} is not that of the pages; make the pages again: nox -s results"


def test_a_result_in_readme_is_typed_nowhere() -> None:
    """Numbers with two decimals, and counts of cells and bytes, come from lines."""
    text = (ROOT / "README.md.in").read_text("utf-8")
    kept = re.sub(r"\{\{.*?\}\}|\]\(.*?\)|```.*?```", "", text, flags=re.DOTALL)
    table = [line for line in kept.splitlines() if line.startswith("|") and "(Table" in line]
    named = r"\((?:Table|Figure) \w+\)|1/\d+|0\.36|0\.64"
    assert not [line for line in table if re.search(r"\d", re.sub(named, "", line))]


def test_readme_says_of_the_headlines_what_the_lines_say() -> None:
    """None is confirmed, it says above their verdicts, and FedSMOO's is contradicted."""
    rows = re.findall(r"^\| \*\*(\w+)\*\*.*\| (.+?) \|$", (ROOT / "README.md").read_text(), re.M)
    verdicts = dict(rows)
    assert len(verdicts) == 5 and verdicts.pop("FedSMOO") == "the opposite is clear"
    assert all(text.startswith("undecided") for text in verdicts.values())


@pytest.mark.parametrize("name", ["zoo", "compression", "submodels", "robust", "private"])
def test_what_was_found_in_a_study_is_typed_nowhere(name: str) -> None:
    """Of what was found every number with a unit comes from lines. A level and a target stay."""
    text = (
        (ROOT / f"docs/results/words/{name}.md").read_text("utf-8").partition("What was found")[2]
    )
    kept = re.sub(r"\{\{.*?\}\}|\b(5|70|80) %", "", " ".join(text.split()))
    assert text and not re.findall(r"\S*\d[\d.]* (?:%|points?\b|MiB)|\b\d\d\.\d+", kept)


def test_the_demo_record_fills_its_table_and_the_difference_of_two_rows() -> None:
    """0.9697307, 0.9745590, 0.9730734 less 0.9717734, 0.9710306, 0.9741876 by hand: +0.0124."""
    text = fill.fill("{{demo:FedAvgM/FedACG.points 4}}|{{demo:table.text}}")
    gap, _, table = text.partition("|")
    assert gap == "0.0124" and table.splitlines()[3].split()[:3] == ["FedAvgM", "3", "97.25"]


@pytest.mark.slow
@pytest.mark.parametrize("script", ["filled", "fedacg", "fafed", "zoo", "submodels"])
def test_pages_made_anew_are_the_committed_ones(script: str) -> None:
    command = [sys.executable, "-m", "fedloom_papers.results", script, "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
