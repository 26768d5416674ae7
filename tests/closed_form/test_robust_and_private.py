"""Every aggregation and every attack against the formula of its paper, in a round of quadratics."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import pytest
import torch

import fedloom.aggregation as rules
from fedloom.aggregation.base import means
from fedloom.aggregation.rows import BLOCK, add_leaves
from fedloom.algorithm import FedAvg, Job, Round
from fedloom.algorithms import FedLin, Scaffold
from fedloom.algorithms.registry import ALGORITHMS, make_algorithm
from fedloom.compression.codecs import QSGD, Natural, TopK
from fedloom.compression.error_feedback import Residual
from fedloom.compression.link import FieldCodec, Link
from fedloom.core.net import Variables
from fedloom.core.rng import generator
from fedloom.core.vector import Rec, leaves, rec
from fedloom.engines.client_results import Request, TrainTask
from fedloom.engines.summation import push, root
from fedloom.errors import ConfigError
from fedloom.federation.attacks import Alie, Gaussian, InnerProduct, LabelFlip, Scaled, SignFlip
from fedloom.federation.local import Local
from tiny import clusters, models, near, quadratics, small, trace

COPIES = (1, 2, 3, 4)  # weights
Rows = np.ndarray[Any, Any]


@functools.cache
def moves() -> Rows:
    return np.stack([models(quadratics(FedAvg(), COPIES, cohort=[[i]]), 1)[1] for i in range(4)])


STEP = {"local": Local(steps=1, lr=0.1, batch=None)}
at = lambda x: Variables(torch.tensor(x, dtype=torch.float64))
after = lambda rounds=1, **changes: models(quadratics(FedAvg(), COPIES, **changes), rounds)[rounds]


def gradients() -> Rows:
    """Of the four clients at x = 0, (4, 2)."""
    runs = [quadratics(FedAvg(), COPIES, cohort=[[i]], **STEP) for i in range(4)]
    return np.stack([models(run, 1)[1] / -0.1 for run in runs])


def weighted(rows: Rows, weights: Any) -> Rows:
    result: Rows = (np.asarray(weights)[:, None] * rows).sum(0) / np.sum(weights)
    return result


def shortened(rows: Rows, norm: float) -> Rows:
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows * np.minimum(1.0, norm / lengths)


def nearest(rows: Rows, hostile: int) -> list[float]:
    squares = ((rows[:, None] - rows[None]) ** 2).sum(2)
    return [sorted(np.delete(own, i))[: len(rows) - hostile - 2] for i, own in enumerate(squares)]


def weiszfeld(rows: Rows, weights: Any, steps: int) -> Rows:
    v = weighted(rows, weights)
    for _ in range(steps):
        v = weighted(rows, weights / np.maximum(1e-6, np.linalg.norm(rows - v, axis=1)))
    return v


FORMULAS = {
    "median": (rules.Median(), lambda r: np.median(r, axis=0)),
    "trimmed mean": (rules.TrimmedMean(trim=0.25), lambda r: np.sort(r, axis=0)[1:3].mean(0)),
    "trimmed mean, nothing": (rules.TrimmedMean(trim=0.24), lambda r: r.mean(0)),
    "krum": (rules.Krum(hostile=0.0), lambda r: r[np.argmin([sum(n) for n in nearest(r, 0)])]),
    "multi-krum": (
        rules.Krum(hostile=0.0, several=2),
        lambda r: r[np.argsort([sum(n) for n in nearest(r, 0)])[:2]].mean(0),
    ),
    "geometric median": (rules.GeometricMedian(steps=3), lambda r: weiszfeld(r, COPIES, 3)),
    "centred clipping": (rules.CentredClipping(radius=0.5), lambda r: shortened(r, 0.5).mean(0)),
    "norm bound": (rules.NormBound(norm=0.5), lambda r: weighted(shortened(r, 0.5), COPIES)),
    "norm bound, far": (rules.NormBound(norm=1e3), lambda r: weighted(r, COPIES)),
    "mean": (None, lambda r: weighted(r, COPIES)),
    "integer ring": (rules.IntegerRing(bits=30), lambda r: weighted(r, COPIES)),
    "of a user": (rules.Gather(f=lambda rows, weights: rows.amax(0)), lambda r: r.max(0)),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_a_rule_is_its_formula(name: str) -> None:
    rule, formula = FORMULAS[name]
    atol = 1e-8 if name == "integer ring" else 1e-6 if "clipping" in name else 1e-14
    near(after(aggregation=rule), formula(moves()), atol)


CARRIED = ("median", "trimmed mean", "krum", "multi-krum", "geometric median", "of a user")


@pytest.mark.parametrize("name", CARRIED)
def test_answers_before_the_round_go_through_the_rule_of_updates(name: str) -> None:
    """FedLin's only step is along g - g_i + (what becomes of the g_i), with g = g_i."""
    rule, formula = FORMULAS[name]
    (result,) = models(quadratics(FedLin(), COPIES, aggregation=rule, **STEP), 1)[1:]
    near(result, -0.1 * formula(gradients()), 1e-14)


