"""A mutation run: how many small, seeded mistakes in the code do the tests notice?

    python benchmarks/mutants.py [--mutants 500] [--seed 0] [--record mutants.jsonl] [--jobs 2]
        [--budget 20] [--seconds 120] [--tests PATH ...] [--rooms PATH ...]

Cosmic Ray's operators (cosmic-ray, pytest-cov: `nox -s mutants` installs them) change one place
each in the code below ROOMS, or in files and folders of one's own choice (--rooms): an operator, a
comparison, a number, a condition, a decorator, a loop. A change of types, words or annotations
alone is none. The places are drawn at random, one mutant each.

The suite, or the tests of --tests, run once first. What that shows is kept beside the record: which
tests run which line, the seconds of each, and no test that fails. A mutant gets the tests of its
line, the quickest first, until their seconds, and 0.3 for each file of tests, are above --budget.
It is killed if one of them fails, or if they take --seconds. They run in a copy of the checkout.

Every finished mutant is a line of the record: the same command goes on with it. The end says the
score, killed / all, and the survivors. To try a survivor again, take its line away.
"""

from __future__ import annotations

import argparse
import ast
import compileall
import contextlib
import difflib
import json
import os
import queue
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as Tree
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import islice
from pathlib import Path
from py_compile import PycInvalidationMode
from typing import Any, NamedTuple

from fedloom.core.commit import own_commit

ROOT = Path(__file__).resolve().parents[1]
COPIED = ("src", "packages", "tests", "docs", "examples", "benchmarks", "site")
COPIED += ("requirements", "pyproject.toml", "conftest.py", "noxfile.py", "Makefile", ".github")
COPIED += (
    "README.md",
    "README.md.in",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "CITATION.cff",
    "LICENSE",
)
PACKAGES = ("conformance", "flower", "papers")
SOURCES = ("src", *(f"packages/fedloom-{package}/src" for package in PACKAGES))
PYTEST = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow"]

ROOMS = [f"src/fedloom/{room}" for room in ("algorithm.py", "algorithms", "compression", "storage")]
ROOMS += ["src/fedloom/engines/summation.py", "src/fedloom/server/server_step.py"]
SPARED = {"VariableReplacer", "VariableInserter"}  # they make names that mean nothing here
ARITHMETIC = {"Add", "Sub", "Mul", "Div", "FloorDiv", "Mod", "Pow"}  # others would only raise
SURVIVED = "survived"
LOADING = 0.3  # seconds to load a file of tests
KEPT = 500  # tests that are kept for a line


class Mutant(NamedTuple):
    """A changed place: file (below the checkout), line from 1, operator and its occurrence."""

    file: str
    line: int
    operator: str
    occurrence: int


def files_of(rooms: Sequence[str]) -> list[Path]:
    """The files that are changed, of folders and files below the checkout."""
    places = [ROOT / room for room in rooms]
    return [f for p in places for f in (sorted(p.rglob("*.py")) if p.is_dir() else [p])]


def behaviour(code: str) -> str:
    """What a module does, as text: its syntax tree without docstrings and annotations."""
    tree = ast.parse(code)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.returns = None
        elif isinstance(node, ast.arg):
            node.annotation = None
        elif isinstance(node, ast.AnnAssign):
            node.annotation = ast.Constant(None)
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = [ast.Pass()]
        body = getattr(node, "body", None)
        first = body[0] if isinstance(body, list) and body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
            body[0] = ast.Expr(ast.Constant(""))
    return ast.dump(tree)


def mutated(file: Path, operator: str, occurrence: int) -> str | None:
    """The file's text with one change; None if that changes nothing, or is no Python."""
    import cosmic_ray.plugins
    from cosmic_ray.mutating import mutate_code

    code = file.read_text("utf-8")
    made = cosmic_ray.plugins.get_operator(f"core/{operator}")()
    changed = mutate_code(code, made, occurrence)
    try:
        same = changed is None or behaviour(changed) == behaviour(code)
    except SyntaxError:
        return None
    return None if same else changed


def sensible(operator: str) -> bool:
    """Whether an operator makes a mistake that somebody could make."""
    kind, *sides = operator.split("_")
    if kind == "ReplaceBinaryOperator":
        return sides[1] != "Pow" and len(ARITHMETIC & set(sides)) != 1
    return operator not in SPARED


