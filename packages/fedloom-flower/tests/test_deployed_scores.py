"""What a deployed run says of its scores and of its time, wherever they are shown."""

from __future__ import annotations

import html
import json
import re
import time

import pytest
from click.testing import CliRunner

from federations.places import Here, folder, site_file, table
from fedloom.cli.__main__ import cli
from fedloom.config import resolve
from fedloom.report import group_runs, load_run, write_report
from fedloom.report.curves import metric_curves
from fedloom.report.style import styles
from fedloom_flower.cli.deploy import _format_round
from fedloom_flower.message import ASK, decode
from fedloom_flower.server import serve

pytest.importorskip("torchmetrics", reason="the extra metrics is not installed")

BASE = ["model=logistic", "model.inputs=3", "model.classes=3", "rounds=2", "cohort=1.0"]
BASE += ["local.epochs=1", "local.batch=8"]
BY_ROWS = "mean of the sites, weighted by rows"
PAUSE = {"round": 0.1, "evaluate": 0.3}  # seconds that the slowest node takes


class Slow(Here):
    """Nodes that take their time."""

    def __call__(self, messages, seconds, enough):
        head = decode(ASK, next(iter(messages.values())))[0]
        time.sleep(PAUSE.get(head.what, 0.0))
        return super().__call__(messages, seconds, enough)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """A federation whose nodes measured AUC and accuracy, and the seconds that all of it took."""
    tmp_path = tmp_path_factory.mktemp("scores")
    config = resolve("digits", [*BASE, "metrics=auc,accuracy"])
    fed, files = folder(tmp_path, config, evaluate="nodes"), []
    for i, rows in enumerate((20, 35, 50)):
        train, test = table(tmp_path / f"{i}.csv", rows, seed=i), tmp_path / f"{i}t.csv"
        table(test, 30, seed=9 + i)
        files.append(site_file(tmp_path / f"{i}.toml", train, test))
    here, began = Slow(fed, files), time.monotonic()
    serve(fed, lambda clients: here)
    return fed, time.monotonic() - began


def typed(*words):
    done = CliRunner().invoke(cli, list(map(str, words)))
    assert done.exit_code == 0, done.output
    return done.output


def rows_of(fed):
    return [json.loads(line) for line in (fed.run / "rounds.jsonl").read_text().splitlines()]


def page_of(fed, tmp_path):
    """The words of its report."""
    found = write_report(fed.run, tmp_path / "report.html").read_text()
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", found)).split())


@pytest.mark.parametrize("word", ["show", "compare"])
def test_a_mean_of_sites_is_not_called_the_auc_of_all_rows(word, measured):
    """A site sends its own AUC and no row's score: nobody can know that of all rows together."""
    page = " ".join(typed(word, measured[0].run).split())
    assert "mean site auc" in page and BY_ROWS in page
    assert not re.search(r"(?<!site )\bauc,? (last|best|EMA|0)", page)


def test_the_rounds_of_a_federation_say_what_the_value_is(measured):
    fed, _ = measured
    for row in rows_of(fed):
        assert re.search(rf"auc 0\.\d+ \({BY_ROWS}\)", _format_round(row, fed))
        assert (
            "accuracy" in _format_round(row, fed) and _format_round(row, fed).count("(") == 1
        )  # it is of all rows


def test_a_report_says_that_it_is_a_mean_of_sites(measured, tmp_path):
    page = page_of(measured[0], tmp_path)
    assert f"mean site auc, {BY_ROWS} (higher is better)" in page
    assert "nobody has the auc of all rows" in page
    assert "test auc" not in page.lower()
    assert load_run(measured[0].run).summary["metric"]["of"] == BY_ROWS


def test_a_card_says_so_and_its_script_checks_no_other_score(measured):
    fed, _ = measured
    typed("export", fed.run)
    assert f"| {BY_ROWS} |  | 90 |" in (fed.run / "export/README.md").read_text()
    assert json.loads((fed.run / "export/about.json").read_text())["said"] is None


@pytest.mark.slow
def test_a_server_with_test_rows_has_the_auc_of_all_of_them(tmp_path):
    config = resolve("digits", ["data.clients=3", "cohort=3", "rounds=1", "metrics=auc"])
    fed = folder(tmp_path, config)
    here = Here(fed)
    serve(fed, lambda clients: here)
    assert load_run(fed.run).metric.title == "auc"
    assert BY_ROWS not in typed("show", fed.run) + page_of(fed, tmp_path)


@pytest.mark.slow
def test_a_deployed_runs_seconds_are_those_that_passed(measured, tmp_path):
    """With the wait for nodes that measure, which no round's training has."""
    fed, whole = measured
    run, least = load_run(fed.run), sum(PAUSE.values())
    each = [row["seconds"] for row in rows_of(fed)]
    assert all(seconds >= least for seconds in each)
    assert 2 * least <= run.seconds[-1] <= whole
    assert run.summary["seconds"] == pytest.approx(sum(each), abs=1e-5)
    assert run.summary["seconds_per_round"] >= least
    groups = group_runs([run])
    drawn = metric_curves(groups, styles(groups), None)
    labels = [picture.figure.axes[0].get_xlabel() for picture in drawn]
    assert any(label.startswith("wall time (") for label in labels)
    assert "it is all that passed, with waiting for nodes" in page_of(fed, tmp_path)
    typed("export", fed.run)
    card = (fed.run / "export/README.md").read_text()
    assert re.search(r"\| time that passed, with waiting for nodes \| [\d.]+ m?s \|", card)
