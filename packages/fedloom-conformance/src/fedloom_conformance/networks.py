"""Small networks in numpy, with the gradient of their squared error and the names of torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
State = dict[str, Array]


@dataclass(frozen=True)
class Linear:
    """y = u W^T + b, as torch.nn.Linear(inputs, outputs, bias)."""

    inputs: int
    outputs: int
    bias: bool = True
    buffers = ()

    def shapes(self) -> dict[str, tuple[int, ...]]:
        weight = {"weight": (self.outputs, self.inputs)}
        return weight | ({"bias": (self.outputs,)} if self.bias else {})

    def forward(self, own: State, u: Array) -> tuple[Array, Array, State]:
        """-> output, what backward() needs, new buffers."""
        return u @ own["weight"].T + own.get("bias", 0.0), u, {}

    def backward(self, own: State, u: Array, slope: Array) -> tuple[Array, State]:
        """-> gradient at the input, gradients of the parameters."""
        grads = {"weight": slope.T @ u} | ({"bias": slope.sum(0)} if self.bias else {})
        return slope @ own["weight"], grads


@dataclass(frozen=True)
class Tanh:
    """torch.nn.Tanh()."""

    buffers = ()

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {}

    def forward(self, own: State, u: Array) -> tuple[Array, Array, State]:
        return np.tanh(u), np.tanh(u), {}

    def backward(self, own: State, y: Array, slope: Array) -> tuple[Array, State]:
        return slope * (1 - y * y), {}


@dataclass(frozen=True)
class BatchNorm:
    """torch.nn.BatchNorm1d(width) in training: the batch's own mean and variance, 0.1 of which go
    into the running ones; the running variance takes the unbiased one. torch's counter of batches,
    which this one does not read, is left out.
    """

    width: int
    buffers = ("running_mean", "running_var")

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return dict.fromkeys(("weight", "bias", "running_mean", "running_var"), (self.width,))

    def forward(self, own: State, u: Array) -> tuple[Array, tuple[Array, Array], State]:
        mean, root = u.mean(0), np.sqrt(u.var(0) + 1e-5)
        normal = (u - mean) / root
        new = {
            "running_mean": 0.9 * own["running_mean"] + 0.1 * mean,
            "running_var": 0.9 * own["running_var"] + 0.1 * u.var(0, ddof=1),
        }
        return normal * own["weight"] + own["bias"], (normal, root), new

    def backward(self, own: State, kept: tuple[Array, Array], slope: Array) -> tuple[Array, State]:
        normal, root = kept
        grads = {"weight": (slope * normal).sum(0), "bias": slope.sum(0)}
        inner = slope * own["weight"]
        inner = inner - inner.mean(0) - normal * (inner * normal).mean(0)
        return inner / root, grads


Layer = Linear | Tanh | BatchNorm


@dataclass(frozen=True)
class Network:
    """Layers one after the other, named as in torch.nn.Sequential: "0.weight", "0.bias", ..."""

    layers: tuple[Layer, ...]

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """name -> shape, of parameters and buffers."""
        return {f"{at}.{name}": s for at, x in self._layers() for name, s in x.shapes().items()}

    def buffers(self) -> set[str]:
        """The names of what is not trained."""
        return {f"{at}.{name}" for at, layer in self._layers() for name in layer.buffers}

    def gradient(
        self, state: Mapping[str, Array], inputs: Array, targets: Array
    ) -> tuple[State, State]:
        """-> gradients of the mean of (output - target)^2 over all entries, and the new buffers."""
        u = inputs
        kept: dict[int, Any] = {}  # what each kind of layer needs on the way back
        new: State = {}
        for at, layer in self._layers():
            u, kept[at], own = layer.forward(self._own(state, at), u)
            new |= {f"{at}.{name}": value for name, value in own.items()}
        slope = 2 * (u - targets) / targets.size
        grads: State = {}
        for at, layer in reversed([*self._layers()]):
            slope, own = layer.backward(self._own(state, at), kept[at], slope)
            grads |= {f"{at}.{name}": value for name, value in own.items()}
        return grads, new

    def _layers(self) -> Iterator[tuple[int, Layer]]:
        return enumerate(self.layers)

    def _own(self, state: Mapping[str, Array], at: int) -> State:
        """The layer's part of a state."""
        return {name: state[f"{at}.{name}"] for name in self.layers[at].shapes()}
