"""What nodes measure, what they tell of it and to whom; and what a run says of scores and time."""

from __future__ import annotations

import html
import json
import re
import time

import numpy as np
import pytest
import torch

from federations.places import (
    EVERY,
    LOGISTIC,
    PRIVATE,
    SECURE,
    WARDS_TOML,
    Here,
    folder,
    predicted,
    rows_of,
    site_files,
    table,
    typed,
)
from fedloom.config import resolve
from fedloom.errors import DataError, WireError
from fedloom.evaluation.reliability import BINS, disclosed
from fedloom.report import group_runs, load_run, write_report
from fedloom.report.curves import metric_curves
from fedloom_flower.engine import read_score
from fedloom_flower.folder import Folder
from fedloom_flower.message import Measured

pytest.importorskip("torchmetrics", reason="the extra metrics is not installed")


# ------------------------------ what nodes measure
def test_nodes_measure_every_metric_on_their_own_rows(tmp_path):
    """A metric of a whole set too, whose common value is the mean over the sites' rows."""
    words = [*LOGISTIC, "cohort=4", "rounds=2", "metrics=auc,accuracy"]
    fed = folder(
        tmp_path, resolve("digits", words), (None,) * 4, evaluate="nodes", standardise=True
    )
    files = site_files(tmp_path, (20, 35, 50, 40), (0, 31, 32, 33))
    head, *lines = (tmp_path / "3t.csv").read_text().splitlines()
    alike = [line for line in lines if line.endswith(",1")]  # all of one class
    (tmp_path / "3t.csv").write_text("\n".join([head, *alike]) + "\n")
    here = Here(fed, files)
    result = here.serve()
    told = json.loads((fed.run / "clients.json").read_text())
    count = [0, 31, 32, len(alike)]
    for i in (1, 2, 3):
        p, y = predicted(result.model, here.data(i))
        right = float((p.argmax(1) == y).double().mean())
        assert told["metrics"]["accuracy"][i] == pytest.approx(right)
        above = lambda c, p=p, y=y: (p[y == c, c][:, None] > p[y != c, c]).double().mean()
        each = [float(above(c)) for c in set(y.tolist()) if i < 3]
        if each:
            assert told["values"][i] == pytest.approx(sum(each) / len(each), abs=1e-6)
    assert told["basis"] == "own test rows, at the nodes"
    assert told["why_none"]["auc"] == {
        "no answer, or no test rows": [0],
        "it is not defined on its test rows, as an AUC of one class is not": [3],
    }
    row, auc = result.history[-1], told["values"]
    assert row["test_auc"] == pytest.approx((31 * auc[1] + 32 * auc[2]) / 63)
    assert row["client_auc_worst"] == min(auc[1], auc[2]) == result.summary["client_auc_worst"]
    hits = sum(n * (v or 0) for n, v in zip(count, told["metrics"]["accuracy"], strict=True))
    assert row["test_accuracy"] == pytest.approx(hits / sum(count))
    again = Here(fed, files)  # nothing is asked, and nothing is lost
    assert again.serve().clients == result.clients and not again.asked
    assert json.loads((fed.run / "clients.json").read_text()) == told


def test_nodes_decide_by_the_threshold_and_tell_no_bin_of_few_rows(tmp_path):
    words = [*LOGISTIC, "model.classes=2", "rounds=1", "metrics=brier,accuracy"]
    least, given = 4, {"evaluate": "nodes", "standardise": True, "least_count": 4}
    fed = folder(tmp_path, resolve("digits", [*words, "evaluate.threshold=0.4"]), **given)
    here = Here(fed, site_files(tmp_path, (20, 20, 20), (80, 40, 6), lambda y: min(y, 1)))
    ended = here.serve()
    told = json.loads((fed.run / "clients.json").read_text())
    assert told["test_rows"] == [80, 40, 6] and np.any(told["reliability"]["clients"][0])
    whole = np.zeros((3, BINS))
    for i in range(3):
        p, y = (each.double().numpy() for each in predicted(ended.model, here.data(i)))
        p = p[:, 1]
        assert told["metrics"]["accuracy"][i] == pytest.approx(((p > 0.4) == y).mean())
        assert told["metrics"]["brier"][i] == pytest.approx(((p - y) ** 2).mean(), rel=1e-5)
        place = np.minimum((p * BINS).astype(int), BINS - 1)
        bins = np.array([np.bincount(place, v, BINS) for v in (np.ones_like(p), p, y)])
        counts = np.array([bins[0], bins[2], bins[0] - bins[2]])  # of all, of either class
        wanted = bins * ~((counts > 0) & (counts < least)).any(0)
        whole += wanted
        np.testing.assert_allclose(told["reliability"]["clients"][i], wanted, atol=1e-5)
    np.testing.assert_allclose(told["reliability"]["bins"], whole, atol=1e-5)


