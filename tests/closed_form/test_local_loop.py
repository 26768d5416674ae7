"""The local loop of one client is torch's optimiser after clip_grad_norm_, step for step; and
schedules of its rate against the formulas of their papers, written again here.
"""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedloom import FedAvg, Local, LocalSGD
from fedloom.algorithms import Scaffold
from fedloom.config import resolve
from fedloom.core.vector import rec
from fedloom.engines.base import one_thread
from fedloom.engines.client_results import Request, TrainTask
from fedloom.errors import ConfigError
from fedloom.federation import schedules
from tiny import A, B, clusters, mlp, near, quadratics, small, trace

CASES = {
    "plain": {},
    "momentum": {"momentum": 0.9},
    "decayed": {"weight_decay": 0.1},
    "clipped": {"clip": 0.5},
    "all of it": {"momentum": 0.8, "weight_decay": 0.05, "clip": 0.7},
    "a rate that falls": {
        "schedule": schedules.Exponential(decay=0.8, step_decay=0.9), "momentum": 0.5
    },
    "steps": {"epochs": None, "steps": 7},
    "whole data": {"batch": None, "epochs": 3},
    "last batch dropped": {"drop_last": True},
    "adam": {"optimiser": "adam", "lr": 0.02, "weight_decay": 0.1},
    "adamw, as FIARSE has it": {
        "optimiser": "adamw", "lr": 0.02, "beta2": 0.95, "weight_decay": 0.1
    },
    "nesterov": {"optimiser": "nesterov", "momentum": 0.9, "weight_decay": 0.05},
    "rmsprop": {"optimiser": "rmsprop", "lr": 0.02, "weight_decay": 0.1},
    "rmsprop, another decay": {"optimiser": "rmsprop", "lr": 0.02, "beta2": 0.8},
    "adagrad": {"optimiser": "adagrad", "lr": 0.05, "weight_decay": 0.1},
    "adadelta": {"optimiser": "adadelta", "lr": 2.0, "beta2": 0.8},
    "adamax": {"optimiser": "adamax", "lr": 0.02, "beta1": 0.8, "weight_decay": 0.1},
    "nadam": {"optimiser": "nadam", "lr": 0.02, "weight_decay": 0.1},
    "radam": {"optimiser": "radam", "lr": 0.02, "epochs": 4, "beta2": 0.99},
    "adamw, two numbers": {"optimiser": "adamw", "lr": 0.02, "beta1": 0.5, "beta2": 0.8},
}  # fmt: skip
EXACT = {"plain", "momentum", "decayed", "a rate that falls", "steps", "whole data"}
flat = lambda module: torch.cat([p.detach().reshape(-1) for p in module.parameters()])


def optimiser_of(module: nn.Module, local: Local) -> torch.optim.Optimizer:
    common = {"lr": local.lr, "weight_decay": local.weight_decay}
    if local.optimiser in ("sgd", "nesterov"):
        common |= {"momentum": local.momentum, "nesterov": local.optimiser == "nesterov"}
        return torch.optim.SGD(module.parameters(), **common)
    if local.optimiser == "rmsprop":
        return torch.optim.RMSprop(module.parameters(), alpha=local.beta2 or 0.99, **common)
    if local.optimiser == "adagrad":
        return torch.optim.Adagrad(module.parameters(), **common)
    if local.optimiser == "adadelta":
        return torch.optim.Adadelta(module.parameters(), rho=local.beta2 or 0.9, **common)
    kinds = (torch.optim.Adam, torch.optim.AdamW, torch.optim.Adamax, torch.optim.NAdam)
    kind = {kind.__name__.lower(): kind for kind in (*kinds, torch.optim.RAdam)}[local.optimiser]
    betas = (0.9 if local.beta1 is None else local.beta1, local.beta2 or 0.999)
    return kind(module.parameters(), betas=betas, **common)


def by_hand(module: nn.Module, fed, round: int) -> nn.Module:
    """The same steps by torch's own parts."""
    module, local = copy.deepcopy(module).train(), fed.local
    optimiser = optimiser_of(module, local)
    for k, index in enumerate(fed.batches(0, round)):
        optimiser.param_groups[0]["lr"] = local.lr * local.schedule(round, k)
        optimiser.zero_grad()
        outputs = module(fed.data.inputs[index])
        F.cross_entropy(outputs, fed.data.targets[index]).backward()
        if local.clip is not None:
            nn.utils.clip_grad_norm_(module.parameters(), local.clip)
        optimiser.step()
    return module


