"""Mixes of all axes: any two values of two axes that have a meaning together meet in one of them.

An axis is {name: part}; a mix takes one name of each. Pairs that have no meaning follow from what
the parts declare; `refusal` states the rules, independently of the code that enforces them.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any

import torch

from fedloom import Local
from fedloom.algorithm import MEAN, Algorithm, Trait
from fedloom.algorithms.registry import ALGORITHMS, make_algorithm, name_of
from fedloom.checks.tiny_federation import CAPACITIES, Trial, experiment, federation
from fedloom.compression.codecs import QSGD, Dense, PowerSGD, RandomDropping, TopK
from fedloom.compression.error_feedback import EF21, Forget, Residual
from fedloom.compression.link import FieldCodec
from fedloom.federation.schedules import Exponential
from fedloom.objectives import OBJECTIVES, Needs
from fedloom.plan import traced
from fedloom.submodels import SUBMODELS
from fedloom.trace import plain_means
from fedloom.wrappers import Adam, Lookahead, Momentum, PerStep, Prox, ServerOpt

MOVES = {Trait.READS_THE_MOVE, Trait.REPLAYS_THE_MOVE}
RATES = {"lr": 0.05, "epochs": 2, "batch": 4, "schedule": Exponential(decay=0.9, step_decay=0.97)}


def averaged(algorithm: Algorithm) -> tuple[str, ...]:
    """The fields that a method's server needs plain means of."""
    return traced(algorithm, 2).averaged._fields


AXES: dict[str, dict[str, Any]] = {
    "algorithm": {
        **{name: make_algorithm(name) for name in ALGORITHMS},
        # without eps, coordinates of a client with one example take steps of one size: which of
        # them top-k sends, rounding decides, in each engine for itself
        "naive_adaptive": make_algorithm("naive_adaptive", eps=1e-3),
        "scaffold, option I": make_algorithm("scaffold", option=1),
        "fedsmoo without dynamics": make_algorithm("fedsmoo", dynamic=False),
        "fedsmoo without correction": make_algorithm("fedsmoo", correction=False),
        "fedsmoo without perturbation": make_algorithm("fedsmoo", rho=0.0),
        "fafed with a schedule": make_algorithm("fafed", c=100.0),
    },
    # one that needs a text in its order has tests of its own, test_model_kinds.py; what needs a
    # model with exits, or parts drawn in every step, is in cases.py
    "objective": {name: make() for name, make in OBJECTIVES.items() if not make.needs},
    "view": {
        "none": None,
        **{
            name: rule
            for name, make in SUBMODELS.items()
            if (rule := make()).trains is not Needs.EXITS
        },
    },
    "codec": {
        "none": None,
        "dense": FieldCodec(Dense(), Residual()),
        "topk": FieldCodec(TopK(ratio=0.2), Residual()),
        "topk, EF21": FieldCodec(TopK(ratio=0.2, scope="layer"), EF21()),
        "dropping": FieldCodec(RandomDropping(ratio=0.3), Residual()),
        "scaled dropping": FieldCodec(RandomDropping(ratio=0.5, scaled=True), Forget()),
        "qsgd": FieldCodec(QSGD(levels=127, bucket=64), Residual()),
        "powersgd": FieldCodec(PowerSGD(rank=1), Residual()),
    },
    "local": {
        "sgd": Local(**RATES),
        "momentum": Local(**RATES, momentum=0.5),
        "adam": Local(**RATES | {"lr": 0.01}, optimiser="adam"),
        "adamw": Local(**RATES | {"lr": 0.01}, optimiser="adamw", weight_decay=0.01),
        "clip, decay": Local(**RATES, clip=0.5, weight_decay=0.01),
        "steps": Local(steps=3, batch=None, lr=0.05),
    },
    "server": {
        "plain": lambda inner: inner,
        "prox": lambda inner: Prox(inner=inner, mu=0.1),
        "momentum": lambda inner: ServerOpt(inner=inner, opt=Momentum(lr=1.0, beta=0.5)),
        "adam": lambda inner: ServerOpt(inner=inner, opt=Adam(lr=0.02, beta2=0.9, eps=1e-3)),
        "lookahead": lambda inner: Lookahead(inner=inner, lam=0.5),
        "per step": lambda inner: PerStep(inner=inner),
    },
}
NEUTRAL = {axis: next(iter(values)) for axis, values in AXES.items()}
Mix = dict[str, str]
Pair = tuple[tuple[str, str], tuple[str, str]]  # (axis, value) twice, in the order of AXES
_is_ef21 = lambda via: via is not None and isinstance(via.feedback, EF21)
pairs_of = lambda mix: itertools.combinations(tuple(mix.items()), 2)
maker = lambda mix: lambda dtype=torch.float32, **changes: trial(mix, dtype, **changes)
shown = lambda mix: "-".join(value for axis, value in mix if value != NEUTRAL[axis]) or "neutral"


