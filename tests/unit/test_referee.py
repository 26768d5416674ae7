"""What a referee and an advice ask and choose, and settings that are searched with equal effort."""

import itertools
import math
from pathlib import Path

import pytest
import torch

from fedloom.algorithms.registry import ALGORITHMS
from fedloom.config import Config
from fedloom.core.hyper import Decay, Hyper, NonNegative, Positive
from fedloom.data import by_lists, from_arrays
from fedloom.errors import ConfigError
from fedloom.referee import Runs, advised, parse, screened
from fedloom.referee.advice import pick_best
from fedloom.referee.study import Tuner, space_of
from fedloom.report.runs import Metric
from fedloom.study.tune import Ladder, Tuned, climb, fixed, summarise, tune
from support.refusals import refused

USUAL = {"vary": "algorithm", "trials": 8, "most": 30, "delta": None, "out": Path("o")}


def ask(method="fedprox", against="fedavg", *words, **more):
    return parse(method, against, words, **USUAL | more)


def advise(folder, *words, source="digits", seeds=2):
    return advised(source, [*words], seeds, 4, folder)


# ------------------------------------------------------------------------------------ the question
@pytest.mark.parametrize(
    ("words", "cells"),
    [
        ((), [f"digits alpha={a} cohort={c}" for a in ("0.1", "1") for c in ("0.1", "0.4")]),
        (("cohort=5",), ["digits alpha=0.1", "digits alpha=1"]),
        (
            ("digits", "mnist_iid", "rounds=5,7", "local.batch=9"),
            [f"{name} rounds={n}" for name in ("digits", "mnist_iid") for n in (5, 7)],
        ),
    ],
)
def test_cells_are_recipes_and_changes_with_several_values_or_the_usual_four(words, cells):
    assert [cell.name for cell in ask("fedprox", "fedavg", *words).cells] == cells


def test_a_method_has_its_own_options_and_everybodys_changes():
    question = ask("fedprox algorithm.mu=0.5", "fedavg,fedacg", "digits", "local.batch=9")
    own = question.config(question.cells[0], question.methods[0]).values
    assert own["algorithm"]["mu"] == 0.5 and own["local"]["batch"] == 9


def test_tuning_holds_out_data_at_seeds_that_the_comparison_has_not():
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


def test_a_share_that_is_set_is_what_splits_are_made_of():
    question = ask("fedprox", "fedavg", "digits", "evaluate.validation=0.4")
    at = question.cells[0], question.methods[0]
    held = [question.tuning(*at, {}, split).config.values["evaluate"] for split in range(4)]
    assert [values["validation"] for values in held] == [0.4, 0.5, 0.3, 0.5]


@pytest.mark.parametrize(
    ("sizes", "splits"),
    [([30] * 10, 10), ([499, 1501], 3), ([100, 200, 4700], 1), ([10] * 200, 2), ([13] * 9, 2)],
)
def test_splits_are_added_until_500_rows_have_judged(sizes, splits, monkeypatch):
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
        ("fedprox", "fedavg", ("seed=3",), {}, "counts seeds"),
        ("fedprox", "fedavg", ("digits", "seed=3,4"), {}, "seed"),
        ("ditto", "fedavg", ("digits",), {}, "algorithm = 'ditto': each client has a model"),
        ("alone", "fedper", ("digits",), {"vary": "private"}, "private = 'alone': each client"),
        ("fedprox", "fedavg", ("digits", "private=fedbn"), {}, "private = 'fedbn': each client"),
        ("fedprox", "fedavg", ("evaluate.finetune=3",), {}, "evaluate.finetune = 3: each client"),
    ],
)
def test_what_cannot_be_asked_is_one_line(method, against, words, more, said):
    refused(lambda: ask(method, against, *words, **more), said, kind=ConfigError)


def test_another_question_has_another_digest():
    assert ask().digest() == ask().digest()
    others = [ask(trials=9), ask(delta=0.1), ask("fedprox", "fedavg", "rounds=3"), ask("fedacg")]
    assert len({ask().digest(), *(other.digest() for other in others)}) == 5


