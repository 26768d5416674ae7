"""Verdicts of the result pages: Student's t by hand, what is not judged, what a line says."""

from __future__ import annotations

import json
import math
import subprocess
from pathlib import Path
from typing import Any

from fedloom.core.commit import commit
from fedloom.report.statistics import Paired
from fedloom_papers.lines import made_by
from fedloom_papers.results import claims as CLAIMS
from fedloom_papers.results import page as PAGE
from fedloom_papers.results import study as STUDY
from fedloom_papers.results import study_pages as PAGES
from fedloom_papers.results import submodels as SUBMODELS
from fedloom_papers.results import zoo as ZOO
from fedloom_papers.verdicts import verdict_on
from results_lines import RESULTS, sub_line, zoo_line, zoo_lines


# -------------------------------------------------------------------------------------- Student's t
def test_one_seed_has_no_p() -> None:
    assert PAGE.tested(Paired(0.5, None, 1)) == "+50.00"
    assert verdict_on(Paired(0.5, None, 1)) == "undecided"
    assert verdict_on(Paired(0.5, None, 1), noise=0.01) == "holds", "further apart than a point"


def test_a_bound_is_tested_and_not_only_the_mean() -> None:
    # 11 points, sd 8: "at least 10" is undecided, and so is "at most"
    assert verdict_on(Paired(0.11, 0.08, 3).less(0.10)) == "undecided"
    assert verdict_on(Paired(0.11, 0.001, 3).less(0.10)) == "holds"
    assert verdict_on(Paired(0.05, 0.001, 3).less(0.10)) == "does not hold"


