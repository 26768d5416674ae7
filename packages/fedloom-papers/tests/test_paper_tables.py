"""`fedloom paper`: every table and figure runs; lines, stops, grids, bad input."""

from __future__ import annotations

import csv
import io
import itertools
import json
import re
from dataclasses import replace
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from fedloom.cli.__main__ import cli
from fedloom.config import Config
from fedloom.errors import DataError
from fedloom.experiment.experiment import Experiment
from fedloom_papers.board import measured_tables
from fedloom_papers.catalogue import ENTRIES
from fedloom_papers.command import paper_command
from fedloom_papers.entry import PAPERS
from fedloom_papers.lines import NAME, read
from fedloom_papers.measure import base_of
from fedloom_papers.results import reruns, tables
from fedloom_papers.results.fill import RESULTS
from fedloom_papers.schedule import read_items
from fedloom_papers.tune import choose, grid_plans, halving_plan
from fedloom_papers.verdicts import WORDS

# TCGA's files are not ours to give, and nothing stands for them
RUNS = [e for e in ENTRIES.values() if not (e.fact or e.study or e.id == "flamby:tcga")]
COMMITTED = RESULTS.parents[1] / "docs/results/papers"
OUT = Path("runs/papers")
SMALL = ("fedsmoo:8", "--scale", "smoke")
of_each = pytest.mark.parametrize("one", RUNS, ids=lambda e: e.id)


