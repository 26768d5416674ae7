"""Threads of the vectorised engine change no bit, and are used where they change none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedloom import FedAvg
from fedloom.algorithm import Algorithm
from fedloom.algorithms import Scaffold
from fedloom.core.vector import rec
from fedloom.engines import Vectorised, threads, vectorised
from fedloom.engines.threads import Threads
from tiny import results_agree, small


@pytest.fixture
def one() -> Iterator[None]:
    """One thread, as inside of an engine's round."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Steps:
    """Steps that take so many seconds with one thread and with two, on a clock of their own. wrong:
    with two they have other bits.
    """

    def __init__(self, one: float, two: float, wrong: bool = False) -> None:
        self.seconds, self.wrong, self.now = {1: one, 2: two}, wrong, 0.0
        self.used: list[int] = []
        self.threads = Threads(2, lambda: self.now)

    def do(self, shape: str = "a") -> Tensor:
        def step(x: Tensor) -> tuple[Tensor, Tensor]:
            threads = torch.get_num_threads()
            self.used.append(threads)
            self.now += self.seconds[threads]
            return x + (1e-7 if threads > 1 and self.wrong else 0.0), x * torch.nan

        return self.threads.step(shape, step, (torch.ones(3),), lambda: self.used.append(0))[0]


@pytest.mark.usefixtures("one")
@pytest.mark.parametrize(
    ("two", "wrong", "later"), [(0.9, False, 2), (0.5, True, 1), (0.99, False, 1)]
)
def test_a_shape_is_asked_once_and_takes_what_is_faster_with_equal_bits(
    two: float, wrong: bool, later: int
) -> None:
    steps = Steps(1.0, two, wrong)
    for _ in range(3):
        assert torch.equal(steps.do(), torch.ones(3))
    assert steps.used == [1, 0, 2, 0, 1, later, later] and torch.get_num_threads() == 1
    steps.do("b")
    assert steps.used[-5:] == [1, 0, 2, 0, 1]


@pytest.mark.usefixtures("one")
def test_a_step_that_writes_into_its_input_is_done_once_on_it() -> None:
    x = torch.ones(3)
    found = Threads(2).step("a", lambda v: v.add_(1), (x,), lambda: None)
    assert found is x and x.tolist() == [2.0] * 3


class Own(nn.Module):
    """A network of a user's own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        out: Tensor = self.layer(inputs)
        return out


@pytest.mark.parametrize("method", [FedAvg(), Scaffold()])
def test_a_run_with_threads_has_the_bits_and_the_costs_of_one(
    method: Algorithm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vectorised, "processors", lambda: 2)
    monkeypatch.setattr(threads, "FASTER", 1e9)
    asked: list[tuple[int, int]] = []
    step = Threads.step

    def seen(self: Threads, shape: Any, do: Callable[..., Any], *rest: Any) -> Any:
        def told(*given: Any) -> Any:
            asked.append((self.number, torch.get_num_threads()))
            return do(*given)

        return step(self, shape, told, *rest)

    monkeypatch.setattr(threads.Threads, "step", seen)
    before, ends = torch.get_num_threads(), []
    try:
        for number in (1, 2):
            torch.set_num_threads(number)
            ends.append(small(method, engine=Vectorised(3), model=Own).run())
            assert torch.get_num_threads() == number
    finally:
        torch.set_num_threads(before)
    results_agree(*ends)
    assert {(1, 1), (2, 1), (2, 2)} == set(asked)


class AsksThreads(FedAvg):
    """Its server's state says how many threads server_step() had."""

    def server_init(self, x: Tensor, up: Any) -> Any:
        return rec(x=x, threads=0.0)

    def server_step(self, srv: Any, up: Any, rnd: Any) -> Any:
        return rec(x=srv.x + up.delta, threads=float(torch.get_num_threads()))


@pytest.mark.parametrize(("values", "wanted"), [(10**7, 1), (102, 2)])
def test_the_server_takes_one_thread_for_a_model_that_gains_nothing(
    values: int, wanted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Below about ten million values an operation waits longer for a busy core than it gains."""
    monkeypatch.setattr("fedloom.engines.base.SHARED_FROM", values)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        end = small(AsksThreads(), rounds=1).run()
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert end.state.threads == wanted
