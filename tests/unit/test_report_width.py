"""Tables fit the page, in a pipe too."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from report_fakes import fake_run

from fedloom.cli.__main__ import cli

LONG = "A method whose name has so many words that no table of a page has room for it"


def compare(*words: str) -> str:
    """What the command prints into a pipe."""
    result = CliRunner().invoke(cli, ["compare", "runs", *words])
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize("width", [80, 120])
def test_tables_fit_the_page_in_a_pipe_too(
    width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, shown in (("fedavg", "FedAvg"), ("b", LONG)):
        for seed in range(3):
            values, folder = [0.1, 0.5, 0.8 + 0.01 * seed], tmp_path / "runs" / f"{name}{seed}"
            fake_run(folder, values, algorithm=name, label=shown, seed=seed, target=0.6)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", str(width))
    text = compare()
    assert max(map(len, text.splitlines())) <= width
    assert "accuracy, last tenth" in text and "rounds to 60 %" in text
    assert "accuracy, EMA last" not in text and "--wide" in text
    assert LONG.split()[-1] in text, "a long name goes on in the next line"
    wide = compare("--wide")
    assert "accuracy, EMA last" in wide and "time per round" in wide and LONG in wide
    head = compare("--columns", "p,EMA last").splitlines()[0]
    assert head.split("  ")[-2:] == ["p (Holm)", "accuracy, EMA last"]
    monkeypatch.delenv("COLUMNS")
    assert max(map(len, compare().splitlines())) <= 80
