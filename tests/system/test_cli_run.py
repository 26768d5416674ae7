"""From a command to a run directory, and from there to tables and reports."""

import re
import shutil
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from fedloom import Experiment, load_runs
from fedloom.cli.__main__ import cli
from fedloom.cli.dry_run import measure
from fedloom.config import resolve
from fedloom.report import human_seconds
from fedloom.storage.run_directory import RunDirectory
from support.folders import parameters, record, rows
from support.schema import check

SMALL = ("rounds=3", "local.epochs=1")


# ----------------------------------------------------------------------------------- where runs go
@pytest.mark.slow
def test_baselines_stand_beside_a_run_and_the_same_command_goes_on(fedloom):
    line = ("run", "heart", "rounds=2", "evaluate.target=none", "--baselines", "--seeds", "2")
    output = fedloom(*line).output
    runs = sorted(Path("runs").iterdir())
    assert {"heart-fedavg-seed0", "heart-fedavg-alone-seed1"} <= {run.name for run in runs}
    labels = [record(run)["label"] for run in runs]
    assert {*labels} - {"pooled"} == {"FedAvg", "alone", "cyclic", "fine-tuned"}
    assert {labels.count(name) for name in labels} == {2}
    assert "than alone at" in output
    again = fedloom(*line).output
    assert again.count("is finished") == len(runs) and sorted(Path("runs").iterdir()) == runs


def test_runs_are_named_after_what_they_are_and_numbered(fedloom):
    for end in ("", "-2", "-3"):
        folder = f"runs/digits-fedacg-seed4{end}"
        output = fedloom("run", "algorithm=fedacg", "seed=4", *SMALL, "--quiet").output
        assert output.strip() == folder, "quiet: nothing but the folder"
        assert record(folder)["finished"]
    fedloom("run", "name=../my run", *SMALL, "--quiet")
    assert Path("runs/my-run-fedavg-seed0/summary.json").exists(), "a name is no path"
    lines = fedloom("list", "runs").output.splitlines()
    assert len(lines) == 1 + 4 and all("3 rounds" in line for line in lines[1:])
    with RunDirectory("runs/digits-fedacg-seed4").locked():
        lines = fedloom("list", "runs").output.splitlines()
    assert ["running now" in line for line in lines[1:]] == [True, False, False, False]


def test_runs_as_json(fedloom):
    assert check("list", fedloom("list", "runs", "--json").stdout) == {"runs": []}
    fedloom("run", *SMALL, "--quiet", "--out", "runs/a")
    (one,) = check("list", fedloom("list", "runs", "--json").stdout)["runs"]
    assert one["value"] == rows("runs/a")[-1]["test_accuracy"]
    assert one["finished"] and not one["running"]
    assert (one["folder"], one["rounds"], one["planned"]) == ("runs/a", 3, 3)
    Path("runs/a/config.toml").write_text("=")
    (one,) = check("list", fedloom("list", "runs", "--json").stdout)["runs"]
    assert "config.toml" in one["damaged"]


