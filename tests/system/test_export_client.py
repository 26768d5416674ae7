"""A site takes its own model home: its weights, its rows, and what is refused."""

from __future__ import annotations

import copy
import csv
import json
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from fedloom import Experiment, FedAvg, Local
from fedloom.config import from_run
from fedloom.data import FederatedData, digits, iid
from fedloom.models import mlp
from fedloom.submodels import PRIVATE
from tiny import Fedloom

SITES = {"bonn": 20, "lyon": 40}  # training rows, by day; 10 test rows each
TABLE = """
rounds = 3
algorithm = "fedavg"
dtype = "float64"
model = {name = "mlp", inputs = 3, hidden = [4], classes = 2}
local = {steps = 2, lr = 0.5}
[data]
name = "table"
path = "*.csv"
target = "out"
columns = {sex = "one_hot"}
standardise = true
per_client = true
date = "day"
test_from = "2025-01-01"
partition = "natural"
"""
ALONE, ROUNDS = "private=alone", 3


@pytest.fixture
def run(fedloom: Fedloom) -> Any:
    """Run two hospitals' tables with these settings -> the configuration of the run `a`."""
    draw = np.random.default_rng(1)
    for shift, (site, rows) in enumerate(SITES.items()):
        with Path(f"{site}.csv").open("w", newline="") as file:
            out = csv.writer(file)
            out.writerow(["age", "sex", "day", "out"])
            for year, count in ((2024, rows), (2025, 10)):
                for day in range(count):
                    age, sex = draw.integers(20, 90) + 30 * shift, "fm"[day % 2]
                    ill = (age > 55 + 30 * shift) ^ (shift == 1)
                    date = f"{year}-{1 + day // 28:02d}-{1 + day % 28:02d}"
                    out.writerow([age, sex, date, "ward" if ill else "home"])
    Path("my.toml").write_text(TABLE)

    def call(*words: str) -> Any:
        fedloom("run", "my.toml", "local.batch=none", *words, "--out", "a", "--quiet")
        return from_run("a")

    return call


def steps(model: nn.Module, rows: tuple[Tensor, Tensor], count: int) -> None:
    sgd = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(count):
        sgd.zero_grad()
        nn.functional.cross_entropy(model(rows[0]), rows[1]).backward()
        sgd.step()


def by_hand(data: FederatedData, start: nn.Module, own: tuple[str, ...]) -> list[nn.Module]:
    """FedPer's Algorithm 1, written again: each site goes on with its own model but for the mean of
    the tensors that are not its own -> the models of the sites.
    """
    models = [copy.deepcopy(start) for _ in SITES]
    sizes = torch.tensor([*SITES.values()], dtype=torch.float64)
    for _ in range(ROUNDS):
        for i, model in enumerate(models):
            steps(model, data.client(i), 2)
        for name, tensors in zip(
            start.state_dict(), zip(*(m.parameters() for m in models), strict=True), strict=True
        ):
            if not name.startswith(own):
                shares = zip(sizes / sizes.sum(), tensors, strict=True)
                mean = sum(share * tensor.detach() for share, tensor in shares)
                for tensor in tensors:
                    tensor.data.copy_(mean)
    return models


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "own", "more"),
    [
        (("private=fedper",), "last", 0),
        ((ALONE,), "all", 0),
        (("algorithm=ditto", "algorithm.lam=0"), "all", 0),  # without its pull v_i is alone
        (("evaluate.finetune=3",), "none", 3),
    ],
)
def test_a_site_exports_the_model_that_it_uses(
    words: tuple[str, ...], own: str, more: int, run: Any, fedloom: Fedloom
) -> None:
    config = run(*words)
    start = config.experiment().net().export(config.experiment().net().init())
    names = [*start.state_dict()]
    kept = {"last": (names[-1].rpartition(".")[0],), "all": tuple(names), "none": ()}[own]
    models = by_hand(config.data(), start, kept)
    said = json.loads(Path("a/clients.json").read_text())["metrics"]["accuracy"]
    for i, site in enumerate(SITES):
        steps(models[i], config.data().client(i), more)
        which = site if i else "0"  # by name or number
        text = fedloom("export", "a", "--client", which, "--format", "safetensors").output
        folder = Path(f"a/export-{site}")
        found = load_file(folder / "weights.safetensors")
        for name, want in models[i].state_dict().items():
            torch.testing.assert_close(found[name], want, rtol=1e-9, atol=1e-12)
        assert (
            f"accuracy {said[i]:.6g} on 10 raw test samples, and the run said {said[i]:.6g}" in text
        )
        made, rows = runpy.run_path(str(folder / "predict.py")), rows_of(site)
        right = [a == row["out"] for a, row in zip(made["predict"](rows), rows, strict=True)]
        assert np.mean(right) == pytest.approx(said[i])
        check_words(folder, i, said[i])


