"""Pages that are made from lines: a number that somebody changes on one of them is noticed."""

from __future__ import annotations

import random
import re
import shutil
from pathlib import Path

import pytest

from fedloom_papers.results import made

ROOT = Path(__file__).parents[3]
AGAIN = "make the pages again: nox -s results"


@pytest.fixture
def copied(tmp_path):
    """The pages and their sources as they are committed."""
    digests = made.digests(ROOT)
    for name in (made.FILE, *digests["pages"], *digests["sources"]):
        target = tmp_path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target)
    return tmp_path


def test_the_committed_pages_are_as_they_were_made():
    assert not made.wrong(ROOT)


def test_each_of_thirty_wrong_numbers_is_noticed(copied, capsys):
    """One digit of one number, on README and every page of results in turn."""
    pages, draw = [*made.digests(copied)["pages"]], random.Random(0)
    for n in range(30):
        name = "README.md" if n % 3 == 0 else draw.choice(pages)
        file = copied / name
        text = file.read_text("utf-8")
        at = draw.choice([digit.start() for digit in re.finditer(r"\d", text)])
        digit = str((int(text[at]) + draw.randint(1, 9)) % 10)
        file.write_text(text[:at] + digit + text[at + 1 :], encoding="utf-8")
        assert made.main(["--check", "--root", str(copied)]) == 1
        assert capsys.readouterr().out == f"{name} is not as it was made; {AGAIN}\n"
        file.write_text(text, encoding="utf-8")


@pytest.mark.parametrize("name", ["docs/results/zoo.jsonl", "README.md.in"])
def test_a_source_that_changed_since_is_named(copied, name):
    with (copied / name).open("a", encoding="utf-8") as file:
        file.write("{}\n")
    assert made.wrong(copied) == [f"{name} is not that of the pages; {AGAIN}"]


def test_a_result_in_readme_is_typed_nowhere():
    """Numbers with two decimals, and counts of cells and bytes, come from lines."""
    text = (ROOT / "README.md.in").read_text("utf-8")
    kept = re.sub(r"\{\{.*?\}\}|\]\(.*?\)|```.*?```", "", text, flags=re.DOTALL)
    table = [line for line in kept.splitlines() if line.startswith("|") and "(Table" in line]
    named = r"\((?:Table|Figure) \w+\)|1/\d+|0\.36|0\.64"
    assert not [line for line in table if re.search(r"\d", re.sub(named, "", line))]


def test_readme_says_of_the_headlines_what_the_lines_say():
    """None is confirmed, it says above their verdicts, and FedSMOO's is contradicted."""
    text = (ROOT / "README.md").read_text()
    verdicts = dict(re.findall(r"^\| \*\*(\w+)\*\*.*\| (.+?) \|$", text, re.M))
    assert len(verdicts) == 5 and verdicts.pop("FedSMOO") == "the opposite is clear"
    assert all(text.startswith("undecided") for text in verdicts.values())


@pytest.mark.parametrize("name", ["zoo", "compression", "submodels", "robust", "private"])
def test_what_was_found_in_a_study_is_typed_nowhere(name):
    words = (ROOT / f"docs/results/words/{name}.md").read_text("utf-8")
    text = words.partition("What was found")[2]
    kept = re.sub(r"\{\{.*?\}\}|\b(5|70|80) %", "", " ".join(text.split()))
    assert text and not re.findall(r"\S*\d[\d.]* (?:%|points?\b|MiB)|\b\d\d\.\d+", kept)
