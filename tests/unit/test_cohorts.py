"""Who takes part: a number, a share, lists, draws; who is there, and what they can hold."""

import hashlib
import itertools
import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedloom import Checkpoint, Churn, FedAvg, Local
from fedloom.algorithms.registry import make_algorithm
from fedloom.checks import tiny_federation
from fedloom.config import resolve
from fedloom.data.clients import ClientNumbers
from fedloom.errors import CheckpointError, ConfigError
from fedloom.experiment.provenance import configuration, fingerprint
from fedloom.federation.availability import Availability, read_trace
from fedloom.federation.capacities import assign_capacities, levels_of, share_of
from fedloom.federation.choice import Known
from fedloom.federation.devices import Levels
from fedloom.federation.sampling import ClientSampler, round_half_up
from fedloom.submodels import HeteroFL
from fedloom_flower.privacy import SecretClientSampler
from support.refusals import refused
from tiny import quadratics, results_agree, small, trace


def rounds_of(cohorts, rounds):
    return [cohorts.of(t) for t in range(rounds)]


@given(st.integers(1, 60), st.data(), st.integers(0, 9))
def test_a_number_is_that_many_different_clients_sorted(n, data, round):
    size = data.draw(st.integers(1, n))
    cohort = ClientSampler(size, n, seed=3).of(round)
    assert len(cohort) == len(set(cohort)) == size and cohort == sorted(cohort)
    assert set(cohort) <= set(range(n))
    assert cohort == ClientSampler(size, n, seed=3).of(round)


def test_a_share_is_rounded_half_up_and_at_least_one():
    for share, n, size in ((0.05, 100, 5), (0.5, 5, 3), (0.001, 10, 1), (1.0, 7, 7)):
        assert len(ClientSampler(share, n).of(4)) == size
    assert ClientSampler(1, 7).share == 1 / 7
    assert [round_half_up(v) for v in (0.4, 0.5, 1.5, 2.5)] == [0, 1, 2, 3]


def test_fixed_sampling_is_uniform():
    cohorts = rounds_of(ClientSampler(4, 20, seed=1), 2000)
    # each is binomial(2000, 0.2): standard deviation 17.9
    assert all(abs(n - 400) < 4.5 * 17.9 for n in Counter(itertools.chain(*cohorts)).values())
    assert len(set(map(tuple, cohorts[:50]))) > 45
    assert cohorts[0] != ClientSampler(4, 20, seed=2).of(0)


@pytest.mark.parametrize("sampling", ["fixed", "bernoulli"])
def test_a_round_that_is_drawn_again_has_another_cohort(sampling):
    """The same one whenever it is; lists of clients stay as they are."""
    cohorts = ClientSampler(4, 20, seed=1, sampling=sampling)
    drawn = [[tuple(cohorts.of(t, attempt=k)) for k in range(5)] for t in range(20)]
    assert drawn == [[tuple(cohorts.of(t, attempt=k)) for k in range(5)] for t in range(20)]
    assert [tuple(cohorts.of(t)) for t in range(20)] == [each[0] for each in drawn]
    assert len({c for each in drawn for c in each}) > 95 and all(c for each in drawn for c in each)
    lists = ClientSampler([[0, 2], [1]], 3)
    assert lists.of(1, attempt=4) == lists.of(1) == [1]
    known = Known(3, 1, [0], [5], [], seed=2)
    assert known.generator().initial_seed() != known._replace(attempt=1).generator().initial_seed()


def test_bernoulli_takes_every_client_by_itself():
    n, p, rounds = 10, 0.3, 3000
    cohorts = rounds_of(ClientSampler(p, n, seed=5, sampling="bernoulli"), rounds)
    assert all(c and c == sorted(set(c)) for c in cohorts)
    somebody = 1 - (1 - p) ** n  # rounds without anybody are drawn again
    for i in range(n):
        share = sum(i in c for c in cohorts) / rounds
        assert abs(share - p / somebody) < 4.5 * math.sqrt(p * (1 - p) / rounds)
    sizes = [len(c) for c in cohorts]
    mean = sum(sizes) / rounds
    variance = sum((s - mean) ** 2 for s in sizes) / rounds
    assert abs(mean - n * p / somebody) < 0.15 and abs(variance - n * p * (1 - p)) < 0.4
    both = sum(0 in c and 1 in c for c in cohorts) / rounds
    assert abs(both - p * p / somebody) < 0.03
    tiny = rounds_of(ClientSampler(0.01, 5, sampling="bernoulli"), 30)
    assert all(tiny) and sum(len(c) == 1 for c in tiny) > 25


