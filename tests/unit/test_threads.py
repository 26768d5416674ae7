"""Threads of the vectorised engine change no bit, and are used where they change none."""

import pytest
import torch
from torch import nn

from fedloom import FedAvg
from fedloom.algorithms import Scaffold
from fedloom.core.vector import rec
from fedloom.engines import Vectorised, recorded, vectorised
from fedloom.engines.recorded import Threads
from tiny import results_agree, small


@pytest.fixture
def use():
    """A function that sets the number of threads for a test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


class Steps:
    """Steps that take so many seconds with one thread and with two, on a clock of their own. wrong:
    with two they have other bits.
    """

    def __init__(self, one, two, wrong):
        self.seconds, self.wrong, self.now, self.used = {1: one, 2: two}, wrong, 0.0, []
        self.threads = Threads(2, lambda: self.now)

    def do(self, shape="a"):
        def step(x):
            threads = torch.get_num_threads()
            self.used.append(threads)
            self.now += self.seconds[threads]
            return x + (1e-7 if threads > 1 and self.wrong else 0.0), x * torch.nan

        return self.threads.step(shape, step, (torch.ones(3),), lambda: self.used.append(0))[0]


@pytest.mark.parametrize(
    ("two", "wrong", "later"), [(0.9, False, 2), (0.5, True, 1), (0.99, False, 1)]
)
def test_a_shape_is_tried_once_and_takes_what_is_faster_with_equal_bits(two, wrong, later, use):
    use(1)
    steps = Steps(1.0, two, wrong)
    for _ in range(3):
        assert torch.equal(steps.do(), torch.ones(3))
    assert steps.used == [1, 0, 2, 0, 1, later, later] and torch.get_num_threads() == 1
    steps.do("b")
    assert steps.used[-5:] == [1, 0, 2, 0, 1]


def test_a_step_that_writes_into_its_input_is_done_once_on_it(use):
    use(1)
    x = torch.ones(3)
    out = Threads(2).step("a", lambda v: v.add_(1), (x,), lambda: None)
    assert out is x and x.tolist() == [2.0] * 3


@pytest.mark.parametrize("method", [FedAvg(), Scaffold()])
def test_a_run_with_threads_has_the_bits_and_the_costs_of_one(method, monkeypatch, use):
    monkeypatch.setattr(vectorised, "processors", lambda: 2)
    monkeypatch.setattr(recorded, "FASTER", 1e9)
    used, real, ends = set(), Threads.step, []

    def seen(self, shape, do, *rest):
        def step(*given):
            used.add((self.number, torch.get_num_threads()))
            return do(*given)

        return real(self, shape, step, *rest)

    monkeypatch.setattr(Threads, "step", seen)
    for number in (1, 2):
        use(number)
        ends.append(small(method, engine=Vectorised(3), model=lambda: nn.Linear(5, 3)).run())
        assert torch.get_num_threads() == number
    results_agree(*ends)
    assert used == {(1, 1), (2, 1), (2, 2)}


class CountsThreads(FedAvg):
    """Its server's state says how many threads server_step() had."""

    def server_init(self, x, up):
        return rec(x=x, threads=0.0)

    def server_step(self, srv, up, rnd):
        return rec(x=srv.x + up.delta, threads=float(torch.get_num_threads()))


@pytest.mark.parametrize(("values", "wanted"), [(10**7, 1), (102, 2)])
def test_the_server_takes_one_thread_for_a_model_that_gains_nothing(
    values, wanted, monkeypatch, use
):
    """Below about ten million values an operation waits longer for a busy core than it gains."""
    monkeypatch.setattr("fedloom.engines.base.SHARED_FROM", values)
    use(2)
    assert small(CountsThreads(), rounds=1).run().state.threads == wanted
    assert torch.get_num_threads() == 2
