"""The real command line, in this process: importing torch for every test would take minutes; and
runs that were stopped.
"""

import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from crash_script import experiment

from fedloom.cli.__main__ import cli
from support.stops import failing_in_run


@pytest.fixture
def fedloom(tmp_path, monkeypatch):
    """Call a command in an empty folder: fedloom("run", "digits", code=0)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDLOOM_DATA", raising=False)

    def call(*args, code=0):
        result = CliRunner().invoke(cli, [str(a) for a in args], prog_name="fedloom")
        assert result.exit_code == code, result.output
        assert "Traceback" not in result.output
        if code:
            errors = [x for x in result.output.splitlines() if x.startswith("error: ")]
            assert len(errors) == 1, "one line, and nothing but it and warnings"
        return result

    return call


@pytest.fixture(scope="session")
def _digits(tmp_path_factory):
    """A finished run of two rounds on digits."""
    folder = tmp_path_factory.mktemp("digits") / "a"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedloom.cli.printing.illustrate", lambda run: None)
        words = ["run", "rounds=2", "local.epochs=1", "--out", str(folder), "--quiet"]
        done = CliRunner().invoke(cli, words)
    assert done.exit_code == 0, done.output
    return folder


@pytest.fixture
def a(_digits, fedloom):
    shutil.copytree(_digits, "a")
    return "a"


@pytest.fixture
def pictures():
    """For tests whose runs draw their pictures and write their report."""


@pytest.fixture(autouse=True)
def _plain(request, monkeypatch):
    if "pictures" not in request.fixturenames:
        monkeypatch.setattr("fedloom.cli.printing.illustrate", lambda run: None)


# --------------------------------------------------------------------------------- stopped runs
@pytest.fixture
def stopped():
    """Call a command in which an error comes in the first round of the run of this number."""

    def call(number, error, *words):
        with failing_in_run(number, error):
            return CliRunner().invoke(cli, words, prog_name="fedloom")

    return call


class Killed(BaseException):
    """An end without a last checkpoint, which an error of a user's function would have."""


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory):
    """The run that others are compared with: nothing stopped it."""
    return experiment().run(tmp_path_factory.mktemp("undisturbed") / "run")


@pytest.fixture(scope="session")
def whole(tmp_path_factory):
    """The same of ten rounds."""
    return experiment(rounds=10).run(tmp_path_factory.mktemp("whole") / "run")


@pytest.fixture(scope="session")
def _begun(tmp_path_factory):
    folder = tmp_path_factory.mktemp("begun") / "run"

    def stop(row):
        if row["round"] == 7:
            raise Killed

    with pytest.raises(Killed):
        experiment(rounds=10, on_round=[stop]).run(folder)
    return folder


@pytest.fixture
def run(_begun, tmp_path):
    """A run that broke off in round 7, with checkpoints after the fourth and the sixth."""
    return Path(shutil.copytree(_begun, tmp_path / "run"))


@pytest.fixture
def tiny_disk(tmp_path):
    """A folder on a file system of its own, of four megabytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no file system may be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture
def check(monkeypatch, capsys):
    """Run a script where fedloom cannot be imported -> what it exits with, what it prints."""

    def call(code, *words):
        with monkeypatch.context() as patch:
            for name in [name for name in sys.modules if name.partition(".")[0] == "fedloom"]:
                patch.setitem(sys.modules, name, None)
            patch.setattr(sys, "argv", [code, *words])
            with pytest.raises(SystemExit) as caught:
                runpy.run_path(code, run_name="__main__")
        return caught.value.code, "".join(capsys.readouterr())

    return call
