"""A part of a user's own is named by its file, as any other part by its name."""

import json
import re
import shutil
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from fedloom import Experiment, FedAvg
from fedloom.config import resolve
from fedloom.core.own_parts import load
from fedloom.core.vector import rec
from fedloom.data import digits, iid
from fedloom.engines import shared_memory
from fedloom.errors import ConfigError
from fedloom.models import mlp
from fedloom.storage.identity import portable, run_digest
from fedloom_flower.folder import Folder
from fedloom_flower.sites import settings_of
from support.folders import parameters, record, rows, settings

SMALL = ("rounds=2", "local.epochs=1", "data.clients=6", "engine=serial", "evaluate.every=2")
OWN = ("algorithm=my_method.py:AdaptiveProx", "algorithm.mu=0.3")
SCORE = "metrics=my_metrics.py:tenth"
THEIRS = ("algorithm=fedprox", "algorithm.mu=0.3")
FILES = Path(__file__).parents[1] / "support" / "own_files"
METHOD, HELPER, PARTS, METRICS = (
    (FILES / f"{name}.py").read_text("utf-8")
    for name in ("my_method", "helper", "my_parts", "my_metrics")
)
MARKER = "from pathlib import Path\n\nPath('ran').touch()\n"  # it was run


@pytest.fixture
def here(fedloom):
    """The command line in a folder with the files of a user."""
    shutil.copytree(FILES, ".", dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    return fedloom


def run(fedloom, out, *words):
    """The parameters that a run comes to."""
    fedloom("run", *words, *SMALL, "--out", out, "--quiet")
    return parameters(out)


def move(folder, *names):
    Path(folder).mkdir()
    for name in names:
        Path(name).rename(Path(folder, name))


def code_of(run):
    return {Path(file).name for file in settings(run)["code"]}


# ------------------------------------------------------------------------------------- to be named
@pytest.mark.slow
def test_a_method_of_ones_own_runs_as_one_of_fedlooms(here):
    assert run(here, "own", *OWN) == run(here, "theirs", *THEIRS)
    own = settings("own")
    assert own["label"] == "AdaptiveProx" and own["algorithm"]["mu"] == 0.3
    assert code_of("own") == {"my_method.py", "helper.py"}
    assert here("run", *OWN, *SMALL, "--quiet").output.strip() == "runs/digits-AdaptiveProx-seed0"


CUT = "submodel.capacities=[0.5, 1.0]"


@pytest.mark.parametrize(
    ("own", "theirs"),
    [
        (["aggregation=my_parts.py:Middle"], ["aggregation=median"]),
        (["data=my_parts.py:scans"], ["data=digits"]),
        (["submodel=my_parts.py:Cut", CUT], ["submodel=heterofl", CUT]),
        (["compress=topk:0.1|my_parts.py:Half"], ["compress=topk:0.1|fp16"]),
        (["compress=my_parts.py:Few|my_parts.py:Half"], ["compress=topk|fp16"]),
        (["compress.down=topk:0.5|my_parts.py:Half"], ["compress.down=topk:0.5|fp16"]),
    ],
    ids=lambda words: words[0],
)
def test_any_part_and_any_stage_of_a_codec_may_be_ones_own(here, own, theirs):
    end = run(here, "own", *own)
    assert end == run(here, "theirs", *theirs)
    assert (end == run(here, "plain")) == own[0].startswith("data")
    assert code_of("own") == {"my_parts.py"} and str(Path.cwd()) not in settings("own")["label"]


@pytest.mark.parametrize(
    "words",
    [pytest.param(OWN, marks=pytest.mark.slow), ("compress=topk:0.1|my_parts.py:Half",), (SCORE,)],
    ids=["a method", "a codec", "a metric"],
)
def test_a_file_of_settings_names_a_part_as_seen_from_its_own_folder(here, words):
    """And a run's own settings are such a file."""
    end = run(here, "line", *words)
    text = Path("line/config.toml").read_text()
    move("study", *(file.name for file in FILES.glob("*.py")))
    Path("study/my.toml").write_text(text.replace(f"{Path.cwd()}/", ""))
    here("run", "study/my.toml", "--out", "file", "--quiet")
    assert parameters("file") == end
    assert run_digest(settings("file")) == run_digest(settings("line"))


@pytest.mark.slow
def test_a_run_is_named_by_what_makes_its_method(here):
    """Its folder has the codec and the loss in its name, and a sweep's what all its runs share."""
    parts = ("compress=topk:0.1|my_parts.py:Half", "objective=my_parts.py:focal")
    folder = here("run", *parts, *SMALL, "--quiet").output.strip()
    assert folder == "runs/digits-fedavg-focal-topk-0.1-Half-seed0"
    here("sweep", "digits", "local.lr=0.1,0.2", "compress=topk:0.1", *SMALL)
    assert Path("runs/sweep-digits-topk").is_dir()


def test_own_data_model_loss_and_choice_together(here):
    parts = ("data=hospital", "model=Net", "objective=focal", "choose=First")
    words = [word.replace("=", "=my_parts.py:") for word in parts]
    words += [w for w in SMALL if not w.startswith("data.")]
    here("run", *words, "data.size=9", "model.hidden=5", "cohort=2", "--out", "own")
    own = settings("own")
    assert own["data"] == {"name": str(Path("my_parts.py").absolute()) + ":hospital", "size": 9}
    assert own["label"] == "FedAvg + focal" and own["model"]["hidden"] == 5
    assert load_file("own/model.safetensors")["a.weight"].shape == (5, 64)
    assert [row["clients"] for row in rows("own")] == [[0, 1], [0, 1]]
    said = here("run", *words, "data.partition=iid", code=2).output
    assert "data.partition goes with data that are divided here" in said


def test_worker_processes_get_it_by_value(here, monkeypatch):
    methods, metrics, board = load("my_method.py"), load("my_metrics.py"), shared_memory.Board()
    post = board.post((methods.AdaptiveProx(mu=0.5), metrics.tenth))
    for name in (methods.__name__, metrics.__name__, "helper"):  # what a worker process has not
        monkeypatch.delitem(sys.modules, name)
    method, metric = shared_memory.load(post)
    board.close()
    one = torch.ones(1)
    assert metric(torch.eye(2), torch.tensor([0, 0])).tolist() == [pytest.approx(1.1), 0.0]
    assert float(method.direction(3 * one, None, rec(x=one), None, lambda x: x, None)[0]) == 4.0


def test_files_of_one_name_do_not_meet(here):
    one = run(here, "one", *OWN)
    for factor, folder in ((1, "a"), (3, "b")):
        Path(folder).mkdir()
        Path(folder, "my_method.py").write_text(METHOD)
        Path(folder, "helper.py").write_text(HELPER.replace("return mu", f"return {factor} * mu"))
    ends = [
        run(here, out, f"algorithm={folder}/my_method.py:AdaptiveProx", OWN[1])
        for out, folder in (("a/run", "a"), ("b/run", "b"), ("c", "a"))
    ]
    assert [end == one for end in ends] == [True, False, True]


# ------------------------------------------------------------------------ seeds, sweeps, comparing
def test_seeds_versions_and_places_of_a_file_are_told_apart(here):
    words = ("run", OWN[0], *SMALL, "--seeds", "2", "--quiet")
    here(*words)
    assert "is finished" in here(*words).output
    Path("helper.py").write_text(HELPER.replace("return mu", "return 9 * mu"))
    here(*words)
    runs = sorted(path.name for path in Path("runs").iterdir())
    assert runs == [f"digits-AdaptiveProx-seed{s}{e}" for s in (0, 1) for e in ("", "-2")]
    said = here("run", "--resume", f"runs/{runs[0]}", "rounds=3", code=1).output
    assert f"helper.py' has changed since 'runs/{runs[0]}' began" in said
    table = here("compare", "runs").output
    assert "code.helper.py" in table and str(Path.cwd()) not in table
    seeds = lambda: [r["seeds"] for r in json.loads(here("compare", "runs", "--json", "-").output)]
    assert seeds() == [2, 2]
    move("elsewhere", "my_method.py", "helper.py")  # the same method
    here("run", "algorithm=elsewhere/my_method.py:AdaptiveProx", *SMALL, "seed=2", "--quiet")
    assert seeds() == [2, 3]


def test_a_sweep_tries_it_beside_others_and_metrics_are_no_choice(here):
    words = ("algorithm=fedavg,my_method.py:AdaptiveProx", "local.lr=0.1", *SMALL)
    said = here("sweep", "digits", *words, f"{SCORE},accuracy", "--out", "s").output
    assert "AdaptiveProx" in said and "tenth" in said
    (own,) = Path("s").glob("algorithm=my_method.py-AdaptiveProx-seed0-*")
    assert "test_accuracy" in rows(own)[-1]


def test_a_papers_table_has_a_row_of_ones_own(here):
    words = ("paper", "fedsmoo:8", "--scale", "smoke", "--rows")
    table = here(*words, "fedavg,my_method.py:AdaptiveProx", "--csv", "--out", "p").output
    labels = [line.split(",") for line in table.splitlines()]
    assert [sum(name in line for line in labels) for name in ("AdaptiveProx", "FedAvg")] == [1, 1]
    runs = [settings(path.parent)["label"] for path in Path("p/smoke").glob("*/config.toml")]
    assert sorted(runs) == ["AdaptiveProx", "FedAvg"]
    said = here(*words, "my_method.py:Adaptiv", "--dry-run", code=2).output
    assert "did you mean 'AdaptiveProx'?" in said


# ------------------------------------------------------------------------------------- to go on
@pytest.mark.slow
def test_resume_names_the_file_and_refuses_a_changed_one(here):
    run(here, "one", *OWN)
    said = here("run", "--resume", "one", "rounds=3", "--quiet").output
    assert f"'one' uses my_method.py:AdaptiveProx: the code of '{Path.cwd()}/my_method.py'" in said
    here("run", *OWN, *SMALL, "rounds=3", "--out", "whole", "--quiet", code=2)  # two values
    here("run", *OWN, *SMALL[1:], "rounds=3", "--out", "whole", "--quiet")
    assert parameters("one") == parameters("whole")
    Path("helper.py").write_text(MARKER + HELPER)
    said = here("run", "--resume", "one", "rounds=4", code=1).output
    assert "helper.py' has changed since 'one' began" in said and "--changed-code" in said
    assert not Path("ran").exists(), "what changed was not run to see that"
    here("run", "--resume", "one", "rounds=4", "--changed-code", "--quiet")
    assert ", then " in settings("one")["code"][str(Path("helper.py").absolute())]
    here("run", "--resume", "one", "rounds=5", "--quiet")
    assert Path("ran").exists()
    Path("my_method.py").unlink()
    assert "does not exist" in here("run", "--resume", "one", "rounds=6", code=2).output


@pytest.mark.parametrize("words", [(), ("--capacity", "0.5")], ids=["whole", "a size"])
def test_an_export_says_once_that_it_runs_the_file(words, here):
    run(here, "one", *OWN, *(("submodel=fiarse", CUT) if words else ()))
    said = here("export", "one", *words).output
    assert said.count("'one' uses my_method.py:AdaptiveProx: the code of ") == 1, said
    assert "checked: on " in said


def test_settings_made_before_a_file_changed_are_not_run(here):
    before = resolve("digits", [*OWN, *SMALL])
    before.experiment()
    Path("helper.py").write_text(HELPER + "# another\n")
    resolve("digits", [*OWN, *SMALL]).experiment()
    with pytest.raises(ConfigError, match="has changed since these settings were made"):
        before.experiment()


# --------------------------------------------------------------------------------------- safety
@pytest.mark.slow
def test_looking_at_a_folder_runs_no_code(here):
    run(here, "runs/bad", OWN[0], "compress=my_parts.py:Half")
    Path("other.py").write_text(MARKER + METHOD.replace("from __future__", "# from"))
    file = Path("runs/bad/config.toml")
    file.write_text(re.sub(r"my_(method|parts)\.py:", "other.py:", file.read_text()))
    Path("runs/bad/manifest.json").unlink()  # as whoever altered it would
    assert "other.py:AdaptiveProx" in file.read_text()
    here("show", "runs/bad")
    here("list", "runs")
    here("compare", "runs/bad")
    here("report", "runs/bad", "--out", "page.html")
    # a run of the same name goes elsewhere, and does not run it to see what is there
    here("run", *SMALL, "name=bad", "--out", "runs/bad", "--resume-if-begun", code=2)
    said = here("run", "--resume", "runs/bad", "rounds=3", code=1).output
    assert "has changed since 'runs/bad' began" in said
    assert not Path("ran").exists()
    here("run", "--resume", "runs/bad", "rounds=3", "--changed-code", code=2)  # it has no Half
    assert Path("ran").exists()


def test_a_federation_loads_no_file_that_settings_name(here):
    Path("evil.py").write_text(MARKER + METHOD.replace("from __future__", "# from"))
    text = resolve("digits", ["data.clients=2"]).to_toml()
    Path("fed").mkdir()
    Path("fed/run.toml").write_text(text.replace('"fedavg"', '"../evil.py:AdaptiveProx"'))
    for client in (None, 0):  # a folder from elsewhere, and a node's
        with pytest.raises(ConfigError, match="a node runs no file because its server names it"):
            settings_of(Folder(Path("fed"), client))
    assert not Path("ran").exists()


# --------------------------------------------------------------------------------------- metrics
def test_a_metric_stands_in_rows_clients_report_and_compare(here):
    run(here, "one", f"{SCORE},accuracy,my_metrics.py:Share", "data.tests=matched")
    last, file = rows("one")[-1], str(Path("my_metrics.py").absolute())
    columns = ["test_tenth", "test_accuracy", "test_Share"]
    assert list(last)[list(last).index("test_loss") + 1 :][:3] == columns
    assert last["test_tenth"] == pytest.approx(1.1 * last["test_accuracy"], rel=1e-6)
    assert last["test_Share"] == pytest.approx(last["test_accuracy"])
    assert record("one", "clients")["metrics"].keys() >= {"accuracy", "Share"}
    assert settings("one")["metrics"] == [f"{file}:tenth", "accuracy", f"{file}:Share"]
    assert portable(settings("one"))["metrics"][0] == "my_metrics.py:tenth"
    assert code_of("one") == {"my_metrics.py", "helper.py"}
    here("run", "--resume", "one", "rounds=3", "--quiet")
    Path("my_metrics.py").write_text("1 / 0\n")  # reading the folder runs no code
    assert "tenth" in here("compare", "one").output and "tenth" in here("show", "one").output
    here("report", "one", "--out", "page.html")
    assert "Share" in Path("page.html").read_text()


def test_python_takes_the_same_names(here):
    parts = {"algorithm": FedAvg(), "model": lambda: mlp(64), "data": digits(iid(clients=4))}
    parts |= {"rounds": 1, "device": "cpu"}
    name = "my_metrics.py:tenth"
    for given in (name, [name, "accuracy"], {"tenth": name}):
        assert Experiment(**parts, metrics=given).run().history[-1]["test_tenth"] > 0
    with pytest.raises(ConfigError, match="has no 'tenths'; did you mean 'tenth'"):
        Experiment(**parts, metrics=f"{name}s")
    own = Experiment(**parts, compress="my_parts.py:Half", aggregation="my_parts.py:Middle")
    theirs = Experiment(**parts, compress="fp16", aggregation="median")
    assert own.run().state.x.tolist() == theirs.run().state.x.tolist()


def test_fedloom_check_says_how_a_metric_is_tried(here):
    said = here("check", "my_metrics.py:tenth", code=2).output
    assert "'tenth' is none of an Algorithm" in said and "has no part" not in said
    assert "--dry-run" in said and "--dry-run" in here("check", "my_metrics.py", code=2).output


# ------------------------------------------------------------------------------------- mistakes
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("algorithm=gone.py:Mine", "gone.py' does not exist; give a Python file"),
        ("algorithm=my_method.py", "it has AdaptiveProx, Needs"),
        ("algorithm=my_method.py:AdaptivProx", "did you mean 'AdaptiveProx'?"),
        ("algorithm=my_method.py:made", "is one already; give the name of a class"),
        ("algorithm=my_parts.py:Half", "'my_parts.py:Half' is no algorithm: the class does not"),
        ("algorithm=my_parts.py:torch", "is no class or function"),
        ("algorithm=my_method.py:Needs", "algorithm 'my_method.py:Needs' needs the key 'share'"),
        (
            "algorithm=my_method.py:Needs algorithm.share=-1",
            "command line: algorithm.share must be in [0, inf), got -1",
        ),
        ("algorithm=my_method.py:AdaptiveProx algorithm.nu=1", "no key 'nu'; did you mean 'mu'?"),
        ("algorithm=my_method.py:AdaptiveProx algorithm.mu=much", "[0, inf), got 'much'"),
        ("objective=my_parts.py:foca", "did you mean 'focal'?"),
        (
            "objective=my_parts.py:alone",
            "objective 'alone' is called with (outputs, targets), and cannot take them: too many",
        ),
        ("compress=topk:0.1|my_parts.py:Hal", "did you mean 'Half'?"),
        ("compress=my_parts.py:Few:0.1", "options of your own codec are keys, compress.ratio=0.1"),
        ("attack=my_parts.py:Half", "unknown attack 'my_parts.py:Half'"),
        ("algorithm=bad.py:A", "bad.py' cannot be imported, line 3: ZeroDivisionError: division"),
        ("algorithm=worse.py:A", "worse.py' cannot be imported, line 2: SyntaxError: "),
        ("algorithm=relative.py:A", "is loaded by itself: write `from package.module import ...`"),
        ("data=my_parts.py:broken", "'my_parts.py:broken' failed, line {ward}: KeyError: 'ward'"),
        ("data=my_parts.py:nothing", "gives a int, and must give a FederatedData"),
        ("metrics=my_metrics.py", "needs the name of a part in it, FILE.py:NAME; it has Asks"),
        ("metrics=gone.py:tenth", "command line: metrics: '{here}/gone.py' does not exist"),
        ("metrics=my_metrics.py:number", "is of the type int; give a function f(outputs, targets)"),
        ("metrics=my_metrics.py:one", "is called with (outputs, targets), and cannot take them"),
        ("metrics=my_metrics.py:Asks", "failed: TypeError: Asks.__init__() missing 1"),
        ("metrics=my_metrics.py:few", "metric 'few' gave shape [2] for a batch of"),
        ("metrics=my_metrics.py:tenth,aucc", "nor torchmetrics has a metric 'aucc'"),
        ("metrics=my_metrics.py:unsaid", "nothing says whether the metric 'unsaid' is better"),
        ("metrics=my_metrics.py:tenth,my_metrics.py:tenth", "have one name"),
        ("metrics=my_metrics.py:fails", "metric 'fails': KeyError (my_metrics.py, line {row}): 'r"),
    ],
)
def test_a_mistake_is_one_line(here, words, said):
    Path("bad.py").write_text("a = 1\n\nb = a / 0\n")
    Path("worse.py").write_text("a = 1\nb = (\n")
    Path("relative.py").write_text("from .beside import A\n")
    few = [w for w in SMALL if not (w.startswith("data.") and words.startswith("data="))]
    line_of = lambda text, word: text[: text.index(word)].count("\n") + 1
    places = {"ward": line_of(PARTS, '"ward"'), "row": line_of(METRICS, '"row"')}
    begins = words.endswith("fails")  # what fails later is no mistake that is seen before
    output = here("run", *words.split(), *few, code=1 if begins else 2).output
    assert said.format(here=Path.cwd(), **places) in output
    assert begins or not Path("runs").exists() or not list(Path("runs").iterdir())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("run digits algorithm=my_method", "your own is FILE.py:NAME, algorithm=my_file.p"),
        ("run digits my_method.py:Mine", "expected key=value, as in algorithm=my_method.py"),
        ("run my_method.py:Mine", "give a recipe or a TOML file too, as in digits algorithm=my"),
        ("show my_method.py:Mine", "show runs no file; `fedloom check my_method.py:Mine` tries"),
    ],
)
def test_a_name_in_the_wrong_place_says_the_right_one(here, words, said):
    output = here(*words.split(), code=2).output
    assert said in output and len(output.splitlines()) == 1
