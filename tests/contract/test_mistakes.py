"""Authors' mistakes: in every engine one line with method, client, round and what to do."""

from __future__ import annotations

import dataclasses
import functools
import re
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

from fedloom import FedAvg, Local
from fedloom.algorithms import Scaffold
from fedloom.algorithms.registry import make_algorithm
from fedloom.core.vector import rec
from fedloom.errors import AuthorError, ClientError, CompositionError, ConfigError
from fedloom.federation.schedules import Cosine
from fedloom.objectives import CrossEntropy, FedMLB, Objective, UserLoss
from fedloom.submodels import FIARSE, HeteroFL
from tiny import mlp, small, trace, weights

ENGINES = ["serial", "vectorised", "workers:2"]


def says(experiment: Any, engine: str, engine_of: Any) -> str:
    """The message of the error that a run ends with; it is one line."""
    experiment.engine = engine_of(engine) if engine.startswith("workers") else engine
    with pytest.raises(ClientError) as caught:
        experiment.run()
    text = str(caught.value)
    assert "\n" not in text and len(text) < 400
    return text


# ----------------------------------------------------------------------------- a client's methods
class BranchDirection(FedAvg):
    def direction(self, x, loc, msg, mem, grad, job):
        g = grad(x)
        return (g if g.norm() > 1 else 2 * g), loc


class BranchFinish(FedAvg):
    def finish(self, x, loc, msg, mem, job):
        while (x - msg.x).norm() > 100:
            x = x / 2
        return super().finish(x, loc, msg, mem, job)


class BranchEqual(FedAvg):
    def start(self, msg, mem, job):
        return (msg.x if torch.equal(msg.x, msg.x) else -msg.x), rec()


class ChangesX(FedAvg):
    def direction(self, x, loc, msg, mem, grad, job):
        x *= 0.9
        return grad(x), loc


class ChangesMessage(FedAvg):
    def direction(self, x, loc, msg, mem, grad, job):
        msg.x.add_(0.01)
        return grad(x), loc


class ChangesEntry(FedAvg):
    def start(self, msg, mem, job):
        msg.x[0] = 0.0
        return msg.x, rec()


class ChangesPiece(FedAvg):
    def finish(self, x, loc, msg, mem, job):
        msg.x[2:5].zero_()
        return super().finish(x, loc, msg, mem, job)


class ChangesMemory(Scaffold):
    def finish(self, x, loc, msg, mem, job):
        mem.c.sub_(1.0)
        return super().finish(x, loc, msg, mem, job)


class ChangesOut(Scaffold):
    def direction(self, x, loc, msg, mem, grad, job):
        return torch.add(grad(x), 1.0, out=msg.c), loc


class SetsItself(FedAvg):
    def direction(self, x, loc, msg, mem, grad, job):
        self.last = x
        return grad(x), loc


class SetsItselfByForce(FedAvg):
    def finish(self, x, loc, msg, mem, job):
        object.__setattr__(self, "rounds", job.round)
        return super().finish(x, loc, msg, mem, job)


class FillsAField(FedAvg):
    seen: dict = dataclasses.field(default_factory=dict)

    def finish(self, x, loc, msg, mem, job):
        self.seen["x"] = x
        return super().finish(x, loc, msg, mem, job)


class FillsItsClass(FedAvg):
    seen: ClassVar[list] = []

    def finish(self, x, loc, msg, mem, job):
        self.seen.append(1)
        return super().finish(x, loc, msg, mem, job)


class ShortDirection(FedAvg):
    def direction(self, x, loc, msg, mem, grad, job):
        return grad(x)[:3], loc


class NumberDirection(FedAvg):
    def direction(self, x, loc, msg, mem, grad, job):
        return grad(x).sum(), loc


class WideDirection(FedAvg):
    def direction(self, x, loc, msg, mem, grad, job):
        return grad(x).double(), loc


class OneValue(FedAvg):
    def direction(self, x, loc, msg, mem, grad, job):
        return grad(x)


