"""What a protocol amounts to, and what a table costs here: arithmetic, from the settings alone."""

from __future__ import annotations

import ast
import functools
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from fedloom.config import Config
from fedloom.engines.base import one_thread, processors
from fedloom.engines.one_step import Operations
from fedloom.errors import FedloomError
from fedloom.models import make_model

from .plan import PaperRun, Plan
from .tune import grid_plans, halved_share

# training samples, test samples, shape of an input, classes; as published
SETS: dict[str, tuple[int, int, tuple[int, ...], int]] = {
    "digits": (1438, 359, (1, 8, 8), 10),
    "heart": (486, 254, (13,), 2),
    "tcga": (866, 222, (39,), 1),
    "mnist": (60_000, 10_000, (1, 28, 28), 10),
    "fashion_mnist": (60_000, 10_000, (1, 28, 28), 10),
    "cifar10": (50_000, 10_000, (3, 32, 32), 10),
    "cifar100": (50_000, 10_000, (3, 32, 32), 100),
    "tiny_imagenet": (100_000, 10_000, (3, 64, 64), 200),
    "femnist": (805_263 * 9 // 10, 805_263 // 10, (1, 28, 28), 62),
    "celeba": (200_288 * 9 // 10, 200_288 // 10, (3, 84, 84), 2),
    "shakespeare": (4_226_158 * 9 // 10, 4_226_158 // 10, (80,), 80),
    "wikitext2": (2_088_628 // 35, 245_569 // 35, (35,), 33_278),
    "ag_news": (120_000, 7_600, (64,), 4),
}
# clients where each is a person: LEAF's numbers
_PEOPLE = {"femnist": 3550, "celeba": 9343, "shakespeare": 1129, "heart": 4, "tcga": 6}
TOKENS = ("shakespeare", "wikitext2", "ag_news")


@dataclass(frozen=True)
class Work:
    """clients: of all; active: of a round; each: training samples of a client; steps: local steps
    of a client in a round; samples: of a round; evaluations: of the model, and of each size of it;
    tests: samples that each goes through.
    """

    clients: int
    active: int
    each: float
    steps: int
    rounds: int
    samples: float
    evaluations: int
    tests: int


def work(values: Mapping[str, Any]) -> Work:
    """The work of a complete configuration; of unequal clients that of the mean one."""
    data, local = values["data"], values["local"]
    training, tests, _, _ = SETS[data["name"]]
    if data.get("part") == "valid":
        training = 217_646 // data["length"]
    tests = min(tests, data.get("test_samples") or tests)
    if values["model"].get("norm") == "static_batch":  # statistics are gathered before
        tests += training if values["evaluate"]["statistics"] == "static" else 0
    partition = data["partition"]
    people = _PEOPLE.get(data["name"])
    clients = int(partition.get("clients") or people or 1)
    each = training / (people if people and partition["name"] == "natural" else clients)
    if partition["name"] == "replicated":
        each = training
    each = min(each, partition.get("samples") or each)
    there = values.get("churn", {}).get("active", clients)
    cohort = values["cohort"]
    if isinstance(cohort, list):  # the clients of each round
        cohort = len(cohort[0])
    active = round(cohort * there) if isinstance(cohort, float) else int(cohort)
    batch = local.get("batch") or each
    per_epoch = math.ceil(each / batch - 1e-9)
    steps = local.get("steps") or math.ceil(local["epochs"] * per_epoch - 1e-9)
    samples = active * (local["steps"] * batch if local.get("steps") else local["epochs"] * each)
    every = values["evaluate"]["every"]
    rounds = values["rounds"]
    evaluations = rounds // every + bool(rounds % every) if every else 1
    sizes = len(values.get("submodel", {}).get("capacities", ()))
    last = len(values["evaluate"]["sizes"]) if sizes else 0
    evaluations += sizes * evaluations + last
    return Work(clients, active, each, steps, rounds, samples, evaluations, tests)


# ----------------------------------------------------------------------------------------- the time
# gradients and passes of a local step, FedAvg's: 1
FACTORS = {
    "fedntd": 1.33,
    "moon": 1.67,
    "fedmlb": 2.6,
    "fedsam": 2.0,
    "mofedsam": 2.0,
    "fedgamma": 2.0,
    "fedsmoo": 2.0,
    "fafed": 2.0,
    "stem": 2.0,
    # smaller networks at weak clients: a third in the mean over the papers' sizes
    "heterofl": 0.33,
    "fedrolex": 0.33,
    "scalefl": 0.33,
    "fjord": 0.33,
}
MACS = {"roberta_base": 5.4e9}  # of a forward pass of 64 tokens: its weights are a download
# Beside the arithmetic, of one processor, as the committed lines took (tests/unit/test_papers.py):
SAMPLE = 2e-5  # seconds of a sample: it is prepared, and small layers wait for memory
CALL = 1e-4  # seconds of a local step, for each tensor of weights


class Machine(NamedTuple):
    """What a table is to run on. speed: operations a second, of one processor; words: the same for
    readers; alone: nothing else takes time, as SAMPLE and CALL do on a processor.
    """

    speed: float
    words: str
    alone: bool = False


USUAL = Machine(6e10, "a usual processor's 6e+10 operations a second")


@dataclass(frozen=True)
class Cost:
    """Seconds of all runs of a table. unknown: the protocols that nothing can estimate."""

    seconds: float
    unknown: tuple[str, ...] = ()


def of_runs(runs: Iterable[PaperRun], on: Machine = USUAL) -> Cost:
    """These runs as they are planned, with every change of theirs."""
    total, known, unknown = 0.0, dict[str, float](), dict[str, None]()
    for run in runs:
        try:
            if run.digest not in known:
                known[run.digest] = seconds(run.config, on)
            total += known[run.digest]
        except FedloomError:
            unknown[run.protocol.name] = None
    return Cost(total, tuple(unknown))


def of_grids(
    plan: Plan, out: Path, more: Sequence[str], halving: bool, on: Machine = USUAL
) -> Cost:
    """The grids of a plan's rows before it; with halving the runs of every rung."""
    total, unknown = 0.0, dict[str, None]()
    for row in plan.rows:
        for grid in grid_plans(plan.entry, plan.scale, out, [row], more):
            found = of_runs(grid.runs, on)
            total += found.seconds * (halved_share(len(grid.runs)) if halving else 1.0)
            unknown |= dict.fromkeys(found.unknown)
    return Cost(total, tuple(unknown))


def seconds(config: Config, on: Machine = USUAL) -> float:
    """One run's seconds: the operations of its steps and evaluations over a machine's speed."""
    values, done = config.values, work(config.values)
    name = values["model"]["name"]
    net = None if name in MACS else _made(name, repr(config.options("model")))
    tensors = 200 if net is None else len([*net.parameters()])
    forward, sample, call = operations(config) / on.speed, SAMPLE, CALL * tensors
    on_cpu = values["device"] in ("auto", "cpu") and not torch.cuda.is_available()
    shared = processors() if on_cpu else 1
    if on.alone:
        sample, call, shared = 0.0, 0.0, 1
    one_round = done.samples * (3 * forward + sample) + done.active * done.steps * call
    tests = done.evaluations * done.tests * (forward + sample)
    parts = {
        key: str(values.get(key, {}).get("name", ""))
        for key in ("algorithm", "objective", "submodel")
    }
    return (one_round * done.rounds * _factor(parts) + tests) / shared


def _factor(names: Mapping[str, str]) -> float:
    """How many times FedAvg's step a step with this algorithm, objective and submodel costs."""
    parts = (names.get(key, "") for key in ("algorithm", "objective", "submodel"))
    return math.prod(FACTORS.get(name, 1.0) for name in parts)


@functools.cache
def _made(name: str, options: str) -> nn.Module:
    """A model; on the device meta torch would load its compiler, which takes seconds."""
    return make_model(name, **ast.literal_eval(options)).eval()


def operations(config: Config) -> float:
    """Operations of a forward pass of one sample: two for a multiplication."""
    name, data = config.values["model"]["name"], config.values["data"]
    if name in MACS:
        return 2 * MACS[name]
    shape = SETS[data["name"]][2]
    shape = (data.get("length") or shape[0],) if data["name"] in TOKENS else shape
    return _counted(name, repr(config.options("model")), shape)


@functools.cache
def _counted(name: str, options: str, shape: tuple[int, ...]) -> float:
    """The same of a model with inputs of a shape, counted by torch."""
    counter, model = Operations(), _made(name, options)
    words = any(isinstance(module, nn.Embedding) for module in model.modules())
    inputs = torch.zeros(1, *shape, dtype=torch.long if words else None)
    with torch.no_grad(), counter:
        model(inputs)
    return counter.count


@functools.cache
def here() -> Machine:
    """A processor of this machine, by the fastest step of a second. The network is like the first
    layers of ResNet-18: smaller ones wait for memory, which SAMPLE and CALL count.
    """
    net = nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1))
    inputs, counter = torch.zeros(10, 64, 32, 32), Operations()
    fastest, end = math.inf, time.monotonic() + 1.0
    with one_thread(), torch.enable_grad():
        with counter:
            torch.autograd.grad(net(inputs).square().mean(), [*net.parameters()])
        while fastest == math.inf or time.monotonic() < end:
            began = time.process_time()  # that others keep the processor busy does not count
            torch.autograd.grad(net(inputs).square().mean(), [*net.parameters()])
            fastest = min(fastest, time.process_time() - began)
    found = counter.count / fastest
    return Machine(found, f"this processor's {found:.2g} operations a second (usual: 6e+10)")


def machine(given: float | None, measure: bool) -> Machine:
    """A device of so many operations a second; without, a processor here or a usual one."""
    if given is None:
        return here() if measure else USUAL
    return Machine(given, f"{given:.3g} operations a second if nothing else takes time", True)
