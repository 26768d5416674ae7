"""No option is there for nothing: another legal value of any hyper-parameter changes a run.

Every dataclass with hyper() fields in the packages below is found by itself; a table gives the
setting where an option matters, and a value that its range does not yield.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import pkgutil
from typing import Any

import pytest
import torch

import fedloom
from fedloom import Local, LocalSGD
from fedloom.algorithm import Algorithm
from fedloom.algorithms import FAFED, STEM
from fedloom.algorithms.registry import ALGORITHMS
from fedloom.checks.compare import unequal
from fedloom.checks.hyperparameters import another
from fedloom.checks.tiny_federation import CAPACITIES, End, Trial, experiment, federation, run
from fedloom.compression.codecs import Codec
from fedloom.compression.error_feedback import Forget
from fedloom.compression.link import FieldCodec
from fedloom.core.hyper import Hyper
from fedloom.core.vector import rec
from fedloom.data import FederatedData, from_clients
from fedloom.federation.schedules import FAFEDTheory, Schedule, STEMTheory
from fedloom.models import lstm_language_model
from fedloom.objectives import OBJECTIVES, Needs, Objective
from fedloom.submodels import FIARSE, SUBMODELS, Private, SubModel
from fedloom.wrappers import Optimiser, ServerOpt, Wrapper

HOMES = (
    "algorithm",
    "algorithms",
    "compression",
    "federation.local",
    "federation.schedules",
    "objectives",
    "submodels",
    "wrappers",
)
# where an option matters, if that is not in what the class has by default
BASE: dict[str, dict[str, Any]] = {
    "Adam": {"lr": 0.02, "eps": 1e-2},
    "Clip": {"norm": 0.1},
    "FAFEDTheory": {"N": 6, "q": 4, "rho": 1.0},
    "Local": {"epochs": 2, "batch": 2, "lr": 0.1},
    "Milestones": {"at": (1, 2)},
    "FedPAQ": {"bucket": 16},
    "Int8": {"bucket": 16},
    "QSGD": {"bucket": 16},
    "STEMTheory": {"N": 6, "q": 4},
    "ServerAMSGrad": {"eps": 1e-8},
    "TopK": {"ratio": 0.2},
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
    "FIARSE.shards": {"group": "shard", "shards": ("head.*",)},
    "FIARSE.group": {"group": "layer"},
    "FjORD.widths": {"widths": (0.1, 0.9)},
    "ScaleFL.least": {"least": 0.25},
    "*.ignore": {"ignore": 0},
    "FedPer.layers": {"layers": ("second",)},
    "FedRep.layers": {"layers": ("second",)},
}
# a target that is one: what another() finds beside None is none
OTHER |= {f"{make.__name__}.ignore": {"ignore": 1} for make in OBJECTIVES.values()}
ELSEWHERE = {
    "Clip.clip_pull",
    "CubeRoot.epoch",
    "Local.beta1",
    "Local.beta2",
    "Local.clip_pull",
    "Local.dp",
    "Local.passes",
    "Local.probe_batch",
    "Local.drop_last",
    "Local.seconds",
    "FIARSE.momentum_mask",
    "RAdam.eps",  # counts from the sixth step on: closed_form/test_local_loop.py
}  # below, or in tests of their own


@functools.cache
def classes() -> dict[str, type]:
    """Every dataclass of these modules that has a hyper-parameter."""
    out: dict[str, type] = {}
    names = [m.name for m in pkgutil.walk_packages(fedloom.__path__, "fedloom.")]
    for name in names:
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


# ------------------------------------------------------------------------------------ a run with it
def base(kind: type) -> Any:
    """The part that is changed."""
    values = dict(BASE.get(kind.__name__, {}))
    if issubclass(kind, Wrapper):
        values["inner"] = LocalSGD()
    return kind(**values)


def trial(part: Any) -> Trial:
    """A run in which the part has its place."""
    if isinstance(part, Optimiser):
        return experiment(algorithm=ServerOpt(inner=LocalSGD(), opt=part), rounds=2)
    if isinstance(part, Algorithm):
        return experiment(algorithm=part, rounds=2)
    if isinstance(part, Objective) and part.needs is Needs.TEXT_ORDER:
        return experiment(objective=part, rounds=2, **on_text())
    if isinstance(part, Objective):
        return experiment(objective=part, rounds=2)
    if isinstance(part, SubModel):
        return experiment(submodel=part, capacities=CAPACITIES, rounds=2)
    if isinstance(part, Private):
        return experiment(private=part, rounds=2)
    if isinstance(part, Codec):
        return experiment(compress=FieldCodec(part, Forget()), rounds=2)
    if isinstance(part, FAFEDTheory | STEMTheory):
        local = Local(epochs=1, batch=4, lr=1.0, schedule=part)
        make = STEM if isinstance(part, STEMTheory) else FAFED
        return experiment(algorithm=make(c=part.c), local=local, rounds=2)
    if isinstance(part, Schedule):
        return experiment(local=Local(epochs=1, batch=4, lr=0.05, schedule=part), rounds=3)
    assert isinstance(part, Local)
    return experiment(local=part, rounds=2)


def on_text() -> dict[str, Any]:
    """A model of words, a text of them for each of six clients, and an order to read it in."""
    words = torch.arange(6 * 4 * 3).view(6, 4, 3) ** 2 % 7
    data = from_clients([(text, text.roll(-1)) for text in words])
    model = lambda: lstm_language_model(vocabulary=7, embedding=4, hidden=4)
    return {"data": data, "model": model, "local": Local(steps=3, batch=2, lr=0.5, order="text")}


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
    given = OTHER.get(f"{name}.{option}") or OTHER.get(f"*.{option}")
    change = given or {option: another(rule, now)}
    assert change[option] != now and rule.allows(change[option]), "another legal value"
    assert differs(run(trial(dataclasses.replace(part, **change))), unchanged(name))


def without_short_clients() -> FederatedData:
    data = federation(torch.float32)
    own = [data.clients.of(i) for i in range(data.population)]
    pairs = [(data.inputs[index], data.targets[index]) for index in own if len(index) >= 3]
    return from_clients(pairs, test=pairs[0])


TWICE = Local(epochs=2, batch=4, lr=0.05)
MASKS = {"capacities": CAPACITIES, "local": dataclasses.replace(TWICE, momentum=0.9)}
# what else is set, an option of it, and the other value
BESIDE: dict[str, tuple[dict[str, Any], str, dict[str, Any]]] = {
    "the batch of FAFED's first exchange": ({"algorithm": FAFED()}, "local", {"probe_batch": 1}),
    "masked steps under momentum": (
        MASKS | {"submodel": FIARSE()},
        "submodel",
        {"momentum_mask": "update"},
    ),
    "the last batch": ({"data": without_short_clients()}, "local", {"batch": 3, "drop_last": True}),
} | {
    f"{beta} of {optimiser}": (
        {"local": dataclasses.replace(TWICE, optimiser=optimiser)},
        "local",
        {beta: 0.5},
    )
    for optimiser in ("adam", "adamw")
    for beta in ("beta1", "beta2")
}


@pytest.mark.parametrize("name", BESIDE)
def test_another_value_changes_a_run_in_which_it_matters(name):
    settings, part, change = BESIDE[name]
    settings = {"local": TWICE, "rounds": 2} | settings
    changed = settings | {part: dataclasses.replace(settings[part], **change)}
    if "drop_last" in change:
        settings["local"] = dataclasses.replace(TWICE, batch=3)
    assert differs(run(experiment(**changed)), run(experiment(**settings)))


ONE_OF_EACH = ["FedACG", "FedMLB", "FIARSE", "FedPer", "TopK", "Exponential", "Local", "Adam"]


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_the_same_values_give_the_same_run(name):
    """Else the test above could not fail."""
    part = base(classes()[name])
    assert not differs(run(trial(dataclasses.replace(part))), unchanged(name))


def test_nothing_is_forgotten():
    known = set(classes())
    for registry in (OBJECTIVES, SUBMODELS, ALGORITHMS):
        for make in registry.values():
            for part in walk(make()):
                assert not declared(type(part)) or type(part).__name__ in known
    assert {"Local", "Adam", "Momentum", "Prox", "Lookahead", "TopK", "FedMLB"} <= known


def walk(part: Any) -> list[Any]:
    inner = [getattr(part, f.name) for f in dataclasses.fields(part)]
    return [part, *(q for p in inner if dataclasses.is_dataclass(p) for q in walk(p))]