@pytest.fixture(autouse=True)
def as_wide_as_committed(monkeypatch):
    """Pages are made without COLUMNS, which pytest-xdist sets."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture
def paper(fedloom):
    """`fedloom paper ...` without its progress -> what it says."""
    return lambda *words, code=0: fedloom("paper", *words, "--quiet", code=code).output


def lines(folder=OUT):
    return [json.loads(line) for line in (Path(folder) / NAME).read_text().splitlines()]


def write_lines(found):
    (OUT / NAME).write_text("".join(json.dumps(line) + "\n" for line in found))


# ------------------------------ what can be run
@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """One folder for all tables, so that each set of settings is run once."""
    return tmp_path_factory.mktemp("papers")


def smoke(one, rows, fedloom, out):
    """Run rows of a table: every number that it compares is measured."""
    words = ("--scale", "smoke", "--rows", ",".join(rows), "--out", out, "--csv")
    text = fedloom("paper", one.id, *words).stdout
    numbers = list(csv.DictReader(io.StringIO(text)))
    assert len(numbers) == sum(w.row.key in rows for w in one.quantities())
    relative = ("comm_cost", "rounds_speedup", "total_time_speedup")  # to FedAvg's target
    for row in numbers:
        late = row["metric"].startswith((*relative, "accuracy_roughness"))  # ten rounds at least
        late |= "acc=" in row["at"] and base_of(one).key not in rows
        assert row["measured"] or late, row


@of_each
def test_a_table_runs_at_scale_smoke(one, fedloom, shared):
    """Its first and its last row: the baseline, and what the paper proposes."""
    smoke(one, [one.rows[0].key, one.rows[-1].key], fedloom, shared)


@pytest.mark.slow
@of_each
def test_every_row_runs_at_scale_smoke(one, fedloom, shared):
    smoke(one, [row.key for row in one.rows], fedloom, shared)


FLAGS = {
    "list": "out",
    "run": "only hours out jobs mix dry-run quiet",
    "measure": "out",
    "table": "scale rows protocols seeds out jobs dry-run show as-published tune halving csv "
    "figures format quiet",
}


def test_the_flags_are_these(fedloom):
    flags = {
        name: {o for p in command.params if isinstance(p, click.Option) for o in p.opts}
        for name, command in paper_command.commands.items()
    }
    long = {name: {o for o in found if o[:2] == "--"} for name, found in flags.items()}
    assert long == {name: {f"--{o}" for o in words.split()} for name, words in FLAGS.items()}
    assert "paper " in fedloom("--help").output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("fedacg:1c", "unknown table or figure 'fedacg:1c'; did you mean 'fedacg:1"),
        ("fedacg", "is a paper; give one of its tables"),
        ("nothing:9", "`fedloom paper list` lists all"),
        ("fedacg:4 fedacg:5a", "give one table or figure"),
        ("fedsmoo:8 --rows fedavgm", "has no row 'fedavgm'; did you mean 'fedavg'"),
        ("fedsmoo:8 --scale smoke local.lrr=1", "has no key 'lrr'"),
        ("fafed:5", "fafed:5 has no runs"),
        ("fedsmoo:8 --format bmp", "--format must be of png"),
    ],
)
def test_bad_input_is_one_line_before_anything_runs(words, said, paper):
    text = paper(*words.split(), code=2)
    assert all(part in text for part in said.split("; ")) and not OUT.exists()


def test_the_list_names_everything_once(paper, fedloom):
    paper(*SMALL)
    text = fedloom("paper", "list").output
    first = [line.split()[0] for line in text.splitlines() if line.startswith("  ") and ":" in line]
    assert [name for name in first if name in ENTRIES] == [*ENTRIES]
    assert text.count("smoke:4") == 1, "of Table 8 all; others share some of its runs"
    assert "did you mean 'fedacg'" in fedloom("paper", "list", "fedacgs", code=2).output
    done = fedloom("paper", "list", "fafed", "--out", COMMITTED).output
    assert re.search(r"fafed:2a .* cpu:21\n", done), "at other points and on another engine"
    assert len(PAPERS) == sum(line.endswith(")") and "20" in line for line in text.splitlines())


# ------------------------------ lines
def test_the_same_command_goes_on_after_a_stop(paper, monkeypatch):
    run, calls = Experiment.run, []

    def stop(self, *args, **kwargs):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return run(self, *args, **kwargs)

    monkeypatch.setattr(Experiment, "run", stop)
    stopped = CliRunner().invoke(cli, ["paper", *SMALL, "--quiet"], prog_name="fedloom")
    assert stopped.exit_code == 130
    assert "run the same command again to resume" in stopped.output
    before = lines()
    assert len(before) == 2
    text = paper(*SMALL)
    assert lines()[:2] == before and len(lines()) == 4
    assert len(calls) == 5, "finished runs are skipped"
    assert "UNDECIDED: SAM helps" in text and "one seed, no test" in text
    done = {line["digest"] for line in lines()}
    # a line that a kill cut off is made again from the run's folder, which is not run again
    file = OUT / NAME
    file.write_bytes(file.read_bytes()[:-40])
    assert paper(*SMALL) == text and {line["digest"] for line in lines()} == done
    assert all(line["version"] and "commit" in line and line["curves"] for line in lines())


def test_lines_of_another_version_are_used_and_of_other_settings_are_not(paper):
    paper(*SMALL, "--rows", "fedavg,fedsmoo")
    old = [line | {"version": "0.0.1"} for line in lines()]
    old[1]["digest"], old[1]["settings"]["local.lr"] = "other", 0.7
    write_lines(old)
    paper(*SMALL, "--rows", "fedavg")
    assert len(lines()) == 2, "it is used as it is"
    paper(*SMALL, "--rows", "fedsmoo")
    assert len(lines()) == 3, "its settings differ, so it is run again"
    (OUT / NAME).write_text("no line\n")
    assert f"{NAME}, line 1 is no JSON" in paper(*SMALL, code=2)


def test_data_that_cannot_be_had_leave_the_other_rows_and_are_asked_for_once(paper, monkeypatch):
    """Each download is tried several times, with pauses: nine runs of one data set ask once."""
    monkeypatch.setenv("FEDLOOM_DATA", str(Path("nowhere").absolute()))
    text = paper("fedacg:7", "--rows", "fedavg", "--seeds", "1", "rounds=1")
    assert "no data: FEMNIST: " in text and "no data: CelebA: " in text and "NOT MEASURED" in text
    asked = []

    def nothing(self):
        asked.append(self.values["data"]["name"])
        raise DataError("no such host")

    monkeypatch.setattr(Config, "data", nothing)
    text = paper("fedacg:1b", "--rows", "fedavg,fedavgm,fedacg")
    assert asked == ["cifar10", "cifar100"]
    assert "no data: CIFAR-10: no such host" in text and "no data: CIFAR-100: " in text


def test_a_dry_run_says_what_would_run_and_how_long(fedloom, paper):
    dry = lambda *words: fedloom("paper", *words, "--dry-run").output
    text = dry("fedacg:1a", "--scale", "paper", "--seeds", "1")
    assert "c10-100-dir0.3" in text and "resnet18" in text
    assert "39 runs, 0 of them have a line" in text and not Path("runs").exists()
    before = dry(*SMALL, "--rows", "feddyn")
    assert "how long one takes: fedloom run fedsmoo_cifar10 evaluate.target=none " in before
    paper(*SMALL, "--rows", "fedavg")
    write_lines([line | {"seconds": 60.0} for line in lines()])
    said = dry(*SMALL, "--rows", "fedavg,feddyn,fedsmoo")
    assert "3 runs, 1 of them have a line" in said and "take about 2 min" in said
    tuned = dry("fafed:2a", "--rows", "fedavg", "--tune")
    assert "before: 5 runs of grids, at one seed" in tuned


def test_show_prints_what_the_lines_have_and_trains_nothing(fedloom):
    text = fedloom("paper", "fedsmoo:8", "--scale", "paper", "--show").output
    assert "FedSMOO" in text and not Path("runs").exists()
    before = (COMMITTED / NAME).stat().st_size
    text = fedloom("paper", "fedsmoo:8", "--show", "--out", COMMITTED).output
    assert "FedSMOO 34.97 less FedDyn 44.41 is -9.44" in " ".join(text.split())
    assert (COMMITTED / NAME).stat().st_size == before


def test_what_is_measured_on_finished_runs_is_kept(paper):
    """FedSMOO's Table 2 and Figure 3 need different measures of one run."""
    measure = lambda name: paper(name, "--scale", "smoke", "--rows", "fedsmoo")
    measure("fedsmoo:8")
    measure("fedsmoo:2")
    before = len(lines())
    text = measure("fedsmoo:2")
    assert len(lines()) == before, "nothing is measured twice"
    measure("fedsmoo:fig3")
    assert measure("fedsmoo:2") == text
    hessian = {"hessian_top_eigenvalue", "hessian_trace", "loss_sharpness"}
    assert {*lines()[-1]["afterwards"]} == {"client_divergence", *hessian}


