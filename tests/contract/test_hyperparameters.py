"""No option is there for nothing: another legal value changes a run."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import pkgutil
from typing import Annotated, Any, Literal

import pytest
import torch
from annotated_types import Ge, Le

import fedloom
from fedloom import Local, LocalSGD
from fedloom.algorithms import FAFED, STEM
from fedloom.algorithms.registry import ALGORITHMS, make_algorithm
from fedloom.checks import CONTRACTS
from fedloom.checks.compare import unequal
from fedloom.checks.tiny_federation import CAPACITIES, End, Trial, experiment, federation, run
from fedloom.compression.codecs import CODECS
from fedloom.core.hyper import Hyper, NonNegative, PositiveShare, ShareBelow1
from fedloom.core.vector import rec
from fedloom.data import FederatedData, from_clients
from fedloom.errors import ConfigError
from fedloom.federation.schedules import FAFEDTheory, Schedule, STEMTheory
from fedloom.objectives import OBJECTIVES
from fedloom.submodels import FIARSE, SUBMODELS, Private
from fedloom.wrappers import Optimiser, ServerOpt, Wrapper


def values(hyper: Hyper, value: Any) -> list[Any]:
    """Values that the rule allows and that differ, the likeliest to matter first."""
    out: list[Any] = []
    for v in _candidates(hyper, value):
        differs = type(v) is not type(value) or v != value
        if hyper.allows(v) and differs and v not in out:
            out.append(v)
    return out


def another(hyper: Hyper, value: Any = None) -> Any:
    """The first of values(); None if there is none."""
    return next(iter(values(hyper, value)), None)


def _candidates(hyper: Hyper, value: Any) -> list[Any]:
    if hyper.choices:
        return list(hyper.choices)
    if isinstance(value, bool):
        return [not value]
    low, high = hyper.ends
    middle = (low + high) / 2 if low is not None and high is not None else None
    if isinstance(value, int):
        ends = [int(v) for v in (low, high) if v is not None]
        return [max(1, value // 2), value + 1, value - 1, max(1, value // 64), *ends]
    if isinstance(value, float) and value:
        return [v for v in (value / 2, value * 2, middle, 1.0, 0.0) if v is not None]
    return [v for v in (0.5, 1, middle) if v is not None]


def test_other_values_are_legal_and_differ():
    for rule, value in (
        (Hyper(PositiveShare), 0.01),
        (Hyper(ShareBelow1), 0.0),
        (Hyper(Annotated[int, Ge(1), Le(127)]), 127),
        (Hyper(NonNegative | None), None),
        (Hyper(bool), True),
        (Hyper(Literal[1, 2]), 2),
    ):
        result = values(rule, value)
        assert result and all(rule.allows(v) and v is not value and v != value for v in result)


HOMES = ("federation.local", "federation.schedules", "submodels.private", "wrappers")
# where an option matters, if that is not in what the class has by default
BASE: dict[str, dict[str, Any]] = {
    "Adam": {"lr": 0.02, "eps": 1e-2},
    "Clip": {"norm": 0.1},
    "FAFEDTheory": {"N": 6, "q": 4, "rho": 1.0},
    "Local": {"epochs": 2, "batch": 2, "lr": 0.1},
    "Milestones": {"at": (1, 2)},
    "STEMTheory": {"N": 6, "q": 4},
    "ServerAMSGrad": {"eps": 1e-8},
    "WeightDecay": {"wd": 0.01},
}
# {class.option: the other value, what else changes}
OTHER: dict[str, dict[str, Any]] = {
    "CubeRoot.unit": {"unit": "round"},
    "Local.batch": {"batch": 3},
    "Local.clip": {"clip": 0.1},
    "Local.epochs": {"epochs": 1},
    "Local.lr_by_client": {"lr_by_client": {0: 0.5}},
    "Local.order": {"order": "text"},
    "Local.steps": {"epochs": None, "steps": 3},
    "Milestones.at": {"at": (2,)},
    "FedPer.layers": {"layers": ("second",)},
    "FedRep.layers": {"layers": ("second",)},
}
# below, or in tests of their own
ELSEWHERE = {"Clip.clip_pull", "CubeRoot.epoch", "RAdam.eps"}
ELSEWHERE |= {f"Local.{name}" for name in ("beta1", "beta2", "clip_pull", "dp", "passes")}
ELSEWHERE |= {f"Local.{name}" for name in ("probe_batch", "drop_last", "seconds")}


@functools.cache
def classes() -> dict[str, type]:
    """Every dataclass of these modules that has a hyper-parameter."""
    out: dict[str, type] = {}
    for name in (m.name for m in pkgutil.walk_packages(fedloom.__path__, "fedloom.")):
        if name.removeprefix("fedloom.").startswith(HOMES):
            for value in vars(importlib.import_module(name)).values():
                if isinstance(value, type) and value.__module__ == name and declared(value):
                    out[value.__name__] = value
    return out


def declared(part: type) -> dict[str, Hyper]:
    """{option: its rule}; of a class that inherits one, too."""
    if not dataclasses.is_dataclass(part):
        return {}
    pairs = {f.name: f.metadata.get("hyper") for f in dataclasses.fields(part)}
    return {name: rule for name, rule in pairs.items() if isinstance(rule, Hyper)}


OPTIONS = [(name, option) for name, part in classes().items() for option in declared(part)]


def base(kind: type) -> Any:
    """The part that is changed."""
    inner = {"inner": LocalSGD()} if issubclass(kind, Wrapper) else {}
    return kind(**BASE.get(kind.__name__, {}), **inner)


def trial(part: Any) -> Trial:
    """A run in which the part has its place."""
    if isinstance(part, Optimiser):
        return experiment(algorithm=ServerOpt(inner=LocalSGD(), opt=part), rounds=2)
    if isinstance(part, Wrapper):
        return experiment(algorithm=part, rounds=2)
    if isinstance(part, Private):
        return experiment(private=part, rounds=2)
    if isinstance(part, FAFEDTheory | STEMTheory):
        local = Local(epochs=1, batch=4, lr=1.0, schedule=part)
        make = STEM if isinstance(part, STEMTheory) else FAFED
        return experiment(algorithm=make(c=part.c), local=local, rounds=2)
    if isinstance(part, Schedule):
        return experiment(local=Local(epochs=1, batch=4, lr=0.05, schedule=part), rounds=3)
    assert isinstance(part, Local)
    return experiment(local=part, rounds=2)


@functools.cache
def unchanged(name: str) -> End:
    return run(trial(base(classes()[name])))


def differs(one: End, other: End) -> bool:
    rows = [rec(**{f"c{i}": row for i, row in end.memory.items()}) for end in (one, other)]
    known = bool(unequal(one.srv, other.srv)) or bool(unequal(*rows))  # a personal model, too
    return known or (one.up, one.down) != (other.up, other.down)


@pytest.mark.parametrize(
    ("name", "option"), [pair for pair in OPTIONS if ".".join(pair) not in ELSEWHERE]
)
def test_another_value_changes_the_run(name, option):
    part = base(classes()[name])
    now, rule = getattr(part, option), declared(classes()[name])[option]
    change = OTHER.get(f"{name}.{option}") or {option: another(rule, now)}
    assert change[option] != now and rule.allows(change[option]), "another legal value"
    assert differs(run(trial(dataclasses.replace(part, **change))), unchanged(name))


def without_short_clients() -> FederatedData:
    data = federation(torch.float32)
    own = [data.clients.of(i) for i in range(data.population)]
    pairs = [(data.inputs[index], data.targets[index]) for index in own if len(index) >= 3]
    return from_clients(pairs, test=pairs[0])


TWICE, THREES = (Local(epochs=2, batch=n, lr=0.05) for n in (4, 3))
ADAM, ADAMW = (dataclasses.replace(TWICE, optimiser=name) for name in ("adam", "adamw"))
MASKS = {"capacities": CAPACITIES, "local": dataclasses.replace(TWICE, momentum=0.9)}
# what else is set, and an option's other value
BESIDE: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "the batch of FAFED's first exchange": (
        {"algorithm": FAFED(), "local": TWICE},
        {"local": dataclasses.replace(TWICE, probe_batch=1)},
    ),
    "masked steps under momentum": (
        MASKS | {"submodel": FIARSE()},
        {"submodel": FIARSE(momentum_mask="update")},
    ),
    "the last batch": (
        {"data": without_short_clients(), "local": THREES},
        {"local": dataclasses.replace(THREES, drop_last=True)},
    ),
    "beta1 of Adam": ({"local": ADAM}, {"local": dataclasses.replace(ADAM, beta1=0.5)}),
    "beta2 of Adam": ({"local": ADAM}, {"local": dataclasses.replace(ADAM, beta2=0.5)}),
    "beta1 of AdamW": ({"local": ADAMW}, {"local": dataclasses.replace(ADAMW, beta1=0.5)}),
    "beta2 of AdamW": ({"local": ADAMW}, {"local": dataclasses.replace(ADAMW, beta2=0.5)}),
}


@pytest.mark.parametrize("name", BESIDE)
def test_another_value_changes_a_run_in_which_it_matters(name):
    settings, change = BESIDE[name]
    one, other = (run(experiment(rounds=2, **(settings | more))) for more in ({}, change))
    assert differs(one, other) and not differs(one, run(experiment(rounds=2, **settings)))


# --------------------------------------- methods, objectives, sub-models and codecs, as registered
REGISTERED = [
    *(("algorithm", n, make_algorithm) for n in ALGORITHMS),
    *(("objective", n, lambda n: OBJECTIVES[n]()) for n in OBJECTIVES),
    *(("sub-model scheme", n, lambda n: SUBMODELS[n]()) for n in SUBMODELS),
    *(("codec", n, lambda n: CODECS[n]()) for n in CODECS),
]
# FIARSE with both switches off: an option of its masks that are made again does nothing
IDLE = {("greedy", "momentum_mask")}


def variants(part: Any) -> dict[str, tuple[Any, list[Any]]]:
    """{option: (its value, the part with other legal values of it)}, inner parts included."""
    out: dict[str, tuple[Any, list[Any]]] = {}
    for field in dataclasses.fields(part):
        now = getattr(part, field.name)
        if dataclasses.is_dataclass(now) and not isinstance(now, type):
            for name, (value, inner) in variants(now).items():
                out[f"{field.name}.{name}"] = value, _all(part, field.name, inner)
            continue
        hyper = field.metadata.get("hyper")
        if isinstance(now, tuple):
            continue  # a list has no range to take another one from
        if hyper is None and isinstance(now, (int, float)):
            hyper = Hyper()  # a field without a declared range
        if isinstance(hyper, Hyper):
            out[field.name] = now, _all(part, field.name, values(hyper, now))
    return out


def _all(part: Any, name: str, values: list[Any]) -> list[Any]:
    """The part with each of these values, where it takes them: some go with other options only."""
    parts = []
    for value in values:
        with contextlib.suppress(ConfigError):
            parts.append(dataclasses.replace(part, **{name: value}))
    return parts


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "name", "make"), [pytest.param(*case, id=case[1]) for case in REGISTERED]
)
def test_another_value_of_a_registered_part_changes_its_run(kind, name, make):
    contract = CONTRACTS[kind](make(name))
    want = contract.serial(torch.float32)
    for option, (now, changed) in variants(contract.part).items():
        ends = (run(contract.trial(part, torch.float32)) for part in changed)
        assert changed, f"no other value of {option} is legal"
        matters = any(differs(end, want) for end in ends)
        assert matters is ((name, option) not in IDLE), f"{option} = {now}"
