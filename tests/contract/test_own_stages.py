"""Stages that src does not know: in every engine, on ranks and in a federation."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from test_deployment import agree as agree_deployed
from test_deployment import deployed

from fedloom import Local
from fedloom.algorithm import FedAvg
from fedloom.algorithms import FedSMOO, Scaffold
from fedloom.checks.tiny_federation import CAPACITIES, experiment, run
from fedloom.compression.codecs import TopK
from fedloom.compression.error_feedback import EF21
from fedloom.compression.link import Link, Via
from fedloom.engines.evaluation import score_of
from fedloom.errors import ClientError, CompositionError, FedloomError
from fedloom.stage import Stage
from fedloom.submodels import FedPer, HeteroFL
from support.own_stages import Frozen, Noise, Signs, Slow
from tiny import agree, near, same

PAGE = (Path(__file__).parents[2] / "docs/architecture.md").read_text(encoding="utf-8")


def of_the_page() -> Stage:
    """The stage that docs/architecture.md shows."""
    made: dict[str, Any] = {"__name__": __name__}
    exec(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[1], made)
    stage: Stage = made["Heavy"]()
    return stage


EF = Link(Via(TopK(ratio=0.2), EF21()))
CASES: dict[str, dict[str, Any]] = {
    "noise": {"stages": (Noise(),), "algorithm": FedSMOO(), "compress": "topk:0.2"},
    "noise, sub-models": {"stages": (Noise(),), "submodel": HeteroFL(), "capacities": CAPACITIES},
    "frozen": {"stages": (Frozen(),), "algorithm": Scaffold()},
    "frozen, top-k": {"stages": (Frozen(),), "compress": "topk:0.2"},
    "signs": {"stages": (Signs(),), "algorithm": FedAvg()},
    "signs, private": {"stages": (Signs(), Noise()), "private": FedPer(), "compress": "qsgd"},
    "the page's": {"stages": (of_the_page(),), "compress": "topk:0.2"},
    "slow": {"stages": (Slow(), Signs()), "compress": EF},
    "signs, median": {"stages": (Signs(),), "aggregation": "median", "algorithm": Scaffold()},
}
SHORT = {"algorithm": FedAvg(), "local": Local(epochs=1, batch=4, lr=0.05), "rounds": 3}


def made(name: str, **more: Any) -> Any:
    return experiment(**(SHORT | CASES[name] | more))


@pytest.mark.quick("noise, sub-models", "frozen, top-k", "signs, private", "signs, median")
@pytest.mark.parametrize("name", CASES)
def test_serial_and_workers_have_the_same_bits(name, engine_of):
    agree(run(made(name)), run(made(name, engine=engine_of("workers:2"))))


@pytest.mark.quick("noise, sub-models", "frozen, top-k", "signs, private", "signs, median")
@pytest.mark.parametrize("name", CASES)
def test_vectorised_is_equal_to_rounding(name):
    ends = [run(made(name, engine=e, dtype=torch.float64)) for e in ("serial", "vectorised:3")]
    near(ends[1].srv.x, ends[0].srv.x)
    assert ends[0].up == ends[1].up and ends[0].down == ends[1].down


@pytest.mark.quick("noise, sub-models", "frozen, top-k", "signs, private", "signs, median")
@pytest.mark.parametrize("name", CASES)
def test_a_federation_has_the_bits_of_the_simulation(name, tmp_path):
    agree_deployed(tmp_path, **CASES[name])
    if name == "frozen":
        assert run(made(name)).up["delta"] * 7 == run(made(name, stages=())).up["delta"]


def test_a_run_goes_on_with_its_stages_and_no_others(tmp_path):
    straight = made("slow", rounds=4).run()
    made("slow", rounds=2).run(tmp_path / "run")
    assert same(made("slow", rounds=4).resume(tmp_path / "run").state, straight.state)
    with pytest.raises(FedloomError, match="stages"):
        made("slow", stages=(Noise(),), rounds=5).resume(tmp_path / "run")


def test_every_state_has_a_name_of_its_own():
    class Second(Signs):
        """The name of the other one."""

    class Linked(Signs):
        name = "link"

    for stages in ((Signs(), Second()), (Linked(),)):
        with pytest.raises(CompositionError, match=type(stages[-1]).__name__):
            made("signs", stages=stages).plan()


@pytest.mark.parametrize("more", [{"private": FedPer()}, CASES["noise, sub-models"], {}])
def test_only_one_part_says_what_travels(more):
    stages = (Frozen(), Frozen(trained=3)) if not more else (Frozen(),)
    with pytest.raises(CompositionError, match=r"Frozen and .*: each says what of the model"):
        made("frozen, top-k", **more | {"stages": stages}).plan()


@pytest.mark.quick("serial")
@pytest.mark.parametrize("engine", ["serial", "vectorised:3"])
@pytest.mark.parametrize("hook", ["receive", "along", "send", "read"])
def test_an_error_names_its_stage(hook, engine):
    class Wrong(Stage):
        """A mistake in one method."""

    def fails(self, *given):
        raise LookupError("nothing there")

    setattr(Wrong, hook, fails)
    with pytest.raises(
        ClientError, match=rf"round 1: Wrong.{hook}\(\): LookupError: nothing there"
    ):
        run(made("noise", stages=(Wrong(),), engine=engine))


def test_nodes_measure_the_model_with_their_own_layers(tmp_path):
    given = lambda: made("signs, private", stages=())
    ours, engine = deployed(given, tmp_path)
    nodes, loop = engine._exchange.nodes, given().build()
    count = len(loop.fed.data.test_targets)
    engine._tests = [count] * len(nodes)
    x, buffers = ours.srv.x, loop.net.init_buffers()
    found = engine.measured(x, buffers, 3)
    layers = FedPer().kept(loop.net)
    on = loop.fed.data.test_inputs, loop.fed.data.test_targets
    for i, node in nodes.items():
        newest = node.states.newest()
        own = x if newest is None else layers.filled(x, newest.state.own)
        assert found[i].loss == score_of(loop.plan, loop.fed, loop.net, own, [on]).loss
    assert len({score.loss for score in found.values()}) > 2
