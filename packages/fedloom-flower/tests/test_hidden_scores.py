"""Where masks or noise hide what sites send, nodes are not asked to measure models by default."""

from __future__ import annotations

import json

import pytest
import torch
from click.testing import CliRunner

from federations.places import Here, folder, site_file, table
from fedloom.cli.__main__ import cli
from fedloom.config import resolve
from fedloom.errors import DataError
from fedloom.evaluation.reliability import disclosed
from fedloom_flower.folder import Folder
from fedloom_flower.message import ASK, decode
from fedloom_flower.server import serve

pytest.importorskip("cryptography", reason="the extra secure is not installed")

TABLE = """
name = "wards"
rounds = 2
cohort = 3
algorithm = "fedavg"
model = {name = "logistic", inputs = 3, classes = 3}
local = {epochs = 1, batch = 8, lr = 0.1}
[data]
name = "table"
target = "label"
partition = "natural"
"""
MASKS = ["aggregation=integer_ring", "aggregation.secure=true", "checkpoint.every_rounds=1"]
NOISE = ["local.dp.noise=2", "local.dp.delta=1e-3"]
PRIVATE = ["aggregation=dp", "sampling=poisson", "cohort=0.7", "weighting=uniform"]
NODES = ["federation.evaluate=nodes"]


def made(tmp_path, *words, path=""):
    """A folder that `deploy new` made of sites elsewhere, and what it said."""
    (tmp_path / "my.toml").write_text(TABLE + (f'path = "{path}"\n' if path else ""))
    words = ["deploy", "new", str(tmp_path / "my.toml"), "--clients", "a,b,c", *words]
    out = tmp_path / "fed"
    result = CliRunner().invoke(cli, [*words, "--out", str(out)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return Folder(out), result.output


@pytest.mark.parametrize(
    ("words", "measures"),
    [
        ([], "nodes"),
        (MASKS, "nobody"),
        (NOISE, "nobody"),
        ([*PRIVATE, "checkpoint.every_rounds=1"], "nobody"),
        ([*MASKS, *NODES], "nodes"),
    ],
)
def test_who_measures_the_model_unless_the_user_says_so(words, measures, tmp_path):
    """Every place has it in its own federation.toml, and `new` and `check` say it in a line."""
    fed, said = made(tmp_path, *words)
    assert fed.settings().evaluate == fed.node(1).settings().evaluate == measures
    line = "no evaluation: federation.toml says evaluate = nobody; " * (measures == "nobody")
    line = line or "evaluate = nodes: 2 rounds of models that the server chooses tell"
    checked = CliRunner().invoke(cli, ["deploy", "check", str(fed.path)], catch_exceptions=False)
    assert line in said and line in " ".join(checked.output.split())


def test_a_server_with_rows_measures_on_them(tmp_path):
    rows = table(tmp_path / "here.csv", 30)
    assert made(tmp_path, *MASKS, path=rows)[0].settings().evaluate == "server"


def test_a_path_that_is_not_at_the_server_is_no_rows(tmp_path):
    assert made(tmp_path, *MASKS, path="/of/a/site.csv")[0].settings().evaluate == "nobody"


def places(tmp_path, evaluate, *words):
    """A federation's folder, and its nodes with tables of their own."""
    (tmp_path / "my.toml").write_text(TABLE)
    fed = folder(tmp_path, resolve(tmp_path / "my.toml", words), evaluate=evaluate)
    files = []
    for i in range(3):
        train, test = (table(tmp_path / f"{k}{i}.csv", 20, seed=i) for k in ("train", "test"))
        files.append(site_file(tmp_path / f"{i}.toml", train, test))
    return fed, Here(fed, files)


def test_a_run_that_nobody_measures_asks_no_node_and_ends(tmp_path):
    fed, here = places(tmp_path, "nobody")
    asked = set()

    def exchange(messages, seconds, enough):
        asked.update(decode(ASK, raw)[0].what for raw in messages.values())
        return here(messages, seconds, enough)

    exchange.present = here.present
    ended = serve(fed, lambda roll: exchange)
    assert asked == {"join", "agree", "round"}
    assert len(ended.history) == 2 and not any(k.startswith("test") for k in ended.history[-1])
    assert fed.notices_file.read_text().startswith("no evaluation: ")
    assert json.loads((fed.run / "partition.json").read_text())["tests_elsewhere"] == 0


def test_a_server_whose_rows_are_gone_says_what_to_write(tmp_path):
    (tmp_path / "my.toml").write_text(TABLE)
    fed = folder(tmp_path, resolve(tmp_path / "my.toml"), evaluate="server")
    files = [site_file(tmp_path / f"{i}.toml", table(tmp_path / f"{i}.csv", 9)) for i in range(3)]
    with pytest.raises(DataError, match="a server without rows takes evaluate = nobody"):
        serve(fed, lambda roll: Here(fed, files))


@pytest.mark.parametrize("words", [NOISE, []])
def test_what_nodes_tell_is_said_where_noise_hides_examples_and_at_every_node(
    words, tmp_path, caplog
):
    pytest.importorskip("dp_accounting", reason="the extra privacy is not installed")
    fed, here = places(tmp_path, "nodes", *words)
    assert "test_accuracy" in serve(fed, lambda roll: here).history[-1]
    line = "evaluate = nodes: 2 rounds of models that the server chooses tell"
    assert (line in fed.notices_file.read_text()) is bool(words)
    assert any(f"client 2: {line}" in record.getMessage() for record in caplog.records)


def test_bins_tell_no_class_of_fewer_rows_than_the_least_count():
    """Rows, their probabilities, the second class: of 12 and 0, 12 and 4, 20 and 10, 9 and 0."""
    bins = torch.zeros(1, 3, 10)
    bins[0, :, :4] = torch.tensor([[12.0, 12, 20, 9], [1, 2, 9, 3], [0, 4, 10, 0]])
    assert disclosed(bins)[0][:4] == [12, 0, 20, 0] and disclosed(bins)[2][:4] == [0, 0, 10, 0]
    assert disclosed(bins, least=4)[0][:4] == [12, 12, 20, 9]
    assert disclosed(bins, least=11)[0][:4] == [12, 0, 0, 0]
