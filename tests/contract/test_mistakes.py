"""Authors' mistakes: in every engine one line with method, client, round and what to do."""

from __future__ import annotations

import contextlib
import functools
import re
from typing import Any

import pytest
import torch
from broken.mistakes import AT_CLIENTS, AT_THE_SERVER

import fedloom
from fedloom import FedAvg, Local
from fedloom.algorithms.registry import make_algorithm
from fedloom.core.vector import rec
from fedloom.errors import ClientError, ConfigError
from fedloom.federation.schedules import Cosine
from fedloom.objectives import CrossEntropy, Function, UserLoss
from tiny import quadratics, small, trace

ENGINES = ["serial", "vectorised", "workers:2"]


def says(experiment: Any, engine: str, engine_of: Any) -> str:
    """The message of the error that a run ends with; it is one line."""
    experiment.engine = engine_of(engine) if engine.startswith("workers") else engine
    with pytest.raises(ClientError) as caught:
        experiment.run()
    text = str(caught.value)
    assert "\n" not in text and len(text) < 400
    return text


# a worker hands on what a serial client says: two of them show that it does
WHERE = [(kind, engine) for kind in AT_CLIENTS for engine in ENGINES[:2]]
WHERE += [(kind, "workers:2") for kind in [*AT_CLIENTS][:2]]


@pytest.mark.parametrize(("kind", "engine"), WHERE, ids=lambda v: getattr(v, "__name__", None))
def test_a_clients_method_is_named_with_client_and_round(kind, engine, engine_of):
    text = says(small(kind()), engine, engine_of)
    assert re.match(rf"{kind.__name__}: client \d, round 1: ", text), text
    assert re.search(AT_CLIENTS[kind][1], text), text


@pytest.mark.parametrize("engine", ENGINES)
def test_a_client_that_cannot_be_vmapped_is_named_itself(engine, engine_of):
    """A loss of whole batches cannot be padded, so whoever asks for all data trains alone."""

    class Asks(FedAvg):
        def start(self, msg, mem, job):
            return msg.x - 0 * job.full(msg.x), rec()

    def third(x, a, b):
        if float(b[0, 0]) == 6:
            raise ValueError("no such sample")
        return (a / 2 * (x - b) ** 2).sum(1).mean()

    text = says(quadratics(Asks(), objective=Function(f=third)), engine, engine_of)
    assert text.startswith("Asks: client 2, round 1: ") and "no such sample" in text


def test_a_change_in_place_that_the_first_client_did_not_make_is_found():
    class Third(FedAvg):
        def finish(self, x, loc, msg, mem, job):
            if job.round == 2:  # a number here: one client at a time
                msg.x.mul_(0.5)
            return super().finish(x, loc, msg, mem, job)

    text = says(small(Third()), "serial", None)
    assert re.match(r"Third: client \d, round 3: one of start\(\), direction\(\) and finish", text)
    assert "msg.x in place" in text


class OfTheStep(FedAvg):
    def direction(self, x, loc, msg, mem, grad, job):
        return (grad(x) if job.step == 0 else 0.5 * grad(x)), loc


class Item(FedAvg):
    def direction(self, x, loc, msg, mem, grad, job):
        g = grad(x)
        return g / g.norm().item(), loc


@pytest.mark.parametrize(("kind", "words"), [(OfTheStep, ""), (Item, r".*\.item")])
def test_what_vmap_refuses_is_said_with_a_way_out(kind, words):
    text = says(small(kind()), "vectorised", None)
    pattern = rf"{kind.__name__}: client \d, round 1: direction\(\) branches{words}.*torch.where"
    assert re.match(pattern, text), text


@pytest.mark.parametrize("engine", ["serial", "vectorised"])
@pytest.mark.parametrize("kind", AT_THE_SERVER, ids=lambda k: k.__name__)
def test_a_method_at_the_server_is_named_with_the_round(kind, engine, engine_of):
    text = says(small(kind()), engine, engine_of)
    assert text.startswith(f"{kind.__name__}: the server, round 1: "), text
    assert re.search(AT_THE_SERVER[kind][1], text), text


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


def ends(*cases):
    runs = [small(FedAvg(), torch.float64, objective=loss, engine=e) for loss, e in cases]
    return [[*trace(run, 2)][-1].state.srv.x for run in runs]


@pytest.mark.parametrize("method", ["loss", "score"])
def test_a_loss_of_ones_own_is_not_passed_over_for_an_inherited_fused_mean(method):
    twice = lambda self, *given: 2 * getattr(super(Doubled, self), method)(*given)
    Doubled = type("Doubled", (CrossEntropy,), {method: twice})
    own, at_once, plain = ends((Doubled(), "serial"), (Doubled(), "vectorised"), (None, "serial"))
    torch.testing.assert_close(own, at_once, rtol=0, atol=1e-12)
    assert not torch.allclose(own, plain, rtol=0, atol=1e-3)


@pytest.mark.parametrize("engine", ["serial", "vectorised"])
def test_a_function_may_give_a_loss_per_output(engine):
    square = lambda outputs, targets: (outputs - targets[:, None]) ** 2
    mean = UserLoss(call=lambda outputs, targets: square(outputs, targets).mean(1))
    torch.testing.assert_close(*ends((square, engine), (mean, engine)), rtol=0, atol=1e-14)


# -------------------------------------------------------------- state that is left on a class
def left_on_its_class():
    """New classes, for a tensor stays on one."""

    class Leaves(FedAvg):
        def direction(self, x, loc, msg, mem, grad, job):
            Leaves.kept = grad(x)
            return Leaves.kept, loc

    class Uses(FedAvg):
        kept = torch.zeros(())

        def direction(self, x, loc, msg, mem, grad, job):
            g = grad(x)
            d, Uses.kept = g + 0 * Uses.kept, g.sum()
            return d, loc

    return [Leaves, Uses]


SAID = "it keeps state outside of its records"
FUNCTORCH = ("functorch", "internal", "vmap_plumbing", "TensorWrapper", "Traceback")


@pytest.mark.parametrize("engine", ["serial", "vectorised:3"])
@pytest.mark.parametrize("which", [0, 1])
def test_a_run_refuses_a_tensor_on_a_class(which, engine):
    assert SAID in says(small(left_on_its_class()[which]()), engine, None)


@pytest.mark.parametrize("which", [0, 1])
def test_a_tensor_left_on_a_class_is_a_finding_in_words(which):
    part = left_on_its_class()[which]()
    for _ in range(2):
        report = fedloom.check(part, engines=("vectorised:3",))
        assert any(SAID in outcome.why for outcome in report.failures)
        for outcome in report.failures:
            assert not any(word in outcome.why for word in FUNCTORCH), outcome
        with contextlib.suppress(ClientError):  # leaves one of a vmap that has ended
            small(part, engine="vectorised:3", rounds=1).run()


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