def rows_of(site: str) -> list[dict[str, str]]:
    """A site's test rows, as it has them."""
    with Path(f"{site}.csv").open(newline="") as file:
        return [row for row in csv.DictReader(file) if row["day"] >= "2025"]


def check_words(folder: Path, i: int, accuracy: float) -> None:
    """What an export says of its site, and of no other."""
    site, rows = [*SITES.items()][i]
    other = [*SITES][1 - i]
    about, card = (folder / name for name in ("about.json", "README.md"))
    known, text = json.loads(about.read_text()), card.read_text()
    assert (known["client"], known["samples"], [*known["scores"]["sites"]]) == (site, 10, [site])
    assert known["inputs"]["kind"] == "cells" and "sites" not in known["inputs"]
    with Path(f"{site}.csv").open(newline="") as file:
        ages = [int(row["age"]) for row in csv.DictReader(file) if row["day"] < "2025"]
    assert known["ranges"]["age"] == [min(ages), max(ages)]
    (age, *_) = known["inputs"]["rules"]
    assert age["mean"] == pytest.approx(np.mean(ages))
    assert (
        f", {site}'s own model\n" in text and f"| {site} | {rows} | 10 | {accuracy:.4f} |" in text
    )
    assert f"2 sites, 60 training rows. {site}: {rows} training rows, 10 test rows." in text
    assert other not in text and "--site" not in text and "all test rows" not in text


def test_a_site_may_check_its_copy(run: Any, fedloom: Fedloom) -> None:
    run(ALONE)
    fedloom("export", "a", "--client", "lyon", "--out", "mine", "--test-set")
    assert runpy.run_path("mine/predict.py")["check"]("mine/test.npz")


def test_the_servers_model_is_not_taken_for_a_sites(run: Any, fedloom: Fedloom) -> None:
    run(ALONE)
    text = fedloom("export", "a", code=2).output
    assert "with private = 'alone' nobody trains the server's model, and each client has " in text
    assert "--client NAME exports one" in text and not Path("a/export").exists()
    text = fedloom("export", "a", "--client", "paris", code=2).output
    assert "--client must be a client's number, from 0 to 1, or its name, such as bonn, got" in text
    Path("federation.toml").touch()  # as beside a deployed run
    for words in ((), ("--client", "lyon")):
        text = fedloom("export", "a", *words, code=2).output
        assert "it is in its node's state folder, which `export` does not read" in text


def test_a_common_model_beside_sites_own_says_so(run: Any, fedloom: Fedloom) -> None:
    run("private=fedper", "cohort=1", "rounds=1")
    text = fedloom("export", "a").output
    said = "this is the server's model, and each client uses its own: --client NAME exports one"
    assert said in text and "checked: accuracy" in text
    card = Path("a/export/README.md").read_text()
    assert "use models of their own, and this is the server's" in card
    assert "| bonn |" not in card, "its score is of another model"
    (row,) = map(json.loads, Path("a/rounds.jsonl").read_text().splitlines())
    took = from_run("a").experiment().open("a").cohorts.of(0)
    assert row["round"] == 1 and len(took) == 1
    fedloom("export", "a", "--client", str(took[0]))
    text = fedloom("export", "a", "--client", str(1 - took[0]), code=2).output
    assert "has taken part in no round yet, so nobody has trained its private layers" in text


def test_a_run_of_one_model_has_none_of_clients(run: Any, fedloom: Fedloom) -> None:
    run()
    text = fedloom("export", "a", "--client", "lyon", code=2).output
    assert "--client lyon: all clients of 'a' use one model; export it without --client" in text


def test_a_run_from_python_knows_only_its_servers_model(fedloom: Fedloom) -> None:
    made = Experiment(
        algorithm=FedAvg(),
        model=lambda: mlp(64),
        data=digits(iid(clients=3)),
        private=PRIVATE.make("alone"),
        device="cpu",
        rounds=1,
        local=Local(steps=1, lr=0.1),
    )
    made.run("a", progress=False)
    for words in ((), ("--client", "0")):
        text = fedloom("export", "a", *words, code=2).output
        assert "only the Python code that started the run can make it" in text
