"""The method of a run: its axes put together, and what is true of each. compose.py says which
facts of two parts have no meaning beside each other; what depends on one field of a message, or on
values, is a rule of its own at the end.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from .aggregation import Aggregation, Gives, Mean, Reads
from .algorithm import ACCUMULATED, CHANGE, MEAN, Algorithm, LocalSGD, Trait
from .algorithms.registry import name_of
from .compose import AROUND, BESIDE, RESIDUAL, WARNED, Composed, Fact, Key, clashes, true
from .compression.codecs import Dense
from .compression.error_feedback import EF21
from .compression.link import LONGEST, Link
from .core.arithmetic import total
from .errors import CompositionError, ConfigError
from .federation.local import Local
from .federation.private_examples import one_gradient
from .objectives import Needs, Objective
from .stage import TAKEN, Stage, overriding
from .submodels.base import SubModel
from .submodels.private import Private
from .trace import Trace, data_requests, plain_means, traced
from .wrappers import Lookahead, PerStep, Sam, ServerOpt
from .wrappers.base import Wrapper, layers, method_in
from .wrappers.client import LocalOpt
from .wrappers.optimisers import Momentum, Nesterov
from .wrappers.registry import SERVERS


class Setting(NamedTuple):
    """What the rules ask about the federation beside the method."""

    order: str = "shuffled"  # of the batches, see Local.order
    forgets: bool = False  # clients that come back have lost their state, see Churn.forget
    unequal: bool = False  # aggregation weights differ from client to client
    staleness: float | None = None  # see Asynchronous.staleness; None: all train in rounds
    forger: str = ""  # the name of an attack that makes its updates of all honest ones
    dp: bool = False  # see Local.dp
    unaccounted: str = ""  # what draws the cohorts, if not as DifferentialPrivacy counts them
    chooser: str = ""  # the name of a choice that asks clients for their losses


@dataclass(frozen=True)
class Plan:
    """The axes of a method: algorithm (with its local parts around it, see Local.around),
    objective, submodel (the scheme; None: whole models), link (how messages travel), private
    (layers that clients keep), aggregation (of updates), stages (own ones, in order of sending).

    nonfinite: of an update that is not finite, "stop" raises ClientError naming client and round;
    "skip" leaves it out of the means and lets its client keep the state it had. With a server state
    that is not finite no update of the round counts. Raises CompositionError for parts that have no
    meaning together.
    """

    algorithm: Algorithm
    objective: Objective
    nonfinite: str = "stop"
    submodel: SubModel | None = None
    link: Link = field(default_factory=Link)
    d: int | None = None
    setting: Setting = field(default_factory=Setting)
    private: Private | None = None
    aggregation: Aggregation = field(default_factory=Mean)
    stages: tuple[Stage, ...] = ()

    def __post_init__(self) -> None:
        link = self.link.spelled_out(self.algorithm)
        object.__setattr__(self, "link", link)
        if reason := refusal(self):
            raise CompositionError(reason)
        object.__setattr__(self, "link", link.settled(self.algorithm))

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
        if type(method_in(self.algorithm)).unweighted is LocalSGD.unweighted:
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
        return [*clashes(parts_of(self), WARNED), *filter(None, [two_means(self)])]

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


def refusal(plan: Plan) -> str | None:
    """Why the parts of a plan have no meaning together; None if they have one."""
    for wrapper in layers(plan.algorithm):
        for sentence in clashes([around_steps(wrapper), wrapped(plan, wrapper.inner)], AROUND):
            return sentence
    for sentence in clashes(parts_of(plan), BESIDE):
        return sentence
    return next((why for check in BY_HAND if (why := check(plan))), None)


# ----------------------------------------------------------------------------- the facts of a part
def around_steps(wrapper: Wrapper) -> Composed:
    """A wrapper, called as a configuration writes it; by its class if only Python has it."""
    facts: set[Key] = set(type(wrapper).__mro__)
    if isinstance(wrapper, LocalOpt):
        by_momentum = isinstance(wrapper.opt, (Momentum, Nesterov))
        name = "local.momentum" if by_momentum else "local.optimiser"
        facts |= true({Fact.NO_WEIGHTS: not wrapper.opt.linear})
        return Composed(name, facts, type(wrapper.opt).__name__)
    kind = type(wrapper)
    name = {Sam: "local.sam", Lookahead: "server=lookahead"}.get(kind, kind.__name__)
    if isinstance(wrapper, ServerOpt):
        name = f"server={next((n for n, o in SERVERS.items() if o is type(wrapper.opt)), '')}"
    return Composed(name, facts)


def wrapped(plan: Plan, inner: Algorithm) -> Composed:
    """What a wrapper is around."""
    method = method_in(inner)
    reads = not inner.traits.isdisjoint({Trait.READS_THE_MOVE, Trait.REPLAYS_THE_MOVE})
    option = getattr(method, "option", 1) == 2 and Trait.PERTURBS not in inner.traits
    steps = any(isinstance(part, PerStep) for part in layers(inner))
    facts = {
        Fact.READS_MOVE: reads,
        Fact.CHOICE_OF_MOVE: reads and option,
        Fact.READS_MORE: reads or bool(plan.averaged),
        Fact.PER_STEP: steps or getattr(method, "per_step", False),
    }
    return Composed(name_of(inner), inner.traits | true(facts))


def parts_of(plan: Plan) -> list[Composed]:
    """The parts of a plan, without the wrappers around the method's steps."""
    setting, needs = plan.setting, plan.objective.needs
    loss, late = true({Fact.ONE_EXIT: needs is not Needs.EXITS}), setting.staleness
    clock = {
        Fact.ROUNDS: late is None,
        Fact.ASYNCHRONOUS: late is not None,
        Fact.DISCOUNTS: bool(late),
    }
    return [
        Composed("clock=synchronous" if late is None else "an asynchronous clock", true(clock)),
        Composed(setting.forger, true({Fact.FORGES: bool(setting.forger)})),
        Composed(plan.objective.name, loss if needs is None else loss | {needs}),
        method(plan),
        submodel(plan.submodel),
        aggregation(plan.aggregation),
        *link(plan),
        *(own_stage(stage) for stage in plan.stages),
        *([Composed(plan.private.name, {Private, Fact.TRAVELS})] if plan.private else []),
        Composed("churn.forget", true({Fact.FORGETS: setting.forgets})),
        Composed("weighting by examples", true({Fact.WEIGHTED: setting.unequal})),
        Composed(f"local.order = {setting.order}", true({Fact.SHUFFLED: setting.order != "text"})),
        Composed("local.dp", true({Fact.HIDES_EXAMPLES: setting.dp})),
        Composed(f"choose = {setting.chooser}", true({Fact.TELLS_LOSSES: bool(setting.chooser)})),
        Composed(setting.unaccounted, true({Fact.UNACCOUNTED: bool(setting.unaccounted)})),
    ]


