"""The device of a run, and moving values to it."""

from __future__ import annotations

import copy
import dataclasses
import functools
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import ConfigError


def device_of(name: str) -> torch.device:
    """The device of this name; "auto" is the first CUDA GPU if there is one, else the CPU.

    Raises ConfigError for a device that does not exist, and for one that holds no values.

    >>> device_of("cpu")
    device(type='cpu')
    """
    cuda = torch.cuda.is_available()
    try:
        one = torch.ones(1, device=("cuda" if cuda else "cpu") if name == "auto" else name)
        float(one)
    except (RuntimeError, AssertionError, ValueError) as error:
        there = ["auto", "cpu", *(f"cuda:{i}" for i in range(cuda and torch.cuda.device_count()))]
        there += ["mps"] if torch.backends.mps.is_available() else []
        why = str(error).partition("\n")[0][:100]
        raise ConfigError(
            f"device = '{name}' cannot be used here; take {', '.join(there)} (torch: {why})"
        ) from None
    return torch.device("cpu") if one.device.type == "cpu" else one.device


def wait_for(device: torch.device) -> None:
    """Return once a GPU has done what was asked of it; a CPU has."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def move_to(part: Any, device: torch.device) -> Any:
    """A loss, a metric or an objective with its tensors on a device: those in its attributes, in
    lists, tables and modules, and in the arguments of a functools.partial. Objects without tensors
    stay the same; the caller's own is not changed.

    >>> import functools
    >>> f = functools.partial(torch.add, torch.ones(1))
    >>> move_to(f, torch.device("cpu"))(1.0)
    tensor([2.])
    """
    if isinstance(part, Tensor):
        return part.to(device)
    if isinstance(part, nn.Module):
        return copy.deepcopy(part).to(device)
    if isinstance(part, functools.partial):
        arguments, keywords = move_to(part.args, device), move_to(part.keywords, device)
        return functools.partial(move_to(part.func, device), *arguments, **keywords)
    if type(part) in (list, tuple):
        return type(part)(move_to(v, device) for v in part)
    if type(part) is dict:
        return {k: move_to(v, device) for k, v in part.items()}
    if not dataclasses.is_dataclass(part) or isinstance(part, type):
        return part
    attributes = {k: move_to(v, device) for k, v in vars(part).items()}
    other = copy.copy(part)
    for name, value in attributes.items():
        object.__setattr__(other, name, value)
    return other
