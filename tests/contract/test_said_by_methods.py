"""What a method can say, with the methods that need it: which client it is, layers by name, what
the server has read of its update, and several inputs per example.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_deployment import agree as agree_deployed
from torch import nn

from fedloom import Local
from fedloom.algorithm import FedAvg
from fedloom.checks.tiny_federation import CAPACITIES, SIZES, experiment, run
from fedloom.core.hyper import Share, hyper
from fedloom.core.vector import rec, zeros
from fedloom.data import from_clients
from fedloom.errors import ClientError, CompositionError, DataError
from fedloom.models import SeveralInputs, joined
from fedloom.submodels import FedPer, HeteroFL
from fedloom.wrappers import Prox
from support.own_stages import Signs
from tiny import agree, near


class PermK(FedAvg):
    """Every coordinate from one client of all, the next one in the next round (Szlendak et al.,
    2021: PermK, with a permutation that moves on by one).
    """

    clients: int = hyper(len(SIZES))

    def finish(self, x, loc, msg, mem, job):
        place = torch.arange(x.numel(), device=x.device) + job.round
        mine = torch.remainder(place, self.clients) == job.client
        delta = torch.where(mine, self.clients * (x - msg.x), 0.0)
        return rec(delta=delta, weight=job.weight), mem


class FedBABU(FedAvg):
    """FedBABU (Oh, Kim & Yun, ICLR 2022): the head stays what it was, clients train the body."""

    def direction(self, x, loc, msg, mem, grad, job):
        return torch.where(job.layers("head.*") > 0, 0.0, grad(x)), loc


class DASHA(FedAvg):
    """DASHA (Tyurin & Richtarik, ICLR 2023, Algorithm 1, gradients): clients and server add the
    same compressed messages up, the ones to g_i, the other to g.
    """

    a: Share = hyper(0.3)

    def server_init(self, x, up):
        return rec(x=x, g=zeros(x))

    def broadcast(self, srv):
        return rec(x=srv.x)

    def client_init(self, x):
        return rec(h=zeros(x), g=zeros(x))

    def direction(self, x, loc, msg, mem, grad, job):
        return zeros(x), loc

    def finish(self, x, loc, msg, mem, job):
        h = job.full(msg.x)
        delta = h - mem.h - self.a * (mem.g - mem.h)
        return rec(delta=delta, weight=job.weight), mem._replace(h=h)

    def arrived(self, up, mem):
        return mem._replace(g=mem.g + up.delta)

    def server_step(self, srv, up, rnd):
        g = srv.g + rnd.rate * up.delta
        return rec(x=srv.x - self.server_lr * g, g=g)


class Last(FedAvg):
    """A client keeps what the server has read of its last update."""

    def client_init(self, x):
        return rec(sent=zeros(x))

    def direction(self, x, loc, msg, mem, grad, job):
        return grad(x) + 0.1 * mem.sent, loc

    def arrived(self, up, mem):
        return rec(sent=up.delta)


class Heads(FedAvg):
    """Asks for gradients of the head, and averages its move, at the server."""

    def ask(self, msg, mem, job):
        return rec(c=job.layers("head.*") * job.full(msg.x)), mem

    def uniform(self, up, job):
        return rec(h=job.layers("head.*") * up.delta)


class Two(nn.Module):
    """A network of a word and of three numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.word, self.head = nn.Embedding(5, 4), nn.Linear(7, 3)

    def forward(self, numbers, word):
        return self.head(torch.cat([self.word(word), numbers], 1))


