"""What a referee is asked, and how settings are searched with equal effort."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from fedloom.config import Config
from fedloom.core.hyper import Decay, Hyper, NonNegative, Positive
from fedloom.data import by_lists, from_arrays
from fedloom.errors import ConfigError
from fedloom.referee import Question, Runs, parse
from fedloom.referee.tuner import Tuner, space_of
from fedloom.study.tune import Batch, Ladder, climb, fixed, summarise, tune


def ask(method: str = "fedprox", against: str = "fedavg", *words: str, **more: Any) -> Question:
    usual: dict[str, Any] = {
        "vary": "algorithm",
        "tune": (),
        "trials": 8,
        "most": 30,
        "delta": None,
        "out": Path("o"),
    }
    return parse(method, against, words, **usual | more)


def search(space: dict[str, Ladder], value: Any, trials: int) -> dict[tuple[str, ...], float]:
    scores: dict[tuple[str, ...], float] = {}

    def run(batches: dict[str, Batch[tuple[str, ...]]]) -> dict[str, dict[tuple[str, ...], float]]:
        scores.update({p: value(*map(float, p)) for p in batches["it"].points})
        return {"it": scores}

    tune({"it": climb(space, trials)}, run)
    return scores


# ------------------------------------------------------------------------------------ the question
def test_without_a_recipe_there_are_two_heterogeneities_and_two_participations() -> None:
    names = [cell.name for cell in ask().cells]
    assert names == [f"digits alpha={a} cohort={c}" for a in ("0.1", "1") for c in ("0.1", "0.4")]
    assert [cell.name for cell in ask("fedprox", "fedavg", "cohort=5").cells] == [
        "digits alpha=0.1",
        "digits alpha=1",
    ]


def test_recipes_and_changes_with_several_values_are_cells() -> None:
    cells = ask("fedprox", "fedavg", "digits", "mnist_iid", "rounds=5,7", "local.batch=9").cells
    assert [cell.name for cell in cells] == [
        f"{name} rounds={n}" for name in ("digits", "mnist_iid") for n in (5, 7)
    ]
    config = ask("fedprox", "fedavg", "digits", "local.batch=9").config
    question = ask("fedprox algorithm.mu=0.5", "fedavg,fedacg", "digits", "local.batch=9")
    mine = question.config(question.cells[0], question.methods[0]).values
    assert mine["algorithm"] == {"name": "fedprox", "mu": 0.5, "server_lr": 1.0} or (
        mine["algorithm"]["mu"] == 0.5
    )
    assert mine["local"]["batch"] == 9 and config is not None


def test_tuning_holds_out_data_at_seeds_that_the_comparison_has_not() -> None:
    question = ask("fedprox", "fedavg", "digits")
    at = question.cells[0], question.methods[0]
    first = question.trial(*at, {"local.lr": "0.3"}, 1)
    splits = [question.tuning(*at, {"local.lr": "0.3"}, split) for split in range(5)]
    assert first.seed == 1 and not first.config.values["evaluate"].get("validation")
    seeds = [trial.seed for trial in splits]
    assert seeds[0] == 0 and len(set(seeds)) == 5 and min(seeds[1:]) > 1000
    shares = [trial.config.values["evaluate"]["validation"] for trial in splits]
    assert shares == [0.1, 0.125, 0.075, 0.15, 0.1], "another last batch in each"
    assert {trial.config.values["local"]["lr"] for trial in (first, *splits)} == {0.3}
    assert {trial.folder.parent for trial in (first, *splits)} == {first.folder.parent}


def test_a_share_that_is_set_is_what_splits_are_made_of() -> None:
    question = ask("fedprox", "fedavg", "digits", "evaluate.validation=0.4")
    at = question.cells[0], question.methods[0]
    held = [question.tuning(*at, {}, split).config.values["evaluate"] for split in range(4)]
    assert [values["validation"] for values in held] == [0.4, 0.5, 0.3, 0.5]


@pytest.mark.parametrize(
    ("sizes", "splits"),
    [([30] * 10, 10), ([499, 1501], 3), ([100, 200, 4700], 1), ([10] * 200, 2), ([13] * 9, 2)],
)
def test_splits_are_added_until_500_rows_have_judged(
    sizes: list[int], splits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tenth of each client, rounded down: 30, 199 and 500 rows in a split; ten at most. The third
    split would hold out no row of clients with 13.
    """
    ends = itertools.accumulate(sizes)
    lists = [[*range(end - size, end)] for end, size in zip(ends, sizes, strict=True)]
    data = from_arrays(torch.zeros(sum(sizes), 1), torch.zeros(sum(sizes)).long(), by_lists(lists))
    tuner = Tuner(ask("fedprox", "fedavg", "digits"), Runs(1))
    monkeypatch.setattr(Config, "data", lambda self: data)
    assert tuner.splits() == splits


