"""What an asynchronous clock goes with, and whom it leaves out."""

from __future__ import annotations

import pytest
import torch

from fedloom import Checkpoint, Churn, Local
from fedloom.algorithms.registry import make_algorithm
from fedloom.compression.codecs import TopK
from fedloom.compression.error_feedback import EF21
from fedloom.compression.link import FieldCodec
from fedloom.errors import CompositionError, ConfigError
from fedloom.federation.availability import Availability
from fedloom.federation.clock import Asynchronous
from fedloom.federation.devices import LogNormal
from tiny import small


def experiment(case, rounds=6, dtype=torch.float32, **changes):
    settings = {
        "clock": Asynchronous(buffer=2, concurrency=4),
        "devices": LogNormal(sigma=1.5, up=1e4, down=1e4),
        "local": Local(epochs=1, batch=4, lr=0.1),
        "checkpoint": Checkpoint(every_rounds=1, every_seconds=None),
    }
    name = case if case in ("scaffold", "ifca") else "fedavg"
    return small(make_algorithm(name), dtype, rounds=rounds, **(settings | changes))


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
        (
            "fedavg",
            {"compress": FieldCodec(TopK(ratio=0.5), EF21())},
            "EF21: .* clock.staleness = 0",
        ),
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
