"""From a command to a run directory, and from there to tables, reports and models."""

from __future__ import annotations

import json
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file

from fedloom import Experiment, load_runs
from fedloom.cli.__main__ import cli
from fedloom.cli.dry_run import measure
from fedloom.config import resolve
from fedloom.report import human_seconds
from fedloom.storage.run_directory import RunDirectory
from fedloom.storage.seal import seal
from tiny import Fedloom

SMALL = ("rounds=3", "local.epochs=1")


def summary(run: str | Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((Path(run) / "summary.json").read_text())
    return found


def weights(file: str | Path) -> dict[str, Any]:
    return {k: v.tolist() for k, v in load_file(file).items()}


# ----------------------------------------------------------------------------------- where runs go
@pytest.mark.slow
def test_baselines_stand_beside_a_run_and_the_same_command_goes_on(fedloom: Fedloom) -> None:
    line = ("run", "heart", "rounds=2", "evaluate.target=none", "--baselines", "--seeds", "2")
    output = fedloom(*line).output
    runs = sorted(Path("runs").iterdir())
    assert {"heart-fedavg-seed0", "heart-fedavg-alone-seed1"} <= {run.name for run in runs}
    labels = [summary(run)["label"] for run in runs]
    assert {name: labels.count(name) for name in labels} == {
        **dict.fromkeys(("FedAvg", "alone", "cyclic", "fine-tuned"), 2),
        **({"pooled": 2} if "pooled" in labels else {}),
    }
    assert "than alone at" in output
    again = fedloom(*line).output
    assert again.count("is finished") == len(runs) and sorted(Path("runs").iterdir()) == runs


def test_runs_are_named_after_what_they_are_and_numbered(fedloom: Fedloom) -> None:
    for end in ("", "-2", "-3"):
        wanted = f"runs/digits-fedacg-seed4{end}"
        output = fedloom("run", "algorithm=fedacg", "seed=4", *SMALL, "--quiet").output
        assert output.strip() == wanted, "quiet: nothing but the folder"
        assert summary(wanted)["finished"]
    lines = fedloom("list", "runs").output.splitlines()
    assert len(lines) == 1 + 3
    assert all("3 rounds" in line for line in lines[1:])
    with RunDirectory("runs/digits-fedacg-seed4").locked():
        lines = fedloom("list", "runs").output.splitlines()
    assert ["running now" in line for line in lines[1:]] == [True, False, False]


def test_a_name_becomes_a_folder_whatever_is_in_it(fedloom: Fedloom) -> None:
    fedloom("run", "name=../my run", *SMALL, "--quiet")
    assert Path("runs/my-run-fedavg-seed0/summary.json").exists()


@pytest.mark.slow
def test_the_same_command_with_seeds_goes_on(
    fedloom: Fedloom, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = ("run", *SMALL, "--seeds", 2, "--out", "both", "--quiet")
    unnamed = ("run", *SMALL, "--seeds", 2, "--quiet")
    rounds, calls = Experiment._rounds, []

    def stop(self: Experiment, *args: Any) -> Any:
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
    assert summary("both/seed1")["finished"]
    said = fedloom(*line, "local.lr=0.3", code=2).output
    assert "'both/seed0' exists" in said and "local.lr differs" in said
    assert "is finished" in fedloom(*line, "device=cpu", "label=mine").output
    longer = fedloom("run", "rounds=4", *SMALL[1:], *line[3:]).output
    assert "is finished" not in longer and summary("both/seed0")["rounds"] == 4
    assert "has 4 rounds already" in fedloom(*line, code=2).output
    assert summary("both/seed1")["target"] == 0.95
    fedloom("run", "rounds=4", *SMALL[1:], *line[3:], "evaluate.target=0.1")
    assert summary("both/seed1")["target"] == 0.1, "of a run that was finished too"
    # without --out the folders are found again, and left alone where they hold another run
    Path("runs/digits-fedavg-seed1").mkdir(parents=True)
    Path("runs/digits-fedavg-seed1/notes").touch()
    made = fedloom(*unnamed).output.split()
    assert made == ["runs/digits-fedavg-seed0", "runs/digits-fedavg-seed1-2"]
    again = fedloom(*unnamed).output
    assert all(f"'{folder}' is finished" in again for folder in made)
    assert sorted(p.name for p in Path("runs").iterdir()) == [
        "digits-fedavg-seed0",
        "digits-fedavg-seed1",
        "digits-fedavg-seed1-2",
    ]


def test_progress_counts_the_bytes_before_a_run_went_on(fedloom: Fedloom) -> None:
    def shown(text: str) -> list[str]:
        return [
            line.split("accuracy")[1].split()[1:3] for line in text.splitlines() if "/4 " in line
        ]

    whole = shown(fedloom("run", *SMALL[1:], "rounds=4", "--out", "a").output)
    fedloom("run", *SMALL, "rounds=3", "--out", "b")
    assert shown(fedloom("run", "--resume", "b", "rounds=4").output)[-1] == whole[-1]


def test_seeds_are_one_group(fedloom: Fedloom) -> None:
    text = fedloom("run", *SMALL, "seed=3", "--seeds", 2, "--out", "both").output
    made = [summary(f"both/seed{k}") for k in (3, 4)]
    assert [s["seed"] for s in made] == [3, 4]
    assert made[0]["group"] == made[1]["group"]
    row = next(x for x in text.splitlines() if x.startswith("FedAvg  "))
    assert row.split()[1] == "2"


def test_the_command_line_and_python_give_the_same_bits(fedloom: Fedloom) -> None:
    fedloom("run", *SMALL, "--out", "a", "--quiet")
    result = resolve("digits", SMALL).experiment().run()
    ours = {k: v.tolist() for k, v in result.model.state_dict().items()}
    assert ours == weights("a/model.safetensors")
    last = summary("a")["last"]["value"]
    assert last == result.last


@pytest.mark.slow
@pytest.mark.usefixtures("pictures")
def test_a_run_leaves_pictures_and_a_report(fedloom: Fedloom) -> None:
    text = fedloom("run", *SMALL, "--out", "a").output
    assert "report in a/report.html" in text
    assert Path("a/pictures/accuracy_by_round.png").read_bytes()[:4] == b"\x89PNG"
    assert "data:image/png;base64," in Path("a/report.html").read_text()


# ------------------------------------------------------------------------------------- an estimate
def test_a_dry_run_writes_nothing_and_prints_the_configuration(fedloom: Fedloom) -> None:
    text = fedloom("run", "algorithm=scaffold", *SMALL, "--dry-run").output
    toml, _, estimate = text.partition("estimate of one run")
    assert tomllib.loads(toml) == resolve("digits", ["algorithm=scaffold", *SMALL]).values
    for word in ("cohort", "time", "memory", "disk", "traffic", "4,810 parameters"):
        assert word in estimate
    assert not any(Path().iterdir())


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold"])
@pytest.mark.parametrize("cohort", ["0.2", "[[0, 1], [2]]"])
def test_the_estimated_bytes_are_the_real_ones(algorithm: str, cohort: str, tmp_path: Path) -> None:
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


# ---------------------------------------------------------------------------- tables and reports
def test_compare_takes_runs_and_folders_of_runs(fedloom: Fedloom) -> None:
    fedloom("run", *SMALL, "--seeds", 2, "--out", "some", "--quiet")
    fedloom("run", *SMALL, "algorithm=fedacg", "--out", "one", "--quiet")
    table = fedloom("compare", "some", "one", "--target", 0.01, "--csv", "a/b.csv").output
    assert [line.split()[:2] for line in table.splitlines()[2:4]] == [
        ["FedAvg", "2"],
        ["FedACG", "1"],
    ]
    assert "rounds to 1 %" in table
    assert "Only one seed in common with FedAvg" in table
    for command in ("compare", "report"):
        said = fedloom(command, "one", "--target", 95, code=2).output
        assert "give 0.95 for 95 %" in said
    assert len(Path("a/b.csv").read_text().splitlines()) == 3
    differing = table[table.index("Settings that differ:") :]
    assert "algorithm.name" in differing and "algorithm.lam" in differing
    assert "Clients: 50 with 28 to 29 samples" in table
    rows = json.loads(fedloom("compare", "some", "one", "--target", 0.99, "--json", "-").output)
    assert [row["rounds_to_target"] for row in rows] == [None, None]
    assert [row["not_reached"] for row in rows] == [2, 1]
    assert [row["setting.algorithm.lam"] for row in rows] == [None, 0.85]
    latex = fedloom("compare", "some", "one", "--latex", "-").output
    assert latex.startswith("\\begin{tabular}") and "\nFedACG & " in latex
    latex = fedloom("compare", "some", "one", "--latex", "-", "--columns", "seeds,rounds").output
    assert "\nFedACG & 1 & 3 \\\\\n" in latex
    said = fedloom("compare", "some", "--columns", "acuracy", code=2).output
    assert "did you mean 'accuracy'" in said
    frame = load_runs(["some", "one"])
    assert len(frame) == 9 and set(frame["setting.algorithm.name"]) == {"fedavg", "fedacg"}
    assert "--against 'FedAcg'" in fedloom("compare", "some", "--against", "FedAcg", code=2).output
    assert fedloom("compare", "one", "--markdown").output.startswith("| algorithm | seeds |")


@pytest.mark.slow
def test_figures_for_a_paper(fedloom: Fedloom) -> None:
    fedloom("run", *SMALL, "--out", "runs/a", "--quiet")
    for more, said in (
        (["--figures", "f", "--format", "bmp"], "--format must be of png, svg, pdf, got 'bmp'"),
        (["--figures", "f", "--column", "90"], "--column must be in [1, 20] inches, got 90"),
        (["--format", "pdf"], "--format and --column are of --figures"),
    ):
        assert said in fedloom("report", "runs", *more, code=2).output
    files = fedloom("report", "runs", "--figures", "f", "--format", "svg").output.split()
    assert "f/accuracy_by_round.svg" in files and all(Path(file).is_file() for file in files)
    assert not Path("runs/a/report.html").exists(), "only with --out"


def test_a_run_with_devices_says_their_time(fedloom: Fedloom) -> None:
    more = ("devices=lognormal", "evaluate.target=0.01", "--out", "a")
    text = fedloom("run", *SMALL, *more).output
    rows = [json.loads(line) for line in Path("a/rounds.jsonl").read_text().splitlines()]
    seconds, found = [row["simulated_seconds"] for row in rows], summary("a")
    assert found["simulated_seconds"] == pytest.approx(sum(seconds))
    until = seconds[: found["rounds_to_target"]]
    assert found["simulated_to_target"] == pytest.approx(sum(until))
    for said in ("s, simulated", f"device time {human_seconds(sum(until))})"):
        assert said in text


def test_many_runs_go_on_one_after_another(fedloom: Fedloom) -> None:
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
    assert "3/3 runs/c: error: 'runs/c' holds a run of another configuration" in said
    assert "error: 1 of 3 runs could not go on" in said
    assert (summary("runs/a")["rounds"], summary("runs/b")["rounds"]) == (3, 5)
    fedloom("run", "--resume", "runs/a", "runs/b", "rounds=6", "--quiet")
    assert (summary("runs/a")["rounds"], summary("runs/b")["rounds"]) == (6, 6)


@pytest.mark.slow
def test_report_writes_one_page(fedloom: Fedloom) -> None:
    fedloom("run", *SMALL, "--seeds", 2, "--out", "some", "--quiet")
    assert fedloom("report", "some").output.strip() == "report.html"
    assert fedloom("report", "some/seed0", "--out", "x.html").output.strip() == "x.html"
    assert "<html" in Path("x.html").read_text()
    assert "FedAvg" in Path("report.html").read_text()


# ------------------------------------------------------------------------------------------- export


@pytest.mark.parametrize(("kind", "end"), [("safetensors", "safetensors"), ("state_dict", "pt")])
def test_weights_by_name_are_written_where_they_are_asked_for(
    kind: str, end: str, fedloom: Fedloom
) -> None:
    fedloom("run", *SMALL, "--out", "a", "--quiet")
    fedloom("export", "a")
    assert not [*Path("a/export").glob("*.safetensors")], "they are in model.pt2"
    want = load_file("a/model.safetensors")
    fedloom("export", "a", "--format", kind)
    file = f"a/export/weights.{end}"
    found = load_file(file) if end == "safetensors" else torch.load(file, weights_only=True)
    assert found.keys() == want.keys()
    assert all(torch.equal(found[name], want[name]) for name in want)


def test_the_newest_model_is_exported(fedloom: Fedloom) -> None:
    fedloom("run", *SMALL, "--out", "a", "--quiet")
    old = {name: Path("a", name).read_bytes() for name in ("model.safetensors", "summary.json")}
    fedloom("run", "--resume", "a", "rounds=5", "--quiet")
    newest = weights("a/model.safetensors")
    for name, content in old.items():  # as if the run had been stopped behind round 5 of more
        Path("a", name).write_bytes(content)
    seal(Path("a"), *old)
    assert "round 5" in fedloom("export", "a", "--format", "safetensors").output
    assert weights("a/export/weights.safetensors") == newest
    for name in old:
        Path("a", name).unlink()
    Path("folder").mkdir()
    fedloom("export", "a", "--out", "folder", "--format", "safetensors")
    assert weights("folder/weights.safetensors") == newest


def test_one_command_begins_goes_on_and_ends(fedloom, tmp_path):
    """As a job has to that is started again: --resume-if-begun, with --out or the usual folder."""
    command = ["run", "digits", "rounds=1", "data.clients=4", "--resume-if-begun"]
    fedloom(*command, "--out", "R")
    assert "'R' is finished" in fedloom(*command, "--out", "R").output
    fedloom(*command[:2], "rounds=2", *command[3:], "--out", "R")
    assert len((tmp_path / "R" / "rounds.jsonl").read_text().splitlines()) == 2
    other = fedloom(*command, "algorithm=scaffold", "--out", "R", code=2)
    assert "holds something else than this run (algorithm.name" in other.output
