"""What the two commands install: every version in the lock, the PyTorch that was asked for."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from fedloom.core import commit, extras
from support.scripts import ROOT, load

FOLDER = ROOT / "requirements"
ABOUT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = ABOUT["project"]
TORCH, PYTHONS = (load(name, FOLDER / f"{name}.py") for name in ("get_torch", "pythons"))
STALE = "write requirements/*.txt again: make lock"


# ------------------------------------------------------------------------------------- the lock
def plain(name):
    """A distribution's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def lock(file="lock.txt"):
    """{name: (the version, the pin, the comment below it that says who wants it)}."""
    found, name = {}, ""
    for line in (FOLDER / file).read_text().splitlines():
        if line and not line[0].isspace() and not line.startswith("#"):
            pin = Requirement(line)
            name, (version,) = plain(pin.name), pin.specifier
            assert name not in found, f"{name} is there twice"
            found[name] = (version, pin, "")
        elif name:
            found[name] = (*found[name][:2], found[name][2] + line)
    return found


def wanted(extra="dev"):
    """What pyproject.toml asks for with an extra, and with those that it takes in."""
    for text in (*PROJECT["dependencies"], *PROJECT["optional-dependencies"][extra]):
        one = Requirement(text)
        if one.name == PROJECT["name"]:
            for other in one.extras:
                yield from wanted(other)
        else:
            yield one


def test_the_lock_is_what_pyproject_asks_for():
    lines = (FOLDER / "held.in").read_text().splitlines()
    held = [Requirement(text) for x in lines if (text := x.partition("#")[0].strip())]
    asked = [*wanted(), *held, *map(Requirement, ABOUT["build-system"]["requires"])]
    pins = lock()
    for one in asked:
        assert plain(one.name) in pins, f"{one} is not in it: {STALE}"
        version = pins[plain(one.name)][0].version
        assert one.specifier.contains(version, prereleases=True), f"{one}, {version}: {STALE}"
    ours = {name for name, (_, _, why) in pins.items() if "fedloom" in why or "held.in" in why}
    assert ours == {plain(one.name) for one in asked}, STALE


def test_what_is_tried_as_the_lowest_is_what_pyproject_allows():
    pins = lock("lowest.txt")
    for one in wanted():
        (low,) = (Version(s.version).release for s in one.specifier if s.operator == ">=")
        version = Version(pins[plain(one.name)][0].version)
        assert version.release[: len(low)] == low, f"{one}, {version}: {STALE}"


def test_every_version_is_exact_and_comes_from_any_index():
    for name, (version, pin, _) in lock().items():
        assert version.operator == "==" and "*" not in version.version, name
        assert "+" not in version.version, f"{name}: a build of one machine or index"
        assert pin.url is None, name
    assert not re.search(r"://|--|(^|\s)/", (FOLDER / "lock.txt").read_text())
    assert TORCH.locked() == lock()["torch"][0].version


def test_all_that_is_installed_for_us_is_locked():
    """No command of make installs anything without the lock, but the one that tries the newest."""
    make = shutil.which("make")
    if make is None:
        pytest.skip("there is no make")
    line = [make, "-n", "demo", "test", "VENV=fresh"]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True)
    installs = [x for x in done.stdout.splitlines() if "pip install" in x]
    assert done.returncode == 0, done.stderr
    assert len(installs) == 3 and all("-c requirements/lock.txt" in x for x in installs)
    assert "--no-build-isolation" in installs[-1]  # else hatchling comes as new as there is


def test_pages_name_targets_and_sessions_that_there_are():
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    named = re.compile(r'(?:name="([a-z-]+)".*|def ([a-z]+)\(session)')
    sessions = [a or b for a, b in named.findall((ROOT / "noxfile.py").read_text())]
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob(".github/**/*.yml")]
    for page in {*pages} - {ROOT / "CHANGELOG.md"}:
        said = page.read_text()
        assert {*re.findall(r"(?:`|run: |^)make ([a-z-]+)", said)} <= {*targets}, page
        assert {*re.findall(r"nox -s ([a-z-]+)", said)} <= {*sessions}, page