class ShortStart(FedAvg):
    def start(self, msg, mem, job):
        return msg.x[:5], rec()


class ShortPoint(FedAvg):
    def direction(self, x, loc, msg, mem, grad, job):
        return grad(x[:4]), loc


class ShortDelta(FedAvg):
    def finish(self, x, loc, msg, mem, job):
        return rec(delta=(x - msg.x)[:5], weight=job.weight), mem


class WideDelta(FedAvg):
    def finish(self, x, loc, msg, mem, job):
        return rec(delta=(x - msg.x).double(), weight=job.weight), mem


class NoWeight(FedAvg):
    def finish(self, x, loc, msg, mem, job):
        return rec(delta=x - msg.x), mem


class NoRecord(FedAvg):
    def finish(self, x, loc, msg, mem, job):
        return {"delta": x - msg.x}, mem


class ShortMemory(Scaffold):
    def finish(self, x, loc, msg, mem, job):
        up, mem = super().finish(x, loc, msg, mem, job)
        return up, rec(c=mem.c[:4])


class NewMemory(FedAvg):
    def finish(self, x, loc, msg, mem, job):
        return super().finish(x, loc, msg, mem, job)[0], rec(last=x)


class ListMemory(FedAvg):
    def client_init(self, x):
        return rec(h=[0.0, 0.0])


class NewLoc(FedAvg):
    def direction(self, x, loc, msg, mem, grad, job):
        return grad(x), rec(last=x)


class NoLoc(FedAvg):
    def start(self, msg, mem, job):
        return msg.x, None


class ListMeans(FedAvg):
    def uniform(self, up, job):
        return rec(h=[1.0])


class Misspelt(FedAvg):
    def direction(self, x, loc, msg, mem, grad, job):
        return grad(x) - msg.c, loc


