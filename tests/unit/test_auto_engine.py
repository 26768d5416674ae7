"""engine = "auto": the rule that chooses a family of bits, and the run that measures itself."""

import os
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from fedloom import Evaluation, Experiment, FedAvg, Local
from fedloom.algorithms import FAFED, Scaffold
from fedloom.cli.dry_run import estimate
from fedloom.config import resolve
from fedloom.core.net import Net
from fedloom.data import from_clients
from fedloom.engines import (
    Auto,
    Serial,
    Streams,
    Vectorised,
    Workers,
    auto,
    bits_of,
    make_engine,
    one_step,
    ranges,
    recorded,
)
from fedloom.engines.auto import Choice, choose_chunk, family_of
from fedloom.engines.client_results import Request
from fedloom.engines.ranges import default_chunk
from fedloom.engines.together import Together
from fedloom.errors import ClientError, ConfigError, WorkerError
from fedloom.experiment import processes
from fedloom.federation.clock import Asynchronous
from fedloom.recipes import RECIPES
from fedloom.storage.identity import differing
from fedloom.storage.run_directory import RunDirectory
from support.refusals import refused
from tiny import clusters, mlp, results_agree, small, timeless

MANY = clusters(sizes=[3, 8, 5, 12] * 6)  # 24 clients
EQUAL = clusters(sizes=[8] * 6)  # rounds of one length


# -------------------------------------------------------------------------------------- the rule
def family(model, clients=100, shares=1, algorithm=None, batch=8):
    local = Local(batch=batch)
    parts = {"model": model, "data": MANY, "rounds": 1, "engine": "serial", "local": local}
    loop = Experiment(algorithm=algorithm or FedAvg(), **parts).build()
    return family_of(loop.plan, loop.fed, loop.net, clients, shares)


def sized(*between):
    """2^17 parameters, and those of what stands between the layers."""
    wide = 1 << 14
    return nn.Sequential(nn.Linear(5, wide, False), *between, nn.Linear(wide, 3, False))


def convolving():
    return nn.Sequential(nn.Unflatten(1, (1, 5)), nn.Conv1d(1, 1, 3), nn.Flatten())


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.out = nn.LSTM(5, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, inputs):
        return self.out(self.rnn(inputs[:, None])[0][:, -1])


class Branching(FedAvg):
    """A direction that depends on a value: not for many clients at once."""

    def direction(self, x, loc, msg, mem, grad, job):
        return (grad(x) if x.sum() > 0 else -grad(x)), loc


@pytest.mark.parametrize(
    ("given", "wanted", "why"),
    [
        ((mlp(), 100), "vectorised:50", "cohorts of 100"),
        ((mlp(), 20), "vectorised:20", "cohorts of 20"),
        ((mlp(), 19), "serial", "of a cohort are too few"),
        ((mlp(), 40, 2), "vectorised:20", "cohorts of 40"),
        ((mlp(), 40, 3), "serial", "of a cohort are too few"),
        ((sized(), 50), "vectorised:50", "cohorts of 50"),
        ((sized(nn.PReLU()), 50), "serial", "131,073 parameters"),
        ((convolving(), 130), "vectorised:26", "cohorts of 130"),
        ((convolving(), 100, 4), "vectorised:25", "cohorts of 100"),
        ((convolving(), 100, 6), "serial", "of a cohort are too few"),
        ((convolving(), 99), "serial", "in cohorts of 100"),
        ((convolving(), 100, 1, None, 10), "vectorised:25", "cohorts of 100"),
        ((convolving(), 100, 1, None, 11), "serial", "batches of at most 10"),
        ((Recurrent(),), "serial", "LSTM"),
        ((mlp(), 100, 1, Branching()), "serial", "Branching"),
    ],
)
def test_the_table_of_the_rule(given, wanted, why):
    choice = family(*given)
    assert choice.family == wanted and why in choice.why and wanted in str(choice)


def test_large_linear_layers_are_computed_in_onednn(monkeypatch):
    """On a CPU, of float32, in full precision."""
    monkeypatch.setattr("fedloom.engines.auto.gains", lambda module, batch: batch == 8)

    def choice(batch=8, dtype=torch.float32, precision="full"):
        local = Local(batch=batch, precision=precision)
        parts = {"model": mlp(dtype), "data": clusters(dtype), "local": local}
        loop = Experiment(algorithm=FedAvg(), rounds=1, **parts).build()
        return family_of(loop.plan, loop.fed, loop.net, 5).family

    assert choice() == "serial+onednn"
    assert {choice(7), choice(dtype=torch.float64), choice(precision="bf16")} == {"serial"}


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


