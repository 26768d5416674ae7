"""A module as a function of x: the same values and gradients as the module itself."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from fedloom import Experiment, FedAvg
from fedloom.core.net import Net, Variables
from fedloom.data import digits, iid
from fedloom.errors import AuthorError, ConfigError, DataError


@pytest.fixture
def module():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 2)).double()


INPUTS = torch.linspace(-1, 1, 15, dtype=torch.float64).view(5, 3)


def flat(tensors):
    return torch.cat([t.detach().reshape(-1) for t in tensors])


def test_x_is_the_parameters_in_order(module):
    net = Net(module)
    assert torch.equal(net.init(), flat(module.parameters()))
    assert net.layout.names == tuple(n for n, _ in module.named_parameters())
    assert net.dtype == torch.float64
    x = net.init()
    x.zero_()
    assert float(net.init().abs().sum()) > 0


@pytest.mark.parametrize("way", ["live", "functional"])
def test_values_and_gradients_are_the_modules(module, way):
    net, other = Net(module), copy.deepcopy(module)
    x = net.init() + 0.1
    with torch.no_grad():
        for p, piece in zip(other.parameters(), net.layout.pieces(x), strict=True):
            p.copy_(piece)
    want = other(INPUTS).square().sum()
    gradient = flat(torch.autograd.grad(want, list(other.parameters())))
    if way == "live":
        value = net(net.live(x), INPUTS).square().sum()
        got = flat(torch.autograd.grad(value, net.params))
    else:
        y = x.clone().requires_grad_()
        value = net(y, INPUTS).square().sum()
        (got,) = torch.autograd.grad(value, y)
    assert torch.equal(value, want) and torch.equal(got, gradient)


def test_binding_shares_memory_and_follows_x(module):
    net, x = Net(module), Net(module).init()
    net.train(False)
    net.bind(x)
    before = net.module(INPUTS)
    x.mul_(2)
    assert not torch.equal(net.module(INPUTS), before)
    net.bind(x)
    assert all(
        torch.equal(p, piece) for p, piece in zip(net.params, net.layout.pieces(x), strict=True)
    )


def test_buffers_are_a_second_vector_and_counters_go_back(module):
    net = Net(module)
    start = net.init_buffers()
    assert torch.equal(start, torch.tensor([0.0] * 4 + [1.0] * 4, dtype=torch.float64))
    net.train()
    net.module(INPUTS)
    assert not torch.equal(net.buffers(), start) and int(net.module[1].num_batches_tracked) == 1
    changed = net.buffers()
    net.load_buffers(start)
    assert torch.equal(net.buffers(), start) and int(net.module[1].num_batches_tracked) == 0
    net.module(INPUTS)
    assert torch.equal(net.buffers(), changed)


class Assigning(nn.Module):
    """Its forward assigns to a buffer what `made` gives of it, and to a counter and a cache."""

    def __init__(self, made):
        super().__init__()
        self.line, self.made = nn.Linear(3, 1), made
        self.register_buffer("old", torch.ones(2))
        self.register_buffer("mean", torch.zeros(2))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))
        self.register_buffer("cache", None)

    def forward(self, inputs):
        self.old, self.mean, self.count = self.mean, self.made(self.mean), self.count + 1
        self.cache = inputs
        return self.line(inputs)


def test_assigned_buffers_are_read_and_put_back():
    net = Net(Assigning(lambda mean: mean + 2))
    net.module(INPUTS.float())
    net.module(INPUTS.float())
    assert net.buffers().tolist() == [2, 2, 4, 4]
    out = net.export(net.init())
    assert out.old.tolist() == [2, 2] and out.mean.tolist() == [4, 4]
    for start in (net.init_buffers(), torch.tensor([5.0, 6, 7, 8])):
        net.load_buffers(start)
        assert torch.equal(net.buffers(), start)
        assert int(net.module.count) == 0 and net.module.cache is None
        net.module(INPUTS.float())
        assert net.buffers().tolist() == [*start[2:], *(start[2:] + 2)]
    again = copy.deepcopy(net)
    again.load_buffers(start)
    assert again.module.mean.tolist() == [7, 8] and net.module.mean.tolist() == [9, 10]


def test_an_assigned_buffer_that_holds_a_graph_does_not_keep_a_model_from_being_exported():
    net = Net(Assigning(lambda mean: mean))
    net.module.made = lambda mean: mean + net.module.line.bias
    net.module(INPUTS.float())
    assert net.module.mean.requires_grad
    out = net.export(net.init(), torch.arange(4.0))
    assert out.old.tolist() == [0, 1] and out.mean.tolist() == [2, 3]
    assert not net.buffers().requires_grad


@pytest.mark.parametrize("made", [lambda mean: torch.ones(3), lambda mean: None])
def test_an_assigned_buffer_of_another_shape_is_refused(made):
    net = Net(Assigning(made))
    net.module(INPUTS.float())
    with pytest.raises(AuthorError, match=r"Assigning assigns .*'mean' of shape \[2\];"):
        net.buffers()


def test_a_shared_buffer_may_be_written_into_and_not_assigned_at_one_place():
    net = Net(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.BatchNorm1d(3)))
    start = net.buffers()
    one, two = net.module[1], net.module[2]
    two.running_mean = one.running_mean
    net = Net(net.module)
    assert net.buffer_layout.names == ("1.running_mean", "1.running_var", "2.running_var")
    one, two = net.module[1], net.module[2]
    one.running_mean += 1
    assert net.buffers()[:3].tolist() == two.running_mean.tolist() == [1, 1, 1]
    one.running_mean = two.running_mean = torch.full((3,), 4.0)
    assert net.buffers()[:3].tolist() == [4, 4, 4]
    two.running_mean = torch.zeros(3)
    with pytest.raises(AuthorError, match=r"one of the 2 places of its buffer '1.running_mean'"):
        net.buffers()
    net.load_buffers(start[:9])
    assert one.running_mean is two.running_mean


def test_export_is_free_standing(module):
    net = Net(module)
    net.train()
    net.module(INPUTS)
    x, buffers = net.init() * 3, torch.arange(8.0, dtype=torch.float64) + 1
    out = net.export(x, buffers)
    assert torch.equal(flat(out.parameters()), x) and not out.training
    assert torch.equal(out[1].running_mean, buffers[:4])
    assert int(out[1].num_batches_tracked) == 0
    x.zero_()
    assert float(flat(out.parameters()).abs().sum()) > 0
    assert all(p.requires_grad for p in out.parameters())


def test_another_device_gets_buffers_of_its_own(module):
    net = Net(module).to("meta")
    assert net.device.type == net.buffers().device.type == "meta"
    assert {t.device.type for t in net.module.state_dict().values()} == {"meta"}


def test_what_cannot_be_trained_is_refused():
    with pytest.raises(DataError, match="lazy"):
        Net(nn.LazyLinear(3))
    with pytest.raises(DataError, match="nothing to train"):
        Net(nn.Tanh())
    with pytest.raises(DataError, match=r"mixes.*float32.*float64"):
        Net(nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1).double()))


def test_start_from_takes_any_name_of_a_tied_weight():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.late, self.early = nn.Linear(2, 2), nn.Linear(2, 2)
            self.early.weight = self.late.weight

    weight = torch.full((2, 2), 7.0)
    rest = {"late.bias": torch.zeros(2), "early.bias": torch.ones(2)}
    for name in ("late.weight", "early.weight"):
        net = Net(Tied())
        net.start_from({name: weight} | rest)
        assert torch.equal(net.init(), torch.tensor([7.0] * 4 + [0, 0, 1, 1]))
        assert torch.equal(net.module.early.weight, weight)


def test_variables_are_nothing_but_x():
    net = Net(Variables(torch.tensor([1.0, 2.0])))
    assert torch.equal(net(net.init(), torch.zeros(3, 1)), torch.tensor([[1.0, 2.0]] * 3))


def test_a_model_that_cannot_be_copied_is_refused_in_words() -> None:
    with pytest.warns(FutureWarning):
        old = nn.utils.weight_norm(nn.Linear(3, 2))
    with pytest.raises(ConfigError, match=r"the model Linear cannot be copied .*parametrizations"):
        Net(old)
    new = Net(nn.utils.parametrizations.weight_norm(nn.Linear(3, 2)))
    assert new.layout.d == 2 + 2 + 6


def test_a_model_that_cannot_be_sent_to_workers_is_refused_in_words() -> None:
    made = nn.Sequential(nn.Flatten(), nn.utils.parametrizations.weight_norm(nn.Linear(64, 10)))
    run = Experiment(
        algorithm=FedAvg(), model=made, data=digits(iid(4)), rounds=1, engine="workers:2"
    )
    with pytest.raises(ConfigError, match=r"cannot be sent .* engine = serial, or vectorised"):
        run.run()