# ------------------------------------------------------------------------------------- PyTorch
class Pip:
    """An index with these builds; it notes what was asked and what was printed before that."""

    def __init__(self, *builds, listed="", absent="No matching distribution found for torch"):
        self.builds, self.listed, self.absent = builds, listed, absent
        self.asked, self.before, self.printed = [], [], lambda: ""

    def __call__(self, command, **_):
        if "index" in command:
            text = f"torch\nAvailable versions: {self.listed}"
            return subprocess.CompletedProcess(command, 0, text)
        wanted = Requirement(command[-1])
        self.asked.append(str(wanted))
        self.before.append(self.printed())
        there = any(wanted.specifier.contains(b, prereleases=True) for b in self.builds)
        said = "" if there else f"ERROR: {self.absent}"
        return subprocess.CompletedProcess(command, int(not there), said)


@pytest.fixture
def get(monkeypatch):
    """Run get_torch.py on Linux: (what is asked, what is there, the index) -> the exit code."""

    def run(words, there, index):
        with monkeypatch.context() as patch:
            patch.setattr(sys, "argv", ["get_torch.py", *words.split()])
            patch.setattr(sys, "platform", "linux")
            patch.setattr(TORCH, "installed", lambda: there)
            patch.setattr(TORCH, "locked", lambda lock: "2.13.0")
            patch.setattr(subprocess, "run", index)
            return TORCH.main()

    return run


CPU, CUDA = "torch==2.13.0+cpu", "torch==2.13.0"
BOTH = ("2.13.0", "2.13.0+cpu")


@pytest.mark.parametrize(
    ("words", "there", "builds", "asked"),
    [
        ("auto", None, BOTH, [CPU]),
        ("cpu", None, BOTH, [CPU]),
        ("auto", None, ["2.13.0"], [CPU, CUDA]),
        ("cuda", "2.13.0+cpu", BOTH, ["torch!=2.13.0+cpu,==2.13.0"]),  # not the build without it
        # what will do stays
        ("auto", "2.13.0", BOTH, []),
        ("auto", "2.13.0+cpu", BOTH, []),
        ("auto", "2.12.0+cpu", BOTH, [CPU]),
        ("cpu", "2.13.0+cpu", BOTH, []),
        ("cpu", "2.13.0", BOTH, [CPU]),
        ("cuda", "2.13.0", BOTH, []),
        ("cuda", "2.13.0+cu126", BOTH, []),
        ("auto --newest", "2.13.0+cpu", ["2.15.0", "2.14.1+cpu"], ["torch==2.14.1+cpu"]),
        ("auto --newest", None, ["2.15.0"], ["torch"]),
    ],
)
def test_of_all_builds_is_fetched(words, there, builds, asked, get):
    index = Pip(*builds, listed=", ".join(builds))
    assert get(words, there, index) == 0
    assert [str(Requirement(one)) for one in index.asked] == asked


def test_the_size_is_said_before_it_is_fetched(get, capsys):
    index = Pip("2.13.0")
    index.printed = lambda: capsys.readouterr().out
    assert get("auto", None, index) == 0
    assert index.before[0].endswith("without CUDA: about 0.2 GB to fetch, 0.8 GB on disk\n")
    assert "with CUDA: about 2.7 GB to fetch, 4.7 GB on disk" in index.before[1]


@pytest.mark.parametrize("absent", TORCH.ABSENT)
def test_cpu_only_fetches_nothing_else(absent, get, capsys):
    index = Pip("2.13.0", absent=f"{absent}: torch")
    assert get("cpu", None, index) == TORCH.NO_CPU_BUILD and index.asked == [CPU]
    said = capsys.readouterr().err
    assert "No build of torch 2.13.0 without CUDA was found" in said
    assert "about 2.7 GB to fetch, 4.7 GB on disk): TORCH=cuda" in said


