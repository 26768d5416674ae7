"""A mutation run: how many small, seeded mistakes in the code do the tests notice?

    python benchmarks/mutants.py [--mutants 500] [--seed 0] [--record mutants.jsonl] [--jobs 1]
        [--seconds 120] [--tests tests] [--again]

Cosmic Ray's operators (cosmic-ray, pytest-cov: `make mutants` installs them) change one place each
in the code below TARGETS: an operator, a comparison, a number, a condition, a decorator, a loop.
A change of types, words or annotations alone is none. The places are drawn at random, one mutant
each. A first run of the whole suite, kept beside the record, says which tests run which line, and
how long each takes. A mutant is killed if one of its tests fails, or takes --seconds; the quickest
tests go first. Everything happens in copies of the checkout.

Every finished mutant is a line of the record: the same command goes on with it. The end says the
score, killed / all, and the survivors; `--again` tries the survivors of the record once more.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
TARGETS = (
    "algorithm.py",
    "algorithms",
    "compression",
    "engines/summation.py",
    "server/server_step.py",
    "storage",
)
COPIED = ("src", "tests", "docs", "examples", "benchmarks", "requirements", "pyproject.toml")
COPIED += ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "Makefile", "LICENSE")
SPARED = {"VariableReplacer", "VariableInserter"}  # they make names that mean nothing here
ARITHMETIC = {"Add", "Sub", "Mul", "Div", "FloorDiv", "Mod", "Pow"}  # others would only raise
MANY = 400  # tests of a mutant, the quickest first; further ones run the line by the way


class Mutant(NamedTuple):
    """A changed place: file (below the checkout), line from 1, operator and its occurrence."""

    file: str
    line: int
    operator: str
    occurrence: int


def files() -> list[Path]:
    """The files that are changed."""
    places = [ROOT / "src" / "fedloom" / target for target in TARGETS]
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

    tree, found = get_ast_from_path(file), defaultdict(list)
    for name in sorted(cosmic_ray.plugins.operator_names()):
        operator = name.removeprefix("core/")
        made = cosmic_ray.plugins.get_operator(name)
        if not sensible(operator) or made.arguments():
            continue
        positions = (p for node in ast_nodes(tree) for p in made().mutation_positions(node))
        for occurrence, (start, _) in enumerate(positions):
            mutant = Mutant(str(file.relative_to(ROOT)), start[0], operator, occurrence)
            found[start[0]].append(mutant)
    return found


def drawn(seed: int) -> Iterator[Mutant]:
    """Mutants in random order, one a line; those that change nothing are left out."""
    rng = random.Random(seed)
    lines = [of for file in files() for _, of in sorted(places(file).items())]
    rng.shuffle(lines)
    for of in lines:
        rng.shuffle(of)
        for mutant in of:
            if mutated(ROOT / mutant.file, mutant.operator, mutant.occurrence) is not None:
                yield mutant
                break


# ---------------------------------------------------------------------------------------- the tests
def copy_of(folder: Path) -> Path:
    """The checkout without its history, in a folder of its own."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            junk = shutil.ignore_patterns("__pycache__", "*.jsonl.tmp")
            shutil.copytree(source, folder / name, ignore=junk)
        elif source.exists():
            shutil.copy(source, folder / name)
    return folder


