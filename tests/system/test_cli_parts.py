"""Codecs both ways, sub-models, partitions, test sets and churn from the command line."""

import runpy
from pathlib import Path

import pytest

from fedloom.algorithms import CFedAvg
from fedloom.compression.codecs import FedPAQ, Int8, TopK, make_codec
from fedloom.compression.error_feedback import EF21, Forget, Residual
from fedloom.compression.link import FieldCodec, Link
from fedloom.config import from_run, resolve
from fedloom.data import digits, iid, measure
from fedloom.report import group_runs, load_run, write_report
from fedloom.report.submodels import size_cells
from support.folders import record, rows, settings

SMALL = ("rounds=2", "local.epochs=1", "engine=serial", "evaluate.every=1")


# ------------------------------------------------------------------------------------------ codecs
TENTH = FieldCodec(TopK(ratio=0.1), Residual())
MEANT = {
    "compress=topk:0.1": Link(TENTH),
    "compress=topk:0.1,layer compress.feedback=ef21": Link(
        FieldCodec(TopK(ratio=0.1, scope="layer"), EF21())
    ),
    "compress=topk:0.1|int8:64": Link(FieldCodec(make_codec("topk:0.1|int8:64"), Residual())),
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
    file, text = tmp_path / "again.toml", config.to_toml()
    file.write_text(text)
    assert resolve(file).values["compress"] == chain
    both = '[compress]\nname = "topk"\nratio = 0.1\n[compress.down]\nname = "int8"\n'
    file.write_text(text.partition("[compress]")[0] + both)
    again = resolve(file).values["compress"]
    assert again["name"] == "topk" and again["feedback"] == "residual"
    assert again["down"] == {"name": "int8", "bucket": 512}


def test_a_run_with_everything_on_can_go_on(fedloom):
    fedloom(
        *("run", "digits", *SMALL, "algorithm=cfedavg", "algorithm.per_step=true"),
        *("algorithm.server_lr=3", "compress=topk:0.1|fp16", "compress.down=topk:0.2"),
        *("devices=lognormal", "devices.up=1e5", "local.seconds=0.5", "--out", "a"),
    )
    seconds, ledger = [row["simulated_seconds"] for row in rows("a")], record("a", "ledger")
    assert all(0.05 < s < 2 for s in seconds)
    assert ledger["simulated"] == pytest.approx(sum(seconds))
    assert 0 < ledger["up"]["delta"] < 0.15 * ledger["down"]["x"]
    config = settings("a")
    assert config["devices"]["up"] == 1e5 and config["compress"]["down"]["name"] == "topk"
    experiment = from_run("a").experiment()
    assert experiment.algorithm == CFedAvg(server_lr=3.0, per_step=True)
    fedloom("run", "--resume", "a", "rounds=3")
    assert len(rows("a")) == 3


def test_a_rounds_bytes_are_there_by_field(fedloom):
    fedloom("run", "digits", *SMALL, "algorithm=scaffold", "compress=topk:0.1", "--out", "a")
    ledger = record("a", "ledger")
    for way in ("up", "down"):
        for row in rows("a"):
            own = [n for k, n in row.items() if k.startswith(f"bytes_{way}.")]
            assert sum(own) == row[f"bytes_{way}"] > 0
        for field, count in ledger[way].items():
            assert sum(row[f"bytes_{way}.{field}"] for row in rows("a")) == count


def test_the_residual_is_what_the_server_lacks(fedloom):
    for feedback in ("residual", "ef21"):
        more = ("compress=topk:1", f"compress.feedback={feedback}", "--out", feedback)
        fedloom("run", "digits", *SMALL, *more)
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
    said = fedloom("run", "digits", *sizes, *SMALL[:2], "--out", "a").output
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


@pytest.mark.slow
def test_a_report_has_the_sizes(fedloom):
    sizes = ["submodel=greedy", "submodel.capacities=1/4,1"]
    fedloom("run", "digits", *sizes, *SMALL[:2], "--out", "a")
    page = write_report("a", "a/report.html").read_text()
    assert "Sub-models" in page and "size 1/4" in page and "FedAvg + Pruning-Greedy" in page
    heads, lines = size_cells(group_runs([load_run("a")]))
    assert heads == ["algorithm", "measured", "size 1/4", "size 1", "mean"]
    kinds = ["local", "global", "local, mean of last 10", "global, mean of last 10"]
    more = ["held, of all parameters", "time of a step", "memory of a step"]
    assert [line[1] for line in lines] == kinds + more
    curve = load_run("a").columns["test_accuracy@0.25"]
    assert lines[1][2] == f"{100 * curve[-1]:.2f} %"
    assert lines[3][2] == f"{50 * (curve[-1] + curve[-2]):.2f} %"
    assert lines[4][2:] == [f"{100 * (4810 // 4) / 4810:.2f} %", "100.00 %", "-"]


# -------------------------------------------------------------------------------------- partitions
def cells(result):
    """{name: value} of the table."""
    lines = [x.strip() for x in result.output.splitlines()[1:] if x.startswith("  ")]
    return {name.strip(): rest.strip() for name, _, rest in (x.partition("  ") for x in lines)}


def test_the_measures_of_a_partition_are_printed(fedloom):
    words = ["data.alpha=0.1", "tests=matched", "seed=4"]
    result = fedloom("data", "partition", "digits", *words)
    assert result.output.startswith("digits: dirichlet (alpha 0.1, clients 50), seed 4\n")
    about, shown = measure(resolve("digits", words).data()), cells(result)
    assert shown["clients"] == "50"
    assert shown["samples"] == "1,438, each held once"
    assert shown["samples per client"] == "28 to 29, median 29"
    assert shown["two clients, distance"].startswith(f"{about.labels.pairs:.3f} ")
    assert shown["training and test labels, distance"] == f"{about.tests.distance:.3f}"
    lines = result.output.splitlines()
    first = lines.index(next(x for x in lines if x.split()[:2] == ["client", "samples"]))
    assert lines[first].endswith("a bar for each class, 0 to 9")
    assert [len(x.split()[2]) for x in lines[first + 1 : first + 21]] == 20 * [10]
    assert "the others: --plot" in lines[first + 21]
    assert not list(Path().iterdir()), "nothing is written"


def test_a_partition_by_its_short_name_and_options(fedloom):
    show = lambda *words: cells(fedloom("data", "partition", *words))
    shown = show("partition=pathological", "partition.classes=2")
    assert shown["classes per client"] in ("2 of 10", "1 to 2, median 2 of 10")
    assert "held more than once" in shown["samples"]
    shown = show("partition=class_groups", "partition.groups=[[0,9],[1,2,3,4,5,6,7,8]]")
    assert shown["classes per client"] == "2 to 8, median 5 of 10"


def test_lists_are_saved_and_used_again(fedloom):
    saved = fedloom("data", "partition", "tests=matched", "--save", "new/split.npz")
    assert "partition=lists partition.file=new/split.npz" in saved.output
    lists = ("partition=lists", "partition.file=new/split.npz", "tests=matched", "seed=7")
    again = fedloom("data", "partition", *lists)
    one = {k: v for k, v in cells(saved).items() if not k.startswith("lists in")}
    assert one == cells(again)


@pytest.mark.slow
def test_a_picture_is_drawn(fedloom):
    result = fedloom("data", "partition", "digits", "--plot", "new/a.png")
    assert "picture in new/a.png" in result.output
    assert Path("new/a.png").read_bytes()[:4] == b"\x89PNG"


def test_clients_are_called_by_their_names(fedloom):
    pytest.importorskip("pandas", reason="the extra tables is not installed")
    lines = fedloom("data", "partition", "heart").stdout.splitlines()
    names = ["cleveland", "hungarian", "switzerland", "va"]
    assert [line.split()[0] for line in lines[-4:]] == names


def test_matched_test_sets_are_what_clients_are_measured_on(fedloom):
    fedloom("run", "tests=matched", "rounds=2", "--out", "a", "--quiet")
    assert settings("a")["data"]["tests"] == "matched"
    clients = record("a", "clients")
    assert clients["basis"] == "own test sets" and len(clients["values"]) == 50
    fedloom("run", "a/config.toml", "tests=none", "--out", "b", "--quiet")
    assert "tests" not in settings("b")["data"]


def test_a_changing_set_of_clients_is_set_by_its_keys(fedloom):
    words = ("run", "algorithm=scaffold", "churn.active=25", "churn.every=2", "cohort=5", "--quiet")
    for more, replaced in (("churn.forget=true", 0.5), ("churn.replace=none", "none")):
        fedloom(*words, more, "rounds=3", "--out", more)
        churn = {"active": 25, "every": 2, "replace": replaced, "forget": replaced != "none"}
        assert settings(more)["churn"] == churn
    fedloom("run", "--resume", "churn.forget=true", "rounds=4", "--quiet")
