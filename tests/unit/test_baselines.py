"""What a federation is compared with: clients alone, in turns, fine-tuned, and all rows pooled."""

import copy

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch.nn.functional import cross_entropy

from fedloom import Experiment, FedAvg, Local
from fedloom.cli.__main__ import cli
from fedloom.config import resolve
from fedloom.config.baselines import NAMES, baselines
from fedloom.data import from_clients
from fedloom.errors import ConfigError
from fedloom.evaluation.settings import Evaluation
from fedloom.models import logistic
from fedloom.report import comparison, group_runs, load_run
from fedloom.report.clients import against_alone
from fedloom.report.curves import loss_curves
from fedloom.report.differences import differences, measured_how
from fedloom.report.table_text import table_cells
from fedloom.submodels import PRIVATE
from support.folders import settings

DRAW = np.random.default_rng(2)
ROWS = [(DRAW.normal(size=(n, 3)) + i, DRAW.integers(0, 2, n)) for i, n in enumerate((9, 6, 12))]
TESTS = [(DRAW.normal(size=(4, 3)) + i, DRAW.integers(0, 2, 4)) for i in range(3)]
DATA = from_clients(ROWS, client_tests=TESTS, dtype=torch.float64)
LOCAL = Local(steps=2, batch=None, lr=0.3)


def run(folder=None, data=DATA, **changes):
    parts = {"algorithm": FedAvg(), "model": lambda: logistic(3, 2).double(), "rounds": 4}
    parts |= {"device": "cpu", "dtype": "float64", "local": LOCAL, "engine": "serial"}
    return Experiment(data=data, **parts | changes).run(folder, progress=False)


@pytest.mark.parametrize("engine", ["serial", "vectorised:3"])
def test_a_client_that_is_alone_learns_as_if_there_were_no_others(engine):
    alone = run(private=PRIVATE.make("alone"), engine=engine)
    for i in range(3):
        one = from_clients(ROWS[i : i + 1], client_tests=TESTS[i : i + 1], dtype=torch.float64)
        assert alone.clients[i] == pytest.approx(run(data=one).clients[0])
    start = run(rounds=1, local=Local(steps=1, batch=None, lr=1e-300))
    assert torch.equal(alone.state.x, start.state.x), "nothing reaches the server"


def test_fine_tuned_clients_take_plain_steps_from_the_last_model():
    common, tuned = run(), run(evaluate=Evaluation(finetune=3))
    assert torch.equal(common.state.x, tuned.state.x)
    for i, (x, y) in enumerate(ROWS):
        model = copy.deepcopy(common.model)
        steps = torch.optim.SGD(model.parameters(), lr=0.3)
        for _ in range(3):
            steps.zero_grad()
            cross_entropy(model(torch.tensor(x)), torch.tensor(y)).backward()
            steps.step()
        right = model(torch.tensor(TESTS[i][0])).argmax(1) == torch.tensor(TESTS[i][1])
        assert tuned.clients[i] == pytest.approx(float(right.double().mean()))
    with pytest.raises(ConfigError, match="and this one has sub-models"):
        resolve("digits", ["evaluate.finetune=2", "submodel=heterofl"]).experiment().build()


def test_baselines_have_the_work_of_the_run():
    config = resolve("digits", ["local.epochs=2", "cohort=10", "compress=topk:0.1"])
    words = baselines(config, config.data())
    assert (*words,) == NAMES
    values = {k: resolve("digits", ["compress=topk:0.1", *w]).values for k, w in words.items()}
    assert values["cyclic"]["rounds"] == 10 * 150 and values["cyclic"]["evaluate"]["every"] == 10
    assert values["pooled"]["local"]["epochs"] == pytest.approx(0.4)  # a fifth takes part
    assert [k for k, own in values.items() if "compress" in own] == ["fine-tuned"]
    assert "pooled" not in baselines(_undivided(config), config.data())


def test_all_rows_in_one_place_have_no_part_of_a_typed_partition(tmp_path, monkeypatch):
    monkeypatch.setattr("fedloom.cli.printing.illustrate", lambda run: None)
    words = "run digits data.alpha=0.1 data.clients=6 cohort=0.5 rounds=1 local.epochs=none"
    words += f" local.steps=1 evaluate.every=0 --baselines --quiet --out {tmp_path / 'all'}"
    done = CliRunner().invoke(cli, words.split())
    assert done.exit_code == 0, done.output
    runs = [settings(folder.parent) for folder in (tmp_path / "all").rglob("config.toml")]
    parts = {run["label"]: run["data"]["partition"] for run in runs}
    assert parts["pooled"] == {"name": "iid", "clients": 1}
    assert parts["alone"]["alpha"] == parts["cyclic"]["alpha"] == 0.1 and len(parts) == 5


def _undivided(config):
    """As if the data took no partition."""
    data = {k: v for k, v in config.values["data"].items() if k != "partition"}
    return type(config)({**config.values, "data": data}, config.origin)


