"""The committed pages: lists and tables that the site shows, and small pictures."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
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


def test_a_first_page_s_picture_is_small_and_shown() -> None:
    for page in ("quickstart", "tutorial"):
        assert f"](pictures/{page}.png)" in (ROOT / "docs" / f"{page}.md").read_text("utf-8")
        assert (ROOT / "docs" / "pictures" / f"{page}.png").stat().st_size < 60_000
