"""Methods and stages that src does not know, as an author would write them: in a federation of
nodes, what they are told, and what is said of their mistakes.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from cases import CASES, SLICES, STAGES
from federations.nodes import Nodes, deployed
from fedloom.algorithm import FedAvg
from fedloom.checks.tiny_federation import SIZES, run
from fedloom.core.vector import rec, zeros
from fedloom.engines.scores import score_of
from fedloom.errors import ClientError, CompositionError, DataError, FedloomError
from fedloom.models import joined
from fedloom.stage import Stage
from fedloom.submodels import FedPer
from fedloom_flower.engine import FederationEngine
from support.own_methods import FedBABU
from support.own_stages import Frozen, Noise, Signs
from test_deployment import agree as agree_deployed
from tiny import near, quadratics, same, trace

PAGE = (Path(__file__).parents[2] / "docs/architecture.md").read_text(encoding="utf-8")
SAID = ["PermK", "FedBABU", "FedBABU, parts", "Heads", "DASHA", "DASHA, random", "Last"]
run_of = lambda name, dtype=torch.float32, **more: CASES[name].make(dtype=dtype, **more)
staged = lambda name, **more: CASES[f"stage, {name}"].make(**more)
SAID += ["Last, parts", "Last, signs", "two inputs", "Draws", "Walks"]


# ------------------------------------------------------------ the bits of the simulation
@pytest.mark.parametrize("name", SAID)
def test_a_federation_of_an_own_method_has_the_bits_of_the_simulation(name, tmp_path):
    make = lambda: run_of(name, rounds=2)
    ours, engine = deployed(make, tmp_path)
    alone = run(make())
    assert same(ours.srv, alone.srv) and ours[2:] == alone[2:] and not engine.refused
    if name == "Walks":
        assert [row["train_loss"] for row in ours.history] == [None, None]


@pytest.mark.parametrize("engine", ["serial", "vectorised"])
def test_a_method_knows_when_its_client_was_there(engine):
    """-1 in a client's first round, whichever it is."""

    class Sums(FedAvg):
        def client_init(self, x: Any) -> Any:
            return rec(rounds=zeros(x))

        def finish(self, x: Any, loc: Any, msg: Any, mem: Any, job: Any) -> Any:
            up, _ = super().finish(x, loc, msg, mem, job)
            return up, rec(rounds=10 * mem.rounds + job.last)

    cohorts = [[0], [1], [0, 1], [2], [0, 3]]
    *_, loop = trace(quadratics(Sums(), cohort=cohorts, engine=engine), 5)
    rounds = {i: float(state.alg.rounds[0]) for i, state in loop.memory.get(range(4)).items()}
    assert rounds == {0: 10 * (10 * -1.0 + 0) + 2, 1: 10 * -1.0 + 1, 2: -1.0, 3: -1.0}


def of_the_page() -> Stage:
    """The stage that docs/architecture.md shows."""
    module: dict[str, Any] = {"__name__": __name__}
    exec(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0], module)
    stage: Stage = module["Heavy"]()
    return stage


OF_THE_PAGE = {
    "of the page, top-k": {"compress": "topk:0.2", "stages": (of_the_page(),)},
    "of the page, sub-models": {"stages": (of_the_page(),), **SLICES},
}


@pytest.mark.parametrize("name", [*STAGES, *OF_THE_PAGE])
def test_a_federation_of_own_stages_has_the_bits_of_the_simulation(name, tmp_path):
    agree_deployed(tmp_path, **(STAGES | OF_THE_PAGE)[name])


def test_a_stage_that_trains_a_seventh_of_the_model_sends_a_seventh():
    assert run(staged("frozen")).up["delta"] * 7 == run(staged("frozen", stages=())).up["delta"]


@pytest.mark.slow
def test_nodes_measure_the_model_with_their_own_layers(tmp_path):
    given = lambda: staged("signs, private", stages=())
    nodes, loop = Nodes(given(), tmp_path), given().build()
    ours, _ = deployed(given, nodes)
    x, buffers = ours.srv.x, loop.net.init_buffers()
    engine = FederationEngine(nodes, run="r", tests=[len(loop.fed.data.test_targets)] * 6)
    engine.open(loop.plan, loop.fed, loop.net)
    scores = engine.measured(x, buffers, 3)
    layers, on = FedPer().split(loop.net), (loop.fed.data.test_inputs, loop.fed.data.test_targets)
    for i, node in nodes.nodes.items():
        newest = node.states.newest()
        own = x if newest is None else layers.fill(x, newest.state.own)
        assert scores[i].loss == score_of(loop.plan, loop.fed, loop.net, own, [on]).loss
    assert len({score.loss for score in scores.values()}) > 2


