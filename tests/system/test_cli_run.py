"""From a command to a run directory, of any parts, and from there to tables and reports."""

import re
import runpy
import shutil
import tomllib
from pathlib import Path

import pytest

from fedloom import load_runs
from fedloom.algorithms import CFedAvg
from fedloom.cli.dry_run import measure
from fedloom.compression.codecs import FedPAQ, Int8, TopK, make_codec
from fedloom.compression.error_feedback import EF21, Forget, Residual
from fedloom.compression.link import FieldCodec, Link
from fedloom.config import from_run, resolve
from fedloom.data import digits, iid
from fedloom.report import human_seconds
from fedloom.storage.run_directory import RunDirectory
from support.folders import parameters, record, rows, settings
from support.schema import check

SMALL = ("rounds=3", "local.epochs=1")
SERIAL = ("rounds=2", "local.epochs=1", "engine=serial", "evaluate.every=1")


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
    listed = lambda: check("list", fedloom("list", "runs", "--json").stdout)["runs"]
    assert listed() == []
    for end in ("", "-2", "-3"):
        folder = f"runs/digits-fedacg-seed4{end}"
        output = fedloom("run", "algorithm=fedacg", "seed=4", *SMALL, "--quiet").output
        assert output.strip() == folder, "quiet: nothing but the folder"
        assert record(folder)["finished"]
    fedloom("run", "name=../my run", *SMALL, "--quiet")
    assert Path("runs/my-run-fedavg-seed0/summary.json").exists(), "a name is no path"
    lines = fedloom("list", "runs").output.splitlines()
    assert len(lines) == 1 + 4 and all("3 rounds" in line for line in lines[1:])
    first = "runs/digits-fedacg-seed4"
    with RunDirectory(first).locked():
        lines = fedloom("list", "runs").output.splitlines()
        assert ["running now" in line for line in lines[1:]] == [True, False, False, False]
        assert [one["running"] for one in listed()] == [True, False, False, False]
    one = listed()[0]
    assert (one["folder"], one["rounds"], one["planned"], one["finished"]) == (first, 3, 3, True)
    assert one["value"] == rows(first)[-1]["test_accuracy"]
    Path(first, "config.toml").write_text("=")
    assert "config.toml" in listed()[0]["damaged"]


@pytest.mark.slow
def test_the_same_command_with_seeds_goes_on(fedloom, stopped):
    line = ("run", *SMALL, "--seeds", "2", "--out", "both", "--quiet")
    unnamed = ("run", *SMALL, "--seeds", "2", "--quiet")
    end = stopped(2, KeyboardInterrupt, *line)
    assert end.exit_code == 130 and "fedloom run --resume both/seed1" in end.output
    first = Path("both/seed0/summary.json").stat().st_mtime_ns
    assert "'both/seed0' is finished" in fedloom(*line).output
    assert Path("both/seed0/summary.json").stat().st_mtime_ns == first
    assert record("both/seed1")["finished"]
    said = fedloom(*line, "local.lr=0.3", code=2).output
    assert "'both/seed0' exists" in said and "local.lr differs" in said
    assert "is finished" in fedloom(*line, "device=cpu", "label=mine").output
    longer = ("run", "rounds=4", *line[2:])
    assert "is finished" not in fedloom(*longer).output and record("both/seed0")["rounds"] == 4
    assert "has 4 rounds already" in fedloom(*line, code=2).output
    assert record("both/seed1")["target"] == 0.95
    fedloom(*longer, "evaluate.target=0.1")
    assert record("both/seed1")["target"] == 0.1, "of a run that was finished too"
    # without --out the folders are found again, and left alone where they hold another run
    Path("runs/digits-fedavg-seed1").mkdir(parents=True)
    Path("runs/digits-fedavg-seed1/notes").touch()
    folders = fedloom(*unnamed).output.split()
    assert folders == ["runs/digits-fedavg-seed0", "runs/digits-fedavg-seed1-2"]
    again = fedloom(*unnamed).output
    assert all(f"'{folder}' is finished" in again for folder in folders)
    assert {str(p) for p in Path("runs").iterdir()} == {*folders, "runs/digits-fedavg-seed1"}


