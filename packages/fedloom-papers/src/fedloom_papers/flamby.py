"""FLamby's tables: their numbers on every client's test rows and on the pooled ones, and what makes
a run the authors' own: initial weights, order of batches, history of torch's generator.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
from torch import Tensor

from fedloom.config import Config, resolve
from fedloom.core.net import Net
from fedloom.data import FederatedData
from fedloom.engines.base import one_thread
from fedloom.engines.scores import score_of
from fedloom.errors import ConfigError
from fedloom.server.rounds import Run

from .entry import Protocol, Row

SEEDS = range(42, 47)
METRIC = "centre_"  # and the client's number, or pooled
_STEPS, _TESTS = 100, 7  # numbers that tests draw: one for each set of TCGA-BRCA
# of TCGA-BRCA's clients: batches of 8 in a pass; draws of the last run before Cyclic, two a pass
_BATCHES, _LOCAL_5 = (31, 20, 21, 17, 17, 5), 2 * 30
_PERSONAL = ("Common", "Fine-tuned")  # whose generator has the history of all runs before
# where the files begin among our rows, in the order in which theirs were read
_FILES = {"flamby_heart": "[0,371,199,401]", "flamby_tcga": "[]"}


def seeds_of(count: int) -> range:
    """The first of the seeds that are published. Raises ConfigError for more than there are."""
    if count > len(SEEDS):
        raise ConfigError(f"--seeds {count}: FLamby publishes {len(SEEDS)} seeds; give no more")
    return SEEDS[:count]


def visits(seed: int, clients: int, rounds: int) -> list[int]:
    """Who trains in each round of their Cyclic: a random cycle, drawn again at its end.

    >>> [visits(seed, 4, 15).count(0) for seed in SEEDS]
    [4, 4, 4, 4, 3]
    """
    source = np.random.default_rng(seed)
    cycles = (source.permutation(clients).tolist() for _ in itertools.count())
    return list(itertools.islice(itertools.chain.from_iterable(cycles), rounds))


def as_published(protocol: Protocol, row: Row, seed: int) -> list[str]:
    """The changes that make a run the authors' own. Raises ConfigError for another paper's."""
    if protocol.recipe not in _FILES or row.name in _PERSONAL:
        raise ConfigError(
            "--as-published is of flamby:heart and flamby:tcga: others have no known weights or "
            "random numbers; docs/papers.md has their code's settings"
        )
    tcga = protocol.recipe == "flamby_tcga"
    turns = visits(seed, *((6, 5) if tcga else (4, 15)))
    changes = [f"model_seed={seed}", "local.passes=flamby"]
    if row.name.startswith(("Pooled", "Local")):
        changes += ["local.passes.who=alone"]
        return changes + [f"local.passes.files={_FILES[protocol.recipe]}"] * (row.name == "Pooled")
    if row.name.startswith("Cyclic"):
        changes += ["local.passes.who=cycle"]
    if row.name == "Cyclic as published":
        rounds = turns.count(0)  # of none, a rate that changes no weight leaves the initial model
        changes += [f"rounds={rounds}"] if rounds else ["rounds=1", "local.lr=1e-30"]
    elif row.name.startswith("Cyclic"):
        changes += ["sampling=fixed", f"cohort={[[i] for i in turns]}".replace(" ", "")]
    return changes + [f"local.passes.before={_before(row, turns)}"] * tcga


def _before(row: Row, turns: list[int]) -> int:
    """How many numbers were drawn from the seed to the loaders of this run, by the run before it:
    of Local 5, Cyclic, or one in which all train in every round, each with its tests.
    """
    if row.name.startswith("Cyclic"):
        return _LOCAL_5 + _TESTS
    visit_counts = [turns.count(i) if row.name == "FedAdagrad" else 5 for i in range(6)]
    passes = sum(-(-n * _STEPS // b) - 1 for n, b in zip(visit_counts, _BATCHES, strict=True) if n)
    return 2 * passes + _TESTS


def centres(config: Config, recipe: str, loop: Run) -> dict[str, float]:
    """{centre_0: value, ..., centre_pooled: value} of a finished run's model: on the test rows of
    each client as these prepare them, and on all, scaled by the training rows of all.
    """
    data = resolve(recipe, [f"dtype={config.values['dtype']}"]).data()
    every = resolve(recipe, ["data.per_client=false"]).data() if recipe == "flamby_heart" else data
    assert data.test_clients is not None and data.test_inputs is not None
    rows = {str(i): data.test_clients.of(i) for i in range(data.population)}
    values = {f"{METRIC}{i}": _value(loop, data, index) for i, index in rows.items()}
    everybody = slice(None)
    return values | {f"{METRIC}pooled": _value(loop, every, everybody)}


def _value(loop: Run, data: FederatedData, index: Tensor | slice) -> float:
    """The headline on some test rows."""
    assert data.test_inputs is not None and data.test_targets is not None
    net: Net = loop.net
    with one_thread():
        net.load_buffers(loop.state.buffers)
        on = data.test_inputs[index], data.test_targets[index]
        score = score_of(loop.plan, replace(loop.fed, data=data), net, loop.model(), [on])
    return score.mean(loop.headline, loop.fed.metrics)
