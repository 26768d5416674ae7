"""What the two commands install: every version in the lock, the PyTorch that was asked for."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from fedloom.core import extras
from support.scripts import load

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "requirements"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
TORCH = load("get_torch", FOLDER / "get_torch.py")
PYTHONS = load("pythons", FOLDER / "pythons.py")


# ------------------------------------------------------------------------------------- the lock
def plain(name: str) -> str:
    """A distribution's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def lock(file: str = "lock.txt") -> dict[str, tuple[Requirement, str]]:
    """{name: (the pin, the comment below it that says who wants it)}."""
    found: dict[str, tuple[Requirement, str]] = {}
    name = ""
    for line in (FOLDER / file).read_text().splitlines():
        if line and not line[0].isspace() and not line.startswith("#"):
            pin = Requirement(line)
            name = plain(pin.name)
            assert name not in found, f"{name} is there twice"
            found[name] = (pin, "")
        elif name:
            found[name] = (found[name][0], found[name][1] + line)
    return found


def wanted(extra: str = "dev") -> Iterator[Requirement]:
    """What pyproject.toml asks for with an extra, and with those that it takes in."""
    about = PROJECT["project"]
    for text in (*about["dependencies"], *about["optional-dependencies"][extra]):
        found = Requirement(text)
        if found.name == about["name"]:
            for other in found.extras:
                yield from wanted(other)
        else:
            yield found


def held() -> list[Requirement]:
    """What held.in asks for."""
    lines = (FOLDER / "held.in").read_text().splitlines()
    return [Requirement(text) for x in lines if (text := x.partition("#")[0].strip())]


def test_the_lock_is_what_pyproject_asks_for() -> None:
    asked = [*wanted(), *held(), *map(Requirement, PROJECT["build-system"]["requires"])]
    pins = lock()
    stale = "requirements/lock.txt is old; write it again: make lock"
    for one in asked:
        assert plain(one.name) in pins, f"{one} is not in it: {stale}"
        (pin,) = pins[plain(one.name)][0].specifier
        assert one.specifier.contains(pin.version, prereleases=True), f"{one}, {pin}: {stale}"
    ours = {name for name, (_, why) in pins.items() if "fedloom" in why or "held.in" in why}
    assert ours == {plain(one.name) for one in asked}, stale


def test_what_is_tried_as_the_lowest_is_what_pyproject_allows() -> None:
    pins = lock("lowest.txt")
    for one in wanted():
        (low,) = (Version(s.version).release for s in one.specifier if s.operator == ">=")
        (pin,) = pins[plain(one.name)][0].specifier
        found = Version(pin.version).release[: len(low)]
        assert found == low, (
            f"{one}, {pin}: requirements/lowest.txt is old; write it again: make lock"
        )


def test_every_version_is_exact_and_comes_from_any_index() -> None:
    for name, (pin, _) in lock().items():
        (version,) = pin.specifier
        assert version.operator == "==", name
        assert "*" not in version.version, name
        assert "+" not in version.version, f"{name}: a build of one machine or index"
        assert pin.url is None, name
    assert not re.search(r"://|--|(^|\s)/", (FOLDER / "lock.txt").read_text())


def test_all_that_is_installed_for_us_is_locked() -> None:
    """No command of make installs anything without the lock, but the one that tries the newest."""
    make = shutil.which("make")
    if make is None:
        pytest.skip("there is no make")
    done = subprocess.run(
        [make, "-n", "demo", "test", "VENV=fresh"], cwd=ROOT, capture_output=True, text=True
    )
    installs = [x for x in done.stdout.splitlines() if "pip install" in x]
    assert done.returncode == 0, done.stderr
    assert len(installs) == 3
    assert all("-c requirements/lock.txt" in x for x in installs)
    assert "--no-build-isolation" in installs[-1]  # else hatchling comes as new as there is


def test_pages_name_targets_and_sessions_that_there_are() -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    code = (ROOT / "noxfile.py").read_text()
    sessions = [
        a or b for a, b in re.findall(r'(?:name="([a-z-]+)".*|def ([a-z]+)\(session)', code)
    ]
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob(".github/**/*.yml")]
    for page in {*pages} - {ROOT / "CHANGELOG.md"}:
        said = page.read_text()
        assert {*re.findall(r"(?:`|run: |^)make ([a-z-]+)", said)} <= {*targets}, page
        assert {*re.findall(r"nox -s ([a-z-]+)", said)} <= {*sessions}, page


