"""The asynchronous clock against rounds, and against two clients computed by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedloom import FedAvg, Local
from fedloom.algorithms import FedBuff
from fedloom.algorithms.registry import ALGORITHMS, make_algorithm
from fedloom.compression.codecs import TopK
from fedloom.compression.error_feedback import Residual
from fedloom.compression.link import FieldCodec
from fedloom.data import from_clients
from fedloom.federation.availability import Availability
from fedloom.federation.clock import Asynchronous
from fedloom.federation.devices import Levels
from fedloom.submodels import HeteroFL
from tiny import A, B, quadratics, same, small, timeless, trace

RATE = 0.1
SPEED = Levels(steps_per_second=(2.0,))  # where messages differ in length, only steps take time
CASES = {
    "fedavg": {},
    "scaffold": {},
    "fedadam": {},
    "fedexp": {},
    "mimelite": {"local": Local(steps=3, batch=None, lr=0.1)},  # whose pass takes equal times
    "feddyn": {"clock": Asynchronous(buffer=4, staleness=0.0)},
    "compressed": {"compress": FieldCodec(TopK(ratio=0.3), Residual()), "devices": SPEED},
    "parts": {"submodel": HeteroFL(), "capacities": (0.5, 1.0), "devices": SPEED},
    "vectorised": {"engine": "vectorised:3"},
}


def last(experiment, rounds):
    return list(trace(experiment, rounds))[-1]


def rows_of(loop):
    out = ("staleness_mean", "staleness_max", "clients", "simulated_seconds")
    return [{k: v for k, v in row.items() if k not in out} for row in timeless(loop.log.history)]


@pytest.mark.parametrize("case", CASES)
def test_with_equal_times_and_a_buffer_of_the_cohort_it_is_the_run_in_rounds(case):
    method = make_algorithm(case if case in ALGORITHMS else "fedavg")
    changes = {
        "clock": Asynchronous(buffer=4),
        "devices": Levels(steps_per_second=(2.0,), up=1e4),
        "local": Local(steps=3, batch=4, lr=0.1),
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


def two(clock, speeds=(2.0, 1.0), **changes):
    """Clients 0 and 1 of the quadratics, one step each; 0 is twice as fast."""
    pairs = [(A[i : i + 1], B[i : i + 1]) for i in range(2)]
    settings = {
        "data": from_clients(pairs, dtype=torch.float64),
        "local": Local(steps=1, lr=RATE, batch=1),
        "devices": Levels(steps_per_second=speeds),
        "clock": clock,
    }
    return quadratics(FedBuff(server_lr=0.5), **(settings | changes))


def test_two_clients_by_hand():
    """At 0 both get x0. 0 comes at 0.5 and, with x1, at 1.0, where 1 comes as well, with x0; 0 is
    first. Then 0 comes with x2 at 1.5, both at 2.0, 0 with x4 and 1 with x3.
    """
    arrivals = [(0, 0, 0.5), (0, 1, 1.0), (1, 0, 1.0), (0, 2, 1.5), (0, 4, 2.0), (1, 3, 2.0)]
    loops = list(trace(two(Asynchronous(buffer=1, concurrency=2)), 6))
    x, now = [np.zeros(2)], 0.0
    for t, (i, version, at) in enumerate(arrivals):
        move = -RATE * A[i] * (x[version] - B[i])
        x.append(x[t] + 0.5 * move / np.sqrt(1 + t - version))
        row = loops[-1].log.history[t]
        assert row["clients"] == [i] and row["staleness_max"] == t - version
        assert row["simulated_seconds"] == at - now
        now = at
    np.testing.assert_allclose(loops[-1].state.srv.x, x[-1], rtol=1e-14)
    assert loops[-1].state.ledger.simulated == now


def test_a_buffer_of_two_is_a_mean_whose_older_moves_count_less():
    """With two of them the staleness is 0 and 0, and the weights are those of the experiment."""
    clock = Asynchronous(buffer=2, concurrency=2, staleness=1.0)
    loop = last(two(clock, (1.0, 0.4), weighting=(3.0, 1.0)), 1)
    moves = [RATE * A[i] * B[i] for i in range(2)]
    np.testing.assert_allclose(loop.state.srv.x, 0.5 * (3 * moves[0] + moves[1]) / 4, rtol=1e-14)
    assert loop.log.history[0]["simulated_seconds"] == 2.5


@pytest.mark.parametrize("tau", range(6))
def test_weights_are_the_papers(tau):
    assert Asynchronous().weight(tau) == pytest.approx(1 / np.sqrt(1 + tau), rel=1e-15)
    assert Asynchronous(staleness=0.0).weight(tau) == 1.0


def test_who_drops_out_is_billed_for_the_model_alone_and_takes_its_time():
    speeds, given = (4.0, 1.0), Availability(dropout=0.5)
    clock = Asynchronous(buffer=1, concurrency=1)
    loop = last(two(clock, speeds, availability=given, seed=3), 12)
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
    given = two(clock)
    given.algorithm = FedAvg(server_lr=0.5)
    assert same(last(given, 5).state.srv, last(two(clock), 5).state.srv)
