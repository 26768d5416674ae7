"""job.draw(n): random numbers of a client, by the documented formula."""

from __future__ import annotations

import pytest
import torch

from fedloom import FedAvg
from fedloom.checks import check
from fedloom.core.rng import key
from fedloom.core.vector import rec
from support.own_methods import Draws
from tiny import small, trace

M64 = (1 << 64) - 1


def drawn(experiment):
    """What the clients drew in the last round, {client: (5, 3)}."""
    loop = [*trace(experiment, 2)][-1]
    found = loop.memory.get(range(loop.fed.population))
    return loop.state.srv.x, {i: row.alg.u for i, row in found.items()}


def uniform(seed, place, call, n, digits):
    """The documented numbers in Python's integers: splitmix64 of a counter and a hashed seed."""

    def mixed(z):
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            z = ((z ^ (z >> shift)) * factor) & M64
        return z ^ (z >> 31)

    start = ((seed + place * 0x1E3779B97F4A7C15) & (M64 >> 1)) + call
    return [(mixed((k + mixed(start)) & M64) >> (64 - digits)) / 2**digits for k in range(n)]


@pytest.mark.parametrize(("dtype", "digits"), [(torch.float32, 24), (torch.float64, 53)])
def test_the_numbers_are_those_of_seed_round_client_step_and_call(dtype, digits):
    _, found = drawn(small(Draws(), dtype, cohort=1.0, rounds=2))
    for i, u in found.items():
        seed = key(11, "author", 1, i)
        steps = 2 * -(-(1, 3, 5, 8, 11, 2, 13)[i] // 4)
        places = [(0, 1), (2 + steps, 1), (2 + steps, 2), (1, 1)]  # start, last step, finish
        for row, (place, call) in zip(u, places, strict=False):
            assert row.tolist() == uniform(seed, place, call, 3, digits)
    asked = torch.tensor([uniform(key(11, "author", 1, i), 2, 1, 3, digits) for i in found])
    weight = torch.tensor([1.0, 3, 5, 8, 11, 2, 13])
    assert torch.allclose(found[0][4].float(), weight @ asked / weight.sum(), atol=1e-6)


def test_no_two_clients_places_or_calls_have_the_same_numbers():
    _, found = drawn(small(Draws(), cohort=1.0, rounds=2))
    rows = torch.cat([u[:4] for u in found.values()])
    assert len(rows.unique(dim=0)) == len(rows) == 4 * 7
    assert rows.min() >= 0 and rows.max() < 1


@pytest.mark.slow
def test_fedloom_check_accepts_a_method_that_draws():
    report = check(Draws, ["vectorised:3"])
    assert report.passed, report


class AtTheServer(FedAvg):
    """Draws where the server computes."""

    def unweighted(self, up, job):
        return rec(u=job.draw(1))


class Halves(FedAvg):
    """Asks for half a number."""

    def start(self, msg, mem, job):
        return msg.x + job.draw(0.5).sum(), rec()


@pytest.mark.parametrize(
    ("method", "words"),
    [
        (AtTheServer(), "job.draw(n) has no numbers here: draw in start(), direction()"),
        (Halves(), "job.draw(n): n is how many numbers, 0 or more, got 0.5"),
    ],
)
@pytest.mark.parametrize("engine", ["serial", "vectorised:3"])
def test_a_draw_that_cannot_be_is_said(method, words, engine):
    with pytest.raises(Exception) as error:
        small(method, engine=engine).run()
    assert words in str(error.value) and "\n" not in str(error.value)


def test_a_mean_of_many_numbers_is_a_half():
    class Once(FedAvg):
        """Draws many numbers."""

        def finish(self, x, loc, msg, mem, job):
            u = job.draw(40_000)
            return rec(delta=x - msg.x, weight=job.weight, u=torch.stack([u.mean(), u.var()])), mem

        def server_init(self, x, up):
            return rec(x=x, u=x.new_zeros(2))

        def broadcast(self, srv):
            return rec(x=srv.x)

        def unweighted(self, up, job):
            return rec(u=up.u)

        def server_step(self, srv, up, rnd):
            return rec(x=srv.x, u=up.u)

    found = small(Once(), rounds=1, cohort=1.0).run().state.u
    # 7 clients' means of 40,000 numbers: three standard deviations are 0.0016
    assert abs(float(found[0]) - 0.5) < 0.0016 and abs(float(found[1]) - 1 / 12) < 0.001
