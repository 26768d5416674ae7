"""fedloom sweep, referee, advise and demo: what they choose, and going on after a stop."""

import json
import tomllib
from pathlib import Path

import pytest

from fedloom.core.interrupts import TimeUpError
from support.folders import record, settings
from support.schema import check
from support.scripts import ROOT


def finished(pattern):
    return {p: p.stat().st_mtime_ns for p in Path().glob(f"{pattern}/summary.json")}


AGAIN = "run the same command again to resume"

# ------------------------------------------------------------------------------------------- sweep
SMALL = ("rounds=2", "local.epochs=1", "cohort=4", "data.clients=8")
SWEEP = ("sweep", "digits", *SMALL, "local.lr=0.01,0.3")
RUNS = "runs/sweep-digits/*"


def table(output):
    """What a sweep says, without the warnings of runs that learn nothing in two rounds."""
    return "\n".join(line for line in output.splitlines() if not line.startswith("warning: "))


def test_a_sweep_runs_everything_once_and_chooses(fedloom, stopped, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")  # its headings on one line
    end = stopped(2, KeyboardInterrupt, *SWEEP, "--quiet")
    assert end.exit_code == 130 and AGAIN in end.output
    kept = finished(RUNS)
    text = table(fedloom(*SWEEP, "--quiet").output)
    heads, *lines = text.splitlines()
    assert "validation accuracy, last tenth" in heads and "test accuracy, last tenth" in heads
    assert [line.split()[:2] for line in lines[:2]] == [["0.01", "1"], ["0.3", "1"]]
    assert "best by the validation split: local.lr=0.3" in text
    before = finished(RUNS)
    assert len(kept) == 1 and len(before) == 2 and kept.items() <= before.items()
    assert table(fedloom(*SWEEP, "--quiet").output) == text
    assert finished(RUNS) == before, "finished runs are skipped"
    lines = table(fedloom(*SWEEP, "seeds=2", "--quiet").output).splitlines()
    assert [line.split()[:2] for line in lines[1:3]] == [["0.01", "2"], ["0.3", "2"]]
    assert len(finished(RUNS)) == 4
    assert before.items() <= finished(RUNS).items(), "one seed more is two runs more"
    dry = fedloom("run", "runs/sweep-digits/best.toml", "--dry-run").output
    assert "lr = 0.3" in dry and "validation = 0.0" in dry


def test_a_sweep_goes_on_in_the_engine_it_began_with(fedloom, stopped):
    stopped(1, KeyboardInterrupt, *SWEEP, "--quiet", "engine=vectorised:4")
    assert "best by" in fedloom(*SWEEP, "--quiet", "engine=serial").output
    engines = [settings(p.parent)["engine"] for p in Path("runs").glob("*/*/config.toml")]
    assert sorted(engines) == ["serial", "vectorised:4"]


def test_a_run_that_fails_is_a_result(fedloom):
    words = ("sweep", "digits", *SMALL, "local.lr=0.1,1e30", "--quiet")
    text = fedloom(*words).output
    assert "local.lr=1e30 failed:" in text
    assert "best by the validation split: local.lr=0.1" in text
    assert fedloom(*words).output == text, "it is not tried again"


def test_what_would_be_refused_later_is_refused_before_anything_runs(fedloom):
    tried = ("algorithm=fedavg,fafed", "submodel=heterofl", "submodel.capacities=[0.5,1]")
    said = fedloom("sweep", "digits", *SMALL, *tried, code=2).output
    assert "error: algorithm=fafed: HeteroFL and FAFED: " in said
    assert said.strip().endswith("nothing was run") and not finished(RUNS)


def test_a_sweep_tells_of_its_own_runs_beside_those_of_other_settings(fedloom):
    first = fedloom(*SWEEP, "--quiet").stdout
    assert fedloom(*SWEEP, "local.batch=7", "--quiet").stdout != first and len(finished(RUNS)) == 4
    assert fedloom(*SWEEP, "engine=serial", "seed=0", "--quiet").stdout == first, "the same runs"
    assert len(finished(RUNS)) == 4
    text = fedloom(*SWEEP, "--by", "test", "--quiet", "--out", "here").output
    assert "best by the test set (the papers' way: too good, by the choice itself)" in text
    assert len(finished("here/*")) == 2


# ----------------------------------------------------------------------------------------- referee
STRANGERS = ROOT / "examples" / "referee" / "strangers.py"
TWENTY = ("digits", "data.clients=20", "data.alpha=0.1", "cohort=4", "local.epochs=1")
QUICK = (*TWENTY, "rounds=2", "--trials", "2", "--seeds", "4", "--quiet")
PROX = ("referee", "fedprox", "--against", "fedavg", *QUICK)


def verdicts(study):
    return {c["against"]: c["verdict"] for cell in study["cells"] for c in cell["comparisons"]}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "verdict"), [("Calm", "undecided"), ("Shy", "worse"), ("Anchored", "no difference")]
)
def test_a_strangers_method_gets_the_right_verdict(name, verdict, fedloom):
    words = (f"{STRANGERS}:{name}", "--against", "fedavg", *TWENTY, "rounds=30")
    page = fedloom("referee", *words, "--trials", "5", "--seeds", "9", "--quiet").stdout
    folder, same = Path(f"runs/referee-strangers.py-{name}"), name == "Anchored"
    study = check("referee", (folder / "referee.json").read_text("utf-8"))
    assert verdicts(study) == {"fedavg": verdict}
    assert study["cells"][0]["methods"][0]["without_effect"] == ["algorithm.mu"] * same
    assert ("algorithm.mu has no effect" in page) == same
    assert page == (folder / "referee.md").read_text("utf-8")