@pytest.mark.slow
def test_the_same_command_with_seeds_goes_on(fedloom, monkeypatch):
    line = ("run", *SMALL, "--seeds", 2, "--out", "both", "--quiet")
    unnamed = ("run", *SMALL, "--seeds", 2, "--quiet")
    rounds, calls = Experiment._rounds, []

    def stop(self, *args):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return rounds(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(Experiment, "_rounds", stop)
        stopped = CliRunner().invoke(cli, [str(a) for a in line], prog_name="fedloom")
    assert stopped.exit_code == 130
    assert "fedloom run --resume both/seed1" in stopped.output
    first = Path("both/seed0/summary.json").stat().st_mtime_ns
    assert "'both/seed0' is finished" in fedloom(*line).output
    assert Path("both/seed0/summary.json").stat().st_mtime_ns == first
    assert record("both/seed1")["finished"]
    said = fedloom(*line, "local.lr=0.3", code=2).output
    assert "'both/seed0' exists" in said and "local.lr differs" in said
    assert "is finished" in fedloom(*line, "device=cpu", "label=mine").output
    longer = fedloom("run", "rounds=4", *SMALL[1:], *line[3:]).output
    assert "is finished" not in longer and record("both/seed0")["rounds"] == 4
    assert "has 4 rounds already" in fedloom(*line, code=2).output
    assert record("both/seed1")["target"] == 0.95
    fedloom("run", "rounds=4", *SMALL[1:], *line[3:], "evaluate.target=0.1")
    assert record("both/seed1")["target"] == 0.1, "of a run that was finished too"
    # without --out the folders are found again, and left alone where they hold another run
    Path("runs/digits-fedavg-seed1").mkdir(parents=True)
    Path("runs/digits-fedavg-seed1/notes").touch()
    folders = fedloom(*unnamed).output.split()
    assert folders == ["runs/digits-fedavg-seed0", "runs/digits-fedavg-seed1-2"]
    again = fedloom(*unnamed).output
    assert all(f"'{folder}' is finished" in again for folder in folders)
    assert {str(p) for p in Path("runs").iterdir()} == {*folders, "runs/digits-fedavg-seed1"}


def test_seeds_are_one_group(fedloom):
    text = fedloom("run", *SMALL, "seed=3", "--seeds", 2, "--out", "both").output
    one, other = (record(f"both/seed{k}") for k in (3, 4))
    assert (one["seed"], other["seed"]) == (3, 4) and one["group"] == other["group"]
    assert next(x for x in text.splitlines() if x.startswith("FedAvg  ")).split()[1] == "2"


def test_the_command_line_and_python_give_the_same_bits(fedloom):
    fedloom("run", *SMALL, "--out", "a", "--quiet")
    result = resolve("digits", SMALL).experiment().run()
    ours = {k: v.tolist() for k, v in result.model.state_dict().items()}
    assert ours == parameters("a") and record("a")["last"]["value"] == result.last


@pytest.mark.slow
@pytest.mark.usefixtures("pictures")
def test_a_run_leaves_pictures_and_a_report(fedloom):
    text = fedloom("run", *SMALL, "devices=levels", "--out", "a").output
    assert "report in a/report.html" in text
    assert Path("a/pictures/accuracy_by_round.png").read_bytes()[:4] == b"\x89PNG"
    page = Path("a/report.html").read_text()
    assert "data:image/png;base64," in page and "simulated time" in page
    assert Path("a/pictures/accuracy_by_simulated.png").exists()
    fedloom("run", *SMALL, "--out", "b")
    assert not Path("b/pictures/accuracy_by_simulated.png").exists(), "without devices"


# ---------------------------------------------------------------------------------------- going on
def test_one_command_begins_goes_on_and_ends(fedloom):
    """As a job has to that is started again: --resume-if-begun, with --out or the usual folder."""
    more = ["data.clients=4", "--resume-if-begun", "--out", "R"]
    fedloom("run", "digits", "rounds=1", *more)
    assert "'R' is finished" in fedloom("run", "digits", "rounds=1", *more).output
    fedloom("run", "digits", "rounds=2", *more)
    assert len(rows("R")) == 2
    said = fedloom("run", "digits", "rounds=1", *more, "algorithm=scaffold", code=2).output
    assert "'R' exists, and holds something else than this run (algorithm.name" in said


def test_progress_counts_the_bytes_before_a_run_went_on(fedloom):
    def shown(*words):
        lines = fedloom("run", *words).output.splitlines()
        return [line.split("accuracy")[1].split()[1:3] for line in lines if "/4 " in line]

    whole = shown(*SMALL[1:], "rounds=4", "--out", "a")
    fedloom("run", *SMALL, "--out", "b")
    assert shown("--resume", "b", "rounds=4")[-1] == whole[-1]


def test_a_later_target_is_looked_for_from_the_beginning(fedloom):
    few = ("run", *SMALL[1:], "rounds=9")
    fedloom(*few, "evaluate.target=0.2", "--out", "straight")
    fedloom(*few, "evaluate.target=0.99", "--out", "later")
    fedloom("run", "--resume", "later", "rounds=10", "evaluate.target=0.2")
    one, two = record("straight"), record("later")
    assert one["rounds_to_target"] == two["rounds_to_target"] < 9
    assert one["bytes_to_target"] == two["bytes_to_target"] > 0


def test_many_runs_go_on_one_after_another(fedloom):
    fedloom("run", *SMALL, "checkpoint.every_rounds=1", "--out", "runs/a", "--quiet")
    for name in ("b", "c"):
        shutil.copytree("runs/a", f"runs/{name}")
        Path(f"runs/{name}/summary.json").unlink()
        Path(f"runs/{name}/manifest.json").unlink()  # the settings are changed by hand
        file = Path(f"runs/{name}/config.toml")
        file.write_text(file.read_text().replace("rounds = 3", "rounds = 5"))
    Path("runs/c/config.toml").write_text(file.read_text().replace("lr = 0.1", "lr = 0.2"))
    said = fedloom("run", "--resume", "runs", "--quiet", code=1).output
    assert "1/3 runs/a: finished before" in said and "2/3 runs/b: finished" in said
    assert "3/3 runs/c: error: 'runs/c' holds a run of another configuration: local" in said
    assert "error: 1 of 3 runs could not go on" in said
    assert (record("runs/a")["rounds"], record("runs/b")["rounds"]) == (3, 5)
    assert len(rows("runs/c")) == 3
    fedloom("run", "--resume", "runs/a", "runs/b", "rounds=6", "--quiet")
    assert (record("runs/a")["rounds"], record("runs/b")["rounds"]) == (6, 6)


# ------------------------------------------------------------------------------------- an estimate
@pytest.mark.usefixtures("accounts_at_hand")
def test_a_dry_run_writes_nothing_and_has_the_configuration_and_the_estimate(fedloom):
    words = ["run", "algorithm=scaffold", *SMALL, "--dry-run"]
    toml, _, estimate = fedloom(*words).output.partition("estimate of one run")
    assert tomllib.loads(toml) == resolve("digits", ["algorithm=scaffold", *SMALL]).values
    for word in ("cohort", "time", "memory", "disk", "traffic", "4,810 parameters"):
        assert word in estimate
    words = ["run", *SMALL, "--dry-run"]
    text = fedloom(*words, "--seeds", "3").output
    assert "3 seeds run one after another" in text and "epsilon" not in text
    sizes = fedloom(*words, "submodel=heterofl", "submodel.capacities=[0.5, 1.0]").output
    assert re.findall(r"^  size (\S+) ", sizes, re.MULTILINE) == ["1/2", "1"]
    private = ["sampling=poisson", "weighting=uniform", "aggregation=dp", "aggregation.noise=2"]
    assert re.search(r"  privacy +epsilon \d.*, in 3 rounds", fedloom(*words, *private).output)
    assert not any(Path().iterdir())


CODED = ("compress=topk:0.01", "compress.down=topk:0.01")


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold"])
@pytest.mark.parametrize("cohort", ["0.2", "[[0, 1], [2]]"])
def test_the_estimated_bytes_are_the_real_ones(algorithm, cohort, tmp_path):
    changes = [f"algorithm={algorithm}", f"cohort={cohort}", *SMALL]
    cost = measure(resolve("digits", changes).experiment())
    result = resolve("digits", changes).experiment().run(tmp_path / "a")
    assert cost.client_rounds * cost.down == result.ledger.bytes_down
    assert cost.client_rounds * cost.up == result.ledger.bytes_up
    (state,) = (tmp_path / "a/checkpoints").glob("*/state.safetensors")
    assert cost.checkpoint <= state.stat().st_size <= cost.checkpoint + 2000  # and its header
    vectors = {"fedavg": 0, "scaffold": 1}[algorithm]
    assert cost.memory_row // 4 // cost.parameters == vectors
    assert cost.memory_all == 50 * cost.memory_row
    coded = measure(resolve("digits", [*changes, *CODED]).experiment())
    assert coded.down < 0.1 * cost.down and coded.up < 0.1 * cost.up


# ---------------------------------------------------------------------------- tables and reports
def test_compare_takes_runs_and_folders_of_runs(fedloom):
    fedloom("run", *SMALL, "--seeds", 2, "--out", "some", "--quiet")
    fedloom("run", *SMALL, "algorithm=fedacg", "--out", "one", "--quiet")
    table = fedloom("compare", "some", "one", "--target", 0.01, "--csv", "a/b.csv").output
    first = [line.split()[:2] for line in table.splitlines()[2:4]]
    assert first == [["FedAvg", "2"], ["FedACG", "1"]]
    assert "rounds to 1 %" in table and "Only one seed in common with FedAvg" in table
    assert "Clients: 50 with 28 to 29 samples" in table
    assert len(Path("a/b.csv").read_text().splitlines()) == 3
    differing = table[table.index("Settings that differ:") :]
    assert "algorithm.name" in differing and "algorithm.lam" in differing
    for command in ("compare", "report"):
        said = fedloom(command, "one", "--target", 95, code=2).output
        assert "give 0.95 for 95 %" in said
    json_text = fedloom("compare", "some", "one", "--target", 0.99, "--json", "-").stdout
    both = check("compare", json_text)
    assert [row["rounds_to_target"] for row in both] == [None, None]
    assert [row["not_reached"] for row in both] == [2, 1]
    assert [row["setting.algorithm.lam"] for row in both] == [None, 0.85]
    assert both[1]["against"] == "FedAvg" and both[0]["difference"] is None
    latex = ("compare", "some", "one", "--latex", "-")
    text = fedloom(*latex).output
    assert text.startswith("\\begin{tabular}") and "\nFedACG & " in text
    assert "\nFedACG & 1 & 3 \\\\\n" in fedloom(*latex, "--columns", "seeds,rounds").output
    said = fedloom("compare", "some", "--columns", "acuracy", code=2).output
    assert "did you mean 'accuracy'" in said
    frame = load_runs(["some", "one"])
    assert len(frame) == 9 and set(frame["setting.algorithm.name"]) == {"fedavg", "fedacg"}
    assert "--against 'FedAcg'" in fedloom("compare", "some", "--against", "FedAcg", code=2).output
    assert fedloom("compare", "one", "--markdown").output.startswith("| algorithm | seeds |")


@pytest.mark.slow
def test_report_writes_one_page_or_figures_for_a_paper(fedloom):
    fedloom("run", *SMALL, "--seeds", 2, "--out", "some", "--quiet")
    assert fedloom("report", "some").output.strip() == "report.html"
    assert "FedAvg" in Path("report.html").read_text()
    assert fedloom("report", "some/seed0", "--out", "x.html").output.strip() == "x.html"
    assert "<html" in Path("x.html").read_text()
    Path("report.html").unlink()
    for more, said in (
        (["--figures", "f", "--format", "bmp"], "--format must be of png, svg, pdf, got 'bmp'"),
        (["--format", "pdf"], "--format is of --figures"),
    ):
        assert said in fedloom("report", "some", *more, code=2).output
    files = fedloom("report", "some", "--figures", "f", "--format", "svg").output.split()
    assert "f/accuracy_by_round.svg" in files and all(Path(file).is_file() for file in files)
    assert not Path("report.html").exists(), "only with --out"


def test_a_run_with_devices_says_their_time(fedloom):
    more = ("devices=lognormal", "evaluate.target=0.01", "--out", "a")
    text = fedloom("run", *SMALL, *more).output
    seconds, summary = [row["simulated_seconds"] for row in rows("a")], record("a")
    assert summary["simulated_seconds"] == pytest.approx(sum(seconds))
    until = sum(seconds[: summary["rounds_to_target"]])
    assert summary["simulated_to_target"] == pytest.approx(until)
    assert "s, simulated" in text and f"device time {human_seconds(until)})" in text
