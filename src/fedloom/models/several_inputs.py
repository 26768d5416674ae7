"""Several inputs per example, in the one tensor that a data set holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fedloom.errors import DataError

Inputs = Mapping[str, Tensor] | Sequence[Tensor]
EXACT = 2**24  # float32 has every whole number up to here


def joined(inputs: Inputs) -> Tensor:
    """Inputs of n examples, each (n, ...) -> one tensor (n, all values of an example), float32.
    Raises DataError for different n, and for whole numbers that float32 does not have.

    >>> joined((torch.tensor([[1, 2], [3, 4]]), torch.tensor([0.5, 1.5])))
    tensor([[1.0000, 2.0000, 0.5000],
            [3.0000, 4.0000, 1.5000]])
    """
    parts = [*inputs.values()] if isinstance(inputs, Mapping) else [*inputs]
    if len({len(part) for part in parts}) != 1:
        raise DataError(f"inputs of {[len(part) for part in parts]} examples; give as many of each")
    for part in parts:
        if not part.is_floating_point() and part.numel() and part.abs().max() > EXACT:
            raise DataError(
                f"whole numbers up to {int(part.abs().max())}; at most {EXACT} is exact"
            )
    return torch.cat([part.reshape(len(part), -1).to(torch.float32) for part in parts], 1)


class SeveralInputs(nn.Module):
    """A network of several inputs, on what joined() makes of them. inputs: those of one example or
    more, for names, shapes and types; of a dictionary they are net's arguments by name.
    """

    def __init__(self, net: nn.Module, inputs: Inputs) -> None:
        super().__init__()
        self.net = net
        self.names: tuple[str, ...] = tuple(inputs) if isinstance(inputs, Mapping) else ()
        parts = inputs.values() if isinstance(inputs, Mapping) else inputs
        self.kinds = [(tuple(part.shape[1:]), part.dtype) for part in parts]
        self.sizes = [max(1, part[:1].numel()) for part in parts]

    def forward(self, x: Tensor) -> Any:
        """x (n, all values of an example) -> what net gives of its inputs."""
        pieces = zip(torch.split(x, self.sizes, 1), self.kinds, strict=True)
        parts = [
            piece.reshape(-1, *shape).to(x.dtype if kind.is_floating_point else kind)
            for piece, (shape, kind) in pieces
        ]
        if self.names:
            return self.net(**dict(zip(self.names, parts, strict=True)))
        return self.net(*parts)