# ---------------------------------------------------------------------------------- what is refused
def refusal(pair: Pair) -> tuple[str, str] | None:
    """The names that the error for this pair must have, or None if it has a meaning."""
    (a, p), (b, q) = pair
    one, other = AXES[a][p], AXES[b][q]
    if a == "algorithm":
        assert isinstance(one, Algorithm)
        if b == "view" and other is not None and Trait.WHOLE_MODEL in one.traits:
            return other.name, one.method
        if b == "local" and one.traits & MOVES and (other.momentum or other.optimiser != "sgd"):
            return "local.", name_of(one)
        if b == "local" and Trait.DIVIDES_BY_RATES in one.traits and other.optimiser != "sgd":
            return "local.", name_of(one)
        if b == "server" and q == "prox" and Trait.DIVIDES_BY_RATES in one.traits:
            return "Prox", name_of(one)
        if b == "server" and q == "per step" and (one.traits & MOVES or averaged(one)):
            return "PerStep", name_of(one)
        ahead = Trait.STARTS_AHEAD in one.traits
        if b == "server" and ahead and q in ("momentum", "adam", "lookahead"):
            return "server=", name_of(one)
        several = Trait.SEVERAL_MODELS in one.traits
        if b == "server" and several and q in ("momentum", "adam", "lookahead"):
            return "server=", name_of(one)
        if b == "codec" and _is_ef21(other) and set(averaged(one)) - set(one.compressible_up):
            return "EF21", one.method
        weighed = set(averaged(one)) - set(plain_means(one, traced(one, 2).up))
        if (
            b == "codec"
            and _is_ef21(other)
            and any(one.compressible_up.get(n) is MEAN for n in weighed)
        ):
            return "EF21", one.method  # clients have different weights here
    if (a, b) == ("view", "codec") and one is not None and other is not None:
        if _is_ef21(other):
            return "EF21", one.name
        if other.codec.matrices and not one.cuts:
            return type(other.codec).__name__, one.name
    return None


# ------------------------------------------------------------------------------------- the covering
@functools.cache
def pairs() -> tuple[Pair, ...]:
    """All pairs of values of two axes."""
    return tuple(
        ((a, p), (b, q))
        for a, b in itertools.combinations(AXES, 2)
        for p in AXES[a]
        for q in AXES[b]
    )


@functools.cache
def mixes() -> tuple[tuple[tuple[str, str], ...], ...]:
    """Greedy: the first missing pair, then of every other axis the value with most of them."""
    allowed = {pair for pair in pairs() if refusal(pair) is None}
    missing = dict.fromkeys(pair for pair in pairs() if pair in allowed)
    out = []
    while missing:
        mix = dict(next(iter(missing)))
        for axis in AXES:
            if axis in mix:
                continue
            best, most = "", -1
            for value in _rotated(axis, len(out)):
                new = [_pair(axis, value, a, v) for a, v in mix.items()]
                gain = sum(pair in missing for pair in new)
                if gain > most and all(pair in allowed for pair in new):
                    best, most = value, gain
            mix[axis] = best
        mix = {axis: mix[axis] for axis in AXES}
        for pair in pairs_of(mix):
            missing.pop(pair, None)
        out.append(tuple(mix.items()))
    return tuple(out)


def _rotated(axis: str, by: int) -> list[str]:
    """The neutral value first: there is always one that fits; then the others, in turn."""
    first, *others = AXES[axis]
    by %= len(others)
    return [*others[by:], *others[:by], first]


def _pair(a: str, p: str, b: str, q: str) -> Pair:
    order = list(AXES)
    return ((a, p), (b, q)) if order.index(a) < order.index(b) else ((b, q), (a, p))


def to_run() -> list[tuple[tuple[tuple[str, str], ...], bool]]:
    """The mixes, and whether they are slow: without a value beside the method that is new."""
    seen, out = set[tuple[str, str]](), []
    for mix in mixes():
        new = {pair for pair in mix if pair[0] != "algorithm"} - seen
        seen |= new
        out.append((mix, not new))
    return out


# ---------------------------------------------------------------------------------------- to run it
def tolerance(mix: Mix) -> float:
    """Rounding is 1e-12, of a tensor's largest; dividing by a small second moment lets it grow."""
    divides = mix["algorithm"].startswith(("fafed", "naive")) or mix["local"] in ("adam", "adamw")
    return 1e-9 if divides or mix["server"] == "adam" else 1e-12


def trial(mix: Mix, dtype: torch.dtype = torch.float32, **changes: Any) -> Trial:
    """The run of a mix; an objective of numbers gets numbers as targets."""
    part = {axis: AXES[axis][mix[axis]] for axis in AXES}
    settings = {
        "algorithm": part["server"](part["algorithm"]),
        "objective": part["objective"],
        "submodel": part["view"],
        "capacities": None if part["view"] is None else CAPACITIES,
        "compress": part["codec"],
        "local": part["local"],
        "rounds": 3,
        "data": federation(dtype, mix["objective"] != "squared_error"),
    }
    return experiment(dtype, **(settings | changes))


def with_only(pair: Pair) -> Mix:
    """The mix of these two values, and the neutral one of every other axis."""
    return NEUTRAL | dict(pair)
