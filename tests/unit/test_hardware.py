"""Which device a setting means, and that the stand-in for one behaves as a device does."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.func import grad_and_value, vmap

from fedloom.config import resolve
from fedloom.core.device import device_of
from fedloom.errors import ConfigError
from support.pretend_device import NAME, counted, register

HERE = torch.device(register())
REFUSED = {
    "gpu": "unknown device 'gpu'; known: auto, cpu, cuda, cuda:1, mps",
    "": "unknown device ''",
    "meta": "device = 'meta' cannot be used: it holds no values; known: auto, cpu",
    "vulkan": "device = 'vulkan' cannot be used: ",
    "xla": "device = 'xla' cannot be used: ",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_device_to_compute_on_is_refused_in_one_line(name):
    with pytest.raises(ConfigError) as found:
        device_of(name)
    assert str(found.value).startswith(REFUSED[name]) and "\n" not in str(found.value)


@pytest.mark.parametrize("name", ["meta", "gpu"])
def test_a_configuration_says_where_the_device_was_given(name):
    with pytest.raises(ConfigError, match=rf"^command line: .*device.* '{name}'"):
        resolve("digits", [f"device={name}"])


def test_a_gpu_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert device_of("auto") == torch.device("cpu")
    for name in ("cuda", "cuda:1"):
        with pytest.raises(ConfigError, match=f"'{name}', but torch sees no GPU here; use"):
            device_of(name)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ConfigError, match=r"'cuda:1', but torch sees 1 GPU here; .* from cuda:0"):
        device_of("cuda:1")


def test_devices_are_named_in_full():
    assert (device_of("cpu"), device_of("cpu:0")) == (torch.device("cpu"), torch.device("cpu"))
    assert device_of(NAME) == torch.device(f"{NAME}:0")


# ------------------------------------------------------------------------------------ the stand-in
def test_the_stand_in_computes_with_the_bits_of_the_cpu():
    torch.manual_seed(1)
    layers = [nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.Tanh(), nn.Flatten(), nn.Linear(16, 3)]
    module = nn.Sequential(*layers)
    inputs, targets = torch.randn(5, 2, 4, 4), torch.tensor([0, 1, 2, 1, 0])
    grads = []
    for device in ("cpu", HERE):
        own = copy.deepcopy(module).to(device)
        nn.functional.cross_entropy(own(inputs.to(device)), targets.to(device)).backward()
        assert all(p.grad.device.type == torch.device(device).type for p in own.parameters())
        grads.append([p.grad.cpu() for p in own.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))
    rows = torch.randn(3, 4)
    square = lambda v: (v * v).sum()
    slope, value = vmap(grad_and_value(square))(rows.to(HERE))
    assert torch.equal(slope.cpu(), 2 * rows) and value.device.type == NAME


REFUSALS = {
    "operands on two devices": lambda x: x * torch.ones(3),
    "an index on the CPU": lambda x: x.index_select(0, torch.tensor([1])),
    "a number of the CPU among vectors": lambda x: torch.stack([x[0], torch.tensor(1.0)]),
    "a generator of the CPU": lambda x: torch.rand(2, device=HERE, generator=torch.Generator()),
    "parameters from the CPU": lambda x: setattr(nn.Linear(2, 2).to(HERE).weight, "data", x.cpu()),
}


@pytest.mark.parametrize("what", REFUSALS)
def test_the_stand_in_refuses(what):
    with pytest.raises(RuntimeError, match=r"device|on pretend"):
        REFUSALS[what](torch.ones(3, device=HERE))


def test_the_stand_in_is_no_array_and_is_sent_nowhere():
    x = torch.ones(3, device=HERE)
    for make in (lambda: x.numpy(), lambda: x.__array__(), lambda: x.__reduce_ex__(4)):
        with pytest.raises(TypeError):
            make()


def test_a_device_that_a_backward_pass_forgot_is_told_behind_it():
    class Forgetful(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g + torch.ones(3)

    x = torch.ones(3, device=HERE, requires_grad=True)
    Forgetful.apply(x).sum().backward()
    with pytest.raises(RuntimeError, match=r"mixed devices in aten\.add"):
        x.sum()


def test_crossings_are_counted():
    with counted() as count:
        x = torch.ones(3).to(HERE)
        x.cpu().to(torch.float64)
        x.double().add_(1)
        float(x[0])
        x.tolist()
        x.nonzero()
        x[x > 0]
        torch.tensor([1.0], device=HERE)
        x.copy_(torch.zeros(3))
    assert count.as_dict() == {"to_device": 3, "to_host": 1, "reads": 4}
