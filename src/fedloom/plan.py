"""The method of a run: the axes put together, and every rule of what goes with what.

A rule is a small function of the plan that gives the reason of a refusal, or None. REFUSALS are
asked in order when a Plan is made, WARNINGS before the first round; `fedloom matrix` and
docs/compatibility.md are what the rules say of every pair.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from .aggregation import Aggregation, Mean
from .algorithm import ACCUMULATED, CHANGE, MEAN, Algorithm, LocalSGD, Trait
from .algorithms.registry import name_of
from .compression.error_feedback import EF21
from .compression.link import LONGEST, Link, Via
from .core.arithmetic import total
from .errors import CompositionError, ConfigError
from .federation.clock import untimely
from .federation.local import Local
from .federation.private_examples import unaccounted
from .objectives import Needs, Objective
from .stage import Stage, asked, cannot_join
from .submodels.base import Rule
from .submodels.private import Private, unfit
from .trace import Trace, plain_means, traced
from .wrappers.base import method_in
from .wrappers.rules import misplaced


class Setting(NamedTuple):
    """What the rules ask about the federation beside the method."""

    order: str = "shuffled"  # of the batches, see Local.order
    forgets: bool = False  # clients that come back have lost their state, see Churn.forget
    unequal: bool = False  # aggregation weights differ from client to client
    staleness: float | None = None  # see Asynchronous.staleness; None: all train in rounds
    forger: str = ""  # the name of an attack that makes its updates of all honest ones
    dp: bool = False  # see Local.dp


@dataclass(frozen=True)
class Plan:
    """The axes of a method: algorithm (with its local parts around it, see Local.around),
    objective, rule (the sub-model scheme; None: whole models), link (how messages travel), private
    (layers that clients keep), aggregation (of updates), stages (own ones, in order of sending).

    nonfinite: of an update that is not finite, or with which the server would not be, "stop" raises
    ClientError naming client and round; "skip" leaves it out of the means and lets its client keep
    the state it had. Raises CompositionError for parts that have no meaning together.
    """

    algorithm: Algorithm
    objective: Objective
    nonfinite: str = "stop"
    rule: Rule | None = None
    link: Link = field(default_factory=Link)
    d: int | None = None
    setting: Setting = field(default_factory=Setting)
    private: Private | None = None
    aggregation: Aggregation = field(default_factory=Mean)
    stages: tuple[Stage, ...] = ()

    def __post_init__(self) -> None:
        named = self.link.spelled_out(self.algorithm)
        object.__setattr__(self, "link", named)
        for rule in REFUSALS:
            if reason := rule(self):
                raise CompositionError(reason)
        object.__setattr__(self, "link", named.settled(self.algorithm))

    @functools.cached_property
    def trace(self) -> Trace | None:
        """One client's round on zeros, of the method inside all wrappers, which change values and
        no fields. None where a method of the author's fails on them: the run itself says so, with
        client and round.
        """
        try:
            return traced(method_in(self.algorithm), self.d or 2)
        except Exception:  # an author's code may raise anything on zeros
            return None

    @property
    def averaged(self) -> tuple[str, ...]:
        """The fields of which the server needs plain means beside delta."""
        if type(method_in(self.algorithm)).uniform is LocalSGD.uniform:
            return ()  # as of most methods; they need not be traced
        return self.trace.averaged._fields if self.trace is not None else ()

    @functools.cached_property
    def plain(self) -> tuple[str, ...]:
        """The fields of which the server needs means that do not follow the clients' weights."""
        if not self.averaged or self.trace is None:
            return ()
        try:
            return plain_means(method_in(self.algorithm), self.trace.up)
        except Exception:  # as in trace
            return ()

    @property
    def personalises(self) -> bool:
        """True if clients use models of their own."""
        return self.private is not None or self.algorithm.personalises

    def warnings(self) -> list[str]:
        """One sentence for each setting under which the method does not do what its paper says."""
        return [said for rule in WARNINGS if (said := rule(self))]

    def rates(self, local: Local, round: int, steps: int, pace: int) -> list[float]:
        """The learning rates of a client's steps in a round; pace: see Federation.pace(). Raises
        ConfigError where they are 0 and the method divides by them.
        """
        rates, traits = [local.rate(round, k, pace) for k in range(steps)], self.algorithm.traits
        divides = Trait.READS_THE_MOVE in traits and not total(rates)
        if divides or (Trait.DIVIDES_BY_RATES in traits and not rates[0]):
            raise ConfigError(
                f"{self.algorithm.method} divides by the local rates, and in round {round + 1} "
                "local.lr times local.schedule is 0; give the schedule a floor, or end the run "
                "before"
            )
        return rates