def test_the_command_line_and_python_give_the_same_bits(fedloom):
    fedloom("run", *SMALL, "--out", "a", "--quiet")
    result = resolve("digits", SMALL).experiment().run()
    ours = {k: v.tolist() for k, v in result.model.state_dict().items()}
    assert ours == parameters("a") and record("a")["last"]["value"] == result.last


@pytest.mark.slow
@pytest.mark.usefixtures("pictures")
def test_a_run_leaves_pictures_and_a_report_which_can_be_made_again(fedloom):
    text = fedloom("run", *SMALL, "devices=levels", "--out", "a").output
    assert "report in a/report.html" in text
    assert Path("a/pictures/accuracy_by_round.png").read_bytes()[:4] == b"\x89PNG"
    page = Path("a/report.html").read_text()
    assert "data:image/png;base64," in page and "simulated time" in page
    assert Path("a/pictures/accuracy_by_simulated.png").exists()
    fedloom("run", *SMALL, "--out", "b")
    assert not Path("b/pictures/accuracy_by_simulated.png").exists(), "without devices"
    files = fedloom("report", "a", "b", "--figures", "f", "--format", "svg").output.split()
    assert "f/accuracy_by_round.svg" in files and all(Path(file).is_file() for file in files)
    assert not Path("report.html").exists(), "only with --out"
    for words, file in ((("a", "b"), "report.html"), (("a", "--out", "x.html"), "x.html")):
        assert fedloom("report", *words).output.strip() == file
        assert "<html" in Path(file).read_text()


# ---------------------------------------------------------------------------------------- going on
def test_one_command_begins_goes_on_and_ends(fedloom):
    """As a job has to that is started again: --resume-if-begun, with --out or the usual folder."""
    line = ("run", "digits", "data.clients=4", "--resume-if-begun", "--out", "R")
    fedloom(*line, "rounds=1")
    assert "'R' is finished" in fedloom(*line, "rounds=1").output
    fedloom(*line, "rounds=2")
    assert len(rows("R")) == 2
    said = fedloom(*line, "rounds=1", "algorithm=scaffold", code=2).output
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


# ------------------------------------------------------------------------------------------ codecs
LAYERS = FieldCodec(TopK(ratio=0.1, scope="layer"), EF21())
TENTH, CHAIN = (FieldCodec(make_codec(c), Residual()) for c in ("topk:0.1", "topk:0.1|int8:64"))
MEANT = {
    "compress=topk:0.1": Link(TENTH),
    "compress=topk:0.1,layer compress.feedback=ef21": Link(LAYERS),
    "compress=topk:0.1|int8:64": Link(CHAIN),
    "compress=fedpaq": Link(FieldCodec(FedPAQ(), Forget())),
    "compress.down=int8": Link({}, Int8()),
    "compress=topk:0.1 compress.down=topk:0.5|fp16": Link(TENTH, make_codec("topk:0.5|fp16")),
    "compress.down=int8 compress=topk:0.1 compress.down.bucket=64": Link(TENTH, Int8(bucket=64)),
    "compress=none": None,
    "compress=none compress.down=int8": Link({}, Int8()),
    "compress.down=none": None,
}


@pytest.mark.parametrize("changes", MEANT)
def test_what_is_written_is_what_is_meant(changes):
    assert resolve("digits", changes.split()).experiment().compress == MEANT[changes]


def test_a_configuration_is_complete_and_says_the_same_again(tmp_path):
    config = resolve("digits", ["compress=topk:0.1|int8", "compress.down=qsgd:31"])
    qsgd = {"name": "qsgd", "levels": 31, "bucket": 512, "scope": "global", "shrink": False}
    chain = {"name": "chain", "of": "topk:0.1|int8", "feedback": "residual", "down": qsgd}
    assert config.values["compress"] == chain
    (tmp_path / "again.toml").write_text(config.to_toml())
    assert resolve(tmp_path / "again.toml").values["compress"] == chain