def experiment(name: str, **changes):
    local = Local(**{"epochs": 2, "batch": 4, "lr": 0.2} | CASES[name])
    data = clusters(torch.float64, sizes=(11,))
    return small(FedAvg(), torch.float64, data=data, cohort=1.0, local=local, **changes)


@pytest.mark.parametrize("name", CASES)
def test_one_round_is_torchs(name):
    loop = experiment(name, weighting="uniform").build()
    loop.engine.open(loop.plan, loop.fed, loop.net)
    x = loop.net.init()
    for t in (0, 3):
        task = TrainTask(rec(x=x), loop.net.init_buffers(), {}, [0], t)
        answers = loop.engine.map(Request.TRAIN, task)
        with one_thread():
            want = flat(by_hand(mlp(torch.float64), loop.fed, t)) - x
        # torch.optim.NAdam has the product of the decays in float32
        tolerance = 0 if name in EXACT else 1e-8 if name == "nadam" else 1e-14
        torch.testing.assert_close(answers.nodes[0][2].delta, want, rtol=0, atol=tolerance)
        assert answers.stats[0].gradients == len(loop.fed.batches(0, t))
    assert float(want.abs().max()) > 0.01


# -------------------------------------------------------------------------------- FAFED, Theorem 2
@pytest.mark.parametrize(
    ("q", "b", "alpha"), [(10, 50, 4.17e-6), (10, 5, 4.17e-5), (5, 50, 1.67e-5)]
)
def test_fafeds_theory_is_a_tiny_constant_at_first(q, b, alpha):
    # specification 1.6: eta = rho / (12 L q), and c eta^2 = (1 / (12 q N^2) + 60 / (b N)) / 144 q^2
    schedule = schedules.FAFEDTheory(N=20, q=q, L=3.0, rho=0.02, b=b)
    rates = [schedule(round, step) for round, step in ((0, 0), (3, q - 1), (1000, 1))]
    np.testing.assert_allclose(rates, 0.02 / (12 * 3.0 * q), rtol=1e-12)
    assert schedule.c * rates[0] ** 2 == pytest.approx(alpha, rel=2e-3)
    exact = (1 / (12 * q * 400) + 60 / (b * 20)) / (144 * q * q)
    assert schedule.c * rates[0] ** 2 == pytest.approx(exact, rel=1e-12)


def test_fafeds_theory_falls_with_the_cube_root_in_the_end():
    # from t = 1728 q^3 N^2 - 1.5 on: rho N^(2/3) / (L (t + 1.5)^(1/3)), t from 1
    schedule = schedules.FAFEDTheory(N=2, q=1, L=2.0, rho=0.5, b=1)
    change = 1728 * 4
    for t in (change - 1, change, 10 * change):
        want = 0.5 * 2 ** (2 / 3) / (2.0 * (t + 1.5) ** (1 / 3))
        assert schedule(t - 1, 0) == pytest.approx(want, rel=1e-12)
    assert schedule(change - 3, 0) == pytest.approx(0.5 / 24, rel=1e-12)


# ------------------------------------------------------------------------------ STEM, Theorem 3.1
def stem(N, q, L, sigma, b, t):
    """eta_t and c, line by line: K is the number of workers, I the local steps."""
    kappa = (b * N) ** (2 / 3) * sigma ** (2 / 3) / L
    c = 64 * L**2 / (b * N) + sigma**2 / (24 * kappa**3 * L * q)
    w = max(
        2 * sigma**2,
        4096 * L**3 * q**3 * kappa**3 - sigma**2 * t,
        c**3 * kappa**3 / (4096 * L**3 * q**3),
    )
    return kappa / (w + sigma**2 * t) ** (1 / 3), c


@pytest.mark.parametrize(
    "setting", [(20, 10, 1.0, 2.0, 50), (4, 2, 0.3, 0.7, 1), (1, 1, 5.0, 3, 2)]
)
def test_stems_theory_follows_its_formula(setting):
    N, q, L, sigma, b = setting
    schedule = schedules.STEMTheory(N=N, q=q, L=L, b=b)  # whatever sigma is: it cancels
    for round, step in ((0, 0), (0, q - 1), (7, 0), (10**6, 0), (10**9, q - 1)):
        rate, c = stem(N, q, L, sigma, b, round * q + step + 1)
        assert schedule(round, step) == pytest.approx(rate, rel=1e-12)
        assert schedule.c == pytest.approx(c, rel=1e-12)


