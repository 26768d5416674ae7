"""A module as a function of x, whole and in blocks: values, gradients, buffers, what is refused."""

import copy
from collections import OrderedDict

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn, vmap
from torch.func import grad

from fedloom import Experiment, FedAvg
from fedloom.core.layout import Layout
from fedloom.core.net import Net, Variables
from fedloom.core.vector import rec
from fedloom.data import digits, iid
from fedloom.engines.grad_and_value import grad_and_value
from fedloom.errors import AuthorError, CompositionError, ConfigError, DataError
from fedloom.objectives import MOON, FedMLB, FedNTD
from support.modules import Tied
from support.refusals import refused

SHAPES = st.lists(st.lists(st.integers(0, 4), max_size=3).map(tuple), min_size=1, max_size=6)
INPUTS = torch.linspace(-1, 1, 15, dtype=torch.float64).view(5, 3)


@pytest.fixture
def module():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 2)).double()


def flat(tensors):
    return torch.cat([t.detach().reshape(-1) for t in tensors])


@given(SHAPES)
def test_every_coordinate_is_in_one_piece_and_comes_back_where_it_was(some):
    layout = Layout(tuple(f"p{n}" for n in range(len(some))), tuple(some))
    x = torch.arange(float(layout.d))
    views = layout.views(x)
    assert [tuple(v.shape) for v in views.values()] == list(some)
    assert torch.equal(layout.flatten(views), x)
    for piece in layout.pieces(x):
        piece += 1  # the pieces share the vector's memory
    assert torch.equal(x, torch.arange(float(layout.d)) + 1)
    for name in layout.names:
        marked = layout.views(layout.where(name))
        assert all(bool((v == (n == name)).all()) for n, v in marked.items())
    assert torch.equal(layout.where("*"), torch.ones(layout.d))
    assert torch.equal(layout.where("nothing"), torch.zeros(layout.d))


def test_the_order_is_the_modules_and_pieces_that_do_not_fit_are_named():
    net = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1, bias=False))
    layout, named = Layout.of(net.named_parameters()), dict(net.named_parameters())
    assert layout.names == ("0.weight", "0.bias", "1.weight")
    assert torch.equal(layout.flatten(named), flat(net.parameters()))
    assert layout.where("*.bias").sum() == 3 and not layout.flatten(named).requires_grad
    layout, w = Layout(("w", "b"), ((2, 3), (2,))), torch.zeros(2, 3)
    refused(lambda: layout.flatten({"w": w}), "lack 'b' ... [2]")
    turned = lambda: layout.flatten({"w": w.T, "b": torch.zeros(2)})
    refused(turned, "'w' has shape [3, 2] ... [2, 3]")
    with pytest.raises(RuntimeError):
        layout.views(torch.zeros(9))


@pytest.mark.parametrize("way", ["live", "functional"])
def test_values_and_gradients_are_the_modules(module, way):
    net, other = Net(module), copy.deepcopy(module)
    assert torch.equal(net.init(), flat(module.parameters())) and net.dtype == torch.float64
    assert net.layout.names == tuple(n for n, _ in module.named_parameters())
    x = net.init() + 0.1
    with torch.no_grad():
        for p, piece in zip(other.parameters(), net.layout.pieces(x), strict=True):
            p.copy_(piece)
    want = other(INPUTS).square().sum()
    gradient = flat(torch.autograd.grad(want, list(other.parameters())))
    if way == "live":
        value = net(net.live(x), INPUTS).square().sum()
        slope = flat(torch.autograd.grad(value, net.params))
    else:
        y = x.clone().requires_grad_()
        value = net(y, INPUTS).square().sum()
        (slope,) = torch.autograd.grad(value, y)
    assert torch.equal(value, want) and torch.equal(slope, gradient)
    net.init().zero_()
    assert float(net.init().abs().sum()) > 0
    free = Net(Variables(torch.tensor([1.0, 2.0])))
    assert torch.equal(free(free.init(), torch.zeros(3, 1)), torch.tensor([[1.0, 2.0]] * 3))


