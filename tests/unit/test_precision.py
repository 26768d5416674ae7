"""local.precision: what is computed in bfloat16, what is not, and what is refused."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import nn

from fedloom import Experiment, FedAvg, Local
from fedloom.algorithms import Scaffold
from fedloom.core import bfloat16
from fedloom.data import from_clients
from fedloom.errors import ConfigError
from fedloom.objectives import MOON
from fedloom.storage import identity
from fedloom.submodels import HeteroFL


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


def run(data, precision="bf16", algorithm=None, **changes):
    local = Local(steps=3, batch=6, lr=0.1, precision=precision)
    parts = {"model": network, "data": data, "rounds": 2, "local": local, "device": "cpu"}
    return Experiment(algorithm=algorithm or FedAvg(), **(parts | changes)).run()


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
    want = torch.cat([p.detach().flatten() for p in module.parameters()])
    got, full = (run(one, precision).state.x for precision in ("bf16", "full"))
    # the order of a batch changes sums in bfloat16: a few units in its eighth bit
    assert (got - want).norm() < 0.1 * (got - network_vector()).norm()
    assert got.dtype == torch.float32 and not torch.allclose(got, full, rtol=1e-4, atol=1e-6)


def network_vector():
    return torch.cat([p.detach().flatten() for p in network().parameters()])


@pytest.mark.parametrize(
    "parts",
    [
        {"algorithm": Scaffold()},
        {"objective": MOON()},
        {"submodel": HeteroFL(), "capacities": [0.5, 1]},
    ],
    ids=["scaffold", "moon", "heterofl"],
)
def test_engines_agree(data, parts):
    serial = run(data, **parts).state.x
    assert torch.equal(serial, run(data, engine="workers:2", **parts).state.x)
    together = run(data, engine="vectorised:4", **parts).state.x
    moved, apart = (serial - network_vector()).norm(), (serial - together).norm()
    assert apart < 0.1 * moved


def test_evaluation_is_in_full(data):
    """The score is that of the exported model."""
    tests = Experiment(
        algorithm=FedAvg(),
        model=network,
        data=from_clients([(data.inputs, data.targets)], test=(data.inputs[:9], data.targets[:9])),
        rounds=1,
        local=Local(steps=1, batch=6, lr=0.1, precision="bf16"),
        device="cpu",
    ).run()
    with torch.no_grad():
        outputs = tests.model(data.inputs[:9])
    want = nn.functional.cross_entropy(outputs, data.targets[:9])
    assert tests.history[-1]["test_loss"] == pytest.approx(float(want), rel=1e-6)


def test_what_is_refused(data):
    with pytest.raises(ConfigError, match="tf32 is arithmetic of CUDA GPUs, and the run is on cpu"):
        run(data, "tf32")
    with pytest.raises(ConfigError, match="goes with dtype = float32, not float64"):
        run(data.astype(torch.float64), dtype="float64")
    with pytest.raises(ConfigError, match=r"local\.precision must be one of full, bf16, tf32"):
        run(data, "fp16")


@pytest.mark.parametrize("has", [True, False])
def test_a_processor_that_imitates_it_is_named(data, monkeypatch, caplog, has):
    monkeypatch.setattr("fedloom.experiment.preflight.has_bfloat16", lambda device: has)
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
