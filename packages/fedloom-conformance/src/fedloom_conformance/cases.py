"""The cases: which method on which federation with which settings."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from .problems import ALL, SOME, Problem, curved, normalised, quadratics, still, unequal_steps


@dataclass(frozen=True)
class Case:
    """A method of METHODS, a federation, and the settings by the names of its recurrence."""

    method: str
    problem: Problem
    settings: dict[str, Any]


@dataclass(frozen=True)
class Row:
    """A line of the page: what one method does in several cases, which must all be right."""

    name: str
    label: str
    cases: tuple[Case, ...]


def equal(problem: Problem) -> Problem:
    """The same, with clients that count equally."""
    return replace(problem, weights="equal", name=f"{problem.name}, equal weights")


def rows() -> list[Row]:
    """All lines of the page, in its order."""
    return [*_averages(), *_servers(), *_duals(), *_more(), *_private(), *_robust()]


def _row(name: str, label: str, problems: list[Problem], *settings: dict[str, Any]) -> Row:
    """Each problem with the settings in turn, so that both occur."""
    method = name.partition(" ")[0]
    cases = [
        Case(method, problem, settings[at % len(settings)] if settings else {})
        for at, problem in enumerate(problems)
    ]
    return Row(name, label, tuple(cases))


def _averages() -> list[Row]:
    uneven = [quadratics(), unequal_steps(), curved(SOME)]
    return [
        _row("fedavg", "FedAvg", [*uneven, quadratics(SOME), equal(unequal_steps())]),
        _row("fedavg rate", "FedAvg, server rate 0.5", uneven, {"server_lr": 0.5}),
        _row(
            "fedavg batchnorm",
            "FedAvg, batch norm",
            [normalised(), normalised(SOME), normalised(seed=9)],
        ),
        _row("fedprox", "FedProx", uneven, {"mu": 0.7}, {"mu": 2.0}),
        _row("fednova", "FedNova", [quadratics(), unequal_steps(), unequal_steps(SOME)]),
    ]


def _servers() -> list[Row]:
    problems = [quadratics(), curved(), quadratics(SOME)]
    momentum = {"beta": 0.8}, {"beta": 0.5}
    adaptive = {"server_lr": 0.1, "beta1": 0.9, "beta2": 0.99, "tau": 0.01}
    gentle = {"server_lr": 0.04, "beta1": 0.8, "beta2": 0.95, "tau": 0.1}
    plain = [s | {"beta1": 0.0} for s in (adaptive, gentle)]
    nesterov = {"server_lr": 0.7, "beta": 0.9, "decay": 0.01}
    return [
        _row("fedavgm", "FedAvgM", problems, *momentum),
        _row(
            "fedavgm batchnorm", "FedAvgM, batch norm", [normalised(), normalised(SOME)], *momentum
        ),
        _row("fedadam", "FedAdam", problems, adaptive, gentle),
        _row("fedyogi", "FedYogi", problems, adaptive, gentle),
        _row("fedadagrad", "FedAdagrad", problems, *plain),
        _row("fedacg", "FedACG", problems, {"lam": 0.85, "beta": 0.1}, {"lam": 0.5, "beta": 1.0}),
        _row("diloco", "DiLoCo", [quadratics(), quadratics(SOME)], nesterov),
    ]


def _duals() -> list[Row]:
    even = [equal(quadratics()), equal(unequal_steps(SOME)), equal(quadratics(SOME, seed=7))]
    one, other = {"server_lr": 1.0}, {"server_lr": 0.5}
    rows = [
        _row("scaffold1", "SCAFFOLD, option I", even, one),
        _row("scaffold2", "SCAFFOLD, option II", even, one),
        _row("scaffold2 rate", "SCAFFOLD II, server rate 0.5", even, other),
        _row("feddyn", "FedDyn", even, {"alpha": 0.5}, {"alpha": 2.0}),
    ]
    smooth = [equal(quadratics()), equal(quadratics(SOME, seed=7)), equal(curved(SOME))]
    settings = {"rho": 0.1, "beta": 2.0}, {"rho": 0.02, "beta": 10.0}
    return [*rows, _row("fedsmoo", "FedSMOO", smooth, *settings)]


def _more() -> list[Row]:
    even = [equal(quadratics()), equal(curved())]
    held = [
        replace(equal(quadratics(cohorts, seed=seed)), capacities=(1.0, 0.5, 0.34, 0.17))
        for cohorts, seed in ((ALL, 1), (SOME, 7))
    ]
    coded = [equal(quadratics(SOME)), equal(curved()), equal(unequal_steps())]
    return [
        _row(
            "fafed",
            "FAFED",
            even,
            {"alpha": 0.1, "beta": 0.9, "rho": 0.1},
            {"alpha": 0.9, "beta": 0.5, "rho": 0.5},
        ),
        _row(
            "cfedavg",
            "CFedAvg, top-k",
            coded,
            {"kept": 0.5, "server_lr": 1.0, "per_step": False},
            {"kept": 0.2, "server_lr": 0.7, "per_step": False},
            {"kept": 0.34, "server_lr": 2.0, "per_step": True},
        ),
        _row("fiarse", "FIARSE", held),
    ]


def _private() -> list[Row]:
    even = [equal(quadratics()), equal(curved())]
    return [
        _row("dp_clip", "DP: the clip", even, {"clip": 0.1}, {"clip": 0.3}),
        _row("dp_noise", "DP: the noise", [still()], {"clip": 0.5, "noise": 2.0}),
    ]


def _robust() -> list[Row]:
    seven = (tuple(range(7)),) * 4
    many = [equal(quadratics(seven, 7)), equal(quadratics(seven, 7, seed=8))]
    odd = [*many, equal(quadratics())]
    return [
        _row("median", "median", odd),
        _row("trimmed_mean", "trimmed mean", odd, {"trim": 0.3}),
        _row("krum", "Krum", many, {"hostile": 2}, {"hostile": 1}),
    ]