# -------------------------------------------------------------------------------------- on a GPU
def fastest(monkeypatch, seconds, clients=40):
    """What is chosen where rounds take so long, by the engine's name; an error is raised."""
    asked = []

    def timed(plan, fed, net, engine, clients):
        asked.append(engine.text)
        if isinstance(result := seconds.get(engine.text, 1.0), Exception):
            raise result
        return result

    loop = small(FedAvg()).build()
    with monkeypatch.context() as patch:
        patch.setattr(auto, "time_round", timed)
        patch.setattr(Net, "device", torch.device("cuda", 0))
        return family_of(loop.plan, loop.fed, loop.net, clients), asked


def test_on_a_gpu_the_way_that_takes_the_least_time_is_chosen(monkeypatch):
    choice, _ = fastest(monkeypatch, {"vectorised:40": 0.02, "streams:16": 0.003})
    assert choice.family == "streams:16"
    assert "vectorised:40 20 ms, streams:16 3 ms, serial 1e+03 ms" in choice.why


def test_clients_that_a_gpu_cannot_hold_are_halved_and_ways_that_fail_left_out(monkeypatch):
    full, no = ranges.TooManyError("40 clients do not fit"), ClientError("it branches")
    later = ClientError("out of memory")  # behind the steps
    later.__cause__ = torch.OutOfMemoryError()
    seconds = {"vectorised:40": full, "vectorised:20": later, "vectorised:10": 0.1}
    choice, asked = fastest(monkeypatch, seconds | {"streams:16": no})
    assert asked == ["vectorised:40", "vectorised:20", "vectorised:10", "streams:16", "serial"]
    assert choice.family == "vectorised:10"
    choice, _ = fastest(monkeypatch, {"vectorised:40": no, "streams:16": no})
    assert choice.family == "serial"
    _, asked = fastest(monkeypatch, {}, clients=0)  # as in rounds that are mostly empty
    assert asked == ["serial"]


@pytest.mark.parametrize("kind", [Vectorised, Streams])
def test_a_round_is_timed_once_its_steps_are_replayed_and_leaves_no_trace(kind, monkeypatch):
    loop, engine = small(FedAvg(), local=Local(steps=30, batch=4)).build(), kind(4, after=1)
    weights = [*loop.net.module.parameters()]
    before = [v.clone() for v in weights]
    replayed, real = [], engine.map

    def map(request, task):
        result = real(request, task)
        replayed.append(engine.recorded.replayed)
        return result

    engine.map = map
    monkeypatch.setattr(auto.time, "perf_counter", lambda: len(replayed))
    monkeypatch.setattr(recorded, "FASTER", 1e9)
    assert one_step.time_round(loop.plan, loop.fed, loop.net, engine, 4) == 1
    assert replayed[-1] - replayed[-2] == one_step.FIRST_STEPS
    assert all(
        torch.equal(*pair) for pair in zip(before, loop.net.module.parameters(), strict=True)
    )


# ----------------------------------------------------------------------- the run measures itself
class Ways:
    """Workers that compute in one process, and clients that seem to take as long as is said."""

    def __init__(self, monkeypatch, alone=4.0, many=2.0):
        self.alone, self.many, self.opened, self.closed = alone, many, 0, 0
        self.pieces, self.now = [], 0.0
        ways = self

        class InOne(Serial):
            def open(self, *parts):
                ways.opened += 1
                super().open(*parts)

            def close(self):
                ways.closed += 1
                super().close()

        def make(number, chunk=None, onednn=False):
            inner = InOne(onednn)
            inner.map = ways.timed("many", inner.map)
            inner.fit = inner.wait_until_ready = lambda *given: None
            return inner

        monkeypatch.setattr(auto, "Workers", make)
        monkeypatch.setattr(auto, "processors", lambda: 2)
        monkeypatch.setattr(auto.time, "perf_counter", lambda: self.now)
        real = Auto.open

        def open(engine, *parts):
            real(engine, *parts)
            engine.inner.map = ways.timed("alone", engine.inner.map)

        monkeypatch.setattr(Auto, "open", open)

    def timed(self, way, real):
        def run(what, task):
            if what is not Request.TRAIN:
                return real(what, task)
            self.pieces.append((way, task.round, len(task.cohort)))
            self.now += getattr(self, way) * len(task.cohort)
            return real(what, task)

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
    result = run(5)
    trial = [("alone", 0, 1), ("many", 0, 2), ("many", 0, 2), ("alone", 0, 2)]
    assert ways.pieces[:5] == [*trial, (kept, 0, 3)] and ways.rounds == [kept] * 5
    assert ways.opened == ways.closed == 1
    assert timeless(result.history) == plain(5)