def test_bins_tell_no_class_of_fewer_rows_than_the_least_count():
    """Rows, their probabilities, the second class: of 12 and 0, 12 and 4, 20 and 10, 9 and 0."""
    bins = torch.zeros(1, 3, 10)
    bins[0, :, :4] = torch.tensor([[12.0, 12, 20, 9], [1, 2, 9, 3], [0, 4, 10, 0]])
    assert disclosed(bins)[0][:4] == [12, 0, 20, 0] and disclosed(bins)[2][:4] == [0, 0, 10, 0]
    assert disclosed(bins, least=4)[0][:4] == [12, 12, 20, 9]
    assert disclosed(bins, least=9)[0][:4] == [12, 0, 20, 9]
    assert disclosed(bins, least=11)[0][:4] == [12, 0, 0, 0]


NONE = [0.0] * 9


@pytest.mark.parametrize(
    "bins",
    [[[11.0, *NONE]] * 3, [[5.0, *NONE], [6.0, *NONE], [0.0] * 10], [[5.0, *NONE], [1.0, *NONE]]],
    ids=["more rows than there are", "a probability above 1", "no outcomes"],
)
def test_bins_that_cannot_be_are_refused(bins):
    who = {"run": "r@1", "what": "evaluate", "round": 1, "client": 0}
    values = {"values": {"brier": 1.0}, "weights": {"brier": 10.0}, "bins": bins}
    head = Measured(**who, examples=10, loss=1.0, **values)
    with pytest.raises(WireError, match="a reliability curve that its examples cannot have"):
        read_score(head, 10, {"brier": None})


# ------------------------------ where masks or noise hide what sites send
MLP, LOGIT = '"mlp", inputs = 1, hidden = [4], classes = 2', '"logistic", inputs = 3, classes = 3'
TABLE = WARDS_TOML.replace(MLP, LOGIT).replace("outcome", "label")
NOISE = ["local.dp.noise=2", "local.dp.delta=1e-3"]
TELLS = "evaluate = nodes: 2 rounds of models that the server chooses tell"
HERE = "a file at the server"


@pytest.mark.parametrize(
    ("words", "path", "measures"),
    [
        ([], "", "nodes"),
        (SECURE, "", "nobody"),
        (NOISE, "", "nobody"),
        ([*PRIVATE, EVERY], "", "nobody"),
        ([*SECURE, "federation.evaluate=nodes"], "", "nodes"),
        (SECURE, HERE, "server"),
        (SECURE, "/of/a/site.csv", "nobody"),
    ],
)
def test_who_measures_the_model_unless_the_user_says_so(words, path, measures, tmp_path):
    path = table(tmp_path / "here.csv", 30) if path == HERE else path
    (tmp_path / "my.toml").write_text(TABLE + (f'path = "{path}"\n' if path else ""))
    fed = Folder(tmp_path / "fed")
    new = ("deploy", "new", tmp_path / "my.toml", "--clients", "a,b,c", *words)
    said = typed(*new, "--out", fed.path, catch_exceptions=False)
    assert fed.settings().evaluate == fed.node(1).settings().evaluate == measures
    if not path:
        checked = " ".join(typed("deploy", "check", fed.path).split())
        line = TELLS if measures == "nodes" else "no evaluation: federation.toml says evaluate = n"
        assert line in said and line in checked


def places(tmp_path, evaluate, *words, tests=(20, 20, 20)):
    """Nodes with tables of their own."""
    (tmp_path / "my.toml").write_text(TABLE)
    fed = folder(tmp_path, resolve(tmp_path / "my.toml", words), evaluate=evaluate)
    return Here(fed, site_files(tmp_path, (20, 20, 20), tests))


def test_a_run_that_nobody_measures_asks_no_node_and_ends(tmp_path):
    here = places(tmp_path, "nobody")
    ended = here.serve()
    assert {what for what, *_ in here.asked} == {"join", "agree", "round"}
    assert len(ended.history) == 2 and not any(k.startswith("test") for k in ended.history[-1])
    assert json.loads((here.fed.run / "partition.json").read_text())["tests_elsewhere"] == 0


