"""`fedloom.check`: everything that fedloom has keeps its contract, and every fault is found."""

from __future__ import annotations

import re
import sys
from abc import abstractmethod

import broken
import broken.views
import pytest
import torch
from broken.algorithms import AsksProcess
from torch import nn

import fedloom
from fedloom import LocalSGD
from fedloom.aggregation import Gather
from fedloom.algorithms.registry import ALGORITHMS, make_algorithm
from fedloom.checks import CONTRACTS, built, parts_of
from fedloom.checks.compare import unlike
from fedloom.checks.objectives import case_for
from fedloom.checks.outcome import Check, Report, carry_out
from fedloom.checks.tiny_federation import local_for
from fedloom.compression.codecs import CODECS, Codec, TopK
from fedloom.core.hyper import hyper
from fedloom.core.vector import rec
from fedloom.data import from_clients
from fedloom.errors import AuthorError, CompositionError, ConfigError
from fedloom.objectives import (
    OBJECTIVES,
    CrossEntropy,
    LanguageModel,
    Needs,
    Objective,
    SquaredError,
)
from fedloom.submodels import FIARSE, SUBMODELS
from support.own_stages import Frozen, Noise, Signs, Slow

ENGINE = ("vectorised:3",)
BROKEN = [
    (kind, *case)
    for kind, cases in (
        ("algorithm", broken.ALGORITHMS),
        ("objective", broken.OBJECTIVES),
        ("sub-model scheme", broken.VIEWS),
        ("codec", broken.CODECS),
        ("aggregation", broken.AGGREGATIONS),
        ("stage", broken.STAGES),
    )
    for case in cases
]


# those that a check finds beside its first one are left to `make test-all`
FIRST = {(kind, name): make for kind, make, name, _ in reversed(BROKEN)}
FAULTS = [
    pytest.param(*case, marks=[] if FIRST[case[0], case[2]] is case[1] else [pytest.mark.slow])
    for case in BROKEN
]


def carried_out(kind: str, part, name: str) -> Report:
    """One check of a part, and those that it needs are left to others."""
    checks = CONTRACTS[kind](part).checks(ENGINE)
    return carry_out(part, "it", kind, [c for c in checks if c.name == name])


@pytest.mark.parametrize(
    ("kind", "make", "name", "words"), FAULTS, ids=lambda v: getattr(v, "__name__", None)
)
def test_a_fault_is_found_and_explained(kind, make, name, words):
    (outcome,) = carried_out(kind, make(), name).outcomes
    assert outcome.passed is False, f"'{name}' passed"
    assert re.search(words, outcome.why), outcome.why
    assert "\n" not in outcome.why and len(outcome.why) > 60, "a paragraph"
    assert "Traceback" not in outcome.why and "in checked()" not in outcome.why


# The first of every kind here, all of them below: a second each.
REGISTERED = [
    ("aggregation", "of a user", lambda n: Gather(f=lambda rows, weights: rows.amax(0))),
    *(("stage", one.__name__, lambda _, one=one: one()) for one in (Noise, Frozen, Signs, Slow)),
    *(("algorithm", n, make_algorithm) for n in ALGORITHMS),
    *(("objective", n, lambda n: OBJECTIVES[n]()) for n in OBJECTIVES),
    *(("sub-model scheme", n, lambda n: SUBMODELS[n]()) for n in SUBMODELS),
    *(("codec", n, lambda n: CODECS[n]()) for n in CODECS),
]
FAST = {"scaffold", "fiarse", "of a user", "Frozen"}


@pytest.mark.parametrize(
    ("kind", "name", "make"),
    [
        pytest.param(*case, marks=[] if case[1] in FAST else pytest.mark.slow, id=case[1])
        for case in REGISTERED
    ],
)
def test_what_fedloom_has_keeps_its_contract(kind, name, make):
    report = fedloom.check(make(name), engines=ENGINE)
    assert report.kind == kind
    assert report.passed, str(report)
    assert kind == "aggregation" or "runs" in {o.name for o in report.outcomes}


