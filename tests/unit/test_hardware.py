"""Which device a setting means."""

import pytest
import torch

from fedloom.config import resolve
from fedloom.core.device import device_of
from support.pretend_device import NAME, register
from support.refusals import refused

register()


@pytest.mark.parametrize("name", ["gpu", "", "meta", "vulkan", "xla", "cuda:77"])
def test_what_is_no_device_to_compute_on_is_refused(name):
    refused(lambda: device_of(name), f"device = '{name}' cannot be used here; take auto, cpu ... (")
    if name in ("meta", "gpu"):
        settings = lambda: resolve("digits", [f"device={name}"])
        assert refused(settings, f"device ... '{name}'").startswith("command line: ")


def test_a_gpu_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert device_of("auto") == torch.device("cpu")

    def gone(n, device):
        raise RuntimeError("CUDA error: invalid device ordinal\nmore")

    monkeypatch.setattr(torch, "ones", gone)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    listed = "auto, cpu, cuda:0, cuda:1 (torch: CUDA error: invalid device ordinal)"
    refused(lambda: device_of("cuda:2"), "'cuda:2' cannot be used here; take ", listed)


def test_devices_are_named_in_full():
    assert (device_of("cpu"), device_of("cpu:0")) == (torch.device("cpu"), torch.device("cpu"))
    assert device_of(NAME) == torch.device(f"{NAME}:0")
