"""What goes with what: parts of a method have facts, and tables say which facts of two parts have
no meaning beside each other, and why. plan.py tells the facts.

`fedloom list --compatibility` and docs/compatibility.md are what this file and the plan say of
every pair.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from enum import Enum
from typing import NamedTuple

from .aggregation import DifferentialPrivacy
from .algorithm import Trait
from .compression.error_feedback import EF21
from .objectives import Needs
from .submodels.private import Private
from .wrappers import Clip, Lookahead, PerStep, Prox, Sam, ServerOpt, WeightDecay
from .wrappers.client import LocalOpt
from .wrappers.server import ServerWrapper


class Fact(Enum):
    """What is true of a part; so are a method's traits, what a loss needs, and a part's class."""

    READS_MOVE = "it takes its move for the sum of its directions"
    CHOICE_OF_MOVE = "and with algorithm.option=1 it does not"
    READS_MORE = "its server reads its move, or plain means beside it"
    PER_STEP = "it sends the mean move per step"
    NO_WEIGHTS = "its move is no sum of gradients with weights"
    WHOLE = "it needs every client to hold all coordinates"
    DIVIDES_MEANS = "its server divides a mean by that of the rates"
    WEIGHS_MEANS = "its server divides a mean by that of its own weights"
    PROBES = "clients answer before round 1"
    ASKS = "clients answer before their local steps"
    ARRIVES = "the server reads each update with the client's state"
    ADDS = "clients add what they send to their own state"
    ADDS_MOVE = "clients add their delta to their own state"
    MORE_THAN_X = "clients have another field beside x"
    PARTS = "clients hold parts of the model"
    NO_MATRICES = "what a client holds are no matrices"
    COUNTS_ZEROS = "an update's zeros are counted"
    TRAINS_EXITS = "clients train every exit"
    ONE_EXIT = "the loss does not ask every exit"
    WHOLE_PARTS = "no narrower parts are drawn"
    ADDRESSES = "it is a stage that says what of the model travels"
    TRAVELS = "it says what of the model travels"
    SHUFFLED = "batches do not follow each other"
    MATRICES = "it codes matrices"
    CODED = "it changes values"
    CODED_MOVE = "it changes values of delta"
    CODED_DOWN = "clients hold an approximation of the broadcast"
    LOSES_SUMS = "what it loses clients have added to their own state"
    REMEMBERED = "the server keeps the mean of what clients remember for good"
    MIRRORS_MOVE = "the server keeps the mean of clients' deltas"
    NOT_PLAIN = "the server does not get the plain mean"
    NOT_THE_MEAN = "nor the mean at all"
    UPDATES_ALONE = "it is made for updates, not for answers before the local steps"
    NEEDS_LENGTH = "all clients send vectors of one length"
    COMPARES = "it compares whole updates"
    HIDES = "it tells nothing of a client but for noise"
    SHORTENS = "it shortens updates"
    FIELD_BY_FIELD = "fields of its mean may be of different clients"
    RING = "clients send parts of the sums, integers of a ring"
    MASKED = "nobody sees a single update"
    READS = "it reads single updates"
    FORGES = "its updates are made of all honest ones"
    ROUNDS = "a cohort trains from one broadcast"
    ASYNCHRONOUS = "the updates of a step are made from several broadcasts"
    DISCOUNTS = "an older update counts less"
    FORGETS = "clients that come back have lost their state"
    WEIGHTED = "clients have different weights"
    UNACCOUNTED = "who takes part is not drawn as an account of privacy takes it"
    HIDES_EXAMPLES = "noise hides single examples"
    TELLS_LOSSES = "clients tell their losses before they are chosen"


Key = Fact | Trait | Needs | type
Table = Mapping[tuple[Key, Key], str]

# ------------------------------------------------------------------------- around a method's steps
_MOVE = (
    "it takes its move for the sum of its directions, which a local optimiser changes; take plain "
    "steps, local.optimiser=sgd with local.momentum=0"
)
_RECURSION = "its direction is a recursion over gradients; use ClipGrad"
AROUND: Table = {
    (Prox, Trait.DIVIDES_BY_RATES): "it divides by the weights of its gradients, of which a pull "
    "makes the earlier ones smaller, unknown to it; use one of them",
    (Sam, Trait.PERTURBS): "it perturbs its own gradients already; use one of them",
    (Clip, Trait.RECURSIVE): _RECURSION,
    (WeightDecay, Trait.RECURSIVE): _RECURSION,
    (LocalOpt, Fact.CHOICE_OF_MOVE): f"{_MOVE}, or algorithm.option=1",
    (LocalOpt, Fact.READS_MOVE): _MOVE,
    (Fact.NO_WEIGHTS, Trait.DIVIDES_BY_RATES): "it divides by the weights of its gradients, and "
    "{one.detail} gives them none; take local.momentum, or plain steps",
    (ServerOpt, Trait.STARTS_AHEAD): "its clients start along its server's own last move, which an "
    "optimiser would change; take the look-ahead around the optimiser, as algorithm=fedadam "
    "server=lookahead does",
    (ServerWrapper, Trait.SEVERAL_MODELS): "it would move x alone of the models that this method's "
    "server has",
    (Lookahead, Trait.STARTS_AHEAD): "its clients start ahead of the server's model already",
    (PerStep, Fact.READS_MORE): "its server reads more than the mean move, and reads that whole",
    (PerStep, Fact.PER_STEP): "it sends the mean move per step already",
}

# ------------------------------------------------------------------------------- beside each other
RESIDUAL = "take compress.feedback=residual"
_REMEMBERS = "the server keeps the mean of what all clients remember"
_UNKNOWN = "the server knows nothing of private layers; leave one out"
_ALIKE = "both must be of the same clients, and neither shortened; take krum"
_QUOTIENT = f"its server divides the mean of one field by that of another: {_ALIKE}"
_ROOT = f"its server divides one mean by the root of another, which is of squares: {_ALIKE}"
_UNMASKED = "would not be masked; take another method, or aggregation.secure = false"
BESIDE: Table = {
    (Needs.TEXT_ORDER, Fact.SHUFFLED): "the objective needs batches that follow each other as the "
    "text does; give local.order = text",
    (Fact.MATRICES, Fact.NO_MATRICES): "the coordinates that a client holds do not form matrices",
    (Fact.CODED_MOVE, Fact.COUNTS_ZEROS): "its count looks at which entries of an update are zero, "
    "and a codec makes others zero; take submodel.count = holders, or compress = none",
    (EF21, Fact.PARTS): "the server keeps the mean of all clients' updates, and needs whole ones; "
    f"{RESIDUAL}",
    (Fact.REMEMBERED, Fact.FORGETS): f"{_REMEMBERS}, so none may be deleted; {RESIDUAL}, or "
    "churn.forget=false",
    (Fact.CODED_DOWN, Fact.PARTS): "a message of changes is for those who hold what was there "
    "before, and a client of a part held other coordinates; compress up only",
    (Fact.PARTS, Fact.WHOLE): "the method needs every client to hold all coordinates",
    (Fact.TRAINS_EXITS, Fact.ONE_EXIT): "a client trains every exit it has, which this loss does "
    "not ask; take objective = self_distillation",
    (Needs.DRAWN_PARTS, Fact.WHOLE_PARTS): "it distils into the narrower parts that FjORD draws; "
    "take submodel = fjord",
    (Private, EF21): _UNKNOWN,
    (Private, Fact.PARTS): _UNKNOWN,
    (Private, Fact.CODED_DOWN): _UNKNOWN,
    (Private, Fact.MORE_THAN_X): "its clients have '{other.detail}' beside x, which would be one "
    "thing in shared layers and another in private ones; take a method whose clients have x alone, "
    "such as fedavg, fedprox, fedavgm or fedadam",
    (Fact.ADDRESSES, Fact.TRAVELS): "each says what of the model travels; leave one out",
    (
        Fact.HIDES,
        Fact.PARTS,
    ): "how many clients hold a coordinate would be told, and no noise hides it",
    (Fact.NEEDS_LENGTH, Fact.PARTS): "all clients must send vectors of one length",
    (Fact.COMPARES, Fact.PARTS): "it compares whole client updates, and a client of a part has no "
    "value at the other coordinates; take norm_bound",
    (Fact.NOT_PLAIN, EF21): f"{_REMEMBERS}, and needs their plain mean; take "
    "compress.feedback = residual",
    (Fact.RING, Fact.CODED): "clients send every value as an integer of the ring, so that nothing "
    "is saved; take compress = none",
    (Fact.FIELD_BY_FIELD, Trait.SECOND_MOMENT): _ROOT,
    (Fact.SHORTENS, Trait.SECOND_MOMENT): _ROOT,
    (Fact.FIELD_BY_FIELD, Fact.DIVIDES_MEANS): _QUOTIENT,
    (Fact.HIDES, Fact.DIVIDES_MEANS): _QUOTIENT,
    (Fact.FIELD_BY_FIELD, Fact.WEIGHS_MEANS): _QUOTIENT,
    (Fact.SHORTENS, Fact.WEIGHS_MEANS): _QUOTIENT,
    (Fact.UPDATES_ALONE, Fact.ASKS): "what clients answer before the round would be neither "
    "shortened nor hidden by noise, as its updates are; take median, trimmed_mean, krum or "
    "geometric_median",
    (Fact.HIDES, Fact.PROBES): "what every client sends before round 1 is neither bounded nor "
    "hidden by noise",
    (Fact.HIDES, Fact.WEIGHTED): "a client's share must not depend on how much it holds; take "
    "weighting=uniform",
    (DifferentialPrivacy, Fact.UNACCOUNTED): "its account of privacy takes clients that are drawn "
    "with sampling = poisson, by a share or a number, out of all; give that, and leave churn and "
    "availability out",
    (Fact.HIDES_EXAMPLES, Fact.TELLS_LOSSES): "its candidates tell their losses, which no noise "
    "hides; choose in another way",
    (Fact.MASKED, Fact.ASKS): f"what clients answer before the round {_UNMASKED}",
    (Fact.MASKED, Fact.PROBES): f"what clients answer before round 1 {_UNMASKED}",
    (Fact.MASKED, Fact.READS): "its read() is of single updates, and the server has their sum "
    "alone",
    (Fact.MASKED, Fact.ASYNCHRONOUS): "a masked sum is of clients who were sent one model; take "
    "aggregation.secure = false, or rounds",
    (Fact.RING, Fact.ARRIVES): "clients send parts of the sums, and not the update that its "
    "arrived() would read; take another aggregation",
    (Fact.FORGES, Fact.PARTS): "its updates are made of whole honest ones, and a client of a part "
    "has no value at the other coordinates; take another attack",
    (Fact.FORGES, EF21): f"{_REMEMBERS}, and no client remembers a forged update; {RESIDUAL}",
    (Fact.ASYNCHRONOUS, Fact.ASKS): "a cohort answers before it trains, and under this clock there "
    "is none",
    (Fact.ASYNCHRONOUS, Trait.ONE_BROADCAST): "its server takes every update to be made from its "
    "newest broadcast",
    (Fact.DISCOUNTS, Fact.ADDS_MOVE): "clients add their whole move to their own state, and the "
    "server less of an older one: the two would drift apart; take clock.staleness = 0",
    (Fact.ASYNCHRONOUS, Fact.HIDES): "a client's share of the steps is not the one that is "
    "accounted for",
    (Fact.DISCOUNTS, Fact.MIRRORS_MOVE): f"{_REMEMBERS}, and would add less of an older change; "
    f"{RESIDUAL}, or clock.staleness = 0",
    (Fact.ASYNCHRONOUS, Fact.FORGETS): "a client may leave while it is under way; take "
    "churn.forget = false",
}
# where a method does not do what its paper says
WARNED: Table = {
    (Fact.ADDS, Fact.LOSES_SUMS): "without error feedback clients add what they send to their "
    "state, the server adds what is left of it, and the two drift apart: the run ends at another "
    "point; take compress.feedback=residual",
    (Fact.ADDS, Fact.FORGETS): "what clients have added to the server's sum stays in it when they "
    "are forgotten; with churn.forget=false they go on where they were",
    (Fact.ADDS, Fact.NOT_THE_MEAN): "clients add what they send to their own state, and the server "
    "what the aggregation makes of it: the two drift apart",
    (Trait.BUFFERED, Fact.ROUNDS): "in rounds it is FedAvg; take clock=asynchronous",
}


class Composed(NamedTuple):
    """A part of a plan: its name in a sentence, what is true of it, and a word for a sentence."""

    name: str
    facts: Set[Key]
    detail: str = ""


def clashes(parts: Sequence[Composed], table: Table) -> list[str]:
    """A sentence for every two parts of which a table says that they do not go together."""
    return [
        f"{one.name} and {other.name}: {why.format(one=one, other=other)}"
        for (fact, against), why in table.items()
        for one in parts
        if fact in one.facts  # first, as few have it
        for other in parts
        if one is not other and against in other.facts
    ]


def true(facts: Mapping[Fact, bool]) -> set[Key]:
    """The facts that hold."""
    return {fact for fact, holds in facts.items() if holds}