# ------------------------------------------------------------ what a method is told and says
def test_each_client_sends_its_own_coordinates():
    """The first round's move is, coordinate by coordinate, that of the client whose turn it is."""
    one = {"algorithm": FedAvg(), "rounds": 1}
    alone = [run(run_of("FedBABU", torch.float64, cohort=[[i]], **one)).srv.x for i in range(6)]
    whose = torch.arange(len(alone[0])) % len(SIZES)
    together = run(run_of("PermK", torch.float64, rounds=1)).srv.x
    near(together, torch.stack(alone).gather(0, whose[None])[0])


def test_layers_are_found_by_name_and_missing_ones_named():
    given = run_of("FedBABU", torch.float64)
    end, net = run(given), given.loop.net
    head = net.layout.where("head.*") > 0
    moved = end.srv.x != net.init()
    assert head.sum() == 21 and not moved[head].any() and moved[~head].all()

    class Typo(FedBABU):
        def direction(self, x, loc, msg, mem, grad, job):
            return job.layers("hed.*") * grad(x), loc

    with pytest.raises(ClientError, match=r"no layer fits 'hed\.\*'; the model has first\.0"):
        run(run_of("FedBABU", algorithm=Typo()))


def test_the_server_knows_which_means_of_layers_are_plain():
    assert run_of("Heads").plan().plain == ("h",)


@pytest.mark.parametrize("name", ["DASHA", "DASHA, random"])
@pytest.mark.parametrize("engine", ["serial", "vectorised:3"])
def test_what_clients_and_server_add_up_is_one_sum(name, engine):
    end = run(run_of(name, torch.float64, engine=engine, rounds=5))
    mine = torch.stack([memory.alg.g for memory in end.memory.values()]).mean(0)
    near(mine, end.srv.g)
    assert mine.count_nonzero() > 0


def test_layers_that_do_not_travel_arrive_as_they_are_at_the_client():
    """What was sent as the server read it, private layers as the client has them."""
    seen = []

    class Arrived(FedAvg):
        def arrived(self, up, mem):
            seen.append(up.delta)
            return mem

    given = run_of("Last", algorithm=Arrived(), compress="topk:0.1", private=FedPer(), rounds=1)
    run(given)
    head = given.loop.net.layout.where("head.*") > 0
    for delta in seen:
        assert len(delta) == len(head) and delta[head].all()
        assert delta[~head].count_nonzero() == round(0.1 * int((~head).sum()))


def test_an_update_arrives_without_what_stages_have_put_on_it():
    plain, signed = (run(run_of("Last", rounds=1, stages=s)).memory for s in ((), (Signs(),)))
    assert plain.keys() == signed.keys()
    assert all(torch.equal(plain[i].alg.sent, signed[i].alg.sent) for i in plain)


# ------------------------------------------------------------ refusals
class Second(Signs):
    """The name of the other one."""


class Linked(Signs):
    name = "link"


TWICE = r"Frozen and .*: each says what of the model"
REFUSED = {
    "parts of sums": (
        lambda: run_of("Last", aggregation="integer_ring"),
        r"IntegerRing and Last: .*arrived\(\)",
    ),
    "two of a name": (lambda: staged("noise", compress=None, stages=(Signs(), Second())), "Second"),
    "a name of ours": (lambda: staged("noise", compress=None, stages=(Linked(),)), "Linked"),
    "private layers": (lambda: staged("frozen, top-k", private=FedPer()), TWICE),
    "sub-models": (
        lambda: staged("frozen, top-k", **(STAGES["noise, sub-models"] | {"stages": (Frozen(),)})),
        TWICE,
    ),
    "twice": (lambda: staged("frozen, top-k", stages=(Frozen(), Frozen(trained=3))), TWICE),
}


@pytest.mark.parametrize("case", REFUSED)
def test_parts_that_do_not_go_together_are_refused(case):
    make, words = REFUSED[case]
    with pytest.raises(CompositionError, match=words):
        make().plan()


def test_a_run_goes_on_with_no_other_stages(tmp_path):
    staged("slow", rounds=1).run(tmp_path / "run")
    with pytest.raises(FedloomError, match="stages"):
        staged("slow", stages=(Noise(),), rounds=2).resume(tmp_path / "run")


@pytest.mark.parametrize("engine", ["serial", "vectorised:3"])
@pytest.mark.parametrize("hook", ["receive", "along", "send", "read"])
def test_an_error_names_its_stage(hook, engine):
    class Wrong(Stage):
        """A mistake in one method."""

    def fails(self, *given):
        raise LookupError("nothing there")

    setattr(Wrong, hook, fails)
    words = rf"round 1: Wrong.{hook}\(\): LookupError: nothing there"
    with pytest.raises(ClientError, match=words):
        run(staged("noise", stages=(Wrong(),), engine=engine))


def test_inputs_that_cannot_be_joined_are_refused():
    with pytest.raises(DataError, match=r"\[2, 3\] examples"):
        joined([torch.ones(2), torch.ones(3)])
    with pytest.raises(DataError, match="16777217; at most 16777216"):
        joined([torch.tensor([2**24 + 1])])