def pytest(folder: Path, *words: str, seconds: float | None = None) -> int:
    """Run tests in a copy -> the exit code; 124 after so many seconds."""
    env = os.environ | {"PYTHONPATH": str(folder / "src"), "OMP_NUM_THREADS": "1"}
    if others := os.environ.get("PYTHONPATH"):
        env["PYTHONPATH"] += os.pathsep + others
    env["PYTHONDONTWRITEBYTECODE"] = "1"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow"]
    with subprocess.Popen(
        [*command, *words],
        cwd=folder,
        env=env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            return 124


def coverage(place: Path, tests: str) -> dict[str, Any]:
    """{"lines": {file: {line: [test]}}, "seconds": {test: s}}, measured once and kept beside."""
    if place.exists():
        found: dict[str, Any] = json.loads(place.read_text("utf-8"))
        return found
    import xml.etree.ElementTree as Tree

    import coverage as library

    with tempfile.TemporaryDirectory() as name:
        folder = copy_of(Path(name))
        options = ["--cov=src/fedloom", "--cov-context=test", "--cov-report=", "--junitxml=t.xml"]
        code = pytest(folder, *options, "-o", "junit_family=xunit1", tests)
        if code != 0:
            print(f"warning: the suite ended with {code} before anything was changed")
        seconds = {
            f"{case.get('file')}::{case.get('name')}": float(case.get("time") or 0)
            for case in Tree.parse(folder / "t.xml").iter("testcase")
        }
        data = library.CoverageData(str(folder / ".coverage"))
        data.read()
        lines: dict[str, Any] = {}
        for file in files():
            own = folder / file.relative_to(ROOT)
            contexts = data.contexts_by_lineno(str(own))
            lines[str(file.relative_to(ROOT))] = {
                line: sorted({c.split("|")[0] for c in names if c})
                for line, names in contexts.items()
            }
    measured = {"lines": lines, "seconds": seconds}
    place.write_text(json.dumps(measured), encoding="utf-8")
    return measured


def tests_of(mutant: Mutant, known: dict[str, Any]) -> list[str]:
    """The tests that run a mutant's line, the quickest first; of a line that only the import runs,
    those of the whole file.
    """
    of_file = known["lines"].get(mutant.file, {})
    found = of_file.get(str(mutant.line)) or of_file.get(mutant.line)
    found = found or sorted({t for names in of_file.values() for t in names})
    return sorted(found, key=lambda t: (known["seconds"].get(t, 1.0), t))[:MANY]


def tried(mutant: Mutant, tests: list[str], folder: Path, seconds: float) -> dict[str, Any]:
    """Change a copy, run the tests, change it back -> a line of the record."""
    file = folder / mutant.file
    code, began = file.read_text("utf-8"), time.monotonic()
    changed = mutated(file, mutant.operator, mutant.occurrence)
    assert changed is not None
    file.write_text(changed, encoding="utf-8")
    try:
        ended = pytest(folder, "-x", *tests, seconds=seconds) if tests else 0
    finally:
        file.write_text(code, encoding="utf-8")
    diff = difflib.unified_diff(code.splitlines(), changed.splitlines(), lineterm="", n=0)
    return mutant._asdict() | {
        "killed": ended != 0,
        "how": {0: "survived", 124: "took too long"}.get(ended, "a test failed"),
        "tests": len(tests),
        "seconds": round(time.monotonic() - began, 1),
        "diff": [line for line in diff if line[:1] in "+-" and line[:3] not in ("+++", "---")],
    }


# ------------------------------------------------------------------------------------------ the run
def version() -> dict[str, str]:
    """The commit, for the record."""
    words = ["git", "rev-parse", "--short", "HEAD"]
    return {
        "commit": subprocess.run(words, cwd=ROOT, capture_output=True, text=True).stdout.strip()
    }


def read(record: Path) -> list[dict[str, Any]]:
    """The lines that there are."""
    text = record.read_text("utf-8") if record.exists() else ""
    return [json.loads(line) for line in text.splitlines()]


def report(lines: list[dict[str, Any]]) -> str:
    """The score, by folder, and who survived."""
    rows, out = defaultdict(list), []
    for line in lines:
        rows["/".join(line["file"].split("/")[2:-1]) or "algorithm.py"].append(line["killed"])
    for name, killed in sorted(rows.items()):
        out.append(f"{name}: {sum(killed)} of {len(killed)} killed")
    all_ = [line["killed"] for line in lines]
    out.append(f"score: {sum(all_)} of {len(all_)}, {100 * sum(all_) / max(1, len(all_)):.1f} %")
    for line in lines:
        if not line["killed"]:
            out.append(f"survived: {line['file']}:{line['line']} {line['operator']}")
            out += [f"    {text}" for text in line["diff"]]
    return "\n".join(out)


def main() -> None:
    """Draw, try what has no line yet, and report."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--mutants", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", type=Path, default=Path("mutants.jsonl"))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--tests", default="tests", help="what the first run covers")
    parser.add_argument("--again", action="store_true", help="try the survivors once more")
    options = parser.parse_args()
    lines = read(options.record)
    done = {Mutant(*(line[k] for k in Mutant._fields)): line for line in lines}
    known = coverage(options.record.with_suffix(".coverage.json"), options.tests)
    if options.again:
        chosen = [m for m, line in done.items() if not line["killed"]]
        done = {m: line for m, line in done.items() if line["killed"]}
    else:
        chosen = [m for m, _ in zip(drawn(options.seed), range(options.mutants), strict=False)]
    todo = [m for m in chosen if m not in done]
    with tempfile.TemporaryDirectory() as name:
        copies: SimpleQueue[Path] = SimpleQueue()
        for job in range(options.jobs):
            (Path(name) / str(job)).mkdir()
            copies.put(copy_of(Path(name) / str(job)))

        def go(mutant: Mutant) -> tuple[Mutant, dict[str, Any]]:
            folder = copies.get()
            try:
                return mutant, tried(mutant, tests_of(mutant, known), folder, options.seconds)
            finally:
                copies.put(folder)

        with ThreadPoolExecutor(options.jobs) as pool:
            for mutant, line in pool.map(go, todo):
                done[mutant] = line | version()
                with open(options.record, "a", encoding="utf-8") as file:
                    file.write(json.dumps(done[mutant]) + "\n")
                print(f"{len(done)}: {line['how']} {mutant.file}:{mutant.line}", flush=True)
    print(report(list(done.values())))


if __name__ == "__main__":
    main()
