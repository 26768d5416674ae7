"""Where one method must become another, bit for bit."""

from __future__ import annotations

import pytest
import torch

from fedloom import FedAvg, Local, LocalSGD
from fedloom.algorithms import (
    FAFED,
    FedACG,
    FedCM,
    FedDyn,
    Scaffold,
    fedadam,
    fedavgm,
    fedgamma,
    fedprox,
    fedsam,
    fedspeed,
    mofedsam,
)
from fedloom.core.vector import rec
from fedloom.engines.client_results import Request, TrainTask
from fedloom.federation.schedules import Exponential
from fedloom.wrappers import (
    Average,
    Clip,
    Lookahead,
    Momentum,
    Prox,
    Sam,
    ServerAdam,
    ServerOpt,
    WeightDecay,
)
from tiny import quadratics, same, small, trace

EQUAL = {
    "FedProx(0) is FedAvg": (fedprox(mu=0.0), FedAvg()),
    "FedACG(0, 0) is FedAvg": (FedACG(lam=0.0, beta=0.0), FedAvg()),
    "FedAvgM(0) is FedAvg": (fedavgm(beta=0.0), FedAvg()),
    "LocalSGD is FedAvg(1)": (LocalSGD(), FedAvg()),
    "FedACG is Lookahead(Prox(LocalSGD))": (
        FedACG(lam=0.8, beta=0.3),
        Lookahead(inner=Prox(inner=LocalSGD(), mu=0.3), lam=0.8),
    ),
    "Lookahead(0) is nothing": (Lookahead(inner=LocalSGD(), lam=0.0), LocalSGD()),
    "FedAvgM is ServerOpt(Momentum)": (
        fedavgm(beta=0.7, server_lr=0.5),
        ServerOpt(inner=FedAvg(), opt=Momentum(lr=0.5, beta=0.7)),
    ),
    "a clip out of reach is none": (Clip(inner=FedAvg(), norm=1e9), FedAvg()),
    "no weight decay is none": (WeightDecay(inner=FedAvg(), wd=0.0), FedAvg()),
    "FedSAM(rho 0) is FedAvg": (fedsam(rho=0.0), FedAvg()),
    "FedSpeed(rho 0) is FedDyn": (fedspeed(alpha=0.3, rho=0.0), FedDyn(alpha=0.3)),
    "FedSpeed(mix 0) is FedDyn": (fedspeed(alpha=0.3, rho=0.2, mix=0.0), FedDyn(alpha=0.3)),
    "FedGAMMA(rho 0) is SCAFFOLD": (fedgamma(rho=0.0), Scaffold()),
    "FedGAMMA is SCAFFOLD with SAM": (fedgamma(rho=0.2), Sam(inner=Scaffold(), rho=0.2)),
    "FedCM(alpha 1) is FedAvg": (FedCM(alpha=1.0), FedAvg()),
    "MoFedSAM(rho 0) is FedCM": (mofedsam(alpha=0.3, rho=0.0), FedCM(alpha=0.3)),
    "MoFedSAM(alpha 1) is FedSAM": (mofedsam(alpha=1.0, rho=0.1), fedsam(rho=0.1)),
    "Sam(rho 0) is nothing": (Sam(inner=Scaffold(), rho=0.0), Scaffold()),
    "Sam(rho 0) is nothing around FAFED": (Sam(inner=FAFED(), rho=0.0), FAFED()),
    "Average(1) is nothing": (ServerOpt(inner=LocalSGD(), opt=Average()), LocalSGD()),
    "server momentum of FedAvg is FedAvgM": (
        ServerOpt(inner=FedAvg(), opt=Momentum(beta=0.6)),
        fedavgm(beta=0.6),
    ),
    "FedAdam is a server optimiser": (
        fedadam(server_lr=0.2),
        ServerOpt(inner=FedAvg(), opt=ServerAdam(lr=0.2)),
    ),
}
# torch.equal, not the bytes: x + 0 m may turn -0 into 0


@pytest.mark.parametrize("name", EQUAL)
def test_limit(name):
    one, other = (
        [loop.state.srv.x for loop in trace(small(algorithm), 3)] for algorithm in EQUAL[name]
    )
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    assert not torch.equal(one[0], one[-1])


def test_first_round_of_fedacg_is_fedproxs():
    one, other = (
        [loop.state.srv.x for loop in trace(small(algorithm, torch.float64), 2)]
        for algorithm in (FedACG(lam=0.8, beta=0.3), fedprox(mu=0.3))
    )
    torch.testing.assert_close(one[1], other[1], rtol=0, atol=1e-15)
    assert not torch.allclose(one[2], other[2], rtol=0, atol=1e-6)


def test_first_round_of_scaffold_is_fedavgs():
    one, other = (
        [loop.state.srv.x for loop in trace(small(algorithm), 2)]
        for algorithm in (Scaffold(), FedAvg())
    )
    assert torch.equal(one[1], other[1])
    assert not torch.equal(one[2], other[2])


def test_scaffolds_options_agree_where_the_gradient_is_the_same_everywhere():
    # K = 1 on the client's whole data: the mean direction is the gradient at the received model
    local = Local(steps=1, batch=None, lr=0.1)
    ends = [
        list(trace(quadratics(Scaffold(option=o), cohort=3, local=local), 9))[-1] for o in (1, 2)
    ]
    torch.testing.assert_close(ends[0].state.srv.c, ends[1].state.srv.c, rtol=0, atol=1e-13)
    assert float(ends[0].state.srv.c.abs().max()) > 0.1


class Rates(FedAvg):
    """Sends what it was told beside its model."""

    def finish(self, x, loc, msg, mem, job):
        told = torch.tensor([job.lr_sum, job.lr, job.steps, job.step, job.round, job.last])
        return rec(delta=x - msg.x, weight=job.weight, told=told.to(x)), mem

    def unweighted(self, up, job):
        return rec(told=up.told)


def test_jobs_say_what_the_engine_does():
    schedule, cohorts = Exponential(decay=0.5, step_decay=0.9), [[1], [2], [1], [0], [1]]
    sizes = (1, 4, 3, 2)
    local = Local(epochs=1, batch=1, lr=0.3, schedule=schedule)
    loop = quadratics(Rates(), sizes, local=local).build()
    loop.engine.open(loop.plan, loop.fed, loop.net)
    msg, memory, last = rec(x=torch.zeros(2, dtype=torch.float64)), {}, {}
    for t, (i,) in enumerate(cohorts):
        answer = loop.engine.map(Request.TRAIN, TrainTask(msg, torch.empty(0), memory, [i], t))
        memory |= answer.memories
        told = answer.nodes[0][2].unweighted.told
        rates = [0.3 * 0.5**t * 0.9**k for k in range(sizes[i])]
        want = [sum(rates), rates[-1], sizes[i], sizes[i] - 1, t, last.get(i, -1)]
        torch.testing.assert_close(told, torch.tensor(want).double(), rtol=0, atol=1e-7)
        last[i] = t


def test_same_seed_same_bits_and_another_seed_other_bits():
    ends = [[*trace(small(Scaffold(), seed=s), 3)][-1].state.srv for s in (1, 1, 2)]
    assert same(ends[0], ends[1])
    assert not torch.equal(ends[0].x, ends[2].x)