# -------------------------------------------------------------------------------------- the search
RATE = {"local.lr": Ladder("0.1", Hyper(Positive))}
MU = {"algorithm.mu": Ladder("1.0", Hyper(NonNegative))}
near = lambda value, best: -abs(math.log(value / best))


def search(space, value, trials):
    """{point: its score} of all that a search tries."""
    scores = {}

    def run(batches):
        scores.update({p: value(*map(float, p)) for p in batches["it"].points})
        return {"it": scores}

    tune({"it": climb(space, trials)}, run)
    return scores


def test_main_settings_are_the_rate_and_declared_numbers_that_nobody_set():
    keys = lambda question, at=0: [*space_of(question, question.cells[0], question.methods[at])]
    assert keys(ask("fedprox", "fedavg")) == ["local.lr", "algorithm.mu"]
    assert keys(ask("fedprox", "fedavg"), 1) == ["local.lr"]
    assert keys(ask("fedprox algorithm.mu=1", "fedavg", "digits", "local.lr=0.1")) == []
    assert keys(ask("topk:0.1", "qsgd:8", vary="compress")) == ["local.lr"]
    adam = keys(ask("fedadam", "fedavg"))
    assert adam[:2] == ["local.lr", "algorithm.server_lr"], "FedAvg's server has no rate"


@pytest.mark.parametrize("trials", [1, 2, 5, 8, 20])
def test_every_search_has_its_trials_and_follows_the_edge(trials):
    narrow = search(RATE, lambda lr: near(lr, 8.1), trials)
    wide = search(RATE | MU, lambda lr, mu: near(lr, 8.1) + near(mu, 3), trials)
    assert len(narrow) <= trials and len(wide) == trials
    if trials == 20:
        assert float(max(narrow, key=lambda p: narrow[p])[0]) == pytest.approx(8.1, rel=0.1)


def test_a_decay_is_searched_by_its_distance_from_one():
    ladder = Ladder("0.9", Hyper(Decay))
    assert ladder.neighbours("0.9") == ["0.967", "0.7"] and ladder.neighbours("0.5") == ["0.833"]


def test_a_fixed_setting_takes_no_trials():
    """Beside one that has no effect a search goes where it goes alone."""
    alone = search(RATE, lambda lr: near(lr, 8.1), 5)
    score = lambda mu, lr: near(lr, 8.1)
    beside = search(fixed(MU | RATE, ["algorithm.mu"]), score, 5)
    assert beside == {("1.0", *point): value for point, value in alone.items()}
    assert search(MU | RATE, score, 5) != beside


def test_settings_without_effect_are_named():
    space = fixed(RATE | MU, ["local.lr"])
    scores = search(space, lambda lr, mu: lr, 5)
    summary = summarise(space, scores, {point: (float(point[0]),) for point in scores})
    assert len(scores) == 5 and summary.without_effect == ("algorithm.mu",)
    assert summarise(space, dict.fromkeys(scores, -math.inf), {}).failed == len(scores)
    assert search({}, lambda: 0.0, 8) == {}


# ---------------------------------------------------------------------- an advice: the candidates
SMALL = ("data.clients=6", "cohort=3", "rounds=1", "local.epochs=1")
ASYNCHRONOUS = ("clock=asynchronous", "clock.buffer=2", "clock.concurrency=3")


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ((), ["fedavg"]),
        (("algorithm=scaffold",), ["fedavg", "scaffold"]),
        (("server=adam",), ["fedavg", "fedavg and server"]),
        (("aggregation=integer_ring", "weighting=uniform"), ["fedavg"]),
        (("algorithm=fedbuff", *ASYNCHRONOUS), ["fedavg", "fedbuff"]),
    ],
)
def test_before_any_run_fedavg_and_the_method_of_the_settings_are_candidates(
    words, names, tmp_path
):
    advice = advise(tmp_path, *SMALL, *words)
    assert [method.name for method in advice.candidates] == names
    assert len(advice.question.pairs) == len(names) - 1
    own = advice.settings(advice.candidates[-1], {"local.lr": "0.5"}).values
    assert own["local"]["lr"] == 0.5 and "tests" not in own["data"], "the user's tests"