@pytest.mark.slow
@pytest.mark.parametrize("make", [LocalSGD, AsksProcess])
def test_workers_are_real_processes(make):
    report = fedloom.check(make(), engines=("workers:2",))
    assert [o.name for o in report.failures] == (
        [] if make is LocalSGD else ["engine workers:2"]
    ), str(report)


def test_a_bill_that_is_wrong_is_found(monkeypatch):
    import fedloom.engines.client_round as client

    nbytes = client.nbytes
    monkeypatch.setattr(client, "nbytes", lambda r: {k: n + 1 for k, n in nbytes(r).items()})
    (outcome,) = carried_out("algorithm", LocalSGD(), "bill is the messages").outcomes
    assert outcome.passed is False and "the bill has" in outcome.why


def convolutional():
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.PReLU(), nn.Flatten(), nn.Linear(16, 3))


def pictures(sizes=(5, 3, 9)):
    draw = torch.Generator().manual_seed(4)
    sample = lambda n: (
        torch.randn(n, 1, 4, 4, generator=draw),
        torch.randint(0, 3, (n,), generator=draw),
    )
    return from_clients([sample(n) for n in sizes], test=sample(6))


class SeesPictures(LocalSGD):
    """Fails where the model is another one than below, of 92 parameters."""

    def client_init(self, x):
        return rec(image=x.reshape(92).clone())


class PictureLoss(CrossEntropy):
    def loss(self, net, x, batch, ref, mem):
        return self.score(net(x, batch[0].reshape(-1, 1, 4, 4)), batch)


@pytest.mark.parametrize(
    "part",
    [
        SeesPictures(),
        PictureLoss(),
        pytest.param(FIARSE(), marks=pytest.mark.slow),
        TopK(ratio=0.5),
    ],
    ids=lambda p: type(p).__name__,
)
def test_a_part_is_tried_on_a_model_and_data_of_ones_own(part):
    given = {"model": convolutional, "data": pictures()}
    report = fedloom.check(part, engines=ENGINE, **given)
    assert report.passed, str(report)
    if isinstance(part, SeesPictures):
        left = [o.why for o in report.outcomes if o.passed is None]
        assert any("HeteroFL cannot cut PReLU" in why for why in left)
        assert not fedloom.check(part, engines=()).passed
        with pytest.raises(ConfigError, match="model and data are given together"):
            fedloom.check(part, model=convolutional)


def test_an_engine_that_refuses_a_model_of_ones_own_is_left_out():
    model = lambda: nn.Sequential(nn.Flatten(), nn.BatchNorm1d(16), nn.Linear(16, 3))
    report = fedloom.check(LocalSGD(), engines=ENGINE, model=model, data=pictures((6, 3, 8)))
    assert report.passed, str(report)  # its running statistics are on the bill
    left = " ".join(o.why for o in report.outcomes if o.passed is None)
    assert "engine vectorised and BatchNorm1d" in left and "FIARSE and Sequential" in left


def test_a_check_that_others_need_leaves_them_out():
    def fail():
        raise AuthorError("it is broken")

    ran = []
    checks = [
        Check("first", lambda: ran.append(1)),
        Check("second", fail, required=True),
        Check("third", lambda: ran.append(3)),
        Check("no such thing", lambda: "there is none"),
    ]
    report = carry_out(LocalSGD(), "Mine", "algorithm", checks)
    assert [o.passed for o in report.outcomes] == [True, False, None, None] and ran == [1]
    assert "it needs 'second'" in report.outcomes[2].why
    assert [o.why for o in report.failures] == ["it is broken"]
    assert str(report).splitlines()[2].split()[:2] == ["second", "FAILED"]
    assert carry_out(LocalSGD(), "Mine", "algorithm", checks[-1:]).passed


def test_a_part_may_be_a_class():
    assert built(TopK) == TopK()


class NeedsHelp(LocalSGD):
    source: object


class Bold(Codec):
    code = 200
    share: float = hyper(0.5, low=0, high=1, source="ours")


