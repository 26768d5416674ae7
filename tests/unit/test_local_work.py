"""Local work: schedules, batches, passes that go on, weights, and settings that are refused."""

import itertools
import math
import pickle
from collections import Counter
from typing import Annotated, Literal

import numpy as np
import pytest
import torch
from annotated_types import Le
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloom import Evaluation, Experiment, FedAvg, Local
from fedloom.aggregation import Krum
from fedloom.algorithms import IFCA
from fedloom.compression.codecs import TopK
from fedloom.config import resolve
from fedloom.core.hyper import Decay, Hyper, NonNegative, Positive
from fedloom.core.net import Variables
from fedloom.data import from_clients
from fedloom.engines.stages import steps_before
from fedloom.errors import ConfigError, DataError, FedloomError
from fedloom.federation.federation import Federation
from fedloom.federation.passes import Continue, FLamby, Pass, Passes
from fedloom.federation.schedules import (
    SCHEDULES,
    Constant,
    Cosine,
    Exponential,
    InverseSqrt,
    Milestones,
)
from fedloom.objectives import Cox, Function
from fedloom.submodels import FIARSE
from support.refusals import refused


def federation(sizes, seed=0, weighting="examples", **local):
    pairs = [(torch.zeros(n, 1), torch.zeros(n, dtype=torch.int64)) for n in sizes]
    return Federation(from_clients(pairs), Local(**local), seed, weighting)


def test_schedules_are_their_formulas():
    assert all(Constant()(t, k) == 1 for t in range(3) for k in range(3))
    assert Exponential(decay=0.9, step_decay=0.8)(3, 2) == pytest.approx(0.9**3 * 0.8**2)
    falls = [Milestones(at=(2, 4), factor=0.1)(t, 0) for t in (0, 1, 2, 3, 4, 9)]
    assert falls == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.01])
    cosine = Cosine(rounds=10, floor=0.2)
    assert cosine(0, 5) == 1 and cosine(5, 0) == pytest.approx(0.6)
    assert cosine(10, 0) == cosine(99, 0) == pytest.approx(0.2)
    assert cosine(3, 0) == pytest.approx(0.2 + 0.4 * (1 + math.cos(0.3 * math.pi)))
    assert InverseSqrt(scale=4.0)(12, 0) == pytest.approx(0.5)


def test_schedules_by_name():
    assert SCHEDULES.make("cosine", rounds=7) == Cosine(rounds=7)
    assert all(isinstance(SCHEDULES.make(name)(1, 1), float) for name in SCHEDULES)
    for wrong in ({"decay": 0.0}, {"decay": math.nan}, {"step_decay": -1.0}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            Exponential(**wrong)


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.integers(1, 20), min_size=1, max_size=4),
    st.integers(1, 8),
    st.sampled_from([0.1, 0.5, 1, 1.5, 2.25, 3]),
)
def test_epochs_are_passes_over_the_clients_own_data(sizes, batch, epochs):
    fed = federation(sizes, epochs=epochs, batch=batch)
    for i, n in enumerate(sizes):
        per_epoch = math.ceil(n / batch)
        steps = max(1, math.floor(epochs * per_epoch + 0.5))
        batches = fed.batches(i, 3)
        assert fed.steps(i) == len(batches) == steps
        own = set(fed.data.clients.of(i).tolist())
        for first in range(0, steps, per_epoch):
            seen = torch.cat(batches[first : first + per_epoch]).tolist()
            assert len(seen) == len(set(seen)) and set(seen) <= own
            if first + per_epoch <= steps:
                assert set(seen) == own
        assert all(
            len(b) == min(batch, n) for k, b in enumerate(batches) if k % per_epoch != per_epoch - 1
        )
        assert all(1 <= len(b) <= batch for b in batches)


def test_cost_is_the_examples_that_are_seen():
    fed = federation([10, 2], epochs=1.5, batch=4)
    assert [fed.cost(i) for i in (0, 1)] == [5 * 4, 2 * 2]


@given(st.integers(1, 20), st.integers(1, 8), st.integers(1, 30))
def test_steps_are_as_many_as_asked_for(n, batch, steps):
    fed = federation([n], steps=steps, batch=batch)
    assert fed.steps(0) == len(fed.batches(0, 0)) == steps
    seen = Counter(torch.cat(fed.batches(0, 0)).tolist())
    assert max(seen.values()) - min(seen.values() if len(seen) == n else [0]) <= 1


def test_the_last_partial_batch_may_be_dropped():
    fed = federation([10, 9, 5], epochs=2, batch=4, drop_last=False)
    assert [len(b) for b in fed.batches(0, 0)] == [4, 4, 2, 4, 4, 2]
    fed = federation([10, 9, 5], epochs=2, batch=4, drop_last=True)
    assert [[len(b) for b in fed.batches(i, 0)] for i in range(3)] == [[4] * 4, [4] * 4, [4] * 2]
    with pytest.raises(DataError, match=r"client 1 has 3 samples.*batch = 4.*drop_last"):
        federation([10, 3], batch=4, drop_last=True)


