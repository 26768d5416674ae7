"""Federations with known answers: a network, every client's data, who takes part, and the work."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from .networks import Array, BatchNorm, Linear, Network, State, Tanh


class NotThereError(Exception):
    """An adapter's framework does not have the method, or not this setting of it; says why."""


@dataclass(frozen=True)
class Problem:
    """One federation; every number in it is float64.

    network: layers, by which a torch.nn.Sequential can be made (adapters/torch_network.py).
    start: the server's first model, name -> array. data: (inputs (n_i, p), targets (n_i, q)) of
    every client. cohorts: the clients of every round, so that nothing is drawn. A client makes
    `epochs` passes in batches of `batch` with plain SGD of rate `lr`. weights: what clients count
    in a mean, by their "sizes" or "equal". capacities: which share of the model each client holds.

    Batches need not be in any order: either `batch` takes all of a client's data, or the client's
    examples are all the same. So a framework may shuffle.
    """

    name: str
    network: Network
    start: State
    data: tuple[tuple[Array, Array], ...]
    cohorts: tuple[tuple[int, ...], ...]
    lr: float
    batch: int = 1000
    epochs: int = 2
    weights: str = "sizes"
    capacities: tuple[float, ...] = ()

    @property
    def sizes(self) -> list[int]:
        """n_i of every client."""
        return [len(inputs) for inputs, _ in self.data]

    def steps(self, client: int) -> int:
        """K_i, the client's local steps in a round."""
        return self.epochs * -(-self.sizes[client] // self.batch)

    def smaller(self) -> Iterator[Problem]:
        """Problems with a round, a client, a step or a coordinate less, the smallest first."""
        for rounds in range(1, len(self.cohorts)):
            yield replace(self, cohorts=self.cohorts[:rounds])
        for client in range(len(self.data) if len(self.data) > 1 else 0):
            yield from self._without(client)
        if self.epochs > 1:
            yield replace(self, epochs=1)
        if len(self.network.layers) == 1 and self.start["0.weight"].size > 1:
            yield self._one_weight()
        if any(n > 1 for n in self.sizes) and not self.network.buffers():
            yield replace(self, data=tuple((u[:1], t[:1]) for u, t in self.data))

    def _without(self, client: int) -> Iterator[Problem]:
        """The problem without a client, if somebody is left in some round."""
        new = {old: k for k, old in enumerate(i for i in range(len(self.data)) if i != client)}
        cohorts = tuple(tuple(new[i] for i in who if i != client) for who in self.cohorts)
        if all(cohorts):
            data = tuple(self.data[i] for i in new)
            held = tuple(self.capacities[i] for i in new) if self.capacities else ()
            yield replace(self, data=data, cohorts=cohorts, capacities=held)

    def _one_weight(self) -> Problem:
        """The problem with the first input and the first output alone."""
        data = tuple((u[:, :1], t[:, :1]) for u, t in self.data)
        start = {"0.weight": self.start["0.weight"][:1, :1]}
        return replace(self, network=Network((Linear(1, 1, False),)), start=start, data=data)


ALL = ((0, 1, 2, 3),) * 5
SOME = ((0, 1), (2, 3), (0, 3), (1, 2), (0, 2), (1, 3))


def quadratics(cohorts: Sequence[Sequence[int]] = ALL, clients: int = 4, seed: int = 1) -> Problem:
    """Linear regressions that want different models, on 4 to 9 examples each."""
    network = Network((Linear(3, 2, False),))
    return _made(f"quadratics {seed}", network, cohorts, [4, 6, 5, 9, 7, 8, 4][:clients], seed)


def unequal_steps(cohorts: Sequence[Sequence[int]] = ALL, seed: int = 2) -> Problem:
    """Quadratics with 2, 4, 6 and 10 local steps; each client's examples are the same one."""
    made = _made("unequal steps", Network((Linear(3, 2, False),)), cohorts, [1, 1, 1, 1], seed)
    data = tuple(
        (np.repeat(u, n, 0), np.repeat(t, n, 0))
        for (u, t), n in zip(made.data, (2, 4, 6, 10), strict=True)
    )
    return replace(made, data=data, batch=2)


def curved(cohorts: Sequence[Sequence[int]] = ALL, seed: int = 3) -> Problem:
    """A network with a hidden layer, whose loss is no quadratic."""
    return _made(
        "curved", Network((Linear(3, 4), Tanh(), Linear(4, 2))), cohorts, [4, 6, 5, 9], seed
    )


def normalised(cohorts: Sequence[Sequence[int]] = ALL, seed: int = 4) -> Problem:
    """A network with a batch norm, which has running statistics."""
    network = Network((Linear(3, 4), BatchNorm(4), Linear(4, 2)))
    return _made(f"batch norm {seed}", network, cohorts, [4, 6, 5, 9], seed)


def still(width: int = 64, rounds: int = 8) -> Problem:
    """Clients hardly move (not by 0, which has no direction to clip), so the noise is all."""
    zero = {"0.weight": np.zeros((width, width))}
    data = tuple((np.ones((3, width)), np.ones((3, width))) for _ in range(4))
    network = Network((Linear(width, width, False),))
    return Problem("hardly any move", network, zero, data, ALL[:1] * rounds, 1e-9, weights="equal")


def _made(
    name: str,
    network: Network,
    cohorts: Sequence[Sequence[int]],
    sizes: Sequence[int],
    seed: int,
) -> Problem:
    """Data of which every client's fits another linear map, drawn from the seed."""
    rng = np.random.default_rng(seed)
    first, last = network.layers[0], network.layers[-1]
    assert isinstance(first, Linear) and isinstance(last, Linear)
    start = {k: _first(k, shape, rng) for k, shape in network.shapes().items()}
    data = []
    for n in sizes:
        inputs = rng.normal(size=(n, first.inputs))
        truth = rng.normal(size=(first.inputs, last.outputs))
        data.append((inputs, inputs @ truth + 0.1 * rng.normal(size=(n, last.outputs))))
    return Problem(name, network, start, tuple(data), tuple(map(tuple, cohorts)), lr=0.05)


def _first(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """A first value: drawn, but torch's own for statistics."""
    if name.endswith("running_mean"):
        return np.zeros(shape)
    if name.endswith("running_var"):
        return np.ones(shape)
    return 0.5 * rng.normal(size=shape)
