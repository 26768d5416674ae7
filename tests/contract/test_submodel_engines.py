"""Every rule of sub-models in every engine, after a stop, and at capacity 1."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

from fedloom import Local
from fedloom.algorithms.registry import make_algorithm
from fedloom.checks.tiny_federation import CAPACITIES, Trial, exits, experiment, finish, run
from fedloom.core.vector import leaves
from fedloom.engines import Serial
from fedloom.engines.client_results import Request, TrainTask
from fedloom.objectives import FedNTD, MaskedCrossEntropy, OrderedDistillation, SelfDistillation
from fedloom.submodels import FIARSE, SUBMODELS, FedRolex, FjORD, HeteroFL, ScaleFL, greedy
from tiny import agree, same

SCALEFL: dict[str, Any] = {"submodel": ScaleFL(), "objective": SelfDistillation(), "model": exits}
CASES: dict[str, dict[str, Any]] = {
    **{name: {"submodel": make()} for name, make in SUBMODELS.items() if name != "scalefl"},
    "scalefl": SCALEFL,
    "scalefl, as its code": SCALEFL | {"objective": SelfDistillation(beta=1.0, after=2, code=True)},
    "fjord, distilled": {"submodel": FjORD(), "objective": OrderedDistillation(alpha=0.5, tau=2.0)},
    "fjord, given widths": {"submodel": FjORD(widths=(0.3, 0.6))},
    "fjord, FedNTD": {"submodel": FjORD(), "objective": FedNTD()},
    "fiarse, shards": {"submodel": FIARSE(group="shard", shards=("first.*", "s*.weight"))},
    "fiarse, nonzero": {"submodel": FIARSE(count="nonzero")},
    "fiarse, masked steps": {
        "submodel": FIARSE(momentum_mask="update"),
        "local": Local(epochs=2, batch=4, lr=0.05, momentum=0.9, weight_decay=0.01),
    },
    "heterofl, budget": {"submodel": HeteroFL(width="budget")},
    "fedrolex, no scaler": {"submodel": FedRolex(scaler=False)},
    "fedrolex, owners": {"submodel": FedRolex(owners=True), "objective": MaskedCrossEntropy()},
    "fjord, scaffold": {"submodel": FjORD(), "algorithm": make_algorithm("scaffold")},
    "scalefl, scaffold": SCALEFL | {"algorithm": make_algorithm("scaffold")},
    "scalefl, fedacg": SCALEFL | {"algorithm": make_algorithm("fedacg")},
    "fiarse, fedacg": {"submodel": FIARSE(), "algorithm": make_algorithm("fedacg")},
}


# one case of each rule in `make test`, and all of them in `make test-all`
EVERY = [
    pytest.param(case, marks=[] if case in SUBMODELS else pytest.mark.slow, id=case)
    for case in CASES
]


def trial(case: str, dtype: torch.dtype = torch.float32, **changes: Any) -> Trial:
    return experiment(dtype, **({"capacities": CAPACITIES} | CASES[case] | changes))


@functools.cache
def serially(case: str, dtype: torch.dtype) -> Any:
    return run(trial(case, dtype, engine=Serial()))


@pytest.mark.parametrize("case", EVERY)
def test_two_workers_have_the_bits_of_serial(case, engine_of):
    agree(run(trial(case, engine=engine_of("workers:2"))), serially(case, torch.float32))


@pytest.mark.parametrize("case", EVERY)
def test_vectorised_agrees_with_serial_in_float64(case):
    one = run(trial(case, torch.float64, engine="vectorised:3"))
    other = serially(case, torch.float64)
    for a, b in zip(leaves(one.srv), leaves(other.srv), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)
    for i in one.memory:
        for a, b in zip(leaves(one.memory[i]), leaves(other.memory[i]), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-12)
    assert (one.up, one.down) == (other.up, other.down)


@pytest.mark.parametrize("case", EVERY)
def test_a_run_that_was_stopped_goes_on_with_the_same_bits(case, tmp_path):
    trial(case, rounds=2).run(tmp_path / "run")
    again = trial(case)
    again.resume(tmp_path / "run")
    agree(finish(again.loop), serially(case, torch.float32))


@pytest.mark.parametrize("case", EVERY)
def test_capacities_all_1_are_the_base_algorithm_bit_for_bit(case):
    rule = CASES[case]["submodel"]
    if rule == FjORD(widths=(0.3, 0.6)):
        return  # it was given widths to draw from
    if getattr(rule, "count", "") == "nonzero" or getattr(rule, "owners", False):
        return  # its mean is another one
    parts = {k: v for k, v in CASES[case].items() if k != "submodel"}
    if isinstance(parts.get("objective"), OrderedDistillation):
        parts["objective"] = SelfTaught(**vars(parts["objective"]))
    one, other = run(trial(case, capacities=[1.0])), run(experiment(**parts))
    assert same(one.srv, other.srv)
    assert all(same(one.memory[i], other.memory[i]) for i in other.memory)
    assert (one.up, one.down) == (other.up, other.down)


class SelfTaught(OrderedDistillation):
    """The same loss, without a rule that draws parts."""

    needs = None


@pytest.mark.parametrize("case", EVERY)
def test_the_sizes_are_in_the_log_and_a_smaller_client_costs_less(case):
    end = serially(case, torch.float32)
    row = end.history[-1]
    for kind in ("test_accuracy", "local_accuracy", "explored", "trained", "replaced"):
        for size in ("0.25", "0.5", "1"):
            assert 0 <= row[f"{kind}@{size}"] <= 1
    sizes = [row[f"test_accuracy@{size}"] for size in ("0.25", "0.5", "1")]
    assert row["test_accuracy@mean"] == pytest.approx(sum(sizes) / 3)
    given = trial(case)
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
