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
from fedloom.engines.threads import ENOUGH, Threads, repeatable
from fedloom.models import mlp
from tiny import results_agree, small


@pytest.fixture
def one() -> Iterator[None]:
    """One thread, as inside of an engine's round."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Steps:
    """Steps that take so many seconds with one thread and with two, on a clock of their own."""

    def __init__(self, one: float, two: float, wrong: int = -1) -> None:
        self.seconds, self.wrong, self.now = {1: one, 2: two}, wrong, 0.0
        self.used: list[int] = []
        self.threads = Threads(2, lambda: self.now)

    def do(self, k: int, shape: str = "a") -> Tensor:
        def step(x: Tensor) -> tuple[Tensor, Tensor]:
            threads = torch.get_num_threads()
            self.used.append(threads)
            self.now += self.seconds[threads]
            return x + (1e-7 if threads > 1 and k == self.wrong else 0.0), x * torch.nan

        return self.threads.step(shape, step, (torch.ones(3),), lambda: self.used.append(0))[0]


@pytest.mark.usefixtures("one")
def test_a_shape_is_asked_until_it_has_agreed_often_enough() -> None:
    steps = Steps(1.0, 0.9)
    for k in range(ENOUGH + 2):
        assert torch.equal(steps.do(k), torch.ones(3))
    assert steps.used == [2, 0, 1] * ENOUGH + [2, 2]
    steps.do(0, "b")
    assert steps.used[-3:] == [2, 0, 1] and torch.get_num_threads() == 1


@pytest.mark.usefixtures("one")
@pytest.mark.parametrize("wrong", range(ENOUGH))
def test_a_shape_with_other_bits_once_takes_one_thread_for_ever(wrong: int) -> None:
    steps = Steps(1.0, 0.5, wrong)
    for k in range(wrong + 3):
        assert torch.equal(steps.do(k), torch.ones(3))
    assert steps.used == [2, 0, 1] * (wrong + 1) + [1, 1]


@pytest.mark.usefixtures("one")
def test_threads_that_gain_nothing_or_no_more_are_not_used() -> None:
    steps = Steps(1.0, 0.99)
    for k in range(ENOUGH + 1):
        steps.do(k)
    assert steps.used[-2:] == [1, 1]
    steps = Steps(1.0, 0.5)
    for k in range(ENOUGH + 4):
        steps.seconds[2] = 3.0 if k == ENOUGH + 1 else 0.5  # one late step is no reason
        steps.do(k)
    steps.seconds[2] = 3.0
    for k in range(ENOUGH + 1):
        steps.do(k)
    assert steps.used[3 * ENOUGH :] == [2] * 4 + [2] * ENOUGH + [1]


@pytest.mark.usefixtures("one")
def test_a_step_that_writes_into_its_input_is_done_once_on_it() -> None:
    x = torch.ones(3)
    found = Threads(2).step("a", lambda v: v.add_(1), (x,), lambda: None)
    assert found is x and x.tolist() == [2.0] * 3


class Counting(nn.Module):
    """A layer that is another one at each call."""

    def __init__(self, buffer: bool) -> None:
        super().__init__()
        self.calls: Tensor | int = 0
        if buffer:
            del self.calls
            self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, inputs: Tensor) -> Tensor:
        self.calls = self.calls + 1
        return inputs / self.calls


@pytest.mark.parametrize("buffer", [True, False])
def test_a_network_that_keeps_something_from_call_to_call_is_computed_once(
    buffer: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads.Threads, "_both", lambda *_: pytest.fail("computed twice"))
    monkeypatch.setattr(vectorised, "processors", lambda: 2)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        small(
            FedAvg(), engine=Vectorised(3), model=nn.Sequential(nn.Linear(5, 3), Counting(buffer))
        ).run()
    finally:
        torch.set_num_threads(before)
    assert repeatable(mlp(6)) and not repeatable(Counting(buffer))


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
            ends.append(small(method, engine=Vectorised(3)).run())
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