@pytest.mark.slow
def test_everybody_has_the_same_trials_and_seeds(fedloom):
    words = ("referee", "fedprox", "--against", "fedavg,scaffold", *QUICK, "--json")
    study = check("referee", fedloom(*words).stdout)
    (cell,) = study["cells"]
    each = [(m["trials"], len(m["values"]), m["first_seed"]) for m in cell["methods"]]
    assert set(each) == {(2, 4, 1)} and cell["seeds"] == 4 and study["looks"] == [4]
    assert [row["label"] for row in cell["rows"]] == ["FedProx", "FedAvg", "SCAFFOLD"]
    mine, theirs = (m["values"] for m in cell["methods"][:2])
    gaps = [a - b for a, b in zip(mine, theirs, strict=True)]
    assert cell["comparisons"][0]["difference"] == pytest.approx(sum(gaps) / 4)


@pytest.mark.slow
def test_a_stopped_comparison_goes_on(fedloom, stopped):
    words = (*PROX, "--out", "here")
    end = stopped(3, KeyboardInterrupt, *words)
    assert end.exit_code == 130 and AGAIN in end.output
    page, before = fedloom(*words).stdout, finished("here/*/*")
    assert len(before) == 2 * (2 * 4 + 4), "two trials on four splits of 140 rows, four seeds"
    assert fedloom(*words).stdout == page
    assert finished("here/*/*") == before, "nothing runs again"
    said = fedloom(*words, "--delta", "0.5", code=2).output
    assert "holds a study of something else" in said and "choose another --out" in said


@pytest.mark.slow
def test_time_that_is_up_keeps_what_is_whole(fedloom, stopped):
    """Seeds count of which every method of a cell has a run."""
    # 2 x 2 trials on 4 splits, the first seed of both, the second of one
    end = stopped(20, TimeUpError, *PROX, "--json")
    study = check("referee", end.stdout)
    assert study["ended"] == "time" and AGAIN in end.stderr
    assert study["cells"][0]["seeds"] == 1 and verdicts(study) == {"fedavg": "undecided"}
    assert json.loads(fedloom(*PROX, "--json").stdout)["ended"] == "plan"


@pytest.mark.slow
def test_a_method_that_fails_is_named_and_not_judged(fedloom):
    fast = "fedavg local.lr=1e30"
    page = fedloom("referee", "fedprox", "--against", f"{fast},fedavg", *QUICK).stdout
    study = check("referee", Path("runs/referee-fedprox/referee.json").read_text("utf-8"))
    pairs = {c["against"]: c for c in study["cells"][0]["comparisons"]}
    assert pairs[fast]["failures"] == 4 and pairs["fedavg"]["failures"] == 0
    assert pairs[fast]["verdict"] == "undecided" and pairs[fast]["difference"] is None
    assert f"4 runs of it and of {fast} failed" in page