AT_CLIENTS = {
    BranchDirection: r"direction\(\) branches on a tensor's value.*torch.where",
    BranchFinish: r"finish\(\) branches on a tensor's value.*torch.where",
    BranchEqual: r"start\(\) branches on a tensor's value.*torch.where",
    ChangesX: r"direction\(\) changes x( and msg.x)? in place.*return a new value",
    ChangesMessage: r"direction\(\) changes (x and )?msg.x in place.*return a new value",
    ChangesEntry: r"start\(\) changes msg.x in place.*return a new value",
    ChangesPiece: r"finish\(\) changes msg.x in place.*return a new value",
    ChangesMemory: r"finish\(\) changes mem.c in place.*return a new value",
    ChangesOut: r"direction\(\) changes msg.c in place.*return a new value",
    SetsItself: r"keeps state outside of its records \(cannot assign to field 'last'\).*record loc",
    SetsItselfByForce: r"outside of its records \(self.rounds\).*record loc",
    FillsAField: r"outside of its records \(self.seen\).*record loc",
    FillsItsClass: r"outside of its records \(FillsItsClass.seen\).*record loc",
    ShortDirection: r"direction\(\) gives a direction of shape \[3\] where x has \[102\]; return",
    NumberDirection: r"direction\(\) gives a direction of shape \[\] where x has \[102\]; return",
    WideDirection: r"direction\(\) gives a direction of float64 where x is float32; keep the type",
    OneValue: r"direction\(\) must give two values, the direction and loc, got a Tensor",
    ShortStart: r"start\(\) gives x of shape \[5\] where x has \[102\]",
    ShortPoint: r"grad\(\) is asked at \[4\]; it takes a point as long as x, \[102\]",
    ShortDelta: r"finish\(\) gives delta of shape \[5\] where x has \[102\]; return",
    WideDelta: r"finish\(\) gives delta of float64 where x is float32; keep the type",
    NoWeight: r"finish\(\) gives an answer without weight, only with delta; return rec\(delta",
    NoRecord: r"finish\(\) gives an answer of type dict; make it with rec",
    ShortMemory: r"memory whose 'c' is \[4\] float32, but it was \[102\] float32; a memory keeps",
    NewMemory: r"memory whose 'last' is \[102\] float32, but it was nothing; a memory keeps",
    ListMemory: r"client_init\(\) gives a memory whose 'h' is a list; a record holds tensors",
    NewLoc: r"direction\(\) gives loc with the fields last, but it had nothing; keep the fields",
    NoLoc: r"start\(\) gives loc of type NoneType; make it with rec",
    ListMeans: r"uniform\(\) gives means whose 'h' is a list; a record holds tensors",
    Misspelt: r"direction\(\): AttributeError: 'rec' object has no attribute 'c'",
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", AT_CLIENTS, ids=lambda k: k.__name__)
def test_a_clients_method_is_named_with_client_and_round(kind, engine, engine_of):
    text = says(small(kind()), engine, engine_of)
    assert re.match(rf"{kind.__name__}: client \d, round 1: ", text), text
    assert re.search(AT_CLIENTS[kind], text), text


@pytest.mark.parametrize("engine", ENGINES)
def test_a_change_in_a_later_round_is_found_too(engine, engine_of):
    class Later(FedAvg):
        def finish(self, x, loc, msg, mem, job):
            msg.x.mul_(torch.where(torch.as_tensor(job.round) > 1, 0.5, 1.0).item()
                       if engine != "vectorised" else 0.5)  # fmt: skip
            return super().finish(x, loc, msg, mem, job)

    assert "in place" in says(small(Later()), engine, engine_of)


def test_the_counters_see_what_the_first_client_did_not_do():
    class Third(FedAvg):
        def finish(self, x, loc, msg, mem, job):
            if job.round == 2:  # a number here: one client at a time
                msg.x.mul_(0.5)
            return super().finish(x, loc, msg, mem, job)

    text = says(small(Third()), "serial", None)
    assert re.match(r"Third: client \d, round 3: one of start\(\), direction\(\) and finish", text)
    assert "msg.x in place" in text


def test_a_branch_on_a_jobs_number_is_refused_where_many_run_at_once():
    class First(FedAvg):
        def direction(self, x, loc, msg, mem, grad, job):
            return (grad(x) if job.step == 0 else 0.5 * grad(x)), loc

    assert re.search(
        r"direction\(\) branches.*torch.where", says(small(First()), "vectorised", None)
    )


def test_what_vmap_refuses_is_said_with_a_way_out():
    class Asks(FedAvg):
        def direction(self, x, loc, msg, mem, grad, job):
            g = grad(x)
            return g / g.norm().item(), loc

    text = says(small(Asks()), "vectorised", None)
    assert re.match(r"Asks: client \d, round 1: direction\(\) branches .*\.item.*torch.where", text)


# ---------------------------------------------------------------------------- the server's methods
class ChangesServer(FedAvg):
    def server_step(self, srv, up, rnd):
        srv.x.add_(up.delta)
        return srv


class ChangesAnswer(FedAvg):
    def server_step(self, srv, up, rnd):
        return srv._replace(x=srv.x + up.delta.mul_(2))


class ShortServer(FedAvg):
    def server_step(self, srv, up, rnd):
        return rec(x=(srv.x + up.delta)[:7])


class WideServer(FedAvg):
    def server_step(self, srv, up, rnd):
        return rec(x=(srv.x + up.delta).double())


class NoModel(FedAvg):
    def broadcast(self, srv):
        return rec(y=srv.x)


class NewServer(FedAvg):
    def server_step(self, srv, up, rnd):
        return rec(x=srv.x + up.delta, m=up.delta)

    def broadcast(self, srv):
        return rec(x=srv.x)


class ShortModel(FedAvg):
    def model(self, srv):
        return srv.x[:7]


class MisspeltServer(FedAvg):
    def server_step(self, srv, up, rnd):
        return rec(x=srv.x + up.dleta)


class WrongInit(FedAvg):
    def server_init(self, x, up):
        return {"x": x}


AT_THE_SERVER = {
    ChangesServer: r"server_step\(\) changes srv.x in place.*return a new value",
    ChangesAnswer: r"server_step\(\) changes up.delta in place.*return a new value",
    ShortServer: r"server_step\(\) gives x of shape \[7\] where x has \[102\]; return",
    WideServer: r"server_step\(\) gives x of float64 where x is float32; keep the type",
    NoModel: r"broadcast\(\) gives a record without x, only with y",
    NewServer: r"server_step\(\) gives a state with the fields x, m, but it had x; keep the fields",
    ShortModel: r"model\(\) gives a model of shape \[7\] where x has \[102\]; return",
    MisspeltServer: r"server_step\(\): AttributeError: 'rec' object has no attribute 'dleta'",
    WrongInit: r"server_init\(\) gives a state of type dict; make it with rec",
}


@pytest.mark.parametrize("engine", ["serial", "vectorised"])
@pytest.mark.parametrize("kind", AT_THE_SERVER, ids=lambda k: k.__name__)
def test_a_method_at_the_server_is_named_with_the_round(kind, engine, engine_of):
    text = says(small(kind()), engine, engine_of)
    assert text.startswith(f"{kind.__name__}: the server, round 1: "), text
    assert re.search(AT_THE_SERVER[kind], text), text


# -------------------------------------------------------------------------------------- objectives
class Short(CrossEntropy):
    def loss(self, net, x, batch, ref, mem):
        return super().loss(net, x, batch, ref, mem)[:1]


class Outputs(CrossEntropy):
    def loss(self, net, x, batch, ref, mem):
        return net(x, batch[0])


class Number(CrossEntropy):
    def loss(self, net, x, batch, ref, mem):
        return 3.0


OF_THE_LOSS = {
    "Short": (Short(), r"Short.loss\(\) gives shape \[1\] for a batch of \d; return one value per"),
    "Outputs": (Outputs(), r"Outputs.loss\(\) gives shape \[\d, 3\] for a batch of \d; return"),
    "Number": (Number(), r"Number.loss\(\) gives a float, not a tensor"),
    "a function": (
        lambda outputs, targets: outputs[:1].square(),
        r"<lambda>.loss\(\) gives shape \[1\] for a batch of \d; return one value per example",
    ),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", OF_THE_LOSS)
def test_an_objective_of_a_wrong_shape_is_named_with_client_and_round(name, engine, engine_of):
    loss, pattern = OF_THE_LOSS[name]
    text = says(small(FedAvg(), objective=loss), engine, engine_of)
    assert re.match(r"FedAvg: client \d, round 1: ", text), text
    assert re.search(pattern, text), text


def test_a_loss_without_a_way_to_the_parameters_is_said_so():
    class Detached(CrossEntropy):
        def loss(self, net, x, batch, ref, mem):
            return super().loss(net, x, batch, ref, mem).detach()

    text = says(small(FedAvg(), objective=Detached()), "serial", None)
    assert re.search(r"client \d, round 1: Detached's loss does not depend on x.*detached", text)


def test_a_loss_of_ones_own_is_not_passed_over_for_an_inherited_fused_mean():
    class Doubled(CrossEntropy):
        def loss(self, net, x, batch, ref, mem):
            return 2 * super().loss(net, x, batch, ref, mem)

    assert Doubled.mean is Objective.mean and CrossEntropy.mean is not Objective.mean
    ends = [
        [*trace(small(FedAvg(), torch.float64, objective=loss, engine=engine), 2)][-1].srv.x
        for loss, engine in ((Doubled(), "serial"), (Doubled(), "vectorised"), (None, "serial"))
    ]
    torch.testing.assert_close(ends[0], ends[1], rtol=0, atol=1e-12)
    assert not torch.allclose(ends[0], ends[2], rtol=0, atol=1e-3)


@pytest.mark.parametrize("engine", ["serial", "vectorised"])
def test_a_function_may_give_a_loss_per_output(engine):
    square = lambda outputs, targets: (outputs - targets[:, None]) ** 2
    mean = UserLoss(call=lambda outputs, targets: square(outputs, targets).mean(1))
    ends = [
        [*trace(small(FedAvg(), torch.float64, objective=loss, engine=engine), 2)][-1].srv.x
        for loss in (square, mean)
    ]
    torch.testing.assert_close(*ends, rtol=0, atol=1e-14)


# ---------------------------------------------------------- parts and models that do not fit at all
class Opaque(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(5, 4), nn.PReLU(), nn.Linear(4, 3))

    def forward(self, inputs):
        return self.net(inputs)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_model_without_blocks_is_refused_for_fedmlb_before_anything_runs(engine):
    experiment = small(FedAvg(), model=Opaque(), objective=FedMLB(), engine=engine)
    with pytest.raises(CompositionError, match=r"FedMLB and Opaque: .*blocks"):
        experiment.build()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_layer_that_cannot_be_cut_is_named_in_every_engine(engine, engine_of):
    made = engine_of(engine) if engine.startswith("workers") else engine
    model = nn.Sequential(nn.Linear(5, 4), nn.PReLU(), nn.Linear(4, 3))
    parts = {"submodel": HeteroFL(), "capacities": [0.5]}
    with pytest.raises(
        CompositionError, match=r"HeteroFL cannot cut PReLU '1': .*build the net of"
    ):
        small(FedAvg(), model=model, engine=made, **parts).run()


# ---------------------------------------------------------------------- what is none is let through
class Caches(FedAvg):
    """Works something out once, as `fedloom check` allows: it is no state of a client."""

    @functools.cached_property
    def factor(self):
        return 0.5

    def direction(self, x, loc, msg, mem, grad, job):
        return self.factor * grad(x), loc


def test_a_cached_property_is_no_mistake():
    assert len(small(Caches(), rounds=1).run().history) == 1


class Prints(Scaffold):
    """Looks at its numbers, as one does while searching for an error."""

    def direction(self, x, loc, msg, mem, grad, job):
        g = grad(x)
        assert "tensor" in repr(g) and float(g.norm()) == g.norm().item()
        return super().direction(x, loc, msg, mem, lambda y: g, job)


def test_looking_at_numbers_is_no_mistake_where_one_client_runs_at_a_time():
    one, other = (small(a, rounds=2).run() for a in (Prints(), Scaffold()))
    assert weights(one.model) == weights(other.model)


class Moody(nn.Module):
    """A model that branches on values and works in place, as a model may outside of vmap."""

    def __init__(self):
        super().__init__()
        self.net = mlp()

    def forward(self, inputs):
        z = self.net(inputs)
        if bool((z > 1e6).any()):
            return z * 0
        z += 1.0
        return z


@pytest.mark.parametrize("method", [FedAvg(), Scaffold(option=1)])
def test_models_and_losses_may_do_as_they_like(method):
    result = small(method, model=Moody(), rounds=2, submodel=FIARSE(), capacities=[0.5]).run()
    assert len(result.history) == 2


def test_an_authors_error_is_none_that_operators_swallow():
    assert not issubclass(AuthorError, (TypeError, NotImplementedError))


@pytest.mark.parametrize("engine", ["serial", "vectorised:3"])
@pytest.mark.parametrize("name", ["scaffold", "fednova", "fedcm", "feddc"])
def test_a_rate_of_0_is_refused_by_methods_that_divide_by_it(name, engine):
    local = Local(epochs=1, batch=4, lr=0.1, schedule=Cosine(rounds=2))
    with pytest.raises(ConfigError, match=r"divides by the local rates, and in round 3 .* a floor"):
        small(make_algorithm(name), local=local, engine=engine).run()


@pytest.mark.parametrize("name", ["fedavg", "fedacg", "feddyn", "fafed", "stem"])
def test_a_rate_of_0_leaves_others_where_they_are(name):
    local = Local(epochs=1, batch=4, lr=0.1, schedule=Cosine(rounds=2))
    assert len(small(make_algorithm(name), local=local).run().history) == 4