def method(plan: Plan) -> Composed:
    """The method, with the wrappers around it."""
    alg, adding = plan.algorithm, (ACCUMULATED, CHANGE)
    trace = None if plan.private is None else plan.trace  # a round on zeros, for who asks
    more = [] if trace is None else [f for f in trace.msg._fields if f != "x"]
    more += [] if trace is None else trace.mem._fields
    facts = {
        Fact.WHOLE: alg.personalises or Trait.WHOLE_MODEL in alg.traits,
        Fact.DIVIDES_MEANS: bool(plan.averaged) and Trait.DIVIDES_BY_RATES in alg.traits,
        Fact.WEIGHS_MEANS: bool(plan.averaged) and Trait.WEIGHS_ITSELF in alg.traits,
        Fact.PROBES: alg.probes,
        Fact.ASKS: alg.asks,
        Fact.ARRIVES: alg.arrives,
        Fact.ADDS: any(how in adding for how in alg.compressible_up.values()),
        Fact.ADDS_MOVE: alg.compressible_up.get("delta") in adding,
        Fact.MORE_THAN_X: bool(more),
    }
    return Composed(alg.method, alg.traits | true(facts), more[0] if more else "")


def submodel(scheme: SubModel | None) -> Composed:
    """Which part of the model a client holds, and trains."""
    if scheme is None:
        return Composed("whole models", {Fact.WHOLE_PARTS})
    facts = {
        Fact.NO_MATRICES: not scheme.cuts,
        Fact.COUNTS_ZEROS: scheme.counts_values,
        Fact.TRAINS_EXITS: scheme.trains is Needs.EXITS,
        Fact.WHOLE_PARTS: scheme.trains is not Needs.DRAWN_PARTS,
    }
    return Composed(scheme.name, {Fact.PARTS, Fact.TRAVELS, *true(facts)})


