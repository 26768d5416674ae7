"""Methods that fedloom does not have, as a stranger would write them on the interface alone, and
mixes of those that it has. Each runs two rounds in two engines, with equal bits.
"""

from __future__ import annotations

import pytest
import torch

from fedloom import FedAvg, Local
from fedloom.algorithms import Ditto, Mime
from fedloom.core.vector import rec, zeros
from fedloom.engines.client_round import Client
from fedloom.errors import ConfigError
from fedloom.federation.choice import ClientChoice, PowerOfChoice
from fedloom.federation.devices import Levels
from fedloom.objectives import CrossEntropy
from fedloom.submodels import FIARSE, FedBN, FedPer, FedRep, HeteroFL
from tiny import agree, outcome, same, small, timeless, trace


class APFL(Ditto):
    """The personal model is a mixture, whose local part steps along its share of the gradient."""

    def direction(self, x, loc, msg, mem, grad, job):
        d = 0.5 * grad(0.5 * loc.y.x + 0.5 * x)
        return grad(x), rec(y=job.move(loc.y, d))

    def personal(self, msg, mem):
        return 0.5 * mem.v + 0.5 * msg.x


class FineTuned(FedAvg):
    """A client uses its own last local model."""

    def client_init(self, x):
        return rec(own=x)

    def finish(self, x, loc, msg, mem, job):
        return rec(delta=x - msg.x, weight=job.weight), rec(own=x)

    def personal(self, msg, mem):
        return mem.own


class Polyak(FedAvg):
    """The local step that would reach a loss of 0 on a straight line, at most the rate's."""

    def direction(self, x, loc, msg, mem, grad, job):
        g = grad(x)
        return g * torch.clamp_max(grad.loss(x) / ((g * g).sum() + 1e-9), 1.0), loc


class Moon(CrossEntropy):
    """MOON-like: the loss remembers the client's last model, and pulls its move away from it."""

    def init(self, first):
        return rec(prev=zeros(first.net.init()))

    def mean(self, net, x, batch, ref, mem):
        return super().mean(net, x, batch, ref, mem) + 0.01 * (x * mem.prev).sum()

    def loss(self, net, x, batch, ref, mem):
        return super().loss(net, x, batch, ref, mem) + 0.01 * (x * mem.prev).sum()

    def finish(self, x, ref, mem):
        return rec(prev=x)


def normed(dtype):
    net = torch.nn
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        made = net.Sequential(net.Linear(5, 6), net.BatchNorm1d(6), net.Tanh(), net.Linear(6, 3))
    return made.to(dtype)


STEPS = Local(steps=3, batch=3, lr=0.1, momentum=0.5, clip=1.0, weight_decay=0.01)
TRIALS = {
    "FedPer": {"private": FedPer(), "local": STEPS},
    "FedRep": {"private": FedRep(head=0.5), "local": STEPS},
    "FedBN": {
        "private": FedBN(),
        "local": Local(steps=2, batch=None, lr=0.1),
        "cohort": [[3, 4, 6]],
    },
    "MOON": {"objective": Moon()},
    "Mime of parts": {"algorithm": Mime(), "submodel": HeteroFL(), "capacities": [0.3, 1.0]},
    "Polyak behind a mask": {
        "algorithm": Polyak(),
        "submodel": FIARSE(),
        "capacities": [0.3, 1.0],
    },
    "Mime, compressed": {"algorithm": Mime(), "compress": "topk:0.2", "nonfinite": "skip"},
    "APFL": {"algorithm": APFL()},
    "fine-tuned": {"algorithm": FineTuned()},
    "Polyak": {"algorithm": Polyak()},
}


def ends(name, engine):
    given = {"algorithm": FedAvg(), "engine": engine} | TRIALS[name]
    if name == "FedBN":
        given["model"] = normed(torch.float32)
    return outcome(small(**given), 2)


@pytest.mark.quick("FedRep", "MOON", "Mime, compressed", "APFL", "Polyak behind a mask")
@pytest.mark.parametrize("name", TRIALS)
def test_a_method_is_short_and_equal_in_two_engines(name, engine_of):
    agree(ends(name, "serial"), ends(name, engine_of("workers:2")))


