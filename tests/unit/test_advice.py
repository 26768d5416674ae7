"""Which methods are compared for a federation, and which one is taken."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from fedloom.algorithms.registry import ALGORITHMS
from fedloom.errors import ConfigError
from fedloom.referee import Advised, Runs, advised, screened
from fedloom.referee.advice import pick_best
from fedloom.referee.question import Method
from fedloom.referee.tuner import Tuner
from fedloom.report.runs import Metric
from fedloom.study.tune import Tuned

# ---------------------------------------------------------------------------------- the candidates
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
    words: tuple[str, ...], names: list[str], tmp_path: Path
) -> None:
    asked = advised("digits", [*SMALL, *words], 2, 4, tmp_path)
    assert [method.name for method in asked.candidates] == names
    assert len(asked.question.pairs) == len(names) - 1
    own = asked.settings(asked.candidates[-1], {"local.lr": "0.5"}).values
    assert own["local"]["lr"] == 0.5 and "tests" not in own["data"], "the user's tests"


def test_all_others_are_tried_but_those_of_another_kind_of_round_or_model(tmp_path: Path) -> None:
    """FedBuff's rounds need its clock, and clients of Ditto and IFCA have models of their own."""
    others = {m.name for m in advised("digits", SMALL, 2, 4, tmp_path).others}
    assert others == {*ALGORITHMS} - {"fedavg", "fedbuff", "ditto", "ifca"}
    others = {m.name for m in advised("digits", [*SMALL, *ASYNCHRONOUS], 2, 4, tmp_path).others}
    assert "fedbuff" in others


@pytest.mark.slow
def test_baselines_stand_beside_and_are_no_rivals(tmp_path: Path) -> None:
    asked = advised("heart", ["rounds=1", "algorithm=scaffold"], 2, 4, tmp_path)
    names = [method.name for method in asked.question.methods]
    assert names == ["fedavg", "scaffold", "alone", "pooled"]
    assert {m.name for pair in asked.question.pairs for m in pair} == set(names[:2])


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
        ((0.93, 0.949, 0.95), (1, 1, 1), (), ("c", "best")),
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
    means, costs = (dict(zip("abc", values, strict=True)) for values in (scores, sent))
    assert pick_best(means, costs, verdicts, 0.005, simplest="a") == taken


# ---------------------------------------------------------------------------------- the screening
def screen_of(
    scores: dict[str, float],
    monkeypatch: pytest.MonkeyPatch,
    out: Path,
    minutes: float = 60,
    each: float = 0.1,
    words: tuple[str, ...] = (),
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
    asked = advised("digits", [*SMALL, *words], 8, 4, out)
    return screened(asked, minutes, Runs(1))


@pytest.mark.slow
@pytest.mark.parametrize("own", ["fedavg", "stem", "feddyn"])
def test_fedavg_and_the_two_best_on_validation_splits_are_compared(
    own: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """cfedavg is FedAvg here. The method of the settings is tried as any other one."""
    scores = {"fedsmoo": 0.9, "cfedavg": 0.8, "fedavg": 0.8, "feddyn": 0.7, "stem": -math.inf}
    found = screen_of(scores, monkeypatch, tmp_path, words=(f"algorithm={own}",))
    assert [method.name for method in found.candidates] == ["fedavg", "fedsmoo", "feddyn"]
    assert found.screen is not None and (found.screen.splits, found.screen.trials) == (4, 4)
    assert [*found.screen.tried][:2] == ["fedsmoo", "fedavg"] and "stem" in found.screen.failed
    pairs = [{one.name, other.name} for one, other in found.question.pairs]
    assert pairs == [{"fedavg", "fedsmoo"}, {"fedavg", "feddyn"}, {"fedsmoo", "feddyn"}]
    assert [m.name for m in found.question.methods][-2:] == ["alone", "pooled"]


@pytest.mark.slow
def test_what_does_not_go_with_the_settings_is_not_tried_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = screen_of({}, monkeypatch, tmp_path, words=ASYNCHRONOUS)
    assert "drift apart" in found.skipped["fedsmoo"] and "\n" not in found.skipped["fedsmoo"]
    assert found.screen is not None and not {*found.skipped} & {*found.screen.tried}


@pytest.mark.slow
def test_splits_are_as_many_as_there_is_time_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the time, four trials, each as 1.5 runs of FedAvg: in 60 minutes of runs of 3 s 100
    methods have a split, so 30 have three.
    """
    for each, splits in ((0.1, 4), (3.0, 3), (9.0, 1)):
        screen = screen_of({}, monkeypatch, tmp_path / f"{each}", 60, each).screen
        assert screen is not None and screen.splits == splits
        assert len(screen.tried) == len(ALGORITHMS) - 3


@pytest.mark.slow
def test_where_time_is_short_fedavg_and_the_method_of_the_settings_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """30 methods x 4 trials x 1.5 x 20 s are an hour, and half of the time is for them."""
    own = ("algorithm=scaffold",)
    found = screen_of({"feddc": 0.9}, monkeypatch, tmp_path / "own", 60, 20.0, own)
    assert [m.name for m in found.candidates] == ["fedavg", "scaffold"] and found.screen is None
    said = r"60 minutes are too few to try 29 methods beside FedAvg .* --minutes 120, or name one"
    with pytest.raises(ConfigError, match=said) as caught:
        screen_of({}, monkeypatch, tmp_path / "plain", 60, 20.0)
    assert "\n" not in str(caught.value)
    assert screen_of({}, monkeypatch, tmp_path / "plain", 130, 20.0).screen is not None


@pytest.mark.slow
def test_a_screening_that_was_begun_goes_on_with_its_splits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = screen_of({"feddc": 0.9}, monkeypatch, tmp_path, 60, 9.0)
    again = screen_of({"feddc": 0.9}, monkeypatch, tmp_path, 60, 0.1)
    assert first.screen == again.screen
    assert [m.name for m in first.candidates] == [m.name for m in again.candidates]