def test_a_batch_larger_than_the_client_is_its_whole_data():
    fed = federation([3], epochs=2, batch=50)
    assert [sorted(b.tolist()) for b in fed.batches(0, 0)] == [[0, 1, 2]] * 2
    assert [len(b) for b in federation([7], batch=None, epochs=3).batches(0, 0)] == [7, 7, 7]


def test_every_pass_round_client_and_seed_has_its_own_order():
    fed = federation([30, 30], epochs=2, batch=30)
    orders = [
        tuple(int(v) % 30 for v in b)
        for f in (fed, federation([30, 30], seed=1, epochs=2, batch=30))
        for i in (0, 1)
        for t in (0, 1)
        for b in f.batches(i, t)
    ]
    assert len(set(orders)) == len(orders) == 16
    again = [b.tolist() for b in fed.batches(1, 1)]
    assert again == [b.tolist() for b in fed.batches(1, 1)]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Local(epochs=0), "local.epochs must be "),
        (lambda: Local(steps=1.5), "local.steps must be a whole number"),
        (lambda: Local(batch=0), "local.batch must be a whole number from 1"),
        (lambda: Local(lr=0), "local.lr must be in (0, inf)"),
        (lambda: Local(momentum=1), "local.momentum must be in [0, 1)"),
        (lambda: Local(weight_decay=-1e-9), "local.weight_decay must be in [0, inf)"),
        (lambda: Local(clip=0), "local.clip must be in (0, inf)"),
        (lambda: Local(drop_last="yes"), "local.drop_last must be true or false"),
        (lambda: Local(epochs=2, steps=3), "local.epochs = 2.0 and local.steps = 3"),
        (lambda: Evaluation(ema=-0.1), "evaluate.ema must be in [0, 1)"),
        (lambda: Evaluation(validation=1.0), "evaluate.validation must be in [0, 1)"),
        (lambda: Krum(several=1.5), "Krum.several must be a whole number from 1, got 1.5"),
        (lambda: FIARSE(shards=3), "FIARSE.shards must be a list of texts, got 3"),
        (lambda: TopK(scope=np.ones(2)), "TopK.scope must be one of global, layer, got (1.0, 1.0)"),
        (lambda: Milestones(at=5), "Milestones.at must be a list of whole numbers, got 5"),
        (lambda: FedAvg(server_lr="fast"), "FedAvg.server_lr must be in (0, inf), got 'fast'"),
        (lambda: IFCA(clusters=10**30), "IFCA.clusters must be a whole number from 1, below 2^64"),
    ],
)
def test_a_value_that_cannot_be_is_one_sentence_from_a_worker_too(make, says):
    with pytest.raises(ConfigError) as caught:
        make()
    assert str(caught.value).startswith(says) and "\n" not in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@pytest.mark.parametrize(
    ("rule", "text", "good", "bad"),
    [
        (Hyper(NonNegative), "in [0, inf)", [0, 1e9], [-1e-9, math.nan, math.inf, "1", None, True]),
        (Hyper(Positive), "in (0, inf)", [1e-300], [0, 0.0]),
        (Hyper(Decay), "in [0, 1)", [0, 0.999], [1, 1.0, 2]),
        (Hyper(Annotated[float, Le(3)]), "in (-inf, 3]", [3, -1e9], [3.1, -math.inf]),
        (Hyper(Literal[1, 2]), "one of 1, 2", [1, 2], [3, 0, "1", True, 1.0]),
        (Hyper(), "any", [None, "x", 3], []),
    ],
)
def test_ranges_and_their_words(rule, text, good, bad):
    assert all(rule.allows(v) for v in good) and not [v for v in bad if rule.allows(v)]
    assert rule.text() == text


SIZES = (7, 4, 12)


def numbered():
    """Every example has its own number as its input."""
    ends = np.cumsum([0, *SIZES])
    parts = [torch.arange(a, b).float()[:, None] for a, b in itertools.pairwise(ends)]
    return from_clients([(part, torch.zeros_like(part)) for part in parts])


def experiment(**changes):
    """The model is the mean of what it has seen: its steps tell which examples they had."""
    parts = {"algorithm": FedAvg(), "model": Variables(torch.zeros(1)), "data": numbered()}
    parts |= {"objective": Function(f=lambda x, i, _: 0.5 * (x - i).square().mean()), "rounds": 5}
    parts |= {"local": Local(steps=3, batch=2, lr=0.3, passes="continue"), "engine": "serial"}
    return Experiment(**(parts | {"device": "cpu"} | changes))


def seen(fed, client, rounds):
    """The batches of a client that takes part in every round."""
    steps = fed.steps(client)
    batches = [b.tolist() for t in range(rounds) for b in fed.batches(client, t, t * steps)]
    sizes = [n for t in range(rounds) for n in fed.sizes(client, t * steps)]
    assert [len(b) for b in batches] == sizes
    return batches


