"""Devices' speeds, time-outs and the asynchronous clock, against rounds and against clients that
are computed by hand.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedloom import FedAvg, Local
from fedloom.algorithms import CFedAvg, FedBuff
from fedloom.algorithms.registry import ALGORITHMS, make_algorithm
from fedloom.compression.codecs import TopK
from fedloom.compression.error_feedback import Residual
from fedloom.compression.link import FieldCodec
from fedloom.data import from_clients
from fedloom.errors import ConfigError
from fedloom.federation.availability import Availability
from fedloom.federation.clock import Asynchronous
from fedloom.federation.devices import Levels, LogNormal
from fedloom.submodels import HeteroFL
from tiny import A, B, models, near, quadratics, same, small, timeless, trace

RATE = 0.1
last = lambda experiment, rounds: [*trace(experiment, rounds)][-1]


# ---------------------------------------------------------------------------- devices and time-outs
FOUR = (1.0, 2.0, 0.1, 3.5)  # steps a second


@pytest.mark.parametrize(
    ("local", "copies", "steps"),
    [
        ({}, (1, 1, 1, 1), [4, 8, 1, 14]),  # the third ends its first step
        ({"steps": 5}, (1, 1, 1, 1), [4, 5, 1, 5]),
        ({"epochs": 3}, (1, 2, 1, 6), [3, 6, 1, 14]),
    ],
)
def test_a_time_out_leaves_each_client_what_its_device_has_done(local, copies, steps):
    local, devices = Local(seconds=4.0, batch=1, **local), Levels(steps_per_second=FOUR)
    fed = quadratics(FedAvg(), copies, local=local, devices=devices).build().fed
    assert [fed.steps(i) for i in range(4)] == steps == [len(fed.batches(i, 0)) for i in range(4)]


@pytest.mark.parametrize("engine", ["serial", "vectorised:2"])
def test_cfedavg_divides_by_the_steps_that_were_done(engine):
    parts = {"local": Local(seconds=2.0, batch=1, lr=RATE), "weighting": "uniform"}
    devices = Levels(steps_per_second=FOUR)
    x, run = (
        np.zeros(2),
        quadratics(CFedAvg(per_step=True), devices=devices, engine=engine, **parts),
    )
    for result in models(run, 3):
        near(result, x)
        g = [(B[i] - x) * (1 - (1 - RATE * A[i]) ** k) / k for i, k in enumerate((2, 4, 1, 7))]
        x = x + np.mean(g, 0)


def test_simulated_seconds_are_those_of_the_slowest_client():
    levels = Levels(steps_per_second=FOUR, up=8.0, down=16.0)
    settings = {"local": Local(steps=3, batch=1, lr=RATE), "cohort": [[0, 1], [1, 3], [2]]}
    loop = last(quadratics(FedAvg(), devices=levels, **settings), 3)
    travel = 2 * 8 / 16 + (2 * 8 + 8) / 8  # x of two doubles down; delta and the weight up
    seconds = np.array([3 / 1.0, 3 / 2.0, 3 / 0.1]) + travel
    near([row["simulated_seconds"] for row in loop.log.history], seconds)
    assert loop.state.ledger.simulated == pytest.approx(sum(seconds))
    plain = last(quadratics(FedAvg(), **settings), 3)
    assert "simulated_seconds" not in plain.log.history[0] and plain.state.ledger.simulated == 0.0


def test_speeds_are_drawn_once_from_the_seed():
    profile = LogNormal(median=5.0, sigma=0.4)
    one = profile.speeds(4000, 3)
    assert one == profile.speeds(4000, 3) != profile.speeds(4000, 4)
    logs = np.log(np.array(one) / 5.0)
    assert abs(logs.mean()) < 4 * 0.4 / 4000**0.5 and logs.std() == pytest.approx(0.4, rel=0.05)
    assert LogNormal(sigma=0.0).speeds(3, 1) == [10.0] * 3


def test_bad_devices_and_time_outs_are_refused():
    no_steps = {"steps_per_second": ()}, {"steps_per_second": (1.0, 0.0)}, {"up": 0.0}
    for given in (*no_steps, {"steps_per_second": "fast"}):
        with pytest.raises(ConfigError):
            Levels(**given)
    with pytest.raises(ConfigError):
        quadratics(CFedAvg(), local=Local(seconds=1.0)).build()


# ----------------------------------------------------------------------------- the clock and rounds
SPEED = Levels(steps_per_second=(2.0,))  # where messages differ in length, only steps take time
CASES = {
    "fedavg": {},
    "scaffold": {},
    "fedadam": {},
    "fedexp": {},
    "mimelite": {"local": Local(steps=3, batch=None, lr=RATE)},  # whose pass takes equal times
    "feddyn": {"clock": Asynchronous(buffer=4, staleness=0.0)},
    "compressed": {"compress": FieldCodec(TopK(ratio=0.3), Residual()), "devices": SPEED},
    "parts": {"submodel": HeteroFL(), "capacities": (0.5, 1.0), "devices": SPEED},
    "vectorised": {"engine": "vectorised:3"},
}


def rows_of(loop):
    out = ("staleness_mean", "staleness_max", "clients", "simulated_seconds")
    return [{k: v for k, v in row.items() if k not in out} for row in timeless(loop.log.history)]


@pytest.mark.parametrize("case", CASES)
def test_with_equal_times_and_a_buffer_of_the_cohort_it_is_the_run_in_rounds(case):
    method = make_algorithm(case if case in ALGORITHMS else "fedavg")
    changes = {
        "clock": Asynchronous(buffer=4),
        "devices": Levels(steps_per_second=(2.0,), up=1e4),
        "local": Local(steps=3, batch=4, lr=RATE),
    } | CASES[case]
    one = last(small(method, **changes), 4)
    other = last(small(method, **(changes | {"clock": None})), 4)
    assert same(one.state.srv, other.state.srv) and same(one.state.buffers, other.state.buffers)
    assert [row["clients"] for row in one.log.history] == [other.cohorts.of(t) for t in range(4)]
    assert rows_of(one) == rows_of(other)
    seconds = [[row["simulated_seconds"] for row in loop.log.history] for loop in (one, other)]
    np.testing.assert_allclose(*seconds, rtol=1e-9)
    assert {row["staleness_max"] for row in one.log.history} == {0}
    memories = [loop.memory.get(range(7)) for loop in (one, other)]
    assert memories[0].keys() == memories[1].keys()
    assert all(same(memories[0][i], memories[1][i]) for i in memories[0])


# ----------------------------------------------------------------------------- two clients by hand
def two(clock, speeds=(2.0, 1.0), **changes):
    """Clients 0 and 1 of the quadratics, one step each; 0 is twice as fast."""
    pairs = [(A[i : i + 1], B[i : i + 1]) for i in range(2)]
    settings = {
        "data": from_clients(pairs, dtype=torch.float64),
        "local": Local(steps=1, lr=RATE, batch=1),
        "devices": Levels(steps_per_second=speeds),
        "clock": clock,
    }
    method = changes.pop("algorithm", FedBuff(server_lr=0.5))
    return quadratics(method, **(settings | changes))


def test_two_clients_by_hand():
    """At 0 both get x0. 0 comes at 0.5 and, with x1, at 1.0, where 1 comes as well, with x0; 0 is
    first. Then 0 comes with x2 at 1.5, both at 2.0, 0 with x4 and 1 with x3.
    """
    arrivals = [(0, 0, 0.5), (0, 1, 1.0), (1, 0, 1.0), (0, 2, 1.5), (0, 4, 2.0), (1, 3, 2.0)]
    loop = last(two(Asynchronous(buffer=1, concurrency=2)), 6)
    x, now = [np.zeros(2)], 0.0
    for t, (i, version, at) in enumerate(arrivals):
        move = -RATE * A[i] * (x[version] - B[i])
        x.append(x[t] + 0.5 * move / np.sqrt(1 + t - version))
        row = loop.log.history[t]
        assert row["clients"] == [i] and row["staleness_max"] == t - version
        assert row["simulated_seconds"] == at - now
        now = at
    near(loop.state.srv.x, x[-1], 1e-14)
    assert loop.state.ledger.simulated == now


def test_a_buffer_of_two_is_a_mean_whose_older_moves_count_less():
    """With two of them the staleness is 0 and 0, and the weights are those of the experiment."""
    clock = Asynchronous(buffer=2, concurrency=2, staleness=1.0)
    loop = last(two(clock, (1.0, 0.4), weighting=(3.0, 1.0)), 1)
    moves = [RATE * A[i] * B[i] for i in range(2)]
    near(loop.state.srv.x, 0.5 * (3 * moves[0] + moves[1]) / 4, 1e-14)
    assert loop.log.history[0]["simulated_seconds"] == 2.5


def test_who_drops_out_is_billed_for_the_model_alone_and_takes_its_time():
    clock = Asynchronous(buffer=1, concurrency=1)
    loop = last(two(clock, (4.0, 1.0), availability=Availability(dropout=0.5), seed=3), 12)
    gone = sum(row["dropped"] for row in loop.log.history)
    arrived = [i for row in loop.log.history for i in row["clients"]]
    assert gone and arrived and len(arrived) == loop.state.ledger.answers
    assert loop.state.ledger.up == {"delta": 16 * len(arrived), "weight": 8 * len(arrived)}
    assert loop.state.ledger.down == {"x": 16 * (len(arrived) + gone)}
    assert sum(row["bytes_wasted"] for row in loop.log.history) == 16 * gone


def test_a_quick_client_does_not_fill_a_buffer_alone():
    loop = last(two(Asynchronous(buffer=2, concurrency=2), (100.0, 1.0)), 3)
    assert [row["clients"] for row in loop.log.history] == [[0, 1]] * 3


def test_fedbuff_is_fedavg_under_the_clock():
    clock = Asynchronous(buffer=1, concurrency=2)
    ends = [last(two(clock, algorithm=kind(server_lr=0.5)), 5) for kind in (FedBuff, FedAvg)]
    assert same(ends[0].state.srv, ends[1].state.srv)


def test_without_devices_the_clock_takes_the_speeds_of_lognormal():
    clock = Asynchronous(buffer=1, concurrency=2)
    ends = [last(two(clock, devices=profile), 5) for profile in (None, LogNormal())]
    rows = [[row["simulated_seconds"] for row in loop.log.history] for loop in ends]
    assert rows[0] == rows[1] and same(ends[0].state.srv, ends[1].state.srv)


def test_a_client_whose_update_is_not_finite_is_left_out_of_its_step():
    class Spoilt(FedAvg):
        def finish(self, x, loc, msg, mem, job):
            up, mem = super().finish(x, loc, msg, mem, job)
            return up._replace(delta=up.delta / (job.weight != 11)), mem  # client 4

    late = {
        "clock": Asynchronous(buffer=2, concurrency=4),
        "devices": LogNormal(sigma=1.5, up=1e4, down=1e4),
        "local": Local(epochs=1, batch=4, lr=RATE),
    }
    rows = small(Spoilt(), nonfinite="skip", rounds=6, **late).run().history
    assert [4 in row["clients"] for row in rows] == [row.get("skipped") == [4] for row in rows]
    assert any("skipped" in row for row in rows)