# ------------------------------------------------------------------------------ wrapper and method
def wrapper_and_method(plan: Plan) -> str | None:
    """The first wrapper that has no meaning around what it wraps."""
    return misplaced(plan.algorithm, plan.averaged, name_of)


# ----------------------------------------------------------------------------- compression, uplink
def _ways(plan: Plan) -> Iterator[tuple[str, Via, str]]:
    """Every compressed field of an update: its name, its Reaches, its codec's name."""
    assert not isinstance(plan.link.up, Via | str)  # spelled out
    for name, via in plan.link.up.items():
        yield name, via, type(via.codec).__name__


def _mirrors(plan: Plan, field: str = "") -> bool:
    """True if the server keeps EF21's mean of any field, or of this one."""
    ways = [name for name, via, _ in _ways(plan) if isinstance(via.feedback, EF21)]
    return field in ways if field else bool(ways)


def uplink_field(plan: Plan) -> str | None:
    """Only what reaches the server through means may be compressed."""
    sent = plan.algorithm.sent
    for name, _, codec in _ways(plan):
        if name not in sent:
            return (
                f"{codec} for '{name}' and {plan.algorithm.method}: only fields that reach the "
                f"server through means may be compressed, here {', '.join(sent) or 'none'}"
            )
    return None


def codec_and_submodel(plan: Plan) -> str | None:
    """Matrices need whole layers, and a count of zeros needs exact values."""
    rule = plan.rule
    for name, via, codec in _ways(plan) if rule is not None else ():
        assert rule is not None
        if via.codec.matrices and not rule.cuts:
            return (
                f"{codec} and {rule.name}: the coordinates that a client holds do not form matrices"
            )
        if rule.counts_values and name == "delta" and codec != "Dense":
            return (
                f"{codec} and {rule.name}: its count looks at which entries of an update are zero, "
                "and a codec makes others zero; take submodel.count = holders, or compress = none"
            )
    return None


def ef21(plan: Plan) -> str | None:
    """EF21 keeps the mean of all clients' updates: it must be one that the server needs."""
    alg, forgets = plan.algorithm, plan.setting.forgets
    for name, via, _ in _ways(plan):
        if not isinstance(via.feedback, EF21):
            continue
        if plan.rule is not None:
            return (
                f"EF21 and {plan.rule.name}: the server keeps the mean of all clients' updates, "
                "and needs whole ones; take compress.feedback=residual"
            )
        if name not in ("delta", *plan.averaged):
            return (
                f"EF21 for '{name}' and {alg.method}: its server has no mean of '{name}' that EF21 "
                "could stand in for; take compress.feedback=residual"
            )
        if other := sorted(set(plan.averaged) - set(alg.sent)):
            return (
                f"EF21 and {alg.method}: its server also needs the cohort's own mean of "
                f"{', '.join(other)}, not EF21's of all clients; take compress.feedback=residual"
            )
        cohorts = name in plan.averaged and alg.sent[name] is MEAN and name not in plan.plain
        if cohorts and plan.setting.unequal:
            return (
                f"EF21 and {alg.method}: its server divides the mean of '{name}' by this cohort's "
                "weights, which differ from client to client, and EF21 has that of all clients; "
                "take compress.feedback=residual, or weighting=uniform"
            )
        if forgets and alg.sent[name] is not CHANGE:
            return (
                "EF21 and churn.forget: the server keeps the mean of what all clients remember, "
                "so none may be deleted; take compress.feedback=residual, or churn.forget=false"
            )
    return None


def bounded_feedback(plan: Plan) -> str | None:
    """Error feedback needs a codec that loses less than all."""
    return next((why for _, via, _ in _ways(plan) if (why := via.unfit(plan.d))), None)


# --------------------------------------------------------------------------- compression, downlink
def downlink(plan: Plan) -> str | None:
    """What clients may hold an approximation of, and only if everybody holds all of it."""
    fields = plan.algorithm.approximate
    for name, codec in plan.link.codes_down.items():
        kind = type(codec).__name__
        if name not in fields:
            return (
                f"{kind} down for '{name}' and {plan.algorithm.method}: its clients need the exact "
                f"'{name}'; what they may hold an approximation of: "
                f"{', '.join(fields) or 'nothing'}"
            )
        if plan.rule is not None:
            return (
                f"{kind} down and {plan.rule.name}: a message of changes is for those who hold "
                "what was there before, and a client of a part held other coordinates; compress up "
                "only"
            )
        if why := codec.unfit(LONGEST if plan.d is None else plan.d):
            return f"the server's feedback around {kind} down: {why}"
    return None


# ------------------------------------------------------------------ sub-models, objective, the data
def whole_model(plan: Plan) -> str | None:
    """Some methods need every client to hold all coordinates."""
    alg, rule = plan.algorithm, plan.rule
    if rule is None or not (Trait.WHOLE_MODEL in alg.traits or alg.personalises):
        return None
    return f"{rule.name} and {alg.method}: the method needs every client to hold all coordinates"


