"""docs/gallery.md: its commands make the pictures that it shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.scripts import ROOT, load
from tiny import Fedloom

gallery = load("gallery", ROOT / "docs" / "gallery.py")
SMALL = ("rounds=2", "local.epochs=1", "cohort=4", "data.clients=8", "model.hidden=[8]")


def test_the_page_is_what_its_script_says() -> None:
    assert (ROOT / "docs/gallery.md").read_text(encoding="utf-8") == gallery.page()
    shown = [gallery.copied(file) for section in gallery.SECTIONS for file in section.shown]
    assert sorted(shown) == sorted(gallery.PICTURES.iterdir())
    menu = (ROOT / "site/mkdocs.yml").read_text(encoding="utf-8")
    assert "docs/gallery.md" in menu


@pytest.mark.slow
@pytest.mark.parametrize("section", gallery.SECTIONS, ids=lambda section: section.title)
def test_the_commands_make_the_pictures(section: object, fedloom: Fedloom) -> None:
    """With a network of eight neurons, in two rounds."""
    for command in gallery.words(section.commands):  # type: ignore[attr-defined]
        words = [str(ROOT / w) if w.startswith("docs/") else w for w in command[1:]]
        words = ["2" if w == "3" else w for w in words if not w.startswith("rounds=")]
        fedloom(*words, *(SMALL if words[0] == "run" else ()))
    missing = [file for file in section.shown if not Path(file).is_file()]  # type: ignore[attr-defined]
    assert missing == []
