"""What every registered part owes its readers: documented state, billed messages, short classes,
and options that have a range, a source and an effect.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import importlib
import inspect
import pkgutil
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from test_check import REGISTERED

import fedloom
from fedloom import Local, LocalSGD, algorithms
from fedloom.algorithm import Algorithm
from fedloom.algorithms import FAFED, STEM
from fedloom.algorithms.registry import ALGORITHMS, make_algorithm, options
from fedloom.checks import CONTRACTS
from fedloom.checks.compare import unequal
from fedloom.checks.tiny_federation import CAPACITIES, End, Trial, experiment, federation, run
from fedloom.core.hyper import Hyper, Part
from fedloom.core.validation import fields_of
from fedloom.core.vector import fields, rec
from fedloom.data import FederatedData, from_clients
from fedloom.errors import ConfigError
from fedloom.federation.schedules import FAFEDTheory, Schedule, STEMTheory
from fedloom.plan import traced
from fedloom.submodels import FIARSE, Private
from fedloom.wrappers import (
    Clip,
    ClipGrad,
    Lookahead,
    Optimiser,
    Prox,
    Sam,
    ServerOpt,
    WeightDecay,
    Wrapper,
)
from fedloom.wrappers.registry import SERVERS
from tiny import small, trace


@pytest.fixture(scope="module")
def ended():
    return functools.cache(lambda name: [*trace(small(make_algorithm(name)), 2)][-1])


# --------------------------------------------------------------------------------- documentation
def documented(make) -> dict[str, set[str]]:
    """{"server": names, "client": names, "up": names} as the docstring has them."""
    text = inspect.getdoc(make) or ""
    while (shorter := re.sub(r"\([^()]*\)", "", text)) != text:
        text = shorter
    result = re.search(r"server:(.*?)client:(.*?)up:([^\n]*)", text, re.DOTALL)
    assert result, f"the docstring of {make.__name__} has no line of server, client and up"
    lists = [{w.strip() for w in part.split(",")} - {"-", ""} for part in result.groups()]
    return dict(zip(("server", "client", "up"), lists, strict=True))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_docstring_lists_the_state(name, ended):
    loop, said = ended(name), documented(ALGORITHMS[name])
    assert set(fields(loop.state.srv)) == said["server"]
    assert set(fields(traced(loop.plan.algorithm, 2).up)) - {"weight"} == said["up"]
    memory = next(iter(loop.memory.get(range(7)).values()))
    assert set(fields(memory.alg)) == said["client"]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_docstring_names_paper_and_reference(name):
    text = inspect.getdoc(ALGORITHMS[name])
    assert re.match(r"[A-Z][^\n]*\(.*\d{4}", text.replace("\n", " ")) or "averaging" in text
    assert re.search(r"https://\S+", text)
    assert len(text.splitlines()) <= 12


# a paper's class is its algorithm: that is what a reader finds in it
PAPERS = [
    (path.stem, node)
    for path in sorted(Path(algorithms.__file__).parent.rglob("*.py"))
    for node in ast.parse(path.read_text()).body
    if isinstance(node, ast.ClassDef)
    and issubclass(getattr(algorithms, node.name, type), Algorithm)
]


@pytest.mark.parametrize(("file", "kind"), PAPERS, ids=[node.name for _, node in PAPERS])
def test_a_papers_class_is_short(file, kind):
    """Bodies of 25 lines of code, a line for each hyper-parameter, three other declarations."""
    methods = [n for n in kind.body if isinstance(n, ast.FunctionDef)]
    options = [n for n in kind.body if isinstance(n, ast.AnnAssign)]
    others = [n for n in kind.body if isinstance(n, ast.Assign)]
    assert len(methods) + len(options) + len(others) == len(kind.body) - 1  # and a docstring
    code = {n.lineno for m in methods for s in m.body for n in ast.walk(s) if hasattr(n, "lineno")}
    code -= {n.lineno for m in methods for n in m.body if isinstance(n, ast.Expr)}
    assert len(code) <= 25, f"{len(code)} lines of code in the bodies of {kind.name}, {file}.py"
    assert all(n.lineno == n.end_lineno for n in options)
    assert len(others) <= 3 and {n.targets[0].id for n in others} <= {
        "compressible_up",
        "compressible_down",
        "traits",
    }


# --------------------------------------------------------------------------------- hyper-parameters
OPTIONS = [(name, key) for name in ALGORITHMS for key in options(name)]


@pytest.mark.parametrize(("name", "key"), OPTIONS)
def test_an_option_has_a_range_and_a_source(name, key):
    option = options(name)[key]
    assert option.source and (option.text() != "any" or option.default is None)
    assert option.default is not inspect.Parameter.empty


def test_every_hyper_parameter_of_the_parts_has_a_source():
    optimisers = [part for part in SERVERS.values() if dataclasses.is_dataclass(part)]
    assert len(optimisers) == len(SERVERS) - 1, "all but the look-ahead"
    for part in (Local, *optimisers, Clip, ClipGrad, Prox, Sam, WeightDecay, Lookahead):
        for field in dataclasses.fields(part):
            rule = field.metadata.get("hyper")
            if field.name not in ("inner", "opt", "schedule"):
                assert isinstance(rule, Hyper) and rule.source, f"{part.__name__}.{field.name}"


# whose source names the number of another place, or of a setting that is off by default
OTHER_NUMBERS = {
    ("QSGD", "levels"): 127,  # 2^7 - 1: 8 bits
    ("FedRep", "head"): 0.9,  # 10 of 11 epochs, as a share of steps
    ("Gaussian", "strength"): 1.0,  # of updates, and 200 of gradients
    ("Availability", "over_selection"): 1.0,  # off
    ("Dice", "cross_entropy"): 0.0,  # off
}
OFF = (None, 0.0, (), inspect.Parameter.empty)


def every_part(kind: type) -> list[type]:
    return [part for sub in kind.__subclasses__() for part in (sub, *every_part(sub))]


def test_a_default_is_the_number_that_its_source_names():
    named = 0
    for part in dict.fromkeys(every_part(Part)):
        if not part.__module__.startswith("fedloom"):
            continue
        for key, option in fields_of(part).items():
            number = re.match(r"\d[\d.]*(e-?\d+)?\b", option.source or "")
            place = (part.__name__, key)
            if number is None or place in OTHER_NUMBERS:
                assert option.default == OTHER_NUMBERS.get(place, option.default), place
            elif option.default not in OFF or option.source.startswith("0 "):
                assert option.default == float(number.group()), place
                named += 1
    assert named > 50, "few sources name a number: were the parts not loaded?"


# ------------------------------------------------------------------ no option is there for nothing
def values(hyper: Hyper, value: Any) -> list[Any]:
    """Values that the rule allows and that differ, the likeliest to matter first."""
    low, high = hyper.ends
    middle = (low + high) / 2 if low is not None and high is not None else None
    if hyper.choices:
        out = list(hyper.choices)
    elif isinstance(value, bool):
        out = [not value]
    elif isinstance(value, int):
        ends = [int(v) for v in (low, high) if v is not None]
        out = [max(1, value // 2), value + 1, value - 1, max(1, value // 64), *ends]
    elif isinstance(value, float) and value:
        out = [value / 2, value * 2, middle, 1.0, 0.0]
    else:
        out = [0.5, 1, middle]
    other = lambda v: type(v) is not type(value) or v != value
    return [v for v in dict.fromkeys(out) if v is not None and hyper.allows(v) and other(v)]


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


DECLARED = [(name, option) for name, part in classes().items() for option in declared(part)]


def base(kind: type) -> Any:
    inner = {"inner": LocalSGD()} if issubclass(kind, Wrapper) else {}
    return kind(**BASE.get(kind.__name__, {}), **inner)


def trial(part: Any) -> Trial:
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
    ("name", "option"), [pair for pair in DECLARED if ".".join(pair) not in ELSEWHERE]
)
def test_another_value_changes_the_run(name, option):
    part = base(classes()[name])
    now, rule = getattr(part, option), declared(classes()[name])[option]
    change = OTHER.get(f"{name}.{option}") or {option: values(rule, now)[0]}
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


# ------------- methods, objectives, sub-models and codecs, as registered; first is an aggregation
# FIARSE with both switches off: an option of its masks that are made again does nothing
IDLE = {("greedy", "momentum_mask")}


def variants(part: Any) -> dict[str, tuple[Any, list[Any]]]:
    """{option: (its value, the part with other legal values of it)}, inner parts included."""
    out: dict[str, tuple[Any, list[Any]]] = {}
    for field in dataclasses.fields(part):
        now, hyper = getattr(part, field.name), field.metadata.get("hyper")
        if dataclasses.is_dataclass(now) and not isinstance(now, type):
            for name, (value, inner) in variants(now).items():
                changed = [dataclasses.replace(part, **{field.name: other}) for other in inner]
                out[f"{field.name}.{name}"] = value, changed
        elif isinstance(now, tuple):
            continue  # a list has no range to take another one from
        elif isinstance(hyper, Hyper) or isinstance(now, int | float):
            out[field.name] = now, []  # a field without a declared range takes any
            for value in values(hyper or Hyper(), now):
                with contextlib.suppress(ConfigError):  # some go with other options only
                    out[field.name][1].append(dataclasses.replace(part, **{field.name: value}))
    return out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "name", "make"), [pytest.param(*case, id=case[1]) for case in REGISTERED[1:]]
)
def test_another_value_of_a_registered_part_changes_its_run(kind, name, make):
    contract = CONTRACTS[kind](make(name))
    want = contract.serial(torch.float32)
    for option, (now, changed) in variants(contract.part).items():
        ends = (run(contract.trial(part, torch.float32)) for part in changed)
        assert changed, f"no other value of {option} is legal"
        matters = any(differs(end, want) for end in ends)
        assert matters is ((name, option) not in IDLE), f"{option} = {now}"
