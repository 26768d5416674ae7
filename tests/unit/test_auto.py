"""engine = "auto": what is measured, what is chosen, and that a run keeps to it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedloom import Experiment, FedAvg, Local
from fedloom.algorithms import FAFED
from fedloom.data import from_clients
from fedloom.engines import Serial, Vectorised, Workers, auto, bits_of
from fedloom.engines.auto import choose
from fedloom.engines.vmap_range import default_chunk
from fedloom.errors import ClientError, ConfigError
from tiny import small, timeless


def choice(monkeypatch, times, rounds=10**6, algorithm=None, **parts):
    """What choose() makes of these times per engine; the engines themselves are not run."""
    monkeypatch.setattr(auto, "processors", lambda: 2)
    monkeypatch.setattr(Workers, "open", lambda *a: None)
    monkeypatch.setattr(auto._Trial, "_measure", lambda self, engine: times[engine.text])
    monkeypatch.setattr(auto._Trial, "_round", lambda self, engine, members: times[engine.text])
    loop = small(algorithm or FedAvg(), **parts).build()
    return choose(loop.plan, loop.fed, loop.net, loop.cohorts.of(0), rounds)


TIMES = {"serial": 8.0, "vectorised:5": 2.0, "workers:2": 5.0, "workers:2+vectorised:2": 1.0}


@pytest.mark.parametrize("best", TIMES)
def test_the_fastest_is_chosen(monkeypatch, best):
    found = choice(monkeypatch, TIMES | {best: 0.5}, cohort=5)
    assert found.engine == best
    assert found.seconds == TIMES | {best: 0.5}
    assert f"engine = {best}, 500 ms a round" in str(found)


def test_what_is_hardly_faster_does_not_displace_what_asks_less(monkeypatch):
    times = dict.fromkeys(TIMES, 0.99) | {"serial": 1.0}
    assert choice(monkeypatch, times, cohort=5).engine == "serial"


def test_processes_are_not_started_for_a_short_run(monkeypatch):
    found = choice(monkeypatch, TIMES, rounds=9, cohort=5)
    assert found.engine == "vectorised:5"
    assert "18 s" in found.left_out["workers:2"]
    assert choice(monkeypatch, TIMES, rounds=11, cohort=5).engine == "workers:2+vectorised:2"


@pytest.mark.parametrize(("rounds", "seconds"), [(1, 0.2), (400, 1.2), (10**6, 2.0)])
def test_a_long_run_is_measured_for_longer(monkeypatch, rounds, seconds):
    """At most 0.3 % of it per candidate, serial's estimate being 1 s a round."""
    asked = []

    def measured(self, engine):
        asked.append((engine.text, pytest.approx(self._budget)))
        return 1.0

    monkeypatch.setattr(auto, "processors", lambda: 1)
    monkeypatch.setattr(auto._Trial, "_measure", measured)
    loop = small(FedAvg(), cohort=5).build()
    choose(loop.plan, loop.fed, loop.net, loop.cohorts.of(0), rounds)
    assert asked[0] == ("serial", 0.2) and asked[-1][1] == seconds
    assert [text for text, _ in asked].count("serial") == (1 if seconds == 0.2 else 2)


def test_those_that_are_close_run_whole_cohorts_in_turn(monkeypatch):
    """serial looked faster while the machine was; in turn vectorised is."""
    rounds, opened = [], []

    def measured(self, engine):
        return 1.0 if engine.text == "serial" else 1.1

    def round(self, engine, members):
        assert engine.text in opened
        rounds.append((engine.text, len(members)))
        return 3.0 if engine.text == "serial" else 2.0

    monkeypatch.setattr(auto, "processors", lambda: 1)
    monkeypatch.setattr(auto._Trial, "_measure", measured)
    loop = small(FedAvg(), cohort=5).build()
    cohort = loop.cohorts.of(0)
    assert choose(loop.plan, loop.fed, loop.net, cohort, 600).engine == "serial"
    monkeypatch.setattr(auto._Trial, "_round", round)
    for engine in (Serial, Vectorised):
        monkeypatch.setattr(engine, "open", lambda self, *a: opened.append(self.text))
    found = choose(loop.plan, loop.fed, loop.net, cohort, 700)
    assert found.engine == "vectorised:5"
    assert found.seconds == {"serial": 3.0, "vectorised:5": 2.0}
    assert rounds[-4:] == [("serial", 5), ("vectorised:5", 5)] * 2


@pytest.mark.parametrize(("estimate", "tried"), [(1.0, 5), (2.4, 4), (3.9, 2), (4.1, 2), (9.0, 0)])
def test_as_many_clients_as_take_two_seconds_run_in_turn(monkeypatch, estimate, tried):
    """2 s / estimate of 5 clients, whole chunks of 2; none where a chunk takes longer than that."""
    members = []

    def round(self, engine, clients):
        members.append(len(clients))
        return 0.01

    loop = small(FedAvg(), cohort=5).build()
    trial = auto._Trial(loop.plan, loop.fed, loop.net, loop.cohorts.of(0))
    trial.seconds = {"serial": estimate, "vectorised:2": estimate}
    trial._makes = {"serial": Serial, "vectorised:2": lambda: Vectorised(2)}
    monkeypatch.setattr(auto._Trial, "_round", round)
    trial.settle()
    assert set(members) == ({tried} if tried else set())