# --------------------------------------------------------------------------- cube roots and roots
def test_the_cube_root_counts_steps_rounds_or_passes():
    for round in range(9):
        for step in range(4):
            steps = 4 * round + step
            assert schedules.CubeRoot(w=2.0, q=4)(round, step) == pytest.approx(
                (2.0 + steps) ** (-1 / 3)
            )
            schedule = schedules.CubeRoot(w=2.0, unit="round", q=4)
            assert schedule(round, step) == pytest.approx((2.0 + round) ** (-1 / 3))
            # FAFED's text runs: STEM's rate is 20 / (1 + epoch)^(1/3), constant within a pass
            schedule = schedules.CubeRoot(unit="epoch", q=4, epoch=6)
            assert schedule(round, step) == pytest.approx((1 + steps // 6) ** (-1 / 3))


class Told(LocalSGD):
    """An algorithm whose server keeps what it is told of the round."""

    def server_init(self, x, up):
        return rec(x=x, lr=0.0, rate=0.0)

    def server_step(self, srv, up, rnd):
        return rec(x=srv.x + up.delta, lr=rnd.lr, rate=rnd.rate)


# ---------------------------------------------------------------------- FedACG's code: by the epoch
@pytest.mark.slow
@pytest.mark.parametrize("engine", ["serial", "vectorised:2"])
@pytest.mark.parametrize("method", [LocalSGD(), Scaffold()])
def test_a_rate_may_fall_by_the_clients_own_passes(method, engine):
    """Epoch e of round t has the rate eta decay^(t + e), whatever its number of steps."""
    sizes, epochs, decay = (2, 5, 3, 2), 3, 0.8
    falls = schedules.Exponential(decay=decay, step_decay="epoch")
    local = Local(epochs=epochs, batch=1, lr=0.1, schedule=falls)
    run = quadratics(method, sizes, local=local, weighting="uniform", engine=engine)
    x, c, c_i = np.zeros(2), np.zeros(2), np.zeros((4, 2))
    for t, loop in enumerate(trace(run, 4)):
        near(loop.state.srv.x, x, 1e-14)
        moves, total = np.zeros((4, 2)), np.zeros(4)
        for i, steps in enumerate(sizes):
            y = x.copy()
            for e in range(epochs):
                rate = 0.1 * decay ** (t + e)
                for _ in range(steps):
                    y = y - rate * (A[i] * (y - B[i]) + c - c_i[i])
                    total[i] += rate
            moves[i] = y - x
        x = x + moves.mean(0)
        if isinstance(method, Scaffold):
            c_i = c_i - c - moves / total[:, None]
            c = c_i.mean(0)


def test_of_clients_with_as_many_steps_the_server_is_told_the_one_with_most_passes():
    falls = schedules.Exponential(decay=0.8, step_decay="epoch")
    local = Local(steps=6, batch=1, lr=0.1, schedule=falls)
    run = quadratics(Told(), (2, 5, 3, 4), local=local, cohort=[[0, 1, 2, 3], [1, 3]])
    told = [loop.state.srv.lr for loop in trace(run, 2)][1:]
    assert told == [pytest.approx(0.1 * 0.8 ** (0 + 5 // 2)), pytest.approx(0.1 * 0.8 ** (1 + 1))]


def test_the_word_for_it_is_epoch_and_no_other():
    schedule = schedules.SCHEDULES.make("exponential", decay=0.5, step_decay="epoch")
    assert [schedule(2, 0), schedule.of(3)(2, 2), schedule.of(3)(2, 3), schedule.of(3)(2, 7)] == [
        0.5**n for n in (2, 2, 3, 4)
    ]
    with pytest.raises(ConfigError, match=r"step_decay must be in \(0, inf\) or epoch, got 'ep"):
        schedules.SCHEDULES.make("exponential", step_decay="epochs")
    values = resolve("fedacg_cifar10", ["local.schedule.step_decay=epoch"]).values
    assert values["local"]["schedule"]["step_decay"] == "epoch"


def test_a_cosine_rises_first_where_it_is_to():
    """Two rounds up, then half a cosine over the other eight."""
    result = [schedules.Cosine(rounds=10, warmup=2)(t, 0) for t in range(12)]
    half = [0.5 * (1 + math.cos(math.pi * k / 8)) for k in range(9)]
    assert result == pytest.approx([0.5, 1.0, *half, 0.0])
    assert [schedules.WarmUp(rounds=4)(t, 9) for t in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    assert [schedules.Cosine(rounds=8)(t, 0) for t in range(9)] == pytest.approx(half)
