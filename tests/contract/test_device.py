"""The contract on another device than the CPU: the stand-in for a GPU, or a real one.

On the stand-in everything has the CPU's bits, so that a tensor which somebody forgot to move fails,
and so does a number that was drawn elsewhere. `make gpu` runs this file on CUDA, within the
bound of support/device.py.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import json
import sys
import warnings

import pairs
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file
from torch import nn

from cases import CASES
from fedloom import Checkpoint, Evaluation, Experiment, FedAvg, Local
from fedloom.algorithms.registry import make_algorithm
from fedloom.checks.compare import unequal
from fedloom.checks.tiny_federation import CAPACITIES, experiment, finish, network, run
from fedloom.cli.export import export_command
from fedloom.compression.codecs import CODECS, PowerSGD, TopK, make_codec
from fedloom.compression.error_feedback import Forget, Residual
from fedloom.compression.link import FieldCodec, Link
from fedloom.config import from_run, resolve
from fedloom.core.layout import Layout
from fedloom.core.net import Net
from fedloom.core.vector import leaves, rec
from fedloom.data import Ragged, from_clients
from fedloom.engines import Streams, Vectorised, recorded
from fedloom.engines.client_results import Request, TrainTask
from fedloom.engines.evaluation_batches import evaluation_task
from fedloom.engines.recorded import Record
from fedloom.errors import ClientError, ConfigError, DataError
from fedloom.models import LSTM
from fedloom.objectives import CrossEntropy
from fedloom.submodels import FIARSE, whole
from support.device import DEVICE, REAL, agree, lies_there, rows_agree
from support.federations import images as images_of
from support.pretend_device import counted, register
from tiny import opened

if not REAL:
    register()

ENGINES = ["serial", "vectorised:3"]
# a mix in one engine or in the other
MIXES = [
    pytest.param(dict(mix), ENGINES[n % 2], id=f"{pairs.shown(mix)}-{ENGINES[n % 2]}")
    for n, mix in enumerate(mix for mix, slow in pairs.to_run() if not slow)
]
# an operation of the stand-in costs fifty of the CPU's: few steps, but all three capacities,
# short batches, a client that comes again and one that is new
SHORT = {"rounds": 2, "cohort": [[0, 1, 2], [0, 4]], "evaluate": Evaluation(every=0)}
short = lambda local: dataclasses.replace(local, epochs=None, steps=2)
both = lambda make, **changes: [run(make(device=device, **changes)) for device in (DEVICE, "cpu")]


def ends_agree(end, want, bits=not REAL):
    assert lies_there(end.srv)
    agree(end.srv, want.srv, bits)
    assert end.memory.keys() == want.memory.keys()
    for i in want.memory:
        agree(end.memory[i], want.memory[i], bits)
    assert (end.up, end.down) == (want.up, want.down)
    rows_agree(end.history, want.history, bits)


@pytest.mark.parametrize(("mix", "engine"), MIXES)
def test_every_part_of_every_axis_computes_what_it_does_on_the_cpu(mix, engine):
    make = functools.partial(pairs.trial, mix, torch.float64, **SHORT)
    local = short(pairs.AXES["local"][mix["local"]])
    ends_agree(*both(make, local=local, engine=engine))


# ------------------------------------------------------------------- sub-models, codecs, local work
# the kinds of runs that are in no mix
PARTS = ["scalefl, as its code", "fjord, distilled", "fiarse, shards", "fedrolex, owners"]
PARTS += ["median", "krum", "geometric_median", "centred_clipping", "norm_bound", "integer_ring"]
PARTS += ["discrete_gaussian", "mean, sign flip", "dp, alie", "private examples"]
PARTS += ["median, label flip"]


@pytest.mark.parametrize("case", PARTS)
def test_other_kinds_of_runs_compute_what_they_do_on_the_cpu(case, accounts_at_hand):
    make = functools.partial(CASES[case].make, dtype=torch.float64)
    changes = SHORT | {"local": short(make().local), "engine": ENGINES[PARTS.index(case) % 2]}
    if case.startswith(("dp", "krum", "discrete")):
        del changes["cohort"]  # they take enough clients, or who comes
    ends_agree(*both(make, **changes))


@pytest.mark.slow
def test_every_codec_has_the_bytes_that_it_has_on_the_cpu_both_ways():
    local = Local(steps=1, batch=4, lr=0.05)
    for codec in [PowerSGD(rank=1), *map(make_codec, sorted(CODECS)), make_codec("topk:0.1|int8")]:
        grows = codec.unfit(147)  # feedback around it would, so that it goes without
        link = Link(FieldCodec(codec, Forget() if grows else Residual()), None if grows else codec)
        ends_agree(*both(experiment, dtype=torch.float64, compress=link, local=local, **SHORT))


# ------------------------------------------------------------------------------- other data, models
def images(**changes):
    """Bytes that are turned, cut and mirrored at random, with a batch norm that remembers."""
    dtype = torch.float64
    torch.manual_seed(3)
    norm = nn.BatchNorm2d(4, track_running_stats=changes.pop("remembers", False))
    model = nn.Sequential(nn.Conv2d(2, 4, 3), norm, nn.Tanh(), nn.Flatten(), nn.Linear(64, 3))
    settings = {
        "algorithm": make_algorithm("scaffold"),
        "model": model.to(dtype),
        "data": images_of(dtype),
        "local": Local(epochs=1, batch=3, lr=0.1),
        "seed": 2,
        "rounds": 2,
        "cohort": [[1, 2], [2, 3]],
    }
    return Experiment(**(settings | changes))


@pytest.mark.parametrize(("engine", "statistics"), [("serial", "static"), (ENGINES[1], "batch")])
def test_augmented_images_behind_a_batch_norm_of_the_batch(engine, statistics):
    evaluation = Evaluation(statistics=statistics)
    ends_agree(*both(images, engine=engine, evaluate=evaluation))


def test_running_statistics_are_averaged_and_loaded():
    data = dataclasses.replace(
        images_of(torch.float64), validation=torch.tensor([0]), clients=LATER
    )
    ends_agree(*both(images, remembers=True, data=data, cohort=1.0))


LATER = Ragged.from_sizes(torch.tensor([3, 8, 11, 2]), torch.arange(1, 25))


@pytest.mark.parametrize(
    ("case", "engine"),
    [
        ("transformer", "vectorised:3"),
        ("FedMLB on used twice", "serial"),
        pytest.param("text in order", "vectorised:3", marks=pytest.mark.slow),
        pytest.param("text in order, fafed", "serial", marks=pytest.mark.slow),
    ],
)
def test_models_of_texts_compute_what_they_do_on_the_cpu(case, engine):
    make = functools.partial(CASES[case].make, dtype=torch.float64, engine=engine)
    if "order" in case:  # read on, with a state that is carried
        # the kernel that torch has for LSTMs on devices adds up in another order
        ends_agree(*both(make, rounds=2, cohort=[[0, 1, 3], [0, 2]]), bits=False)
    else:
        local = Local(epochs=1, batch=4, lr=0.1)
        ends_agree(*both(make, rounds=1, cohort=[[0, 1, 2]], local=local))


# ------------------------------------------------------------------------------- what users hand in
def accuracy_of(outputs, targets):
    return (outputs.argmax(1) == targets).double()


class Weighted(CrossEntropy):
    """Has a vector as a field, one within a table, and one that it makes of a field."""

    weight: torch.Tensor = dataclasses.field()
    table: dict = dataclasses.field()

    def __post_init__(self):
        super().__post_init__()
        object.__setattr__(self, "half", self.weight / 2)

    def score(self, outputs, batch):
        weight = self.half + self.table["more"] / 2
        return nn.functional.cross_entropy(outputs, batch[1], weight=weight, reduction="none")


WEIGHTS = torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64)
LOSSES = {
    "a module": nn.CrossEntropyLoss(weight=WEIGHTS, reduction="none"),
    "a function with arguments": functools.partial(
        nn.functional.cross_entropy, weight=WEIGHTS, reduction="none"
    ),
    "an objective": Weighted(weight=WEIGHTS, table={"more": WEIGHTS}),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", LOSSES)
def test_a_loss_and_a_metric_that_hold_tensors_are_brought_along(kind, engine):
    loss = LOSSES[kind]
    metrics = {"accuracy": accuracy_of, "weighted": nn.CrossEntropyLoss(weight=WEIGHTS)}
    make = functools.partial(experiment, torch.float64, objective=loss, metrics=metrics, rounds=1)
    ends_agree(*both(make, engine=engine, local=Local(steps=2, batch=4, lr=0.1), cohort=3))
    assert getattr(loss, "weight", WEIGHTS) is WEIGHTS  # the caller's own stay where they are


def test_a_model_that_lies_on_the_device_already_is_taken(tmp_path):
    torch.manual_seed(1)
    module = network().double()
    local = Local(steps=1, batch=4, lr=0.1)
    make = functools.partial(experiment, torch.float64, rounds=1, local=local, cohort=2)
    one = make(model=copy.deepcopy(module).to(DEVICE), device=DEVICE).run()
    agree(one.state, make(model=module, device="cpu").run().state)
    two = make(model=copy.deepcopy(module).to(DEVICE), device="cpu").run()
    assert not unequal(two.state, make(model=module, device="cpu").run().state)


def test_data_that_lie_on_a_device_are_refused_in_one_line():
    with pytest.raises(DataError, match=r"inputs lie on .*:0; give data on the CPU: a run moves"):
        from_clients([(torch.ones(2, 2).to(DEVICE), torch.tensor([0, 1]).to(DEVICE))])


def test_a_loss_with_a_forgotten_tensor_is_refused_in_one_line():
    loss = lambda outputs, targets: nn.functional.cross_entropy(outputs, targets, weight=WEIGHTS)
    with pytest.raises(ClientError, match=r"client 0, round 1: .*same device") as result:
        run(experiment(torch.float64, objective=loss, device=DEVICE, rounds=1, cohort=[[0]]))
    assert "\n" not in str(result.value)


def test_an_answer_that_is_not_finite_is_skipped_or_named():
    class Diverging(FedAvg):
        def finish(self, x, loc, msg, mem, job):
            up, own = super().finish(x, loc, msg, mem, job)
            return up._replace(delta=up.delta / (job.weight != 11)), own  # client 1 has 11

    local = Local(steps=1, batch=4, lr=0.1)
    for engine in ENGINES:
        make = functools.partial(
            experiment, torch.float64, algorithm=Diverging(), local=local, rounds=1, engine=engine
        )
        ends_agree(*both(make, nonfinite="skip", cohort=[[0, 1, 2]]))
        with pytest.raises(ClientError, match="client 1, round 1"):
            run(make(device=DEVICE, cohort=[[0, 1, 2]]))


# --------------------------------------------------------------------- checkpoints, results, export
def stopping(tmp_path, rounds, device, **changes):
    """A run in a folder that has a bit of everything a checkpoint holds."""
    changes = {
        "rounds": rounds,
        "device": device,
        "algorithm": make_algorithm("scaffold"),
        "compress": Link(FieldCodec(PowerSGD(rank=1), Residual()), TopK(ratio=0.2)),
        "local": Local(steps=2, batch=4, lr=0.05),
        "cohort": [[0, 1, 2], [0, 2, 4], [1, 2, 5]],
        "checkpoint": Checkpoint(every_rounds=1, every_seconds=None),
    } | changes
    return experiment(torch.float64, **changes), tmp_path / "run"


@pytest.mark.slow
@pytest.mark.parametrize(("first", "second"), [(DEVICE, DEVICE), (DEVICE, "cpu"), ("cpu", DEVICE)])
def test_a_run_goes_on_where_it_was_stopped_on_either_device(first, second, tmp_path):
    masks = {"submodel": FIARSE(), "capacities": CAPACITIES, "compress": None}
    for parts in ({}, masks) if first == second else ({},):
        begun, out = stopping(tmp_path / str(len(parts)), 2, first, **parts)
        begun.run(out)
        again, _ = stopping(tmp_path, 3, second, **parts)
        again.resume(out)
        whole, _ = stopping(tmp_path, 3, "cpu", **parts)
        want, end = run(whole), finish(again.loop)
        assert all(v.device.type == torch.device(second).type for v in leaves(end.srv))
        agree(end.srv, want.srv)
        for i in want.memory:
            agree(end.memory[i], want.memory[i])


def test_client_memory_that_lives_on_disk_comes_back_to_the_device(tmp_path):
    made, out = stopping(tmp_path, 3, DEVICE, resident_bytes=1)
    made.run(out)
    ends_agree(finish(made.loop), run(stopping(tmp_path, 3, "cpu")[0]))


def test_a_result_lies_on_the_cpu_and_so_do_its_files(tmp_path):
    made, out = stopping(tmp_path, 1, DEVICE)
    result = made.run(out)
    assert {p.device.type for p in result.model.parameters()} == {"cpu"}
    assert {v.device.type for v in leaves(result.state)} == {"cpu"}
    own = load_file(out / "model.safetensors")
    assert all(torch.equal(own[k], v) for k, v in result.model.state_dict().items())
    told = json.loads((out / "environment.json").read_text())["device"]
    assert torch.device(told).type == torch.device(DEVICE).type
    assert all(value is not None for value in result.clients)


DIGITS = ["data=digits", "model=mlp", "model.inputs=64", "model.hidden=[8]", "local.steps=2"]
DIGITS += ["data.partition=iid", "data.clients=4", "cohort=2", f"device={DEVICE}"]


@pytest.mark.parametrize(
    ("engine", "chosen"),
    [("auto", "auto+streams:2"), ("vectorised", "vectorised:2"), ("streams", "streams:2")],
)
def test_an_engine_that_suits_the_device_is_chosen_and_written_down(
    engine, chosen, tmp_path, monkeypatch
):
    seconds = {"vectorised:2": 3.0, "streams:2": 1.0, "serial": 2.0}
    timed = lambda plan, fed, net, engine, clients: seconds[engine.text]
    monkeypatch.setattr("fedloom.engines.auto.time_round", timed)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: pytest.fail("free memory"))
    given = [] if engine == "auto" else [f"engine={engine}"]
    config = resolve("fashion_dirichlet", [*DIGITS, "rounds=1", *given])
    assert config.values["engine"] == engine
    config.experiment().run(tmp_path / "run")
    assert from_run(tmp_path / "run").values["engine"] == chosen


def test_processes_that_were_asked_for_refuse_the_device_in_one_line(tmp_path):
    config = resolve("fashion_dirichlet", [*DIGITS, "engine=workers:2"])
    assert config.values["engine"] == "workers:2"
    message = "engine workers runs on CPUs, and the model is on .*; give device = cpu, or engine ="
    with pytest.raises(ConfigError, match=message) as result:
        config.experiment().run()
    assert "\n" not in str(result.value)


def test_processes_that_were_asked_for_keep_auto_on_the_cpu(monkeypatch):
    there = {"auto": torch.device(DEVICE), "cpu": torch.device("cpu")}
    monkeypatch.setattr("fedloom.experiment.processes.device_of", there.__getitem__)
    for engine, kind in (("workers:2", "cpu"), ("serial", torch.device(DEVICE).type)):
        assert experiment(engine=engine, device="auto").net().device.type == kind


@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize("rule", [[], ["submodel=fiarse", 'submodel.capacities=["1/2", 1]']])
def test_export_needs_no_device(finished, rule, tmp_path, monkeypatch):
    out = tmp_path / "run"
    config = resolve("digits", [*DIGITS, *rule, "rounds=2", "checkpoint.every_rounds=1"])
    if finished:
        config.experiment().run(out)
    else:
        with pytest.raises(LookupError):
            config.experiment(on_round=stop).run(out)
    gone = {"cpu": torch.device("cpu")}  # on a machine without it
    monkeypatch.setattr(sys.modules["fedloom.config.resolve"], "device_of", gone.__getitem__)
    monkeypatch.setattr("fedloom.experiment.processes.device_of", gone.__getitem__)
    more = ["--capacity", "1/2"] if rule else []
    done = CliRunner().invoke(export_command, [str(out), *more])
    assert done.exit_code == 0, done.output


def stop(row):
    """Break off behind the second round: one is saved."""
    if row["round"] == 2:
        raise LookupError


# ---------------------------------------------------------------------------- copies, host reads
# of a round of three clients, whatever the number of steps
CROSSINGS = {
    "serial": {"to_device": 3, "to_host": 0, "reads": 5},
    "vectorised:3": {"to_device": 6, "to_host": 1, "reads": 3},
}


@pytest.mark.skipif(REAL, reason="only the stand-in counts")
@pytest.mark.parametrize("engine", CROSSINGS)
def test_no_step_crosses_to_the_device_and_a_round_no_more_often_than_it_did(engine):
    result = []
    for steps in (2, 6):  # with dropout, clipping and short batches
        local = Local(steps=steps, batch=4, lr=0.05, clip=1.0)
        with opened(experiment(device=DEVICE, engine=engine, local=local)) as loop:
            task = TrainTask(loop.message()[0], loop.state.buffers, {}, [1, 2, 3], 0)
            with counted() as count:
                loop.engine.map(Request.TRAIN, task)
        result.append(count.as_dict())
    assert result[0] == result[1]
    assert all(result[0][kind] <= most for kind, most in CROSSINGS[engine].items()), result


@pytest.mark.skipif(REAL, reason="only the stand-in counts")
@pytest.mark.parametrize("engine", CROSSINGS)
def test_an_evaluation_waits_for_the_device_once(engine, monkeypatch):
    monkeypatch.setattr("fedloom.engines.scores.EVALUATION_BATCH", 2)
    given = experiment(device=DEVICE, engine=engine)
    data = given.data
    tests = {"test_inputs": data.inputs[:9], "test_targets": data.targets[:9]}
    given.data = dataclasses.replace(data, **tests)
    with opened(given) as loop:
        task = evaluation_task(loop.model(), loop.state.buffers, loop.fed.data, Request.TEST)
        with counted() as count:
            scores = loop.engine.map(Request.TEST, task).scores
    assert [s.examples for s in scores] == [2, 2, 2, 2, 1]
    assert count.as_dict() == {"to_device": 0, "to_host": 1, "reads": 0}


# that draw nothing; the random numbers of the others are drawn on the host
THERE = ["dense", "fp16", "bf16", "sign", "topk:0.1", "threshold:0.5"]


@pytest.mark.skipif(REAL, reason="only the stand-in counts")
@pytest.mark.parametrize("name", THERE)
def test_a_codec_computes_where_the_vector_is(name):
    codec, v = make_codec(name), torch.randn(60).to(DEVICE)
    link = Link(FieldCodec(codec, Residual())).settled(FedAvg())
    view, up = whole(Layout(("w",), ((6, 10),))), rec(delta=v, weight=2.0)
    memory = link.init(v, view.layout, 0)
    with counted() as count:
        read, _, memory = link.deliver(up, memory, view, 0, 1, 2)
    assert lies_there(read.delta, memory.delta.e)
    # the finite ends; the number of coordinates that are sent, and which they are, for the bill
    chosen = int(codec.chooses)
    assert count.as_dict() == {"to_device": 0, "to_host": chosen, "reads": 1 + chosen}
    assert codec.on_device and torch.allclose(read.delta + memory.delta.e, v, atol=1e-6)


# ------------------------------------------------------------------------------------ LSTMs on CUDA
def test_the_weights_of_our_lstm_are_one_piece_of_memory(monkeypatch):
    """As cuDNN has them: from the beginning of a storage on, one behind the other."""
    real, seen = torch.lstm, []

    def lstm(a, state, weights, *rest):
        seen.append(weights)
        return real(a, state, weights, *rest)

    monkeypatch.setattr(torch, "lstm", lstm)
    net = Net(LSTM(3, 4, num_layers=2, batch_first=True)).to(DEVICE)
    net.raw(net.init(), torch.zeros(2, 5, 3, device=DEVICE))
    assert len(seen) == 2
    for weights in seen:
        start, place = weights[0].data_ptr(), 0
        assert weights[0].untyped_storage().data_ptr() == start
        for w in weights:
            assert w.is_contiguous() and w.data_ptr() == start + place * w.element_size()
            place += w.numel()


def test_the_warning_about_pieces_is_kept_from_users_on_cuda_alone(monkeypatch):
    class Warns(nn.LSTM):
        def forward(self, inputs):
            warnings.warn(
                "RNN module weights are not part of single contiguous chunk", stacklevel=1
            )
            return inputs

    net = Net(Warns(1, 1))
    for kind, expected in (("cpu", 1), ("cuda", 0)):
        monkeypatch.setattr(Net, "device", torch.device(kind))
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            net.raw(net.init(), torch.zeros(1))
            net.evaluated(torch.zeros(1))
        assert len(said) == 2 * expected


# ----------------------------------------------------------------------------------- recorded steps
# whose own code is of the CPU, or counts calls
OF_CPU = ("stage, frozen", "constant buffers", "a huge entry", "Tied")
KINDS = [n for n, case in CASES.items() if not case.alone and not n.startswith(OF_CPU)]
ON_A_GPU = {
    *("fedavg", "fedsmoo", "mime", "fednova, momentum", "transformer", "FedRep", "fiarse"),
    *("way down, both", "private examples"),
}


RECORDED = [
    pytest.param(name, id=name, marks=[] if name in ON_A_GPU else pytest.mark.slow)
    for name in KINDS
]


@pytest.mark.usefixtures("accounts_at_hand")
@pytest.mark.parametrize("kind", [Vectorised, Streams])
@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_step_reads_nothing_of_another_device(name, kind, monkeypatch):
    """On CUDA it is a graph, which would read that once; every record is used at once here."""
    if REAL and name not in ON_A_GPU:
        pytest.skip("of the stand-in, for a GPU's time")
    monkeypatch.setattr(Record, "needs_check", lambda self, round: False)
    monkeypatch.setattr(recorded, "MOST", 10**9)
    engine = kind(3, 0)
    end = run(CASES[name].make(dtype=torch.float64, device=DEVICE, engine=engine, rounds=2))
    parts = {"dtype": torch.float64, "device": "cpu", "engine": kind(3, 10**9), "rounds": 2}
    # the kernel that torch has for LSTMs on devices adds up in another order
    bits = not REAL and "LSTM" not in name and "text in order" not in name
    agree(end.srv, run(CASES[name].make(**parts)).srv, bits)
    assert not engine.recorded.refused
    if not name.startswith("late") and "feddecorr" not in name:  # few steps, or clients alone
        assert engine.recorded.replayed
