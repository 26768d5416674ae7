"""Which device a setting means."""

import pytest
import torch

from fedloom.config import resolve
from fedloom.core.device import device_of
from fedloom.errors import ConfigError
from support.pretend_device import NAME, register
from support.refusals import refused

register()


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("gpu", "unknown device 'gpu'; known: auto, cpu, cuda, cuda:1, mps"),
        ("", "unknown device ''"),
        ("meta", "device = 'meta' cannot be used: it holds no values; known: auto, cpu"),
        ("vulkan", "device = 'vulkan' cannot be used: "),
        ("xla", "device = 'xla' cannot be used: "),
    ],
)
def test_what_is_no_device_to_compute_on_is_refused(name, says):
    assert refused(lambda: device_of(name), kind=ConfigError).startswith(says)
    if name in ("meta", "gpu"):
        settings = lambda: resolve("digits", [f"device={name}"])
        assert refused(settings, f"device ... '{name}'").startswith("command line: ")


def test_a_gpu_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert device_of("auto") == torch.device("cpu")
    for name in ("cuda", "cuda:1"):
        refused(lambda name=name: device_of(name), f"'{name}', but torch sees no GPU here; use")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    refused(lambda: device_of("cuda:1"), "'cuda:1', but torch sees 1 GPU here; ... from cuda:0")


def test_devices_are_named_in_full():
    assert (device_of("cpu"), device_of("cpu:0")) == (torch.device("cpu"), torch.device("cpu"))
    assert device_of(NAME) == torch.device(f"{NAME}:0")
