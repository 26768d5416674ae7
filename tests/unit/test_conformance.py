"""The conformance suite: its recurrences, its verdicts, and the mistakes that it must see."""

import importlib
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedloom_conformance import NotThereError, Problem, judge, rows
from fedloom_conformance.__main__ import load
from fedloom_conformance.cases import Case
from fedloom_conformance.federation import Federation
from fedloom_conformance.methods import METHODS
from fedloom_conformance.networks import Linear, Network
from fedloom_conformance.page import page
from fedloom_conformance.problems import curved, normalised, quadratics
from fedloom_conformance.verdict import reference

ROOT = Path(__file__).parents[2]
SUITE = ROOT / "packages" / "fedloom-conformance"
ROWS = {row.name: row for row in rows()}


def trained_by(package, **reading):
    """An adapter of the recurrences of a copy of the suite."""
    part = lambda name: importlib.import_module(f"{package}.{name}")

    def train(problem, method, settings):
        networks = part("networks")
        layers = [getattr(networks, type(x).__name__)(**vars(x)) for x in problem.network.layers]
        fed = part("federation").Federation(
            replace(problem, network=networks.Network(tuple(layers)))
        )
        models = part("methods").METHODS[method].recurrence(fed, **settings, **reading)
        if method == "dp_noise":  # the recurrence says the deviation alone
            normal, x = np.random.default_rng(0).normal, fed.start
            models = [x := x + normal(size=x.size) * deviation for deviation in models]
        return [fed.state(x) for x in models]

    return train


def planted():
    """(row, what, file of the suite, [(right text, wrong text), ...]) of every mistake."""
    mistakes = []
    text = (ROOT / "tests" / "support" / "conformance_mistakes.txt").read_text(encoding="utf-8")
    lines = [line.replace("\\n", "\n") for line in text.split("\n\n", 1)[1].splitlines()]
    for line, after in zip(lines, [*lines[1:], ""], strict=True):
        if line.startswith("- "):
            mistakes[-1][3].append((line[2:], after[2:]))
        elif not line.startswith("+ "):
            row, what, file = line.split(" | ")
            mistakes.append((row, what, file, []))
    return mistakes


def copied(folder, changes, name):
    """A copy of the suite with changed lines -> its package, which can be imported."""
    shutil.copytree(SUITE / "src" / "fedloom_conformance", folder / name)
    for file, pairs in changes.items():
        path = folder / name / file
        text = path.read_text(encoding="utf-8")
        for right, wrong in pairs:
            assert text.count(right) == 1, f"{file} has {text.count(right)} times: {right}"
            text = text.replace(right, wrong)
        path.write_text(text, encoding="utf-8")
    return name


