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
    """torch.nn.BatchNorm1d(width, eps, momentum) in training: the batch's own mean and variance.

    The running variance takes the unbiased one. momentum None: the running statistics are plain
    means over all batches, for which torch divides by the counter num_batches_tracked.
    """

    width: int
    momentum: float | None = 0.1
    eps: float = 1e-5
    buffers = ("running_mean", "running_var", "num_batches_tracked")

    def shapes(self) -> dict[str, tuple[int, ...]]:
        names = ("weight", "bias", "running_mean", "running_var")
        return dict.fromkeys(names, (self.width,)) | {"num_batches_tracked": ()}

    def forward(self, own: State, u: Array) -> tuple[Array, tuple[Array, Array], State]:
        mean, root = u.mean(0), np.sqrt(u.var(0) + self.eps)
        normal = (u - mean) / root
        count = own["num_batches_tracked"] + 1
        part = 1 / count if self.momentum is None else self.momentum
        new = {
            "running_mean": (1 - part) * own["running_mean"] + part * mean,
            "running_var": (1 - part) * own["running_var"] + part * u.var(0, ddof=1),
            "num_batches_tracked": count,
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
        u, kept, new = inputs, {}, {}
        for at, layer in self._layers():
            u, kept[at], own = layer.forward(self._own(state, at), u)  # type: ignore[assignment]
            new |= {f"{at}.{name}": value for name, value in own.items()}
        slope, grads = 2 * (u - targets) / targets.size, {}
        for at, layer in reversed([*self._layers()]):
            slope, own = layer.backward(self._own(state, at), kept[at], slope)  # type: ignore[arg-type]
            grads |= {f"{at}.{name}": value for name, value in own.items()}
        return grads, new

    def _layers(self) -> Iterator[tuple[int, Layer]]:
        return enumerate(self.layers)

    def _own(self, state: Mapping[str, Array], at: int) -> State:
        """The layer's part of a state."""
        return {name: state[f"{at}.{name}"] for name in self.layers[at].shapes()}
