"""Products otherwise than torch computes them by itself. In bfloat16: products and convolutions,
the rest in the model's own type. In oneDNN: large products of linear layers, which on some
processors is faster than MKL; rounded otherwise, to the same accuracy, and float32 stays float32.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

from .vector import Vec

# multiplications of a product; smaller ones take longer to hand over than they gain
LEAST = 1 << 22


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


def has_onednn() -> bool:
    """Say whether this torch has these products."""
    there: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return there and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def gains(module: nn.Module, batch: int) -> bool:
    """Say whether a module has a linear layer that is large enough, for batches of this many rows.

    >>> gains(nn.Linear(10, 10), 50), gains(nn.Linear(3136, 2048), 20)
    (False, True)
    """
    layers = (m for m in module.modules() if isinstance(m, nn.Linear))
    return has_onednn() and any(m.weight.numel() * batch >= LEAST for m in layers)


def in_onednn(forward: Callable[[Any], Any], inputs: Any) -> Any:
    """forward(inputs), with large linear layers and their gradients in oneDNN."""
    with _Instead():
        return forward(inputs)


class _Instead(TorchFunctionMode):
    """Takes the place of functional.linear."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is functional.linear and not kwargs and _fits(*args):
            return _Linear.apply(*args, *[None] * (3 - len(args)))  # type: ignore[no-untyped-call]
        return func(*args, **(kwargs or {}))


def _fits(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> bool:
    return (
        x.dtype == weight.dtype == torch.float32
        and x.device.type == weight.device.type == "cpu"
        and x.numel() * len(weight) >= LEAST
    )


def _product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x (n, a), weight (b, a), bias (b,) -> (n, b)."""
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return product


class _Linear(torch.autograd.Function):
    """A linear layer whose three products are oneDNN's."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """(..., a) -> (..., b)."""
        ctx.save_for_backward(x, weight)
        return _product(x.reshape(-1, x.shape[-1]), weight, bias).view(*x.shape[:-1], -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of x, weight and bias that are asked for."""
        x, weight = ctx.saved_tensors
        of_x, of_weight, of_bias = ctx.needs_input_grad
        rows = grad.reshape(-1, grad.shape[-1])
        return (
            _product(rows, weight.t()).view(x.shape) if of_x else None,
            _product(rows.t(), x.reshape(-1, x.shape[-1]).t()) if of_weight else None,
            rows.sum(0) if of_bias else None,
        )
