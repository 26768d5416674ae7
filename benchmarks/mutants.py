"""A mutation run: how many small, seeded mistakes in the code do the tests notice?

    python benchmarks/mutants.py [--mutants 500] [--seed 0] [--record mutants.jsonl] [--jobs 2]
        [--budget 20] [--seconds 120] [--tests PATH ...] [--again]

Cosmic Ray's operators (cosmic-ray, pytest-cov: `make mutants` installs them) change one place each
in the code below TARGETS: an operator, a comparison, a number, a condition, a decorator, a loop.
A change of types, words or annotations alone is none. The places are drawn at random, one mutant
each.

The suite runs once first. What it shows is kept beside the record: which tests run which line, and
the seconds of each. A mutant gets the tests of its line, the quickest first, until their seconds,
and 0.3 for each file of tests, are above --budget. It is killed if one of them fails, or if they
take --seconds. This process loads the libraries once and forks for each mutant; the tests run in
the fork, in a copy of the checkout. Tests that fail so on the unchanged code are left out.

Every finished mutant is a line of the record: the same command goes on with it. The end says the
score, killed / all, and the survivors. `--again` tries the survivors of the record once more, and
finds them by the text of their change; `--tests` measures the tests of some paths again.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import json
import random
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import forked_tests
from forked_tests import ROOT

TARGETS = (
    "algorithm.py",
    "algorithms",
    "compression",
    "engines/summation.py",
    "server/server_step.py",
    "storage",
)
SPARED = {"VariableReplacer", "VariableInserter"}  # they make names that mean nothing here
ARITHMETIC = {"Add", "Sub", "Mul", "Div", "FloorDiv", "Mod", "Pow"}  # others would only raise
SURVIVED, GONE = "survived", "gone with its code"
LOADING = 0.3  # seconds to load a file of tests


class Mutant(NamedTuple):
    """A changed place: file (below the checkout), line from 1, operator and its occurrence."""

    file: str
    line: int
    operator: str
    occurrence: int


Choice = tuple[Mutant, Mutant, str]  # its name in the record, its place today, the file's text


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


def drawn(seed: int) -> Iterator[tuple[Mutant, str]]:
    """Mutants in random order, one a line, and their files' texts; those that change nothing are
    left out.
    """
    rng = random.Random(seed)
    lines = [of for file in files() for _, of in sorted(places(file).items())]
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


def found_again(line: dict[str, Any]) -> tuple[Mutant, str] | None:
    """The mutant of a line of the record, in the code of today; None if that code is gone."""
    file = ROOT / line["file"]
    if not file.exists():
        return None
    nearest = sorted(places(file).items(), key=lambda at: abs(at[0] - line["line"]))
    for mutant in (m for _, of in nearest for m in of if m.operator == line["operator"]):
        changed = mutated(file, mutant.operator, mutant.occurrence)
        if changed is not None and change(file.read_text("utf-8"), changed) == line["diff"]:
            return mutant, changed
    return None


# ---------------------------------------------------------------------------------------- the tests
def coverage(place: Path, tests: Sequence[str], jobs: int) -> dict[str, Any]:
    """What measured() says, kept in a file; tests below the paths given are measured anew."""
    kept = json.loads(place.read_text("utf-8")) if place.exists() else {"lines": {}, "seconds": {}}
    if place.exists() and not tests:
        return dict(kept)
    now = forked_tests.measured([str(f.relative_to(ROOT)) for f in files()], tests, jobs)
    stays = {test for test in kept["seconds"] if not test.startswith(tuple(tests))}
    seconds = {t: s for t, s in kept["seconds"].items() if t in stays} | now["seconds"]
    lines: dict[str, dict[str, list[str]]] = now["lines"]
    for file, of_file in kept["lines"].items():
        for line, names in of_file.items():
            more = lines.setdefault(file, {}).setdefault(line, [])
            more += [test for test in names if test in stays]
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
    for test in sorted(covering, key=lambda t: (seconds.get(t, 1.0), t)):
        if budget <= 0:
            break
        found.append(test)
        own = test.split("::")[0]
        budget -= seconds.get(test, 1.0) + (0 if own in loaded else LOADING)
        loaded.add(own)
    return found


# --------------------------------------------------------------------------------------- the trials
class Given(NamedTuple):
    """A mutant to try: its name in the record, its file's text, its tests."""

    mutant: Mutant
    changed: str
    tests: list[str]


class Trial(NamedTuple):
    """A mutant while its tests run in a copy, whose text was another before."""

    given: Given
    code: str
    folder: Path
    process: int
    began: float


