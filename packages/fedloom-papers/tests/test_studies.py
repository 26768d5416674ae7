"""Our own studies: older lines find their runs, and numbers, claims and pages follow from lines."""

from __future__ import annotations

import doctest
import importlib
import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from scipy.stats import ttest_1samp

from fedloom.errors import ConfigError, DataError
from fedloom.recipes import RECIPES
from fedloom.storage.identity import digest
from fedloom_papers.board import MeasuredTable, measured_tables
from fedloom_papers.catalogue import entries_of, entry
from fedloom_papers.lines import Line, evidence, latest, read
from fedloom_papers.pages import page
from fedloom_papers.plan import plan
from fedloom_papers.published_tables import STUDIES
from fedloom_papers.results import __main__ as MAIN
from fedloom_papers.results import fill as FILL
from fedloom_papers.results import tables as TABLES
from fedloom_papers.results.fill import LINES, RESULTS
from fedloom_papers.results.what_was_run import what_was_run
from fedloom_papers.series import smoothed
from fedloom_papers.study_measures import STUDIED
from fedloom_papers.study_tables import study_tables, tuning_table
from fedloom_papers.table import Table
from fedloom_papers.tune import grid_plans
from fedloom_papers.verdicts import find_claim
from tiny import Fedloom


def older(recipe: str, changes: str, seed: int, curve: list[list[float]], **more: Any) -> Line:
    """A line of before lines had digests."""
    line = {"recipe": recipe, "changes": changes.split(), "scale": "paper", "digest": ""}
    line |= {"settings": {}, "version": "", "seed": seed, "state": "finished"}
    line |= {"metric": "accuracy", "rounds": int(curve[-1][0]), "seconds_per_round": 0.5}
    line |= {"parameters": 1000, "bytes_up": 2**20, "bytes_down": 2**20}
    return line | {"curves": {"curve": curve}} | more


def made(name: str, lines: Sequence[Line]) -> MeasuredTable:
    """A table as a page shows it."""
    (one,) = measured_tables(lines, LINES, [entry(name)])
    return one


# ------------------------------------------------------------------------------------------- lines
@pytest.mark.parametrize("study", [s for s in STUDIES if s != "precision"])
def test_every_older_line_belongs_to_a_run(study: str) -> None:
    lines = read(RESULTS / f"{study}.jsonl")
    left = {id(line) for line in lines}
    for found in entries_of(study):
        every = [plan(found, "paper", LINES, seeds=3)]
        if found.study and any(row.grid for row in found.rows):
            one = made(found.id, lines) if found.name != "two" else None
            every = [one.plan] if one else []
            every += grid_plans(found, "paper", LINES, found.rows, found.tuning.split())
        for runs in every:
            places = {(run.digest, run.seed) for run in runs.runs}
            left -= {id(x) for place, x in latest(lines, runs.runs).items() if place in places}
    unused = [line for line in lines if id(line) in left]
    # FedCM and MoFedSAM with alpha 0.1 and the recipe's decay were run as rows of two grids
    assert len(unused) == 2 * (study == "zoo")
    assert all(
        {"algorithm.alpha=0.1", "local.weight_decay=0.001"} < {*x["changes"]} for x in unused
    )


def test_the_recipe_of_older_lines_is_still_the_same() -> None:
    """Their hash is of the recipe, which once named an engine, and of the changes."""
    recipe = RECIPES["zoo_fashion_mnist"]() | {"engine": "workers"}
    lines = [line for line in read(RESULTS / "zoo.jsonl") if "hash" in line]
    assert len(lines) == 219
    for line in lines:
        typed = sorted({*line["changes"], f"seed={line['seed']}"})
        assert digest([recipe, typed]) == line["hash"]


def test_an_older_line_counts_until_its_run_was_made_again() -> None:
    made_plan = plan(entry("precision:both"), "paper", LINES)
    run = made_plan.runs[0]
    words = " ".join(run.changes)
    old = older(run.recipe, f"{words} seed=0", 0, [[1, 0.5]])
    other = {**old, "recipe": "other", "digest": run.digest}  # the same settings, typed otherwise
    again = {**old, "digest": run.digest}
    place = (run.digest, 0)
    assert latest([old, other], made_plan.runs)[place] is old
    assert latest([old, again, other], made_plan.runs)[place] is other
    assert latest([again], made_plan.runs)[place] is again