def test_poisson_is_bernoulli_without_another_draw():
    """A round may have nobody, which the accounts of privacy count on."""
    n, p, rounds = 4, 0.25, 2000
    poisson = ClientSampler(p, n, seed=5, sampling="poisson")
    cohorts = rounds_of(poisson, rounds)
    drawn = ClientSampler(p, n, seed=5, sampling="bernoulli")
    assert all(c == drawn.of(t) for t, c in enumerate(cohorts) if c)
    assert abs(sum(not c for c in cohorts) / rounds - (1 - p) ** n) < 0.04
    assert abs(sum(map(len, cohorts)) / rounds - n * p) < 0.08
    assert poisson.expected == 1.0 and poisson.largest == 4 and len(poisson.example) > 0


def test_lists_begin_again_when_they_end():
    cohorts = ClientSampler([[2, 0], [1], []], 3)
    assert rounds_of(cohorts, 5) == [[0, 2], [1], [], [0, 2], [1]] and cohorts.share == 1 / 3


def test_in_a_cycle_all_have_their_turn():
    cohorts = ClientSampler(2, 6, seed=1, sampling="cycle")
    rounds = rounds_of(cohorts, 9)
    for a in (0, 3, 6):
        assert sorted(itertools.chain(*rounds[a : a + 3])) == [*range(6)]
    assert rounds[:3] != rounds[3:6] and not cohorts.single_warning and cohorts.largest == 2


CHURN = Churn(active=250, every=100)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: ClientSampler(0, 5), "from 1 to the 5"),
        (lambda: ClientSampler(6, 5), "from 1 to the 5 clients there are, got 6"),
        (lambda: ClientSampler(0.0, 5), "(0, 1], got 0.0"),
        (lambda: ClientSampler(float("nan"), 5), "(0, 1]"),
        (lambda: ClientSampler([], 5), "at least one list"),
        (lambda: ClientSampler([[0, 5]], 5), "round 1 names client 5 ... 0 to 4"),
        (lambda: ClientSampler([[0], [-1]], 5), "round 2 names client -1"),
        (lambda: ClientSampler([[1, 1]], 5), "twice"),
        (lambda: ClientSampler(4, 6, sampling="cycle"), "divides the 6"),
        (lambda: ClientSampler([[0]], 6, sampling="cycle"), "got lists"),
        (lambda: ClientSampler(1, 6, sampling="cycle", churn=Churn(active=3)), "keep one of them"),
        (lambda: Churn(active=2.5), "active must be a whole number from 1, got 2.5"),
        (lambda: Churn(active=True), "whole number from 1, got True"),
        (lambda: Churn(active=2, every=0), "every must be"),
        (lambda: Churn(active=2, replace=1.5), "replace must be in [0, 1] or none, got 1.5"),
        (lambda: Churn(active=2, forget=3), "forget must be true or false"),
        (lambda: ClientSampler(1, 20, churn=CHURN), "active must be from 1 to the 20 ... got 250"),
        (lambda: ClientSampler(251, 500, churn=CHURN), "the 250 clients there are, got 251"),
        (lambda: ClientSampler([[0]], 500, churn=CHURN), "keep one of them"),
    ],
)
def test_what_cannot_be_is_refused(make, says):
    refused(make, says, kind=ConfigError)


def test_one_client_that_may_be_meant_as_all_is_said(caplog):
    assert "cohort = 1.0" in ClientSampler(1, 50).single_warning
    for size, clients in ((1.0, 50), (2, 50), (1, 1), (0.02, 50), ([[1]], 50)):
        assert ClientSampler(size, clients).single_warning == ""
    said = {
        "1 of 50 clients": ClientSampler(1, 50),
        "50 of 50 clients": ClientSampler(1.0, 50),
        "about 5 of 50 clients": ClientSampler(0.1, 50, sampling="bernoulli"),
        "2 of 20 clients that are there": ClientSampler(0.1, 50, churn=Churn(active=20)),
        "2 lists of clients, in turn": ClientSampler([[1], [2]], 50),
    }
    assert all(cohorts.words == words for words, cohorts in said.items())
    for size in (1, 1.0):
        quadratics(FedAvg(), cohort=size)
    assert caplog.text.count("cohort = 1 is one client of 4 in every round") == 1


def changing(population=500, size=0.04, seed=3, **options):
    return ClientSampler(size, population, seed, churn=Churn(**{"active": 250} | options))