@pytest.mark.slow
def test_runs_at_once_give_the_same_lines(fedloom, paper):
    """Two processes, one data load each; then nothing is left to run, and the table is drawn."""
    paper(*SMALL, "--out", "one")
    text = fedloom("paper", *SMALL, "--quiet", "--jobs", "2").stdout
    times = ("date", "seconds", "seconds_per_round", "engine")
    timeless = lambda line: {k: v for k, v in line.items() if k not in times}
    short = [sorted(map(timeless, lines(f)), key=lambda x: x["digest"]) for f in ("one", OUT)]
    assert short[0] == short[1] and len(short[0]) == 4
    words = ("--quiet", "--figures", "pictures", "--format", "png,svg,pdf")
    assert fedloom("paper", *SMALL, *words).stdout == text
    # numbers beside the paper's are drawn at its own scale alone
    names = sorted(file.name for file in Path("pictures").iterdir())
    assert names == [f"fedsmoo-8-accuracy.{kind}" for kind in ("pdf", "png", "svg")]


# ------------------------------ grids
GRID = ("fafed:2c", "--scale", "smoke")
last_of = lambda line: line["curves"]["curve"][-1][1]


def test_grids_are_run_at_one_seed_and_the_best_point_at_all(paper):
    text = paper(*GRID, "--rows", "fedavg", "--tune", "--seeds", "2")
    last = {x["settings"]["local.lr"]: last_of(x) for x in lines() if x["seed"] == 0}
    assert {*last} == {0.001, 0.01, 0.02, 0.05, 0.1}
    best = max(last, key=lambda rate: last[rate])
    assert f"fedavg in fashion-high: local.lr={best:g}" in text
    assert ("at the grid's edge" in text) == (best in (0.001, 0.1))
    assert [x["settings"]["local.lr"] for x in lines() if x["seed"] == 1] == [best]