@pytest.fixture
def importing(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.mark.parametrize("problem", [quadratics(), curved(), normalised()])
def test_gradients_are_those_of_the_loss(problem):
    fed = Federation(problem)

    def loss(x):
        outputs = problem.data[1][0]
        for at, layer in enumerate(problem.network.layers):
            own = {k: fed.state(x)[f"{at}.{k}"] for k in layer.shapes()}
            outputs, _, _ = layer.forward(own, outputs)
        return float(np.mean((outputs - problem.data[1][1]) ** 2))

    steps = 1e-6 * np.eye(fed.start.size)
    slopes = [(loss(fed.start + s) - loss(fed.start - s)) / 2e-6 for s in steps]
    wanted = np.where(fed.trained, slopes, 0.0)
    np.testing.assert_allclose(fed.grad(1, fed.start), wanted, atol=1e-8)


def two_clients(rounds=3):
    """f_1 = (x - 2)^2 / 2 and f_2 = 3 (x + 1)^2 / 2 from x = 1, two steps of 0.1."""
    data = [
        (np.full((1, 1), a**0.5), np.full((1, 1), a**0.5 * b)) for a, b in ((0.5, 2), (1.5, -1))
    ]
    network, start = Network((Linear(1, 1, False),)), {"0.weight": np.ones((1, 1))}
    return Problem("two", network, start, tuple(data), ((0, 1),) * rounds, 0.1, weights="equal")


ADAPTIVE = {"server_lr": 0.1, "beta1": 0.9, "beta2": 0.99, "tau": 0.01}
ADAGRAD = ADAPTIVE | {"beta1": 0.0}
FAFED = {"alpha": 0.1, "beta": 0.9, "rho": 0.01}
OLD_A = "old A at the end of a round (its code)"
BY_HAND = [
    ("fedavg", {}, "the paper", (0.585, 0.31525, 0.1399125)),
    ("scaffold2", {"server_lr": 1.0}, "the paper", (0.585, 0.285, 0.090295)),
    ("fedadam", ADAPTIVE, "the paper", (0.9212166514068, 0.8084545754005, 0.6742312224579)),
    ("fedadam", ADAPTIVE, "v begins at 0", (0.9194174757282, 0.8052222347898, 0.6697680887489)),
    ("fedyogi", ADAPTIVE, "the paper", (0.92123416800727, 0.8087500427978, 0.6751978224861)),
    ("fedadagrad", ADAGRAD, "the paper", (0.9023806109774, 0.8359577034268, 0.7831583246286)),
    ("fafed", FAFED, "the paper", (0.6584152417718, 0.5733231682811)),
    ("fafed", FAFED, OLD_A, (0.6594235505424, 0.5753248922304)),
    ("fafed", FAFED, "line 3 with A_0", (0.8337262017539, 0.7341887263772)),
]


@pytest.mark.parametrize(("method", "settings", "reading", "right"), BY_HAND)
def test_numbers_that_were_computed_elsewhere(method, settings, reading, right):
    models = reference(Case(method, two_clients(len(right)), settings), reading)
    np.testing.assert_allclose(np.concatenate(models), right, atol=1e-12)


def test_the_suite_is_right_by_itself():
    verdicts = {name: judge(row, trained_by("fedloom_conformance")) for name, row in ROWS.items()}
    assert {name for name, verdict in verdicts.items() if verdict.kind != "right"} == set()


@pytest.mark.parametrize(
    ("method", "reading"), [(m, r) for m, method in METHODS.items() for r in method.readings]
)
def test_every_reading_is_told_from_the_others(method, reading):
    row = ROWS["fedavgm batchnorm" if reading.startswith("statistics") else method]
    train = trained_by("fedloom_conformance", **METHODS[method].readings[reading])
    verdict = judge(row, train)
    assert (verdict.kind, verdict.reading) == ("reading", reading)


@pytest.mark.parametrize(("name", "what", "file", "pairs"), planted())
def test_a_historical_mistake_is_seen(name, what, file, pairs, importing):
    package = f"planted_{name}_{what}".replace(" ", "_").replace(",", "").replace("'", "")
    train = trained_by(copied(importing, {file: pairs}, package))
    verdict = judge(ROWS[name], train)
    assert verdict.kind == "wrong", what
    assert verdict.fault.round >= 1 and verdict.fault.smallest


def test_the_smallest_case_is_small(importing):
    """A FedProx without its term shows with one client, in one round, after two steps."""
    change = {"methods/averaging.py": [("g + strength * (y - x)", "g")]}
    verdict = judge(ROWS["fedprox"], trained_by(copied(importing, change, "planted_small")))
    assert verdict.fault.smallest.startswith("1 round; 1 client; K = 2; 1 number; ")


def test_what_is_not_there_and_what_stops():
    def stops(error):
        def train(*_):
            raise error

        return judge(ROWS["krum"], train)

    assert stops(NotThereError("no such thing")).kind == "absent"
    verdict = stops(RuntimeError("out of paper"))
    assert (verdict.kind, verdict.words) == ("error", "RuntimeError: out of paper")
    nothing = lambda problem, *_: [{k: v * np.nan for k, v in problem.start.items()}] * 4
    assert judge(ROWS["krum"], nothing).kind == "wrong"
    assert judge(ROWS["krum"], lambda *_: []).words == "ValueError: 0 models of 4 rounds"


def test_a_reading_holds_in_all_cases_or_not_at_all():
    """A method that reads the paper one way here and another way there is wrong."""
    plain = trained_by("fedloom_conformance")
    zero = trained_by("fedloom_conformance", v0="0")
    mixed = lambda problem, *rest: (zero if "curved" in problem.name else plain)(problem, *rest)
    verdict = judge(ROWS["fedyogi"], mixed)
    assert (verdict.kind, verdict.right_cases) == ("wrong", 2)
    assert verdict.fault is not None and verdict.fault.case == "curved"


@pytest.fixture(scope="module")
def fedloom_trains():
    return load(SUITE / "adapters" / "fedloom" / "adapter.py")[0]


@pytest.mark.parametrize("name", sorted(ROWS))
def test_fedloom_is_right(name, fedloom_trains, accounts_at_hand):
    verdict = judge(ROWS[name], fedloom_trains)
    assert verdict.kind == "right", verdict


def test_an_adapter_has_at_most_forty_lines():
    lengths = {
        p.parent.name: len(p.read_text().splitlines()) for p in SUITE.glob("adapters/*/adapter.py")
    }
    assert sorted(lengths) == ["fedloom", "fluke", "flwr", "pfl"] and max(lengths.values()) <= 40
    findings = [p for p in SUITE.glob("findings/*.py") if len(p.read_text().splitlines()) > 30]
    assert findings == []


def test_the_page_is_that_of_the_results():
    names = ("fedloom", "pfl", "flwr", "fluke")
    results = [json.loads((SUITE / "results" / f"{n}.json").read_text()) for n in names]
    words = (ROOT / "docs" / "results" / "words" / "conformance.md").read_text()
    assert page(results, words) == (ROOT / "docs" / "results" / "conformance.md").read_text()
    assert {v["kind"] for v in results[0]["verdicts"].values()} == {"right"}