def test_lines_that_cannot_be_read(tmp_path: Path) -> None:
    file = tmp_path / "lines.jsonl"
    for text, said in (
        ('{"method": "FedAvg"}\n', "line 1 has no digest, seed, state, settings, version;"),
        ("{not json\n", "line 1 is no JSON"),
        ("[1]\n", "line 1 is no object"),
    ):
        file.write_text(text)
        with pytest.raises(DataError, match=said):
            evidence(tmp_path)
    whole = json.dumps(older("digits", "a=1", 0, [[1, 0.5]]))
    file.write_text(f"{whole}\n{whole[:50]}")
    assert len(evidence(tmp_path)) == 1, "the last one is being written"


# ----------------------------------------------------------------------------------------- measures
def test_measures_by_hand() -> None:
    curve = [[10 * t, t / 10] for t in range(1, 11)]
    line = older("cfedavg_fashion", "data.partition.classes=5 compress=topk:0.1", 0, curve)
    line |= {"bytes_up": 20 * 100 * 4000 // 8, "bytes_down": 20 * 100 * 4000}
    squares = [[10 * t, 6.0 if t > 6 else 1.0] for t in range(1, 11)]
    line["curves"] |= {"residual_square": squares, "delta_square": [[t, 2.0] for t, _ in squares]}
    line["curves"]["explored@0.25"] = [[1, 0.25], [2, 0.35], [3, 0.4], [4, 0.42], [5, 0.43]]
    line["curves"]["replaced@0.25"] = [[1, 0.2], [2, 0.1], [3, 0.05], [4, 0.04], [5, 0.02]]
    line |= {"sizes": {"held": {"0.25": {"all": 255}}}, "clients": [0.0, 3.0, 3.0]}

    def value(name: str, **where: str) -> float:
        found = STUDIED[name][1](line, where, None)
        assert found is not None
        return found

    assert value("answer_models") == 0.125, "20 clients, 100 rounds, positions counted"
    # .1 of the values a round: two models after round 20; in bytes after 16, between evaluations
    assert value("acc_at_models_pct", sent="kept values", models="2") == pytest.approx(20)
    assert value("acc_at_models_pct", sent="uplink", models="2") == pytest.approx(16)
    assert value("acc_at_models_pct", sent="both ways", models="45") == pytest.approx(40)
    assert value("acc_at_models_pct", sent="uplink", models="999") == pytest.approx(100)
    assert STUDIED["acc_at_models_pct"][1](line, {"sent": "uplink", "models": "1"}, None) is None
    assert value("residual_over_delta_late") == 3 and value("residual_growth") == 1
    assert value("mib") == 20 * 100 * 4500 / 2**20 and value("mean_acc_pct") == pytest.approx(55)
    # on straight lines between evaluations of the moving average
    average = smoothed({int(t): v for t, v in curve})
    first = next(t for t in sorted(average) if average[t] >= 0.5)
    low, high = average[first - 10], average[first]
    place = math.ceil(first - 10 + 10 * (0.5 - low) / (high - low))
    assert value("mib_to_acc", acc="50") == pytest.approx(place / 100 * value("mib"))
    assert value("mib_to_acc", acc="100") == math.inf
    assert value("explored_gain", half="1", size="1/4") == pytest.approx(7.5)
    assert value("explored_gain", half="2", size="1/4") == pytest.approx(1.5)
    assert value("replaced_fifth_pct", fifth="5", size="1/4") == pytest.approx(2)
    assert value("held_pct", size="1/4") == 25.5 and value("client_skewness") < 0
    assert value("gradients") == 1
    kept = {**line, "last_ema": 0.3, "rounds_to_target_text": "63", "bytes_to_target": 2**21}
    assert STUDIED["last_ema_pct"][1](kept, {}, None) == 30
    assert STUDIED["rounds_to_target"][1](kept, {}, None) == 63
    assert STUDIED["mib_to_target"][1](kept, {}, None) == 2


@pytest.mark.parametrize(
    "name",
    ["catalogue", "study_measures", "columns", "lines", "series", "verdicts", "results.tables"],
)
def test_examples_in_docstrings(name: str) -> None:
    found = doctest.testmod(importlib.import_module(f"fedloom_papers.{name}"))
    assert found.attempted > 0 and found.failed == 0


# ------------------------------------------------------------------------------- grids, and what is
def zoo(method: str, value: str, seed: int, last: float, tuning: bool = False) -> Line:
    """A run of one of three methods, at a value of what is tuned."""
    words = {"FedAvg": "algorithm=fedavg local.lr=", "FedACG": "algorithm=fedacg algorithm.lam="}
    changes = words[method] + value + " rounds=150 evaluate.validation=0.1" * tuning
    curve = [[150, 0.7], [300, last]]
    line = older("zoo_fashion_mnist", changes, seed, curve)
    line["curves"]["validation"] = [[300, last]]
    return line


def zoo_lines() -> list[Line]:
    trials = [("FedAvg", v, a) for v, a in (("0.05", 0.7), ("0.1", 0.8), ("0.2", 0.75))]
    trials += [("FedACG", v, a) for v, a in (("0.8", 0.5), ("0.85", 0.6))]
    out = [zoo(method, value, 0, a, tuning=True) for method, value, a in trials]
    out.append(zoo("FedACG", "0.9", 0, 0.9, tuning=True) | {"state": "failed", "reason": "x\ny"})
    out.append(zoo("FedAvg", "0.2", 0, 0.99))  # not what was chosen
    for seed, (base, ours) in enumerate(((0.80, 0.83), (0.82, 0.84), (0.84, 0.85))):
        out.append(zoo("FedAvg", "0.1", seed, base))
        out.append(zoo("FedACG", "0.85", seed, ours))
    return out


def test_a_row_is_shown_at_what_held_out_data_chose(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)  # which pytest-xdist sets
    one = made("zoo:dirichlet", zoo_lines())
    assert {c.row: c.point for c in one.choices} == {
        "fedavg": {"local.lr": 0.1},
        "fedacg": {"algorithm.lam": 0.85},
    }
    assert "  FedACG  algorithm.lam  0.8: 50.00; 0.85: 60.00*" in grids(one)
    rows = {name: cells for name, *cells in next(study_tables(one.table))[1:]}
    assert [*rows] == ["FedACG", "FedAvg"], "the better one first"
    assert rows["FedAvg"][0] == "82.00±2.00" and rows["FedACG"][0] == "84.00±1.00"
    # 3, 2, 1: 4.303 sd / sqrt(3); 0.074 for each method that the papers name
    assert rows["FedACG"][1:4] == ["+2.00 ± 2.48", "1.000", "+6.57 (FedACG 1a)"]
    assert re.search(r"\n  FedACG +84\.00±1\.00 +\+2\.00 ± 2\.48 +1\.000 ", page(one.table, ()))
    said = "\n".join(what_was_run([one]))
    assert "6 of 99 runs, 3 seeds; 31 rows without a run" in said
    assert "fedloom paper zoo:dirichlet --show --out docs/results/papers\n" in said
    assert "fedloom paper zoo:dirichlet --tune  # runs it again" in said


def test_a_part_of_a_grid_chooses_nothing_and_is_shown() -> None:
    lines = [x for x in zoo_lines() if "algorithm=fedavg" in x["changes"]]
    lines.append(zoo("FedACG", "0.8", 0, 0.5, tuning=True))
    one = made("zoo:dirichlet", lines)
    (part,) = [c for c in one.choices if c.row == "fedacg"]
    assert not part.point and re.search(r"0\.8: 50\.00 +not all are tried", grids(one))
    assert not one.table.lines_by_protocol["dirichlet"].get("fedacg")


def test_failed_runs_are_named() -> None:
    lines = zoo_lines()
    lines[-1] |= {"state": "failed", "reason": "not finite\nmore"}
    said = "\n".join(what_was_run([made("zoo:dirichlet", lines)]))
    assert "failed: fedacg in dirichlet, seed 2 (not finite)" in said


def test_a_study_has_one_scale_and_runs_what_has_no_line(fedloom: Fedloom) -> None:
    said = fedloom("paper", "private:plain", "--scale", "smoke", "--quiet").output
    assert "not at scale smoke: it has one scale, paper" in said
    words = ("rounds=1", "data.partition.clients=10")
    fedloom("paper", "private:plain", "--quiet", *words)
    (line,) = evidence(Path("runs/papers"))
    assert line["scale"] == "paper" and {*words} < {*line["changes"]}
    dry = fedloom("paper", "private:plain", "--dry-run", "--out", str(LINES)).output
    assert "1 runs, 1 of them have a line" in dry, "an older one"


# ------------------------------------------------------------------------------------------- claims
def sub(method: str, seed: int, whole: float, part: float, **more: Any) -> Line:
    """A run of sub-models: the accuracy of the whole model and of a quarter."""
    curves = {
        f"test_accuracy@{s}": [[10, 0.1], [20, 0.5], [30, v]]
        for s, v in (("1", whole), ("0.25", part), ("mean", (whole + part) / 2))
    }
    words = {"FIARSE": "submodel=fiarse", "Pruning-Greedy": "submodel=greedy"}
    words |= {"factor alone": "submodel=fiarse submodel.dynamic=false"}
    words |= {"re-masking alone": "submodel=fiarse submodel.biased=false"}
    words |= {"FedRolex": "submodel=fedrolex", "HeteroFL": "submodel=heterofl"}
    line = older(
        "fiarse_fashion", words[method], seed, [[30, whole]], sizes={}, clients=[0.0, 0.9, 0.9]
    )
    return line | {"curves": curves | more}


def grids(one: MeasuredTable) -> str:
    """What was tried of a table's grids."""
    return tuning_table(one.table.entry, one.choices, 100)


def verdict(found: Table, words: str) -> str:
    return str(find_claim(found.claims, words).verdict)


def test_claims_have_margins_numbers_pairs_of_rows_and_places() -> None:
    lines = []
    for seed, d in enumerate((0.0, 0.001, -0.001)):
        gained = {"explored@0.25": [[t, v + d] for t, v in enumerate((0.1, 0.2, 0.25, 0.26, 0.27))]}
        lines.append(sub("FIARSE", seed, 0.80 + d, 0.7, **gained))
        lines.append(sub("re-masking alone", seed, 0.78 + 2 * d, 0.7))
        lines.append(sub("factor alone", seed, 0.76 + d, 0.7))
        lines.append(sub("Pruning-Greedy", seed, 0.74 + 3 * d, 0.7))
        lines.append(sub("FedRolex", seed, 0.795 - d, 0.7))
    found = made("submodels:main", lines).table
    within = "at-the-whole-model-fedrolex-is-within-two-points"
    assert verdict(found, within) == "holds", "half a point apart, either way"
    (reason,) = find_claim(found.claims, within).reasons
    assert "p against -2 " in reason.words
    assert verdict(found, "re-masking-helps") == "holds", "of two means: two points at size mean"
    (helps,) = find_claim(found.claims, "re-masking-helps").reasons
    assert "FIARSE & re-masking alone 74.5 less factor alone & Pruning-Greedy 72.5" in helps.words
    slows = "fiarse-s-exploration-slows-down-points-a-round-in-the-first-and-the-second-half-figure"
    assert verdict(found, f"{slows}-7a-size-1-4") == "holds"
    assert verdict(found, f"{slows}-7a-size-1-16") == "not measured"
    (tail,) = find_claim(found.claims, "clients-accuracies-have-a-tail").reasons
    assert "1 of 3 clear, 2 not decided: no lines; hardest: FIARSE -0.7071 less 0 is" in tail.words
    assert verdict(found, "fiarse-needs-the-fewest-rounds-to-80-size-1-4") == "undecided"


def test_one_seed_decides_nothing() -> None:
    found = made("submodels:main", [sub("FIARSE", 0, 0.9, 0.8), sub("HeteroFL", 0, 0.5, 0.4)]).table
    assert {claim.verdict for claim in found.claims} <= {"undecided", "not measured"}


def test_rows_with_other_settings_of_no_method_are_not_compared_and_count() -> None:
    found = FILL.table_of("zoo:dirichlet").table
    (reason,) = find_claim(found.claims, "fafed-is-the-best").reasons
    apart = {one.other.key: one.unequal for one in reason.comparisons}
    assert apart["scaffold"] == "clip none against 10" and apart["stem-alpha-0.9"] == ""
    gap = reason.against("stem-alpha-0.9").gap
    assert gap is not None and gap.p_holm == pytest.approx(5 * gap.p)
    assert "4 not decided: other settings" in reason.words and reason.verdict == "undecided"
    (chain,) = find_claim(found.claims, "fedavg-fedsam-mofedsam").reasons
    assert [one.unequal for one in chain.comparisons].count(
        "weight_decay 0.0001 against 0.001"
    ) == 1


def test_differences_from_fedavg_and_their_p_follow_from_the_lines() -> None:
    """With SciPy's t, and Holm's rule over all methods that a paper's table names."""
    found = FILL.table_of("zoo:dirichlet").table
    (protocol,) = found.entry.protocols
    named = {m for one in found.entry.paper_columns for m in one.gaps()}
    family = [r for r in found.entry.rows if r.name.partition(", alpha")[0] in named]
    family = [r.key for r in family if r.key not in found.entry.bases]

    def late(key: str) -> list[float]:
        curves = [[a for _, a in x["curves"]["curve"]] for x in found.lines(protocol, key).values()]
        return [100 * fmean(c[-(len(c) // 10) :]) for c in curves]

    for base in found.entry.bases:
        shown = found.less_base(protocol, base)
        p = {}
        for key, gap in shown.items():
            gaps = [a - b for a, b in zip(late(key), late(base), strict=True)]
            assert gap.mean == pytest.approx(fmean(gaps))
            if gap.p_holm is not None:
                p[key] = float(ttest_1samp(gaps, 0.0).pvalue)
        assert {*p} < {*family} and len(p) > 10, "those with another decay or clip have none"
        least = 0.0
        for rank, key in enumerate(sorted(p, key=lambda key: p[key])):
            least = max(least, min(1.0, (len(family) - rank) * p[key]))
            assert shown[key].p_holm == pytest.approx(least)


# -------------------------------------------------------------------------------------------- pages
@pytest.mark.parametrize("name", ["robust", "private", "precision", "compression", "fedsmoo"])
def test_the_committed_page_is_up_to_date(name: str) -> None:
    tables = list(measured_tables(FILL.lines(), LINES, entries_of(name)))
    best = [one for one in tables if one.whole or one.table.entry.study]
    drawn = {one.table.entry.id: TABLES.pictures(one.table) for one in best}
    text = TABLES.text(name, tables, drawn)
    assert (RESULTS / f"{name}.md").read_text() == text, "make it again: nox -s results"
    pictures = {picture.name for own in drawn.values() for picture in own}
    assert pictures <= {picture.stem for picture in (RESULTS / "pictures").iterdir()}
    cells = TABLES.board(FILL.lines(), tables, [tables[0].table.entry])[0]
    assert f"| {' | '.join(cells)} |\n" in (RESULTS / "board.md").read_text()


def test_a_page_of_another_name_is_refused() -> None:
    with pytest.raises(DataError, match="there is no page 'zooo'; did you mean 'zoo'"):
        MAIN.make_pages(["zooo"])


def test_a_placeholder_becomes_what_the_lines_say() -> None:
    text = (
        "{{claim:fedsmoo:8/headline/fedavg.verdict}}: {{claim:fedsmoo:8/headline/fedavg.points}}, "
        "{{claim:fedsmoo:8/headline/fedavg.difference 1}}; {{row:fedsmoo:8/fedavg.paper}}"
    )
    assert FILL.fill(text) == "the opposite is clear: 9.15, -9.1; 74.08"
    studies = "{{gap:zoo:dirichlet/feddyn/fedavg.holm}} {{row:robust:sign/mean@sign-30.tested 1}}"
    assert FILL.fill(studies) == "0.091 9.7"
    own = {"record": lambda place, field: f"{field} of {place}"}
    assert FILL.fill("a {{record:x/y.z}} b", own) == "a z of x/y b"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{{claim:fedsmoo:8/hedline.p}}", "no claim 'hedline'; did you mean 'headline'"),
        ("{{claim:fedsmoo:8/headline/fedavgm.p}}", "no comparison with 'fedavgm'"),
        ("{{claim:fedsmoo:8/headline.q}}", "no field 'q'"),
        ("{{claims:x.y}}", "no kind 'claims'; did you mean 'claim'"),
        ("{{claim:fedsmoo:8 headline}}", "no placeholder: {{claim"),
        ("{{gap:zoo:dirichlet/fedacg/fedavgg.points}}", "no row 'fedavgg'; did you mean 'fedavg"),
    ],
)
def test_a_placeholder_that_says_nothing_is_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match="no ") as error:
        FILL.fill(text)
    assert said in str(error.value)


def test_a_page_that_differs_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    same, other = tmp_path / "a.md", tmp_path / "b.md"
    same.write_text("x\n")
    other.write_text("9.15\n")
    assert MAIN.report_differences({same: "x\n"}, "make it") == 0
    assert MAIN.report_differences({same: "x\n", other: "9.16\n"}, "make it") == 1
    assert "b.md differs from its lines; make it again: make it" in capsys.readouterr().out


def test_no_picture_has_few_colours() -> None:
    """In 64 colours FedAvg and FedAvgM had the same green. Byte 25 of a PNG: 3 is a palette."""
    pictures = [*RESULTS.parent.glob("**/*.png")]
    assert [file.name for file in pictures if file.read_bytes()[25] == 3] == []