@pytest.mark.slow
def test_codecs_are_compared_too(fedloom):
    words = ("topk:0.1", "--against", "topk:0.5", "--vary", "compress", *QUICK, "--json")
    (cell,) = check("referee", fedloom("referee", *words).stdout)["cells"]
    assert [m["settings"]["compress"] for m in cell["methods"]] == ["topk:0.1", "topk:0.5"]
    assert cell["rows"][0]["bytes"] < cell["rows"][1]["bytes"]


# ------------------------------------------------------------------------------------------ advise
@pytest.mark.slow
def test_a_user_leaves_with_settings_and_reasons(fedloom, monkeypatch):
    """A few of all methods; cfedavg is FedAvg without a codec."""
    few = ("fedavg", "fedprox", "cfedavg", "feddyn", "fedadam")
    words = ("heart", "rounds=1", "local.epochs=1", "--trials", "2", "--seeds", "4", "--quiet")
    monkeypatch.setattr("fedloom.referee.advice.ALGORITHMS", few)
    monkeypatch.setattr("fedloom.referee.study.MOST_SPLITS", 2)
    page, folder = fedloom("advise", *words).stdout, Path("runs/advise-heart")
    study = check("advise", (folder / "advice.json").read_text("utf-8"))
    assert page == (folder / "advice.md").read_text("utf-8")
    names, tried = study["candidates"], [one["name"] for one in study["screen"]["tried"]]
    assert {*tried} == {*few} and study["screen"]["splits"] == study["splits"] == 2
    best = [name for name in tried if name not in ("fedavg", "cfedavg")][:2]
    assert names == ["fedavg", *best] and study["take"] in names
    assert "FedAvg, and the two best of all others: 5 methods had 2 trials each" in page
    assert [one["name"] for one in study["against"]] == [n for n in names if n != study["take"]]
    assert f"ake {study['take']}**" in page and "better than alone at" in study["alone"]
    (cell,) = study["cells"]
    trials = {m["name"]: m["trials"] for m in cell["methods"]}
    assert trials == dict.fromkeys([*names, "pooled"], 2) and len(cell["comparisons"]) == 3
    assert all(len(method["values"]) == 4 for method in cell["methods"])
    runs = (len(tried) + 1) * 2 * 2 + 5 * 4
    assert study["runs"] == runs, "clients alone are run with seeds, and not tuned"
    chosen = tomllib.loads((folder / "run.toml").read_text("utf-8"))
    assert chosen["algorithm"]["name"] == study["take"] and chosen["rounds"] == 1
    assert chosen["local"]["lr"] == float(study["settings"]["local.lr"])
    assert chosen["evaluate"].get("validation", 0) == 0
    fedloom("run", str(folder / "run.toml"), "rounds=1", "--quiet", "--out", "again")
    before = finished("runs/advise-heart/*/*")
    assert fedloom("advise", *words).stdout == page, "the same command resumes"
    assert finished("runs/advise-heart/*/*") == before


# -------------------------------------------------------------------------------------------- demo
LABELS = ["FedAvg", "FedAvgM", "SCAFFOLD", "FedACG"]


def test_the_demo_takes_what_is_there_and_goes_on_with_what_was_stopped(fedloom, monkeypatch):
    monkeypatch.setattr("fedloom.report.write_report", lambda *runs, **more: Path("report.html"))

    def demo(rounds):
        lines = fedloom("demo", "--rounds", rounds, "--seeds", 1).output.splitlines()
        first = next(i for i, line in enumerate(lines) if line.startswith("---")) + 1
        assert [line.split()[0] for line in lines[first : first + 4]] == LABELS
        return sum("is there" in line for line in lines)

    assert demo(2) == 0
    before = finished("runs/demo/*")
    assert len(before) == 4
    assert demo(2) == 4 and finished("runs/demo/*") == before
    (fedacg,) = Path("runs/demo").glob("algorithm=fedacg-seed0-*")
    (fedacg / "summary.json").unlink()
    assert demo(2) == 3
    assert record(fedacg)["finished"]
    assert demo(1) == 0, "other settings are other runs"
    assert len(finished("runs/demo/*")) == 8


@pytest.mark.slow
def test_the_demo_ends_in_a_report(fedloom):
    text = fedloom("demo", "--rounds", 3, "--seeds", 2).output
    page = Path("runs/demo/report.html").read_text()
    assert "report" in text and all(label in page for label in LABELS)
    assert Path("runs/demo/pictures/accuracy_by_round.png").exists()
