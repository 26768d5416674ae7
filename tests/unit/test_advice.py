"""Which methods rules choose for a federation, what they go with, and which one is taken."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
import torch

from fedloom.algorithms.registry import ALGORITHMS
from fedloom.cli.paper_progress import Progress
from fedloom.config import resolve
from fedloom.data import by_lists, from_arrays
from fedloom.errors import ConfigError
from fedloom.referee import Advised, Runs, advised, screened
from fedloom.referee.advice import picked
from fedloom.referee.question import Method
from fedloom.referee.rules import DEMANDS, RULES, Facts, Rule, facts_of
from fedloom.referee.tune import Tuned
from fedloom.referee.tuner import Tuner
from fedloom.report.runs import Metric

DOCS = Path(__file__).parents[2] / "docs"


def facts(**more: object) -> Facts:
    usual = {"clients": 100, "cohort": 5.0, "share": 0.05, "examples": 50.0, "sizes": 0.1}
    return Facts(**{**usual, "labels": 0.1, **more})  # type: ignore[arg-type]


def first_two(known: Facts) -> list[str]:
    found = dict.fromkeys(rule.changes for rule in RULES if rule.holds(known))
    return [changes.removeprefix("algorithm=") for changes in found][:2]


# --------------------------------------------------------------------------------------- the facts
def test_facts_are_of_the_clients_and_what_the_settings_demand() -> None:
    """Three rows with label 0 against one with label 1: no label in common, Gini (3 - 1) / 8."""
    data = from_arrays(
        torch.zeros(4, 1), torch.tensor([0, 0, 0, 1]), by_lists([[0, 1, 2], [3]]), name="two"
    )
    words = ["cohort=0.5", "compress=topk:0.1", "clock=asynchronous"]
    found = facts_of(resolve("digits", words), data)
    assert (found.clients, found.cohort, found.share, found.examples) == (2, 1, 0.5, 2)
    assert found.labels == 1.0 and found.sizes == pytest.approx(0.25)
    assert found.demands == {"compressed", "asynchronous"}
    numbers = from_arrays(torch.zeros(4, 1), torch.rand(4, 1), by_lists([[0, 1], [2, 3]]))
    assert facts_of(resolve("digits", []), numbers).labels is None


@pytest.mark.parametrize(
    ("known", "names"),
    [
        (facts(), ["fedacg", "fedavgm"]),
        (facts(labels=0.4), ["fedsmoo", "fedacg"]),
        (facts(labels=None), ["fedacg", "fedavgm"]),
        (facts(clients=4, share=1.0), ["fedacg", "fedadam"]),
        (facts(clients=4, share=1.0, labels=0.9), ["fedsmoo", "fedacg"]),
        (facts(labels=0.9, demands=frozenset({"compressed"})), ["fedacg", "fedavgm"]),
        (facts(demands=frozenset({"asynchronous"})), ["fedbuff", "fedacg"]),
        (facts(demands=frozenset({"dp"})), ["fedavgm", "fedacg"]),
    ],
)
def test_rules_choose_by_facts(known: Facts, names: list[str]) -> None:
    assert first_two(known) == names


def test_bounds_include_the_least_value_and_not_the_upper_one() -> None:
    rule = Rule("algorithm=fedavg", "", "", least={"share": 0.5}, below={"clients": 20})
    assert rule.holds(facts(share=0.5, clients=19))
    assert not rule.holds(facts(share=0.49, clients=19))
    assert not rule.holds(facts(share=0.5, clients=20))
    assert rule.when == "share of clients in a round from 0.5, clients below 20"


def test_every_rule_names_a_method_and_what_speaks_for_it() -> None:
    for rule in RULES:
        assert rule.changes.split()[0].removeprefix("algorithm=") in ALGORITHMS
        assert rule.why and rule.evidence and (not rule.demand or rule.demand in DEMANDS)
        if rule.evidence.endswith(".md"):
            assert (DOCS / rule.evidence).is_file()


def test_the_page_which_method_has_the_rules_in_their_order() -> None:
    def line(rule: Rule) -> str:
        seen = rule.evidence
        seen = f"[{Path(seen).name}]({seen})" if seen.endswith(".md") else seen
        name = rule.changes.removeprefix("algorithm=")
        return f"| {rule.when} | `{name}` | {rule.why} | {seen} |"

    page = (DOCS / "which-method.md").read_text("utf-8")
    assert "\n".join(map(line, RULES)) + "\n\n" in page


# ---------------------------------------------------------------------------------- the candidates
SMALL = ("data.clients=6", "cohort=3", "rounds=1", "local.epochs=1")


@pytest.mark.parametrize(
    ("words", "names", "skipped"),
    [
        ((), ["fedavg", "fedsmoo", "fedacg"], {}),
        (("algorithm=scaffold",), ["scaffold", "fedavg", "fedsmoo"], {}),
        (("server=adam",), ["fedavg and server", "fedavg", "fedsmoo"], {}),
        (("aggregation=integer_ring", "weighting=uniform"), ["fedavg", "fedsmoo", "fedacg"], {}),
        (("compress=topk:0.1",), ["fedavg", "fedacg", "fedavgm"], {}),
        (("submodel=heterofl",), ["fedavg", "fedsmoo", "fedacg"], {}),
        (
            ("clock=asynchronous", "clock.buffer=2", "clock.concurrency=3"),
            ["fedavg", "fedbuff", "fedacg"],
            {"fedsmoo": "drift apart"},
        ),
    ],
)
def test_candidates_go_with_what_the_settings_demand(
    words: tuple[str, ...], names: list[str], skipped: dict[str, str], tmp_path: Path
) -> None:
    asked = advised("digits", [*SMALL, *words], 2, 4, tmp_path)
    assert [method.name for method in asked.candidates][: len(names)] == names
    assert len(asked.candidates) == 3 and len(asked.question.pairs) == 3
    for name, why in skipped.items():
        assert why in asked.skipped[name] and "\n" not in asked.skipped[name]
    best = asked.settings(asked.candidates[1], {"local.lr": "0.5"}).values
    assert best["local"]["lr"] == 0.5 and "tests" not in best["data"], "the user's tests"
    assert not {"ditto", "ifca"} & {method.name for method in asked.others}, "clients' own models"


def test_baselines_stand_beside_and_are_no_rivals(tmp_path: Path) -> None:
    asked = advised("heart", ["rounds=1"], 2, 4, tmp_path)
    names = [method.name for method in asked.question.methods]
    assert names == ["fedavg", "fedacg", "fedadam", "alone", "pooled"]
    assert {m.name for pair in asked.question.pairs for m in pair} == set(names[:3])


def test_all_rows_in_one_place_have_no_part_of_the_typed_partition(tmp_path: Path) -> None:
    """alpha is a partition's, whose place another one takes; test_share is the data's."""
    words = ["data.alpha=0.1", "partition.clients=6", "data.test_share=0.3", "rounds=1"]
    asked = advised("digits", words, 2, 4, tmp_path)
    by_name = {method.name: method for method in asked.question.methods}
    (cell,) = asked.question.cells
    data = asked.question.config(cell, by_name["pooled"]).values["data"]
    assert data["partition"] == {"name": "iid", "clients": 1} and data["test_share"] == 0.3
    trial = asked.question.trial(cell, by_name["pooled"], {}, 1).config.values["data"]
    assert trial["partition"] == data["partition"]
    own = asked.question.config(cell, by_name["fedavg"]).values["data"]["partition"]
    assert own["alpha"] == 0.1 and own["clients"] == 6


@pytest.mark.parametrize(
    ("source", "words", "said"),
    [
        ("digits", ["data.clients=1"], "has one client"),
        ("digits", ["data.test_share=0"], "no test rows"),
        ("digits", ["seed=3"], "seeds are counted"),
        ("digits", ["private=fedper"], "private = 'fedper': each client has a model of its own"),
        ("digits", ["algorithm=ditto"], "algorithm = 'ditto': each client has a model of its own"),
        ("digits", ["local.lr=0.1,0.3"], "local.lr"),
    ],
)
def test_what_cannot_be_advised_is_one_line(
    source: str, words: list[str], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)) as caught:
        advised(source, words, 2, 4, tmp_path)
    assert "\n" not in str(caught.value)


# ------------------------------------------------------------------------------- which one is taken
@pytest.mark.parametrize(
    ("scores", "sent", "worse", "taken"),
    [
        ((0.90, 0.95, 0.93), (1, 2, 2), (), ("b", "best")),
        ((0.90, 0.95, 0.93), (1, 2, 2), ("b",), ("c", "best")),
        ((0.946, 0.95, 0.93), (1, 2, 2), (), ("a", "bytes")),
        ((0.946, 0.95, 0.949), (2, 2, 1), (), ("c", "bytes")),
        ((0.946, 0.95, 0.949), (1, 1.001, 1), (), ("a", "simpler")),
        ((0.946, 0.95, 0.949), (1, 1, 1), ("a",), ("b", "best")),
        ((0.945, 0.95, 0.93), (1, 2, 2), (), ("b", "best")),
    ],
)
def test_the_best_mean_or_what_is_cheaper_and_hardly_behind(
    scores: tuple[float, ...],
    sent: tuple[float, ...],
    worse: tuple[str, ...],
    taken: tuple[str, str],
) -> None:
    verdicts = {(name, other): "worse" for name in worse for other in "abc" if other != name}
    found = picked(
        dict(zip("abc", scores, strict=True)), dict(zip("abc", sent, strict=True)), verdicts, 0.005
    )
    assert found == taken


# ---------------------------------------------------------------------------------- the screening
def screen_of(
    scores: dict[str, float],
    monkeypatch: pytest.MonkeyPatch,
    out: Path,
    minutes: float = 60,
    each: float = 0.1,
) -> Advised:
    """An advice for six clients whose methods do so well on validation splits (others: 0.5)."""

    def run(self: Tuner, splits: int, all_of_them: bool = False) -> dict[object, Tuned]:
        def tuned(method: Method) -> Tuned:
            score = scores.get(method.name, 0.5)
            curves = "of fedavg" if method.name in ("fedavg", "cfedavg") else method.name
            return Tuned({}, 4, 0, (), (), score, curves)

        return {place: tuned(place[1]) for place in self.places}

    monkeypatch.setattr(Tuner, "run", run)
    monkeypatch.setattr(Tuner, "seconds", lambda self: each)
    monkeypatch.setattr(Tuner, "wanted", lambda self: 4)
    out.mkdir(exist_ok=True)
    monkeypatch.setattr(Runs, "metric", Metric("accuracy", True, "share"))
    return screened(advised("digits", SMALL, 8, 4, out), minutes, Runs(1, Progress((), quiet=True)))


def test_the_best_on_validation_splits_is_the_last_candidate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """cfedavg is FedAvg here, and the best two are candidates already."""
    scores = {"fedsmoo": 0.9, "cfedavg": 0.8, "fedavg": 0.8, "feddyn": 0.7, "stem": -math.inf}
    found = screen_of(scores, monkeypatch, tmp_path)
    assert [method.name for method in found.candidates] == ["fedavg", "fedsmoo", "feddyn"]
    assert found.screen is not None and (found.screen.splits, found.screen.trials) == (4, 4)
    assert [*found.screen.tried][:2] == ["fedsmoo", "fedavg"] and "stem" in found.screen.failed
    assert "number 4 of" in found.rules["feddyn"].why
    assert {m.name for pair in found.question.pairs for m in pair} == {*found.rules}
    assert [m.name for m in found.question.methods][-2:] == ["alone", "pooled"]


def test_as_many_methods_are_tried_as_there_is_time_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the time, four trials, each as 1.5 runs of FedAvg: in 60 minutes of runs of 3 s 100
    methods have a split, so 30 have three. Asynchronous FedBuff is none, nor are Ditto and IFCA.
    """
    counts = {}
    for each in (0.1, 3.0, 20.0, 100.0):
        found = screen_of({}, monkeypatch, tmp_path / f"{each}", 60, each).screen
        counts[each] = found and (len(found.tried), found.splits)
    every = len(ALGORITHMS) - 3
    assert counts == {0.1: (every, 4), 3.0: (every, 3), 20.0: (15, 1), 100.0: None}
    names = [m.name for m in advised("digits", SMALL, 8, 4, tmp_path).candidates]
    rules = screen_of({"fedavgm": 1.0}, monkeypatch, tmp_path / "slow", 60, 100.0)
    assert [m.name for m in rules.candidates] == names, "then rules choose"


def test_a_screening_that_was_begun_goes_on_with_its_methods_and_splits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = screen_of({"feddc": 0.9}, monkeypatch, tmp_path, 60, 20.0)
    again = screen_of({"feddc": 0.9}, monkeypatch, tmp_path, 60, 0.1)
    assert first.screen == again.screen and first.rules == again.rules
