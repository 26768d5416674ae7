"""Advice: FedAvg and the two best of all other methods on validation splits, compared by a study.
Each client alone and all rows in one place are run beside them, and are no rivals.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, TypeVar

from ..algorithms.registry import ALGORITHMS, make_algorithm
from ..config import Config, resolve
from ..config.baselines import baselines
from ..core.interrupts import TimeUpError
from ..core.parsing import parse_json
from ..data import FederatedData
from ..errors import ConfigError, FedloomError
from ..report.curve_data import value_of
from ..report.runs import Run
from ..storage.atomic import write_atomic
from ..study import DataCache, Runs, check_all
from ..study.tune import Tuned
from .question import Cell, Method, Question, Words, pair_of, refuse_own_models
from .study import Study, Tuner

PLAIN, ALONE = "fedavg", "alone"  # always a candidate; a baseline
BASELINES = (ALONE, "pooled")
K = TypeVar("K", bound=Hashable)
Json = dict[str, Any]
Why = Literal["best", "bytes", "simpler"]
_OWN_CLOCK = "fedbuff"  # its rounds need an asynchronous clock
SCREEN = "screen.json"
TRIALS, BEST = 4, 2  # at most, of each method; candidates beside FedAvg
_TIME = 0.5  # of all the time, what trying all methods may take
_DEARER = 1.5  # so many runs of FedAvg take as long as one of a method, in the mean


@dataclass(frozen=True)
class Advised:
    """What is compared. where: the question without methods; words: the user's changes; candidates:
    the methods of which one is taken; baselines: run too; others: all other methods; skipped:
    {method or baseline: why it cannot be compared}. screen: how all methods did on validation
    splits, as docs/schemas/advise.json has it; None where there was no time for it.
    """

    where: Question
    words: tuple[str, ...]
    candidates: tuple[Method, ...]
    baselines: tuple[Method, ...]
    others: tuple[Method, ...]
    skipped: Mapping[str, str]
    screen: Json | None = None

    @property
    def question(self) -> Question:
        """With the candidates and then the baselines."""
        pairs = tuple(itertools.combinations(self.candidates, 2))
        return replace(self.where, methods=(*self.candidates, *self.baselines), pairs=pairs)

    def settings(self, method: Method, choice: Words) -> Config:
        """What is deployed of a method: the user's settings, and its own."""
        cell = self.question.cells[0]
        changes = [f"{key}={value}" for key, value in {**method.words, **choice}.items()]
        return resolve(cell.source, [*self.words, *changes])


def advised(source: str, words: Sequence[str], trials: int, most: int, out: Path) -> Advised:
    """FedAvg and the method of the settings, to be compared on a recipe or file with changes
    KEY=VALUE. trials: of each method; most: seeds. Raises ConfigError.
    """
    config = resolve(source, words)
    if seed := next((w for w in words if w.startswith("seed=")), ""):
        raise ConfigError(f"'{seed}': seeds are counted from the file's own; leave it out")
    data = config.data()
    _check(source, config, data)
    matched = data.test_clients is None and "partition" in config.values["data"]
    tests = ["data.tests=matched"] if matched else []
    cell = Cell(Path(source).stem, source, dict(map(pair_of, [*words, *tests])))
    question = Question("algorithm", (), (), (cell,), trials, most, None, out)
    method, every, skipped, cache = _method(config), _every(config), dict[str, str](), DataCache()
    if why := refusal(question, method, cache):
        raise ConfigError(why)
    plain = [] if method.name == PLAIN else [every[PLAIN]]
    candidates = (*allowed(question, plain, skipped, cache), method)
    others = tuple(every[name] for name in every if name not in (PLAIN, method.name))
    rows = tuple(allowed(question, _baselines(config, data, question, skipped), skipped, cache))
    return Advised(question, tuple(words), candidates, rows, others, skipped)


def _check(source: str, config: Config, data: FederatedData) -> None:
    """Raise ConfigError for what no method can be compared on."""
    if data.population < 2:
        raise ConfigError(f"'{source}' has one client, and a federation has two or more")
    if data.test_targets is None or not len(data.test_targets):
        raise ConfigError(
            f"'{source}' has no test rows to compare by; see data.test_share, or test"
        )
    refuse_own_models(config)


def _method(config: Config) -> Method:
    """The method of the settings."""
    server = " and server" if "server" in config.values else ""
    return Method(f"{config.algorithm}{server}", {})


def _every(config: Config) -> dict[str, Method]:
    """{name: all methods of one model for all clients whose rounds are those of the settings}."""
    changes = {"server": "none"} if "server" in config.values else {}
    return {
        name: Method(name, {"algorithm": name, **changes})
        for name in ALGORITHMS
        if (name != _OWN_CLOCK or "clock" in config.values)
        and not make_algorithm(name).personalises
    }