def test_a_run_with_everything_on_can_go_on_and_says_what_it_took(fedloom):
    words = "algorithm=cfedavg algorithm.per_step=true algorithm.server_lr=3 local.seconds=0.5"
    words += " compress=topk:0.1|fp16 compress.down=topk:0.2 devices=lognormal devices.up=1e5"
    text = fedloom(
        "run", "digits", *SERIAL, *words.split(), "evaluate.target=0.01", "--out", "a"
    ).output
    seconds, ledger = [row["simulated_seconds"] for row in rows("a")], record("a", "ledger")
    assert all(0.05 < s < 2 for s in seconds)
    assert ledger["simulated"] == pytest.approx(sum(seconds))
    assert 0 < ledger["up"]["delta"] < 0.15 * ledger["down"]["x"]
    for way in ("up", "down"):
        for row in rows("a"):
            own = [n for k, n in row.items() if k.startswith(f"bytes_{way}.")]
            assert sum(own) == row[f"bytes_{way}"] > 0
        for field, count in ledger[way].items():
            assert sum(row[f"bytes_{way}.{field}"] for row in rows("a")) == count
    summary = record("a")
    until = sum(seconds[: summary["rounds_to_target"]])
    assert summary["simulated_to_target"] == pytest.approx(until)
    assert summary["simulated_seconds"] == pytest.approx(sum(seconds))
    assert "s, simulated" in text and f"device time {human_seconds(until)})" in text
    config = settings("a")
    assert config["devices"]["up"] == 1e5 and config["compress"]["down"]["name"] == "topk"
    experiment = from_run("a").experiment()
    assert experiment.algorithm == CFedAvg(server_lr=3.0, per_step=True)
    fedloom("run", "--resume", "a", "rounds=3")
    assert len(rows("a")) == 3


def test_the_residual_is_what_the_server_lacks(fedloom):
    for feedback in ("residual", "ef21"):
        more = ("compress=topk:1", f"compress.feedback={feedback}", "--out", feedback)
        fedloom("run", "digits", *SERIAL, *more)
        assert all(row["delta_square"] > 1e-4 for row in rows(feedback))
        assert all(row["residual_square"] < 1e-12 for row in rows(feedback)), "all has been sent"


def test_an_answer_that_no_codec_takes_is_not_billed(fedloom):
    wild = ("run", "digits", "local.lr=1e30", "nonfinite=skip", "rounds=1", "engine=serial")
    fedloom(*wild, "compress=topk:0.1", "--out", "coded")
    fedloom(*wild, "--out", "dense")
    ((coded,), (dense,)) = rows("coded"), rows("dense")
    assert coded["answered"] == dense["answered"] == 0
    assert coded["bytes_up"] == 0 < dense["bytes_up"]


# -------------------------------------------------------------------------------------- sub-models
TRAINED = [pytest.param(rule, "0.25", marks=pytest.mark.slow) for rule in ("heterofl", "fiarse")]
UNSEEN = [(rule, "0.05") for rule in ("heterofl", "fedrolex", "fjord", "fiarse")]


