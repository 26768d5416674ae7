"""Screening: all methods are tried on validation splits, and the two best become candidates.

Every method that goes with the settings has as many trials, if there is time for that. The study
of the candidates goes on with their searches; what it tests are other seeds, and the test rows.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace

from ..core.interrupts import TimeUpError
from ..core.parsing import parse_json
from ..errors import ConfigError, FedloomError
from ..storage.atomic import write_atomic
from ..study import DataCache, Runs
from ..study.tune import Tuned
from .advice import PLAIN, Advised, Screen, allowed
from .question import Method, Question
from .tuner import Tuner

FILE = "screen.json"
TRIALS = 4  # at most, of each method
BEST = 2  # candidates beside FedAvg
_TIME = 0.5  # of all the time, what it may take
_DEARER = 1.5  # so many runs of FedAvg take as long as one of a method, in the mean


def screened(advised: Advised, minutes: float, runs: Runs) -> Advised:
    """An advice whose candidates are FedAvg and the two best of all others on validation splits;
    the same advice if there is no time to find them. minutes: for all of the advice. Raises
    ConfigError if there is no time and only FedAvg to compare, and FedloomError if time ends before
    all methods are tried.
    """
    where, skipped = advised.where, dict(advised.skipped)
    others = allowed(where, advised.others, skipped, DataCache())
    methods = (*advised.candidates, *others)
    advised, trials = replace(advised, skipped=skipped), min(TRIALS, where.trials)
    question = replace(where, methods=methods, trials=trials)
    splits = _affordable(question, minutes, runs, len(advised.candidates) > 1)
    if not splits:
        return advised
    try:
        tuned = Tuner(question, runs).run(splits, all_of_them=True)
    except TimeUpError:
        raise FedloomError(
            f"the {minutes:.3g} minutes ended before all methods were tried; run the same command "
            "again to resume"
        ) from None
    scored = {method: one for (_, method), one in tuned.items() if math.isfinite(one.score)}
    sign = 1.0 if runs.metric.higher_is_better else -1.0
    ranked = sorted(scored, key=lambda method: -scored[method].score)
    means = {method.name: sign * scored[method].score for method in ranked}
    failed = tuple(method.name for method in methods if method not in scored)
    plain = [method for method in advised.candidates if method.name == PLAIN]
    screen = Screen(splits, trials, means, failed)
    best = tuple(_best(plain, ranked, scored))
    return replace(advised, candidates=best, screen=screen)


def _best(plain: list[Method], ranked: list[Method], tuned: Mapping[Method, Tuned]) -> list[Method]:
    """FedAvg and the first others, without methods that repeat one before them here."""
    best, count = [*plain], len(plain) + BEST
    curves = {tuned[method].curves for method in plain if method in tuned}
    for method in ranked:
        if len(best) < count and method not in plain and tuned[method].curves not in curves:
            best.append(method)
            curves.add(tuned[method].curves)
    return best


def _affordable(question: Question, minutes: float, runs: Runs, rival: bool) -> int:
    """On how many splits all methods can be tried, 0: on none; what a study that was begun has
    kept. rival: whether there is something to compare without. Raises ConfigError if not.
    """
    file, digest = question.out / FILE, question.digest()
    plan = parse_json(file.read_text("utf-8")) if file.is_file() else {}
    if plan.get("question") != digest:
        tuner, count = Tuner(replace(question, methods=question.methods[:1]), runs), question.trials
        whole = len(question.methods) * count * _DEARER * tuner.seconds() / runs.jobs / 60
        splits = min(tuner.splits(), int(_TIME * minutes / whole))
        if not splits and not rival:
            raise ConfigError(
                f"{minutes:.3g} minutes are too few to try {len(question.methods) - 1} methods "
                f"beside FedAvg ({count} trials each); give --minutes {math.ceil(whole / _TIME)}, "
                "or name one to compare it with, as algorithm=fedacg"
            )
        plan = {"question": digest, "splits": splits}
        write_atomic(file, json.dumps(plan) + "\n")
    return int(plan["splits"])