def test_binding_shares_memory_and_follows_x(module):
    net, x = Net(module), Net(module).init()
    net.train(False)
    net.bind(x)
    before = net.module(INPUTS)
    x.mul_(2)
    assert not torch.equal(net.module(INPUTS), before)
    net.bind(x)
    assert torch.equal(flat(net.params), x)


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


def test_start_from_takes_any_name_of_a_tied_weight():
    d = sum(p.numel() for p in Tied().parameters())
    rest = {k: torch.zeros_like(v) for k, v in Tied().state_dict().items()}
    weights = {k: rest.pop(k) for k in ("enter.weight", "middle.weight")}
    for name, weight in weights.items():
        net = Net(Tied())
        net.start_from({name: weight + 7} | rest)
        assert torch.equal(net.init(), torch.cat([torch.full((25,), 7.0), torch.zeros(d - 25)]))
        assert torch.equal(net.module.middle.weight, weight + 7)


def loss(x: Tensor, data: Tensor) -> Tensor:
    """A small network's mean loss: 12 weights, data (B, 4)."""
    return ((data @ x.view(4, 3)).relu() ** 2).mean().sqrt()


@pytest.mark.parametrize("shared", [False, True])
def test_the_gradient_of_vmapped_steps_has_the_bits_of_torch_func(shared):
    x, data = torch.randn(12) if shared else torch.randn(5, 12), torch.randn(5, 7, 4)
    dims = (None if shared else 0, 0)
    ours = vmap(lambda x, d: grad_and_value(lambda y: loss(y, d), x), in_dims=dims)(x, data)
    theirs = vmap(torch.func.grad_and_value(loss), in_dims=dims)(x, data)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_the_gradient_is_differentiated_once_more_and_an_error_leaves_no_trace():
    x, data, v = torch.randn(12), torch.randn(7, 4), torch.randn(12)
    ours = torch.func.grad(lambda x: grad_and_value(lambda y: loss(y, data), x)[0] @ v)(x)
    theirs = torch.func.grad(lambda x: torch.func.grad(loss)(x, data) @ v)(x)
    assert torch.equal(ours, theirs) and ours.any()
    for constant in (torch.tensor(2.0), (x**2).sum()):
        gradient, value = grad_and_value(lambda y, c=constant: c, x)
        assert torch.equal(gradient, torch.zeros(12)) and value == constant
    with pytest.raises(ZeroDivisionError):
        grad_and_value(lambda y: 1 / 0, torch.ones(2))
    assert not torch._C._functorch.maybe_current_level()


def test_buffers_are_a_second_vector_and_counters_go_back(module):
    net = Net(module)
    start = net.init_buffers()
    assert torch.equal(start, torch.tensor([0.0] * 4 + [1.0] * 4, dtype=torch.float64))
    net.train()
    net.module(INPUTS)
    changed = net.buffers()
    assert not torch.equal(changed, start) and int(net.module[1].num_batches_tracked) == 1
    net.load_buffers(start)
    assert torch.equal(net.buffers(), start) and int(net.module[1].num_batches_tracked) == 0
    net.module(INPUTS)
    assert torch.equal(net.buffers(), changed)
    there = Net(module).to("meta")
    assert there.device.type == there.buffers().device.type == "meta"
    assert {t.device.type for t in there.module.state_dict().values()} == {"meta"}


class Assigning(nn.Module):
    """Its forward assigns to a buffer what `update` gives of it, and to a counter and a cache."""

    def __init__(self, update):
        super().__init__()
        self.line, self.update = nn.Linear(3, 1), update
        self.register_buffer("old", torch.ones(2))
        self.register_buffer("mean", torch.zeros(2))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))
        self.register_buffer("cache", None)

    def forward(self, inputs):
        self.old, self.mean, self.count = self.mean, self.update(self.mean), self.count + 1
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
    net.module.update = lambda mean: mean + net.module.line.bias
    net.module(INPUTS.float())
    assert net.module.mean.requires_grad and not net.buffers().requires_grad
    out = net.export(net.init(), torch.arange(4.0))
    assert out.old.tolist() == [0, 1] and out.mean.tolist() == [2, 3]


