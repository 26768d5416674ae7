"""Stages that src does not know: in a federation, and what is said of them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from cases import CASES, SLICES, STAGES
from fedloom.checks.tiny_federation import run
from fedloom.engines.scores import score_of
from fedloom.errors import ClientError, CompositionError, FedloomError
from fedloom.stage import Stage
from fedloom.submodels import FedPer
from support.own_stages import Frozen, Noise, Signs
from test_deployment import agree as agree_deployed
from test_deployment import deployed

PAGE = (Path(__file__).parents[2] / "docs/architecture.md").read_text(encoding="utf-8")


def of_the_page() -> Stage:
    """The stage that docs/architecture.md shows."""
    made: dict[str, Any] = {"__name__": __name__}
    exec(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0], made)
    stage: Stage = made["Heavy"]()
    return stage


def made(name: str, **more: Any) -> Any:
    return CASES[f"stage, {name}"].make(**more)


@pytest.mark.parametrize("name", STAGES)
def test_a_federation_has_the_bits_of_the_simulation(name, tmp_path):
    agree_deployed(tmp_path, **STAGES[name])
    if name == "frozen":
        assert run(made(name)).up["delta"] * 7 == run(made(name, stages=())).up["delta"]


@pytest.mark.parametrize("more", [{"compress": "topk:0.2"}, SLICES], ids=["top-k", "sub-models"])
def test_the_stage_of_the_page_has_the_same_bits_in_a_federation(tmp_path, more):
    agree_deployed(tmp_path, stages=(of_the_page(),), **more)


def test_a_run_goes_on_with_no_other_stages(tmp_path):
    made("slow", rounds=1).run(tmp_path / "run")
    with pytest.raises(FedloomError, match="stages"):
        made("slow", stages=(Noise(),), rounds=2).resume(tmp_path / "run")


def test_every_state_has_a_name_of_its_own():
    class Second(Signs):
        """The name of the other one."""

    class Linked(Signs):
        name = "link"

    for stages in ((Signs(), Second()), (Linked(),)):
        with pytest.raises(CompositionError, match=type(stages[-1]).__name__):
            made("noise", compress=None, stages=stages).plan()


@pytest.mark.parametrize("more", [{"private": FedPer()}, STAGES["noise, sub-models"], {}])
def test_only_one_part_says_what_travels(more):
    stages = (Frozen(), Frozen(trained=3)) if not more else (Frozen(),)
    with pytest.raises(CompositionError, match=r"Frozen and .*: each says what of the model"):
        made("frozen, top-k", **more | {"stages": stages}).plan()


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


@pytest.mark.slow
def test_nodes_measure_the_model_with_their_own_layers(tmp_path):
    given = lambda: made("signs, private", stages=())
    ours, engine = deployed(given, tmp_path)
    nodes, loop = engine._exchange.nodes, given().build()
    count = len(loop.fed.data.test_targets)
    engine._tests = [count] * len(nodes)
    x, buffers = ours.srv.x, loop.net.init_buffers()
    found = engine.measured(x, buffers, 3)
    layers = FedPer().split(loop.net)
    on = loop.fed.data.test_inputs, loop.fed.data.test_targets
    for i, node in nodes.items():
        newest = node.states.newest()
        own = x if newest is None else layers.fill(x, newest.state.own)
        assert found[i].loss == score_of(loop.plan, loop.fed, loop.net, own, [on]).loss
    assert len({score.loss for score in found.values()}) > 2
