"""Our own studies: older lines find their runs, and numbers, claims and pages follow from lines."""

from __future__ import annotations

import doctest
import importlib
import json
import math
import re
import subprocess
import sys
from pathlib import Path
from statistics import fmean

import pytest
from scipy.stats import ttest_1samp

from fedloom.errors import ConfigError, DataError
from fedloom.recipes import RECIPES
from fedloom.storage.identity import digest
from fedloom_papers.board import measured_tables
from fedloom_papers.catalogue import entries_of, entry
from fedloom_papers.columns import measure_columns, study_tables, tuning_table
from fedloom_papers.entry import STUDIES
from fedloom_papers.lines import evidence, latest, read
from fedloom_papers.pages import page
from fedloom_papers.plan import plan
from fedloom_papers.results import __main__ as MAIN
from fedloom_papers.results import fill as FILL
from fedloom_papers.results import tables as TABLES
from fedloom_papers.results.fill import LINES, RESULTS
from fedloom_papers.results.what_was_run import what_was_run
from fedloom_papers.series import smoothed
from fedloom_papers.study_measures import STUDIED
from fedloom_papers.tune import grid_plans
from fedloom_papers.verdicts import find_claim
from test_verdicts import holm

ROOT = Path(__file__).parents[3]


def older(recipe, changes, seed, curve, **more):
    """A line of before lines had digests."""
    line = {"recipe": recipe, "changes": changes.split(), "scale": "paper", "digest": ""}
    line |= {"settings": {}, "version": "", "seed": seed, "state": "finished"}
    line |= {"metric": "accuracy", "rounds": int(curve[-1][0]), "seconds_per_round": 0.5}
    line |= {"parameters": 1000, "bytes_up": 2**20, "bytes_down": 2**20}
    return line | {"curves": {"curve": curve}} | more


def made(name, lines):
    """A table as a page shows it."""
    (one,) = measured_tables(lines, LINES, [entry(name)])
    return one


# ------------------------------ lines
@pytest.mark.parametrize("study", [s for s in STUDIES if s != "precision"])
def test_every_older_line_belongs_to_a_run(study):
    lines = read(RESULTS / f"{study}.jsonl")
    left = {id(line) for line in lines}
    for table in entries_of(study):
        plans = [plan(table, "paper", LINES, seeds=3)]
        if table.study and any(row.grid for row in table.rows):
            plans = [made(table.id, lines).plan] if table.name != "two" else []
            plans += grid_plans(table, "paper", LINES, table.rows, table.tuning.split())
        for one in plans:
            places = {(run.digest, run.seed) for run in one.runs}
            left -= {id(x) for place, x in latest(lines, one.runs).items() if place in places}
    unused = [line for line in lines if id(line) in left]
    # FedCM and MoFedSAM with alpha 0.1 and the recipe's decay were run as rows of two grids
    assert len(unused) == 2 * (study == "zoo")
    twice = {"algorithm.alpha=0.1", "local.weight_decay=0.001"}
    assert all(twice < {*line["changes"]} for line in unused)


def test_the_recipe_of_older_lines_is_still_the_same():
    """Their hash is of the recipe, which once named an engine, and of the changes."""
    recipe = RECIPES["zoo_fashion_mnist"]() | {"engine": "workers"}
    lines = [line for line in read(RESULTS / "zoo.jsonl") if "hash" in line]
    assert len(lines) == 219
    for line in lines:
        typed = sorted({*line["changes"], f"seed={line['seed']}"})
        assert digest([recipe, typed]) == line["hash"]


def test_an_older_line_counts_until_its_run_was_made_again():
    runs = plan(entry("precision:both"), "paper", LINES).runs
    old = older(runs[0].recipe, " ".join([*runs[0].changes, "seed=0"]), 0, [[1, 0.5]])
    again = {**old, "digest": runs[0].digest}
    other = {**again, "recipe": "other"}  # the same settings, typed otherwise
    for lines, counts in (([old, other], old), ([old, again, other], other), ([again], again)):
        assert latest(lines, runs)[runs[0].digest, 0] is counts


def test_lines_that_cannot_be_read(tmp_path):
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