def places(file: Path) -> dict[int, list[Mutant]]:
    """{line: the mutants of it}, most of which have not been looked at."""
    import cosmic_ray.plugins
    from cosmic_ray.ast import ast_nodes, get_ast_from_path

    nodes, found = list(ast_nodes(get_ast_from_path(file))), defaultdict(list)
    for name in sorted(cosmic_ray.plugins.operator_names()):
        operator = name.removeprefix("core/")
        made = cosmic_ray.plugins.get_operator(name)
        if not sensible(operator) or made.arguments():
            continue
        positions = (p for node in nodes for p in made().mutation_positions(node))
        for occurrence, (start, _) in enumerate(positions):
            mutant = Mutant(str(file.relative_to(ROOT)), start[0], operator, occurrence)
            found[start[0]].append(mutant)
    return found


def drawn(files: Sequence[Path], seed: int) -> Iterator[tuple[Mutant, str]]:
    """Mutants in random order, one a line, and their files' texts; those that change nothing are
    left out.
    """
    rng = random.Random(seed)
    lines = [of for file in files for _, of in sorted(places(file).items())]
    rng.shuffle(lines)
    for of in lines:
        rng.shuffle(of)
        for mutant in of:
            changed = mutated(ROOT / mutant.file, mutant.operator, mutant.occurrence)
            if changed is not None:
                yield mutant, changed
                break


def change(code: str, changed: str) -> list[str]:
    """The lines that a mutant takes away and puts in, with - and + before them."""
    diff = difflib.unified_diff(code.splitlines(), changed.splitlines(), lineterm="", n=0)
    return [line for line in diff if line[:1] in "+-" and line[:3] not in ("+++", "---")]


# ---------------------------------------------------------------------------------------- the tests
def copy_of(folder: Path) -> Path:
    """The checkout without its history, in a folder of its own, compiled: a file that is changed
    later is compiled anew, by its text and not by its time.
    """
    folder.mkdir()
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif source.exists():
            shutil.copy(source, folder / name)
    for name in ("src", "packages", "tests"):
        mode = PycInvalidationMode.CHECKED_HASH
        compileall.compile_dir(folder / name, quiet=2, invalidation_mode=mode)
    return folder