def exits(plan: Plan) -> str | None:
    """Who trains several exits needs a loss that asks them all."""
    rule = plan.rule
    if rule is None or rule.trains is not Needs.EXITS or plan.objective.needs is Needs.EXITS:
        return None
    return (
        f"{rule.name} and {plan.objective.name}: a client trains every exit it has, which "
        "this loss does not ask; take objective = self_distillation"
    )


def drawn_parts(plan: Plan) -> str | None:
    """A loss that distils into a drawn part needs a scheme that draws."""
    drawn = plan.rule is not None and plan.rule.trains is Needs.DRAWN_PARTS
    if plan.objective.needs is not Needs.DRAWN_PARTS or drawn:
        return None
    other = "whole models" if plan.rule is None else plan.rule.name
    return (
        f"{plan.objective.name} and {other}: it distils into the narrower parts that FjORD draws; "
        "take submodel = fjord"
    )


def text_order(plan: Plan) -> str | None:
    """A state that is carried along a text needs batches that follow each other."""
    if plan.objective.needs is not Needs.TEXT_ORDER or plan.setting.order == "text":
        return None
    return (
        f"{plan.objective.name} and local.order = {plan.setting.order}: the objective needs "
        "batches that follow each other as the text does; give local.order = text"
    )


def private_layers(plan: Plan) -> str | None:
    """Private layers are the client's alone: nothing else may be about them."""
    private, trace = plan.private, plan.trace
    if private is None or trace is None:
        return None
    more = "compressed broadcasts" if plan.link.codes_down else ""
    more = "a sub-model" if plan.rule is not None else more
    more = "EF21" if _mirrors(plan) else more
    return unfit(private, plan.algorithm.method, trace.msg, trace.mem, more)


# ----------------------------------------------------------------------- aggregation, and attacks
def aggregation(plan: Plan) -> str | None:
    """An aggregation must leave the method what its server needs."""
    rule = plan.aggregation
    for ask in () if rule.plain else BESIDE:
        if found := ask(plan, rule):
            return f"{rule.name} and {found[0]}: {found[1]}"
    return None


def _parts(plan: Plan, rule: Aggregation) -> tuple[str, str] | None:
    if plan.rule is None or (rule.sums and rule.parts):
        return None
    if rule.private:
        why = "how many clients hold a coordinate would be told, and no noise hides it"
    elif rule.sums:
        why = "all clients must send vectors of one length"
    else:
        why = (
            "it compares whole client updates, and a client of a part has no value at the other "
            "coordinates; take norm_bound"
        )
    return plan.rule.name, why


def _codecs(plan: Plan, rule: Aggregation) -> tuple[str, str] | None:
    if _mirrors(plan):
        return "EF21", (
            "the server keeps the mean of what all clients remember, and needs their plain mean; "
            "take compress.feedback = residual"
        )
    codecs = [codec for _, _, codec in _ways(plan) if codec != "Dense"]
    if rule.codecs or not codecs:
        return None
    return codecs[0], (
        "clients send every value as an integer of the ring, so that nothing is saved; take "
        "compress = none"
    )


def _quotient(plan: Plan, rule: Aggregation) -> tuple[str, str] | None:
    alg, traits = plan.algorithm, plan.algorithm.traits
    divides = Trait.DIVIDES_BY_RATES in traits and (rule.apart or rule.private)
    itself = Trait.WEIGHS_ITSELF in traits and (rule.apart or rule.bounded)
    if Trait.SECOND_MOMENT in traits and (rule.apart or rule.bounded):
        what = "one mean by the root of another, which is of squares"
    elif plan.averaged and (divides or itself):
        what = "the mean of one field by that of another"
    else:
        return None
    return alg.method, (
        f"its server divides {what}: both must be of the same clients, and neither shortened; take "
        "krum"
    )


def _answers(plan: Plan, rule: Aggregation) -> tuple[str, str] | None:
    if rule.exact or not plan.algorithm.asks:
        return None
    return plan.algorithm.method, (
        "what clients answer before the round is averaged plainly, neither bounded nor hidden, "
        "whatever becomes of their updates"
    )


def _secrets(plan: Plan, rule: Aggregation) -> tuple[str, str] | None:
    if rule.private and plan.algorithm.probes:
        why = "what every client sends before round 1 is neither bounded nor hidden by noise"
        return plan.algorithm.method, why
    if rule.private and plan.setting.unequal:
        why = "a client's share must not depend on how much it holds; take weighting=uniform"
        return "weighting by examples", why
    return None


