"""CFedAvg against its Algorithm 1 written out, and the time that a client is given."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedloom import Experiment, Local
from fedloom.algorithms import CFedAvg, FedAvg
from fedloom.compression.codecs import Sign, Threshold, TopK
from fedloom.compression.error_feedback import Residual
from fedloom.compression.link import FieldCodec
from fedloom.core.net import Variables
from fedloom.data import from_clients
from fedloom.errors import CompositionError, ConfigError
from fedloom.federation.devices import Levels, LogNormal
from fedloom.federation.schedules import InverseSqrt
from fedloom.objectives import CrossEntropy, Function
from fedloom.plan import Plan
from fedloom.wrappers import Lookahead, PerStep
from tiny import A, B, bits, models, quadratics, small, trace

COPIES = (3, 1, 4, 2)  # K_i with batch 1
COHORTS = [[0, 2], [1, 2, 3], [3], [0, 1, 2, 3]]


def top(p, k=1):
    keep = np.argsort(-np.abs(p), kind="stable")[:k]
    out = np.zeros_like(p)
    out[keep] = p[keep]
    return out


COMPRESSORS = {
    "none": (None, lambda p: p),
    "top": (TopK(ratio=0.5), top),
    "sign": (Sign(), lambda p: np.abs(p).mean() * np.where(p < 0, -1.0, 1.0)),
    "threshold": (Threshold(tau=0.1), lambda p: np.where(np.abs(p) > 0.1, p, 0.0)),
}


def algorithm_1(compress, per_step, eta, feedback=True, rounds=9):
    """Lines 1-18, with absent clients; unweighted."""
    x, e = np.zeros(2), np.zeros((4, 2))
    yield x
    for t in range(rounds):
        sent = []
        for i in COHORTS[t % len(COHORTS)]:
            y = x.copy()
            for _ in range(COPIES[i]):
                y = y - 0.2 / np.sqrt(1 + t / 2) * A[i] * (y - B[i])  # lines 6-8
            g = (y - x) / COPIES[i] if per_step else y - x  # lines 10, 11
            p = g + e[i]  # line 12
            sent.append(compress(p))  # line 13
            e[i] = p - sent[-1] if feedback else 0  # line 14
        x = x + eta * np.mean(sent, 0)  # lines 16, 17
        yield x


@pytest.mark.parametrize(
    ("name", "per_step", "feedback"),
    [
        ("none", True, True),
        ("top", False, True),
        ("top", True, False),
        ("sign", True, True),
        ("sign", False, False),
        ("threshold", False, True),
    ],
)
def test_cfedavg_is_algorithm_1(name, per_step, feedback):
    codec, compress = COMPRESSORS[name]
    link = None if codec is None else FieldCodec(codec, *([Residual()] if feedback else []))
    experiment = quadratics(
        CFedAvg(server_lr=0.9, per_step=per_step),
        COPIES,
        local=Local(epochs=1, batch=1, lr=0.2, schedule=InverseSqrt(scale=2.0)),
        cohort=COHORTS,
        weighting="uniform",
        compress=link,
    )
    want = np.stack(list(algorithm_1(compress, per_step, 0.9, feedback)))
    np.testing.assert_allclose(models(experiment, 9), want, rtol=0, atol=1e-12)


def test_cfedavg_with_unequal_steps_has_the_numbers_of_the_specification():
    # f1 = (x - 2)^2 / 2 takes 2 steps, f2 = 3 (x + 1)^2 / 2 takes 4, from x = 1 at rate 0.1
    for eta, x in ((1.0, 0.857525), (2.0, 0.71505)):
        data = [
            (np.full((k, 1), a), np.full((k, 1), b)) for k, a, b in ((2, 1.0, 2.0), (4, 3.0, -1.0))
        ]
        experiment = Experiment(
            algorithm=CFedAvg(server_lr=eta, per_step=True),
            model=Variables(torch.ones(1, dtype=torch.float64)),
            data=from_clients(data, dtype=torch.float64),
            objective=Function(f=lambda x, a, b: (a / 2 * (x - b) ** 2).mean()),
            local=Local(epochs=1, batch=1, lr=0.1),
            weighting="uniform",
            rounds=1,
            device="cpu",
        )
        assert models(experiment, 1)[-1].item() == pytest.approx(x, abs=1e-12)


G = torch.tensor(
    [
        [0.5, -1.2, 0.3, 0.05, -0.7, 0.9],
        [-0.4, 0.1, 0.35, -0.05, 0.6, 0.2],
        [0.25, 0.15, -0.55, 0.45, -0.1, -0.3],
    ],
    dtype=torch.float64,
)


class Given(CFedAvg):
    """Clients move by G[round], the second one in reverse order."""

    def direction(self, x, loc, msg, mem, grad, job):
        g = G[int(job.round)]
        return -torch.where(grad(x) > 0, g, g.flip(0)), loc


def test_cfedavg_of_two_clients_has_the_numbers_of_the_specification():
    experiment = Experiment(
        algorithm=Given(),
        model=Variables(torch.zeros(6, dtype=torch.float64)),
        data=from_clients([([[1.0]], [[0.0]]), ([[-1.0]], [[0.0]])], dtype=torch.float64),
        objective=Function(f=lambda x, a, b: (a * x).sum()),
        local=Local(steps=1, lr=1.0),
        compress=FieldCodec(TopK(ratio=1 / 3), Residual()),
        weighting="uniform",
        rounds=3,
        device="cpu",
    )
    loops = trace(experiment, 3)
    x = [loop.state.srv.x.clone() for loop in loops]
    want = [
        [0.45, -0.6, 0, 0, -0.6, 0.45],
        [0.55, -0.6, 0.325, 0.325, -0.6, 0.55],
        [0.55, -0.6, 0.275, 0.275, -0.6, 0.55],
    ]
    for found, expected in zip(x[1:], want, strict=True):
        expected = torch.tensor(expected, dtype=torch.float64)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-15)


def test_cfedavg_without_compression_and_unequal_steps_is_fedavg_bit_for_bit():
    one, two = (list(trace(small(a), 3))[-1].state.srv.x for a in (CFedAvg(), FedAvg()))
    assert bits(one) == bits(two)
    whole = small(CFedAvg(), compress=FieldCodec(TopK(ratio=1.0), Residual()))
    assert bits(list(trace(whole, 3))[-1].state.srv.x) == bits(two)


# -------------------------------------------------------------------------------------- time-outs
def test_a_time_out_leaves_each_client_what_its_device_has_done():
    local = {"batch": 1, "lr": 0.1}
    levels = Levels(steps_per_second=(1.0, 2.0, 0.1, 3.5))
    fed = quadratics(CFedAvg(), local=Local(seconds=4.0, **local), devices=levels).build().fed
    assert [fed.steps(i) for i in range(4)] == [4, 8, 1, 14]  # the third ends its first step
    fed = quadratics(CFedAvg(), local=Local(seconds=4.0, steps=5, **local), devices=levels).build()
    assert [fed.fed.steps(i) for i in range(4)] == [4, 5, 1, 5]
    by_epochs = Local(seconds=4.0, epochs=3, **local)
    fed = quadratics(CFedAvg(), (1, 2, 1, 6), local=by_epochs, devices=levels).build().fed
    assert [fed.steps(i) for i in range(4)] == [3, 6, 1, 14]
    assert [len(fed.batches(i, 0)) for i in range(4)] == [3, 6, 1, 14]


@pytest.mark.parametrize("engine", ["serial", "vectorised:2"])
def test_cfedavg_divides_by_the_steps_that_were_done(engine):
    levels, x = Levels(steps_per_second=(1.0, 2.0, 0.1, 3.5)), np.zeros(2)
    local = Local(seconds=2.0, batch=1, lr=0.1)
    experiment = quadratics(
        CFedAvg(per_step=True), local=local, devices=levels, weighting="uniform", engine=engine
    )
    found = models(experiment, 3)
    for t in range(3):
        np.testing.assert_allclose(found[t], x, rtol=0, atol=1e-12)
        g = [(B[i] - x) * (1 - (1 - 0.1 * A[i]) ** k) / k for i, k in enumerate((2, 4, 1, 7))]
        x = x + np.mean(g, 0)


def test_simulated_seconds_are_those_of_the_slowest_client():
    levels = Levels(steps_per_second=(1.0, 2.0, 0.1, 3.5), up=8.0, down=16.0)
    local = Local(steps=3, batch=1, lr=0.1)
    cohorts = [[0, 1], [1, 3], [2]]
    experiment = quadratics(CFedAvg(), local=local, devices=levels, cohort=cohorts)
    loop = list(trace(experiment, 3))[-1]
    travel = 2 * 8 / 16 + (2 * 8 + 8) / 8  # x of two doubles down; delta and the weight up
    seconds = [3 / 1.0, 3 / 2.0, 3 / 0.1]
    found = [row["simulated_seconds"] for row in loop.log.history]
    np.testing.assert_allclose(found, np.array(seconds) + travel, rtol=1e-12)
    assert loop.state.ledger.simulated == pytest.approx(sum(seconds) + 3 * travel)
    plain = list(trace(quadratics(CFedAvg(), local=local, cohort=cohorts), 3))[-1]
    assert "simulated_seconds" not in plain.log.history[0] and plain.state.ledger.simulated == 0.0


def test_speeds_are_drawn_once_from_the_seed():
    profile = LogNormal(median=5.0, sigma=0.4)
    one = profile.speeds(4000, 3)
    assert one == profile.speeds(4000, 3) != profile.speeds(4000, 4)
    logs = np.log(np.array(one) / 5.0)
    assert abs(logs.mean()) < 4 * 0.4 / 4000**0.5 and logs.std() == pytest.approx(0.4, rel=0.05)
    assert LogNormal(sigma=0.0).speeds(3, 1) == [10.0] * 3


def test_bad_devices_and_time_outs_are_refused():
    wrong = [
        lambda: Levels(steps_per_second=()),
        lambda: Levels(steps_per_second=(1.0, 0.0)),
        lambda: Levels(steps_per_second="fast"),
        lambda: Levels(up=0.0),
        lambda: LogNormal(median=-1.0),
        lambda: Local(seconds=0.0),
        lambda: quadratics(CFedAvg(), local=Local(seconds=1.0)).build(),
    ]
    for make in wrong:
        with pytest.raises(ConfigError):
            make()


@pytest.mark.parametrize(
    "twice",
    [
        lambda: PerStep(inner=CFedAvg(per_step=True)),
        lambda: PerStep(inner=PerStep(inner=FedAvg())),
        lambda: PerStep(inner=Lookahead(inner=CFedAvg(per_step=True), lam=0.5)),
    ],
)
def test_a_move_is_not_divided_by_its_steps_twice(twice):
    with pytest.raises(CompositionError, match=r"PerStep and .*per step already"):
        Plan(twice(), CrossEntropy())
    Plan(PerStep(inner=CFedAvg(per_step=False)), CrossEntropy())
