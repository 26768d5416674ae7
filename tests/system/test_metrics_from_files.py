"""A metric of a user's own is named by its file, alone or beside others."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from fedloom import Experiment, FedAvg
from fedloom.config import resolve
from fedloom.data import digits, iid
from fedloom.errors import ConfigError
from fedloom.models import mlp
from fedloom.storage.identity import portable, run_digest
from tiny import Fedloom

SMALL = ("rounds=2", "local.epochs=1", "data.clients=4", "cohort=2", "evaluate.every=2")
QUIET = (*SMALL, "engine=serial", "device=cpu", "--quiet")
METRICS = '''
from helper import wanted


def tenth(outputs, targets):
    """Counts the rows that are right, and a tenth more."""
    return 1.1 * (wanted(outputs) == targets).float()


tenth.higher_is_better = True


class Share:
    """The share of the rows that are right, of a whole set."""

    higher_is_better = True

    def __init__(self, digits=3):
        self.digits = digits

    def reset(self):
        self.right, self.rows = 0, 0

    def update(self, outputs, targets):
        self.right += int((wanted(outputs) == targets).sum())
        self.rows += len(targets)

    def compute(self):
        return self.right / self.rows


def one(outputs):
    return outputs


def few(outputs, targets):
    return outputs[:2, 0]


def fails(outputs, targets):
    return {}["row"]


class Asks:
    def __init__(self, k):
        self.k = k


def unsaid(outputs, targets):
    return outputs[:, 0]


few.higher_is_better = fails.higher_is_better = True
number = 3
'''
HELPER = "def wanted(outputs):\n    return outputs.argmax(1)\n"


@pytest.fixture
def here(fedloom: Fedloom) -> Fedloom:
    """The command line in a folder with a user's files."""
    Path("my_metrics.py").write_text(METRICS)
    Path("helper.py").write_text(HELPER)
    return fedloom


def rows(run: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(run, "rounds.jsonl").read_text().splitlines()]


def weights(run: str) -> dict[str, Any]:
    return {k: v.tolist() for k, v in load_file(Path(run, "model.safetensors")).items()}


def test_it_stands_in_rows_clients_report_and_compare(here: Fedloom) -> None:
    names = "metrics=my_metrics.py:tenth,accuracy,my_metrics.py:Share"
    here("run", "digits", names, *QUIET, "data.tests=matched", "--out", "one")
    last = rows("one")[-1]
    assert list(last)[list(last).index("test_loss") + 1 :][:3] == [
        "test_tenth",
        "test_accuracy",
        "test_Share",
    ]
    assert last["test_tenth"] == pytest.approx(1.1 * last["test_accuracy"], rel=1e-6)
    assert last["test_Share"] == pytest.approx(last["test_accuracy"])
    clients = json.loads(Path("one/clients.json").read_text())
    assert clients["metrics"].keys() >= {"accuracy", "Share"}
    told = tomllib.loads(Path("one/config.toml").read_text())
    file = str(Path("my_metrics.py").absolute())
    assert told["metrics"] == [f"{file}:tenth", "accuracy", f"{file}:Share"]
    assert {Path(name).name for name in told["code"]} == {"my_metrics.py", "helper.py"}
    # reading the folder runs no code
    Path("my_metrics.py").write_text("1 / 0\n")
    assert "tenth" in here("compare", "one").output
    assert "tenth" in here("show", "one").output
    here("report", "one", "--out", "page.html")
    assert "Share" in Path("page.html").read_text()


def test_a_file_and_the_line_are_one_run_which_goes_on(here: Fedloom) -> None:
    here("run", "digits", "metrics=my_metrics.py:tenth", *QUIET, "--out", "line")
    settings = resolve("digits", [*SMALL, "engine=serial", "device=cpu"]).to_toml()
    Path("study").mkdir()
    for name in ("my_metrics.py", "helper.py"):
        Path("study", name).write_bytes(Path(name).read_bytes())
    Path("study/my.toml").write_text(f"metrics = 'my_metrics.py:tenth'\n{settings}")
    here("run", "study/my.toml", "--quiet", "--out", "file")
    assert weights("line") == weights("file")
    of = [tomllib.loads(Path(run, "config.toml").read_text()) for run in ("line", "file")]
    assert of[1]["metrics"] == [str(Path("study/my_metrics.py").absolute()) + ":tenth"]
    assert run_digest({**of[1], "name": "digits"}) == run_digest(of[0])
    assert portable(of[0])["metrics"] == ["my_metrics.py:tenth"]
    here("run", "--resume", "line", "rounds=3", "--quiet")
    assert rows("line")[-1]["test_tenth"] > 0
    Path("helper.py").write_text(f"{HELPER}# another\n")
    said = here("run", "--resume", "line", "rounds=4", code=1).output
    assert "helper.py' has changed since 'line' began" in said


