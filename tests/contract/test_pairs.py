"""Which parts have a meaning together; the others are refused by name, before anything runs. That
those that have one run the same everywhere is in test_engines_agree.py.
"""

from __future__ import annotations

import pairs
import pytest
import torch
from pairs import AXES
from torch import nn

from fedloom import Churn, FedAvg, Local, LocalSGD
from fedloom.aggregation import DifferentialPrivacy, IntegerRing
from fedloom.algorithms import FAFED, IFCA, CFedAvg, Scaffold
from fedloom.algorithms.registry import make_algorithm
from fedloom.checks.tiny_federation import experiment, run
from fedloom.compression.codecs import RandomDropping, TopK
from fedloom.compression.error_feedback import EF21
from fedloom.compression.link import FieldCodec, Link
from fedloom.core.vector import rec
from fedloom.engines import Serial
from fedloom.errors import CompositionError, ConfigError
from fedloom.federation.attacks import Alie, InnerProduct
from fedloom.federation.availability import Availability
from fedloom.federation.choice import PowerOfChoice
from fedloom.federation.clock import Asynchronous
from fedloom.federation.devices import LogNormal
from fedloom.federation.private_examples import ExamplePrivacy
from fedloom.objectives import FedDecorr, FedLC
from fedloom.submodels import FIARSE, FedPer, HeteroFL
from fedloom.wrappers import Lookahead, PerStep
from support.own_stages import Signs
from tiny import small

REFUSED = [pair for pair in pairs.pairs() if pairs.refusal(pair)]


# ------------------------------------------------------------------------------------- the covering
def test_every_pair_that_has_a_meaning_is_met_and_no_other():
    met = {pair for mix in pairs.mixes() for pair in pairs.pairs_of(dict(mix))}
    assert met == set(pairs.pairs()) - set(REFUSED)
    assert all(list(dict(mix)) == list(AXES) for mix in pairs.mixes())


@pytest.mark.slow
def test_every_mix_has_a_meaning():
    for mix in pairs.mixes():
        pairs.trial(dict(mix)).build()


class NeverOpened(Serial):
    def open(self, plan, fed, net):
        raise AssertionError("it ran")


@pytest.mark.parametrize("pair", REFUSED, ids=lambda pair: f"{pair[0][1]}-{pair[1][1]}")
def test_a_pair_without_meaning_is_refused_by_name_before_anything_runs(pair, tmp_path):
    one, other = pairs.refusal(pair)
    with pytest.raises(CompositionError) as caught:
        trial = pairs.trial(pairs.with_only(pair), engine=NeverOpened())
        trial.run(tmp_path / "run")
    text = str(caught.value)
    assert one in text and other in text and "\n" not in text
    assert ":" in text, "and says why"
    assert not (tmp_path / "run").exists()


class Counts(LocalSGD):
    """Sends a number of the job, and one that it computes."""

    def finish(self, x, loc, msg, mem, job):
        delta = x - msg.x
        return rec(delta=delta, k=job.steps, length=delta.norm(), weight=job.weight), mem

    def unweighted(self, up, job):
        return rec(k=up.k, length=up.length)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_number_in_an_answer_costs_a_double_in_every_engine(dtype, engine_of):
    for engine in ("serial", "vectorised:3", engine_of("workers:2")):
        end = run(experiment(dtype, algorithm=Counts(), engine=engine))
        answers = sum(row["answered"] for row in end.history)
        assert end.up["k"] == end.up["length"] == end.up["weight"] == 8 * answers


# ------------------------------------------------------------------------------------- other mixes
pytestmark = pytest.mark.usefixtures("accounts_at_hand")
PARTS, OWN_LAYERS = {"capacities": [0.5, 1.0]}, {"private": FedPer()}
CHANGES = {"compress": FieldCodec(TopK(ratio=0.5), EF21())}
MASKED = {"aggregation": IntegerRing(secure=True)}
LATE = {"clock": Asynchronous(buffer=2, concurrency=4), "devices": LogNormal()}
CLOCK = "^an asynchronous clock and .*"
DIVIDED = "PerStep and .*per step already"
normed = lambda: nn.Sequential(nn.Linear(5, 9), nn.BatchNorm1d(9), nn.Linear(9, 3))
private = lambda **local: {"local": Local(dp=ExamplePrivacy(), **local)}
down = lambda codec: {"compress": Link(down=codec)}


