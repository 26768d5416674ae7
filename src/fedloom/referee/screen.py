"""Screening: all methods are tried on validation splits, and the best one becomes a candidate.

Every method that goes with the settings has as many trials, if there is time for that. The study
of the candidates goes on with their searches; what it tests are other seeds, and the test rows.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace

from ..core.interrupts import TimeUpError
from ..core.parsing import parse_json
from ..errors import FedloomError
from ..storage.atomic import write_atomic
from ..sweep import KeptData
from .advice import MOST, Advised, Screen, refusal
from .question import Question
from .tuner import Runs, Tuner

FILE = "screen.json"
TRIALS = 4  # at most, of each method
_TIME = 0.5  # of all the time, what it may take
_DEARER = 1.5  # so many runs of FedAvg take as long as one of a method, in the mean


def screened(advised: Advised, minutes: float, runs: Runs) -> Advised:
    """An advice whose last candidate is the best of all methods that are not among the first two;
    the same advice if there is no time to find it. minutes: for all of the advice. Raises
    FedloomError if they end before all methods are tried.
    """
    trials = min(TRIALS, advised.question.trials)
    every = (*advised.candidates, *advised.others)
    question = replace(advised.question, methods=every, pairs=(), trials=trials)
    count, splits = _affordable(question, minutes, runs)
    if count <= MOST:
        return advised
    kept = KeptData()
    others = (m for m in every[len(advised.candidates) :] if not refusal(question, m, kept))
    question = replace(question, methods=(*advised.candidates, *others)[:count])
    try:
        tuned = Tuner(question, runs).run(splits, all_of_them=True)
    except TimeUpError:
        raise FedloomError(
            f"the {minutes:.3g} minutes ended before all methods were tried; the same command goes "
            "on"
        ) from None
    found = {method: one for (_, method), one in tuned.items() if math.isfinite(one.score)}
    best = sorted(found, key=lambda method: -found[method].score)
    sign = 1.0 if runs.metric.higher_is_better else -1.0
    tried = {method.name: sign * found[method].score for method in best}
    failed = tuple(method.name for method in question.methods if method not in found)
    screen = Screen(splits, trials, tried, failed)
    first = advised.candidates[: MOST - 1]
    seen = {found[method].curves for method in first if method in found}
    other = next((m for m in best if m not in first and found[m].curves not in seen), None)
    return advised if other is None else advised.choose(screen, other)


def _affordable(question: Question, minutes: float, runs: Runs) -> tuple[int, int]:
    """How many methods are tried on how many splits; what a study that was begun has kept."""
    file, digest = question.out / FILE, question.digest()
    kept = parse_json(file.read_text("utf-8")) if file.is_file() else {}
    if kept.get("question") != digest:
        tuner = Tuner(replace(question, methods=question.methods[:1]), runs)
        each = _DEARER * question.trials * tuner.seconds() / runs.jobs
        most = int(_TIME * 60 * minutes / each)  # methods, each on a split
        splits = max(1, min(tuner.wanted(), most // len(question.methods)))
        kept = {"methods": min(most, len(question.methods)), "splits": splits}
        write_atomic(file, json.dumps({"question": digest, **kept}) + "\n")
    return kept["methods"], kept["splits"]
