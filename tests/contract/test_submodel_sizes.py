"""Sub-models at capacity 1, and what smaller clients cost."""

from __future__ import annotations

import pytest

from cases import CASES
from fedloom.checks.tiny_federation import experiment, run
from fedloom.engines.client_results import Request, TrainTask
from fedloom.objectives import OrderedDistillation
from fedloom.submodels import FIARSE, SUBMODELS, greedy
from tiny import same

RULES = [*SUBMODELS, "scalefl, as its code", "fjord, distilled", "fjord, given widths"]
RULES += ["fjord, FedNTD", "fiarse, shards", "fiarse, nonzero", "fiarse, masked steps"]
RULES += ["heterofl, budget", "fedrolex, no scaler", "fedrolex, owners", "fjord, scaffold"]
WHOLE = {*RULES} - {"fjord, given widths"}  # it was given widths to draw from
WHOLE -= {"fiarse, nonzero", "fedrolex, owners"}  # their mean is another one


class SelfTaught(OrderedDistillation):
    """The same loss, without a rule that draws parts."""

    needs = None


@pytest.mark.parametrize("case", sorted(WHOLE))
def test_capacities_all_1_are_the_base_algorithm_bit_for_bit(case):
    trial = CASES[case].make(capacities=[1.0])
    loss = trial.objective
    if isinstance(loss, OrderedDistillation):
        loss = SelfTaught(**vars(loss))
    parts = {"algorithm": trial.algorithm, "objective": loss, "model": trial.model}
    one, other = run(trial), run(experiment(**parts, local=trial.local))
    assert same(one.srv, other.srv)
    assert all(same(one.memory[i], other.memory[i]) for i in other.memory)
    assert (one.up, one.down) == (other.up, other.down)


@pytest.mark.parametrize("case", [*SUBMODELS, "fiarse, shards", "heterofl, budget"])
def test_the_sizes_are_in_the_log_and_a_smaller_client_costs_less(case):
    given = CASES[case].make(rounds=2)
    row = run(given).history[-1]
    for kind in ("test_accuracy", "local_accuracy", "explored", "trained", "replaced"):
        for size in ("0.25", "0.5", "1"):
            assert 0 <= row[f"{kind}@{size}"] <= 1
    sizes = [row[f"test_accuracy@{size}"] for size in ("0.25", "0.5", "1")]
    assert row["test_accuracy@mean"] == pytest.approx(sum(sizes) / 3)
    loop = given.build()
    loop.engine.open(loop.plan, loop.fed, loop.net)
    loop.begin()
    msg = loop.plan.algorithm.broadcast(loop.state.srv)
    stats = loop.engine.map(
        Request.TRAIN, TrainTask(msg, loop.state.buffers, {}, [0, 1, 2], 0)
    ).stats
    loop.engine.close()
    up = [sum(s.bytes_up.values()) for s in stats]  # capacities 1, 1/2, 1/4
    down = [sum(s.bytes_down.values()) for s in stats]
    assert up[0] > up[1] >= up[2] and down[0] > down[1] >= down[2]  # a small net has few widths


def test_greedy_pruning_is_called_by_its_name():
    assert (greedy().name, FIARSE().name) == ("Pruning-Greedy", "FIARSE")
    assert [make().name for make in SUBMODELS.values()][2:] == [
        "HeteroFL",
        "FedRolex",
        "ScaleFL",
        "FjORD",
    ]
