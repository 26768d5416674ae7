"""local.precision: what is computed in bfloat16, what is not, and what is refused."""

import logging
import types

import pytest
import torch
from torch import nn

from fedloom import Experiment, FedAvg, Local
from fedloom.algorithms import FAFED, Scaffold
from fedloom.checks.compare import unequal
from fedloom.cli import dry_run
from fedloom.core import products as bfloat16
from fedloom.data import from_clients
from fedloom.engines import Serial, bfloat16_gain, one_step
from fedloom.errors import ConfigError
from fedloom.objectives import MOON
from fedloom.storage import identity
from fedloom.submodels import HeteroFL
from support.refusals import refused


def network():
    """Smooth: with six samples, a ReLU whose input rounds to the other sign is a tenth of a run."""
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Flatten()),
        nn.Sequential(nn.Linear(144, 8), nn.Tanh()),
        nn.Linear(8, 3),
    )


@pytest.fixture
def data():
    torch.manual_seed(2)
    return from_clients([(torch.randn(6, 1, 8, 8), torch.arange(6) % 3) for _ in range(4)])


def built(data, algorithm=None, precision="full", **changes):
    local = Local(steps=3, batch=6, lr=0.1, precision=precision)
    parts = {"model": network, "data": data, "rounds": 2, "local": local, "device": "cpu"}
    parts |= {"engine": "serial"}
    return Experiment(algorithm=algorithm or FedAvg(), **(parts | changes))


def run(data, precision="bf16", algorithm=None, **changes):
    return built(data, algorithm, precision, **changes).run()


def vector(module):
    return torch.cat([p.detach().flatten() for p in module.parameters()])


def test_it_is_the_loop_that_torch_documents(data):
    """One client, whole batches: autocast around the forward pass, the loss in float32."""
    one = from_clients([(data.inputs[:6], data.targets[:6])])
    module = network()
    for _ in range(6):
        with torch.autocast("cpu", torch.bfloat16):
            outputs = module(one.inputs)
        loss = nn.functional.cross_entropy(outputs.float(), one.targets)
        grads = torch.autograd.grad(loss, list(module.parameters()))
        with torch.no_grad():
            for p, g in zip(module.parameters(), grads, strict=True):
                p.sub_(g, alpha=0.1)
    want = vector(module)
    half, full = (run(one, precision).state.x for precision in ("bf16", "full"))
    # the order of a batch changes sums in bfloat16: a few units in its eighth bit
    assert (half - want).norm() < 0.1 * (half - vector(network())).norm()
    assert half.dtype == torch.float32 and not torch.allclose(half, full, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "parts",
    [
        {"algorithm": Scaffold()},
        {"objective": MOON()},
        {"submodel": HeteroFL(), "capacities": [0.5, 1]},
    ],
    ids=["scaffold", "moon", "heterofl"],
)
def test_engines_agree(data, parts, engine_of):
    serial = run(data, **parts).state.x
    assert torch.equal(serial, run(data, engine=engine_of("workers:2"), **parts).state.x)
    together = run(data, engine="vectorised:4", **parts).state.x
    moved, apart = (serial - vector(network())).norm(), (serial - together).norm()
    assert apart < 0.1 * moved


def test_evaluation_is_in_full(data):
    """The score is that of the exported model."""
    inputs, targets = data.inputs[:9], data.targets[:9]
    tests = run(from_clients([(data.inputs, data.targets)], test=(inputs, targets)), rounds=1)
    with torch.no_grad():
        want = nn.functional.cross_entropy(tests.model(inputs), targets)
    assert tests.history[-1]["test_loss"] == pytest.approx(float(want), rel=1e-6)


def test_what_is_refused(data):
    double = data.astype(torch.float64)
    for call, says in (
        (lambda: run(data, "tf32"), "tf32 is arithmetic of CUDA GPUs, and the run is on cpu"),
        (lambda: run(double, dtype="float64"), "goes with dtype = float32, not float64"),
        (lambda: run(data, "fp16"), "local.precision must be one of full, bf16, tf32"),
    ):
        refused(call, says, kind=ConfigError)