# ------------------------------------------------------------------------------------- PyTorch
class Pip:
    """An index with these builds; it notes what was asked and what was installed."""

    def __init__(self, *builds: str, listed: str = "") -> None:
        self.builds, self.listed = builds, listed
        self.absent = "No matching distribution found for torch"
        self.asked: list[str] = []

    def __call__(self, command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        if "index" in command:
            return subprocess.CompletedProcess(
                command, 0, f"torch\nAvailable versions: {self.listed}"
            )
        wanted = Requirement(command[-1])
        self.asked.append(str(wanted))
        there = any(wanted.specifier.contains(b, prereleases=True) for b in self.builds)
        said = "" if there else f"ERROR: {self.absent}"
        return subprocess.CompletedProcess(command, int(not there), said)


@pytest.fixture
def get(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run get_torch.py on Linux: (what is asked, what is there, the index) -> the exit code."""

    def run(words: str, there: str | None, index: Pip) -> int:
        monkeypatch.setattr(sys, "argv", ["get_torch.py", *words.split()])
        monkeypatch.setattr(sys, "platform", "linux")
        monkeypatch.setattr(TORCH, "installed", lambda: there)
        monkeypatch.setattr(TORCH, "locked", lambda lock: "2.13.0")
        monkeypatch.setattr(subprocess, "run", index)
        code: int = TORCH.main()
        monkeypatch.undo()
        return code

    return run


def test_without_cuda_where_there_is_such_a_build(get: Any, capsys: Any) -> None:
    for kind in ("auto", "cpu"):
        index = Pip("2.13.0", "2.13.0+cpu")
        assert get(kind, None, index) == 0
        assert index.asked == ["torch==2.13.0+cpu"]
        assert capsys.readouterr().out.endswith(
            "without CUDA: about 0.2 GB to fetch, 0.8 GB on disk\n"
        )


@pytest.mark.parametrize("absent", TORCH.ABSENT)
def test_cpu_only_fetches_nothing_else(absent: str, get: Any, capsys: Any) -> None:
    index = Pip("2.13.0")
    index.absent = f"{absent}: torch"
    assert get("cpu", None, index) == TORCH.NO_CPU_BUILD
    assert index.asked == ["torch==2.13.0+cpu"]
    said = capsys.readouterr().err
    assert "No build of torch 2.13.0 without CUDA was found" in said
    assert "about 2.7 GB to fetch, 4.7 GB on disk): TORCH=cuda" in said


def test_the_size_of_cuda_is_said_before_it_is_fetched(get: Any, capsys: Any) -> None:
    said = []
    index = Pip("2.13.0")
    once = index.__call__
    watch = lambda command, **how: said.append(capsys.readouterr().out) or once(command, **how)
    assert get("auto", None, watch) == 0
    assert index.asked == ["torch==2.13.0+cpu", "torch==2.13.0"]
    assert "with CUDA: about 2.7 GB to fetch, 4.7 GB on disk" in said[1]


def test_cuda_is_not_the_build_without_it(get: Any) -> None:
    index = Pip("2.13.0", "2.13.0+cpu")
    assert get("cuda", "2.13.0+cpu", index) == 0
    assert [Requirement(x).specifier for x in index.asked] == [
        Requirement("torch==2.13.0,!=2.13.0+cpu").specifier
    ]


@pytest.mark.parametrize(
    ("kind", "there", "stays"),
    [
        ("auto", "2.13.0", True),
        ("auto", "2.13.0+cpu", True),
        ("auto", "2.12.0+cpu", False),
        ("cpu", "2.13.0+cpu", True),
        ("cpu", "2.13.0", False),
        ("cuda", "2.13.0", True),
        ("cuda", "2.13.0+cu126", True),
        ("cuda", "2.13.0+cpu", False),
    ],
)
def test_what_will_do_stays(kind: str, there: str, stays: bool, get: Any) -> None:
    index = Pip("2.13.0", "2.13.0+cpu")
    assert get(kind, there, index) == 0
    assert (not index.asked) == stays


def test_the_newest(get: Any) -> None:
    index = Pip("2.15.0", "2.14.1+cpu", listed="2.15.0, 2.14.1+cpu, 2.13.0+cpu")
    assert get("auto --newest", "2.13.0+cpu", index) == 0
    assert index.asked == ["torch==2.14.1+cpu"]
    index = Pip("2.15.0", listed="2.15.0, 2.14.1")
    assert get("auto --newest", None, index) == 0
    assert index.asked == ["torch"]


def test_what_cannot_be_installed_is_said_in_a_line(get: Any) -> None:
    with pytest.raises(SystemExit, match="TORCH=gpu is unknown; TORCH is one of auto, cpu, cuda"):
        get("gpu", None, Pip())
    with pytest.raises(SystemExit, match=r"torch 2.13.0 was not found for this Python; is the"):
        get("cuda", None, Pip())
    full = lambda command, **_: subprocess.CompletedProcess(command, 1, "No space left on device")
    with pytest.raises(SystemExit, match="No space left"):
        get("auto", None, full)


def test_the_locked_torch_is_found() -> None:
    assert TORCH.locked() == next(iter(lock()["torch"][0].specifier)).version


# --------------------------------------------------------------------------------- interpreters
def test_pythons_at_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On PATH or pyenv's, oldest first; a shim that does not start is passed over."""
    own = f"3.{sys.version_info[1]}"
    others = [v for v in PYTHONS.supported() if v != own]

    def fake(path: Path, version: str, code: int = 0) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\necho {version}\nexit {code}\n")
        path.chmod(0o755)
        return path

    on_path = fake(tmp_path / "bin" / f"python{others[0]}", others[0])
    fake(tmp_path / "bin" / f"python{others[1]}", others[1], code=127)
    for patch in ("2", "10", "11rc1"):
        fake(tmp_path / "versions" / f"{others[1]}.{patch}" / "bin" / "python", others[1])
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/bin:/usr/bin")
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    monkeypatch.setattr(PYTHONS, "supported", lambda: sorted([own, *others]))
    newest = str(tmp_path / "versions" / f"{others[1]}.10" / "bin" / "python")
    expected = {own: sys.executable, others[0]: str(on_path), others[1]: newest}
    assert PYTHONS.at_hand() == [expected[v] for v in sorted(expected)]


def test_the_oldest_python_that_is_supported_is_named_once() -> None:
    oldest = PYTHONS.supported()[0]
    assert PROJECT["project"]["requires-python"] == f">={oldest}"
    assert ".".join(map(str, TORCH.OLDEST)) == oldest


# -------------------------------------------------------------------------------------- the wheel
def test_a_wheel_says_its_commit(tmp_path: Path) -> None:
    pytest.importorskip("hatchling")  # `make` installs it
    hook = load("commit_hook", FOLDER / "commit_hook.py").CommitHook
    git = ["git", "-C", str(tmp_path), "-c", "user.name=n", "-c", "user.email=e@x"]
    for words in (["init", "-q"], ["commit", "-qm", "one", "--allow-empty"]):
        subprocess.run([*git, "-c", "commit.gpgsign=false", *words], check=True)
    out = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    for target, inside in (("wheel", "fedloom"), ("sdist", "src/fedloom")):
        one = hook(str(tmp_path), {}, None, None, str(tmp_path / "dist"), target)
        about: dict[str, Any] = {"force_include": {}}
        one.initialize("editable", about)
        assert not about["force_include"]
        one.initialize("standard", about)
        ((file, place),) = about["force_include"].items()
        assert place == f"{inside}/_commit.txt"
        assert Path(file).read_text() == out.stdout
        one.finalize("standard", about, "")
        assert not Path(file).exists()


def test_an_installed_fedloom_says_its_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedloom.core import commit

    monkeypatch.setattr(commit, "PACKAGE", tmp_path)
    assert commit.own_commit.__wrapped__() is None
    (tmp_path / commit.BUILT).write_text("0123456789\n")
    assert commit.own_commit.__wrapped__() == "0123456789"


@pytest.mark.parametrize(
    ("origin", "said"),
    [
        (
            {"url": "file:///home/a%20b/fedloom", "dir_info": {}},
            "pip install '/home/a b/fedloom[x]'",
        ),
        ({"url": "file:///f", "dir_info": {"editable": True}}, "pip install -e '/f[x]'"),
        ({"url": "file:///d/fedloom-1-py3-none-any.whl", "archive_info": {}}, "'/d/fedloom-1-py3-"),
        (None, "pip install 'fedloom[x]'"),
    ],
)
def test_an_extra_is_installed_from_where_fedloom_came(origin, said, monkeypatch) -> None:
    class Installed:
        def read_text(self, name: str) -> str | None:
            return json.dumps(origin) if name == "direct_url.json" and origin else None

    monkeypatch.setattr(extras, "distribution", lambda name: Installed())
    assert said in extras.install("x")
