"""The device of a run, and moving values to it."""

from __future__ import annotations

import copy
import dataclasses
import functools
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import ConfigError

KNOWN = "auto, cpu, cuda, cuda:1, mps"


def device_of(name: str) -> torch.device:
    """The device of this name; "auto" is the first CUDA GPU if there is one, else the CPU.

    Raises ConfigError for a device that does not exist, and for one that holds no values.

    >>> device_of("cpu")
    device(type='cpu')
    """
    if name == "auto":
        return device_of("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"unknown device '{name}'; known: {KNOWN}") from None
    if device.type == "cpu":
        return torch.device("cpu")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            f"device = '{name}', but torch sees no GPU here; use device = auto or cpu"
        )
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        raise ConfigError(
            f"device = '{name}', but torch sees {count} GPU{'s' * (count > 1)} here; they are "
            f"numbered from cuda:0 to cuda:{count - 1}"
        )
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise ConfigError(
            f"device = '{name}', but torch sees no Apple GPU here; use device = auto or cpu"
        )
    try:
        one = torch.ones(1, device=device)
        works = one.device.type == device.type and float(one) == 1
    except (RuntimeError, AssertionError, ValueError) as error:
        works, why = False, str(error).splitlines()[0] if device.type != "meta" else ""
    else:
        why = ""
    if not works:
        raise ConfigError(
            f"device = '{name}' cannot be used: {why or 'it holds no values'}; known: {KNOWN}"
        )
    return one.device


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
