"""Large products in oneDNN: the same layer, rounded otherwise, and only where it was asked for."""

import pytest
import torch
from torch import nn

from fedloom import Experiment, FedAvg, Local
from fedloom.core import products as onednn
from fedloom.core.net import Net
from fedloom.data import from_clients
from fedloom.engines import Serial, Workers, bits_of, make_engine
from fedloom.errors import ConfigError
from fedloom.models import mlp
from support.refusals import refused
from tiny import trace

needed = pytest.mark.skipif(not onednn.has_onednn(), reason="this torch has no oneDNN")


@pytest.fixture
def all_sizes(monkeypatch):
    """Every product is large enough."""
    monkeypatch.setattr(onednn, "LEAST", 1)


@needed
@pytest.mark.usefixtures("all_sizes")
@pytest.mark.parametrize("shape", [(4, 30), (2, 3, 30), (1, 30)])
@pytest.mark.parametrize("bias", [True, False])
def test_a_linear_layer_and_its_gradients_are_those_of_doubles(shape, bias):
    torch.manual_seed(0)
    layer, x = nn.Linear(30, 20, bias=bias), torch.randn(shape, requires_grad=True)
    exact = nn.Linear(30, 20, bias=bias).double()
    exact.load_state_dict(layer.state_dict())
    twin = x.detach().double().requires_grad_()
    weights = torch.randn(*shape[:-1], 20)
    out, wanted = onednn.in_onednn(layer, x), exact(twin)
    assert type(out.grad_fn).__name__ == "_LinearBackward"
    torch.testing.assert_close(out.double(), wanted, rtol=0, atol=1e-5)
    (out * weights).sum().backward()
    (wanted * weights).sum().backward()
    for ours, theirs in [(x, twin), *zip(layer.parameters(), exact.parameters(), strict=True)]:
        torch.testing.assert_close(ours.grad.double(), theirs.grad, rtol=0, atol=1e-5)


@needed
def test_small_and_other_products_stay_torchs(monkeypatch):
    layer, x = nn.Linear(6, 5), torch.randn(4, 6)
    stays = lambda x: onednn.in_onednn(layer, x).grad_fn.name().startswith("Addmm")
    layer.double()
    assert stays(x.double())
    layer.float()
    for least, small in ((4 * 6 * 5, False), (4 * 6 * 5 + 1, True)):
        monkeypatch.setattr(onednn, "LEAST", least)
        assert stays(x) is small
    assert onednn.gains(layer, 5) and not onednn.gains(layer, 4)
    assert not onednn.gains(nn.Conv2d(3, 3, 3), 100)


@pytest.mark.usefixtures("all_sizes")
def test_frozen_layers_get_no_gradient_and_evaluation_is_as_training():
    layer, x = nn.Linear(6, 5).requires_grad_(False), torch.randn(4, 6, requires_grad=True)
    if onednn.has_onednn():
        onednn.in_onednn(layer, x).sum().backward()
        torch.testing.assert_close(x.grad, layer.weight.sum(0).expand(4, 6))
        assert layer.weight.grad is None
        assert not onednn.in_onednn(layer, x.detach()).requires_grad
    net, x = Net(nn.Linear(6, 5)), x.detach()
    net.onednn = onednn.has_onednn()
    net.bind(net.init())
    torch.testing.assert_close(net.evaluated(x), net(net.init(), x), rtol=0, atol=1e-6)


@needed
def test_a_run_in_onednn_is_the_run_rounded_otherwise(engine_of):
    torch.manual_seed(1)
    clients = [(torch.randn(8, 1024), torch.randint(0, 3, (8,))) for _ in range(3)]
    model = mlp(1024, (1024,), 3)  # with batches of 4 just large enough
    local = Local(epochs=1, batch=4, lr=0.1)
    parts = {"algorithm": FedAvg(), "model": model, "data": from_clients(clients), "metrics": {}}

    def weights(engine):
        run = Experiment(**parts, local=local, rounds=2, engine=engine)
        return [*trace(run, 2)][-1].state.srv.x.clone()

    plain, ours, again = map(weights, ("serial", "serial+onednn", "serial+onednn"))
    assert torch.equal(ours, again)
    torch.testing.assert_close(ours, plain, rtol=0, atol=1e-6)
    assert torch.equal(ours, weights(engine_of("workers:2+onednn")))


def test_the_engine_says_its_name_and_what_it_does_not_go_with(monkeypatch):
    monkeypatch.setattr("fedloom.engines.has_onednn", lambda: True)
    for name in ("serial+onednn", "workers:2+onednn"):
        assert make_engine(name).text == name
    assert Workers(2, onednn=True).in_process().text == "serial+onednn"
    assert bits_of("workers:2+onednn") == "serial+onednn" != bits_of("workers:2")
    assert bits_of(Serial(onednn=True).text) == "serial+onednn"
    for name, says in (
        ("vectorised:3+onednn", "or serial and workers with onednn"),
        ("serial+onednx", "as in 'workers:2+onednn'"),
        ("workers:2+serial", "as in 'workers:2+onednn'"),
        ("serial+vectorised:2", "as in 'workers:2+onednn'"),
    ):
        refused(lambda name=name: make_engine(name), says, kind=ConfigError)
    monkeypatch.setattr("fedloom.engines.has_onednn", lambda: False)
    says = "'workers:2+onednn' ... take 'workers:2'"
    refused(lambda: make_engine("workers:2+onednn"), says, kind=ConfigError)