@pytest.mark.parametrize(("rule", "size"), [*UNSEEN, *TRAINED])
def test_a_size_is_cut_out_and_computes_what_was_evaluated(rule, size, fedloom):
    sizes = [f"submodel={rule}", "submodel.capacities=1/4,1", "evaluate.sizes=['1/20']"]
    said = fedloom("run", "digits", *sizes, *SERIAL[:2], "--out", "a").output
    summary, data = record("a")["sizes"], digits(iid(2))
    line = next(line for line in said.splitlines() if line.startswith("  size 1/4"))
    assert f"{100 * summary['global']['0.25']:.2f} % global" in line
    assert f"holds {summary['held']['0.25']['all']:,} of 4,810 parameters" in line
    (unseen,) = summary["unseen"]
    assert (unseen["capacity"], unseen["trained"]) == (0.05, False)
    value = unseen["global"] if size == "0.05" else summary["global"][size]
    said = fedloom("export", "a", "--capacity", size).output
    assert f"at capacity {size}" in said
    assert "checked: on 359 raw test rows" in said
    module = runpy.run_path(f"a/export-{size}/predict.py")["load"]()
    right = (module(data.test_inputs).argmax(1) == data.test_targets).double().mean()
    assert value == pytest.approx(float(right))
    numbers = sum(p.numel() for p in module.parameters())
    assert (rule == "fiarse") == (numbers == 4810)
    if rule == "fiarse":
        held = sum(int(p.count_nonzero()) for p in module.parameters())
        assert held == int(float(size) * 4810)


def test_only_a_run_with_sub_models_is_cut(fedloom, a):
    assert "trained whole models" in fedloom("export", a, "--capacity", "0.5", code=2).output
    assert "must be in (0, 1]" in fedloom("export", a, "--capacity", "5", code=2).output


# ---------------------------------------------------------------------------- tables and reports
def test_compare_takes_runs_and_folders_of_runs(fedloom):
    text = fedloom("run", *SMALL, "seed=3", "--seeds", 2, "--out", "some").output
    one, other = (record(f"some/seed{k}") for k in (3, 4))
    assert (one["seed"], other["seed"]) == (3, 4) and one["group"] == other["group"]
    assert next(x for x in text.splitlines() if x.startswith("FedAvg  ")).split()[1] == "2"
    fedloom("run", *SMALL, "seed=3", "algorithm=fedacg", "--out", "one", "--quiet")
    both = ("compare", "some", "one")
    table = fedloom(*both, "--target", 0.01, "--csv", "a/b.csv").output
    first = [line.split()[:2] for line in table.splitlines()[2:4]]
    assert first == [["FedAvg", "2"], ["FedACG", "1"]]
    assert "rounds to 1 %" in table and "Only one seed in common with FedAvg" in table
    assert "Clients: 50 with 28 to 29 samples" in table
    assert len(Path("a/b.csv").read_text().splitlines()) == 3
    differing = table[table.index("Settings that differ:") :]
    assert "algorithm.name" in differing and "algorithm.lam" in differing
    plain, acg = check("compare", fedloom(*both, "--target", 0.99, "--json", "-").stdout)
    assert plain["rounds_to_target"] is acg["rounds_to_target"] is None
    assert (plain["not_reached"], acg["not_reached"]) == (2, 1)
    assert (plain["setting.algorithm.lam"], acg["setting.algorithm.lam"]) == (None, 0.85)
    assert acg["against"] == "FedAvg" and plain["difference"] is None
    text = fedloom(*both, "--latex", "-").output
    assert text.startswith("\\begin{tabular}") and "\nFedACG & " in text
    text = fedloom(*both, "--latex", "-", "--columns", "seeds,rounds").output
    assert "\nFedACG & 1 & 3 \\\\\n" in text
    frame = load_runs(["some", "one"])
    assert len(frame) == 9 and set(frame["setting.algorithm.name"]) == {"fedavg", "fedacg"}
    assert fedloom("compare", "one", "--markdown").output.startswith("| algorithm | seeds |")
    for words, said in (
        ("compare one --target 95", "give 0.95 for 95 %"),
        ("report one --target 95", "give 0.95 for 95 %"),
        ("compare some --columns acuracy", "did you mean 'accuracy'"),
        ("compare some --against FedAcg", "--against 'FedAcg'"),
        ("report one --figures f --format bmp", "--format must be of png, svg, pdf, got 'bmp'"),
        ("report one --format pdf", "--format is of --figures"),
    ):
        assert said in fedloom(*words.split(), code=2).output