def _baselines(
    config: Config, data: FederatedData, question: Question, skipped: dict[str, str]
) -> Iterator[Method]:
    """The baselines that these data allow; a client alone keeps the rate of the settings."""
    rows = baselines(config, data)
    if data.test_clients is None and "data.tests" not in question.cells[0].words:
        del rows[ALONE]
    for name in BASELINES:
        if name not in rows:
            skipped[name] = "the data do not say how to test or divide them so"
            continue
        rate = {"local.lr": repr(config.values["local"]["lr"])} if name == ALONE else {}
        yield Method(name, dict(map(pair_of, rows[name])) | rate)


def allowed(
    question: Question, methods: Iterable[Method], skipped: dict[str, str], cache: DataCache
) -> Iterator[Method]:
    """Those that can be run; into `skipped` why the others cannot."""
    for method in methods:
        if why := refusal(question, method, cache):
            skipped[method.name] = why
        else:
            yield method


def refusal(question: Question, method: Method, cache: DataCache) -> str:
    """Why a method cannot be run; "" if it can. kept: data that an earlier check may have left."""
    try:
        check_all([question.tuning(question.cells[0], method, {}, 0)], cache)
    except FedloomError as error:
        return str(error.__cause__ or error)
    return ""


# ------------------------------------------------------------------------- which are compared
def screened(advised: Advised, minutes: float, runs: Runs) -> Advised:
    """The advice with the two best of all other methods on validation splits as candidates, if
    there is time for that. Raises ConfigError or FedloomError if there is too little.
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
    screen = {
        "splits": splits,
        "trials": trials,
        "tried": [{"name": m.name, "value": sign * scored[m].score} for m in ranked],
        "failed": [method.name for method in methods if method not in scored],
    }
    plain = [method for method in advised.candidates if method.name == PLAIN]
    return replace(advised, candidates=tuple(_best(plain, ranked, scored)), screen=screen)


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
    file, digest = question.out / SCREEN, question.digest()
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


# ------------------------------------------------------------------------------- which is taken
@dataclass(frozen=True)
class Pick:
    """method: what is taken; why: it has the best mean of those that nothing beats, or is less than
    half of delta behind and sends fewer bytes, or is FedAvg. against: the other candidates, with
    the verdict of a comparison and how far the taken one is ahead (see docs/schemas/advise.json).
    """

    method: Method
    why: Why
    against: list[Json]


def bytes_of(runs: Sequence[Run | None]) -> float:
    """Bytes that all clients send and receive in a run, mean."""
    return fmean(run.total("bytes") or 0.0 for run in runs if run is not None)


def mean_of(runs: Sequence[Run | None]) -> float | None:
    """What is compared, the mean over the seeds; None if a run failed."""
    values = [None if run is None else value_of(run) for run in runs]
    scores = [v for v in values if v is not None]
    return fmean(scores) if values and len(scores) == len(values) else None


def pick_candidate(study: Study, candidates: Sequence[Method]) -> Pick:
    """What is taken of the candidates. Raises FedloomError if runs of all of them failed."""
    runs = study.runs(study.question.cells[0])
    sign = 1.0 if study.runner.metric.higher_is_better else -1.0
    scores = {m: sign * v for m in candidates if (v := mean_of(runs[m])) is not None}
    if not scores:
        raise FedloomError("runs of every candidate failed; failure.txt in their folders says why")
    verdicts = dict[tuple[Method, Method], str]()
    for (_, one, other), decision in study.decisions().items():
        verdict = verdicts[one, other] = study.verdict(decision)
        verdicts[other, one] = {"better": "worse", "worse": "better"}.get(verdict, verdict)
    sent = {m: bytes_of(runs[m]) for m in scores}
    simplest = next((m for m in candidates if m.name == PLAIN), None)
    pick, why = pick_best(scores, sent, verdicts, (study.delta or 0.0) / 2, simplest)
    against = [
        {
            "name": other.name,
            "verdict": verdicts[pick, other],
            "ahead": scores[pick] - scores[other] if other in scores else None,
        }
        for other in candidates
        if other is not pick
    ]
    return Pick(pick, why, against)


def pick_best(
    scores: Mapping[K, float],
    sent: Mapping[K, float],
    verdicts: Mapping[tuple[K, K], str],
    slack: float,
    simplest: K | None,
) -> tuple[K, Why]:
    """Of the candidates that no other one beats the best; or one that is less than `slack` behind
    and sends fewer bytes, or as many (to two digits) and is the simplest.

    scores: means, more is better; verdicts: of one against another.

    >>> fewer = pick_best({"a": 0.90, "b": 0.91}, {"a": 1.0, "b": 2.0}, {}, 0.02, None)
    >>> fewer, pick_best({"a": 0.90, "b": 0.95}, {"a": 1.0, "b": 2.0}, {}, 0.02, None)
    (('a', 'bytes'), ('b', 'best'))
    """
    unbeaten = [k for k in scores if not any(verdicts.get((k, o)) == "worse" for o in scores)]
    best = max(unbeaten, key=lambda k: scores[k])
    near = [k for k in unbeaten if k == best or scores[best] - scores[k] < slack]
    cost = {k: float(f"{sent[k]:.2g}") for k in near}
    pick = min(near, key=lambda k: (cost[k], k != simplest, -scores[k]))
    if pick == best:
        return pick, "best"
    return pick, "bytes" if cost[pick] < cost[best] else "simpler"
