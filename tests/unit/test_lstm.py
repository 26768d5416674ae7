"""The LSTM of our own: torch's, with reproducible dropout, and open to vmap."""

import copy

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from fedloom.core.dropout import HashedDropout, seeded, swap
from fedloom.models import LSTM
from fedloom.models.recurrent import _plain
from support.refusals import refused

CASES = [{"num_layers": 1}, {"num_layers": 3}]
CASES += [{"num_layers": 2, "bias": False}, {"num_layers": 2, "batch_first": True}]
F, H, B, T = 3, 5, 4, 6


def close(a, b, atol=1e-12):
    torch.testing.assert_close(a, b, rtol=0, atol=atol)


def pair(dtype=torch.float64, **options):
    torch.manual_seed(2)
    theirs = nn.LSTM(F, H, **options).to(dtype)
    ours = LSTM(F, H, **options).to(dtype)
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def batch(batch_first=False, dtype=torch.float64, **_):
    torch.manual_seed(3)
    return torch.randn(*((B, T) if batch_first else (T, B)), F, dtype=dtype)


def results(net, a, state):
    """Outputs, states, and the gradients of a weighted sum of them all."""
    a = a.clone().requires_grad_()
    state = tuple(v.clone().requires_grad_() for v in state)
    outputs, (h, c) = net(a, state)
    weigh = lambda v: (v * torch.linspace(-1, 2, v.numel(), dtype=v.dtype).view(v.shape)).sum()
    total = weigh(outputs) + weigh(h) + 0.5 * weigh(c)
    return [outputs, h, c, *torch.autograd.grad(total, [a, *state, *net.parameters()])]


@pytest.mark.parametrize("case", CASES)
def test_it_is_torchs_lstm_with_all_gradients_and_names(case):
    ours, theirs = pair(**case)
    state = tuple(torch.randn(case["num_layers"], B, H, dtype=torch.float64) for _ in range(2))
    both = (results(net, batch(**case), state) for net in (ours, theirs))
    for one, other in zip(*both, strict=True):
        close(one, other)
    shapes = [[(n, p.shape) for n, p in net.named_parameters()] for net in (ours, theirs)]
    assert shapes[0] == shapes[1]


def test_first_weights_are_uniform_as_torch_draws_them():
    for value in LSTM(7, 25).parameters():
        assert 0.9 / 5 < value.abs().max() <= 1 / 5


def by_hand(a, h, c, w, u, b1, b2):
    """One example, one step after another, gate by gate."""
    size, out = len(h), []
    for step in a:
        z = w @ step + b1 + u @ h + b2
        i, f, g, o = (z[k * size : (k + 1) * size] for k in range(4))
        sigma = lambda v: 1 / (1 + (-v).exp())
        c = sigma(f) * c + sigma(i) * g.tanh()
        h = sigma(o) * c.tanh()
        out.append(h)
    return torch.stack(out), h, c


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
def test_both_ways_to_run_a_layer_are_the_formula(dtype, bound):
    ours, _ = pair(dtype, num_layers=1, batch_first=True)
    a, weights = batch(True, dtype), list(ours.parameters())
    h, c = torch.randn(2, B, H, dtype=dtype)
    plain = _plain(a, h, c, weights)
    outputs, (h_end, c_end) = ours(a, (h[None], c[None]))
    for k in range(B):
        want = by_hand(a[k], h[k], c[k], *weights)
        for one, other, third in zip(plain, (outputs, h_end[0], c_end[0]), want, strict=True):
            close(one[k], third, bound)
            close(other[k], third, bound)


@pytest.mark.parametrize(
    ("dtype", "loose"),
    [(torch.float32, {"rtol": 1e-5, "atol": 1e-5}), (torch.float64, {"rtol": 0, "atol": 1e-12})],
)
def test_vmap_of_grad_is_one_client_after_another(dtype, loose):
    # in float32 torch's kernel would warn here, and warnings are errors
    ours, _ = pair(dtype, num_layers=2)
    start = {k: v.detach() for k, v in ours.named_parameters()}
    many = {k: torch.stack([v, v + 0.1, -v]) for k, v in start.items()}
    data = torch.stack([batch(dtype=dtype) + k for k in range(3)])
    loss = lambda p, a: functional_call(ours, p, (a,))[0].square().sum()
    together = vmap(grad(loss))(many, data)
    for k in range(3):
        own = {n: v[k].clone().requires_grad_() for n, v in many.items()}
        alone = torch.autograd.grad(loss(own, data[k]), list(own.values()))
        for name, want in zip(own, alone, strict=True):
            torch.testing.assert_close(together[name][k], want, **loose)


def test_dropout_lies_between_the_layers_and_nowhere_else():
    ours, theirs = pair(num_layers=3, dropout=0.4)
    layers = [nn.LSTM(F if i == 0 else H, H).double() for i in range(3)]
    for i, layer in enumerate(layers):
        own = {k: v for k, v in theirs.state_dict().items() if k.endswith(f"l{i}")}
        layer.load_state_dict({k.replace(f"l{i}", "l0"): v for k, v in own.items()})
    ours, drop = swap(copy.deepcopy(ours)), HashedDropout(0.4)
    a = batch()
    with seeded(7):
        outputs = ours(a)[0]
    with seeded(7):
        for i, layer in enumerate(layers):
            a = a if i == 0 else drop(a.transpose(0, 1)).transpose(0, 1)
            a = layer(a)[0]
    close(outputs, a)
    close(ours.eval()(batch())[0], theirs.eval()(batch())[0])


@pytest.mark.parametrize("batch_first", [False, True])
def test_padding_a_short_batch_changes_no_mask(batch_first):
    ours = swap(pair(num_layers=2, dropout=0.5, batch_first=batch_first)[0])
    a, axis = batch(batch_first), 0 if batch_first else 1
    with seeded(5):
        whole = ours(a)[0]
    with seeded(5):
        part = ours(a.narrow(axis, 0, 2))[0]
    close(part, whole.narrow(axis, 0, 2))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: LSTM(0, 4), "input_size must be"),
        (lambda: LSTM(3, 4, num_layers=True), "num_layers must be"),
        (lambda: LSTM(3, 4, dropout=1.0), "[0, 1)"),
        (lambda: LSTM(3, 4, batch_first=True)(torch.zeros(4, 3)), "takes (B, T, 3), got [4, 3]"),
    ],
)
def test_sizes_and_inputs_that_do_not_fit_are_refused(make, says):
    refused(make, says)