def aggregation(part: Aggregation) -> Composed:
    """What becomes of a round's updates."""
    whole_sum = part.reads in (Reads.WHOLE_SUM, Reads.RING)
    facts = {
        Fact.NOT_THE_MEAN: part.gives is not Gives.MEAN,
        Fact.UPDATES_ALONE: part.of_answers is None,
        Fact.NEEDS_LENGTH: whole_sum and not part.private,
        Fact.COMPARES: part.reads is Reads.ROWS,
        Fact.NOT_PLAIN: True,
        Fact.HIDES: part.private,
        Fact.SHORTENS: part.gives is Gives.BOUNDED,
        Fact.FIELD_BY_FIELD: part.gives is Gives.FIELDS,
        Fact.RING: part.reads is Reads.RING,
        Fact.MASKED: part.masked,
    }
    return Composed(part.name, set() if part.plain else true(facts) | {type(part)})


def link(plan: Plan) -> Iterator[Composed]:
    """How each field travels: its codec, and its error feedback if that is EF21."""
    sent = plan.algorithm.compressible_up
    for name, via in plan.link.field_codecs.items():
        adds = sent.get(name) in (ACCUMULATED, CHANGE)
        facts = {
            Fact.MATRICES: via.codec.matrices,
            Fact.CODED: not isinstance(via.codec, Dense),
            Fact.CODED_MOVE: name == "delta" and not isinstance(via.codec, Dense),
            Fact.LOSES_SUMS: name in plan.link.losing and adds,
        }
        yield Composed(type(via.codec).__name__, true(facts))
        if isinstance(via.feedback, EF21):
            remembered = {
                Fact.REMEMBERED: sent.get(name) is not CHANGE,
                Fact.MIRRORS_MOVE: name == "delta",
            }
            yield Composed("EF21", {EF21, *true(remembered)})
    for codec in plan.link.codes_down.values():
        yield Composed(f"{type(codec).__name__} down", {Fact.CODED_DOWN})


def own_stage(stage: Stage) -> Composed:
    """A stage of the user's."""
    addresses, reads = bool(overriding((stage,), "address")), bool(overriding((stage,), "read"))
    facts = {Fact.ADDRESSES: addresses, Fact.TRAVELS: addresses, Fact.READS: reads}
    return Composed(type(stage).__name__, true(facts))


# ---------------------------------------------------------- of one field of a message, or of values
def coded_field(plan: Plan) -> str | None:
    """Only what reaches the server through means may be compressed; down, what may be near."""
    alg = plan.algorithm
    for name, via in plan.link.field_codecs.items():
        if name not in alg.compressible_up:
            return (
                f"{type(via.codec).__name__} for '{name}' and {alg.method}: only fields that "
                "reach the server through means may be compressed, here "
                f"{', '.join(alg.compressible_up) or 'none'}"
            )
    for name, codec in plan.link.codes_down.items():
        if name not in alg.compressible_down:
            return (
                f"{type(codec).__name__} down for '{name}' and {alg.method}: its clients need the "
                f"exact '{name}'; what they may hold an approximation of: "
                f"{', '.join(alg.compressible_down) or 'nothing'}"
            )
    return None