@pytest.mark.parametrize(
    ("words", "index", "said"),
    [
        ("gpu", Pip(), "TORCH=gpu is unknown; TORCH is one of auto, cpu, cuda"),
        ("cuda", Pip(), "torch 2.13.0 was not found for this Python; is the"),
        ("auto", Pip(absent="No space left on device"), "No space left"),
    ],
)
def test_what_cannot_be_installed_is_said_in_a_line(words, index, said, get):
    with pytest.raises(SystemExit, match=said):
        get(words, None, index)


# --------------------------------------------------------------------------------- interpreters
def test_pythons_at_hand(tmp_path, monkeypatch):
    """On PATH or pyenv's, oldest first; a shim that does not start is passed over."""
    own = f"3.{sys.version_info[1]}"
    one, other, *others = [v for v in PYTHONS.supported() if v != own]

    def fake(place, version, code=0):
        path = tmp_path / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\necho {version}\nexit {code}\n")
        path.chmod(0o755)
        return str(path)

    expected = {own: sys.executable, one: fake(f"bin/python{one}", one)}
    fake(f"bin/python{other}", other, code=127)
    for patch in ("2", "11rc1", "10"):
        expected[other] = fake(f"versions/{other}.{patch}/bin/python", other)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/bin:/usr/bin")
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    monkeypatch.setattr(PYTHONS, "supported", lambda: sorted([own, one, other, *others]))
    assert PYTHONS.at_hand() == [expected[v] for v in sorted(expected)]


def test_the_oldest_python_that_is_supported_is_named_once():
    oldest = PYTHONS.supported()[0]
    assert PROJECT["requires-python"] == f">={oldest}"
    assert ".".join(map(str, TORCH.OLDEST)) == oldest


# -------------------------------------------------------------------------------------- the wheel
def test_a_wheel_says_its_commit(tmp_path, monkeypatch):
    pytest.importorskip("hatchling")  # `make` installs it
    hook = load("commit_hook", FOLDER / "commit_hook.py").CommitHook
    git = ["git", "-C", str(tmp_path), "-c", "user.name=n", "-c", "user.email=e@x"]
    for words in (["init", "-q"], ["commit", "-qm", "one", "--allow-empty"]):
        subprocess.run([*git, "-c", "commit.gpgsign=false", *words], check=True)
    out = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    for target, inside in (("wheel", "fedloom"), ("sdist", "src/fedloom")):
        one = hook(str(tmp_path), {}, None, None, str(tmp_path / "dist"), target)
        about = {"force_include": {}}
        one.initialize("editable", about)
        assert not about["force_include"]
        one.initialize("standard", about)
        ((file, place),) = about["force_include"].items()
        assert place == f"{inside}/_commit.txt" and Path(file).read_text() == out.stdout
        one.finalize("standard", about, "")
        assert not Path(file).exists()
    # and the package that was installed from it
    monkeypatch.setattr(commit, "PACKAGE", tmp_path)
    assert commit.own_commit.__wrapped__() is None
    (tmp_path / commit.BUILT).write_text(out.stdout)
    assert commit.own_commit.__wrapped__() == out.stdout.strip()


WHEEL = {"url": "file:///d/fedloom-1-py3-none-any.whl", "archive_info": {}}


@pytest.mark.parametrize(
    ("origin", "said"),
    [
        ({"url": "file:///home/a%20b/f", "dir_info": {}}, "pip install '/home/a b/f[x]'"),
        ({"url": "file:///f", "dir_info": {"editable": True}}, "pip install -e '/f[x]'"),
        (WHEEL, "'/d/fedloom-1-py3-"),
        (None, "pip install 'fedloom[x]'"),
    ],
)
def test_an_extra_is_installed_from_where_fedloom_came(origin, said, monkeypatch):
    class Installed:
        def read_text(self, name):
            return json.dumps(origin) if name == "direct_url.json" and origin else None

    monkeypatch.setattr(extras, "distribution", lambda name: Installed())
    assert said in extras.install("x")
