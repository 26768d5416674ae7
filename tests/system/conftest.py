"""The real command line, in this process: importing torch for every test would take minutes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fedloom.cli.__main__ import cli

Fedloom = Callable[..., Result]


@pytest.fixture
def fedloom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fedloom:
    """Call a command in an empty folder: fedloom("run", "digits", code=0)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDLOOM_DATA", raising=False)

    def call(*args: object, code: int = 0) -> Result:
        result = CliRunner().invoke(cli, [str(a) for a in args], prog_name="fedloom")
        assert result.exit_code == code, result.output
        assert "Traceback" not in result.output
        if code:
            errors = [x for x in result.output.splitlines() if x.startswith("error: ")]
            assert len(errors) == 1, "one line, and nothing but it and warnings"
        return result

    return call


@pytest.fixture
def pictures() -> None:
    """For tests whose runs draw their pictures and write their report."""


@pytest.fixture(autouse=True)
def _plain(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other runs draw nothing: it takes seconds each time."""
    if "pictures" not in request.fixturenames:
        monkeypatch.setattr("fedloom.cli.printing.illustrate", lambda run: None)
