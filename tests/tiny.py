"""Federations small enough to reason about, and what tests need to run and compare them."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from click.testing import Result
from torch import Tensor, nn

import fedloom
from fedloom import Experiment, Local
from fedloom.algorithm import Algorithm
from fedloom.checks.tiny_federation import Trial
from fedloom.core.net import Variables
from fedloom.core.vector import as_bytes, fields, leaves
from fedloom.data import FederatedData, from_clients
from fedloom.data.client_test_sets import proportional
from fedloom.engines import worker_process
from fedloom.engines.workers import Workers
from fedloom.federation.schedules import Exponential
from fedloom.objectives import Function
from fedloom.server.rounds import Run

SOURCE = Path(fedloom.__file__).parent
Fedloom = Callable[..., Result]  # the command line, called by the fixture of this name
SIZES = (1, 3, 5, 8, 11, 2, 13)  # clients with one sample, short last batches, unequal K_i


def environment() -> dict[str, str]:
    """The environment of a subprocess that can import this fedloom."""
    paths = [str(SOURCE.parent), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(p for p in paths if p)}


# ---------------------------------------------------------------------------------- quadratics
A = np.array([[1.0, 4.0], [3.0, 0.5], [0.5, 2.0], [2.0, 1.0]])  # (clients, d) curvatures
B = np.array([[3.0, -1.0], [-2.0, 4.0], [6.0, 0.0], [1.0, 1.0]])  # (clients, d) minimisers


def _parabola(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """The mean over the batch of sum_j a_j / 2 (x_j - b_j)^2."""
    return (a / 2 * (x - b) ** 2).sum(1).mean()


def quadratics(algorithm: Algorithm, copies: Sequence[int] = (1, 1, 1, 1), **changes: Any) -> Any:
    """f_i(x) = sum_j A_ij / 2 (x_j - B_ij)^2 at four clients, in float64, from x = 0.

    Client i holds its function copies[i] times, so that with batch = 1 it takes copies[i] steps per
    epoch, and weighs copies[i].
    """
    pairs = [(np.tile(a, (n, 1)), np.tile(b, (n, 1))) for a, b, n in zip(A, B, copies, strict=True)]
    settings: dict[str, Any] = {
        "model": Variables(torch.zeros(A.shape[1], dtype=torch.float64)),
        "data": from_clients(pairs, dtype=torch.float64),
        "rounds": 1,
        "objective": Function(f=_parabola),
        "local": Local(steps=5, lr=0.1, batch=1),
        "engine": "serial",
        "device": "cpu",
    }
    return Experiment(algorithm=algorithm, **(settings | changes))


def trace(experiment: Experiment, rounds: int) -> Iterator[Run]:
    """The loop before the first round, and after every round."""
    loop = experiment.build()
    loop.engine.open(loop.plan, loop.fed, loop.net)
    try:
        loop.begin()
        yield loop
        for t in range(1, rounds + 1):
            loop.until(t)
            yield loop
    finally:
        loop.engine.close()


@contextlib.contextmanager
def opened(experiment: Experiment) -> Iterator[Run]:
    """The loop before the first round, its engine open."""
    loops = trace(experiment, 0)
    try:
        yield next(loops)
    finally:
        loops.close()  # type: ignore[attr-defined]


def models(experiment: Experiment, rounds: int) -> np.ndarray[Any, Any]:
    """The server's model before the first round and after every round, (rounds + 1, d)."""
    return np.stack([loop.state.srv.x.numpy().copy() for loop in trace(experiment, rounds)])


# --------------------------------------------------------------------------------- a small net
def mlp(dtype: torch.dtype = torch.float32, seed: int = 5) -> nn.Module:
    """102 parameters: 5 - 9 - 3, with a normalisation."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Linear(5, 9), nn.GroupNorm(3, 9), nn.Tanh(), nn.Linear(9, 3))
    return net.to(dtype)


def clusters(
    dtype: torch.dtype = torch.float32, sizes: Sequence[int] = SIZES, seed: int = 3
) -> FederatedData:
    """Three noisy clusters in five dimensions; every client sees them in its own proportions."""
    draw = np.random.default_rng(seed)
    centres = draw.normal(size=(3, 5)) * 2

    def sample(n: int, shares: Any) -> tuple[Any, Any]:
        labels = draw.choice(3, size=n, p=shares)
        return centres[labels] + draw.normal(size=(n, 5)), labels

    pairs = [sample(n, draw.dirichlet([0.5] * 3)) for n in sizes]
    return from_clients(pairs, test=sample(40, [1 / 3] * 3), dtype=dtype)


def with_tests(data: FederatedData) -> FederatedData:
    """The same federation, with test sets of the clients' own."""
    assert data.test_targets is not None
    lists = proportional(data.targets, data.clients, data.test_targets, 0)
    return dataclasses.replace(data, test_clients=lists)


