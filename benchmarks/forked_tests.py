"""Tests in copies of the checkout: which of them run which line, and quick runs in forks.

A process that has loaded the libraries, and nothing of fedloom, forks; the fork runs pytest in a
copy. That saves the seconds that every new process takes to load them.
"""

from __future__ import annotations

import compileall
import contextlib
import gc
import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from py_compile import PycInvalidationMode
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
COPIED = ("src", "tests", "docs", "examples", "benchmarks", "requirements", "pyproject.toml")
COPIED += ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "Makefile", "LICENSE")
PYTEST = ("-q", "-p", "no:cacheprovider", "-m", "not slow")
# loaded before the forks, where they are installed: all that takes time, and nothing of fedloom
LIBRARIES = ("torch", "torch.func", "torch.nn.functional", "torchvision", "numpy", "scipy.stats")
LIBRARIES += ("hypothesis.extra.numpy", "safetensors.torch", "pydantic", "click", "rich.table")
LIBRARIES += ("pandas", "matplotlib.pyplot", "loky", "cloudpickle", "zstandard", "pooch")
LIBRARIES += ("PIL.Image", "pytest", "pytest.__main__", "jinja2", "sklearn.datasets")
TOO_LONG = 124  # the exit code of timeout(1)
HOUR = 3600.0


def copy_of(folder: Path) -> Path:
    """The checkout without its history, in a folder of its own, compiled: a file that is changed
    later is compiled anew, by its text and not by its time.
    """
    folder.mkdir()
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            junk = shutil.ignore_patterns("__pycache__", "*.jsonl.tmp")
            shutil.copytree(source, folder / name, ignore=junk)
        elif source.exists():
            shutil.copy(source, folder / name)
    for name in ("src", "tests"):
        mode = PycInvalidationMode.CHECKED_HASH
        compileall.compile_dir(folder / name, quiet=2, invalidation_mode=mode)
    return folder