def test_all_others_are_tried_but_those_of_another_kind_of_round_or_model(tmp_path):
    """FedBuff's rounds need its clock, and clients of Ditto and IFCA have models of their own."""
    others = {m.name for m in advise(tmp_path, *SMALL).others}
    assert others == {*ALGORITHMS} - {"fedavg", "fedbuff", "ditto", "ifca"}
    assert "fedbuff" in {m.name for m in advise(tmp_path, *SMALL, *ASYNCHRONOUS).others}


@pytest.mark.slow
def test_baselines_stand_beside_and_are_no_rivals(tmp_path):
    question = advise(tmp_path, "rounds=1", "algorithm=scaffold", source="heart").question
    names = [method.name for method in question.methods]
    assert names == ["fedavg", "scaffold", "alone", "pooled"]
    assert {m.name for pair in question.pairs for m in pair} == set(names[:2])


def test_all_rows_in_one_place_have_no_part_of_the_typed_partition(tmp_path):
    """alpha is a partition's, whose place another one takes; test_share is the data's."""
    words = ["data.alpha=0.1", "partition.clients=6", "data.test_share=0.3", "rounds=1"]
    question = advise(tmp_path, *words).question
    by_name = {method.name: method for method in question.methods}
    (cell,) = question.cells
    data = question.config(cell, by_name["pooled"]).values["data"]
    assert data["partition"] == {"name": "iid", "clients": 1} and data["test_share"] == 0.3
    trial = question.trial(cell, by_name["pooled"], {}, 1).config.values["data"]
    assert trial["partition"] == data["partition"]
    own = question.config(cell, by_name["fedavg"]).values["data"]["partition"]
    assert own["alpha"] == 0.1 and own["clients"] == 6


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("data.test_share=0", "no test rows"),
        ("seed=3", "seeds are counted"),
        ("private=fedper", "private = 'fedper': each client has a model of its own"),
        ("algorithm=ditto", "algorithm = 'ditto': each client has a model of its own"),
        ("local.lr=0.1,0.3", "local.lr"),
    ],
)
def test_what_cannot_be_advised_is_one_line(word, said, tmp_path):
    refused(lambda: advise(tmp_path, word), said, kind=ConfigError)


@pytest.mark.parametrize(
    ("scores", "sent", "worse", "taken"),
    [
        ((0.90, 0.95, 0.93), (1, 2, 2), (), ("b", "best")),
        ((0.90, 0.95, 0.93), (1, 2, 2), ("b",), ("c", "best")),
        ((0.946, 0.95, 0.93), (1, 2, 2), (), ("a", "bytes")),
        ((0.946, 0.95, 0.949), (2, 2, 1), (), ("c", "bytes")),
        ((0.946, 0.95, 0.949), (1, 1.001, 1), (), ("a", "simpler")),
        ((0.946, 0.95, 0.949), (1, 1, 1), ("a",), ("b", "best")),
        ((0.93, 0.949, 0.95), (1, 1, 1), (), ("c", "best")),
        ((0.945, 0.95, 0.93), (1, 2, 2), (), ("b", "best")),
    ],
)
def test_the_best_mean_or_what_is_cheaper_and_hardly_behind(scores, sent, worse, taken):
    verdicts = {(name, other): "worse" for name in worse for other in "abc" if other != name}
    means, costs = (dict(zip("abc", values, strict=True)) for values in (scores, sent))
    assert pick_best(means, costs, verdicts, 0.005, simplest="a") == taken


