"""A net in parts: which blocks it has, and what runs with which vector."""

from __future__ import annotations

from collections import OrderedDict

import pytest
import torch
from torch import Tensor, nn
from torch.func import grad

from fedloom.core.net import Net
from fedloom.core.vector import rec
from fedloom.errors import CompositionError, DataError
from fedloom.objectives import MOON, FedMLB, FedNTD
from support.refusals import refused


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(4)


class Forked(nn.Module):
    """Lists its blocks, not in the order in which they were made, one inside another child."""

    blocks = ("body.first", "body.second", "head")

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 2)
        parts = OrderedDict(first=nn.Linear(3, 4), second=nn.Sequential(nn.Tanh(), nn.Linear(4, 4)))
        self.body = nn.Sequential(parts)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.body(inputs))


class Tied(nn.Module):
    """The last block uses the first one's weight too; the middle one uses it twice."""

    blocks = ("encode", "twice", "decode")

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(3, 3), nn.Linear(3, 3)
        self.twice = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
        self.decode.weight = self.twice[0].weight = self.twice[2].weight = self.encode.weight

    def forward(self, inputs: Tensor) -> Tensor:
        return self.decode(self.twice(self.encode(inputs)))


def repeated() -> nn.Sequential:
    """One layer and one activation, each in two places."""
    layer, tanh = nn.Linear(3, 3), nn.Tanh()
    return nn.Sequential(layer, tanh, layer, tanh, nn.Linear(3, 2))


def overwriting() -> nn.Sequential:
    """Blocks that begin by changing their input."""
    later = [nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, w)) for w in (4, 2)]
    return nn.Sequential(nn.Linear(3, 4), *later)


def partly_frozen() -> nn.Sequential:
    net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 2))
    net[1].requires_grad_(False)
    net[2].weight.requires_grad_(False)
    return net


def with_groups() -> nn.Sequential:
    low = nn.Sequential(nn.Unflatten(1, (1, 3)), nn.Conv1d(1, 4, 2), nn.GroupNorm(2, 4))
    return nn.Sequential(low, nn.Sequential(nn.ReLU(), nn.Flatten()), nn.Linear(8, 2))


NETS = (Forked, Tied, repeated, overwriting, partly_frozen, with_groups)
each_net = pytest.mark.parametrize("make", NETS, ids=lambda make: make.__name__)


def net_of(make) -> Net:
    return Net(make(), torch.float64)


def vectors(net: Net, n: int = 2) -> list[Tensor]:
    return list(torch.randn(n, net.layout.d, dtype=torch.float64))


def inputs(n: int = 5) -> Tensor:
    return torch.randn(n, 3, dtype=torch.float64)


class Stack(nn.Module):
    """A list of modules called blocks names none."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(2, 2)])


class Skip(nn.Sequential):
    """A sequential with a forward of its own has no blocks."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + super().forward(inputs)


@pytest.mark.parametrize(
    ("make", "blocks"),
    [
        (Forked, ("body.first", "body.second", "head")),
        (repeated, ("0", "1", "2", "3", "4")),
        (lambda: nn.Linear(2, 2), ()),
        (Stack, ()),
        (lambda: Skip(nn.Linear(2, 2), nn.Linear(2, 2)), ()),
    ],
)
def test_names_are_in_the_order_the_blocks_run(make, blocks):
    assert net_of(make).blocks == blocks


@each_net
def test_the_blocks_one_after_another_are_the_net_and_features_what_the_last_one_gets(make):
    net = net_of(make)
    (x, _), a, received = vectors(net), inputs(), []
    n, whole = len(net.blocks), net(x, a)
    assert torch.equal(net.path([x] * n, a), whole)
    assert torch.equal(net.stages(x, a)[-1], whole)
    net.check_blocks("test", a)
    last = net.module.get_submodule(net.blocks[-1])
    hook = last.register_forward_pre_hook(lambda m, args: received.append(args[0].clone()))
    features, outputs = net.both(x, a)
    assert len(received) == 1  # one forward pass
    hook.remove()
    assert features.shape == (5, received[0][0].numel())
    assert torch.equal(features, received[0].flatten(1))
    assert torch.equal(net.features(x, a), features) and torch.equal(outputs, whole)


@each_net
def test_a_path_may_stop_early_and_go_on_with_another_vector(make):
    net = net_of(make)
    (x, y), a, n = vectors(net), inputs(), len(net.blocks)
    for b in range(n + 1):
        mixed = net.path([x] * b + [y] * (n - b), a)
        begun = net.path([x] * b, a)
        assert torch.equal(net.path([y] * (n - b), begun, start=b), mixed)
        if 0 < b < n and make is not repeated:
            assert not torch.allclose(mixed, net(y, a))
    assert torch.equal(net.path([], a), a)


def test_each_block_runs_with_its_own_vector():
    net, a = net_of(lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))), inputs()
    x, y = vectors(net)
    want = (a @ x[:12].view(4, 3).T + x[12:16]).tanh() @ y[16:24].view(2, 4).T + y[24:]
    torch.testing.assert_close(net.path([x, x, y], a), want, rtol=0, atol=1e-14)