@pytest.mark.slow
def test_halving_runs_the_best_ninth_of_a_grid_to_the_end(paper):
    words = (*GRID, "--rows", "fedavg,stem", "rounds=9")
    dry = paper(*words, "--halving", "--dry-run")
    assert "before: 15 runs of grids for 1/9 of the rounds, the best 1/9 of each" in dry
    text = paper(*words, "--halving")
    ends = {1: {}, 3: {}, 9: {}}
    for line in lines():
        point = line["settings"]["local.lr"], line["settings"].get("algorithm.alpha")
        ends[line["rounds"]][point] = last_of(line)

    def best(rounds, stem, count):
        of = {point: end for point, end in ends[rounds].items() if (point[1] is not None) == stem}
        return {*sorted(of, key=lambda point: -of[point])[:count]}

    assert len(ends[1]) == 15
    assert {*ends[3]} == best(1, True, 4), "two of fedavg's five go straight to the end"
    assert {*ends[9]} == best(3, True, 2) | best(1, False, 2)
    ((chosen, _),) = best(9, False, 1)
    assert f"fedavg in fashion-high: local.lr={chosen:g}" in text
    assert len(lines()) == 15 + 4 + 4
    assert text.endswith(paper(*words, "--halving")) and len(lines()) == 23
    paper(*words, "--tune")
    assert len(lines()) == 23 + 11, "what was left out, and nothing twice"


def test_halving_chooses_in_fafed_2a_what_the_whole_grid_chooses():
    """docs/papers.md says so. A short run is a whole one's curve up to the last value by then."""
    entry, found, amounts = ENTRIES["fafed:2a"], read(COMMITTED / NAME), []
    entry = replace(entry, rows=tuple(row for row in entry.rows if row.key != "fedams"))  # no lines
    (grid,) = grid_plans(entry, "cpu", COMMITTED, entry.rows, ())
    of = {line["digest"]: line for line in found if line["seed"] == 0}
    whole = {run.row.key: of[run.digest] for run in grid.runs}

    def cut(rung):
        amounts.append((rung.runs[0].rounds, len(rung.runs)))
        for run in rung.runs:
            curve = whole[run.row.key]["curves"]["curve"]
            short = {"curve": [point for point in curve if point[0] <= run.rounds]}
            found.append({**whole[run.row.key], "digest": run.digest, "curves": short})
        return found

    last = halving_plan(entry, entry.rows, grid, COMMITTED, (), cut)
    assert amounts == [(17, 160), (50, 51)] and len(last.runs) == 23
    halved, every = (choose(entry.rows, [one], found) for one in (last, grid))
    assert len(halved) == 6 and [c.point for c in halved] == [c.point for c in every]


# ------------------------------ the pages of results
def pages_of(*names, items=()):
    entries = [ENTRIES[name] for name in names]
    return [*measured_tables(lines(), OUT, entries, ("smoke",), *([items] if items else []))]


def test_the_results_page_says_what_was_run_and_what_prints_it(paper):
    paper(*SMALL, "--rows", "fedavg")
    (one,) = pages_of("fedsmoo:8", "cfedavg:fig2a")
    text = tables.text("fedsmoo", [one], {"fedsmoo:8": []})
    assert "\n- 8 (1 of 12 runs), 3 seeds, of " in text
    assert "\nfedloom paper fedsmoo:8 --scale smoke --show --out docs/results/papers\n" in text
    assert "\nfedloom paper fedsmoo:8 --scale smoke  # runs it again\n" in text
    assert re.search(r"FedAvg +74\.08±0\.22 +\d", paper(*SMALL, "--show"))


@pytest.mark.slow
def test_a_halved_grid_is_shown_at_its_best_point(fedloom, paper):
    words = (*GRID, "--rows", "fedavg")
    best = re.search(r"fedavg in fashion-high: local\.lr=[^ \n]+", paper(*words, "--halving"))
    (one,) = pages_of("fafed:2c")
    text = tables.text("fafed", [one], {"fafed:2c": []})
    assert "fedloom paper fafed:2c --scale smoke --halving  # runs it again" in text
    again = fedloom("paper", *words, "--quiet", "--show")
    (rate,) = [choice.point["local.lr"] for choice in one.choices]
    assert best.group().endswith(f"local.lr={rate:g}") or "edge" in best.group()
    assert f"{rate:g}: " in again.stderr and "*" in again.stderr
    halved = fedloom("paper", *words, "--quiet", "--halving", "--show")
    assert again.stdout == halved.stdout