def mean_for_ef21(plan: Plan) -> str | None:
    """EF21 keeps the mean of all clients' updates: it must be one that the server needs."""
    alg, means = plan.algorithm, plan.averaged
    for name, via in plan.link.field_codecs.items():
        if not isinstance(via.feedback, EF21):
            continue
        if name not in ("delta", *means):
            return (
                f"EF21 for '{name}' and {alg.method}: its server has no mean of '{name}' that EF21 "
                f"could stand in for; {RESIDUAL}"
            )
        if other := sorted(set(means) - set(alg.compressible_up)):
            return (
                f"EF21 and {alg.method}: its server also needs the cohort's own mean of "
                f"{', '.join(other)}, not EF21's of all clients; {RESIDUAL}"
            )
        weighted = name in means and alg.compressible_up[name] is MEAN and name not in plan.plain
        if weighted and plan.setting.unequal:
            return (
                f"EF21 and {alg.method}: its server divides the mean of '{name}' by this cohort's "
                "weights, which differ from client to client, and EF21 has that of all clients; "
                f"{RESIDUAL}, or weighting=uniform"
            )
    return None


def bounded_feedback(plan: Plan) -> str | None:
    """Error feedback needs a codec that loses less than all."""
    up = next(
        (why for _, via in plan.link.field_codecs.items() if (why := via.unfit(plan.d))), None
    )
    for codec in () if up else plan.link.codes_down.values():
        if why := codec.unfit(LONGEST if plan.d is None else plan.d):
            return f"the server's feedback around {type(codec).__name__} down: {why}"
    return up


def accounted_examples(plan: Plan) -> str | None:
    """The accounts of private examples are of one gradient of a batch in every step."""
    alg = plan.algorithm
    if not plan.setting.dp:
        return None
    if alg.probes or alg.asks:
        return one_gradient(
            alg.method, "what clients answer before their local steps is of their data"
        )
    if plan.objective.carries:
        return one_gradient(plan.objective.name, "it keeps a state of one batch for the next")
    for name, part in ((alg.method, method_in(alg)), (type(alg).__name__, alg)):
        try:
            requests = data_requests(part, plan.d or 2)
        except Exception:  # an author's code may raise anything on zeros; a run refuses it there
            continue
        if requests:
            return one_gradient(name, f"it asks for {requests[0]}")
    return None


def names_of_stages(plan: Plan) -> str | None:
    """A stage's part of the state has a name of its own."""
    names = TAKEN
    for stage in plan.stages:
        if stage.name in names:
            return (
                f"two parts of the state would be called '{stage.name}': give the stage "
                f"{type(stage).__name__} another name"
            )
        names = names | {stage.name} - {""}
    return None


BY_HAND: tuple[Callable[[Plan], str | None], ...] = (
    coded_field,
    mean_for_ef21,
    bounded_feedback,
    accounted_examples,
    names_of_stages,
)


def two_means(plan: Plan) -> str | None:
    """Plain means beside a weighted one belong to two objectives."""
    alg, aggregate, forger = plan.algorithm, plan.aggregation, plan.setting.forger
    if not plan.setting.unequal or Trait.WEIGHS_ITSELF in alg.traits:
        return None
    if plan.plain:
        return (
            f"{alg.method} averages {' and '.join(plan.plain)} plainly, and the models with "
            "weights that differ from client to client: two means are two objectives; take "
            "weighting=uniform, or multiply by job.relative_weight in unweighted()"
        )
    if plan.averaged and (forger or aggregate.reads is Reads.ROWS):
        return (
            f"{alg.method} and {forger or aggregate.name}: {' and '.join(plan.averaged)} would be "
            "weighted sums, which it does not make, and clients have different weights; take "
            "weighting=uniform"
        )
    return None
