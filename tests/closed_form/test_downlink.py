"""The way down through a codec: what clients start from, what it costs, what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedloom import Local
from fedloom.algorithms import FAFED, FedACG, FedAvg, Scaffold
from fedloom.compression.codecs import QSGD, Dense, RandomDropping, TopK, make_codec
from fedloom.compression.error_feedback import Residual
from fedloom.compression.link import FieldCodec, Link
from fedloom.core.rng import generator
from fedloom.core.vector import leaves
from fedloom.errors import CompositionError, ConfigError
from fedloom.objectives import CrossEntropy
from fedloom.plan import Plan
from fedloom.submodels import SUBMODELS
from tiny import A, B, quadratics, small, trace

LOCAL = Local(steps=3, batch=1, lr=0.1)
COHORTS = [[0, 1, 2, 3], [0, 2], [3], [1, 3], [0, 1, 2]]


def top(p):
    out = np.zeros_like(p)
    out[np.argmax(np.abs(p))] = p[np.argmax(np.abs(p))]
    return out


def test_clients_start_from_what_they_hold_and_the_server_keeps_the_rest():
    down = Link(down=TopK(ratio=0.5))
    experiment = quadratics(FedAvg(), local=LOCAL, cohort=COHORTS, compress=down)
    x, seen = np.zeros(2), np.zeros(2)
    for t, loop in enumerate(trace(experiment, 8)):
        np.testing.assert_allclose(loop.state.srv.x.numpy(), x, rtol=0, atol=1e-12)
        np.testing.assert_allclose(loop.state.stages.down.x.seen.numpy(), seen, rtol=0, atol=1e-12)
        seen = seen + top(x - seen)
        moves = [(B[i] - seen) * (1 - (1 - 0.1 * A[i]) ** 3) for i in COHORTS[t % 5]]
        x = x + np.mean(moves, 0)


def test_all_fields_that_a_method_declares_go_down_through_the_codec():
    experiment = quadratics(Scaffold(), local=LOCAL, compress=Link(down=TopK(ratio=0.5)))
    x, c, c_i = np.zeros(2), np.zeros(2), np.zeros((4, 2))
    x_seen, c_seen = np.zeros(2), np.zeros(2)
    for loop in trace(experiment, 8):
        np.testing.assert_allclose(loop.state.srv.x.numpy(), x, rtol=0, atol=1e-12)
        np.testing.assert_allclose(loop.state.srv.c.numpy(), c, rtol=0, atol=1e-12)
        x_seen, c_seen = x_seen + top(x - x_seen), c_seen + top(c - c_seen)
        moves, new = [], []
        for i in range(4):
            y = x_seen.copy()
            for _ in range(3):
                y = y - 0.1 * (A[i] * (y - B[i]) - c_i[i] + c_seen)
            moves.append(y - x_seen)
            new.append(c_i[i] - c_seen - moves[-1] / 0.3)
        x, c, c_i = x + np.mean(moves, 0), c + np.mean(np.array(new) - c_i, 0), np.array(new)


@pytest.mark.slow
def test_both_ways_with_feedback_reach_the_fixed_point_of_fedavg():
    r = 1 - (1 - 0.1 * A) ** 3
    link = Link(FieldCodec(TopK(ratio=0.5), Residual()), down=TopK(ratio=0.5))
    end = list(trace(quadratics(FedAvg(), local=LOCAL, compress=link), 150))[-1]
    fixed = (r * B).sum(0) / r.sum(0)
    # without any compression it would be 1e-12 after so many rounds
    assert np.abs(end.state.srv.x.numpy() - fixed).max() < 0.3
    plain = list(trace(quadratics(FedAvg(), local=LOCAL), 150))[-1]
    assert np.abs(plain.state.srv.x.numpy() - fixed).max() < 1e-12


@pytest.mark.parametrize("codec", [TopK(ratio=1.0), Dense(), RandomDropping(ratio=1.0)])
def test_sending_everything_is_the_plain_broadcast(codec):
    plain = list(trace(small(FedACG(), torch.float64), 4))[-1].state.srv
    coded = list(trace(small(FedACG(), torch.float64, compress=Link(down=codec)), 4))[-1].state.srv
    for a, b in zip(leaves(plain), leaves(coded), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-13)


def test_who_was_away_gets_what_it_missed_or_the_whole_whichever_is_smaller():
    cohorts = [[0, 1, 2], [0, 1], [0], [0, 1, 2, 3], [2], [3]]
    link = Link(down=make_codec("topk:0.1"))
    experiment = small(FedAvg(), cohort=cohorts, compress=link)
    loop = experiment.build()
    loop.engine.open(loop.plan, loop.fed, loop.net)
    loop.begin()
    d, sizes, last = loop.net.layout.d, [], {}
    seen: list[list[int]] = []
    for t in range(6):
        sizes.append(_size(loop))
        before = loop.state.ledger.down.get("x", 0)
        loop.until(t + 1)
        want = []
        for i in cohorts[t]:
            missed = sum(sizes[last[i] + 1 : t + 1]) if i in last else 4 * d
            want.append(min(missed, 4 * d))
            last[i] = t
        assert loop.state.ledger.down["x"] - before == sum(want)
        seen.append(want)
    assert sizes[1] < 0.3 * 4 * d and 4 * d in seen[3] and seen[3][0] == sizes[3]
    assert sum(sizes[3:4]) < seen[3][1] < 4 * d, "it missed some, and they are less than the whole"


def _size(loop):
    """Bytes of the message that comes next: coding it once more changes nothing."""
    link, own = loop.plan.link, loop.state.stages.down.x
    codec = link.codes_down["x"]
    x = loop.plan.algorithm.broadcast(loop.state.srv).x
    draw = generator(loop.fed.seed, "downlink", loop.state.round, "x")
    message, _ = codec.encode(x - own.seen, own.code, loop.net.layout, draw)
    return len(codec.pack(message))


def test_what_has_no_meaning_is_refused():
    wrong = [
        (Link(down={"v": TopK()}), FAFED(), None, "exact 'v'"),
        (Link(down={"c": TopK()}), FedAvg(), None, "exact 'c'"),
        (Link(down=TopK()), FedAvg(), SUBMODELS["heterofl"](), "held other coordinates"),
        (Link(down=QSGD(levels=1)), FedAvg(), None, "variance factor"),
        (Link(down=RandomDropping(ratio=0.9, scaled=True)), FedAvg(), None, "without feedback"),
    ]
    for link, algorithm, rule, said in wrong:
        with pytest.raises(CompositionError, match=said):
            Plan(algorithm, CrossEntropy(), submodel=rule, link=link)
    with pytest.raises(ConfigError, match=r"Link.down\['x'\] must be a codec"):
        Link(down={"x": FieldCodec(TopK())}).settled(FedAvg())
    settled = Link(down=TopK()).settled(Scaffold())
    assert settled.down == {"x": TopK(), "c": TopK()} and settled.settled(Scaffold()) == settled