@pytest.mark.parametrize(
    ("part", "engines", "words"),
    [
        (
            NeedsHelp,
            ENGINE,
            r"argument: 'source'.* Write `mine = NeedsHelp\(\.\.\.\)` into the file",
        ),
        (Bold, ENGINE, "Bold cannot be made: it has no decode, encode; write"),
        (3, ENGINE, r"only an Algorithm.* can be checked, got 3"),
        (dict, ENGINE, "got the class dict"),
        (LocalSGD(), ("vectorized",), "unknown engine 'vectorized'"),
    ],
)
def test_what_cannot_be_checked_is_an_error_of_one_line(part, engines, words):
    with pytest.raises(ConfigError, match=words):
        fedloom.check(part, engines=engines)


class Base(LocalSGD):
    @abstractmethod
    def factor(self): ...


class Full(Base):
    def factor(self):
        return 1.0


def test_the_parts_of_a_module():
    result = parts_of(broken.views)
    assert set(result) >= {"Unsorted", "TwiceHeld", "Rolls"}
    assert "_Half" not in result and "FIARSE" not in result, "private, and somebody else's"
    assert parts_of(broken.views, "_Half") == {"_Half": broken.views._Half}
    with pytest.raises(ConfigError, match=r"has no part 'Unsort'; did you mean 'Unsorted'\?"):
        parts_of(broken.views, "Unsort")
    with pytest.raises(ConfigError, match="defines nothing that can be checked"):
        parts_of(re)
    own = parts_of(sys.modules[__name__])
    assert "Full" in own and "Base" not in own, "a base of other parts is none itself"


def test_rounding_is_no_difference_and_more_is():
    one = rec(x=torch.tensor([1e3, 0.0], dtype=torch.float64))
    assert not unlike(rec(x=one.x + 1e-10), one, 1e-12)
    assert "'x' differs" in unlike(rec(x=one.x + 1e-8), one, 1e-12)
    assert "differs" in unlike(rec(x=one.x * float("nan")), one, 1e-12)
    assert "only in one" in unlike(rec(y=one.x), one, 1e-12)


# ------------------------------------------------------------------- what an objective is tried on
class NextWord(CrossEntropy):
    """Of tokens alone, in any order."""

    def loss(self, net, x, batch, ref, mem):
        logits = net(x, batch[0])
        assert logits.ndim == 3
        return torch.log_softmax(logits, -1).gather(-1, batch[1][..., None]).mean((1, 2)).neg()


class Series(Objective):
    """Of numbers that follow each other."""

    needs = Needs.TEXT_ORDER

    def loss(self, net, x, batch, ref, mem):
        return self.score(net(x, batch[0]), batch)

    def score(self, outputs, batch):
        return (outputs - batch[1]).square().mean(1)


class Recurrent(NextWord):
    """Says that it needs a model with a state, by check() alone."""

    def check(self, net, inputs):
        LanguageModel().check(net, inputs)


@pytest.mark.parametrize(
    ("part", "kind", "order"),
    [
        (CrossEntropy(), "labels", "shuffled"),
        (SquaredError(), "numbers", "shuffled"),
        (LanguageModel(), "text", "text"),
        (NextWord(), "text", "shuffled"),
        (Recurrent(), "text", "shuffled"),
        (Series(), "numbers", "text"),
    ],
    ids=lambda v: type(v).__name__ if isinstance(v, Objective) else v,
)
def test_an_objective_is_tried_on_what_it_is_meant_for(part, kind, order):
    case = case_for(part)
    inputs, targets = case.given().batch
    assert case.fed.local.order == local_for(part).order == order
    assert {
        "labels": targets.ndim == 1 and not targets.is_floating_point(),
        "numbers": targets.is_floating_point(),
        "text": inputs.shape == targets.shape and inputs.dtype == targets.dtype == torch.int64,
    }[kind]
    assert carried_out("objective", part, "shape of the loss").passed


def test_what_fits_nothing_is_explained_on_what_it_is_likeliest_meant_for():
    class Nothing(LanguageModel):
        def check(self, net, inputs):
            raise CompositionError(f"inputs of {inputs.dtype}")

    (outcome,) = carried_out("objective", Nothing(), "shape of the loss").outcomes
    assert outcome.passed is False and "inputs of torch.int64" in outcome.why
