"""Clients that are available at some times, drop out, or answer too late."""

from __future__ import annotations

import math

import pytest

from fedloom import Checkpoint, FedAvg, Local
from fedloom.algorithms.registry import make_algorithm
from fedloom.data.client_names import ClientNumbers
from fedloom.errors import CheckpointError, ConfigError
from fedloom.federation.availability import Availability, read_trace
from fedloom.federation.devices import Levels
from fedloom.federation.sampling import Churn, ClientSampler
from tiny import same, small, timeless, trace, weights

SPEEDS = (1.0, 2.0, 4.0, 8.0, 16.0, 3.0, 5.0)
SECONDS = "client,begin_seconds,end_seconds\n"
ROUNDS = "client,first_round,last_round\n"


def experiment(given, rounds=6, **changes):
    settings = {
        "availability": given,
        "devices": Levels(steps_per_second=SPEEDS),
        "local": Local(steps=4, batch=4, lr=0.1),
        "checkpoint": Checkpoint(every_rounds=1, every_seconds=None),
    }
    return small(FedAvg(), rounds=rounds, **(settings | changes))


def written(folder, text):
    file = folder / "trace.csv"
    file.write_text(text)
    return str(file)


def test_a_share_is_of_those_that_are_available():
    given = ClientSampler(0.5, 200, seed=2, availability=Availability(share=0.3))
    sizes = [len(given.present(t)) for t in range(50)]
    assert abs(sum(sizes) - 3000) < 4 * math.sqrt(50 * 200 * 0.3 * 0.7)
    assert len({*map(tuple, map(given.present, range(50)))}) == 50
    for t, there in enumerate(sizes):
        assert len(given.of(t)) == int(there / 2 + 0.5) and {*given.of(t)} <= {*given.present(t)}
    both = ClientSampler(3, 20, availability=Availability(share=0.5), churn=Churn(active=8))
    assert all(
        {*both.of(t)} <= {*ClientSampler(3, 20, churn=Churn(active=8)).present(t)} for t in range(9)
    )


def test_who_drops_out_receives_the_model_and_sends_nothing():
    loop = list(trace(experiment(Availability(dropout=0.5), cohort=5), 6))[-1]
    size = 4 * loop.net.layout.d
    for t, row in enumerate(loop.log.history):
        asked = {*loop.cohorts.of(t)}
        assert {*row["clients"]} <= asked and row["late"] == 0
        assert row["dropped"] == len(asked) - row["cohort"]
        assert row["bytes_down"] == 5 * size and row["bytes_wasted"] == row["dropped"] * size
        assert row["bytes_up"] == row["cohort"] * (size + 8)
        slowest = [4 / SPEEDS[i] for i in row["clients"]]
        assert row["simulated_seconds"] == max(slowest, default=0.0)
    assert len({row["dropped"] for row in loop.log.history}) > 2
    assert {*loop.memory.get(range(7))} == {i for row in loop.log.history for i in row["clients"]}


def test_of_more_clients_the_first_that_answer_are_taken():
    loop = list(trace(experiment(Availability(over_selection=1.5), cohort=4), 6))[-1]
    for t, row in enumerate(loop.log.history):
        asked = loop.cohorts.of(t)
        assert len(asked) == 6 and row["late"] == 2
        assert row["clients"] == sorted(sorted(asked, key=lambda i: -SPEEDS[i])[:4])
    assert [
        Availability(over_selection=f).ask_count(n) for f, n in ((1.1, 10), (1.3, 10), (1.01, 3))
    ] == [11, 13, 4]


def test_in_rounds_a_trace_says_who_is_there(tmp_path):
    file = written(tmp_path, ROUNDS + "0,1,2\n3,2,2\n\n5,4,inf\n")
    rows = experiment(Availability(trace=file), 5, cohort=1.0).run().history
    assert [row["clients"] for row in rows] == [[0], [0, 3], [], [5], [5]]


def test_in_seconds_a_round_waits_until_somebody_comes(tmp_path):
    file = written(tmp_path, SECONDS + "0, 0, 4.5\n2, 4, 4.5\n1, 10, 13\n")
    rows = experiment(Availability(trace=file), 4, cohort=1.0).run().history
    assert [row["clients"] for row in rows] == [[0], [0, 2], [1], [1]]  # at 0, 4, 8 -> 10, 12
    assert [row["simulated_seconds"] for row in rows] == [4, 4, 4, 2]
    with pytest.raises(ConfigError, match="has nobody after 14 seconds"):
        experiment(Availability(trace=file), 5, cohort=1.0).run()
    with pytest.raises(ConfigError, match="needs to know how fast"):
        experiment(Availability(trace=file), devices=None)


@pytest.mark.parametrize("case", ["share", "trace"])
def test_resumed_is_uninterrupted_and_another_trace_is_another_run(case, tmp_path):
    text = SECONDS + "".join(
        f"{i},{10 * i + 3 * k},{10 * i + 50}\n" for i in range(7) for k in (0, 1)
    )
    file = written(tmp_path, text)
    share = {"share": 0.5, "dropout": 0.2, "over_selection": 1.4}
    given = Availability(**(share if case == "share" else {"trace": file}))
    whole = experiment(given).run()
    experiment(given, 3).run(tmp_path / "run")
    end = experiment(given).resume(tmp_path / "run")
    assert weights(end.model) == weights(whole.model) and same(end.state, whole.state)
    assert timeless(end.history) == timeless(whole.history)
    written(tmp_path, text + "0,1000,1001\n")
    other = None if case == "share" else given
    with pytest.raises(CheckpointError, match="cohort"):
        experiment(other, 7).resume(tmp_path / "run")


def test_methods_that_ask_everybody_first_ask_those_that_are_there(tmp_path):
    file = written(tmp_path, SECONDS + "2,5,inf\n4,5,inf\n")
    given = experiment(Availability(trace=file), cohort=1.0)
    given.algorithm = make_algorithm("fafed")
    assert next(trace(given, 0)).state.ledger.client_rounds == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "must begin with the line client,begin_seconds,end_seconds or client,first_round"),
        ("client,begin,end\n", "got 'client,begin,end'"),
        (SECONDS, "names no client"),
        (SECONDS + "0,1,2\n9,1,2\n", "line 3 names client 9; clients are numbered 0 to 6"),
        (SECONDS + "0,2,1\n", "line 2 ends before it begins: '0,2,1'"),
        (SECONDS + "0,x,1\n", "a client and two numbers of seconds, got '0,x,1'"),
        (SECONDS + "0,1\n", "got '0,1'"),
        (SECONDS + "0,1,2,3\n", "got '0,1,2,3'"),
        (ROUNDS + "0,0,2\n", "a client and two rounds from 1 on, got '0,0,2'"),
        (ROUNDS + "0,1.5,2\n", "two rounds from 1 on, got '0,1.5,2'"),
        (ROUNDS + "0,3,2\n", "ends before it begins"),
        ("\xff\xfe", "must begin with the line"),
    ],
)
def test_a_trace_that_is_wrong_is_refused_with_its_line(text, words, tmp_path):
    with pytest.raises(ConfigError, match=words):
        read_trace(written(tmp_path, text), ClientNumbers((), 7))


def test_what_does_not_go_together_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        ClientSampler(2, 7, availability=Availability(trace=str(tmp_path / "no.csv")))
    for changes in ({"cohort": [[0, 1]]}, {"sampling": "bernoulli"}):
        with pytest.raises(ConfigError, match="over_selection and"):
            experiment(Availability(over_selection=2.0), **changes)
    with pytest.raises(ConfigError, match="over_selection must be in"):
        Availability(over_selection=0.5)
