"""A finished run is finished, whatever becomes of its pictures; errors name what was refused; ~ is
the home folder in every path that a user gives.
"""

import contextlib
import errno
import os
import stat
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from fedloom import Experiment, FedAvg, load_runs, report
from fedloom.data import folders, from_clients, iid, table
from fedloom.data.partition.without_labels import lists
from fedloom.errors import ConfigError
from fedloom.report import write_report
from fedloom.storage.atomic import write_atomic

SMALL = ("rounds=2", "local.epochs=1")


def refuse(number, *file):
    def call(*args, **kwargs):
        raise OSError(number, os.strerror(number), *file)

    return call


def no_library(library, what, extra):
    raise ConfigError(f"{what} needs {library}, which cannot be imported")


def missing_line(output):
    (line,) = [x for x in output.splitlines() if x.startswith("pictures or the report are missing")]
    return line


# ---------------------------------------------------------------------------------------- pictures
DRAW = "matplotlib.backends.backend_agg.FigureCanvasAgg.draw"


@pytest.mark.parametrize(
    ("where", "error", "said"),
    [
        ("fedloom.report.style.png", refuse(errno.ENOSPC), "No space left on device"),
        (DRAW, refuse(errno.EACCES), "Permission denied"),
        ("fedloom.report.html.all_pictures", lambda *a: 1 / 0, "ZeroDivisionError"),
        ("fedloom.report.style.need", no_library, "cannot be imported"),
    ],
    ids=["a full disk", "a picture", "the report", "matplotlib"],
)
@pytest.mark.usefixtures("pictures")
def test_a_run_without_its_pictures_is_finished(where, error, said, fedloom, monkeypatch):
    monkeypatch.setattr(where, error)
    line = missing_line(fedloom("run", *SMALL, "--out", "a b", "--quiet").output)
    assert said in line and "later: fedloom report 'a b'" in line and "ConfigError" not in line
    assert Path("a b/summary.json").exists() and not Path("a b/report.html").exists()


def test_a_demo_without_its_report_is_finished(fedloom, monkeypatch):
    monkeypatch.setattr("fedloom.report.write_report", refuse(errno.EDQUOT))
    output = fedloom("demo", "--rounds", 1, "--seeds", 1).output
    assert "later: fedloom report runs/demo --out runs/demo/report.html" in missing_line(output)
    assert "s in all" in output


@pytest.mark.slow
@pytest.mark.usefixtures("pictures")
def test_a_disk_that_is_full_after_the_last_round(fedloom, tiny_disk, monkeypatch):
    draw = report.write_report

    def fill_and_draw(*args, **kwargs):
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


# ---------------------------------------------------------------------------------- what is refused
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
def test_every_refusal_of_the_system_has_its_own_advice(number, advice, fedloom, monkeypatch):
    monkeypatch.setattr(Experiment, "run", refuse(number, "/dev/shm/board"))
    said = f"{os.strerror(number)}: '/dev/shm/board'); {advice}"
    text = fedloom("run", *SMALL, "--out", "a", code=1).output
    assert said in text and "cannot be written" not in text
    assert said in fedloom("sweep", "local.lr=0.1,0.2", *SMALL, "--out", "s", code=1).output


@pytest.mark.parametrize("place", ["provenance.fingerprint", "result._write"])
def test_a_file_of_somebody_else_is_not_said_to_be_the_runs(place, fedloom, monkeypatch):
    monkeypatch.setattr(f"fedloom.experiment.{place}", refuse(errno.ENOENT, "/data/x.npy"))
    text = fedloom("run", *SMALL, "--out", "a", code=1).output
    assert "the run stopped (No such file or directory: '/data/x.npy')" in text
    assert "cannot be written" not in text


def test_commands_in_messages_can_be_pasted(fedloom):
    fedloom("run", *SMALL, "--out", "a b", "--quiet")
    assert "`fedloom run --resume 'a b'`" in fedloom("run", *SMALL, "--out", "a b", code=2).output
    again = fedloom("sweep", "local.lr=0.1,0.2", *SMALL, "--out", "c d").output
    assert "fedloom run 'c d/best.toml'" in again
    saved = fedloom("data", "partition", "--save", "e f.npz").output
    assert "'partition.file=e f.npz'" in saved


