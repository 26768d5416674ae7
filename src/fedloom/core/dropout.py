"""Dropout whose masks are a function of a seed: the same in every engine, for every gradient of a
step, and if a short batch is padded. A generator cannot do that: under vmap its draws belong to no
client, and padding shifts them.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from .rng import hashed, mixed

# [seed, calls so far] of the gradient being taken
_tape: contextvars.ContextVar[list[Tensor | int] | None] = contextvars.ContextVar(
    "tape", default=None
)


@contextlib.contextmanager
def seeded(seed: Tensor | int, first: Tensor | int = 0) -> Iterator[None]:
    """HashedDropout inside draws from `seed` (int, or 0-d int64 tensor) and the order of calls,
    which are counted from `first` on.
    """
    token = _tape.set([seed, first])
    try:
        yield
    finally:
        _tape.reset(token)


def choice(n: int) -> Tensor | None:
    """One of 0, ..., n - 1 for the whole step, (): the same at every call; None outside of
    seeded().

    >>> with seeded(5):
    ...     bool(choice(9) == choice(9))
    True
    """
    tape = _tape.get()
    if tape is None:
        return None
    z = mixed(mixed(torch.as_tensor(tape[0])) ^ 0x5851F42D4C957F2D)
    return ((z >> 40) & 0xFFFFFF) % n


class HashedDropout(nn.Module):
    """Inverted dropout of (B, ...) inputs in training mode; nothing outside of seeded()."""

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        self.p = p

    def forward(self, inputs: Tensor) -> Tensor:
        """Zero a share p of the inputs, and scale the others by 1 / (1 - p)."""
        tape = _tape.get()
        if tape is None or not self.training or self.p == 0:
            return inputs
        if self.p == 1:
            return torch.zeros_like(inputs)
        tape[1] = tape[1] + 1  # not in place: it may be a tensor of the caller's
        start = tape[0] + tape[1]
        if not isinstance(start, Tensor):  # made on the device, not copied there
            start = torch.full((), start, dtype=torch.int64, device=inputs.device)
        z = hashed(start, inputs.numel())
        # 24 bits of the hash against p: a finer comparison would need doubles
        drop = ((z >> 40) & 0xFFFFFF) < int(self.p * 0x1000000)
        return torch.where(drop.view(inputs.shape), 0.0, inputs / (1 - self.p))

    def extra_repr(self) -> str:
        return f"p={self.p}"


def swap(module: nn.Module) -> nn.Module:
    """Replace every nn.Dropout inside by a hashed one, in place; -> the module."""
    return _replace(module, nn.Dropout, lambda old: HashedDropout(old.p).train(old.training), {})


def restore(module: nn.Module) -> nn.Module:
    """Undo swap()."""
    return _replace(module, HashedDropout, lambda old: nn.Dropout(old.p).train(old.training), {})


def _replace(
    module: nn.Module,
    kind: type[nn.Module],
    make: Callable[[Any], nn.Module],
    swapped: dict[nn.Module, nn.Module],
) -> nn.Module:
    """swapped: {module seen: its replacement}; a module that is used twice is replaced once."""
    if module in swapped:
        return swapped[module]
    swapped[module] = make(module) if type(module) is kind else module
    if type(module) is not kind:
        for name, child in module._modules.items():
            if child is not None and (new := _replace(child, kind, make, swapped)) is not child:
                setattr(module, name, new)
    return swapped[module]
