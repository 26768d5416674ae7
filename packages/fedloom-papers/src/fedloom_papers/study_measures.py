"""What our own studies measure beside the papers: bytes, gradients, exploration, epsilon.

Each measure takes a line of evidence, where it is read ({"size": "1/4"}), and what else there is of
its protocol and seed (measure.Context).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import torch

from fedloom.algorithms.registry import make_algorithm
from fedloom.cli.method_costs import Costs, costs
from fedloom.config import resolve
from fedloom.core.curves import at as between
from fedloom.core.curves import at_equal, crossing, whole_round
from fedloom.recipes import RECIPES
from fedloom.report.curve_data import mean

from .lines import Line
from .series import points, size_fraction, sized, smoothed

MIB = 2**20
Where = Mapping[str, str]
Measured = Callable[[Line, Mapping[str, str], Any], float | None]


# -------------------------------------------------------------------------------------------- bytes
@functools.cache
def costs_of(algorithm: str) -> Costs:
    """What an algorithm sends and computes, measured."""
    return costs(make_algorithm(algorithm))


def _typed_setting(line: Line, key: str) -> str | None:
    """A setting as it was typed, the last of several."""
    return dict(c.split("=", 1) for c in line["changes"]).get(key)


def _algorithm(line: Line) -> str:
    return _typed_setting(line, "algorithm") or str(RECIPES[line["recipe"]]()["algorithm"]["name"])


def sent_by(line: Line) -> Callable[[float], float]:
    """Bytes up and down of all clients by the end of a round: first what all clients say before
    round 1 (the model goes down, and what the method asks for comes up, in float32), then the same
    in every round.
    """
    probes = len(costs_of(_algorithm(line)).probe)
    clients = line.get("population") or RECIPES[line["recipe"]]()["data"]["partition"]["clients"]
    first = 4.0 * line["parameters"] * (probes + 1) * int(clients) if probes else 0.0
    each = (float(line["bytes_up"] + line["bytes_down"]) - first) / line["rounds"]
    return lambda round: first + round * each


def by_bytes(line: Line) -> dict[float, float]:
    """{bytes up and down of all clients until then: test accuracy} of a run."""
    sent = sent_by(line)
    return {sent(t): v for t, v in points(line, "curve").items()}


def _mib(*keys: str) -> Measured:
    return lambda line, where, context: sum(float(line[key]) for key in keys) / MIB


def _mib_to(line: Line, where: Mapping[str, str], context: Any) -> float:
    """Until the moving average has an accuracy, on straight lines between its evaluations."""
    crossed = crossing(smoothed(points(line, "curve")), float(where["acc"]) / 100)
    return math.inf if crossed is None else sent_by(line)(whole_round(crossed)) / MIB


def _at_base_mib(line: Line, where: Mapping[str, str], context: Any) -> float | None:
    """The accuracy after as many bytes as the base row sends in all."""
    base = context.lines.get(context.entry.bases[0])
    pair = None if base is None else at_equal(by_bytes(line), by_bytes(base))
    return None if pair is None else 100 * pair[0]


def answer(line: Line) -> float:
    """What one answer really is, in models of float32: bytes with everything that goes with them,
    the mean over all rounds and clients.
    """
    recipe = RECIPES[line["recipe"]]()
    population, cohort = int(recipe["data"]["partition"]["clients"]), float(recipe["cohort"])
    answers = round(cohort if cohort > 1 else population * cohort) * line["rounds"]
    return float(line["bytes_up"] / (answers * 4 * line["parameters"]))


def _at_models(line: Line, where: Mapping[str, str], context: Any) -> float | None:
    """The accuracy where a client has sent so many models (sent: by its uplink, both ways, or the
    kept values alone, CFedAvg's unit); the end of a run that sends less, None before the first
    evaluation.
    """
    ratio = float((_typed_setting(line, "compress") or "none").partition(":")[2] or 1)
    both = answer(line) * (1 + line["bytes_down"] / line["bytes_up"])
    each = {"uplink": answer(line), "both ways": both, "kept values": ratio}[where["sent"]]
    curve = {each * t: 100 * v for t, v in points(line, "curve").items()}
    return between(curve, min(float(where["models"]), max(curve)))


# ------------------------------------------------------------------------------------------- curves
def _best(line: Line, where: Mapping[str, str], context: Any) -> float:
    best = line.get("best") or {"value": max(points(line, "curve").values())}
    return 100 * float(best["value"])


def _last_average(line: Line, where: Mapping[str, str], context: Any) -> float:
    """The moving average of every round, where a line keeps fewer evaluations than there were."""
    if "last_ema" in line:
        return 100 * float(line["last_ema"])
    average = smoothed(points(line, "curve"))
    return 100 * average[max(average)]


def _target(line: Line, where: Mapping[str, str], context: Any) -> float:
    """The round at which the moving average has reached the recipe's target."""
    if (text := line.get("rounds_to_target_text")) is not None:
        return math.inf if text.endswith("+") else float(text)
    goal = float(RECIPES[line["recipe"]]()["evaluate"]["target"])
    crossed = crossing(smoothed(points(line, "curve")), goal)
    return math.inf if crossed is None else float(whole_round(crossed))


def _mib_to_target(line: Line, where: Mapping[str, str], context: Any) -> float:
    if line.get("bytes_to_target") is not None:
        return float(line["bytes_to_target"]) / MIB
    fraction = _target(line, where, context) / float(line["rounds"])
    return fraction * float(line["bytes_up"] + line["bytes_down"]) / MIB


def part(curve: Mapping[int, float], number: int, parts: int) -> float | None:
    """The mean of a part of a curve, the last one's number being `parts`; None of a short one."""
    values = [curve[t] for t in sorted(curve)]
    size = len(values) // parts
    end = len(values) - (parts - number) * size
    section = values[:size] if number == 1 else values[end - size : end]
    return math.fsum(section) / size if size else None


def _error(line: Line, where: Mapping[str, str], context: Any) -> float | None:
    residual, update = (part(points(line, f"{k}_square"), 5, 5) for k in ("residual", "delta"))
    return residual / update if residual is not None and update else None


def _growth(line: Line, where: Mapping[str, str], context: Any) -> float | None:
    curve = points(line, "residual_square")
    last, before = part(curve, 5, 5), part(curve, 4, 5)
    return last / before if last is not None and before and len(curve) >= 10 else None


def _mean(line: Line, where: Mapping[str, str], context: Any) -> float | None:
    return mean([100 * v for v in points(line, "curve").values()])


# --------------------------------------------------------------------------------------- sub-models
def _held_percent(line: Line, where: Mapping[str, str], context: Any) -> float | None:
    counts = (line.get("sizes") or {}).get("held", {}).get(f"{size_fraction(where['size']):g}")
    return 100.0 * float(counts["all"]) / float(line["parameters"]) if counts else None


def _gain(line: Line, where: Mapping[str, str], context: Any) -> float | None:
    """How many points more a size has held a round later."""
    curve = sized(line, "explored", where["size"])
    steps = {t: 100 * (curve[t] - curve[s]) / (t - s) for s, t in pairwise(sorted(curve))}
    return part(steps, int(where["half"]), 2)


def _replaced(line: Line, where: Mapping[str, str], context: Any) -> float | None:
    fraction = part(sized(line, "replaced", where["size"]), int(where["fifth"]), 5)
    return None if fraction is None else 100 * fraction


def _skewness(line: Line, where: Mapping[str, str], context: Any) -> float | None:
    return skewness([float(v) for v in line.get("clients", ()) if v is not None])


def skewness(values: list[float]) -> float | None:
    """Fisher's moment coefficient E[(x - m)^3] / s^3; negative with a longer tail to the left.

    >>> skewness([1.0, 2.0, 3.0]), skewness([0.0, 3.0, 3.0]) < 0, skewness([1.0, 1.0])
    (0.0, True, None)
    """
    middle = mean(values) or 0.0
    second, third = (mean([(v - middle) ** n for v in values]) for n in (2, 3))
    return third / second**1.5 if second and third is not None else None


# -------------------------------------------------------------------------------------------- other
def _gradients(line: Line, where: Mapping[str, str], context: Any) -> float:
    return costs_of(_algorithm(line)).gradients


def _epsilon(key: str) -> Measured:
    def epsilon(line: Line, where: Mapping[str, str], context: Any) -> float:
        """What a run has spent; computed where its line does not say it."""
        if key not in line:
            aggregation = resolve(line["recipe"], line["changes"]).experiment().plan().aggregation
            state = aggregation.init(torch.zeros(0), 100.0, 0.5)
            return float(aggregation.summary(state, line["rounds"])[key])
        return float(line[key])

    return epsilon


# {name: words, how it is read, whether lower is better}
STUDIED: dict[str, tuple[str, Measured, bool]] = {
    "best_acc_pct": ("best accuracy", _best, False),
    "last_ema_pct": ("moving average of all rounds, last", _last_average, False),
    "mean_acc_pct": ("mean accuracy over the rounds", _mean, False),
    "rounds_to_target": ("rounds to the target", _target, True),
    "mib_to_target": ("MiB to the target", _mib_to_target, True),
    "mib_to_acc": ("MiB to", _mib_to, True),
    "mib": ("MiB in all", _mib("bytes_up", "bytes_down"), True),
    "mib_up": ("MiB up", _mib("bytes_up"), True),
    "mib_down": ("MiB down", _mib("bytes_down"), True),
    "acc_at_base_mib_pct": ("accuracy at the first base's MiB", _at_base_mib, False),
    "acc_at_models_pct": ("accuracy after", _at_models, False),
    "answer_models": ("models an answer", lambda line, where, context: answer(line), True),
    "gradients": ("gradients a step", _gradients, True),
    "residual_over_delta_late": ("||e||^2 / ||update||^2, last fifth", _error, False),
    "residual_growth": ("growth of ||e||^2 in the last fifth", _growth, False),
    "held_pct": ("of the parameters held, %", _held_percent, False),
    "explored_gain": ("points explored a round", _gain, False),
    "replaced_fifth_pct": ("replaced by a round, %", _replaced, False),
    "client_skewness": ("skewness of the clients' accuracies", _skewness, True),
    "epsilon_pld": ("epsilon by PLD", _epsilon("epsilon_tight"), True),
    "epsilon_rdp": ("epsilon by RDP", _epsilon("epsilon"), True),
}