def test_a_study_has_one_scale_and_runs_what_has_no_line(fedloom):
    said = fedloom("paper", "private:plain", "--scale", "smoke", "--quiet").output
    assert "not at scale smoke: it has one scale, paper" in said
    words = ("rounds=1", "data.partition.clients=10")
    fedloom("paper", "private:plain", "--quiet", *words)
    (line,) = evidence(Path("runs/papers"))
    assert line["scale"] == "paper" and {*words} < {*line["changes"]}
    dry = fedloom("paper", "private:plain", "--dry-run", "--out", LINES).output
    assert "1 runs, 1 of them have a line" in dry, "an older one"


# ------------------------------ measures
CURVE = [[10 * t, t / 10] for t in range(1, 11)]
FIRST = older(
    "cfedavg_fashion",
    "data.partition.classes=5 compress=topk:0.1",
    0,
    CURVE,
    bytes_up=20 * 100 * 4000 // 8,
    bytes_down=20 * 100 * 4000,
    sizes={"held": {"0.25": {"all": 255}}},
    clients=[0.0, 3.0, 3.0],
    last_ema=0.3,
    rounds_to_target_text="63",
    bytes_to_target=2**21,
)
FIRST["curves"] |= {
    "residual_square": [[t, 6.0 if t > 60 else 1.0] for t, _ in CURVE],
    "delta_square": [[t, 2.0] for t, _ in CURVE],
    "explored@0.25": [[1, 0.25], [2, 0.35], [3, 0.4], [4, 0.42], [5, 0.43]],
    "replaced@0.25": [[1, 0.2], [2, 0.1], [3, 0.05], [4, 0.04], [5, 0.02]],
}
MIB = 20 * 100 * 4500 / 2**20


@pytest.mark.parametrize(
    ("name", "where", "value"),
    [
        ("answer_models", {}, 0.125),  # 20 clients, 100 rounds, positions counted
        # .1 of the values a round: two models after round 20; in bytes after 16
        ("acc_at_models_pct", {"sent": "kept values", "models": "2"}, 20),
        ("acc_at_models_pct", {"sent": "uplink", "models": "2"}, 16),
        ("acc_at_models_pct", {"sent": "both ways", "models": "45"}, 40),
        ("acc_at_models_pct", {"sent": "uplink", "models": "999"}, 100),
        ("acc_at_models_pct", {"sent": "uplink", "models": "1"}, None),
        ("residual_over_delta_late", {}, 3),
        ("residual_growth", {}, 1),
        ("mib", {}, MIB),
        ("mean_acc_pct", {}, 55),
        ("mib_to_acc", {"acc": "100"}, math.inf),
        ("explored_gain", {"half": "1", "size": "1/4"}, 7.5),
        ("explored_gain", {"half": "2", "size": "1/4"}, 1.5),
        ("replaced_fifth_pct", {"fifth": "5", "size": "1/4"}, 2),
        ("held_pct", {"size": "1/4"}, 25.5),
        ("gradients", {}, 1),
        ("last_ema_pct", {}, 30),
        ("rounds_to_target", {}, 63),
        ("mib_to_target", {}, 2),
    ],
)
def test_measures_by_hand(name, where, value):
    assert STUDIED[name][1](FIRST, where, None) == (
        value if value is None else pytest.approx(value)
    )


def test_bytes_to_an_accuracy_are_read_on_straight_lines_between_evaluations():
    average = smoothed({int(t): v for t, v in CURVE})
    first = next(t for t in sorted(average) if average[t] >= 0.5)
    low, high = average[first - 10], average[first]
    place = math.ceil(first - 10 + 10 * (0.5 - low) / (high - low))
    here = STUDIED["mib_to_acc"][1](FIRST, {"acc": "50"}, None)
    assert here == pytest.approx(place / 100 * MIB)
    assert STUDIED["client_skewness"][1](FIRST, {}, None) < 0


WITH_EXAMPLES = "catalogue entry study_measures columns lines series verdicts results.tables"


@pytest.mark.parametrize("name", WITH_EXAMPLES.split())
def test_examples_in_docstrings(name):
    result = doctest.testmod(importlib.import_module(f"fedloom_papers.{name}"))
    assert result.attempted > 0 and result.failed == 0


