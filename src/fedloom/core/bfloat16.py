"""Products and convolutions in bfloat16, the rest in the model's own type."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from .vector import Vec


def in_bfloat16(forward: Callable[[Any], Any], inputs: Any, x: Vec) -> Any:
    """forward(inputs) under torch's autocast; its outputs are of the type of x.

    >>> x = torch.tensor([1.001])
    >>> in_bfloat16(lambda v: v @ x[:, None], torch.ones(1, 1), x)
    tensor([[1.]])
    """
    # no cache of weights: it knows nothing of clients that are computed together
    with torch.autocast(x.device.type, torch.bfloat16, cache_enabled=False):
        outputs = forward(inputs)
    return tree_map_only(
        Tensor, lambda v: v.to(x.dtype) if v.dtype == torch.bfloat16 else v, outputs
    )


def has_bfloat16(device: torch.device) -> bool:
    """Say whether the device computes products in bfloat16 itself; True where that is not known."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
    except OSError:
        return True
    names = {"amx_bf16", "avx512_bf16", "avx_ne_convert", "bf16"}
    return device.type != "cpu" or bool(names & set(flags))