def test_a_hostile_client_answers_with_what_it_would_send() -> None:
    flip = {"attack": SignFlip(share=0.25, strength=9.0), "aggregation": rules.Median()}
    run, rows = quadratics(FedLin(), COPIES, **flip, **STEP), gradients()
    (bad,) = run.build().fed.hostile
    rows[bad] = -9.0 * rows[bad]
    (result,) = models(run, 1)[1:]  # three of four move alike, so that the median is that move
    near(result, -0.1 * np.median(rows, axis=0), 1e-14)


class Counting(FedAvg):
    """Its clients answer with a number, a vector of another length and their gradient."""

    def ask(self, msg: Rec, mem: Rec, job: Job) -> tuple[Rec, Rec]:
        g = job.full(msg.x)
        return rec(number=float(g[0]), pair=g.repeat(2), g=g), mem

    def server_step(self, srv: Rec, up: Rec, rnd: Round) -> Rec:
        return rec(x=up.g + up.pair[:2] + up.number)


@pytest.mark.parametrize("name", ["mean", "median"])
def test_an_answer_may_have_numbers_and_vectors_of_other_lengths(name: str) -> None:
    rule, formula = FORMULAS["median"] if name == "median" else (None, FORMULAS["mean"][1])
    g = formula(gradients())
    (result,) = models(quadratics(Counting(), COPIES, aggregation=rule, **STEP), 1)[1:]
    near(result, 2 * g + g[0], 1e-14)