def small(algorithm: Algorithm, dtype: torch.dtype = torch.float32, **changes: Any) -> Trial:
    """Partial cohorts of clients with ragged K_i, a rate that falls with rounds and steps."""
    local = Local(epochs=2, batch=4, lr=0.1, schedule=Exponential(decay=0.9, step_decay=0.97))
    settings: dict[str, Any] = {
        "model": mlp(dtype),
        "data": clusters(dtype),
        "rounds": 4,
        "cohort": 4,
        "local": local,
        "seed": 11,
        "engine": "serial",
        "device": "cpu",
        "dtype": dtype,
    }
    return Trial(algorithm=algorithm, **(settings | changes))


# ----------------------------------------------------------------------------------- comparing
def same(a: Any, b: Any) -> bool:
    """Say whether two records have the same fields, types and bits."""
    one, two = fields(a), fields(b)
    if list(one) != list(two):
        return False
    return all(_same_leaf(one[name], two[name]) for name in one)


def _same_leaf(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and bits(a) == bits(b)
    return type(a) is type(b) and bool(a == b)


def bits(tensor: Tensor) -> bytes:
    """The bytes of a tensor."""
    return as_bytes(tensor).numpy().tobytes()


def imprint(*records: Any) -> list[Any]:
    """Everything in these records, as values that later changes cannot reach."""
    return [
        {k: bits(v) if isinstance(v, Tensor) else v for k, v in fields(r).items()} for r in records
    ]


def weights(module: nn.Module) -> dict[str, bytes]:
    """The bits of everything in a module's state."""
    return {k: bits(v) for k, v in module.state_dict().items()}


def timeless(rows: Any) -> Any:
    """Rows of a history, or a ledger, without what a clock gave."""
    if isinstance(rows, dict):
        return {k: v for k, v in rows.items() if k != "seconds"}
    return [timeless(row) for row in rows]


def outcome(experiment: Experiment, rounds: int) -> tuple[Any, ...]:
    """What a run has learnt and cost: the server's state, the clients', the history, the ledger."""
    loop = [*trace(experiment, rounds)][-1]
    memory = loop.memory.get(range(loop.fed.population))
    return loop.state.srv, memory, timeless(loop.log.history), timeless(loop.state.ledger.as_dict())


def agree(one: Any, other: Any) -> None:
    """Assert that two outcomes, or two of fedloom.checks' ends, are the same bit for bit."""
    assert same(one[0], other[0])
    assert one[1].keys() == other[1].keys()
    assert all(same(one[1][i], other[1][i]) for i in one[1])
    assert one[2:] == other[2:]


def agree_within(one: Any, other: Any, atol: float) -> None:
    """Assert that two outcomes have the same fields and ledger, and every number to so much."""
    assert one[1].keys() == other[1].keys()
    for a, b in zip((one[0], *one[1].values()), (other[0], *other[1].values()), strict=True):
        assert list(fields(a)) == list(fields(b))
        for v, w in zip(leaves(a), leaves(b), strict=True):
            torch.testing.assert_close(v, w, rtol=0, atol=atol)
    assert one[3] == other[3]


def results_agree(one: Any, other: Any) -> None:
    """Assert that two results are the same bit for bit."""
    assert weights(one.model) == weights(other.model)
    assert same(one.state, other.state)
    assert timeless(one.history) == timeless(other.history)
    assert timeless(one.ledger.as_dict()) == timeless(other.ledger.as_dict())


def near(found: Any, expected: Any, atol: float = 1e-12) -> None:
    """Assert that numbers are as expected, to so much in each."""
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=0, atol=atol)


# ------------------------------------------------------------------------------ started workers
def on_plan(post: str, parent: int, task: Any, *arguments: Any) -> Any:
    """In a worker: take up another plan if need be, then do the task."""
    here = worker_process._HERE
    if here.get("post") != post:
        worker_process.begin(post, parent)
        here["post"] = post
        worker_process._follow = lambda parent: None  # the first plan's thread does so for all
    return task(*arguments)


class _Tasks:
    def __init__(self, pool: Any, post: str) -> None:
        self._pool, self._post = pool, post

    def submit(self, task: Any, *arguments: Any) -> Any:
        return self._pool.submit(on_plan, self._post, os.getpid(), task, *arguments)


class Shared(Workers):
    """The engine `workers` on processes that many tests share: starting them takes seconds."""

    def __init__(
        self, pool: Any, workers: int, vectorised: int | None = None, onednn: bool = False
    ) -> None:
        super().__init__(workers, vectorised, onednn)
        self._pool = pool

    def _start(self) -> None:
        self._executor = _Tasks(self._pool, self._post)

    def _end(self) -> None:
        """The processes belong to the session."""