def test_every_pass_has_every_example_once_whatever_the_rounds():
    fed = Federation(numbered(), Local(steps=3, batch=2, passes="continue"), seed=4)
    for client, size in enumerate(SIZES):
        batches = seen(fed, client, 8)
        each = -(-size // 2)
        passes = [batches[a : a + each] for a in range(0, 24 - each + 1, each)]
        flat = [[*itertools.chain(*p)] for p in passes]
        assert all(sorted(p) == sorted(flat[0]) and len(p) == size for p in flat)
        assert len({tuple(p) for p in flat}) > 1, "in another order"
        assert all(len(p[-1]) == (size % 2 or 2) for p in passes), "the short batch comes last"
    whole = Federation(numbered(), Local(steps=3, batch=3, passes="continue", drop_last=True))
    assert {len(b) for b in seen(whole, 0, 4)} == {3}


def test_a_whole_batch_loss_has_batches_of_one_size_at_a_time():
    draw = np.random.default_rng(0)
    times = lambda n: np.stack([draw.random(n), draw.integers(0, 2, n)], 1)
    data = from_clients([(draw.normal(size=(n, 2)), times(n)) for n in SIZES], dtype=torch.float64)
    local = Local(steps=3, batch=3, lr=0.1, passes=Continue())
    parts = {"model": lambda: torch.nn.Linear(2, 1).double(), "objective": Cox(), "data": data}
    parts |= {"local": local, "rounds": 4}
    runs = [experiment(**parts, engine=engine).run() for engine in ("serial", "vectorised:3")]
    assert torch.allclose(*(r.state.x for r in runs), atol=1e-12)


def test_a_client_goes_on_where_its_own_last_round_ended():
    """Client 0 rests in round 2, and misses nothing."""
    loop = experiment(cohort=[[0], [1], [0]], rounds=3).build()
    loop.engine.open(loop.plan, loop.fed, loop.net)
    loop.begin()
    loop.until(3)
    done = {i: steps_before(memory) for i, memory in loop.memory.get(range(3)).items()}
    assert done == {0: 6, 1: 3}
    third = loop.fed.batches(0, 2, 3)
    x = float(experiment(cohort=[[0], [1]], rounds=2).run(progress=False).state.x)
    for index in third:
        x -= 0.3 * (x - float(index.float().mean()))
    assert float(loop.state.srv.x) == pytest.approx(x, abs=1e-5)


class Backwards(Passes):
    """The last example first."""

    def order(self, now):
        return torch.arange(now.examples[now.client]).flip(0)


class Wrong(Passes):
    """One example twice."""

    def order(self, now):
        return torch.zeros(now.examples[now.client], dtype=torch.int64)


def test_an_order_of_ones_own():
    fed = Federation(numbered(), Local(steps=2, batch=3, passes=Backwards()))
    assert seen(fed, 0, 2) == [[6, 5, 4], [3, 2, 1], [0], [6, 5, 4]]
    with pytest.raises(FedloomError, match=r"Wrong.order\(\) must give every number from 0 to 6"):
        Federation(numbered(), Local(steps=2, batch=3, passes=Wrong())).batches(0, 0)


def test_names_and_refusals(tmp_path):
    mine = tmp_path / "mine.py"
    mine.write_text(
        "import torch\nfrom fedloom.federation.passes import Passes\n\n"
        "class Mine(Passes):\n    def order(self, now):\n"
        "        return torch.arange(now.examples[now.client])\n"
    )
    for name, kind in (("continue", "Continue"), (f"{mine}:Mine", "Mine"), ("none", "NoneType")):
        config = resolve("digits", [f"local.passes={name}"])
        assert type(config.part("local").passes).__name__ == kind
    plain, none = (resolve("digits", w).values for w in ((), ["local.passes=none"]))
    assert plain["local"] == none["local"]
    refused(lambda: resolve("digits", ["local.passes=contine"]), "continue", kind=ConfigError)
    with pytest.raises(ConfigError, match="goes with order shuffled"):
        Local(passes="continue", order="text")


def test_the_authors_order_of_flamby():
    """Golden numbers of flamby.md, section 13, and the visits of its Cyclic, section 5."""
    sizes = (199, 172, 30, 85)
    order = FLamby().order(Pass(42, 0, 0, sizes, [-(-n // 4) for n in sizes], [100] * 4))
    assert order[:4].tolist() == [115, 191, 181, 1]
    visits = []
    for seed in range(42, 47):  # every visit is one pass of one step
        passes = FLamby(who="cycle").passes_in_order(Pass(seed, 0, 0, sizes, [1] * 4, [1] * 4))
        visits.append(Counter(client for client, _ in itertools.islice(passes, 15))[0])
    assert visits == [4, 4, 4, 4, 3]