@pytest.mark.slow
def test_the_results_page_has_the_points_of_the_list_of_evidence(fedloom):
    """For the table that the list names, and for a figure of the same runs."""
    points = "[table.points]\nfedavg = 'local.lr=0.03'\nSCAFFOLD = 'local.lr=0.07'\n"
    head = "[[table]]\nid = 'fafed:2a'\nseeds = 1\nscale = 'smoke'\n"
    Path("plan.toml").write_text(head + points)
    fedloom("paper", "run", "plan.toml", "--hours", "1", "--out", OUT)
    for one in pages_of("fafed:2a", "fafed:fig2", items=read_items(Path("plan.toml"))):
        there = {n.quantity.row.key for n in one.table.numbers if n.values}
        assert {"fedavg", "scaffold"} <= there, one.table.entry.id
        runs = [run for run in one.plan.runs if run.protocol.name == "fashion-low"]
        rates = {run.row.key: run.config.values["local"]["lr"] for run in runs}
        assert (rates["fedavg"], rates["scaffold"]) == (0.03, 0.07)


def committed(paper):
    """The page of a paper, and the rows of its table of claims."""
    text = (COMMITTED.parent / f"{paper}.md").read_text()
    (_, *rest) = text.split("| what the paper says |")
    below = rest[0].splitlines()[2:] if rest else []
    rows = itertools.takewhile(lambda line: line.startswith("|"), below)
    return text, [[cell.strip() for cell in line.strip("|").split(" | ")] for line in rows]


@pytest.mark.parametrize("name", [p for p in PAPERS if p != "flamby"])
def test_a_page_begins_with_what_the_paper_is_about(name):
    text, (first, *others) = committed(name)
    heads = {c.text for e in ENTRIES.values() for c in e.claims if c.headline and e.paper == name}
    assert first[0] in heads and first[2] in {*WORDS.values()}
    lead = text.index(first[0])
    assert all(text.index(row[0]) >= lead for row in others) and "\n- " not in text[:lead]


def test_how_many_rows_are_run_decides_what_is_drawn_and_never_which_verdict_is_told():
    """Of FedSMOO's Table 1 three of eight rows have lines, of one protocol of sixteen."""
    text, claims = committed("fedsmoo")
    rows = {(row[0], row[1]): row for row in claims}
    head = rows["FedSMOO is above every other method", "fedsmoo:1, c10-100-c3"]
    assert head[2] == "the opposite is clear" and "5 not decided: no lines" in head[3]
    assert "FedSMOO 34.97 less FedAvg 44.12 is -9.147, p 0.002 (by Holm 0.014)" in head[3]
    assert rows["FedSMOO is above FedAvg and FedDyn", "fedsmoo:8, c10-100-c3"][2] == head[2]
    for name in ("fedsmoo:3", "fedsmoo:6", "fedsmoo:fig7", "fedsmoo:fig8"):
        assert any(place.startswith(f"{name}, ") for _, place in rows)
        assert f"pictures/{name.replace(':', '-')}-" not in text
    assert "pictures/fedsmoo-8-accuracy.png" in text
    assert "fedsmoo:1 (30)" in text, "what has no lines is said"


def test_what_others_got_stands_beside():
    found = lambda paper: {(x.dataset, x.partition, x.source[:6]): x for x in reruns.reruns(paper)}
    one = found("fedsmoo")["CIFAR-10", "Dirichlet 0.3", "FedWSQ"]
    assert (one.values["FedSMOO"], one.values["FedAvg"]) == (80.07, 82.52)
    for place, what, count in (
        ("FedWSQ CIFAR", "below", 6),
        ("FedWSQ CIFAR", "rows", 8),
        ("FedWMSAM", "below", 3),
        ("FedWMSAM CIFAR-100", "below", 3),
    ):
        assert reruns.count_reruns(f"fedsmoo/{place}", what) == count
    at = ("CIFAR-10", "Dirichlet 0.3")
    (acg,) = [x for x in reruns.reruns("fedacg") if (x.dataset, x.partition) == at]
    assert acg.values["FedACG"] == 89.12
    assert reruns.printed_accuracy("fedacg", "FedACG", acg) == 89.10
    assert reruns.printed_accuracy("fedacg", "FedMLB", acg) == 84.04
    assert "80.07" in committed("fedsmoo")[0]
