"""Clients that are not always there, drop out or answer too late; and what they can hold."""

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedloom import Checkpoint, FedAvg, Local
from fedloom.algorithms.registry import make_algorithm
from fedloom.checks import tiny_federation
from fedloom.config import resolve
from fedloom.data.client_names import ClientNumbers
from fedloom.errors import CheckpointError, ConfigError
from fedloom.experiment.provenance import configuration, fingerprint
from fedloom.federation.availability import Availability, read_trace
from fedloom.federation.capacities import assign_capacities, levels_of, share_of
from fedloom.federation.devices import Levels
from fedloom.federation.sampling import Churn, ClientSampler
from fedloom.submodels import HeteroFL
from support.refusals import refused
from tiny import results_agree, small, trace

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


@pytest.fixture
def traced(tmp_path):
    """Availability by a trace of this text."""

    def write(text):
        (tmp_path / "trace.csv").write_text(text)
        return Availability(trace=str(tmp_path / "trace.csv"))

    return write


def test_a_share_is_of_those_that_are_available():
    cohorts = ClientSampler(0.5, 200, seed=2, availability=Availability(share=0.3))
    sizes = [len(cohorts.present(t)) for t in range(50)]
    assert abs(sum(sizes) - 3000) < 4 * math.sqrt(50 * 200 * 0.3 * 0.7)
    assert len({*map(tuple, map(cohorts.present, range(50)))}) == 50
    for t, there in enumerate(sizes):
        assert len(cohorts.of(t)) == int(there / 2 + 0.5)
        assert {*cohorts.of(t)} <= {*cohorts.present(t)}
    both = ClientSampler(3, 20, availability=Availability(share=0.5), churn=Churn(active=8))
    active = ClientSampler(3, 20, churn=Churn(active=8))
    assert all({*both.of(t)} <= {*active.present(t)} for t in range(9))


def test_who_drops_out_receives_the_model_and_sends_nothing():
    loop = list(trace(experiment(Availability(dropout=0.5), cohort=5), 6))[-1]
    size = 4 * loop.net.layout.d
    for t, row in enumerate(loop.log.history):
        cohort = {*loop.cohorts.of(t)}
        assert {*row["clients"]} <= cohort and row["late"] == 0
        assert row["dropped"] == len(cohort) - row["cohort"]
        assert row["bytes_down"] == 5 * size and row["bytes_wasted"] == row["dropped"] * size
        assert row["bytes_up"] == row["cohort"] * (size + 8)
        slowest = [4 / SPEEDS[i] for i in row["clients"]]
        assert row["simulated_seconds"] == max(slowest, default=0.0)
    assert len({row["dropped"] for row in loop.log.history}) > 2
    assert {*loop.memory.get(range(7))} == {i for row in loop.log.history for i in row["clients"]}


def test_of_more_clients_the_first_that_answer_are_taken():
    loop = list(trace(experiment(Availability(over_selection=1.5), cohort=4), 6))[-1]
    for t, row in enumerate(loop.log.history):
        cohort = loop.cohorts.of(t)
        assert len(cohort) == 6 and row["late"] == 2
        assert row["clients"] == sorted(sorted(cohort, key=lambda i: -SPEEDS[i])[:4])
    for factor, n, count in ((1.1, 70, 77), (1.3, 10, 13), (1.01, 3, 4)):
        assert Availability(over_selection=factor).ask_count(n) == count


