"""A finished run is finished, whatever becomes of its pictures; errors name what was refused."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedloom import report
from fedloom.errors import ConfigError
from fedloom.experiment.experiment import Experiment
from fedloom.storage.atomic import write_atomic
from tiny import Fedloom

SMALL = ("rounds=2", "local.epochs=1")


def refuse(number: int) -> Callable[..., None]:
    def call(*args: object, **kwargs: object) -> None:
        raise OSError(number, os.strerror(number))

    return call


def missing_line(output: str) -> str:
    lines = [x for x in output.splitlines() if x.startswith("pictures or the report are missing")]
    assert len(lines) == 1, output
    return lines[0]


@pytest.mark.parametrize(
    ("where", "error", "said"),
    [
        ("fedloom.report.style.png", refuse(errno.ENOSPC), "No space left on device"),
        (
            "matplotlib.backends.backend_agg.FigureCanvasAgg.draw",
            refuse(errno.EACCES),
            "Permission denied",
        ),
        ("fedloom.report.html.all_pictures", lambda *a: 1 / 0, "ZeroDivisionError"),
    ],
)
@pytest.mark.usefixtures("pictures")
def test_a_run_without_its_pictures_is_finished(
    where: str,
    error: Callable[..., None],
    said: str,
    fedloom: Fedloom,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(where, error)
    result = fedloom("run", *SMALL, "--out", "a b", "--quiet")
    line = missing_line(result.output)
    assert said in line and "later: fedloom report 'a b'" in line
    assert Path("a b/summary.json").exists() and not Path("a b/report.html").exists()


@pytest.mark.usefixtures("pictures")
def test_a_run_without_matplotlib_is_finished(
    fedloom: Fedloom, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(library: str, what: str, extra: str) -> None:
        raise ConfigError(f"{what} needs {library}, which cannot be imported")

    monkeypatch.setattr("fedloom.report.style.need", none)
    output = fedloom("run", *SMALL, "--out", "a", "--quiet").output
    assert "cannot be imported" in missing_line(output) and "ConfigError" not in output


def test_a_demo_without_its_report_is_finished(
    fedloom: Fedloom, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedloom.report.write_report", refuse(errno.EDQUOT))
    output = fedloom("demo", "--rounds", 1, "--seeds", 1).output
    assert "later: fedloom report runs/demo --out runs/demo/report.html" in missing_line(output)
    assert "s in all" in output


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.ENOSPC, "make room"),
        (errno.EDQUOT, "make room"),
        (errno.ENOENT, "put it back, or find what removes it"),
        (errno.EACCES, "change who may use it"),
        (errno.EIO, "check the disk"),
        (errno.EPIPE, "mend that"),
    ],
)
def test_every_refusal_of_the_system_has_its_own_advice(
    number: int, advice: str, fedloom: Fedloom, monkeypatch: pytest.MonkeyPatch
) -> None:
    def vanished(*args: object, **kwargs: object) -> None:
        raise OSError(number, os.strerror(number), "/dev/shm/board")

    monkeypatch.setattr(Experiment, "run", vanished)
    told = f"{os.strerror(number)}: '/dev/shm/board'); {advice}"
    text = fedloom("run", *SMALL, "--out", "a", code=1).output
    assert told in text and "cannot be written" not in text
    assert told in fedloom("sweep", "local.lr=0.1,0.2", *SMALL, "--out", "s", code=1).output


@pytest.mark.parametrize("part", ["describe", "finish"])
def test_a_file_of_somebody_else_is_not_said_to_be_the_runs(
    part: str, fedloom: Fedloom, monkeypatch: pytest.MonkeyPatch
) -> None:
    def vanished(*args: object, **kwargs: object) -> None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), "/data/x.npy")

    place = {"describe": "provenance._describe", "finish": "result._write"}[part]
    monkeypatch.setattr(f"fedloom.experiment.{place}", vanished)
    text = fedloom("run", *SMALL, "--out", "a", code=1).output
    assert "the run stopped (No such file or directory: '/data/x.npy')" in text
    assert "cannot be written" not in text


def test_commands_in_messages_can_be_pasted(fedloom: Fedloom) -> None:
    fedloom("run", *SMALL, "--out", "a b", "--quiet")
    assert "`fedloom run --resume 'a b'`" in fedloom("run", *SMALL, "--out", "a b", code=2).output
    fedloom("sweep", "local.lr=0.1,0.2", *SMALL, "--out", "c d", "--quiet")
    again = fedloom("sweep", "local.lr=0.1,0.2", *SMALL, "--out", "c d").output
    assert "fedloom run 'c d/best.toml'" in again
    saved = fedloom("data", "partition", "--save", "e f.npz").output
    assert "'partition.file=e f.npz'" in saved


def test_every_file_of_a_run_follows_the_umask(fedloom: Fedloom) -> None:
    old = os.umask(0o027)
    try:
        fedloom("run", *SMALL, "--out", "a", "--quiet")
        fedloom("export", "a")
        write_atomic(Path("b"), lambda part: part.touch(0o600))
    finally:
        os.umask(old)
    files = [Path("b"), *(p for p in Path("a").rglob("*") if p.is_file())]
    assert {stat.S_IMODE(p.stat().st_mode) for p in files} == {0o640}, files


@pytest.mark.slow
@pytest.mark.usefixtures("pictures")
def test_a_disk_that_is_full_after_the_last_round(
    fedloom: Fedloom, tiny_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = report.write_report

    def fill_and_draw(*args: Any, **kwargs: Any) -> object:
        with contextlib.suppress(OSError), open(tiny_disk / "ballast", "wb", buffering=0) as f:
            while f.write(b"x" * 4096):
                pass
        return draw(*args, **kwargs)

    monkeypatch.setattr("fedloom.report.write_report", fill_and_draw)
    output = fedloom("run", *SMALL, "--out", tiny_disk / "a", "--quiet").output
    assert "No space left on device" in missing_line(output)
    (tiny_disk / "ballast").unlink()
    monkeypatch.setattr("fedloom.report.write_report", draw)
    fedloom("report", tiny_disk / "a")
    assert (tiny_disk / "a" / "report.html").exists()
