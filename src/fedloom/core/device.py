"""Where a run computes: the device that a setting names."""

from __future__ import annotations

import torch

from ..errors import ConfigError

KNOWN = "auto, cpu, cuda, cuda:1, mps"


def device_of(name: str) -> torch.device:
    """The device of this name; "auto" is the first CUDA GPU where there is one, else the CPU.

    Raises ConfigError for a device that there is not, and for one that holds no values.

    >>> device_of("cpu")
    device(type='cpu')
    """
    if name == "auto":
        return device_of("cuda" if torch.cuda.is_available() else "cpu")
    try:
        wanted = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"unknown device '{name}'; known: {KNOWN}") from None
    if wanted.type == "cpu":
        return torch.device("cpu")
    if wanted.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            f"device = '{name}', but torch sees no GPU here; use device = auto or cpu"
        )
    if wanted.type == "cuda" and (wanted.index or 0) >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        raise ConfigError(
            f"device = '{name}', but torch sees {count} GPU{'s' * (count > 1)} here; they are "
            f"numbered from cuda:0 to cuda:{count - 1}"
        )
    try:
        one = torch.ones(1, device=wanted)
        held = one.device.type == wanted.type and float(one) == 1
    except (RuntimeError, AssertionError, ValueError) as error:
        held, why = False, str(error).splitlines()[0] if wanted.type != "meta" else ""
    else:
        why = ""
    if not held:
        raise ConfigError(
            f"device = '{name}' cannot be used: {why or 'it holds no values'}; known: {KNOWN}"
        )
    return one.device