def test_a_trace_says_who_is_there_in_rounds_or_seconds(traced):
    """In seconds a round waits until somebody comes."""
    rounds = traced(ROUNDS + "0,1,2\n3,2,2\n\n5,4,inf\n")
    rows = experiment(rounds, 5, cohort=1.0).run().history
    assert [row["clients"] for row in rows] == [[0], [0, 3], [], [5], [5]]
    seconds = traced(SECONDS + "0, 0, 4.5\n2, 4, 4.5\n1, 10, 13\n")
    rows = experiment(seconds, 4, cohort=1.0).run().history
    assert [row["clients"] for row in rows] == [[0], [0, 2], [1], [1]]  # at 0, 4, 8 -> 10, 12
    assert [row["simulated_seconds"] for row in rows] == [4, 4, 4, 2]
    refused(experiment(seconds, 5, cohort=1.0).run, "has nobody after 14 seconds", kind=ConfigError)
    refused(lambda: experiment(seconds, devices=None), "needs to know how fast", kind=ConfigError)
    early = experiment(traced(SECONDS + "2,5,inf\n4,5,inf\n"), cohort=1.0)
    early.algorithm = make_algorithm("fafed")  # which asks everybody first
    assert next(trace(early, 0)).state.ledger.client_rounds == 2


def test_a_resumed_trace_is_uninterrupted_and_another_one_is_another_run(tmp_path, traced):
    lines = [f"{i},{10 * i + 3 * k},{10 * i + 50}\n" for i in range(7) for k in (0, 1)]
    given = traced(SECONDS + "".join(lines))
    experiment(given, 3).run(tmp_path / "run")
    results_agree(experiment(given).resume(tmp_path / "run"), experiment(given).run())
    traced(SECONDS + "".join([*lines, "0,1000,1001\n"]))
    for other in (given, None):
        with pytest.raises(CheckpointError, match="cohort"):
            experiment(other, 7).resume(tmp_path / "run")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "must begin with the line client,begin_seconds,end_seconds or client,first_round"),
        ("client,begin,end\n", "got 'client,begin,end'"),
        (SECONDS, "names no client"),
        (SECONDS + "0,1,2\n9,1,2\n", "line 3 names client 9; clients are numbered 0 to 6"),
        (SECONDS + "0,2,1\n", "line 2 ends before it begins: '0,2,1'"),
        (SECONDS + "0,x,1\n", "a client and two numbers of seconds, got '0,x,1'"),
        (SECONDS + "0,1,2,3\n", "got '0,1,2,3'"),
        (ROUNDS + "0,0,2\n", "a client and two rounds from 1 on, got '0,0,2'"),
        (ROUNDS + "0,1.5,2\n", "two rounds from 1 on, got '0,1.5,2'"),
        ("\xff\xfe", "must begin with the line"),
    ],
)
def test_a_trace_that_is_wrong_is_refused_with_its_line(text, words, traced):
    refused(lambda: read_trace(traced(text).trace, ClientNumbers((), 7)), words, kind=ConfigError)


def test_what_does_not_go_together_is_refused(tmp_path):
    (tmp_path / "image.csv").write_bytes(b"\x89PNG\x0d\x0a\xff\x00")
    with pytest.raises(ConfigError, match=r"image\.csv' cannot be read: it "):
        read_trace(str(tmp_path / "image.csv"), ClientNumbers((), 7))
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        ClientSampler(2, 7, availability=Availability(trace=str(tmp_path / "no.csv")))
    for changes in ({"cohort": [[0, 1]]}, {"sampling": "bernoulli"}):
        with pytest.raises(ConfigError, match="over_selection and"):
            experiment(Availability(over_selection=2.0), **changes)
    refused(lambda: Availability(over_selection=0.5), "over_selection must be in", kind=ConfigError)


@pytest.mark.parametrize("value", [0, 1.5, "3/2", "1/0", "1e999", "half", math.nan, True, None])
def test_a_capacity_outside_0_to_1_is_refused_in_one_line(value):
    refused(lambda: share_of(value), "must be in (0, 1], got", "'1/4'", kind=ConfigError)


@given(st.integers(4, 60))
def test_levels_are_dealt_in_turn_and_groups_differ_by_one_at_most(clients):
    dealt = assign_capacities(["1/64", "1/16", "1/4", 1], clients)
    assert dealt[:4] == (1 / 64, 1 / 16, 1 / 4, 1.0)
    counts = Counter(dealt).values()
    assert len(dealt) == clients and max(counts) - min(counts) <= 1