def tested(folder: Path, words: Sequence[str], seconds: float | None = None) -> int | None:
    """Run pytest in a copy -> its exit code, None if it takes longer. What it started ends, too."""
    paths = [str(folder / source) for source in SOURCES]
    paths += filter(None, [os.environ.get("PYTHONPATH")])
    own = {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    own["PYTHONDONTWRITEBYTECODE"] = "1"
    silent = None if seconds is None else subprocess.DEVNULL
    process = subprocess.Popen(
        [*PYTEST, *words],
        cwd=folder,
        env=os.environ | own,
        stdout=silent,
        stderr=silent,
        start_new_session=True,
    )
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def quickest(tests: set[str], seconds: dict[str, float]) -> list[str]:
    """The tests that take the least time, at most KEPT of them."""
    return sorted(tests, key=lambda test: (seconds.get(test, 1.0), test))[:KEPT]


def coverage(place: Path, files: Sequence[Path], tests: Sequence[str], jobs: int) -> dict[str, Any]:
    """{"lines": {file: {line: [test]}}, "seconds": {test: s}} of the suite or of some tests, of
    those that pass; kept in a file, which is read if it is there.
    """
    import coverage as library

    if place.exists():
        return dict(json.loads(place.read_text("utf-8")))
    with tempfile.TemporaryDirectory() as name:
        folder = copy_of(Path(name) / "copy")
        targets = {str(f.relative_to(ROOT)): str(folder / f.relative_to(ROOT)) for f in files}
        text = "[run]\ninclude =\n    " + "\n    ".join(targets.values())
        (folder / "coverage.ini").write_text(text)
        options = ["--cov", "--cov-config=coverage.ini", "--cov-context=test", "--cov-report="]
        options += ["--junitxml=t.xml", "-o", "junit_family=xunit1", "-n", str(jobs)]
        tested(folder, [*options, "--dist=worksteal", *tests])
        seconds = {
            f"{case.get('file')}::{case.get('name')}": float(case.get("time") or 0)
            for case in Tree.parse(folder / "t.xml").iter("testcase")
            if case.find("failure") is None and case.find("error") is None
        }
        data = library.CoverageData(str(folder / ".coverage"))
        data.read()
        lines = {
            file: {
                str(line): quickest({c.split("|")[0] for c in names if c} & {*seconds}, seconds)
                for line, names in data.contexts_by_lineno(target).items()
            }
            for file, target in targets.items()
        }
    place.write_text(json.dumps({"lines": lines, "seconds": seconds}), encoding="utf-8")
    return {"lines": lines, "seconds": seconds}


def tests_of(mutant: Mutant, known: dict[str, Any], budget: float) -> list[str]:
    """The tests that run a mutant's line, the quickest first, until their seconds are above the
    budget; of a line that only the import runs, the tests of its file.
    """
    of_file, seconds = known["lines"].get(mutant.file, {}), known["seconds"]
    covering = of_file.get(str(mutant.line)) or {t for names in of_file.values() for t in names}
    found: list[str] = []
    loaded: set[str] = set()
    for test in quickest(covering, seconds):
        if budget <= 0:
            break
        found.append(test)
        own = test.split("::")[0]
        budget -= seconds.get(test, 1.0) + (0 if own in loaded else LOADING)
        loaded.add(own)
    return found


# --------------------------------------------------------------------------------------- the trials
def tried(mutant: Mutant, changed: str, tests: list[str], folder: Path, seconds: float) -> Any:
    """Run a mutant's tests in a copy, which has its own text again then -> a line of the record."""
    file, began = folder / mutant.file, time.monotonic()
    code = file.read_text("utf-8")
    file.write_text(changed, encoding="utf-8")
    (folder / "tests.txt").write_text("\n".join(tests), encoding="utf-8")
    try:
        ended = tested(folder, ["-x", "--assert=plain", "@tests.txt"], seconds) if tests else 0
    finally:
        file.write_text(code, encoding="utf-8")
    return mutant._asdict() | {
        "killed": ended != 0,
        "how": {0: SURVIVED, None: "took too long"}.get(ended, "a test failed"),
        "tests": len(tests),
        "seconds": round(time.monotonic() - began, 1),
        "diff": change(code, changed),
    }


# ------------------------------------------------------------------------------------------ the run
def score(lines: list[dict[str, Any]]) -> str:
    """How many are killed."""
    killed = sum(line["killed"] for line in lines)
    return f"{killed} of {len(lines)} killed, {100 * killed / max(1, len(lines)):.1f} %"


def report(lines: list[dict[str, Any]]) -> str:
    """The score, by folder, and who survived."""
    folders, out = defaultdict(list), []
    for line in lines:
        folders[os.path.dirname(line["file"])].append(line)
    out += [f"{name}: {score(of)}" for name, of in sorted(folders.items())]
    out.append(f"score: {score(lines)}")
    for line in lines:
        if line["how"] == SURVIVED:
            out.append(f"survived: {line['file']}:{line['line']} {line['operator']}")
            out += [f"    {text}" for text in line["diff"]]
    return "\n".join(out)


def options() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--mutants", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", type=Path, default=Path("mutants.jsonl"))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--budget", type=float, default=20.0, help="seconds of tests for a mutant")
    parser.add_argument("--seconds", type=float, default=120.0, help="when a mutant is given up")
    parser.add_argument("--tests", nargs="+", default=[], help="paths of the tests to take")
    parser.add_argument("--rooms", nargs="+", default=ROOMS, help="files and folders to change")
    given = parser.parse_args()
    if lacking := [room for room in given.rooms if not (ROOT / room).exists()]:
        parser.error(f"--rooms: {lacking[0]} is not below the checkout")
    return given


def main() -> None:
    """Draw, try what has no line yet, and report."""
    given = options()
    text = given.record.read_text("utf-8") if given.record.exists() else ""
    lines = [json.loads(line) for line in text.splitlines()]
    done = {Mutant(*(line[key] for key in Mutant._fields)) for line in lines}
    files, place = files_of(given.rooms), given.record.with_suffix(".coverage.json")
    known = coverage(place, files, given.tests, given.jobs)
    drawn_now = islice(drawn(files, given.seed), given.mutants)
    todo = [(mutant, changed) for mutant, changed in drawn_now if mutant not in done]
    said, copies = {"budget": given.budget, "commit": own_commit()}, queue.SimpleQueue[Path]()

    def one(mutant: Mutant, changed: str) -> dict[str, Any]:
        folder = copies.get()
        try:
            return said | tried(
                mutant, changed, tests_of(mutant, known, given.budget), folder, given.seconds
            )
        finally:
            copies.put(folder)

    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(given.jobs) as pool:
        for job in range(given.jobs):
            copies.put(copy_of(Path(name) / str(job)))
        for found in as_completed([pool.submit(one, *mutant) for mutant in todo]):
            line = found.result()
            lines.append(line)
            with open(given.record, "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
            print(f"{line['how']} {line['file']}:{line['line']}", flush=True)
    print(report(lines))


if __name__ == "__main__":
    main()
