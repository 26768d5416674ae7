"""Names -> methods, by hand. A composition is written here or in its paper's file, never as a class
that mixes papers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from .. import algorithms as papers
from ..algorithm import Algorithm
from ..core.hyper import Hyper, keys_of
from ..core.registry import Registry
from ..wrappers.base import Wrapper

ALGORITHMS: Registry[Callable[..., Algorithm]] = Registry(
    "algorithm",
    {
        "fedavg": (papers.FedAvg, "FedAvg"),
        "fedprox": (papers.FedProx, "FedProx"),
        "fedavgm": (papers.FedAvgM, "FedAvgM"),
        "scaffold": (papers.SCAFFOLD, "SCAFFOLD"),
        "fedacg": (papers.FedACG, "FedACG"),
        "fednova": (papers.FedNova, "FedNova"),
        "cfedavg": (papers.CFedAvg, "CFedAvg"),
        "feddyn": (papers.FedDyn, "FedDyn"),
        "fedsmoo": (papers.FedSMOO, "FedSMOO"),
        "fafed": (papers.FAFED, "FAFED"),
        "fedadagrad": (papers.FedAdagrad, "FedAdagrad"),
        "fedadam": (papers.FedAdam, "FedAdam"),
        "fedyogi": (papers.FedYogi, "FedYogi"),
        "fedams": (papers.FedAMS, "FedAMS"),
        "fedcm": (papers.FedCM, "FedCM"),
        "feddc": (papers.FedDC, "FedDC"),
        "fedsam": (papers.FedSAM, "FedSAM"),
        "mofedsam": (papers.MoFedSAM, "MoFedSAM"),
        "fedgamma": (papers.FedGAMMA, "FedGAMMA"),
        "fedspeed": (papers.FedSpeed, "FedSpeed"),
        "stem": (papers.STEM, "STEM"),
        "fedexp": (papers.FedExP, "FedExP"),
        "scaffnew": (papers.Scaffnew, "Scaffnew"),
        "mime": (papers.Mime, "Mime"),
        "mimelite": (papers.MimeLite, "MimeLite"),
        "fedlin": (papers.FedLin, "FedLin"),
        "qfedavg": (papers.QFedAvg, "q-FedAvg"),
        "afl": (papers.AFL, "AFL"),
        "ditto": (papers.Ditto, "Ditto"),
        "ifca": (papers.IFCA, "IFCA"),
        "diloco": (papers.DiLoCo, "DiLoCo"),
        "fedbuff": (papers.FedBuff, "FedBuff"),
        "naive_adaptive": (papers.NaiveAdaptive, "naive adaptive FedAvg"),
    },
    own=Algorithm,
)


def make_algorithm(name: str, **values: Any) -> Algorithm:
    """A method by its name. Raises ConfigError for an unknown name or option, and for a value out
    of range.

    >>> make_algorithm("fedacg", lam=0.9)
    FedACG(lam=0.9, beta=0.01)
    """
    method: Algorithm = ALGORITHMS.make(name, **values)
    return method


def options(name: str) -> Mapping[str, Hyper]:
    """The hyper-parameters of a method, with ranges and sources."""
    return keys_of(ALGORITHMS.entry(name))


def label_of(algorithm: Algorithm) -> str:
    """What tables and legends call an algorithm: its paper's name, or the expression it is.

    >>> label_of(papers.fedavgm(beta=0.4))
    'FedAvgM'
    """
    for name, make in ALGORITHMS.items():
        if _shape(make()) == _shape(algorithm):
            return ALGORITHMS.label(name)
    return _expression(algorithm)


def name_of(algorithm: Algorithm) -> str:
    """What errors call an algorithm: the label of the outermost composition in it that has a name,
    such as FedSAM; without one the class of the method inside.

    >>> from fedloom.wrappers import Clip
    >>> name_of(Clip(inner=papers.fedsam())), name_of(Clip(inner=papers.Scaffold()))
    ('FedSAM', 'Scaffold')
    """
    part = algorithm
    while isinstance(part, Wrapper):
        for name, make in ALGORITHMS.items():
            if _shape(make()) == _shape(part):
                return ALGORITHMS.label(name)
        part = part.inner
    return algorithm.method


def _shape(part: Any) -> Any:
    """The types that a composition is made of."""
    inner = [getattr(part, f.name) for f in dataclasses.fields(part)]
    return type(part), [_shape(p) for p in inner if dataclasses.is_dataclass(p)]


def _expression(part: Any) -> str:
    inner = [getattr(part, f.name) for f in dataclasses.fields(part)]
    names = [_expression(p) for p in inner if dataclasses.is_dataclass(p)]
    return f"{type(part).__name__}({', '.join(names)})" if names else type(part).__name__
