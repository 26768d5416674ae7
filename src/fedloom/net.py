"""Any nn.Module as a function of one flat vector."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from .errors import DataError
from .layout import Layout
from .vector import Vec

__all__ = ["Net", "Variables"]


class Variables(nn.Module):
    """A model that is nothing but a vector, for objectives that are functions of x itself.

    >>> Net(Variables(torch.zeros(3))).layout.d
    3
    """

    def __init__(self, start: Tensor) -> None:
        super().__init__()
        self.x = nn.Parameter(start.detach().clone())

    def forward(self, inputs: Tensor) -> Tensor:
        return self.x.expand(len(inputs), -1)


class Net:
    """A module whose trainable parameters are the pieces of a vector x (d,).

    x holds the parameters with requires_grad, in the module's order; frozen ones stay in the
    module. Floating buffers (the statistics of batch norm) are a second vector, never part of x.
    The module is copied: the caller's own is left alone.

    >>> net = Net(nn.Linear(2, 1))
    >>> x = torch.tensor([1.0, 2.0, 3.0])
    >>> net(x, torch.ones(1, 2)).detach()
    tensor([[6.]])
    """

    def __init__(self, module: nn.Module, dtype: torch.dtype | None = None) -> None:
        lazy = (nn.parameter.UninitializedParameter, nn.parameter.UninitializedBuffer)
        if any(isinstance(t, lazy) for t in [*module.parameters(), *module.buffers()]):
            raise DataError(
                f"{type(module).__name__} has lazy layers without shapes; "
                "call it once on a batch before you hand it over"
            )
        self.module = copy.deepcopy(module).to(dtype=dtype)
        trained = [(n, p) for n, p in self.module.named_parameters() if p.requires_grad]
        if not trained:
            raise DataError(
                f"{type(module).__name__} has no parameter with requires_grad: nothing to train"
            )
        kinds = {p.dtype for _, p in trained}
        if len(kinds) > 1 or not trained[0][1].is_floating_point():
            raise DataError(
                f"{type(module).__name__} mixes parameters of {sorted(map(str, kinds))}; "
                "make them one floating type, for example with module.float()"
            )
        self.layout = Layout.of(trained)
        self.params = [p for _, p in trained]
        floating = [(n, b) for n, b in self.module.named_buffers() if b.is_floating_point()]
        self.buffer_layout = Layout.of(floating)
        self._buffers = [b for _, b in floating]
        self._start = torch.cat([p.detach().reshape(-1) for p in self.params])
        self._start_buffers = self.buffers()
        self._bound: Tensor | None = None
        self._live: Tensor | None = None

    @property
    def dtype(self) -> torch.dtype:
        """The type of x."""
        return self._start.dtype

    @property
    def device(self) -> torch.device:
        """Where x lives."""
        return self._start.device

    def to(self, device: torch.device | str) -> Net:
        """Move to a device, in place."""
        self.module.to(device)
        self._start = self._start.to(device)
        self._start_buffers = self._start_buffers.to(device)
        self._bound = self._live = None
        return self

    def init(self) -> Vec:
        """The weights that the module came with, as x (d,)."""
        return self._start.clone()

    def init_buffers(self) -> Vec:
        """The floating buffers that the module came with, as one vector; empty if it has none."""
        return self._start_buffers.clone()

    def start_from(self, weights: Mapping[str, Tensor]) -> None:
        """Make these the start: {name: tensor} of the trained parameters, and of buffers where
        given.

        Raises DataError for a missing, misshapen or unknown entry.
        """
        known = {n for n, _ in self.module.named_parameters()} | {
            n for n, _ in self.module.named_buffers()
        }
        if unknown := sorted(set(weights) - known):
            raise DataError(f"weights name '{unknown[0]}', which the model does not have")
        with torch.no_grad():
            own = self.module.state_dict()
            for name, value in weights.items():
                if name in own and own[name].shape != value.shape:
                    raise DataError(
                        f"weights give '{name}' the shape {list(value.shape)}, "
                        f"but the model has {list(own[name].shape)}"
                    )
        self._start = self.layout.flatten(dict(weights)).to(self._start)
        self.module.load_state_dict(dict(weights), strict=False)
        self._start_buffers = self.buffers()
        self._bound = self._live = None

    def buffers(self) -> Vec:
        """The module's floating buffers now, as one new vector."""
        if not self._buffers:
            return self.params[0].detach().new_empty(0)
        return torch.cat([b.detach().reshape(-1).to(self.params[0].dtype) for b in self._buffers])

    def load_buffers(self, values: Vec) -> None:
        """Set the module's floating buffers."""
        for buffer, piece in zip(self._buffers, self.buffer_layout.pieces(values), strict=True):
            buffer.copy_(piece)

    def bind(self, x: Vec) -> None:
        """Make the module's parameters the pieces of x, without a copy."""
        if x is not self._bound:
            self._live = None
            for param, piece in zip(self.params, self.layout.pieces(x), strict=True):
                param.data = piece
            self._bound = x

    def live(self, x: Vec) -> Tensor:
        """Bind x and return the handle that stands for it in a loss that will be differentiated.

        Calling the net with the handle runs the module as it is, at no cost; with any other vector
        it is a functional call. The handle is itself a leaf, so that a loss may also use x
        directly.
        """
        if self._live is None or x is not self._bound:
            self.bind(x)
            self._live = x.detach().requires_grad_()
        return self._live

    def train(self, mode: bool = True) -> None:
        """Switch layers such as dropout between training and evaluation."""
        if self.module.training is not mode:
            self.module.train(mode)

    def __call__(self, x: Vec, inputs: Any) -> Any:
        """The module's output on `inputs` with parameters x (d,)."""
        if x is self._live:
            return self.module(inputs)
        return functional_call(self.module, self.layout.views(x), (inputs,))

    def export(self, x: Vec, buffers: Vec | None = None) -> nn.Module:
        """A free-standing copy of the module with these weights, in evaluation mode."""
        module = copy.deepcopy(self.module)
        with torch.no_grad():
            params = [p for p in module.parameters() if p.requires_grad]
            for param, piece in zip(params, self.layout.pieces(x), strict=True):
                param.data = piece.detach().clone()
            floats = [b for b in module.buffers() if b.is_floating_point()]
            if buffers is not None:
                for buffer, piece in zip(floats, self.buffer_layout.pieces(buffers), strict=True):
                    buffer.copy_(piece)
        return module.eval()