def environment(folder: Path) -> dict[str, str]:
    """What processes that test a copy are told."""
    others = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    return {
        "PYTHONPATH": os.pathsep.join([str(folder / "src"), *others]),
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def measured(files: Sequence[str], tests: Sequence[str], jobs: int) -> dict[str, Any]:
    """{"lines": {file: {line: [test]}}, "seconds": {test: s}} of some tests, or of the suite."""
    import xml.etree.ElementTree as Tree

    import coverage as library

    with tempfile.TemporaryDirectory() as name:
        folder = copy_of(Path(name) / "copy")
        targets = [str(folder / file) for file in files]
        (folder / "coverage.ini").write_text("[run]\ninclude =\n    " + "\n    ".join(targets))
        options = ["--cov", "--cov-config=coverage.ini", "--cov-context=test", "--cov-report="]
        options += ["--junitxml=t.xml", "-o", "junit_family=xunit1", "-n", str(jobs)]
        command = [sys.executable, "-m", "pytest", *PYTEST, *options, "--dist=worksteal", *tests]
        code = subprocess.run(command, cwd=folder, env=os.environ | environment(folder)).returncode
        if code:
            print(f"warning: the suite ended with {code} before anything was changed")
        seconds = {
            f"{case.get('file')}::{case.get('name')}": float(case.get("time") or 0)
            for case in Tree.parse(folder / "t.xml").iter("testcase")
        }
        data = library.CoverageData(str(folder / ".coverage"))
        data.read()
        lines = {
            file: {
                str(line): sorted({c.split("|")[0] for c in names if c})
                for line, names in data.contexts_by_lineno(target).items()
            }
            for file, target in zip(files, targets, strict=True)
        }
    return {"lines": lines, "seconds": seconds}


# ---------------------------------------------------------------------------------------- in forks
class Watch:
    """A plugin of pytest that runs some tests, in their order, and notes what passed and failed."""

    def __init__(self, tests: Sequence[str]) -> None:
        self.place = {test: i for i, test in enumerate(tests)}
        self.passed: list[str] = []
        self.failed: list[str] = []

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """The files' tests are known."""
        wanted = [item for item in items if item.nodeid in self.place]
        items[:] = sorted(wanted, key=lambda item: self.place[item.nodeid])

    def pytest_collectreport(self, report: Any) -> None:
        """A file was loaded."""
        if report.failed:
            self.failed.append(report.nodeid)

    def pytest_runtest_logreport(self, report: Any) -> None:
        """A phase of a test has ended."""
        if report.failed:
            self.failed.append(report.nodeid)
        elif report.when == "call" and report.passed:
            self.passed.append(report.nodeid)


def load_libraries() -> None:
    """Import what every fork needs, and let no fork's garbage collector look at it again."""
    os.environ["OMP_NUM_THREADS"] = "1"  # no thread may run when a process forks
    for name in LIBRARIES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    assert not any(name.split(".")[0] == "fedloom" for name in sys.modules)
    gc.collect()
    gc.freeze()


def run_tests(folder: Path, tests: Sequence[str], words: Sequence[str]) -> int:
    """Run tests of a copy in this process, and note there what came of them -> the exit code."""
    import pytest

    os.environ.update(environment(folder))
    os.chdir(folder)
    sys.path[:1] = [str(folder), str(folder / "src")]
    sys.modules["__main__"] = sys.modules["pytest.__main__"]  # processes that tests start load it
    sys.dont_write_bytecode = True
    watch, files = Watch(tests), sorted({test.split("::")[0] for test in tests})
    own = ["--assert=plain", "-p", "no:xdist", f"--basetemp={folder}.tmp"]
    code = pytest.main([*PYTEST, *own, *words, *files], plugins=[watch])
    seen = {"passed": watch.passed, "failed": watch.failed}
    (folder / "seen.json").write_text(json.dumps(seen))
    return 0 if code == pytest.ExitCode.NO_TESTS_COLLECTED else int(code)


def forked(folder: Path, tests: Sequence[str], *words: str) -> int:
    """Begin to run tests in a fork of this process, with a session of its own -> its number."""
    (folder / "seen.json").unlink(missing_ok=True)
    process = os.fork()
    if process:
        return process
    code = 3  # as pytest says that it broke down itself
    try:
        os.setsid()
        silent = os.open(os.devnull, os.O_RDWR)
        for number in range(3):
            os.dup2(silent, number)
        code = run_tests(folder, tests, words) if tests else 0
    finally:
        os._exit(code)


def ended(process: int, until: float) -> int | None:
    """The exit code of a fork, TOO_LONG after its time, None while it runs. What it started ends
    with it.
    """
    found, status = os.waitpid(process, os.WNOHANG)
    if not found and time.monotonic() < until:
        return None
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process, 9)
    if not found:
        os.waitpid(process, 0)
    return os.waitstatus_to_exitcode(status) if found else TOO_LONG


def seen(folder: Path) -> dict[str, list[str]]:
    """What the last tests in a copy came to; nothing if they ended before they could say it."""
    place = folder / "seen.json"
    return dict(json.loads(place.read_text())) if place.exists() else {"passed": [], "failed": []}


def sound(tests: Iterable[str], copies: list[Path]) -> set[str]:
    """The tests that pass in a fork, on code that is not changed."""
    there = sorted(test for test in tests if (copies[0] / test.split("::")[0]).exists())
    shares = [there[i :: len(copies)] for i in range(len(copies))]
    running = [forked(*one) for one in zip(copies, shares, strict=True)]
    until = time.monotonic() + HOUR
    while running:
        running = [process for process in running if ended(process, until) is None]
        time.sleep(0.1)
    found = [seen(folder) for folder in copies]
    bad = {test for one in found for test in one["failed"]}
    print(f"{len(bad)} tests fail in a fork of the unchanged code and are left out: {sorted(bad)}")
    return {test for one in found for test in one["passed"]} - bad