@pytest.mark.parametrize(
    ("evaluate", "said"),
    [
        ("server", "a server without rows takes evaluate = nobody"),
        ("nodes", "no site has test rows, so no node can measure"),
    ],
)
def test_who_has_no_rows_cannot_measure(evaluate, said, tmp_path):
    here = places(tmp_path, evaluate, tests=())
    with pytest.raises(DataError, match=said) as error:
        here.serve()
    assert "\n" not in str(error.value)
    assert not (evaluate == "nodes" and here.fed.agreement_file.exists())


def test_what_nodes_tell_is_said_at_every_node(tmp_path, caplog):
    here = places(tmp_path, "nodes")
    assert "test_accuracy" in here.serve().history[-1]
    assert any(f"client 2: {TELLS}" in message for message in caplog.messages)


# ------------------------------ what a run says of scores, time
BY_ROWS = "mean of the sites, weighted by rows"
PAUSE = {"round": 0.1, "evaluate": 0.3}  # seconds that the slowest node takes


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    path = tmp_path_factory.mktemp("scores")
    config = resolve("digits", [*LOGISTIC, "rounds=2", "metrics=auc,accuracy"])
    files = site_files(path, (20, 35, 50), (30, 30, 30))
    slow = lambda here, ask: time.sleep(PAUSE.get(ask.what, 0.0))
    here = Here(folder(path, config, evaluate="nodes"), files, before=slow)
    began = time.monotonic()
    here.serve()
    return here.fed, time.monotonic() - began


def page_of(fed, tmp_path):
    """The words of its report."""
    page = write_report(fed.run, tmp_path / "report.html").read_text()
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", page)).split())


def test_a_mean_of_sites_is_not_called_the_auc_of_all_rows(measured, monkeypatch):
    """A site sends its own AUC and no row's score: nobody can know that of all rows together."""
    fed, _ = measured
    for word in ("show", "compare"):
        page = " ".join(typed(word, fed.run).split())
        assert "mean site auc" in page and BY_ROWS in page
        assert not re.search(r"(?<!site )\bauc,? (last|best|EMA|0)", page)
    for name, said in (
        ("programs.runs", []),
        ("programs.nodes", []),
        ("certificates.validity", ""),
    ):
        monkeypatch.setattr(f"fedloom_flower.{name}", lambda fed, said=said: said)
    (line,) = (x for x in typed("deploy", "status", fed.path).splitlines() if "auc" in x)
    assert re.search(rf"auc 0\.\d+ \({BY_ROWS}\)", line)
    assert "accuracy" in line and line.count("(") == 1  # it is of all rows
    typed("export", fed.run)
    assert f"| {BY_ROWS} |  | 90 |" in (fed.run / "export/README.md").read_text()


def test_a_report_says_that_it_is_a_mean_of_sites(measured, tmp_path):
    page = page_of(measured[0], tmp_path)
    assert f"mean site auc, {BY_ROWS} (higher is better)" in page
    assert "nobody has the auc of all rows" in page and "test auc" not in page.lower()
    assert load_run(measured[0].run).summary["metric"]["of"] == BY_ROWS


@pytest.mark.slow
def test_a_server_with_test_rows_has_the_auc_of_all_of_them(tmp_path):
    config = resolve("digits", ["data.clients=3", "cohort=3", "rounds=1", "metrics=auc"])
    fed = folder(tmp_path, config)
    Here(fed).serve()
    assert load_run(fed.run).metric.title == "auc"
    assert BY_ROWS not in typed("show", fed.run) + page_of(fed, tmp_path)


@pytest.mark.slow
def test_a_deployed_runs_seconds_are_those_that_passed(measured, tmp_path):
    """With the wait for nodes that measure, which no round's training has."""
    fed, whole = measured
    run, least = load_run(fed.run), sum(PAUSE.values())
    each = [row["seconds"] for row in rows_of(fed, "rounds.jsonl")]
    assert all(seconds >= least for seconds in each)
    assert 2 * least <= run.seconds[-1] <= whole
    assert run.summary["seconds"] == pytest.approx(sum(each), abs=1e-5)
    assert run.summary["seconds_per_round"] >= least
    drawn = metric_curves(group_runs([run]))
    labels = [picture.figure.axes[0].get_xlabel() for picture in drawn]
    assert any(label.startswith("wall time (") for label in labels)
    assert "it is all that passed, with waiting for nodes" in page_of(fed, tmp_path)