@pytest.mark.parametrize(("each", "opened"), [(1.0, 0), (1.01, 1)])
def test_processes_start_only_if_the_run_is_worth_it(monkeypatch, each, opened):
    """Five rounds of four clients, which are worth processes from 20 s on."""
    ways = Ways(monkeypatch, alone=each, many=0.1)
    run(5)
    assert ways.opened == opened


class Stops(FedAvg):
    """A server that ends its first round."""

    def server_step(self, srv, up, rnd):
        raise KeyboardInterrupt


@pytest.mark.parametrize(("each", "clients"), [(0.3, 2), (0.2, 4), (0.01, 4)])
def test_the_trial_takes_about_a_second_of_one_process(monkeypatch, each, clients):
    ways = Ways(monkeypatch, alone=each, many=each)
    with pytest.raises(KeyboardInterrupt):
        run(30_000, algorithm=Stops())
    assert ("many", 0, clients) in ways.pieces


@pytest.mark.slow
def test_real_processes_take_over_within_the_first_round(monkeypatch):
    for name, value in {"WORTH": 0.0, "FASTER": 1e9, "processors": lambda: 2}.items():
        monkeypatch.setattr(auto, name, value)
    engines, real = [], Auto.open
    monkeypatch.setattr(
        Auto, "open", lambda self, *parts: (engines.append(self), real(self, *parts))
    )
    ways = []
    result = run(3, on_round=lambda row: ways.append(engines[0].way.name))
    assert ways == ["workers"] * 3 and engines[0].way.name == "serial"  # the others have ended
    assert timeless(result.history) == plain(3)


def spoil(monkeypatch, method, error, at=1):
    """Workers whose method fails when it is called for this time."""
    make = auto.Workers

    def spoilt(*given):
        workers, calls = make(*given), []
        real = getattr(workers, method)

        def fails(*arguments):
            calls.append(1)
            if len(calls) == at:
                raise error
            return real(*arguments)

        setattr(workers, method, fails)
        return workers

    monkeypatch.setattr(auto, "Workers", spoilt)


def test_processes_that_keep_dying_leave_the_run_in_one_and_repeat_the_work(monkeypatch, caplog):
    ways = Ways(monkeypatch, many=0.1)
    spoil(monkeypatch, "map", WorkerError("workers died 3 times in the same round"), at=4)
    result = run(10, evaluate=Evaluation())
    assert caplog.text.count("died 3 times in the same round; the run goes on in one process") == 1
    assert ways.rounds[-5:] == ["alone"] * 5 and ways.opened == ways.closed == 1
    assert timeless(result.history) == plain(10, evaluate=Evaluation())


@pytest.mark.parametrize("when", ["open", "wait_until_ready"])
@pytest.mark.parametrize(
    "error",
    [ConfigError("'loss' cannot be sent"), OSError(28, "no space"), WorkerError("no start")],
)
def test_processes_that_cannot_start_leave_the_run_in_one(monkeypatch, caplog, when, error):
    ways = Ways(monkeypatch)
    spoil(monkeypatch, when, error)
    run(6)
    assert ways.rounds == ["alone"] * 6 and ways.closed == 1
    assert caplog.text.count("the run stays in one process: ") == 1


def test_an_interrupted_run_ends_its_processes(monkeypatch):
    ways = Ways(monkeypatch, many=0.5)

    def stop(row):
        if row["round"] == 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(20, on_round=stop)
    assert ways.rounds == ["many"] * 8 and ways.opened == ways.closed == 1


@pytest.mark.parametrize("case", ["one client", "one chunk", "one processor"])
def test_where_no_process_could_help_none_is_started(monkeypatch, case):
    ways = Ways(monkeypatch, many=0.1)
    if case == "one chunk":
        monkeypatch.setattr(processes, "family_of", lambda *given: Choice("vectorised:4", ""))
    if case == "one processor":
        monkeypatch.setattr(auto, "processors", lambda: 1)
    run(20, cohort=1 if case == "one client" else 4)
    assert ways.opened == 0