def test_an_engine_that_fails_on_a_whole_cohort_leaves_the_estimates(monkeypatch):
    def round(self, engine, clients):
        raise ClientError("client 4, round 1: its loss was nan")

    loop = small(FedAvg(), cohort=5).build()
    trial = auto._Trial(loop.plan, loop.fed, loop.net, loop.cohorts.of(0))
    trial.seconds = {"serial": 1.0, "vectorised:2": 1.1}
    trial._makes = {"serial": Serial, "vectorised:2": lambda: Vectorised(2)}
    monkeypatch.setattr(auto._Trial, "_round", round)
    trial.settle()
    assert trial.seconds == {"serial": 1.0, "vectorised:2": 1.1}


def test_engines_that_run_in_turn_do_not_disturb_each_other(monkeypatch):
    """Serial and vectorised share the net."""
    monkeypatch.setattr(auto, "processors", lambda: 1)
    monkeypatch.setattr(auto, "CLOSE", 1e9)
    monkeypatch.setattr(auto, "MOST", auto.BUDGET)
    loop = small(FedAvg(), cohort=5).build()
    found = choose(loop.plan, loop.fed, loop.net, loop.cohorts.of(0), 10**9)
    assert set(found.seconds) == {"serial", "vectorised:5"} and not found.left_out
    assert torch.equal(small(FedAvg(), cohort=5).build().net.init(), loop.net.init())


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.out = nn.LSTM(3, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, inputs):
        return self.out(self.rnn(inputs)[0][:, -1])


def test_an_engine_that_refuses_the_model_is_left_out_with_its_reason():
    data = from_clients([(torch.randn(6, 5, 3), torch.arange(6) % 2)] * 3)
    loop = Experiment(algorithm=FedAvg(), model=Recurrent, data=data, rounds=2).build()
    found = choose(loop.plan, loop.fed, loop.net, [0, 1, 2], rounds=2)
    assert found.engine == "serial" and found.seconds["serial"] > 0
    assert "LSTM" in found.left_out["vectorised:3"] and "LSTM" in str(found)


def test_real_times_of_an_algorithm_with_a_first_exchange():
    loop = small(FAFED(), cohort=4).build()
    found = choose(loop.plan, loop.fed, loop.net, loop.cohorts.of(0), rounds=1)
    assert set(found.seconds) == {"serial", "vectorised:4"}
    assert all(0 < s < 5 for s in found.seconds.values())


def test_a_run_goes_on_with_what_was_chosen(tmp_path, monkeypatch):
    monkeypatch.setattr(
        auto._Trial, "_measure", lambda self, engine: 1.0 if engine.text == "vectorised:4" else 2.0
    )
    out = tmp_path / "run"
    first = small(FedAvg(), engine="auto", cohort=4, rounds=2)
    first.run(out)
    assert first.engine == "vectorised:4" and first.choice.engine == "vectorised:4"
    assert 'engine = "vectorised:4"' in (out / "config.toml").read_text()
    monkeypatch.setattr(auto._Trial, "_measure", lambda *a: pytest.fail("measured again"))
    again = small(FedAvg(), engine="auto", cohort=4, rounds=4)
    resumed = again.resume(out)
    assert again.engine == "vectorised:4"
    whole = small(FedAvg(), engine="vectorised:4", cohort=4, rounds=4).run()
    assert timeless(resumed.history) == timeless(whole.history)


def test_measuring_leaves_the_run_as_it_would_have_been(tmp_path):
    torch.manual_seed(3)
    state = torch.get_rng_state()
    chosen = small(FedAvg(), engine="auto", cohort=4, rounds=2)
    one = chosen.run()
    assert torch.equal(torch.get_rng_state(), state)
    two = small(FedAvg(), engine=chosen.engine, cohort=4, rounds=2).run()
    assert torch.equal(one.state.x, two.state.x)


def test_the_default_chunk_fits_into_its_budget():
    wide = lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 40_000), nn.Linear(40_000, 2))
    data = from_clients([(torch.randn(4, 784), torch.arange(4) % 2)] * 3)
    local = Local(batch=2)
    big = Experiment(algorithm=FedAvg(), model=wide, data=data, rounds=1, local=local).build()
    assert default_chunk(big.plan, big.fed, big.net) == 1  # 31 million parameters, 1.5 GB a client
    loop = small(FedAvg()).build()
    assert default_chunk(loop.plan, loop.fed, loop.net) == 32
    assert default_chunk(loop.plan, loop.fed, loop.net, most=7) == 7


def test_names():
    assert [e.text for e in (Serial(), Vectorised(), Vectorised(3), Workers(2), Workers(2, 3))] == [
        "serial",
        "vectorised",
        "vectorised:3",
        "workers:2",
        "workers:2+vectorised:3",
    ]
    assert bits_of("workers:2") == "workers" and bits_of("vectorised:2") == "vectorised:2"
    from fedloom.engines import make_engine

    with pytest.raises(ConfigError, match="stands alone"):
        make_engine("auto:2")
    with pytest.raises(ConfigError, match="only workers and vectorised"):
        make_engine("vectorised:2+workers:2")
