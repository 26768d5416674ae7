"""Twenty methods as a stranger would write them: the shortest version of each, on the interface
alone. Each runs two rounds in two engines, with equal bits.
"""

from __future__ import annotations

import pytest
import torch

from fedloom import FedAvg, Local
from fedloom.core.vector import rec, zeros
from fedloom.engines.client_round import Client
from fedloom.engines.gradient import FullGradient
from fedloom.errors import ConfigError
from fedloom.federation.choice import ClientChoice, PowerOfChoice
from fedloom.federation.devices import Levels
from fedloom.objectives import CrossEntropy
from fedloom.submodels import FIARSE, FedBN, FedPer, FedRep, HeteroFL
from fedloom.wrappers import Nesterov, Prox, ServerOpt
from tiny import agree, outcome, same, small, timeless, trace


class Mime(FedAvg):
    def ask(self, msg, mem, job):
        return rec(c=job.full(msg.x)), mem

    def direction(self, x, loc, msg, mem, grad, job):
        return grad(x) - grad(msg.x) + msg.c, loc


class FedLin(FedAvg):
    def client_init(self, x):
        return rec(g=zeros(x))

    def ask(self, msg, mem, job):
        g = job.full(msg.x)
        return rec(g=g), rec(g=g)

    def direction(self, x, loc, msg, mem, grad, job):
        return grad(x) - mem.g + msg.g, loc


class MimeLite(FedAvg):
    def server_init(self, x, up):
        return rec(x=x, m=zeros(x))

    def direction(self, x, loc, msg, mem, grad, job):
        return 0.1 * grad(x) + 0.9 * msg.m, loc

    def finish(self, x, loc, msg, mem, job):
        return rec(delta=x - msg.x, g=job.full(msg.x), weight=job.weight), mem

    def uniform(self, up, job):
        return rec(g=up.g)

    def server_step(self, srv, up, rnd):
        return rec(x=srv.x + up.delta, m=0.1 * up.g + 0.9 * srv.m)


class Scaffold(FedAvg):
    def server_init(self, x, up):
        return rec(x=x, c=zeros(x))

    def client_init(self, x):
        return rec(c=zeros(x))

    def direction(self, x, loc, msg, mem, grad, job):
        return grad(x) - mem.c + msg.c, loc

    def finish(self, x, loc, msg, mem, job):
        c = mem.c - msg.c - (x - msg.x) / job.lr_sum
        return rec(delta=x - msg.x, dc=c - mem.c, weight=job.weight), rec(c=c)

    def uniform(self, up, job):
        return rec(dc=up.dc)

    def server_step(self, srv, up, rnd):
        return rec(x=srv.x + up.delta, c=srv.c + rnd.rate * up.dc)


class Scaffnew(FedAvg):
    def client_init(self, x):
        return rec(h=zeros(x), x=x, s=x.new_ones(()))

    def start(self, msg, mem, job):
        there = torch.as_tensor(job.last == job.round - 1)
        return msg.x, rec(h=mem.h + torch.where(there, (msg.x - mem.x) / mem.s, 0.0))

    def direction(self, x, loc, msg, mem, grad, job):
        return grad(x) - loc.h, loc

    def finish(self, x, loc, msg, mem, job):
        kept = rec(h=loc.h, x=x, s=zeros(mem.s) + job.lr_sum)
        return rec(delta=x - msg.x, weight=job.weight), kept


class FedExP(FedAvg):
    def uniform(self, up, job):
        return rec(square=(up.delta * up.delta).sum())

    def server_step(self, srv, up, rnd):
        rate = up.square / (2 * ((up.delta * up.delta).sum() + 1e-3))
        return rec(x=srv.x + torch.clamp_min(rate, 1.0) * up.delta)


class FedNova(FedAvg):
    def uniform(self, up, job):
        return rec(step=up.delta / job.steps, steps=job.steps)

    def server_step(self, srv, up, rnd):
        return rec(x=srv.x + up.steps * up.step)


class QFedAvg(FedAvg):
    def finish(self, x, loc, msg, mem, job):
        return rec(delta=x - msg.x, loss=job.full.loss(msg.x), weight=job.weight), mem

    def uniform(self, up, job):
        d = up.delta / job.lr
        return rec(step=up.loss * d, h=(d * d).sum() + up.loss / job.lr)

    def server_step(self, srv, up, rnd):
        return rec(x=srv.x + up.step / up.h)


class AFL(FedAvg):
    def client_init(self, x):
        return rec(log=x.new_zeros(()))

    def finish(self, x, loc, msg, mem, job):
        up = rec(delta=x - msg.x, weight=torch.exp(mem.log))
        return up, rec(log=mem.log + 0.1 * job.full.loss(msg.x))


class Ditto(FedAvg):
    def client_init(self, x):
        return rec(v=x)

    def start(self, msg, mem, job):
        return msg.x, rec(y=job.begin(mem.v))

    def direction(self, x, loc, msg, mem, grad, job):
        v = loc.y.x
        return grad(x), rec(y=job.move(loc.y, grad(v) + v - msg.x))

    def finish(self, x, loc, msg, mem, job):
        return rec(delta=x - msg.x, weight=job.weight), rec(v=loc.y.x)

    def personal(self, msg, mem):
        return mem.v