@pytest.mark.parametrize(
    ("method", "against", "words", "more", "said"),
    [
        ("fedprox", "fedprox", (), {}, "there twice"),
        ("fedprox", "fedavg,", (), {}, "a method is a name"),
        ("fedprox", "local.lr=0.1", (), {}, "a method is a name"),
        ("fedprox", "fedavg", (), {"vary": "algoritm"}, "did you mean 'algorithm'"),
        ("fedprox", "fedavg", (), {"tune": ("local.lr=0.1",)}, "two or more values"),
        ("fedprox", "fedavg", ("seed=3",), {}, "counts seeds"),
        ("fedprox", "fedavg", ("digits", "seed=3,4"), {}, "seed"),
        ("ditto", "fedavg", ("digits",), {}, "algorithm = 'ditto': each client has a model"),
        ("alone", "fedper", ("digits",), {"vary": "private"}, "private = 'alone': each client"),
        ("fedprox", "fedavg", ("digits", "private=fedbn"), {}, "private = 'fedbn': each client"),
        ("fedprox", "fedavg", ("evaluate.finetune=3",), {}, "evaluate.finetune = 3: each client"),
    ],
)
def test_what_cannot_be_asked_is_one_line(
    method: str, against: str, words: tuple[str, ...], more: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        ask(method, against, *words, **more)
    assert "\n" not in str(caught.value)


def test_another_question_has_another_digest() -> None:
    assert ask().digest() == ask().digest()
    others = [ask(trials=9), ask(delta=0.1), ask("fedprox", "fedavg", "rounds=3"), ask("fedacg")]
    assert len({ask().digest(), *(other.digest() for other in others)}) == 5


# -------------------------------------------------------------------------------------- the search
def test_main_settings_are_the_rate_and_declared_numbers_that_nobody_set() -> None:
    def keys(question: Question, at: int = 0) -> list[str]:
        return list(space_of(question, question.cells[0], question.methods[at]))

    assert keys(ask("fedprox", "fedavg")) == ["local.lr", "algorithm.mu"]
    assert keys(ask("fedprox", "fedavg"), 1) == ["local.lr"]
    assert keys(ask("fedprox algorithm.mu=1", "fedavg", "digits", "local.lr=0.1")) == []
    tuned = ask("fedprox", "fedavg", tune=("algorithm.mu=0.1,1", "local.batch=5,10"))
    assert keys(tuned) == ["algorithm.mu", "local.batch"] and keys(tuned, 1) == ["local.batch"]
    assert keys(ask("topk:0.1", "qsgd:8", vary="compress")) == ["local.lr"]
    adam = keys(ask("fedadam", "fedavg"))
    assert adam[:2] == ["local.lr", "algorithm.server_lr"], "FedAvg's server has no rate"


@pytest.mark.parametrize("trials", [1, 2, 5, 8, 20])
def test_every_search_has_its_trials_and_follows_the_edge(trials: int) -> None:
    one = {"local.lr": Ladder("0.1", (), Hyper(Positive))}
    two = one | {"algorithm.mu": Ladder("1.0", (), Hyper(NonNegative))}
    narrow = search(one, lambda lr: -abs(math.log(lr / 8.1)), trials)
    wide = search(two, lambda lr, mu: -abs(math.log(lr / 8.1)) - abs(math.log(mu / 3)), trials)
    assert len(narrow) == min(trials, len(narrow)) and len(wide) == trials
    if trials == 20:
        assert float(max(narrow, key=lambda p: narrow[p])[0]) == pytest.approx(8.1, rel=0.1)


def test_a_decay_is_searched_by_its_distance_from_one() -> None:
    ladder = Ladder("0.9", (), Hyper(Decay))
    assert ladder.neighbours("0.9") == ["0.967", "0.7"] and ladder.neighbours("0.5") == ["0.833"]


def test_a_fixed_setting_takes_no_trials() -> None:
    """Beside one that has no effect a search goes where it goes alone."""
    one = {"local.lr": Ladder("0.1", (), Hyper(Positive))}
    two = {"algorithm.mu": Ladder("1.0", (), Hyper(NonNegative))} | one
    score = lambda lr: -abs(math.log(lr / 8.1))
    alone = search(one, score, 5)
    beside = search(fixed(two, ["algorithm.mu"]), lambda mu, lr: score(lr), 5)
    assert beside == {("1.0", *point): value for point, value in alone.items()}
    assert search(two, lambda mu, lr: score(lr), 5) != beside


def test_edges_and_settings_without_effect_are_named() -> None:
    space = {"a": Ladder("2", ("1", "2", "4")), "b": Ladder("1.0", (), Hyper(NonNegative))}
    scores = search(space, lambda a, b: a, 12)
    curves = {point: (float(point[0]),) for point in scores}
    found = summarise(space, scores, curves)
    assert found.choice["a"] == "4" and found.edges == ("a",) and found.without_effect == ("b",)
    lost = dict.fromkeys(scores, -math.inf)
    assert summarise(space, lost, {}).failed == len(scores)
    assert search({}, lambda: 0.0, 8) == {}