def two_inputs(dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    torch.manual_seed(3)
    examples = [
        ({"word": torch.randint(0, 5, (n,)), "numbers": torch.randn(n, 3)}, torch.arange(n) % 3)
        for n in SIZES
    ]
    data = from_clients([(joined(one), y) for one, y in examples], dtype=dtype)
    return {"model": lambda: SeveralInputs(Two(), examples[0][0]), "data": data}


FULL = {"cohort": 1.0, "weighting": "uniform"}
CASES: dict[str, dict[str, Any]] = {
    "PermK": {"algorithm": PermK(), **FULL},
    "FedBABU": {"algorithm": FedBABU()},
    "FedBABU, parts": {"algorithm": FedBABU(), "submodel": HeteroFL(), "capacities": CAPACITIES},
    "heads": {"algorithm": Heads()},
    "DASHA": {"algorithm": DASHA(), "compress": "topk:0.2", **FULL},
    "DASHA, random": {
        "algorithm": Prox(inner=DASHA(a=0.2), mu=0.0),
        "compress": "qsgd",
        **FULL,
    },
    "last": {"algorithm": Last()},
    "last, parts": {
        "algorithm": Last(),
        "compress": "topk:0.2",
        "submodel": HeteroFL(),
        "capacities": CAPACITIES,
    },
    "last, signs": {"algorithm": Last(), "compress": "topk:0.2", "stages": (Signs(),)},
    "two inputs": {"algorithm": FedAvg()},
}
SHORT = {"local": Local(epochs=1, batch=4, lr=0.05), "rounds": 3}


def made(name: str, dtype: torch.dtype = torch.float32, **more: Any) -> Any:
    inputs = two_inputs(dtype) if name == "two inputs" else {}
    return experiment(dtype=dtype, **(SHORT | CASES[name] | inputs | more))


@pytest.mark.quick("PermK", "FedBABU, parts", "DASHA", "last, parts", "two inputs")
@pytest.mark.parametrize("name", CASES)
def test_serial_and_workers_have_the_same_bits(name, engine_of):
    agree(run(made(name)), run(made(name, engine=engine_of("workers:2"))))


@pytest.mark.quick("PermK", "FedBABU, parts", "DASHA", "last, parts", "two inputs")
@pytest.mark.parametrize("name", CASES)
def test_vectorised_is_equal_to_rounding(name):
    ends = [run(made(name, torch.float64, engine=e)) for e in ("serial", "vectorised:3")]
    near(ends[1].srv.x, ends[0].srv.x)


@pytest.mark.quick("PermK", "FedBABU, parts", "DASHA", "last, parts", "two inputs")
@pytest.mark.parametrize("name", CASES)
def test_a_federation_has_the_bits_of_the_simulation(name, tmp_path):
    inputs = two_inputs() if name == "two inputs" else {}
    agree_deployed(tmp_path, **CASES[name], **inputs)


def test_each_client_sends_its_own_coordinates():
    """The first round's move is, coordinate by coordinate, that of the client whose turn it is."""
    alone = [
        run(made("FedBABU", torch.float64, algorithm=FedAvg(), rounds=1, cohort=[[i]])).srv.x
        for i in range(len(SIZES))
    ]
    whose = torch.arange(len(alone[0])) % len(SIZES)
    near(
        run(made("PermK", torch.float64, rounds=1)).srv.x,
        torch.stack(alone).gather(0, whose[None])[0],
    )


def test_layers_are_found_by_name_and_missing_ones_named():
    given = made("FedBABU", torch.float64)
    end, net = run(given), given.loop.net
    head = net.layout.where("head.*") > 0
    moved = end.srv.x != net.init()
    assert head.sum() == 21 and not moved[head].any() and moved[~head].all()

    class Typo(FedBABU):
        def direction(self, x, loc, msg, mem, grad, job):
            return job.layers("hed.*") * grad(x), loc

    with pytest.raises(ClientError, match=r"no layer fits 'hed\.\*'; the model has first\.0"):
        run(made("FedBABU", algorithm=Typo()))


def test_the_server_knows_which_means_of_layers_are_plain():
    assert made("heads").plan().plain == ("h",)


@pytest.mark.parametrize("name", ["DASHA", "DASHA, random"])
@pytest.mark.parametrize("engine", ["serial", "vectorised:3"])
def test_what_clients_and_server_add_up_is_one_sum(name, engine):
    end = run(made(name, torch.float64, engine=engine, rounds=5))
    mine = torch.stack([memory.alg.g for memory in end.memory.values()]).mean(0)
    near(mine, end.srv.g)
    assert mine.count_nonzero() > 0


def test_layers_that_do_not_travel_arrive_as_they_are_at_the_client():
    """What was sent as the server read it, private layers as the client has them."""

    class Arrived(FedAvg):
        def arrived(self, up, mem):
            seen.append(up.delta)
            return mem

    seen = []
    given = made("last", algorithm=Arrived(), compress="topk:0.1", private=FedPer(), rounds=1)
    run(given)
    head = given.loop.net.layout.where("head.*") > 0
    for delta in seen:
        assert len(delta) == len(head) and delta[head].all()
        assert delta[~head].count_nonzero() == round(0.1 * int((~head).sum()))


def test_an_update_arrives_without_what_stages_have_put_on_it():
    plain, signed = (run(made("last", rounds=1, stages=s)).memory for s in ((), (Signs(),)))
    assert plain.keys() == signed.keys()
    assert all(torch.equal(plain[i].alg.sent, signed[i].alg.sent) for i in plain)


def test_nothing_arrives_of_what_clients_send_as_parts_of_sums():
    with pytest.raises(CompositionError, match=r"IntegerRing and Last: .*arrived\(\)"):
        made("last", aggregation="integer_ring").plan()


def test_inputs_that_cannot_be_joined_are_refused():
    with pytest.raises(DataError, match=r"\[2, 3\] examples"):
        joined([torch.ones(2), torch.ones(3)])
    with pytest.raises(DataError, match="16777217; at most 16777216"):
        joined([torch.tensor([2**24 + 1])])
