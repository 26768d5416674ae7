"""The pages that are written by hand have no private words, and lists that the site shows."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# made from code or records: their words are tested where they are made
MADE = {"compatibility.md", "settings.md", "parts.md"}
PAGES = [
    page
    for page in sorted((ROOT / "docs").glob("**/*.md"))
    if page.name not in MADE and not {"results", "algorithms"} & set(page.parts)
]
# all that git has, made ones too
TABLES = [
    ROOT / file
    for file in subprocess.run(
        ["git", "ls-files", "README.md", "docs/*.md"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split()
]  # fmt: skip
# the line before a list's first item or a table's head, unless it is blank or a heading
JOINED = re.compile(
    r"^(?!$|#| *[-*] | *\d+\. |[ |<]).*\n(?=[-*] |\d+\. |\| )|^```\n(?=[-*] |\| )", re.MULTILINE
)
PRIVATE = re.compile(
    r"\b(the|a|its own|own) roll\b(?!\.toml)|\brolls\b|\bkeepers?\b|\bdoors?\b|"
    r"\b(first|second|third|fourth|fifth|sixth|seventh|eighth|ninth|tenth|eleventh|twelfth) "
    r"records?\b|goals that were missed",
    re.IGNORECASE,
)


def prose(text: str) -> str:
    """A page without its blocks of code and output."""
    return re.sub(r"^\s*```.*?^\s*```", "", text, flags=re.MULTILINE | re.DOTALL)


def name(page: Path) -> str:
    """A page as a test calls it."""
    return str(page.relative_to(ROOT))


def joined(text: str) -> list[str]:
    """The lines before lists and tables that the site would join with them to one paragraph."""
    text = re.sub(r"^```.*?^```$", "```", text, flags=re.MULTILINE | re.DOTALL)
    return [found[0] for found in JOINED.finditer(text)]


@pytest.mark.parametrize("page", TABLES, ids=name)
def test_a_list_and_a_table_begin_after_a_blank_line(page: Path) -> None:
    """Those of the made pages that git does not have: test_pages.py."""
    assert joined(page.read_text("utf-8")) == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_a_page_has_no_private_words(page: Path) -> None:
    words = re.sub(r"`[^`\n]*`", "", prose(page.read_text("utf-8")))  # what fedloom prints stays
    assert not [found[0] for found in PRIVATE.finditer(words)]


def test_a_first_page_s_picture_is_small_and_shown() -> None:
    for page in ("quickstart", "tutorial"):
        assert f"](pictures/{page}.png)" in (ROOT / "docs" / f"{page}.md").read_text("utf-8")
        assert (ROOT / "docs" / "pictures" / f"{page}.png").stat().st_size < 60_000


def test_the_rule_finds_what_it_is_about() -> None:
    assert PRIVATE.search("keys are in the roll") and PRIVATE.search("(Twelfth record)")
    assert not PRIVATE.search("a line of the roll.toml file, and a record of vectors")
