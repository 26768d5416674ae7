"""The bar of a run fits the terminal."""

from __future__ import annotations

import io

import pytest

from fedloom.server.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("width", [72, 80, 120])
def test_the_bar_cuts_nothing_that_it_says(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a narrow terminal there is less of it, and no number ends in dots."""
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm-256color")
    progress = Progress("SCAFFOLD, seed 0", 150, "accuracy")
    with progress:
        row = {"test_accuracy": 0.9415, "bytes_up": 25 << 20, "bytes_down": 75 << 20, "cohort": 10}
        progress.update({"round": 129, **row})
    said = terminal.getvalue()
    assert "…" not in said
    assert all(word in said for word in ("129/150", "94.15%", "100.0 MiB"))
    assert ("clients/s" in said) == (width == 120)