@each_net
def test_live_and_traced_vectors_have_the_same_gradient(make):
    net = net_of(make)
    (x, y), a, n = vectors(net), inputs(), len(net.blocks)

    def value(v):
        features, outputs = net.both(v, a)
        mixed = net.path([v] + [y] * (n - 1), a)
        return features.square().sum() + outputs.sin().sum() + mixed.cos().sum()

    handle = net.live(x)
    parts = torch.autograd.grad(value(handle), net.params)
    want = grad(value)(x)
    torch.testing.assert_close(torch.cat([p.reshape(-1) for p in parts]), want, rtol=0, atol=1e-12)
    assert float(want.abs().max()) > 0.01


def test_in_place_layers_do_not_change_what_was_kept():
    net = net_of(overwriting)
    (x, _), a = vectors(net), inputs()
    first, second, _ = net.stages(x, a)
    assert float(first.min()) < 0  # the ReLU behind it would have made it positive
    assert float(second.min()) < 0
    net.stages(net.live(x), a)[0].sum().backward()  # and autograd finds it unchanged


# ---------------------------------------------------------------------------- what is refused
@pytest.mark.parametrize(("number", "start"), [(4, 0), (2, 2), (1, -1)])
def test_more_vectors_than_blocks_are_refused(number, start):
    net = net_of(Forked)
    path = lambda: net.path(vectors(net, number), inputs(), start=start)
    refused(path, "path() got ... has 3 blocks", kind=DataError)


class Loose(Forked):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))


class Misspelt(Forked):
    blocks = ("body.first", "body.third", "head")


class Wrong(Forked):
    blocks = ("body.first", "head")

    def __init__(self) -> None:
        super().__init__()
        self.body.second = nn.Tanh()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: nn.Linear(3, 2), "Some and Linear: ... names none; make it an nn.Sequential"),
        (lambda: nn.Sequential(nn.Linear(3, 2)), "in two blocks or more, but ... names 0; make it"),
        (Loose, "Some and Loose: 'scale' is trained but lies in none of the blocks"),
        (Misspelt, "Misspelt.blocks names 'body.third', ... its children: head, body"),
        (Wrong, "Some and Wrong: its blocks body.first, head, ... do not give its output"),
    ],
)
def test_refusals_name_the_pair_and_what_to_do(make, says):
    refused(lambda: net_of(make).check_blocks("Some", inputs()), says, kind=CompositionError)


def test_blocks_that_train_nothing_or_give_no_tensor_are_refused():
    class Pair(nn.Module):
        def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
            return inputs, inputs

    class First(nn.Linear):
        def forward(self, pair: tuple[Tensor, Tensor]) -> Tensor:
            return super().forward(pair[0])

    nothing = net_of(lambda: nn.Sequential(nn.Flatten(), nn.Linear(3, 2)))
    nothing.check_blocks("Some", inputs())
    pair = net_of(lambda: nn.Sequential(nn.Linear(3, 3), Pair(), First(3, 2)))
    one = net_of(lambda: nn.Linear(3, 2))
    trained = lambda: nothing.check_blocks("Some", inputs(), trained=True)
    refused(trained, "nothing before '1' has a trained parameter", kind=CompositionError)
    for net, says in ((pair, "gets a tuple"), (one, "net.both and Linear")):
        both = lambda net=net: net.both(net.init(), inputs())
        refused(both, says, kind=CompositionError)


# -------------------------------------------------------------------------- evaluation mode
def test_evaluating_gives_every_layer_its_mode_back():
    net = net_of(
        lambda: nn.Sequential(nn.Dropout(), nn.Linear(3, 2), nn.BatchNorm1d(2), nn.LSTM(2, 2))
    )
    net.train()
    net.module[2].training = False
    with pytest.raises(ZeroDivisionError), net.evaluating():
        # a recurrent layer stays: cuDNN cannot differentiate it in evaluation mode
        assert [m.training for m in net.module.modules()] == [False, False, False, False, True]
        raise ZeroDivisionError
    assert [m.training for m in net.module.modules()] == [True, True, True, False, True]


@pytest.mark.parametrize("objective", [MOON(), FedNTD(), FedMLB()], ids=lambda o: o.name)
def test_received_models_leave_the_statistics_of_batch_norm_alone(objective):
    def make():
        return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))

    net, a, y = net_of(make), inputs(), torch.tensor([0, 1, 1, 0, 1])
    x, ref = vectors(net)
    mem = rec(prev=ref, seen=torch.tensor(1.0))
    net.train()
    start = net.buffers()
    net(x, a)
    once = net.buffers()
    net.load_buffers(start)
    objective.loss(net, x, (a, y), ref, mem)
    assert torch.equal(net.buffers(), once)  # one forward pass in training mode, that of x
    assert not torch.equal(start, once)