class APFL(Ditto):
    """The personal model is a mixture, whose local part steps along its share of the gradient."""

    def direction(self, x, loc, msg, mem, grad, job):
        d = 0.5 * grad(0.5 * loc.y.x + 0.5 * x)
        return grad(x), rec(y=job.move(loc.y, d))

    def personal(self, msg, mem):
        return 0.5 * mem.v + 0.5 * msg.x


class IFCA(FedAvg):
    def server_init(self, x, up):
        return rec(x=x, y=x + 0.1 * torch.randn_like(x))

    def start(self, msg, mem, job):
        first = job.full.loss(msg.x) <= job.full.loss(msg.y)
        x = torch.where(torch.as_tensor(first), msg.x, msg.y)
        return x, rec(x=x, first=torch.as_tensor(first).to(x))

    def finish(self, x, loc, msg, mem, job):
        return rec(delta=x - loc.x, first=loc.first, weight=job.weight), mem

    def uniform(self, up, job):
        one = up.first
        return rec(dx=one * up.delta, dy=(1 - one) * up.delta, nx=one, ny=1 - one)

    def server_step(self, srv, up, rnd):
        x = srv.x + up.dx / max(up.nx, 1e-9)
        return rec(x=x, y=srv.y + up.dy / max(up.ny, 1e-9))


class FedDyn(FedAvg):
    def server_init(self, x, up):
        return rec(x=x, h=zeros(x))

    def client_init(self, x):
        return rec(h=zeros(x))

    def direction(self, x, loc, msg, mem, grad, job):
        return grad(x) + 0.1 * (mem.h + x - msg.x), loc

    def finish(self, x, loc, msg, mem, job):
        return rec(delta=x - msg.x, weight=job.weight), rec(h=mem.h + x - msg.x)

    def uniform(self, up, job):
        return rec(move=up.delta)

    def server_step(self, srv, up, rnd):
        h = srv.h + rnd.rate * up.move
        return rec(x=srv.x + up.delta + h - srv.h, h=h)


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


class Sam(FedAvg):
    def direction(self, x, loc, msg, mem, grad, job):
        g = grad(x)
        return grad(x + 0.05 * g / (g.norm() + 1e-7)), loc


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
    "FedProx": {"algorithm": Prox(inner=FedAvg(), mu=0.1)},
    "DiLoCo": {"algorithm": ServerOpt(inner=FedAvg(), opt=Nesterov(lr=0.7))},
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
    **{
        made.__name__: {"algorithm": made()}
        for made in (
            *(Mime, FedLin, MimeLite, Scaffold, Scaffnew, FedExP, FedNova, QFedAvg, AFL, Ditto),
            *(APFL, IFCA, FedDyn, FineTuned, Polyak, Sam),
        )
    },
}


def ends(name, engine):
    given = {"algorithm": FedAvg(), "engine": engine} | TRIALS[name]
    if name == "FedBN":
        given["model"] = normed(torch.float32)
    return outcome(small(**given), 2)


@pytest.mark.parametrize("name", TRIALS)
def test_a_method_is_short_and_equal_in_two_engines(name, engine_of):
    agree(ends(name, "serial"), ends(name, engine_of("workers:2")))


@pytest.mark.parametrize("name", [*sorted(set(TRIALS) - {"FedBN"})])
def test_and_agrees_with_many_clients_at_once(name):
    """In float64, to rounding. FedBN is left out, for its running statistics."""
    given = {"algorithm": FedAvg(), "rounds": 2} | TRIALS[name]
    runs = [
        [*trace(small(dtype=torch.float64, **given, engine=engine), 2)][-1]
        for engine in ("serial", "vectorised:3")
    ]
    torch.testing.assert_close(runs[1].srv.x, runs[0].srv.x, rtol=0, atol=1e-12)
    costs = [[row[k] for row in loop.history for k in ("gradients", "bytes_up")] for loop in runs]
    assert costs[0] == costs[1]
    values = [[row.get("loss_values") for row in loop.history] for loop in runs]
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
    one, two, three = [loop.history for loop in loops]
    assert timeless(one) == timeless(two)
    assert [row["clients"] for row in one] == [row["clients"] for row in three]
    if isinstance(rule, Patient):
        assert [row["clients"] for row in one] == [[0, 1], [2, 3], [4, 5], [0, 6]]
    chosen(rule, rounds=2).run(tmp_path / "run")
    again = chosen(rule, rounds=4).resume(tmp_path / "run")
    assert timeless(again.history) == timeless(one) and same(again.state, loops[0].srv)


def test_power_of_choice_takes_the_largest_losses_and_pays_for_all_candidates():
    loop = [*trace(chosen(PowerOfChoice(among=7), rounds=2), 2)][-1]
    first = loop.history[0]
    net, fed, plan = loop.net, loop.fed, loop.plan
    net.train()
    client, losses = Client(plan, fed, net), []
    share = client.share(client.views.whole, rec(x=net.init()), net.init_buffers())
    for i in range(7):
        full = FullGradient(plan, fed, share, rec(), 0, i)
        losses.append(float(full.loss(net.init())))
    assert first["clients"] == sorted(sorted(range(7), key=lambda i: -losses[i])[:2])
    vector, number = 4 * 102, 8
    assert first["bytes_down.x"] == 7 * vector, "the chosen ones have the model already"
    assert first["bytes_up.loss"] == 7 * number and first["bytes_up.delta"] == 2 * vector
    batches = [-(-n // 4) for n in (1, 3, 5, 8, 11, 2, 13)]
    assert first["loss_values"] == sum(batches) and first["cohort"] == 2
    assert loop.ledger.client_rounds == 4
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