def test_a_run_in_the_share_of_a_job_and_one_on_a_gpu_have_one_process(monkeypatch):
    """Of one processor, as `fedloom paper --jobs` gives to its runs."""
    count, before = auto.processors, os.sched_getaffinity(0)
    ways = Ways(monkeypatch, many=0.1)
    with monkeypatch.context() as patch:
        patch.setattr(auto, "processors", count)
        os.sched_setaffinity(0, {min(before)})
        try:
            run(20)
        finally:
            os.sched_setaffinity(0, before)
    loop = small(FedAvg(), rounds=20, engine="auto", **SHORT).build()
    with monkeypatch.context() as patch:
        patch.setattr(Net, "device", torch.device("cuda", 0))
        patch.setattr(Serial, "open", lambda *parts: None)
        loop.engine.open(loop.plan, loop.fed, loop.net)
    loop.engine.inner.open(loop.plan, loop.fed, loop.net)
    loop.begin()
    loop.until(2)
    assert ways.opened == 0


# ------------------------------------------------------------------------------------ in a run
def test_nobody_has_to_choose_an_engine(tmp_path):
    exp = Experiment(algorithm=FedAvg(), model=mlp(), data=MANY, rounds=1, device="cpu")
    exp.build()
    assert exp.used_engine == "auto+vectorised:24"
    file = tmp_path / "mine.toml"
    data = '[data]\nname = "digits"\npartition = {name = "iid", clients = 5}\n'
    file.write_text(f'rounds = 1\nalgorithm = "fedavg"\nmodel = "mlp"\n{data}')
    assert {resolve(name).values["engine"] for name in (*RECIPES, file)} == {"auto"}


@pytest.mark.parametrize(("buffer", "family"), [(3, "serial"), (24, "vectorised:24")])
def test_under_an_asynchronous_clock_a_run_has_the_bits_of_its_family(buffer, family):
    parts = {"algorithm": FedAvg(), "model": mlp(), "data": MANY, "rounds": 3, "cohort": 1.0}
    parts |= {"clock": Asynchronous(buffer=buffer), "device": "cpu"}
    exp, alone = Experiment(**parts), Experiment(**parts, engine=family)
    results_agree(exp.run(progress=False), alone.run(progress=False))
    assert exp.used_engine == f"auto+{family}"


def test_an_experiment_goes_on_in_each_folders_own_engine(tmp_path):
    both = small(FedAvg(), engine="auto", rounds=4)
    for name in ("serial", "vectorised:4"):
        small(FedAvg(), engine=name, rounds=2).run(tmp_path / name)
        both.resume(tmp_path / name)
        assert both.used_engine == name
    both.run(tmp_path / "new")
    assert both.used_engine == "auto+serial"


def test_the_family_is_in_the_configuration_and_the_run_goes_on_with_it(tmp_path):
    parts, out = {"data": MANY, "cohort": 22}, tmp_path / "run"
    first = small(FedAvg(), engine="auto", rounds=2, **parts)
    first.run(out)
    assert first.used_engine == "auto+vectorised:22" and first.choice.family == "vectorised:22"
    assert 'engine = "auto+vectorised:22"' in (out / "config.toml").read_text()
    for rounds, engine in ((4, "auto"), (5, "auto+vectorised:22"), (6, "vectorised:22")):
        resumed = small(FedAvg(), engine=engine, rounds=rounds, **parts).resume(out)
    results_agree(resumed, small(FedAvg(), engine="vectorised:22", rounds=6, **parts).run())


def test_ranks_resolve_the_family_and_run_it_in_one_process_each():
    group = SimpleNamespace(size=2, rank=0, locals=2, first=lambda f: f())
    loop = small(FedAvg(), data=MANY).build()
    for clients, wanted in ((22, "serial"), (40, "vectorised:20")):
        choice = processes.choose_engine(loop.plan, loop.fed, loop.net, clients, group)
        assert choice.family == wanted
        for name in (f"auto+{wanted}", f"ranks+auto+{wanted}"):
            engine = processes.engine_for(name, group, clients, 100)
            assert engine.text == f"ranks+{wanted}" and not isinstance(engine.inner, Auto)
    alone = small(FedAvg(), engine="ranks+auto", rounds=2)
    alone.run()
    assert alone.used_engine == "ranks+auto+serial"


@pytest.mark.parametrize(
    ("words", "said", "silent"),
    [
        ("rounds=1000 engine=auto", ["auto+serial", "1 of a cohort are too few"], []),
        ("rounds=1000 engine=auto+serial", [], ["too few"]),
        ("cohort=4 engine=vectorised", ["vectorised:4", "cohorts of 4\n"], []),
    ],
)
def test_a_dry_run_says_what_the_rule_took_and_why_and_starts_no_process(
    monkeypatch, words, said, silent
):
    monkeypatch.setattr(auto, "Workers", lambda *parts: pytest.fail("processes"))
    words = f"model=mlp model.hidden=[8] data.clients=5 {words}".split()
    text = estimate(resolve("digits", words), 1)
    assert all(word in text for word in said) and not any(word in text for word in silent)


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