@given(
    population=st.integers(1, 40),
    share=st.floats(0, 1),
    every=st.integers(1, 5),
    replace=st.one_of(st.none(), st.floats(0, 1)),
    round=st.integers(0, 40),
    seed=st.integers(0, 99),
)
def test_as_many_as_wanted_are_there_and_cohorts_are_of_them(
    population, share, every, replace, round, seed
):
    active = 1 + int(share * (population - 1))
    one = changing(population, 0.5, seed, active=active, every=every, replace=replace)
    there = one.present(round)
    assert len(there) == len(set(there)) == active and there == sorted(there)
    assert set(there) <= set(range(population))
    assert there == one.present(round - round % every)  # nothing changes within a stage
    assert set(one.of(round)) <= set(there) and one.of(round) == sorted(one.of(round))
    assert len(one.of(round)) == max(1, int(0.5 * active + 0.5))


def leaving(cohorts, stages):
    """How many leave after each round, which is a stage."""
    there = [set(cohorts.present(t)) for t in range(stages + 1)]
    return [len(a - b) for a, b in itertools.pairwise(there)]


def test_each_leaves_by_itself_with_the_probability():
    stages = 1500
    left = leaving(changing(40, 1, active=10, every=1, replace=0.3), stages)
    mean = sum(left) / stages
    variance = sum((n - mean) ** 2 for n in left) / stages
    assert abs(mean - 3) < 4.5 * math.sqrt(2.1 / stages)  # binomial(10, 0.3)
    assert abs(variance - 2.1) < 0.4
    paper = changing(every=100)
    assert len(paper.of(0)) == 10 and paper.share == 0.04  # 4 % of 250
    left = len(set(paper.present(0)) - set(paper.present(100)))
    assert abs(left - 125) < 4.5 * math.sqrt(250 / 4)  # each with probability 1/2


@pytest.mark.parametrize(
    ("population", "active", "replace", "left"), [(10, 8, 1.0, 2), (5, 5, 1.0, 0), (10, 4, 0.0, 0)]
)
def test_where_few_are_outside_the_others_stay(population, active, replace, left):
    one = changing(population, 1, active=active, every=1, replace=replace)
    assert set(leaving(one, 20)) == {left}


def test_any_round_can_be_wanted_first():
    rounds = range(0, 1000, 50)
    forward, backward = changing(seed=5, every=100), changing(seed=5, every=100)
    rows = [forward.of(t) for t in rounds]
    assert [backward.of(t) for t in rounds[::-1]] == rows[::-1]
    assert changing(seed=6, every=100).of(950) != rows[-1]


def test_who_has_just_left_is_forgotten_if_that_is_wanted():
    one = changing(20, 1, active=10, every=3, forget=True)
    for t in range(30):
        expected = set(one.present(t - 1)) - set(one.present(t)) if t else set()
        assert one.forgotten(t) == sorted(expected) and not (expected and t % 3)
    kept = changing(20, 1, active=10, every=3)
    assert all(kept.forgotten(t) == [] for t in range(30))
    assert ClientSampler(1, 20).forgotten(3) == []


def secret(key, size=0.3, n=6, sampling="poisson"):
    return SecretClientSampler(size, n, sampling=sampling, secret=key)


def test_secret_cohorts_are_those_of_the_formula():
    """u = BLAKE2b(key = secret, (round, attempt, client)) as a 64-bit number; in if u < q 2^64. So
    all 256 bits of the secret count: torch's generators would take 32 of them.
    """
    key, q = bytes(range(7, 39)), 0.5
    for t, attempt in ((0, 0), (5, 0), (5, 1)):
        drawn = []
        for i in range(40):
            place = b"".join(v.to_bytes(8, "little") for v in (t, attempt, i))
            u = int.from_bytes(hashlib.blake2b(place, key=key, digest_size=8).digest(), "little")
            drawn += [i] if u < q * 2**64 else []
        assert secret(key, q, 40).of(t, attempt=attempt) == drawn
    assert secret(key, 1.0, 40).of(3) == list(range(40))
    assert len(secret(key, 1, 1).of(0)) == 1


def test_secret_cohorts_are_poisson_only():
    for size, how in ((2, "fixed"), (0.5, "bernoulli"), ([[0]], "poisson")):
        other = lambda size=size, how=how: secret(bytes(32), size, 3, how)
        refused(other, "sampling = poisson", kind=ConfigError)
    refused(lambda: secret(b"short"), "32 bytes", kind=ConfigError)
    with pytest.raises(NotImplementedError):  # no order that the public seed would tell
        next(secret(bytes(32)).order([0, 1], 0))
    assert "secret" not in repr(secret(bytes(32)))


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
