"""What a method can say, with the methods that need it: which client it is, layers by name, what
the server has read of its update, and several inputs per example.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cases import CASES
from fedloom.algorithm import FedAvg
from fedloom.checks.tiny_federation import SIZES, run
from fedloom.errors import ClientError, CompositionError, DataError
from fedloom.models import joined
from fedloom.submodels import FedPer
from support.own_methods import FedBABU
from support.own_stages import Signs
from test_deployment import deployed
from tiny import near, same

SAID = ["PermK", "FedBABU", "FedBABU, parts", "Heads", "DASHA", "DASHA, random", "Last"]
SAID += ["Last, parts", "Last, signs", "two inputs", "Draws", "Walks"]


def made(name: str, dtype: torch.dtype = torch.float32, **more: Any) -> Any:
    return CASES[name].make(dtype=dtype, **more)


@pytest.mark.parametrize("name", SAID)
def test_a_federation_has_the_bits_of_the_simulation(name, tmp_path):
    make = lambda: made(name, rounds=2)
    ours, engine = deployed(make, tmp_path)
    alone = run(make())
    assert same(ours.srv, alone.srv) and ours[2:] == alone[2:] and not engine.refused
    if name == "Walks":
        assert [row["train_loss"] for row in ours.history] == [None, None]


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
    assert made("Heads").plan().plain == ("h",)


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
    given = made("Last", algorithm=Arrived(), compress="topk:0.1", private=FedPer(), rounds=1)
    run(given)
    head = given.loop.net.layout.where("head.*") > 0
    for delta in seen:
        assert len(delta) == len(head) and delta[head].all()
        assert delta[~head].count_nonzero() == round(0.1 * int((~head).sum()))


def test_an_update_arrives_without_what_stages_have_put_on_it():
    plain, signed = (run(made("Last", rounds=1, stages=s)).memory for s in ((), (Signs(),)))
    assert plain.keys() == signed.keys()
    assert all(torch.equal(plain[i].alg.sent, signed[i].alg.sent) for i in plain)


def test_nothing_arrives_of_what_clients_send_as_parts_of_sums():
    with pytest.raises(CompositionError, match=r"IntegerRing and Last: .*arrived\(\)"):
        made("Last", aggregation="integer_ring").plan()


def test_inputs_that_cannot_be_joined_are_refused():
    with pytest.raises(DataError, match=r"\[2, 3\] examples"):
        joined([torch.ones(2), torch.ones(3)])
    with pytest.raises(DataError, match="16777217; at most 16777216"):
        joined([torch.tensor([2**24 + 1])])