def test_krum_leaves_out_as_many_neighbours_as_may_be_hostile() -> None:
    rows = np.random.default_rng(3).normal(size=(9, 4))
    for hostile, f in ((0.0, 0), (0.1, 1), (0.2, 2), (0.33, 3)):
        best = int(np.argmin([sum(own) for own in nearest(rows, f)]))
        assert rules.Krum(hostile=hostile).closest(torch.tensor(rows)).tolist() == [best]
    for percent in range(50):  # f = ceil(hostile C): 28 % of 25 are 7, which floats make 7 + 1e-15
        rule = rules.Krum(hostile=percent / 100)
        for count in range(3, 201):
            assert rule.of_hostile(count) == -(-percent * count // 100)


def test_centred_clipping_begins_at_the_last_aggregate() -> None:
    rule = rules.CentredClipping(radius=0.5, steps=2)
    first, second = (after(r, aggregation=rule) for r in (1, 2))
    v = np.zeros(2)
    for _ in range(2):
        v = v + shortened(moves() - v, 0.5).mean(0)
    near(first, v, 1e-6)
    # round 2: from the moves at x = first, and v
    runs = [quadratics(FedAvg(), COPIES, cohort=[[i]], model=at(first)) for i in range(4)]
    rows = [models(run, 1)[1] - first for run in runs]
    for _ in range(2):
        v = v + shortened(np.stack(rows) - v, 0.5).mean(0)
    near(second - first, v, 1e-6)


def test_integers_add_up_in_any_order_and_lose_what_is_said() -> None:
    rule, draw = rules.IntegerRing(bits=10), generator(0, "tests", 1)
    deltas = 50 * torch.randn(9, 4, generator=draw, dtype=torch.float64)
    state = rule.init(deltas[0], 9.0, 1.0)
    empty = deltas[0][:0]

    def leaf(i: int) -> Any:
        part = {"n": 1.0, "mass": i + 1.0, "weight": i + 1.0, "delta": deltas[i]}
        return rule.leaf(rec(**part, unweighted=rec(), buffers=empty), rec(), 0, 0, i)

    result = []
    for order in (range(9), reversed(range(9))):
        nodes: list[Any] = []
        for place, i in enumerate(order):
            push(nodes, 0, place, leaf(i))
        result.append(rule.root(root(nodes), state, 0, 0).up.delta)
    assert torch.equal(*result)
    weights = torch.arange(1.0, 10.0, dtype=torch.float64)
    exact = (weights[:, None] * deltas).sum(0) / weights.sum()
    assert 0 < float((result[0] - exact).abs().max()) <= 9 * 2.0**-11 / float(weights.sum())


def test_a_value_that_the_ring_has_no_room_for_is_an_error_of_its_client() -> None:
    with pytest.raises(Exception, match=r"client 0, round 1: .* aggregation.bits = 40 leaves room"):
        after(aggregation=rules.IntegerRing(bits=40), local=Local(steps=40, lr=1.0, batch=1))


# ---------------------------------------------------------------------------------------- attacks
def noise(i: int) -> Rows:
    draw = torch.randn(2, generator=generator(0, "attack", 0, i), dtype=torch.float64)
    return 2.0 * draw.numpy()


def alie(honest: Rows, z: float) -> Rows:
    result: Rows = honest.mean(0) - z * honest.std(0)
    return result


ATTACKS = {
    "sign flip": (SignFlip(share=0.3, strength=3.0), lambda r, i, h: -3.0 * r[i]),
    "scaled": (Scaled(share=0.5, strength=7.0), lambda r, i, h: 7.0 * r[i]),
    "gaussian": (Gaussian(share=0.25, strength=2.0), lambda r, i, h: noise(i)),
    "alie": (Alie(share=0.25, strength=1.5), lambda r, i, h: alie(h, 1.5)),
    "alie, z of the cohort": (Alie(share=0.25), lambda r, i, h: alie(h, Alie().z(4, 1))),
    "ipm": (InnerProduct(share=0.5, strength=0.4), lambda r, i, h: -0.4 * h.mean(0)),
}


@pytest.mark.parametrize("rule", ["mean", "norm bound", "median"])
@pytest.mark.parametrize("name", ATTACKS)
def test_a_hostile_client_does_what_the_formula_says(name: str, rule: str) -> None:
    attack, formula = ATTACKS[name]
    bad = attack.hostile(4, 0)
    good = set(range(4)) - bad
    assert len(bad) == math.floor(attack.share * 4 + 0.5)
    rows = moves().copy()
    for i in bad:
        rows[i] = formula(moves(), i, moves()[sorted(good)])
    aggregation, mean = FORMULAS[rule]
    *_, loop = trace(quadratics(FedAvg(), COPIES, attack=attack, aggregation=aggregation), 1)
    near(loop.state.srv.x, mean(rows), 1e-13)
    assert loop.log.history[0]["hostile"] == sorted(bad)


def test_forged_updates_are_counted_once_each_in_plain_means() -> None:
    values = moves()
    rows = [
        rec(
            client=i,
            weight=float(i + 1),
            delta=torch.tensor(v),
            unweighted=rec(c=torch.tensor(v)),
            buffers=torch.zeros(0),
        )
        for i, v in enumerate(values)
    ]
    up, _ = means(add_leaves(rules.NormBound(norm=1e9), rows, rec(), 0, 0))
    near(up.c, values.mean(0), 1e-13)
    near(up.delta, np.average(values, axis=0, weights=[1, 2, 3, 4]), 1e-13)


def test_z_of_a_little_is_enough_is_the_paper_s() -> None:
    assert Alie().z(50, 12) == pytest.approx(0.3360, abs=1e-3)  # s = 14 of 38: Phi^-1(24 / 38)
    assert Alie().z(10, 0) == 0.0  # with no one hostile six must lie further out


def test_flipped_labels_are_those_of_hostile_clients_and_of_nobody_else() -> None:
    attack = LabelFlip(share=0.4)
    run = small(FedAvg(), attack=attack)
    data, bad = run.build().fed.data, attack.hostile(run.data.population, run.seed)
    assert len(bad) == 3
    for i in range(run.data.population):
        before, now = run.data.client(i)[1], data.client(i)[1]
        assert torch.equal(now, 2 - before if i in bad else before)
    assert torch.equal(data.test_targets, run.data.test_targets)


# ---------------------------------------------------------------------------------------- privacy
LINKS = {
    "plain": None,
    "qsgd": Link(FieldCodec(QSGD(levels=3, bucket=16), Residual())),
    "natural": Link(FieldCodec(Natural(), Residual())),
    "topk": Link(FieldCodec(TopK(ratio=0.2), Residual())),
}


@pytest.mark.usefixtures("accounts_at_hand")
@pytest.mark.parametrize("link", LINKS)
def test_one_client_moves_the_sum_by_at_most_the_clip(link: str) -> None:
    """Of all fields together, decoded, with residuals of earlier rounds; a client more or less."""
    result = bounded(Scaffold(), rounds=2, compress=LINKS[link])
    assert result > 5  # most are as long as they may be


# they would add more than one such vector, and are refused: tests/golden/compatibility.txt
NOT_PRIVATE = {"fednova", "qfedavg", "afl", "ifca", "fafed", "stem", "mime", "fedlin"}


@pytest.mark.usefixtures("accounts_at_hand")
@pytest.mark.parametrize("name", sorted({*ALGORITHMS} - NOT_PRIVATE))
def test_no_method_lets_one_client_move_the_sum_further(name: str) -> None:
    assert bounded(make_algorithm(name)) > 0


def bounded(algorithm: Any, rounds: int = 1, **parts: Any) -> int:
    """-> how many updates were as long as they may be. rounds > 1: each client is left out."""
    clip, count = 0.05, 0
    rule = rules.DifferentialPrivacy(clip=clip)
    parts |= {"sampling": "poisson", "weighting": "uniform", "cohort": 1.0, "aggregation": rule}
    run = small(algorithm, data=clusters(sizes=(2, 5, 8, 11)), **parts)
    loop = run.build()
    loop.engine.open(loop.plan, loop.fed, loop.net)
    loop.begin()
    everybody, memories = loop.cohorts.of(0), dict[int, Any]()
    for t in range(rounds):
        msg = loop.message()[0]
        sent = msg._replace(x=msg.x + t), loop.state.buffers, memories
        whole = loop.engine.map(Request.TRAIN, TrainTask(*sent, everybody, t))
        total = added(root(whole.nodes))
        for i in everybody:
            alone = root(loop.engine.map(Request.TRAIN, TrainTask(*sent, [i], t)).nodes)
            assert float(added(alone).norm()) <= clip and alone.weight == alone.mass == 1.0
            count += float(added(alone).norm()) > 0.99 * clip
            if rounds > 1:
                rest = [j for j in everybody if j != i]
                moved = total - added(
                    root(loop.engine.map(Request.TRAIN, TrainTask(*sent, rest, t)).nodes)
                )
                assert float(moved.norm()) <= clip * (1 + 1e-5)  # sums of float32 round
        memories = whole.memories
    loop.engine.close()
    return count


def added(part: Any) -> torch.Tensor:
    result = [part.delta, *leaves(part.unweighted)]
    return torch.cat([torch.as_tensor(v, dtype=torch.float64).reshape(-1) for v in result])


def dp_run(**options: Any) -> Any:
    """Quadratics without noise to speak of, so that the rest is a formula."""
    rule = rules.DifferentialPrivacy(**{"noise": 1e-9, "clip": 0.5, **options})
    return quadratics(
        FedAvg(),
        (1, 1, 1, 1),
        aggregation=rule,
        sampling="poisson",
        cohort=0.5,
        weighting="uniform",
        rounds=4,
    )


@pytest.mark.usefixtures("accounts_at_hand")
def test_the_denominator_is_fixed_and_rounds_of_nobody_take_part() -> None:
    run = dp_run()
    loops = trace(run, 4)
    before = next(loops).state.srv.x.numpy().copy()
    sizes = []
    for t, loop in enumerate(loops):
        cohort = loop.cohorts.of(t)
        sizes.append(len(cohort))
        rows = []
        for i in cohort:
            own = models(quadratics(FedAvg(), cohort=[[i]], model=at(before)), 1)
            rows.append(own[1] - own[0])
        want = before + sum(shortened(np.stack(rows), 0.5)) / 2.0 if rows else before
        near(loop.state.srv.x, want, 1e-6)
        row = loop.log.history[-1]
        assert row["train_loss"] is None and row["epsilon"] == 0.5 * (t + 1)
        assert row["cohort"] == len(cohort)
        before = loop.state.srv.x.numpy().copy()
    assert len(set(sizes)) > 1


@pytest.mark.usefixtures("accounts_at_hand")
def test_the_noise_is_on_the_sum_and_of_the_deviation_that_is_said() -> None:
    rule = rules.DifferentialPrivacy(clip=2.0, noise=1.5)
    state = rule.init(torch.zeros(1), 10.0, 0.1)
    zero = torch.zeros(20_000, dtype=torch.float64)
    total = rule.nobody(zero, rec(dc=zero))
    result = rule.root(total, state, seed=3, round=5).up
    for v in (result.delta, result.dc):
        assert float(v.std()) == pytest.approx(1.5 * 2.0 / 10, rel=0.02)
        assert abs(float(v.mean())) < 4 * 0.3 / math.sqrt(20_000)
    assert not torch.equal(result.delta, result.dc)
    again = rule.root(total, state, seed=3, round=6).up
    assert not torch.equal(result.delta, again.delta)
    assert rule.answered(total, state) == 10.0


@pytest.mark.usefixtures("accounts_at_hand")
def test_clip_follows_the_quantile_of_the_lengths() -> None:
    options = {"quantile": 0.5, "clip": 0.1, "count_noise": 1e-6, "noise": 1e-9, "clip_rate": 0.2}
    clip = 0.1
    loops = trace(dp_run(**options), 4)
    next(loops)
    for t, loop in enumerate(loops):
        share = 0.5 - 0.5 * len(loop.cohorts.of(t)) / 2.0  # all are longer than 0.1
        clip *= math.exp(-0.2 * (share - 0.5))
        assert loop.log.history[-1]["clip"] == pytest.approx(clip, rel=1e-4)


def test_a_budget_ends_the_run(accounts_at_hand: None, tmp_path: Any) -> None:
    run = dp_run(max_epsilon=1.7)
    result = run.run(tmp_path / "run")
    assert [row["epsilon"] for row in result.history] == [0.5, 1.0, 1.5]
    with pytest.raises(ConfigError, match=r"max_epsilon = 0.3 is less than the 0.5 of one round"):
        dp_run(max_epsilon=0.3).build()


def test_epsilon_is_that_of_the_library() -> None:
    library = pytest.importorskip("dp_accounting")
    from dp_accounting.rdp import RdpAccountant

    from fedloom.aggregation.privacy import epsilon, rounds_within, tight_epsilon

    for noise, share, delta, rounds in (
        (1.0, 0.01, 1e-5, 1000),
        (0.6, 0.1, 1e-6, 50),
        (1.1, 0.005, 1e-5, 3000),
        (4.0, 1.0, 1e-3, 7),
        (2.0, 0.25, 1e-8, 200),
    ):
        account = RdpAccountant()
        event = library.PoissonSampledDpEvent(share, library.GaussianDpEvent(noise))
        account.compose(event, rounds)
        spent = account.get_epsilon(delta)
        assert epsilon(noise, share, delta, rounds) == pytest.approx(spent)
        fits = rounds_within(spent / 2, noise, share, delta, rounds)
        costs = [epsilon(noise, share, delta, n) for n in (fits, fits + 1)]
        assert costs[0] <= spent / 2 < costs[1]
    assert tight_epsilon(1.0, 0.01, 1e-5, 1000) == pytest.approx(1.8282, abs=1e-3)
    assert tight_epsilon(5.0, 1.0, 1e-5, 10) == pytest.approx(2.5944, abs=1e-3)


@pytest.mark.parametrize("count", [5, 12])
def test_more_coordinates_than_are_sorted_at_once(count):
    """Rules of blocks and of pairs have the bits of one sort and of all differences."""
    rows = torch.randn(count, 2 * BLOCK + 3, generator=torch.Generator().manual_seed(count))
    ones, ordered, out = torch.ones(count, dtype=torch.float64), rows.sort(0).values, count // 4
    low, high = ordered[(count - 1) // 2], ordered[count // 2]
    assert torch.equal(rules.Median().of(rows, ones, None), low + (high - low) / 2)
    trimmed = rules.TrimmedMean(trim=0.25).of(rows, ones, None)
    assert torch.equal(trimmed, ordered[out : count - out].mean(0))
    squares = torch.stack([(rows - one).square().sum(1) for one in rows])
    squares.fill_diagonal_(torch.inf)
    krum = rules.Krum(hostile=0.1, several=2)
    nearest = count - krum.of_hostile(count) - 2
    least = squares.sort(1).values[:, :nearest].sum(1).argsort(stable=True)[:2].sort().values
    assert torch.equal(krum.closest(rows), least)