@given(st.lists(st.integers(1, 20), min_size=2, max_size=5), st.integers(1, 200), st.integers(0, 9))
def test_a_distribution_gives_each_level_its_share_to_one_client(weights, clients, seed):
    shares = {(i + 1) / 8: w / sum(weights) for i, w in enumerate(weights)}
    dealt = assign_capacities(shares, clients, seed)
    assert len(dealt) == clients
    for level, share in shares.items():
        assert abs(dealt.count(level) - share * clients) < 1
    assert dealt == assign_capacities(shares, clients, seed)


def test_a_distribution_is_dealt_at_random_by_the_seed():
    shares = {"1/4": 0.5, 1: 0.5}
    one, other = assign_capacities(shares, 40, 0), assign_capacities(shares, 40, 1)
    assert one != other and sorted(one) == sorted(other) == [0.25] * 20 + [1.0] * 20


def test_a_file_has_one_capacity_for_each_client(tmp_path):
    plain = tmp_path / "own.txt"
    plain.write_text("# phones\n1/64\n1/4  # a better one\n\n1\n")
    assert assign_capacities(plain, 3) == assign_capacities(str(plain), 3) == (1 / 64, 0.25, 1.0)
    for text, clients, words in (
        ("1/64\n1/4\n1\n", 5, r"own\.txt' has 3 capacities for 5 clients"),
        ("0.5\n2\n", 2, r"own\.txt', client 1 must be in \(0, 1\], got '2'"),
        ("", 2, "is empty"),
    ):
        plain.write_text(text)
        with pytest.raises(ConfigError, match=words):
            assign_capacities(plain, clients)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([], "capacities must be levels such as"),
        ({}, "capacities must be levels such as"),
        (0.5, "capacities must be levels such as"),
        ({1: 0.5}, "share"),
        ({0.5: 1.5, 1: -0.5}, "share"),
        ({0.5: "x", 1: 1.0}, "share"),
        ([0.25, 0.5, 1.0], "3 capacities are given for 2 clients"),
        ("nowhere.txt", "neither levels such as '1/4, 1' nor a file"),
    ],
)
def test_capacities_that_cannot_be_are_refused(given, words):
    refused(lambda: assign_capacities(given, 2), words, kind=ConfigError)


def test_a_configuration_takes_all_of_them(tmp_path):
    assert levels_of("1/64,1/16, 0.25,1") == levels_of(["1/64", "1/16", 0.25, 1])
    of = lambda *changes: resolve("digits", ["submodel=heterofl", *changes])
    dealt = lambda *changes: of(*changes).experiment().build().fed.capacities
    shares = ("submodel.capacities=1/4,1", "submodel.shares=[0.9, 0.1]")
    table = of(*shares).values["submodel"]
    assert (table["capacities"], table["shares"]) == ([0.25, 1.0], [0.9, 0.1])
    assert dealt(*shares).count(0.25) == 45
    (tmp_path / "own.txt").write_text("\n".join(["1/4"] * 49 + ["1"]))
    assert dealt(f"submodel.capacities={tmp_path / 'own.txt'}")[-2:] == (0.25, 1.0)
    assert of("submodel.capacities=['1/4', 1.0]").values["submodel"]["capacities"] == [0.25, 1.0]
    assert of().values["submodel"]["capacities"] == [1 / 64, 1 / 16, 1 / 4, 1.0]


def test_a_resumed_run_notices_another_file_of_capacities(tmp_path):
    file, marks = tmp_path / "own.txt", []
    for text in ("1\n" * 6, "1/4\n" * 6):
        file.write_text(text)
        run = tiny_federation.experiment(submodel=HeteroFL(), capacities=file)
        loop = run.build()
        marks.append(fingerprint(configuration(run, loop), run.data, loop)["submodel"])
    assert marks[0] != marks[1]