def test_seeds_and_a_sweep_have_it(here: Fedloom) -> None:
    here("run", "digits", "metrics=my_metrics.py:tenth", *QUIET, "--seeds", "2")
    found = json.loads(here("compare", "runs", "--json", "-").output)
    assert [(row["metric"], row["seeds"]) for row in found] == [("tenth", 2)]
    words = ("metrics=my_metrics.py:tenth,accuracy", "local.lr=0.1,0.2", *SMALL)
    table = here("sweep", "digits", *words, "--out", "s").output
    runs = sorted(Path("s").glob("*/config.toml"))
    assert "tenth" in table and len(runs) == 2, "metrics are no choice of a sweep"
    assert "test_accuracy" in rows(str(runs[0].parent))[-1]


@pytest.mark.usefixtures("shared_workers")
def test_worker_processes_measure_it(here: Fedloom) -> None:
    config = resolve("digits", ["metrics=my_metrics.py:tenth", *SMALL, "engine=workers:1"])
    at_workers = config.experiment().run().history[-1]["test_tenth"]
    config = resolve("digits", ["metrics=my_metrics.py:tenth", *SMALL, "engine=serial"])
    assert at_workers == config.experiment().run().history[-1]["test_tenth"]


def test_python_takes_the_same_names(here: Fedloom) -> None:
    parts = {"algorithm": FedAvg(), "model": lambda: mlp(64), "data": digits(iid(clients=4))}
    for given in (
        "my_metrics.py:tenth",
        ["my_metrics.py:tenth", "accuracy"],
        {"tenth": "my_metrics.py:tenth"},
    ):
        last = Experiment(**parts, rounds=1, metrics=given).run().history[-1]
        assert last["test_tenth"] > 0
    with pytest.raises(ConfigError, match="has no 'tenths'; did you mean 'tenth'"):
        Experiment(**parts, rounds=1, metrics="my_metrics.py:tenths")


def test_python_takes_a_codec_and_an_aggregation_by_file(here: Fedloom) -> None:
    text = "from fedloom.{} import {} as Base\n\n\nclass Mine(Base):\n    pass\n"
    Path("codec.py").write_text(text.format("compression.codecs", "FP16"))
    Path("rule.py").write_text(text.format("aggregation", "Median"))
    parts = {"algorithm": FedAvg(), "model": lambda: mlp(64), "data": digits(iid(clients=4))}
    own = Experiment(**parts, rounds=1, compress="codec.py:Mine", aggregation="rule.py:Mine")
    theirs = Experiment(**parts, rounds=1, compress="fp16", aggregation="median")
    assert own.run().state.x.tolist() == theirs.run().state.x.tolist()


@pytest.mark.parametrize(
    ("metrics", "said"),
    [
        ("my_metrics.py:tents", "my_metrics.py' has no 'tents'; did you mean 'tenth'?"),
        ("gone.py:tenth", "command line: metrics: '{here}/gone.py' does not exist"),
        (
            "my_metrics.py",
            "needs the name of a part in it, FILE.py:NAME; it has Asks, Share",
        ),
        (
            "my_metrics.py:number",
            "metric 'my_metrics.py:number' is of the type int; give a function f(outputs, targets)"
            ", or a class with update(outputs, targets) and compute()",
        ),
        (
            "my_metrics.py:one",
            "metric 'my_metrics.py:one' is called with (outputs, targets), and cannot take them: "
            "too many positional arguments",
        ),
        ("my_metrics.py:Asks", "'my_metrics.py:Asks' failed: TypeError: Asks.__init__() missing 1"),
        ("my_metrics.py:few", "metric 'few' gave shape [2] for a batch of 3; it must give one"),
        ("my_metrics.py:tenth,aucc", "neither fedloom nor torchmetrics has a metric 'aucc'"),
        (
            "my_metrics.py:unsaid",
            "evaluate.target = 0.95: nothing says whether the metric 'unsaid' is better higher or "
            "lower; set unsaid.higher_is_better = True or False beside the function",
        ),
        (
            "my_metrics.py:tenth,my_metrics.py:tenth",
            "metrics: two of my_metrics.py:tenth, my_metrics.py:tenth have one name",
        ),
    ],
)
def test_a_mistake_is_one_line(here: Fedloom, metrics: str, said: str) -> None:
    output = here("run", "digits", f"metrics={metrics}", *QUIET, code=2).output
    errors = [line for line in output.splitlines() if "rror" in line]
    assert said.replace("{here}", str(Path.cwd())) in output and len(errors) == 1
    assert not Path("runs").exists() or not list(Path("runs").iterdir())


def test_an_error_inside_names_the_metric_and_the_line(here: Fedloom) -> None:
    line = METRICS[: METRICS.index('"row"')].count("\n") + 1
    output = here("run", "digits", "metrics=my_metrics.py:fails", *QUIET, code=1).output
    assert f"metric 'fails': KeyError (my_metrics.py, line {line}): 'row'" in output


def test_fedloom_check_says_how_a_metric_is_tried(here: Fedloom) -> None:
    said = here("check", "my_metrics.py:tenth", code=2).output
    assert "'tenth' is none of an Algorithm" in said and "has no part" not in said
    assert "--dry-run" in said and "--dry-run" in here("check", "my_metrics.py", code=2).output
    said = here("run", "digits", "metrics=my_metrics.py:few", *SMALL, "--dry-run", code=2).output
    assert "metric 'few' gave shape [2] for a batch of 3" in said
