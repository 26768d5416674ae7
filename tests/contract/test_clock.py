"""Runs under an asynchronous clock: stopped and resumed, in every engine, beside other parts."""

from __future__ import annotations

import pytest
import torch

from fedloom import Checkpoint, Churn, Local
from fedloom.aggregation import Median
from fedloom.algorithms.registry import make_algorithm
from fedloom.compression.codecs import TopK
from fedloom.compression.error_feedback import EF21, Residual
from fedloom.compression.link import Link, Via
from fedloom.errors import CompositionError, ConfigError
from fedloom.federation.availability import Availability
from fedloom.federation.clock import Asynchronous
from fedloom.federation.devices import LogNormal
from fedloom.submodels import FedPer, HeteroFL
from tiny import agree, agree_within, outcome, results_agree, small

VIA = Via(TopK(ratio=0.3), Residual())
CASES = {
    "scaffold": {},
    "ifca": {},
    "compressed both ways": {"compress": Link(VIA, down=TopK(ratio=0.5))},
    "parts": {"submodel": HeteroFL(), "capacities": (0.5, 1.0)},
    "private layers": {"private": FedPer()},
    "median": {"aggregation": Median()},
    "churn": {"churn": Churn(active=5, every=2)},
    "drop-out": {"availability": Availability(share=0.8, dropout=0.3)},
}


def experiment(case, rounds=6, dtype=torch.float32, **changes):
    settings = {
        "clock": Asynchronous(buffer=2, concurrency=4),
        "devices": LogNormal(sigma=1.5, up=1e4, down=1e4),
        "local": Local(epochs=1, batch=4, lr=0.1),
        "checkpoint": Checkpoint(every_rounds=1, every_seconds=None),
    } | CASES.get(case, {})
    name = case if case in ("scaffold", "ifca") else "fedavg"
    return small(make_algorithm(name), dtype, rounds=rounds, **(settings | changes))


@pytest.mark.quick("scaffold", "ifca", "parts", "churn")
@pytest.mark.parametrize("case", CASES)
def test_resumed_is_uninterrupted(case, tmp_path):
    whole = experiment(case).run()
    late = [row["staleness_max"] for row in whole.history if row["clients"]]
    assert max(late) > 1
    experiment(case, 3).run(tmp_path / "run")
    results_agree(experiment(case).resume(tmp_path / "run"), whole)


@pytest.mark.parametrize("case", ["scaffold", "parts"])
def test_engines_results_agree(case, engine_of):
    end = lambda engine: outcome(experiment(case, dtype=torch.float64, engine=engine), 6)
    serial = end("serial")
    agree(serial, end(engine_of("workers:2")))
    agree_within(serial, end("vectorised:2"), 1e-12)


def test_a_client_whose_update_is_not_finite_is_left_out_of_its_step():
    class Spoilt(type(make_algorithm("fedavg"))):
        def finish(self, x, loc, msg, mem, job):
            up, mem = super().finish(x, loc, msg, mem, job)
            return up._replace(delta=up.delta / (job.weight != 11)), mem  # client 4

    given = experiment("fedavg", nonfinite="skip")
    given.algorithm = Spoilt()
    rows = given.run().history
    assert [4 in row["clients"] for row in rows] == [row.get("skipped") == [4] for row in rows]
    assert any("skipped" in row for row in rows)


@pytest.mark.parametrize(
    ("method", "changes", "words"),
    [
        ("mime", {}, "Mime: a cohort answers before it trains"),
        ("afl", {}, "AFL: its server takes every update"),
        ("fafed", {}, "FAFED: its server takes every update"),
        ("scaffnew", {}, "Scaffnew: its server takes every update"),
        ("fedspeed", {}, "FedDyn: .* take clock.staleness = 0"),
        ("fedavg", {"compress": Via(TopK(ratio=0.5), EF21())}, "EF21: .* clock.staleness = 0"),
        ("fedavg", {"churn": Churn(active=5, forget=True)}, "churn.forget = false"),
    ],
)
def test_what_has_no_meaning_under_the_clock_is_refused(method, changes, words):
    given = experiment("", **changes)
    given.algorithm = make_algorithm(method)
    with pytest.raises(CompositionError, match=f"an asynchronous clock and .*{words}"):
        given.run()
    if "staleness" in words:
        given.clock = Asynchronous(buffer=2, staleness=0.0)
        assert len(given.run().history) == 6


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"clock": Asynchronous(buffer=8)}, "clock.buffer must be at most the 7 clients"),
        ({"clock": Asynchronous(concurrency=9, buffer=1)}, "clock.concurrency must be at most the"),
        ({"sampling": "poisson"}, "clock = asynchronous and sampling = poisson"),
        ({"availability": Availability(over_selection=1.5)}, "over_selection = 1.5 is about the"),
    ],
)
def test_what_says_otherwise_who_takes_part_is_refused(changes, words):
    with pytest.raises(ConfigError, match=words):
        experiment("", **changes)


def test_a_rule_of_many_updates_is_asked_about_the_buffer():
    with pytest.raises(ConfigError, match="of 2 clients in a round 1 may be hostile"):
        experiment("", aggregation="krum").run()
    big = experiment("", aggregation="krum", clock=Asynchronous(buffer=5, concurrency=7))
    assert len(big.run().history) == 6