# ------------------------------ grids, and what is shown of them
def zoo(method, value, seed, last, tuning=False):
    """A run of one of two methods, at a value of what is tuned."""
    words = {"FedAvg": "algorithm=fedavg local.lr=", "FedACG": "algorithm=fedacg algorithm.lam="}
    changes = words[method] + value + " rounds=150 evaluate.validation=0.1" * tuning
    line = older("zoo_fashion_mnist", changes, seed, [[150, 0.7], [300, last]])
    line["curves"]["validation"] = [[300, last]]
    return line


def zoo_lines():
    trials = [("FedAvg", v, a) for v, a in (("0.05", 0.7), ("0.1", 0.8), ("0.2", 0.75))]
    trials += [("FedACG", v, a) for v, a in (("0.8", 0.5), ("0.85", 0.6))]
    out = [zoo(method, value, 0, a, tuning=True) for method, value, a in trials]
    out.append(zoo("FedACG", "0.9", 0, 0.9, tuning=True) | {"state": "failed", "reason": "x\ny"})
    out.append(zoo("FedAvg", "0.2", 0, 0.99))  # not what was chosen
    for seed, (base, ours) in enumerate(((0.80, 0.83), (0.82, 0.84), (0.84, 0.85))):
        out += [zoo("FedAvg", "0.1", seed, base), zoo("FedACG", "0.85", seed, ours)]
    return out


def grids(one):
    """What was tried of a table's grids."""
    return tuning_table(one.table.entry, one.choices, 100)


def test_a_row_is_shown_at_what_held_out_data_chose(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)  # which pytest-xdist sets
    one = made("zoo:dirichlet", zoo_lines())
    points = {c.row: c.point for c in one.choices}
    assert points == {"fedavg": {"local.lr": 0.1}, "fedacg": {"algorithm.lam": 0.85}}
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


def test_a_part_of_a_grid_chooses_nothing_and_failed_runs_are_named():
    lines = [x for x in zoo_lines() if "algorithm=fedavg" in x["changes"]]
    one = made("zoo:dirichlet", [*lines, zoo("FedACG", "0.8", 0, 0.5, tuning=True)])
    (part,) = [c for c in one.choices if c.row == "fedacg"]
    assert not part.point and re.search(r"0\.8: 50\.00 +not all are tried", grids(one))
    assert not one.table.lines_by_protocol["dirichlet"].get("fedacg")
    lines = zoo_lines()
    lines[-1] |= {"state": "failed", "reason": "not finite\nmore"}
    said = "\n".join(what_was_run([made("zoo:dirichlet", lines)]))
    assert "failed: fedacg in dirichlet, seed 2 (not finite)" in said


# ------------------------------ claims
SUBMODELS = {
    "FIARSE": "submodel=fiarse",
    "Pruning-Greedy": "submodel=greedy",
    "factor alone": "submodel=fiarse submodel.dynamic=false",
    "re-masking alone": "submodel=fiarse submodel.biased=false",
    "FedRolex": "submodel=fedrolex",
    "HeteroFL": "submodel=heterofl",
}


def sub(method, seed, whole, part, **more):
    """A run of sub-models: the accuracy of the whole model and of a quarter."""
    ends = {"1": whole, "0.25": part, "mean": (whole + part) / 2}
    curves = {f"test_accuracy@{s}": [[10, 0.1], [20, 0.5], [30, v]] for s, v in ends.items()}
    own = {"sizes": {}, "clients": [0.0, 0.9, 0.9]}
    line = older("fiarse_fashion", SUBMODELS[method], seed, [[30, whole]], **own)
    return line | {"curves": curves | more}