def test_every_file_of_a_run_follows_the_umask(fedloom):
    old = os.umask(0o027)
    try:
        fedloom("run", *SMALL, "--out", "a", "--quiet")
        fedloom("export", "a")
        write_atomic(Path("b"), lambda part: part.touch(0o600))
    finally:
        os.umask(old)
    files = [Path("b"), *(p for p in Path("a").rglob("*") if p.is_file())]
    assert {stat.S_IMODE(p.stat().st_mode) for p in files} == {0o640}, files


# ------------------------------------------------------------------------------------------- home
TOML = """
name = "t"
rounds = 1
algorithm = "fedavg"
device = "cpu"
model = { name = "logistic", inputs = 1, classes = 2 }
[data]
name = "table"
path = "~/sites/*.csv"
target = "y"
test = ["~/sites/*.csv"]
partition = "natural"
"""


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home folder with two tables; the working directory is elsewhere, and must stay empty."""
    (tmp_path / "home" / "sites").mkdir(parents=True)
    (tmp_path / "here").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "here")
    for name in "ab":
        rows = "".join(f"{i},{i % 2}\n" for i in range(6))
        (tmp_path / "home" / "sites" / f"{name}.csv").write_text("x,y\n" + rows)
    yield tmp_path / "home"
    assert not os.listdir(tmp_path / "here")


def experiment(**more):
    data = from_clients([(torch.ones(4, 2), torch.arange(4) % 2)] * 2)
    given = {"algorithm": FedAvg(), "model": lambda: torch.nn.Linear(2, 2), "data": data}
    return Experiment(**given, rounds=1, device="cpu", **more)


def test_home_in_python(home):
    experiment().run("~/runs/a")
    assert experiment().resume("~/runs/a").path == home / "runs" / "a"
    assert len(load_runs("~/runs/*")) == 1 == len(load_runs("~/runs/a"))
    assert write_report(["~/runs/a"], "~/a.html").is_file() and (home / "a.html").is_file()
    save_file({"weight": torch.zeros(2, 2), "bias": torch.zeros(2)}, home / "w.safetensors")
    experiment(weights="~/w.safetensors").build()


def test_home_of_data(home):
    pytest.importorskip("pandas", reason="the extra tables is not installed")
    for path in ("~/sites/*.csv", ["~/sites/a.csv", Path("~/sites/b.csv")]):
        assert table(path, target="y").client_names == ("a", "b")
    data = table(iid(2), path="~/sites/a.csv", target="y", test="~/sites/b.csv")
    assert data.name == "a" and len(data.test_inputs) == 6
    data.save_indices("~/split.npz")
    assert lists("~/split.npz").split(data.targets, 0).count == 2
    (home / "split.txt").write_text("[[0, 1], [2]]")
    assert lists("~/split.txt").split(data.targets, 0).sizes.tolist() == [2, 1]
    (home / "arrays" / "a").mkdir(parents=True)
    for name, array in (("inputs", data.inputs), ("targets", data.targets)):
        np.save(home / "arrays" / "a" / f"{name}.npy", array.numpy())
    assert folders(path="~/arrays").population == 1


def test_home_in_a_file_and_on_the_command_line(fedloom, home):
    pytest.importorskip("pandas", reason="the extra tables is not installed")
    (home / "t.toml").write_text(TOML)
    (home / "mine.py").write_text("import torch\n\ndef net():\n    return torch.nn.Linear(1, 2)\n")
    fedloom("run", "~/t.toml", "--out=~/runs/t", "--quiet")
    assert (home / "runs" / "t" / "summary.json").is_file()
    words = "data.path=~/sites/a.csv data.test=none model=~/mine.py:net data.partition.name=iid"
    words += " data.partition.clients=2 --out ~/runs/u --quiet"
    fedloom("run", "~/t.toml", *words.split())
    fedloom("show", "~/runs/u")
    fedloom("compare", "~/runs/*", "--csv", "~/runs.csv")
    assert (home / "runs.csv").is_file()
    fedloom("describe", "~/sites/*.csv", "--target", "y")