# method, other settings, what is said; golden/compatibility.txt has more of registered parts
MIXES = [
    # private layers, clients that are forgotten, running statistics
    (Scaffold(), OWN_LAYERS, "FedPer and Scaffold: its clients have 'c' beside x"),
    (IFCA(), OWN_LAYERS, "'x1' beside x"),
    (FedAvg(), OWN_LAYERS | CHANGES, "FedPer and EF21"),
    (FedAvg(), OWN_LAYERS | PARTS | {"submodel": FIARSE()}, "FedPer and FIARSE"),
    (FedAvg(), {"private": FedPer(layers=("body",))}, "none would be private: 0, 1, 3; name"),
    (FedAvg(), CHANGES | {"churn": Churn(active=4, forget=True)}, r"EF21 and churn\.forget"),
    (FedAvg(), PARTS | {"model": normed(), "submodel": FIARSE()}, "running statistics"),
    # aggregations and attacks
    (FedAvg(), {"aggregation": DifferentialPrivacy()}, "and weighting by examples: .*uniform"),
    (FedAvg(), {"aggregation": "krum"}, "Krum.* needs 5 .* take a larger cohort"),
    *(
        (FedAvg(), parts | {"attack": attack}, f"^{type(attack).__name__} and (?!.*norm_bound)")
        for attack in (Alie(share=0.3), InnerProduct(share=0.3))
        for parts in (CHANGES, PARTS | {"submodel": HeteroFL()})
    ),
    # masked sums
    (make_algorithm("fedlin"), MASKED, "before the round would not be masked"),
    (FAFED(), MASKED, "before round 1 would not be masked"),
    (FedAvg(), MASKED | LATE, "clients who were sent one model"),
    (FedAvg(), MASKED | {"stages": [Signs()]}, "Signs: its read.. is of single updates"),
    (FedAvg(), MASKED | {"cohort": 2}, "needs 3 or more clients in a round, got 2"),
    # the accounts of private examples
    (FedAvg(), private(sam=0.1), "local.dp and Sam: it asks for a second gradient"),
    (FedAvg(), private() | {"objective": FedLC()}, "local.dp and FedLC: it counts"),
    (FedAvg(), private() | {"objective": FedDecorr()}, "local.dp and FedDecorr: the loss of a"),
    (FedAvg(), private() | {"model": normed()}, r"local.dp and BatchNorm1d \('1'\): it mixes"),
    (
        FedAvg(),
        private() | {"submodel": HeteroFL(owners=True), "capacities": [1.0]},
        "HeteroFL: it averages",
    ),
    (FedAvg(), private() | {"choose": PowerOfChoice(among=5)}, "PowerOfChoice: its candidates"),
    # the asynchronous clock
    (FedAvg(), LATE | CHANGES, CLOCK + "EF21: .* clock.staleness = 0"),
    (FedAvg(), LATE | {"churn": Churn(active=5, forget=True)}, CLOCK + "churn.forget = false"),
    (FedAvg(), LATE | {"clock": Asynchronous(buffer=8)}, "clock.buffer must be at most the 7 cli"),
    (
        FedAvg(),
        LATE | {"clock": Asynchronous(concurrency=9, buffer=1)},
        "clock.concurrency must be at most the",
    ),
    (FedAvg(), LATE | {"sampling": "poisson"}, "clock = asynchronous and sampling = poisson"),
    (FedAvg(), LATE | {"availability": Availability(over_selection=1.5)}, "over_selection = 1.5"),
    (FedAvg(), LATE | {"aggregation": "krum"}, "needs 5 updates in a round, got 2"),
    # the way down, and moves that are divided already
    (FAFED(), down({"v": TopK()}), "exact 'v'"),
    (FedAvg(), down({"c": TopK()}), "exact 'c'"),
    (FedAvg(), down(RandomDropping(ratio=0.9, scaled=True)), "without feedback"),
    (PerStep(inner=CFedAvg(per_step=True)), {}, DIVIDED),
    (PerStep(inner=PerStep(inner=FedAvg())), {}, DIVIDED),
    (PerStep(inner=Lookahead(inner=CFedAvg(per_step=True), lam=0.5)), {}, DIVIDED),
]


@pytest.mark.parametrize(("method", "settings", "words"), MIXES, ids=[row[2] for row in MIXES])
def test_parts_without_a_meaning_together_are_refused_by_name(method, settings, words):
    with pytest.raises((CompositionError, ConfigError), match=words) as error:
        small(method, engine=NeverOpened(), **settings).run()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        (FedAvg(), CHANGES | {"clock": Asynchronous(buffer=2, staleness=0.0)}),
        (FedAvg(), {"clock": Asynchronous(buffer=5, concurrency=7), "aggregation": "krum"}),
    ],
    ids=["EF21", "krum"],
)
def test_with_the_settings_that_a_refusal_names_the_clock_goes(method, settings):
    assert len(small(method, **(LATE | settings)).run().history) == 4


def test_feedback_goes_with_churn_that_keeps_or_with_residuals():
    small(FedAvg(), cohort=3, churn=Churn(active=4), **CHANGES).build()
    small(FedAvg(), cohort=3, churn=Churn(active=4, forget=True), compress="topk:0.5").build()


def test_private_examples_are_no_texts_in_order():
    with pytest.raises(ConfigError, match=r"local.order = text and local.dp"):
        Local(dp=ExamplePrivacy(), order="text")