@pytest.mark.parametrize("has", [True, False])
def test_a_processor_that_imitates_it_is_named(data, monkeypatch, caplog, has):
    monkeypatch.setattr("fedloom.experiment.fit_checks.has_bfloat16", lambda device: has)
    with caplog.at_level(logging.WARNING):
        run(data)
    assert ("imitates it" in caplog.text) is not has


def test_what_a_processor_says_of_itself(monkeypatch):
    said = "flags : fpu avx2 fma"
    monkeypatch.setattr(bfloat16.Path, "read_text", lambda *a, **k: said)
    assert not bfloat16.has_bfloat16(torch.device("cpu"))
    said += " avx512_bf16"
    assert bfloat16.has_bfloat16(torch.device("cpu"))


def test_runs_from_before_it_was_a_setting_go_on_and_stand_in_one_row():
    before = {"seed": 0, "algorithm": {"name": "fedavg"}, "local": {"lr": 0.1}, "data": {}}
    after = before | {"local": {"lr": 0.1, "precision": "full"}}
    other = before | {"local": {"lr": 0.1, "precision": "bf16"}}
    for of in (identity.fixed_parts, identity.run_digest, identity.group_of):
        assert of(before) == of(after) != of(other)


def test_a_gpus_products_are_full_and_afterwards_as_they_were():
    from fedloom.engines.base import one_thread

    cuda = torch.backends.cuda.matmul, torch.backends.cudnn
    before = [kind.allow_tf32 for kind in cuda]
    for precision in ("full", "tf32"):
        with one_thread(precision):
            assert [kind.allow_tf32 for kind in cuda] == [precision == "tf32"] * 2
        assert [kind.allow_tf32 for kind in cuda] == before


@pytest.fixture
def timed(monkeypatch):
    """A clock by which a step takes 2 s, and 0.5 s in bfloat16; the first of each, 100 s more."""
    state = types.SimpleNamespace(now=0.0, steps=0)
    real = Serial.map

    def train(self, what, task):
        first = not vars(self).setdefault("begun", False)
        state.now += (0.5 if self._clients.net.bf16 else 2.0) + 100.0 * first
        state.steps, self.begun = state.steps + 1, True
        return real(self, what, task)

    clock = types.SimpleNamespace(perf_counter=lambda: state.now)
    monkeypatch.setattr(one_step, "time", clock)
    monkeypatch.setattr(one_step, "has_bfloat16", lambda device: True)
    monkeypatch.setattr(Serial, "map", train)
    return state


def test_the_time_in_bfloat16_is_that_of_the_second_of_two_steps(timed, data):
    loop = built(data).build()
    assert bfloat16_gain(loop.plan, loop.fed, loop.net) == 0.25
    assert timed.steps == 4
    rows = {name: value for name, value, _ in dry_run.measure(built(data)).more}
    assert rows["bf16"] == "0.25 of a step"


@pytest.mark.parametrize("why", ["precision", "dtype", "processor"])
def test_bfloat16_is_not_measured_where_it_is_none_of_the_runs_business(
    timed, monkeypatch, data, why
):
    if why == "processor":
        monkeypatch.setattr(one_step, "has_bfloat16", lambda device: False)
    given = {"precision": {"precision": "bf16"}, "dtype": {"dtype": "float64"}}.get(why, {})
    loop = built(data, **given).build()
    assert bfloat16_gain(loop.plan, loop.fed, loop.net) is None and timed.steps == 0


@pytest.mark.parametrize("algorithm", [FedAvg(), FAFED()])
def test_measuring_leaves_a_run_as_it_was(timed, data, algorithm):
    def end(measured):
        loop = built(data, algorithm, engine="serial+onednn").build()
        loop.engine.open(loop.plan, loop.fed, loop.net)
        loop.begin()
        loop.until(1)
        if measured:
            drawn = torch.get_rng_state()
            assert bfloat16_gain(loop.plan, loop.fed, loop.net) == 0.25
            assert torch.equal(torch.get_rng_state(), drawn)
            assert loop.net.onednn and not loop.net.bf16
        loop.until(2)
        return loop.state.srv

    assert not unequal(end(True), end(False))