def test_clients_that_do_not_fit_together_stop_the_run_with_half_as_many(monkeypatch):
    class Small(Together):
        """A device that has room for so many."""

        room = 5

        def run(self):
            if len(self.clients) > self.room:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
            return super().run()

    monkeypatch.setattr(ranges, "Together", Small)
    parts = {"data": MANY, "cohort": 23, "rounds": 1}
    for engine, clients, half in (("vectorised:23", 23, 11), ("vectorised:6", 6, 3)):
        said = rf"round 1: {clients} clients at once do not fit .* engine = vectorised:{half}, or"
        with pytest.raises(ClientError, match=said):
            small(Scaffold(), engine=engine, **parts).run()
    Small.room = 0
    with pytest.raises(ClientError, match=r"client \d+, round 1: a client takes .* GiB or more"):
        small(Scaffold(), engine="vectorised:1", **parts).run()


@pytest.mark.slow
@pytest.mark.usefixtures("shared_workers")
@pytest.mark.parametrize("processes", ["", "workers:1+"])
def test_vectorised_without_a_number_has_the_rules_and_goes_on_with_it(processes, tmp_path):
    """48 clients, of whom 26 take part: chunks of 26, whatever a later round has."""
    data = clusters(sizes=[3, 8, 5, 12] * 12)
    parts = {"data": data, "cohort": 26, "engine": f"{processes}vectorised"}
    small(Scaffold(), rounds=2, **parts).run(tmp_path / "run")
    engine = RunDirectory(tmp_path / "run").read_config()["engine"]
    assert engine == f"{processes}vectorised:26"
    again = small(Scaffold(), rounds=4, **parts).run(tmp_path / "run", go_on=True)
    results_agree(again, small(Scaffold(), rounds=4, **parts | {"engine": "vectorised:26"}).run())
    assert differing({"engine": "vectorised:26"}, {"engine": parts["engine"]}) == []
    assert differing({"engine": "serial"}, {"engine": parts["engine"]}) == ["engine"]


def test_vectorised_without_a_number_never_asks_for_free_memory(monkeypatch):
    """On a CPU it takes no more than fit into a gigabyte as they are counted; on a GPU the rule's
    number, and memory that is too small stops the run.
    """
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: pytest.fail("free memory"))
    loop = small(FedAvg()).build()
    parts = loop.plan, loop.fed, loop.net
    for budget, wanted in ((1 << 30, "vectorised:50"), (1, "vectorised:1")):
        monkeypatch.setattr(ranges, "BUDGET", budget)
        assert choose_chunk(*parts, 100).family == wanted
    assert "gigabyte" in choose_chunk(*parts, 100).why
    monkeypatch.setattr(Net, "device", torch.device("cuda", 0))
    assert choose_chunk(*parts, 100).family == "vectorised:50"
    assert choose_chunk(*parts, 90, 3).family == "vectorised:30"
    assert choose_chunk(*parts, 0).family == "vectorised:1"  # as in rounds that are mostly empty


BEHIND = ("vectorised", "streams", "workers:2", "auto+serial", "ranks")


def test_names():
    engines = [Serial(), Vectorised(), Vectorised(3), Workers(2), Workers(2, 3)]
    engines += [Auto(Vectorised(3))]
    engines += [Streams(), Streams(3), Auto(Streams(3))]
    names = "serial vectorised vectorised:3 workers:2 workers:2+vectorised:3 auto+vectorised:3 "
    names += "streams streams:3 auto+streams:3"
    assert [e.text for e in engines] == names.split()
    for name in ("auto+serial", "auto+vectorised:3", "auto+streams:3", "ranks+streams:3"):
        assert make_engine(name).text == name
    assert make_engine("ranks+auto+vectorised:3").text == "ranks+vectorised:3"
    assert bits_of("workers:2") == "serial" and bits_of("vectorised:2") == "vectorised:2"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("auto:2", "stands alone"),
        ("vectorised:2+workers:2", "only workers and vectorised"),
        ("workers:2+streams", "only workers and vectorised"),
        ("streams:2+onednn", "only workers and vectorised"),
        *((f"auto+{one}", f"'auto+{one}': behind auto") for one in BEHIND),
    ],
)
def test_a_name_that_is_none_is_refused(name, said):
    refused(lambda: make_engine(name), said, kind=ConfigError)
