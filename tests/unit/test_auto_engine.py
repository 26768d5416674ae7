"""engine = "auto": the rule that chooses a family of bits, and the run that measures itself."""

from __future__ import annotations

import os
import re
import shutil
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from fedloom import Evaluation, Experiment, FedAvg, Local
from fedloom.algorithms import FAFED, Scaffold
from fedloom.checks.compare import unequal
from fedloom.cli.dry_run import estimate
from fedloom.config import resolve
from fedloom.core.net import Net
from fedloom.data import from_clients
from fedloom.engines import (
    Auto,
    Serial,
    Vectorised,
    Workers,
    auto,
    bits_of,
    make_engine,
    ranges,
)
from fedloom.engines.client_results import Request
from fedloom.engines.family import Choice, choose_chunk, family_of
from fedloom.engines.ranges import default_chunk
from fedloom.engines.together import Together
from fedloom.errors import ClientError, ConfigError, WorkerError
from fedloom.experiment import processes
from fedloom.federation.clock import Asynchronous
from fedloom.recipes import RECIPES
from fedloom.storage.identity import differing
from fedloom.storage.run_directory import RunDirectory
from tiny import clusters, mlp, small, timeless

MANY = clusters(sizes=[3, 8, 5, 12] * 6)  # 24 clients
EQUAL = clusters(sizes=[8] * 6)  # rounds of one length


# -------------------------------------------------------------------------------------- the rule
def family(model, clients=100, shares=1, algorithm=None, batch=8):
    local = Local(batch=batch)
    parts = {"model": model, "data": MANY, "rounds": 1, "engine": "serial", "local": local}
    loop = Experiment(algorithm=algorithm or FedAvg(), **parts).build()
    return family_of(loop.plan, loop.fed, loop.net, clients, shares)


class Sized(nn.Module):
    """Three scores of five values, with so many parameters."""

    def __init__(self, parameters):
        super().__init__()
        self.layer, self.rest = nn.Linear(5, 3), nn.Parameter(torch.zeros(parameters - 18))

    def forward(self, inputs):
        return self.layer(inputs) + self.rest.sum()