def _at_clients(plan: Plan, rule: Aggregation) -> tuple[str, str] | None:
    readers = [type(stage).__name__ for stage in asked(plan.stages, "read")]
    return rule.beside(plan.algorithm, readers, plan.setting.staleness is not None)


Beside = Callable[[Plan, Aggregation], "tuple[str, str] | None"]
BESIDE: tuple[Beside, ...] = (_parts, _codecs, _quotient, _answers, _secrets, _at_clients)


def forger(plan: Plan) -> str | None:
    """An attack that makes its updates of all honest ones needs whole ones."""
    attack = plan.setting.forger
    if attack and plan.rule is not None:
        return (
            f"{attack} and {plan.rule.name}: its updates are made of whole honest ones, and a "
            "client of a part has no value at the other coordinates; take another attack"
        )
    if attack and _mirrors(plan):
        return (
            f"{attack} and EF21: the server keeps the mean of what all clients remember, and no "
            "client remembers a forged update; take compress.feedback=residual"
        )
    return None


# --------------------------------------------------------------------------------------- the clock
def asynchronous(plan: Plan) -> str | None:
    """Under an asynchronous clock the updates of a step were made from different broadcasts."""
    exponent, rule = plan.setting.staleness, plan.aggregation
    if exponent is None:
        return None
    private = rule.name if rule.private else ""
    forgets, ef21 = plan.setting.forgets, _mirrors(plan, "delta")
    return untimely(exponent, plan.algorithm, private, ef21, forgets)


REFUSALS: tuple[Callable[[Plan], str | None], ...] = (
    wrapper_and_method,
    text_order,
    uplink_field,
    codec_and_submodel,
    ef21,
    bounded_feedback,
    downlink,
    whole_model,
    exits,
    drawn_parts,
    private_layers,
    lambda plan: unaccounted(plan.algorithm, plan.objective, plan.d) if plan.setting.dp else None,
    lambda plan: cannot_join(plan.stages, plan.rule, plan.private),
    aggregation,
    forger,
    asynchronous,
)


# ---------------------------------------------------------------------------------------- warnings
def _adds(algorithm: Algorithm) -> list[str]:
    return [name for name, how in algorithm.sent.items() if how in (ACCUMULATED, CHANGE)]


def lost_for_good(plan: Plan) -> str | None:
    """What a codec loses is lost if clients have added it to their own state."""
    lost = [name for name in plan.link.losing if name in _adds(plan.algorithm)]
    if not lost:
        return None
    return (
        f"{plan.algorithm.method} without error feedback: clients add '{lost[0]}' to their "
        "state, the server adds what is left of it, and the two drift apart: the run ends at "
        "another point. Take compress.feedback=residual"
    )


def forgotten_sums(plan: Plan) -> str | None:
    """What a client has added to the server's sum stays there when the client is forgotten."""
    if not plan.setting.forgets or not _adds(plan.algorithm):
        return None
    return (
        f"{plan.algorithm.method} and churn.forget: what clients have added to the server's sum "
        "stays in it when they are forgotten; with churn.forget=false they go on where they were"
    )


def two_means(plan: Plan) -> str | None:
    """Plain means beside a weighted one belong to two objectives."""
    alg, rule = plan.algorithm, plan.aggregation
    if not plan.setting.unequal or Trait.WEIGHS_ITSELF in alg.traits:
        return None
    if plan.plain:
        return (
            f"{alg.method} averages {' and '.join(plan.plain)} plainly, and the models with "
            "weights that differ from client to client: two means are two objectives; take "
            "weighting=uniform, or multiply by job.relative_weight in uniform()"
        )
    forger = plan.setting.forger
    if plan.averaged and (forger or not rule.sums):
        return (
            f"{alg.method} and {forger or rule.name}: {' and '.join(plan.averaged)} would be "
            "weighted sums, which it does not make, and clients have different weights; take "
            "weighting=uniform"
        )
    return None


def other_sums(plan: Plan) -> str | None:
    """What clients add up for themselves must be what the server adds up."""
    rule, own = plan.aggregation, _adds(plan.algorithm)
    if rule.plain or rule.exact or not own:
        return None
    return (
        f"{plan.algorithm.method} and {rule.name}: clients add '{own[0]}' to their own state, and "
        "the server what the aggregation makes of it: the two drift apart"
    )


def without_its_clock(plan: Plan) -> str | None:
    """A method of the asynchronous clock in rounds is another one."""
    if Trait.BUFFERED not in plan.algorithm.traits or plan.setting.staleness is not None:
        return None
    return f"{plan.algorithm.method} in rounds is FedAvg; take clock=asynchronous"


WARNINGS: tuple[Callable[[Plan], str | None], ...] = (
    lost_for_good,
    forgotten_sums,
    two_means,
    other_sums,
    without_its_clock,
)