@pytest.mark.quick("FedRep", "MOON", "Mime, compressed", "APFL", "Polyak behind a mask")
@pytest.mark.parametrize("name", [*sorted(set(TRIALS) - {"FedBN"})])
def test_and_agrees_with_many_clients_at_once(name):
    """In float64, to rounding. FedBN is left out, for its running statistics."""
    given = {"algorithm": FedAvg(), "rounds": 2} | TRIALS[name]
    runs = [
        [*trace(small(dtype=torch.float64, **given, engine=engine), 2)][-1]
        for engine in ("serial", "vectorised:3")
    ]
    torch.testing.assert_close(runs[1].state.srv.x, runs[0].state.srv.x, rtol=0, atol=1e-12)
    costs = [
        [row[k] for row in loop.log.history for k in ("gradients", "bytes_up")] for loop in runs
    ]
    assert costs[0] == costs[1]
    values = [[row.get("loss_values") for row in loop.log.history] for loop in runs]
    assert values[0] == values[1]


# ------------------------------------------------------------------------------------ client choice
class Patient(ClientChoice):
    """Those that have waited longest, by the rows so far."""

    def cohort(self, known, losses):
        waited = dict.fromkeys(known.there, 0)
        for t, row in enumerate(known.rows):
            waited |= dict.fromkeys(row["clients"], t + 1)
        return sorted(waited, key=lambda i: (waited[i], i))[: known.size]


def chosen(rule, engine="serial", **more):
    given = {"cohort": 2, "choose": rule, "engine": engine, "devices": Levels(up=1e4, down=1e4)}
    return small(FedAvg(), **(given | more))


@pytest.mark.parametrize("rule", [Patient(), PowerOfChoice(among=4)])
def test_a_rule_chooses_the_same_clients_in_every_engine_and_after_a_stop(
    rule, engine_of, tmp_path
):
    loops = [
        [*trace(chosen(rule, engine), 4)][-1]
        for engine in ("serial", engine_of("workers:2"), "vectorised:3")
    ]
    one, two, three = [loop.log.history for loop in loops]
    assert timeless(one) == timeless(two)
    assert [row["clients"] for row in one] == [row["clients"] for row in three]
    if isinstance(rule, Patient):
        assert [row["clients"] for row in one] == [[0, 1], [2, 3], [4, 5], [0, 6]]
    chosen(rule, rounds=2).run(tmp_path / "run")
    again = chosen(rule, rounds=4).resume(tmp_path / "run")
    assert timeless(again.history) == timeless(one) and same(again.state, loops[0].state.srv)


def test_power_of_choice_takes_the_largest_losses_and_pays_for_all_candidates():
    loop = [*trace(chosen(PowerOfChoice(among=7), rounds=2), 2)][-1]
    first = loop.log.history[0]
    net, fed, plan = loop.net, loop.fed, loop.plan
    net.train()
    client, losses = Client(plan, fed, net), []
    share = client.share(client.views.whole, rec(x=net.init()), net.init_buffers())
    for i in range(7):
        alone = client.alone(share, client.first_memory(net.init(), i), i, 0)
        full = alone.inputs().job.full
        losses.append(float(full.loss(net.init())))
    assert first["clients"] == sorted(sorted(range(7), key=lambda i: -losses[i])[:2])
    vector, number = 4 * 102, 8
    assert first["bytes_down.x"] == 7 * vector, "the chosen ones have the model already"
    assert first["bytes_up.loss"] == 7 * number and first["bytes_up.delta"] == 2 * vector
    batches = [-(-n // 4) for n in (1, 3, 5, 8, 11, 2, 13)]
    assert first["loss_values"] == sum(batches) and first["cohort"] == 2
    assert loop.state.ledger.client_rounds == 4
    speeds = [(1.0, 2.0, 4.0)[i % 3] for i in range(7)]
    asked = max(b / s for b, s in zip(batches, speeds, strict=True)) + vector / 1e4 + number / 1e4
    steps = [2 * batches[i] / speeds[i] for i in first["clients"]]
    up = (vector + number) / 1e4  # and its weight
    assert first["simulated_seconds"] == pytest.approx(asked + max(steps) + up)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"cohort": [[0], [1]]}, "choose and lists of clients both say who takes part"),
        ({"sampling": "bernoulli"}, "choose and sampling = bernoulli both"),
        ({"rule": PowerOfChoice(among=1)}, "choose.among = 1 candidates are fewer than the 2"),
    ],
)
def test_a_choice_that_cannot_be_made_is_refused(given, words):
    rule = given.pop("rule", Patient())
    with pytest.raises(ConfigError, match=words):
        [*trace(chosen(rule, **given), 1)]


@pytest.mark.parametrize("found", [[], [0, 0], [9], [0, 1, 2], "ab", None])
def test_a_rule_that_chooses_wrongly_is_named(found):
    class Wrong(Patient):
        def cohort(self, known, losses):
            return found

    with pytest.raises(ConfigError, match=r"Wrong.cohort\(\) gives .* in round 1; it must give 1"):
        [*trace(chosen(Wrong()), 1)]
