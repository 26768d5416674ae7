"""Passes over a client's data that go on from round to round, in every engine, and their order."""

import itertools
from collections import Counter

import numpy as np
import pytest
import torch

from fedloom import Experiment, FedAvg, Local
from fedloom.config import resolve
from fedloom.core.net import Variables
from fedloom.data import from_clients
from fedloom.engines.stages import steps_before
from fedloom.errors import ConfigError, FedloomError
from fedloom.federation.federation import Federation
from fedloom.federation.passes import Continue, FLamby, Pass, Passes
from fedloom.objectives import Cox, Function

SIZES = (7, 4, 12)


def numbered():
    """Every example has its own number as its input."""
    ends = np.cumsum([0, *SIZES])
    pairs = [
        (torch.arange(a, b).float()[:, None], torch.zeros(b - a, 1))
        for a, b in itertools.pairwise(ends)
    ]
    return from_clients(pairs)


def experiment(**changes):
    """The model is the mean of what it has seen: its steps tell which examples they had."""
    return Experiment(
        algorithm=FedAvg(),
        model=Variables(torch.zeros(1)),
        objective=Function(f=lambda x, inputs, targets: 0.5 * (x - inputs).square().mean()),
        data=numbered(),
        local=Local(steps=3, batch=2, lr=0.3, passes="continue"),
        device="cpu",
        **{"rounds": 5, "engine": "serial"} | changes,
    )


def seen(fed, client, rounds):
    """The batches of a client that takes part in every round."""
    steps = fed.steps(client)
    batches = [b.tolist() for t in range(rounds) for b in fed.batches(client, t, t * steps)]
    assert [len(b) for b in batches] == [
        n for t in range(rounds) for n in fed.sizes(client, t * steps)
    ]
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
    pairs = [
        (
            torch.tensor(draw.normal(size=(n, 2))),
            torch.tensor(np.stack([draw.random(n), draw.integers(0, 2, n)], 1)),
        )
        for n in SIZES
    ]
    runs = [
        Experiment(
            algorithm=FedAvg(),
            model=lambda: torch.nn.Linear(2, 1).double(),
            objective=Cox(),
            data=from_clients(pairs, dtype=torch.float64),
            local=Local(steps=3, batch=3, lr=0.1, passes=Continue()),
            rounds=4,
            engine=engine,
            device="cpu",
        ).run(progress=False)
        for engine in ("serial", "vectorised:3")
    ]
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
    with pytest.raises(ConfigError, match="continue"):
        resolve("digits", ["local.passes=contine"])
    with pytest.raises(ConfigError, match="goes with order shuffled"):
        Local(passes="continue", order="text")


def test_the_authors_order_of_flamby():
    """Golden numbers of flamby.md, section 13, and the visits of its Cyclic, section 5."""
    sizes = (199, 172, 30, 85)
    about = (sizes, [-(-n // 4) for n in sizes], [100] * 4)
    order = FLamby().order(Pass(42, 0, 0, *about))
    assert order[:4].tolist() == [115, 191, 181, 1]
    visits = []
    for seed in range(42, 47):
        places = FLamby(who="cycle")._visits(Pass(seed, 0, 0, *about))
        visits.append(Counter(next(places) for _ in range(15))[0])
    assert visits == [4, 4, 4, 4, 3]