@pytest.mark.parametrize("update", [lambda mean: torch.ones(3), lambda mean: None])
def test_an_assigned_buffer_of_another_shape_is_refused(update):
    net = Net(Assigning(update))
    net.module(INPUTS.float())
    refused(net.buffers, "Assigning assigns ... 'mean' of shape [2];", kind=AuthorError)


def test_a_shared_buffer_may_be_written_into_and_not_assigned_at_one_place():
    start = torch.tensor([0.0] * 3 + [1.0] * 3 + [1.0] * 3)
    module = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.BatchNorm1d(3))
    module[2].running_mean = module[1].running_mean
    net = Net(module)
    assert net.buffer_layout.names == ("1.running_mean", "1.running_var", "2.running_var")
    one, two = net.module[1], net.module[2]
    one.running_mean += 1
    assert net.buffers()[:3].tolist() == two.running_mean.tolist() == [1, 1, 1]
    one.running_mean = two.running_mean = torch.full((3,), 4.0)
    assert net.buffers()[:3].tolist() == [4, 4, 4]
    two.running_mean = torch.zeros(3)
    says = "one of the 2 places of its buffer '1.running_mean'"
    refused(net.buffers, says, kind=AuthorError)
    net.load_buffers(start)
    assert one.running_mean is two.running_mean


def test_what_cannot_be_trained_copied_or_sent_is_refused():
    mixed = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1).double())
    refused(lambda: Net(nn.LazyLinear(3)), "lazy", kind=DataError)
    refused(lambda: Net(nn.Tanh()), "nothing to train", kind=DataError)
    refused(lambda: Net(mixed), "mixes ... float32 ... float64", kind=DataError)
    with pytest.warns(FutureWarning):
        old = nn.utils.weight_norm(nn.Linear(3, 2))
    copying = "the model Linear cannot be copied ... parametrizations"
    refused(lambda: Net(old), copying, kind=ConfigError)
    new = nn.utils.parametrizations.weight_norm(nn.Linear(64, 10))
    assert Net(new).layout.d == 10 + 10 + 640
    run = Experiment(
        algorithm=FedAvg(), model=nn.Sequential(nn.Flatten(), new), data=digits(iid(4)),
        rounds=1, engine="workers:2",
    )  # fmt: skip
    refused(run.run, "cannot be sent ... engine = serial, or vectorised", kind=ConfigError)


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


class TiedBlocks(nn.Module):
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


NETS = (Forked, TiedBlocks, repeated, overwriting, partly_frozen, with_groups)
each_net = pytest.mark.parametrize("make", NETS, ids=lambda make: make.__name__)


def net_of(make) -> Net:
    return Net(make(), torch.float64)


def vectors(net: Net, n: int = 2) -> list[Tensor]:
    return list(torch.randn(n, net.layout.d, dtype=torch.float64))


def inputs(n: int = 5) -> Tensor:
    return torch.randn(n, 3, dtype=torch.float64)


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
    assert (
        float(first.min()) < 0 and float(second.min()) < 0
    )  # a ReLU would have made them positive
    net.stages(net.live(x), a)[0].sum().backward()  # and autograd finds it unchanged


def test_more_vectors_than_blocks_are_refused():
    net = net_of(Forked)
    for number, start in ((4, 0), (2, 2), (1, -1)):
        path = lambda n=number, start=start: net.path(vectors(net, n), inputs(), start=start)
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
    pair, one = net_of(lambda: nn.Sequential(Pair(), First(3, 2))), net_of(lambda: nn.Linear(3, 2))
    trained = lambda: nothing.check_blocks("Some", inputs(), trained=True)
    refused(trained, "nothing before '1' has a trained parameter", kind=CompositionError)
    for net, says in ((pair, "gets a tuple"), (one, "net.both and Linear")):
        both = lambda net=net: net.both(net.init(), inputs())
        refused(both, says, kind=CompositionError)


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
    make = lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
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
