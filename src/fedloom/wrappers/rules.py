"""Which wrapper has a meaning around which method. plan.py asks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..algorithm import Algorithm, Trait
from .base import Wrapper, layers, method_in
from .client import Clip, LocalOpt, PerStep, Prox, Sam, WeightDecay
from .optimisers import Momentum
from .registry import SERVERS
from .server import Lookahead, ServerOpt


def misplaced(
    algorithm: Algorithm, averaged: tuple[str, ...], called: Callable[[Algorithm], str]
) -> str | None:
    """Why the first wrapper that has no meaning around what it wraps has none. averaged: the fields
    of which the server needs plain means; called: the name of what is wrapped.
    """
    for wrapper in layers(algorithm):
        for kind, rule in AROUND:
            if isinstance(wrapper, kind) and (why := rule(wrapper, wrapper.inner.traits)):
                return f"{_setting(wrapper)} and {called(wrapper.inner)}: {why}"
        if isinstance(wrapper, PerStep) and (why := _per_step(averaged, wrapper)):
            return f"{type(wrapper).__name__} and {called(wrapper.inner)}: {why}"
    return None


def _setting(wrapper: Wrapper) -> str:
    """What was asked for, as a configuration writes it; the class of what only Python has."""
    if isinstance(wrapper, LocalOpt):
        return "local.momentum" if isinstance(wrapper.opt, Momentum) else "local.optimiser"
    if isinstance(wrapper, ServerOpt):
        return f"server={next((n for n, o in SERVERS.items() if o is type(wrapper.opt)), '')}"
    return {Sam: "local.sam", Lookahead: "server=lookahead"}.get(
        type(wrapper), type(wrapper).__name__
    )


Around = Callable[[Any, frozenset[Trait]], "str | None"]


def _if(trait: Trait, why: str) -> Around:
    return lambda wrapper, traits: why if trait in traits else None


def _local_optimiser(wrapper: LocalOpt, traits: frozenset[Trait]) -> str | None:
    if traits & {Trait.READS_THE_MOVE, Trait.REPLAYS_THE_MOVE}:
        scaffold = getattr(method_in(wrapper), "option", 1) == 2 and Trait.PERTURBS not in traits
        also = ", or algorithm.option=1" if scaffold else ""
        return (
            "it takes its move for the sum of its directions, which a local optimiser changes; "
            f"take plain steps, local.optimiser=sgd with local.momentum=0{also}"
        )
    if Trait.DIVIDES_BY_RATES in traits and not wrapper.opt.linear:
        return (
            f"it divides by the weights of its gradients, and {type(wrapper.opt).__name__} gives "
            "them none; take local.momentum, or plain steps"
        )
    return None


def _per_step(averaged: tuple[str, ...], wrapper: PerStep) -> str | None:
    inner: Any = wrapper.inner
    reads = {Trait.READS_THE_MOVE, Trait.REPLAYS_THE_MOVE} & inner.traits
    if reads or averaged:
        return "its server reads more than the mean move, and reads that whole"
    while inner is not None:
        if isinstance(inner, PerStep) or getattr(inner, "per_step", False):
            return "it sends the mean move per step already"
        inner = getattr(inner, "inner", None)
    return None


_SEVERAL = "it would move x alone of the models that this method's server has"
_RECURSION = "its direction is a recursion over gradients; use ClipGrad"
AROUND: tuple[tuple[type[Wrapper], Around], ...] = (
    (
        Prox,
        _if(
            Trait.DIVIDES_BY_RATES,
            "it divides by the weights of its gradients, of which a pull makes the earlier ones "
            "smaller, unknown to it; use one of them",
        ),
    ),
    (Sam, _if(Trait.PERTURBS, "it perturbs its own gradients already; use one of them")),
    (Clip, _if(Trait.RECURSIVE, _RECURSION)),
    (WeightDecay, _if(Trait.RECURSIVE, _RECURSION)),
    (LocalOpt, _local_optimiser),
    (
        ServerOpt,
        _if(
            Trait.STARTS_AHEAD,
            "its clients start along its server's own last move, which an optimiser would change; "
            "take the look-ahead around the optimiser, as algorithm=fedadam server=lookahead does",
        ),
    ),
    (ServerOpt, _if(Trait.SEVERAL_MODELS, _SEVERAL)),
    (Lookahead, _if(Trait.SEVERAL_MODELS, _SEVERAL)),
    (Lookahead, _if(Trait.STARTS_AHEAD, "its clients start ahead of the server's model already")),
)