def test_claims_have_margins_numbers_pairs_of_rows_and_places():
    lines = []
    for seed, d in enumerate((0.0, 0.001, -0.001)):
        explored = [[t, v + d] for t, v in enumerate((0.1, 0.2, 0.25, 0.26, 0.27))]
        lines.append(sub("FIARSE", seed, 0.80 + d, 0.7, **{"explored@0.25": explored}))
        lines.append(sub("re-masking alone", seed, 0.78 + 2 * d, 0.7))
        lines.append(sub("factor alone", seed, 0.76 + d, 0.7))
        lines.append(sub("Pruning-Greedy", seed, 0.74 + 3 * d, 0.7))
        lines.append(sub("FedRolex", seed, 0.795 - d, 0.7))
    claims = made("submodels:main", lines).table.claims
    slows = "fiarse-s-exploration-slows-down-points-a-round-in-the-first-and-the-second-half-figure"
    for claim, verdict, words in (
        # half a point apart, either way
        ("at-the-whole-model-fedrolex-is-within-two-points", "holds", "p against -2 "),
        # of two means: two points at size mean
        (
            "re-masking-helps",
            "holds",
            "FIARSE & re-masking alone 74.5 less factor alone & Pruning-Greedy 72.5",
        ),
        (f"{slows}-7a-size-1-4", "holds", ""),
        (f"{slows}-7a-size-1-16", "not measured", ""),
        (
            "clients-accuracies-have-a-tail",
            "undecided",
            "1 of 3 clear, 2 not decided: no lines; hardest: FIARSE -0.7071 less 0 is",
        ),
        ("fiarse-needs-the-fewest-rounds-to-80-size-1-4", "undecided", ""),
    ):
        found = find_claim(claims, claim)
        assert str(found.verdict) == verdict, claim
        assert not words or words in found.reasons[0].words, claim
    one_seed = made("submodels:main", [sub("FIARSE", 0, 0.9, 0.8), sub("HeteroFL", 0, 0.5, 0.4)])
    assert {c.verdict for c in one_seed.table.claims} <= {"undecided", "not measured"}


def test_rows_with_other_settings_of_no_method_are_not_compared_and_count():
    claims = FILL.table_of("zoo:dirichlet").table.claims
    (reason,) = find_claim(claims, "fafed-is-the-best").reasons
    apart = {one.other.key: one.unequal for one in reason.comparisons}
    assert apart["scaffold"] == "clip none against 10" and apart["stem-alpha-0.9"] == ""
    gap = reason.against("stem-alpha-0.9").gap
    assert gap is not None and gap.p_holm == pytest.approx(5 * gap.p)
    assert "4 not decided: other settings" in reason.words and reason.verdict == "undecided"
    (chain,) = find_claim(claims, "fedavg-fedsam-mofedsam").reasons
    unequal = [one.unequal for one in chain.comparisons]
    assert unequal.count("weight_decay 0.0001 against 0.001") == 1