class Convolving(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Conv1d(1, 1, 3)

    def forward(self, inputs):
        return self.layer(inputs[:, None])[:, 0]


class Branching(FedAvg):
    """A direction that depends on a value: not for many clients at once."""

    def direction(self, x, loc, msg, mem, grad, job):
        return (grad(x) if x.sum() > 0 else -grad(x)), loc


@pytest.mark.parametrize(
    ("model", "clients", "shares", "wanted", "why"),
    [
        (mlp(), 100, 1, "vectorised:50", "cohorts of 100"),
        (mlp(), 20, 1, "vectorised:20", "cohorts of 20"),
        (mlp(), 19, 1, "serial", "of a cohort are too few"),
        (mlp(), 1, 1, "serial", "of a cohort are too few"),
        (mlp(), 40, 2, "vectorised:20", "cohorts of 40"),
        (mlp(), 40, 3, "serial", "of a cohort are too few"),
        (Sized(1 << 17), 50, 1, "vectorised:50", "cohorts of 50"),
        (Sized((1 << 17) + 1), 50, 1, "serial", "131,073 parameters"),
        (Convolving(), 100, 1, "vectorised:25", "cohorts of 100"),
        (Convolving(), 130, 1, "vectorised:26", "cohorts of 130"),
        (Convolving(), 100, 4, "vectorised:25", "cohorts of 100"),
        (Convolving(), 100, 6, "serial", "of a cohort are too few"),
        (Convolving(), 99, 1, "serial", "in cohorts of 100"),
    ],
)
def test_the_table_of_the_rule(model, clients, shares, wanted, why):
    found = family(model, clients, shares)
    assert found.family == wanted and why in found.why and wanted in str(found)


def test_convolutions_for_many_at_once_need_a_small_batch():
    assert family(Convolving(), batch=10).family == "vectorised:25"
    found = family(Convolving(), batch=11)
    assert found.family == "serial" and "batches of at most 10" in found.why


def test_large_linear_layers_are_computed_in_onednn(monkeypatch):
    """On a CPU, of float32, in full precision."""
    monkeypatch.setattr("fedloom.engines.family.gains", lambda module, batch: batch == 8)

    def found(batch=8, dtype=torch.float32, precision="full"):
        local = Local(batch=batch, precision=precision)
        parts = {"model": mlp(dtype), "data": clusters(dtype), "local": local}
        loop = Experiment(algorithm=FedAvg(), rounds=1, **parts).build()
        return family_of(loop.plan, loop.fed, loop.net, 5).family

    assert found() == "serial+onednn"
    assert {found(7), found(dtype=torch.float64), found(precision="bf16")} == {"serial"}


@pytest.mark.slow
def test_chunks_are_equal_and_there_are_as_many_as_fifties():
    loop = Experiment(algorithm=FedAvg(), model=mlp(), data=MANY, rounds=1, engine="serial").build()
    for clients in range(20, 400, 7):
        found = family_of(loop.plan, loop.fed, loop.net, clients, 1).family
        chunk = int(found.partition(":")[2])
        assert chunk < 100 and -(-clients // chunk) == max(1, clients // 50), found


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.out = nn.LSTM(5, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, inputs):
        return self.out(self.rnn(inputs[:, None])[0][:, -1])


def test_what_cannot_be_computed_for_many_at_once_is_serial_with_the_reason():
    assert family(Recurrent()).family == "serial" and "LSTM" in family(Recurrent()).why
    refused = family(mlp(), algorithm=Branching())
    assert refused.family == "serial" and "Branching" in refused.why


def test_the_rule_asks_neither_clock_nor_machine(monkeypatch):
    loop = Experiment(algorithm=FAFED(), model=mlp(), data=MANY, rounds=1, engine="serial").build()
    for name in ("perf_counter", "monotonic", "process_time"):
        monkeypatch.setattr(f"time.{name}", lambda: pytest.fail("a clock"))
    for name in ("sched_getaffinity", "cpu_count"):
        monkeypatch.setattr(os, name, lambda *a: pytest.fail("the processors"), raising=False)
    state = torch.get_rng_state()
    # whether a thread fetches batches, which changes no bit, is all that asks for processors
    monkeypatch.setattr("fedloom.engines.vectorised.processors", lambda: 1)
    assert family_of(loop.plan, loop.fed, loop.net, 24).family == "vectorised:24"
    assert torch.equal(torch.get_rng_state(), state)


# ----------------------------------------------------------------------- the run measures itself
class Ways:
    """Workers of tests, which share processes, and clients that seem to take as long as is said."""

    def __init__(self, monkeypatch, engine_of=None, alone=4.0, many=2.0):
        self.alone, self.many, self.opened, self.closed = alone, many, 0, 0
        self.pieces, self.now = [], 0.0
        ways = self

        def made(number, chunk=None, onednn=False):
            if engine_of is None:  # which gives the numbers of one process
                inner = Vectorised(chunk) if chunk else Serial(onednn)
            else:
                more = f"+vectorised:{chunk}" if chunk else "+onednn" * onednn
                inner = engine_of(f"workers:{number}{more}")
            real_open, real_close, real_map = inner.open, inner.close, inner.map

            def opened(*parts):
                ways.opened += 1
                real_open(*parts)

            def closed():
                ways.closed += 1
                real_close()

            inner.open, inner.close, inner.map = opened, closed, ways.timed("many", real_map)
            inner.fit, inner.wait_until_ready = lambda n: None, lambda seconds: None
            return inner

        monkeypatch.setattr(auto, "Workers", made)
        monkeypatch.setattr(auto, "processors", lambda: 2)
        monkeypatch.setattr(auto.time, "perf_counter", lambda: self.now)
        real = Auto.open

        def open(engine, *parts):
            real(engine, *parts)
            engine.inner.map = ways.timed("alone", engine.inner.map)

        monkeypatch.setattr(Auto, "open", open)

    def timed(self, way, real):
        def run(what, asked):
            if what is not Request.TRAIN:
                return real(what, asked)
            self.pieces.append((way, asked.round, len(asked.cohort)))
            self.now += getattr(self, way) * len(asked.cohort)
            return real(what, asked)

        return run

    @property
    def rounds(self):
        """Who computed the last piece of each round."""
        return [*{at: way for way, at, _ in self.pieces}.values()]


# rounds whose seconds are made up: one step each, and nothing is evaluated
SHORT = {"data": EQUAL, "local": Local(steps=1, batch=4, lr=0.1), "evaluate": Evaluation(every=0)}


def run(rounds, algorithm=None, **changes):
    parts = SHORT | {"engine": "auto"} | changes
    return small(algorithm or FedAvg(), rounds=rounds, **parts).run()


def plain(rounds, **changes):
    return timeless(small(FedAvg(), rounds=rounds, **(SHORT | changes)).run().history)


@pytest.mark.parametrize(("many", "kept"), [(3.7, "many"), (3.9, "alone"), (8.0, "alone")])
def test_the_faster_of_two_ways_is_kept_from_the_first_round_on(monkeypatch, many, kept):
    ways = Ways(monkeypatch, many=many)
    found = run(5)
    trial = [("alone", 0, 1), ("many", 0, 2), ("many", 0, 2), ("alone", 0, 2)]
    assert ways.pieces[:5] == [*trial, (kept, 0, 3)] and ways.rounds == [kept] * 5
    assert ways.opened == ways.closed == 1
    assert timeless(found.history) == plain(5)


@pytest.mark.parametrize(("each", "opened"), [(1.0, 0), (1.01, 1)])
def test_processes_start_only_if_the_run_is_worth_it(monkeypatch, each, opened):
    """Five rounds of four clients, which are worth processes from 20 s on."""
    ways = Ways(monkeypatch, alone=each, many=0.1)
    run(5)
    assert ways.opened == opened


@pytest.mark.parametrize(("each", "clients"), [(0.3, 2), (0.2, 4), (0.01, 4)])
def test_the_trial_takes_about_a_second_of_one_process(monkeypatch, each, clients):
    ways = Ways(monkeypatch, alone=each, many=each)
    with pytest.raises(KeyboardInterrupt):
        run(30_000, algorithm=Stops())
    assert ("many", 0, clients) in ways.pieces


class Stops(FedAvg):
    """A server that ends its first round."""

    def server_step(self, srv, up, rnd):
        raise KeyboardInterrupt


@pytest.mark.slow
@pytest.mark.parametrize(("method", "name"), [(Scaffold, "serial"), (FAFED, "vectorised:2")])
def test_a_decision_at_any_place_changes_no_bit(monkeypatch, engine_of, name, method):
    monkeypatch.setattr(processes, "family_of", lambda *given: Choice(name, "a test"))
    ways = Ways(monkeypatch, engine_of, many=0.1)
    parts = {"rounds": 4, "data": MANY, "cohort": 4}
    found = small(method(), engine="auto", **parts).run()
    whole = small(method(), engine=name, **parts).run()
    assert ways.rounds == ["many"] * 4
    assert not unequal(found.state, whole.state)
    assert timeless(found.history) == timeless(whole.history)


@pytest.mark.slow
def test_real_processes_take_over_within_the_first_round(monkeypatch):
    for name, value in {"WORTH": 0.0, "FASTER": 1e9, "processors": lambda: 2}.items():
        monkeypatch.setattr(auto, name, value)
    engines, real = [], Auto.open
    monkeypatch.setattr(
        Auto, "open", lambda self, *parts: (engines.append(self), real(self, *parts))
    )
    ways = []
    found = run(3, on_round=lambda row: ways.append(engines[0].way.name))
    assert ways == ["workers"] * 3 and engines[0].way.name == "serial"  # the others have ended
    assert timeless(found.history) == plain(3)


def test_processes_that_keep_dying_leave_the_run_in_one_and_repeat_the_work(monkeypatch, caplog):
    ways = Ways(monkeypatch, many=0.1)
    made = auto.Workers

    def dying(*given):
        workers, count = made(*given), []
        real = workers.map

        def fails(*asked):
            count.append(1)
            if len(count) == 4:
                raise WorkerError("workers died 3 times in the same round")
            return real(*asked)

        workers.map = fails
        return workers

    monkeypatch.setattr(auto, "Workers", dying)
    found = run(10, evaluate=Evaluation())
    assert caplog.text.count("died 3 times in the same round; the run goes on in one process") == 1
    assert ways.rounds[-5:] == ["alone"] * 5 and ways.opened == ways.closed == 1
    assert timeless(found.history) == plain(10, evaluate=Evaluation())


@pytest.mark.parametrize("when", ["open", "wait_until_ready"])
@pytest.mark.parametrize(
    "error",
    [ConfigError("'loss' cannot be sent"), OSError(28, "no space"), WorkerError("no start")],
)
def test_processes_that_cannot_start_leave_the_run_in_one_and_the_log_says_so_once(
    monkeypatch, caplog, when, error
):
    ways = Ways(monkeypatch)
    made = auto.Workers

    def refusing(*given):
        workers = made(*given)

        def fail(*parts):
            raise error

        setattr(workers, when, fail)
        return workers

    monkeypatch.setattr(auto, "Workers", refusing)
    run(6)
    assert ways.rounds == ["alone"] * 6 and ways.closed == 1
    assert caplog.text.count("the run stays in one process: ") == 1


def test_where_no_process_could_help_none_is_started(monkeypatch):
    one = Ways(monkeypatch, many=0.1)
    run(20, cohort=1)  # one client has one process's work
    monkeypatch.setattr(processes, "family_of", lambda *given: Choice("vectorised:4", ""))
    run(20, cohort=4)  # and one chunk too
    monkeypatch.undo()
    two = Ways(monkeypatch, many=0.1)
    monkeypatch.setattr(auto, "processors", lambda: 1)
    run(20)
    monkeypatch.undo()
    assert (one.opened, two.opened) == (0, 0)
    monkeypatch.undo()
    loop = small(FedAvg(), engine="auto", rounds=20).build()
    monkeypatch.setattr(Net, "device", torch.device("cuda", 0))
    monkeypatch.setattr(Serial, "open", lambda *parts: None)
    monkeypatch.setattr(auto, "processors", lambda: 2)
    loop.engine.open(loop.plan, loop.fed, loop.net)
    assert loop.engine._processes == 1  # processes cannot share a GPU


# ------------------------------------------------------------------------------------ in a run
def test_nobody_has_to_choose_an_engine(tmp_path):
    """In Python, in every recipe, in a file of a user's, and where a method is tried."""
    parts = {"algorithm": FedAvg(), "model": mlp(), "data": MANY, "rounds": 1}
    exp = Experiment(**parts, device="cpu")
    exp.build()
    assert exp.used_engine == "auto+vectorised:24"
    assert {resolve(name).values["engine"] for name in RECIPES} == {"auto"}
    file = tmp_path / "mine.toml"
    data = '[data]\nname = "digits"\npartition = {name = "iid", clients = 5}\n'
    file.write_text(f'rounds = 1\nalgorithm = "fedavg"\nmodel = "mlp"\n{data}')
    assert resolve(file).values["engine"] == "auto"


@pytest.mark.parametrize(("buffer", "family"), [(3, "serial"), (24, "vectorised:24")])
def test_under_an_asynchronous_clock_a_run_has_the_bits_of_its_family(buffer, family):
    parts = {"algorithm": FedAvg(), "model": mlp(), "data": MANY, "rounds": 3, "cohort": 1.0}
    parts |= {"clock": Asynchronous(buffer=buffer), "device": "cpu"}
    exp, alone = Experiment(**parts), Experiment(**parts, engine=family)
    ran, other = exp.run(progress=False), alone.run(progress=False)
    assert timeless(ran.history) == timeless(other.history)
    assert exp.used_engine == f"auto+{family}"


def test_an_experiment_goes_on_in_each_folders_own_engine(tmp_path):
    """One object, which resumes runs of two families one after the other, and then begins anew."""
    for name in ("serial", "vectorised:4"):
        small(FedAvg(), engine=name, rounds=2).run(tmp_path / name)
    both = small(FedAvg(), engine="auto", rounds=4)
    for name in ("serial", "vectorised:4"):
        both.resume(tmp_path / name)
        assert both.used_engine == name
    both.run(tmp_path / "new")
    assert both.used_engine == "auto+serial"


def test_the_family_is_in_the_configuration_and_the_run_goes_on_with_it(tmp_path):
    parts = {"data": MANY, "cohort": 22}
    out = tmp_path / "run"
    first = small(FedAvg(), engine="auto", rounds=2, **parts)
    first.run(out)
    assert first.used_engine == "auto+vectorised:22" and first.choice.family == "vectorised:22"
    assert 'engine = "auto+vectorised:22"' in (out / "config.toml").read_text()
    whole = small(FedAvg(), engine="vectorised:22", rounds=6, **parts).run()
    for rounds, engine in ((4, "auto"), (5, "auto+vectorised:22"), (6, "vectorised:22")):
        again = small(FedAvg(), engine=engine, rounds=rounds, **parts)
        resumed = again.resume(out)
    assert timeless(resumed.history) == timeless(whole.history)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no process is bound here")
def test_a_run_in_the_share_of_a_job_has_one_process():
    """Of one processor, as `fedloom paper --jobs` gives to its runs (test_jobs.py)."""
    loop = small(FedAvg(), engine="auto", rounds=20).build()
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        loop.engine.open(loop.plan, loop.fed, loop.net)
    finally:
        os.sched_setaffinity(0, before)
    assert loop.engine._processes == 1


def test_ranks_resolve_the_family_and_run_it_in_one_process_each():
    group = SimpleNamespace(size=2, rank=0, locals=2, first=lambda f: f())
    loop = small(FedAvg(), data=MANY).build()
    for clients, wanted in ((22, "serial"), (40, "vectorised:20")):
        found = processes.choose_engine(loop.plan, loop.fed, loop.net, clients, group)
        assert found.family == wanted
        for name in (f"auto+{wanted}", f"ranks+auto+{wanted}"):
            engine = processes.engine_for(name, group, clients, 100)
            assert engine.text == f"ranks+{wanted}" and not isinstance(engine.inner, Auto)
    alone = small(FedAvg(), engine="ranks+auto", rounds=2)
    alone.run()
    assert alone.used_engine == "ranks+auto+serial"


@pytest.mark.parametrize("given", ["auto", "auto+serial"])
def test_a_dry_run_says_what_the_rule_took_and_why_and_starts_no_process(monkeypatch, given):
    monkeypatch.setattr(auto, "Workers", lambda *parts: pytest.fail("processes"))
    words = ["model=mlp", "model.hidden=[8]", "data.clients=5", "rounds=1000", f"engine={given}"]
    said = estimate(resolve("digits", words), 1)
    assert ("auto+serial" in said and "1 of a cohort are too few" in said) == (given == "auto")


def test_a_dry_run_says_how_many_clients_at_once_vectorised_takes():
    words = ["model=mlp", "model.hidden=[8]", "data.clients=5", "cohort=4", "engine=vectorised"]
    said = estimate(resolve("digits", words), 1)
    assert re.search(r"engine +vectorised:4 +cohorts of 4\n", said)


def test_an_interrupted_run_ends_its_processes(monkeypatch):
    ways = Ways(monkeypatch, many=0.5)

    def stop(row):
        if row["round"] == 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(20, on_round=stop)
    assert ways.rounds == ["many"] * 8 and ways.opened == ways.closed == 1


# ---------------------------------------------------------------------- clients at once, by memory
def test_the_default_chunk_fits_into_its_budget():
    wide = lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 40_000), nn.Linear(40_000, 2))
    data = from_clients([(torch.randn(4, 784), torch.arange(4) % 2)] * 3)
    local = Local(batch=2)
    big = Experiment(algorithm=FedAvg(), model=wide, data=data, rounds=1, local=local).build()
    assert default_chunk(big.plan, big.fed, big.net) == 1  # 31 million parameters, 1.5 GB a client
    loop = small(FedAvg()).build()
    assert default_chunk(loop.plan, loop.fed, loop.net) == 100
    assert default_chunk(loop.plan, loop.fed, loop.net, most=7) == 7


