"""A problem as the reference recurrences see it: flat vectors, gradients, local steps, shares."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from .networks import Array, State
from .problems import Problem

Direction = Callable[[Array, Array], Array]


class Federation:
    """The clients of a problem. x, y, ...: vectors (d,) of all parameters, then the buffers, in the
    order of `start`; trained (d,) marks the parameters.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.cohorts = problem.cohorts
        self.number = len(problem.data)
        self.lr = problem.lr
        buffers = problem.network.buffers()
        marks = [np.full(v.size, k not in buffers) for k, v in problem.start.items()]
        self.trained = np.concatenate(marks)
        self.start = self.flat(problem.start)

    def flat(self, state: State) -> Array:
        """A state as one vector."""
        return np.concatenate([np.ravel(state[k]) for k in self.problem.start]).astype(float)

    def state(self, x: Array) -> State:
        """A vector as a state."""
        out, at = {}, 0
        for name, first in self.problem.start.items():
            out[name] = x[at : at + first.size].reshape(first.shape).copy()
            at += first.size
        return out

    def grad(self, client: int, x: Array) -> Array:
        """The gradient of the client's loss at x; 0 for buffers."""
        return self._step(client, x)[0]

    def _step(self, client: int, x: Array) -> tuple[Array, Array]:
        """The gradient at x, and x with the buffers as the pass left them."""
        state = self.state(x)
        grads, new = self.problem.network.gradient(state, *self._batch(client))
        zeros = {k: np.zeros_like(v) for k, v in state.items()}
        return self.flat(zeros | grads), self.flat(state | new)

    def _batch(self, client: int) -> tuple[Array, Array]:
        """Any batch of the client: all its data, or as many of its equal examples."""
        inputs, targets = self.problem.data[client]
        return inputs[: self.problem.batch], targets[: self.problem.batch]

    def steps(self, client: int) -> int:
        """K_i."""
        return self.problem.steps(client)

    def local(self, client: int, x: Array, direction: Direction = lambda y, g: g) -> Array:
        """K_i steps y <- y - lr direction(y, gradient at y) from x -> the last y."""
        y = x
        for _ in range(self.steps(client)):
            g, seen = self._step(client, y)
            y = np.where(self.trained, y - self.lr * direction(y, g), seen)
        return y

    def shares(self, cohort: Sequence[int]) -> Array:
        """p_i of the clients of a round, with sum 1."""
        sizes = np.array([self.problem.sizes[i] for i in cohort], float)
        counts = sizes if self.problem.weights == "sizes" else np.ones_like(sizes)
        return np.asarray(counts / counts.sum())

    def mean(self, cohort: Sequence[int], rows: Sequence[Array]) -> Array:
        """sum of p_i rows_i."""
        return np.asarray(self.shares(cohort) @ np.stack(rows))