def begun(given: Given, folder: Path) -> Trial:
    """Change a copy, and begin to run the tests."""
    file = folder / given.mutant.file
    code = file.read_text("utf-8")
    file.write_text(given.changed, encoding="utf-8")
    process = forked_tests.forked(folder, given.tests, "-x")
    return Trial(given, code, folder, process, time.monotonic())


def finished(trial: Trial, code: int) -> dict[str, Any]:
    """Change the copy back -> a line of the record."""
    file, tests = trial.given.mutant.file, trial.given.tests
    (trial.folder / file).write_text(trial.code, encoding="utf-8")
    return trial.given.mutant._asdict() | {
        "killed": code != 0,
        "how": {0: SURVIVED, forked_tests.TOO_LONG: "took too long"}.get(code, "a test failed"),
        "by": next(iter(forked_tests.seen(trial.folder)["failed"]), ""),
        "tests": len(tests),
        "seconds": round(time.monotonic() - trial.began, 1),
        "diff": change(trial.code, trial.given.changed),
    }


def tried(todo: Iterable[Given], copies: list[Path], seconds: float) -> Iterator[dict[str, Any]]:
    """Run each mutant's tests, as many mutants at once as there are copies."""
    waiting, free, running = iter(todo), list(copies), list[Trial]()
    while True:
        while free and (given := next(waiting, None)) is not None:
            running.append(begun(given, free.pop()))
        if not running:
            return
        for trial in list(running):
            code = forked_tests.ended(trial.process, trial.began + seconds)
            if code is not None:
                running.remove(trial)
                free.append(trial.folder)
                yield finished(trial, code)
        time.sleep(0.02)


# ------------------------------------------------------------------------------------------ the run
def commit() -> str:
    """The commit, for the record."""
    words = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True).stdout.strip()


def identity(line: dict[str, Any]) -> Mutant:
    """The mutant of a line, by the name that it got first."""
    return Mutant(*(line[key] for key in Mutant._fields))


def read(record: Path) -> dict[Mutant, dict[str, Any]]:
    """The last line of each mutant."""
    text = record.read_text("utf-8") if record.exists() else ""
    return {identity(line): line for line in map(json.loads, text.splitlines())}


def score(lines: list[dict[str, Any]]) -> str:
    """How many are killed, of all and without those whose code is gone."""
    killed = sum(line["killed"] for line in lines)
    there = sum(line["how"] != GONE for line in lines)
    text = f"{killed} of {there} killed, {100 * killed / max(1, there):.1f} %"
    return text + (f"; the code of {len(lines) - there} more is gone" if there < len(lines) else "")


def report(lines: list[dict[str, Any]]) -> str:
    """The score, by folder, and who survived."""
    folders, out = defaultdict(list), []
    for line in lines:
        folders["/".join(line["file"].split("/")[2:-1]) or "algorithm.py"].append(line)
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
    parser.add_argument("--tests", nargs="+", default=[], help="paths to measure again")
    parser.add_argument("--again", action="store_true", help="try the survivors once more")
    return parser.parse_args()


def written(record: Path, line: dict[str, Any]) -> dict[str, Any]:
    """Add a line to the record."""
    with open(record, "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
    print(f"{line['how']} {line['file']}:{line['line']}", flush=True)
    return line


def chosen(given: argparse.Namespace, done: dict[Mutant, dict[str, Any]]) -> Iterator[Choice]:
    """The mutants that have no line yet; again, the survivors that the code still has."""
    if not given.again:
        for mutant, changed in islice(drawn(given.seed), given.mutants):
            if mutant not in done:
                yield mutant, mutant, changed
        return
    for mutant, line in done.items():
        if line["how"] == SURVIVED:
            now = found_again(line)
            if now is None:
                done[mutant] = written(given.record, line | {"how": GONE})
            else:
                yield mutant, *now


def main() -> None:
    """Draw, try what has no line yet, and report."""
    given = options()
    done = read(given.record)
    known = coverage(given.record.with_suffix(".coverage.json"), given.tests, given.jobs)
    picked = list(chosen(given, done))
    tests = [tests_of(now, known, given.budget) for _, now, _ in picked]
    said = {"budget": given.budget, "commit": commit()}
    forked_tests.load_libraries()
    with tempfile.TemporaryDirectory() as name:
        copies = [forked_tests.copy_of(Path(name) / str(job)) for job in range(given.jobs)]
        sound = forked_tests.sound({test for of in tests for test in of}, copies)
        todo = [
            Given(mutant, changed, [test for test in of if test in sound])
            for (mutant, _, changed), of in zip(picked, tests, strict=True)
        ]
        for line in tried(todo, copies, given.seconds):
            done[identity(line)] = written(given.record, line | said)
    print(report(list(done.values())))


if __name__ == "__main__":
    main()