@pytest.mark.slow
def test_clients_that_do_not_fit_together_stop_the_run_with_the_size_that_does(
    monkeypatch, tmp_path
):
    class Small(Together):
        """A device that has room for so many."""

        room = 9

        def run(self):
            if len(self.clients) > self.room:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
            return super().run()

    monkeypatch.setattr(ranges, "Together", Small)
    parts = {"data": MANY, "cohort": 23, "rounds": 3}
    whole = small(Scaffold(), engine="vectorised:8", **parts).run()
    Small.room = 5

    def fail(engine):
        with pytest.raises(ClientError) as caught:
            small(Scaffold(), engine=engine, **parts).run(tmp_path / "run", go_on=True)
        return str(caught.value)

    for engine, clients, fits in (
        ("vectorised:23", 23, 5),
        ("auto", 23, 5),
        ("vectorised:6", 6, 3),
    ):
        said = fail(engine)
        assert said == (
            f"round 1: {clients} clients at once do not fit into the memory of cpu, and {fits} do; "
            f"start anew with engine = vectorised:{fits}, or serial (how many are computed at once "
            "belongs to the bits, so that a run never changes it)"
        )
        shutil.rmtree(tmp_path / "run")
    Small.room = 0
    assert re.match(r"client \d+, round 1: a client takes .* GiB or more", fail("vectorised:5"))
    Small.room = 8
    assert not unequal(small(Scaffold(), engine="vectorised:8", **parts).run().state, whole.state)