def test_differences_from_fedavg_and_their_p_follow_from_the_lines():
    """With SciPy's t, and Holm's rule over all methods that a paper's table names."""
    found = FILL.table_of("zoo:dirichlet").table
    (protocol,), bases = found.entry.protocols, found.entry.bases
    named = {m for one in found.entry.paper_columns for m in one.gaps()}
    rows = [r for r in found.entry.rows if r.name.partition(", alpha")[0] in named]
    family = {r.key for r in rows} - {*bases}

    def late(key):
        curves = [[a for _, a in x["curves"]["curve"]] for x in found.lines(protocol, key).values()]
        return [100 * fmean(c[-(len(c) // 10) :]) for c in curves]

    for base in bases:
        shown, p = found.less_base(protocol, base), {}
        for key, gap in shown.items():
            gaps = [a - b for a, b in zip(late(key), late(base), strict=True)]
            assert gap.mean == pytest.approx(fmean(gaps))
            if gap.p_holm is not None:
                p[key] = float(ttest_1samp(gaps, 0.0).pvalue)
        assert {*p} < family and len(p) > 10, "those with another decay or clip have none"
        wanted = holm(p, len(family))
        assert {key: shown[key].p_holm for key in p} == pytest.approx(wanted)


def test_the_overviews_picture_has_each_seeds_difference_from_the_base_beside_the_papers():
    one = FILL.table_of("fedsmoo:8")
    panels = TABLES.overview(one)
    assert panels and all(rows for _, _, rows in panels)
    for protocol, (title, _, rows) in zip(one.table.entry.protocols, panels, strict=True):
        measure = one.table.entry.headline(protocol)
        at = {n.quantity.row.name: n for n in one.table.numbers_of(protocol, measure)}
        base = at["FedAvg"]
        assert protocol.dataset in title and "its scale" not in title
        for name, values, published in rows:
            gaps = [v - base.compared[seed] for seed, v in at[name].compared.items()]
            assert values == pytest.approx(gaps)
            assert published == pytest.approx(at[name].published - base.published)


def test_a_tables_columns_are_what_is_printed_measured_and_tested():
    """Of a moving average the mean of the last tenth is tested, and has a column of its own."""
    one = FILL.table_of("fedacg:4").table
    protocol = one.entry.protocols[0]
    measure = one.entry.headline(protocol)
    shown = measure_columns(one, protocol, measure)
    for place, row in enumerate(one.rows_of(protocol)):
        number = one.number(protocol, row.key, measure)
        if number is None or not number.values:
            continue
        assert shown["here"][place].startswith(f"{fmean(number.values.values()):.2f}")
        assert shown["last tenth"][place].startswith(f"{fmean(number.tested.values()):.2f}")
        cell, printed = number.quantity.cell, "-"  # of a row that the paper has not
        if cell is not None:
            printed = f"{cell.value:.2f}" + ("" if cell.std is None else f"±{cell.std:g}")
        assert shown["paper"][place] == printed


# ------------------------------ pages
@pytest.mark.parametrize("name", ["robust", "private", "precision", "compression", "fedsmoo"])
def test_the_committed_page_is_up_to_date(name):
    tables = [*measured_tables(FILL.lines(), LINES, entries_of(name))]
    best = [one for one in tables if one.whole or one.table.entry.study]
    drawn = {one.table.entry.id: TABLES.pictures(one.table) for one in best}
    text = TABLES.text(name, tables, drawn)
    assert (RESULTS / f"{name}.md").read_text() == text, "make it again: nox -s results"
    pictures = {picture.name for own in drawn.values() for picture in own}
    assert pictures <= {picture.stem for picture in (RESULTS / "pictures").iterdir()}
    cells = TABLES.board(FILL.lines(), tables, [tables[0].table.entry])[0]
    assert f"| {' | '.join(cells)} |\n" in (RESULTS / "board.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("script", ["filled", "fedacg", "fafed", "zoo", "submodels"])
def test_pages_made_anew_are_the_committed_ones(script):
    command = [sys.executable, "-m", "fedloom_papers.results", script, "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        (
            "{{claim:fedsmoo:8/headline/fedavg.verdict}}: "
            "{{claim:fedsmoo:8/headline/fedavg.points}}, "
            "{{claim:fedsmoo:8/headline/fedavg.difference 1}}; {{row:fedsmoo:8/fedavg.paper}}",
            "the opposite is clear: 9.15, -9.1; 74.08",
        ),
        (
            "{{gap:zoo:dirichlet/feddyn/fedavg.holm}} {{row:robust:sign/mean@sign-30.tested 1}}",
            "0.091 9.7",
        ),
        ("a {{record:x/y.z}} b", "a z of x/y b"),
        # 0.9697307, 0.9745590, 0.9730734 less 0.9717734, 0.9710306, 0.9741876 by hand
        ("{{demo:FedAvgM/FedACG.points 4}}", "0.0124"),
    ],
)
def test_a_placeholder_becomes_what_the_lines_say(text, filled):
    own = {"record": lambda place, field: f"{field} of {place}"} if "record" in text else {}
    assert FILL.fill(text, *([own] if own else [])) == filled


def test_the_demo_record_fills_its_table():
    row = FILL.fill("{{demo:table.text}}").splitlines()[3].split()
    assert row[:3] == ["FedAvgM", "3", "97.25"]


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
def test_a_placeholder_that_says_nothing_is_refused(text, said):
    with pytest.raises(ConfigError, match="no ") as error:
        FILL.fill(text)
    assert said in str(error.value)


def test_a_page_that_differs_or_is_none_is_named(tmp_path, capsys):
    same, other = tmp_path / "a.md", tmp_path / "b.md"
    same.write_text("x\n")
    other.write_text("9.15\n")
    assert MAIN.report_differences({same: "x\n"}, "make it") == 0
    assert MAIN.report_differences({same: "x\n", other: "9.16\n"}, "make it") == 1
    assert "b.md differs from its lines; make it again: make it" in capsys.readouterr().out
    with pytest.raises(DataError, match="there is no page 'zooo'; did you mean 'zoo'"):
        MAIN.make_pages(["zooo"])


def test_no_picture_has_few_colours():
    """In 64 colours FedAvg and FedAvgM had the same green. Byte 25 of a PNG: 3 is a palette."""
    pictures = [*RESULTS.parent.glob("**/*.png")]
    assert [file.name for file in pictures if file.read_bytes()[25] == 3] == []