def test_the_sentence_says_who_is_better_off(tmp_path):
    groups = compared(tmp_path, together={"data": DATA}, alone=ALONE | {"data": DATA})
    (said,) = against_alone(groups)
    better = [a > b for a, b in zip(*(g.runs[0].clients["values"] for g in groups), strict=True)]
    assert said.startswith(f"together is better than alone at {sum(better)} of 3 clients (")
    assert against_alone(groups[:1]) == []


def test_nobody_is_compared_with_alone_by_another_metric(tmp_path):
    kinds = {"alone": {"private": PRIVATE.make("alone")}, "mean": {}}
    metrics = {"alone": ["accuracy"], "mean": ["brier"], "both": ["brier", "accuracy"]}
    for name, names in metrics.items():
        run(tmp_path / name, label=name, metrics=names, **kinds.get(name, {}))
    groups = group_runs(load_run(tmp_path / name) for name in metrics)
    (said,) = against_alone(groups)
    own = groups[2].runs[0].clients["metrics"]["accuracy"]
    better = [a > b for a, b in zip(own, groups[0].runs[0].clients["values"], strict=True)]
    assert said.startswith(f"both is better than alone at {sum(better)} of 3 clients (")


def labelled(rows, i):
    """A client's examples, by a rule of its own."""
    x = DRAW.normal(size=(rows, 3))
    return x, (x @ [(1, 1, 0), (-1, 1, 1), (1, -1, 0.5)][i] > 0).astype(int)


RULES = [labelled(20, i) for i in range(3)]
OWN_TESTS = [labelled(n, i) for i, n in enumerate((30, 40, 50))]
OWN = from_clients(RULES, client_tests=OWN_TESTS, dtype=torch.float64)
COMMON = from_clients(
    RULES, tuple(map(np.concatenate, zip(*OWN_TESTS, strict=True))), dtype=torch.float64
)
ALONE = {"label": "alone", "private": PRIVATE.make("alone")}


def compared(folder, **rows):
    """The groups of runs in these folders, a run for each; clients have test rows of their own."""
    for name, changes in rows.items():
        run(folder / name, **{"label": name, "data": OWN} | changes)
    return group_runs(load_run(folder / name) for name in rows)


def test_all_rows_are_compared_by_what_clients_use(tmp_path):
    groups = compared(
        tmp_path, together={}, alone=ALONE, tuned={"evaluate": Evaluation(finetune=3)}
    )
    means = [float(np.mean(group.runs[0].clients["values"])) for group in groups]
    assert len({*means}) == 3
    rows = comparison(groups, value="last")
    assert [row["value_mean"] for row in rows] == pytest.approx(means)
    assert {row["metric"] for row in rows} == {"mean client accuracy"}
    gaps = {d.label: d.gap.mean for d in differences(groups, value="last")}
    assert gaps == pytest.approx({"alone": means[1] - means[0], "tuned": means[2] - means[0]})
    assert "mean client accuracy, last tenth" in table_cells(comparison(groups))[0]
    (said,) = measured_how(groups)
    assert "alone" in said and "its own test rows" in said
    (test_loss,) = (p for p in loss_curves(groups) if p.name == "test_loss")
    assert "together" in test_loss.alt and "alone" not in test_loss.alt
    for value in ("ema", "best-of-validation"):
        with pytest.raises(ConfigError, match="choose last-tenth or last"):
            comparison(groups, value=value)


def test_a_data_frame_has_what_is_compared(tmp_path):
    pytest.importorskip("pandas")
    alone = run(data=OWN, private=PRIVATE.make("alone"), rounds=1)
    assert alone.to_pandas()["tested"].iloc[-1] == pytest.approx(np.mean(alone.clients))


def test_unlike_measures_are_named_and_never_tested(tmp_path):
    groups = compared(tmp_path, together={"data": COMMON}, alone=ALONE)
    together, alone = comparison(groups, value="last")
    assert together["value_mean"] == pytest.approx(groups[0].runs[0].summary["last"]["value"])
    assert alone["value_mean"] == pytest.approx(np.mean(groups[1].runs[0].clients["values"]))
    heads, lines = table_cells([together, alone])
    assert [line[heads.index("measured")] for line in lines] == ["accuracy", "mean client accuracy"]
    assert differences(groups) == []
    said = " ".join(measured_how(groups))
    assert "No test compares alone with together" in said and "data.tests=matched" in said


def test_own_models_that_nothing_measured_have_no_value(tmp_path):
    groups = compared(tmp_path, together={}, alone=ALONE | {"data": COMMON})
    together, alone = comparison(groups)
    assert together["metric"] == "accuracy" and together["value_mean"] is not None
    for key in ("value_mean", "last_mean", "best_mean", "ema_mean", "client_worst"):
        assert alone[key] is None, key
    assert "data.tests=matched" in measured_how(groups)[0]
    assert against_alone(groups) == []