@pytest.mark.slow
@pytest.mark.usefixtures("shared_workers")
@pytest.mark.parametrize("processes", ["", "workers:1+"])
def test_vectorised_without_a_number_has_the_rules_and_goes_on_with_it(processes, tmp_path):
    """48 clients, of whom 26 take part: chunks of 26, whatever a later round has."""
    data = clusters(sizes=[3, 8, 5, 12] * 12)
    parts = {"data": data, "cohort": 26, "engine": f"{processes}vectorised"}
    small(Scaffold(), rounds=2, **parts).run(tmp_path / "run")
    assert from_run_engine(tmp_path / "run") == f"{processes}vectorised:26"
    again = small(Scaffold(), rounds=4, **parts).run(tmp_path / "run", go_on=True)
    whole = small(Scaffold(), rounds=4, **parts | {"engine": "vectorised:26"}).run()
    assert not unequal(again.state, whole.state)
    assert differing({"engine": "vectorised:26"}, {"engine": parts["engine"]}) == []
    assert differing({"engine": "serial"}, {"engine": parts["engine"]}) == ["engine"]


def from_run_engine(folder):
    return RunDirectory(folder).read_config()["engine"]


def test_vectorised_without_a_number_never_asks_for_free_memory(monkeypatch):
    """On a CPU it takes no more than fit into a gigabyte as they are counted; on a GPU the rule's
    number, and memory that is too small stops the run."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: pytest.fail("free memory"))
    loop = small(FedAvg()).build()
    parts = loop.plan, loop.fed, loop.net
    for budget, found in ((1 << 30, "vectorised:50"), (1, "vectorised:1")):
        monkeypatch.setattr(ranges, "BUDGET", budget)
        assert choose_chunk(*parts, 100).family == found
    assert "gigabyte" in choose_chunk(*parts, 100).why
    monkeypatch.setattr(Net, "device", torch.device("cuda", 0))
    assert choose_chunk(*parts, 100).family == "vectorised:50"
    assert choose_chunk(*parts, 90, 3).family == "vectorised:30"
    assert choose_chunk(*parts, 0).family == "vectorised:1"  # as in rounds that are mostly empty


# --------------------------------------------------------------------------------------- names
def test_names():
    made = [Serial(), Vectorised(), Vectorised(3), Workers(2), Workers(2, 3), Auto(Vectorised(3))]
    assert [e.text for e in made] == [
        "serial",
        "vectorised",
        "vectorised:3",
        "workers:2",
        "workers:2+vectorised:3",
        "auto+vectorised:3",
    ]
    for name in ("auto+serial", "auto+vectorised:3"):
        assert make_engine(name).text == name
    assert bits_of("workers:2") == "serial" and bits_of("vectorised:2") == "vectorised:2"
    assert make_engine("ranks+auto+vectorised:3").text == "ranks+vectorised:3"
    with pytest.raises(ConfigError, match="stands alone"):
        make_engine("auto:2")
    for wrong in ("vectorised", "workers:2", "auto+serial", "ranks", "workers:2+vectorised:2"):
        with pytest.raises(ConfigError, match=f"'auto.{wrong.replace('+', '.')}': behind auto"):
            make_engine(f"auto+{wrong}")
    with pytest.raises(ConfigError, match="only workers and vectorised"):
        make_engine("vectorised:2+workers:2")