# ---------------------------------------------------------------------------------- the screening
@pytest.fixture
def screen(monkeypatch, tmp_path):
    """Advice for six clients whose methods do so well on validation splits (others: 0.5)."""

    def make(*words, scores=None, minutes=60, each=0.1, folder="out"):
        def run(self, splits, all_of_them=False):
            def tuned(method):
                curves = "of fedavg" if method.name in ("fedavg", "cfedavg") else method.name
                return Tuned({}, 4, 0, (), (scores or {}).get(method.name, 0.5), curves)

            return {place: tuned(place[1]) for place in self.places}

        monkeypatch.setattr(Tuner, "run", run)
        monkeypatch.setattr(Tuner, "seconds", lambda self: each)
        monkeypatch.setattr(Tuner, "splits", lambda self: 4)
        monkeypatch.setattr(Runs, "metric", Metric("accuracy", True, "share"))
        (tmp_path / folder).mkdir(exist_ok=True)
        advice = advise(tmp_path / folder, *SMALL, *words, seeds=8)
        return screened(advice, minutes, Runs(1))

    return make


def tried(advice):
    return [one["name"] for one in advice.screen["tried"]]


@pytest.mark.slow
@pytest.mark.parametrize("own", ["fedavg", "stem", "feddyn"])
def test_fedavg_and_the_two_best_on_validation_splits_are_compared(own, screen):
    """cfedavg is FedAvg here. The method of the settings is tried as any other one."""
    scores = {"fedsmoo": 0.9, "cfedavg": 0.8, "fedavg": 0.8, "feddyn": 0.7, "stem": -math.inf}
    advice = screen(f"algorithm={own}", scores=scores)
    assert [method.name for method in advice.candidates] == ["fedavg", "fedsmoo", "feddyn"]
    assert (advice.screen["splits"], advice.screen["trials"]) == (4, 4)
    assert tried(advice)[:2] == ["fedsmoo", "fedavg"] and "stem" in advice.screen["failed"]
    pairs = [{one.name, other.name} for one, other in advice.question.pairs]
    assert pairs == [{"fedavg", "fedsmoo"}, {"fedavg", "feddyn"}, {"fedsmoo", "feddyn"}]
    assert [m.name for m in advice.question.methods][-2:] == ["alone", "pooled"]


@pytest.mark.slow
def test_what_does_not_go_with_the_settings_is_not_tried_and_named(screen):
    advice = screen(*ASYNCHRONOUS)
    assert "drift apart" in advice.skipped["fedsmoo"] and "\n" not in advice.skipped["fedsmoo"]
    assert not {*advice.skipped} & {*tried(advice)}


@pytest.mark.slow
def test_splits_are_as_many_as_there_is_time_for_and_stay(screen):
    """Half of the time, four trials, each as 1.5 runs of FedAvg: in 60 minutes of runs of 3 s 100
    methods have a split, so 30 have three.
    """
    for each, splits in ((0.1, 4), (3.0, 3), (9.0, 1)):
        first = screen(scores={"feddc": 0.9}, each=each, folder=f"{each}")
        assert first.screen["splits"] == splits
        assert len(tried(first)) == len(ALGORITHMS) - 3
    again = screen(scores={"feddc": 0.9}, each=0.1, folder="9.0")
    assert again.screen == first.screen
    assert [m.name for m in first.candidates] == [m.name for m in again.candidates]


@pytest.mark.slow
def test_where_time_is_short_fedavg_and_the_method_of_the_settings_are_compared(screen):
    """30 methods x 4 trials x 1.5 x 20 s are an hour, and half of the time is for them."""
    advice = screen("algorithm=scaffold", scores={"feddc": 0.9}, each=20.0)
    assert [m.name for m in advice.candidates] == ["fedavg", "scaffold"] and advice.screen is None
    said = "60 minutes are too few to try 29 methods beside FedAvg ... --minutes 120, or name one"
    refused(lambda: screen(each=20.0, folder="plain"), said, kind=ConfigError)
    assert screen(minutes=130, each=20.0, folder="plain").screen is not None