# ------------------------------------------------------------------------------ what is not judged
def zoo_of(folder: Path, lines: list[dict[str, Any]]) -> Any:
    (folder / "zoo.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return ZOO.Zoo(STUDY.Study("zoo", folder))


def test_another_weight_decay_is_said_and_no_sign_claimed(tmp_path: Path) -> None:
    key, name = "local.weight_decay", "FedCM, alpha 0.1"
    lines = [
        zoo_line(name, "tuning", key, v, last_validation=a)
        for v, a in (("0.0001", 0.9), ("0.0003", 0.8), ("0.001", 0.7))
    ]
    lines += [zoo_line(name, "final", key, "0.0001", seed=s, last_ema=0.99) for s in range(3)]
    (tmp_path / "zoo.jsonl").write_text("".join(f"{json.dumps(x)}\n" for x in zoo_lines() + lines))
    (row, *_) = [
        r
        for r in PAGES.page("zoo", tmp_path).text().splitlines()
        if r.startswith("| FedCM, alpha 0.1 | +1.18 |")
    ]
    assert row.endswith("| not judged: weight_decay 0.0001 against 0.001 |")


def test_settings_that_are_no_methods_are_compared(tmp_path: Path) -> None:
    zoo = zoo_of(tmp_path, zoo_lines())
    assert zoo.unequal("FAFED") == "clip none against 10"
    assert zoo.unequal("FAFED", "STEM") == ""
    assert zoo.unequal("FedACG") == ""


def test_fewest_rounds_in_every_seed_means_every_seed(tmp_path: Path) -> None:
    def part_of(lines: list[dict[str, Any]]) -> Any:
        text = "".join(f"{json.dumps(line)}\n" for line in lines)
        (tmp_path / "submodels.jsonl").write_text(text)
        return SUBMODELS.Part("main", STUDY.Study("submodels", tmp_path))

    # means 20 and 30, but level in the second seed
    lines = []
    for seed, (ours, theirs) in enumerate(((20, 40), (20, 20), (20, 30))):
        for method, at in (("FIARSE", ours), ("HeteroFL", theirs)):
            line = sub_line(method, seed, 0.8, [f"submodel={method.lower()}"])
            line["curves"]["test_accuracy@0.25"] = [[10, 0.1], [at, 0.9]]
            lines.append(line)

    def fewest(part: Any) -> str:
        found = CLAIMS.claims(part.reader)
        ((case,),) = (c.cases for c in found if "needs the fewest rounds to 80 %" in c.says)
        return str(case.verdict)

    part = part_of(lines)
    assert fewest(part) == "not measured", "two rules have no run"
    for rule, own in (("FedRolex", ["submodel=fedrolex"]), ("ScaleFL", None)):
        own = own or [*part.table.rows[rule]]
        for seed in range(3):
            line = sub_line(rule, seed, 0.8, own)
            line["curves"]["test_accuracy@0.25"] = [[10, 0.1]]
            lines.append(line)
    assert fewest(part_of(lines)) == "does not hold"


# ------------------------------------------------------------------------- what a line says of code
def test_lines_say_version_and_commit(tmp_path: Path) -> None:
    import fedloom

    def git(*words: str) -> str:
        who = ["-c", "user.name=n", "-c", "user.email=e@x", "-c", "commit.gpgsign=false"]
        ran = subprocess.run(["git", *who, *words], cwd=tmp_path, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout.strip()

    package = tmp_path / "src" / "fedloom"
    results = tmp_path / "docs" / "results"
    for folder in (package, results):
        folder.mkdir(parents=True)
    (package / "__init__.py").write_text("x = 1\n")
    (results / "zoo.jsonl").write_text("{}\n")
    assert commit(package) is None
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "one")
    head = git("rev-parse", "HEAD")
    assert commit(package) == head
    with (results / "zoo.jsonl").open("a") as file:
        file.write("{}\n")  # a finished run changes the lines, not the code
    assert commit(package) == head
    (package / "__init__.py").write_text("x = 2\n")
    assert commit(package) == f"{head}+dirty"
    installed = tmp_path / ".venv" / "fedloom"
    installed.mkdir(parents=True)
    (installed / "__init__.py").touch()
    assert commit(installed) is None
    found = made_by()
    assert list(found) == ["version", "commit"]
    assert found["version"] == fedloom.__version__


# ------------------------------------------------------------------------------ committed verdicts
def by_hand(values: list[float]) -> float:
    """p of three differences, as in a textbook: 1 - |t| / sqrt(2 + t^2)."""
    middle = sum(values) / 3
    variance = sum((v - middle) ** 2 for v in values) / 2
    t = abs(middle) / math.sqrt(variance / 3)
    return 1 - t / math.sqrt(2 + t * t)


def test_every_sign_on_the_page_follows_from_the_lines() -> None:
    zoo = ZOO.Zoo(STUDY.Study("zoo"))
    text = (RESULTS / "zoo.md").read_text(encoding="utf-8")
    blocks = text.split("### Less FedAvg, in points: ")[1:]
    assert len(blocks) == 3, "of three papers"
    checked = 0
    tables = [
        [
            [c.strip() for c in x.strip("|").split("|")]
            for x in block.split("\n\n")[1].splitlines()[2:]
            if x.startswith("| ")
        ]
        for block in blocks
    ]
    every = {row[0]: row for cells in tables for row in cells}  # one family, of all three tables
    judged = [name for name, row in every.items() if not row[-1].startswith("not judged")]
    apart = {f"not judged {i}": 1.0 for i in range(len(every) - len(judged))}
    for cells in tables:
        bases = [b for b in ("FedAvg", ZOO.OWN_RATE) if b in zoo.methods]
        seen: dict[str, list[str]] = {row[0]: [] for row in cells if row[0] in judged}
        for k, base in enumerate(bases):
            gaps = {name: lately(zoo, name, base) for name in every}
            counted = holm_by_hand({name: by_hand(gaps[name]) for name in judged} | apart)
            for name, there, *numbers, _ in cells:
                gap, shown = numbers[2 * k : 2 * k + 2]
                middle = sum(gaps[name]) / 3
                half = 4.30265 * math.sqrt(sum((v - middle) ** 2 for v in gaps[name]) / 6)
                assert abs(float(gap.split(" ± ")[0]) - 100 * middle) < 0.0051
                assert abs(float(gap.split(" ± ")[1]) - 100 * half) < 0.0051
                assert (shown == "-") == (name not in counted)
                if name in counted:
                    chance = counted[name]
                    assert shown == "< 0.001" or abs(float(shown) - chance) < 0.00051
                    same = middle * float(there) > 0
                    clear = "as there" if same else "the other way"
                    seen[name].append("undecided" if chance >= 0.05 else clear)
        for row in cells:
            if row[0] in seen:
                checked += 1
                first = seen[row[0]]
                assert row[-1].startswith(first[0])
                only = first[0] != "undecided" and len(set(first)) > 1
                assert ("at the common rate only" in row[-1]) == only
    assert checked > 20


def lately(study: Any, name: str, base: str) -> list[float]:
    """A method less another in three seeds: the means of the last tenth of evaluations."""
    ends = []
    for one in (name, base):
        curves = [
            [a for _, a in x["curves"]["curve"]]
            for x in study.study.finished(study.tuned, one).values()
        ]
        ends.append([sum(c[-(len(c) // 10) :]) / (len(c) // 10) for c in curves])
    assert len(ends[0]) == len(ends[1]) == 3
    return [a - b for a, b in zip(*ends, strict=True)]


def holm_by_hand(p: dict[str, float]) -> dict[str, float]:
    out, least = {}, 0.0
    for rank, name in enumerate(sorted(p, key=lambda n: p[n])):
        least = out[name] = max(least, min(1.0, (len(p) - rank) * p[name]))
    return out
