"""Advice: three methods that rules choose for a federation, compared by a study; one is taken.

Each client alone and all rows in one place are run beside them with as many trials and seeds. They
say what a federation is worth, and are no rivals.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from ..config import Config, resolve
from ..config.baselines import baselines
from ..data import FederatedData
from ..errors import ConfigError, FedloomError
from ..report.curve_data import value_of
from ..report.runs import Run
from ..sweep import check_all
from .question import Cell, Method, Question, Words, pair_of
from .rules import RULES, Facts, Rule, facts_of
from .study import Study

MOST = 3  # candidates
BESIDE = ("alone", "pooled")
_BASE = Rule("algorithm=fedavg", "what all others are compared with", "McMahan et al., 2017")
_OWN = Rule("", "what the settings have", "")


@dataclass(frozen=True)
class Advised:
    """What is compared, and why. words: the user's changes; rules: of the candidates, by name;
    skipped: {name of a candidate or a baseline: why it is not compared}.
    """

    question: Question
    words: tuple[str, ...]
    facts: Facts
    rules: Mapping[str, Rule]
    skipped: Mapping[str, str]

    @property
    def candidates(self) -> tuple[Method, ...]:
        """The methods of which one is taken."""
        return self.question.methods[: len(self.rules)]

    def settings(self, method: Method, choice: Words) -> Config:
        """What is deployed of a method: the user's settings, and its own."""
        cell = self.question.cells[0]
        own = [f"{key}={value}" for key, value in {**method.words, **choice}.items()]
        return resolve(cell.source, [*self.words, *own])


def advised(source: str, words: Sequence[str], trials: int, most: int, out: Path) -> Advised:
    """What is compared on a recipe or file with changes KEY=VALUE. trials: of each method; most:
    seeds. Raises ConfigError for whatever is wrong with them.
    """
    config = resolve(source, words)
    if seed := next((w for w in words if w.startswith("seed=")), ""):
        raise ConfigError(f"'{seed}': seeds are counted from the file's own; leave it out")
    data = config.data()
    if data.population < 2:
        raise ConfigError(f"'{source}' has one client; there is nothing to federate")
    if data.test_targets is None or not len(data.test_targets):
        raise ConfigError(f"'{source}' has no test rows to compare by; see data.test_share")
    shared = ["data.tests=matched"] * (data.test_clients is None and "partition" in _data(config))
    pairs = dict(map(pair_of, [*words, *shared]))
    cell = Cell(Path(source).stem, source, pairs)
    facts, skipped = facts_of(config, data), dict[str, str]()
    question = Question("algorithm", (), (), (cell,), {}, trials, most, None, out)
    rules = dict(_fitting(config, facts, question, skipped))
    beside = [*_beside(config, data, question, skipped)]
    methods = (*rules, *beside)
    compared = tuple(itertools.combinations(rules, 2))
    asked = Question("algorithm", methods, compared, (cell,), {}, trials, most, None, out)
    return Advised(asked, tuple(words), facts, {m.name: r for m, r in rules.items()}, skipped)


def _data(config: Config) -> Mapping[str, object]:
    found: Mapping[str, object] = config.values["data"]
    return found


def _fitting(
    config: Config, facts: Facts, question: Question, skipped: dict[str, str]
) -> Iterator[tuple[Method, Rule]]:
    """The candidates: FedAvg, the settings' own method, and those of rules, as far as they go with
    what the settings demand. Raises ConfigError if there is none.
    """
    own = config.algorithm if "server" not in config.values else f"{config.algorithm} and server"
    plain = own == "fedavg"
    tried = [(_BASE if plain else _OWN, Method(own, {}))]
    more = [*([] if plain else [_BASE]), *(rule for rule in RULES if rule.holds(facts))]
    away = ["server=none"] * ("server" in config.values)
    for rule in more:
        words = dict(map(pair_of, [*rule.changes.split(), *away]))
        name = " ".join([words["algorithm"], *rule.changes.split()[1:]])
        if name not in [method.name for _, method in tried]:
            tried.append((rule, Method(name, words)))
    found = 0
    for rule, method in tried:
        if found == MOST:
            return
        if why := _refusal(question, method):
            if not method.words:
                raise ConfigError(why)
            skipped[method.name] = why
            continue
        found += 1
        yield method, rule


def _beside(
    config: Config, data: FederatedData, question: Question, skipped: dict[str, str]
) -> Iterator[Method]:
    """The baselines that these data allow."""
    rows = baselines(config, data)
    for name in BESIDE:
        if name not in rows:
            skipped[name] = "the data are divided already, and take no partition"
            continue
        method = Method(name, dict(map(pair_of, rows[name])))
        if why := _refusal(question, method):
            skipped[name] = why
        else:
            yield method


def _refusal(question: Question, method: Method) -> str:
    """Why a method cannot be run; "" if it can."""
    try:
        check_all([question.trial(question.cells[0], method, {}, 0)])
    except FedloomError as error:
        return str(error.__cause__ or error)
    return ""


# ------------------------------------------------------------------------------- which is taken
@dataclass(frozen=True)
class Against:
    """A candidate as the one that is taken sees it. verdict: better, no difference or undecided;
    ahead: by how much the taken one is better in the mean, in the metric's unit.
    """

    other: Method
    verdict: str
    ahead: float


@dataclass(frozen=True)
class Taken:
    """method: what is taken; against: the other candidates; why: best (of those that nothing
    beats the best mean), bytes or simpler, where it is less than half of delta behind.
    """

    method: Method
    against: tuple[Against, ...]
    why: str

    @property
    def decided(self) -> bool:
        """Whether seeds decided every comparison with it."""
        return all(one.verdict != "undecided" for one in self.against)


def bytes_of(runs: Sequence[Run | None]) -> float:
    """Bytes that all clients send and receive in a run, mean."""
    return fmean(float(run.bytes[-1]) for run in runs if run is not None)


def mean_of(runs: Sequence[Run | None]) -> float | None:
    """What is compared, the mean over the seeds; None if a run failed."""
    values = [None if run is None else value_of(run) for run in runs]
    found = [v for v in values if v is not None]
    return fmean(found) if values and len(found) == len(values) else None


def taken(study: Study, candidates: Sequence[Method]) -> Taken:
    """Of the candidates that no other one beats the one with the best mean; or one less than half
    of delta behind that sends fewer bytes, or as many and comes before it.

    Raises FedloomError if all of them failed.
    """
    cell = study.question.cells[0]
    runs, sign = study.runs(cell), 1.0 if study.metric.higher_is_better else -1.0
    scores = {m: sign * v for m in candidates if (v := mean_of(runs[m])) is not None}
    if not scores:
        raise FedloomError("runs of every candidate failed; see failure.txt in their folders")
    verdicts = _verdicts(study, sign > 0)
    unbeaten = [m for m in scores if not any(verdicts.get((m, o)) == "worse" for o in scores)]
    best = max(unbeaten, key=lambda m: scores[m])
    slack = (study.delta or 0.0) / 2
    near = [m for m in unbeaten if m is best or scores[best] - scores[m] < slack]
    sent = {m: float(f"{bytes_of(runs[m]):.2g}") for m in near}
    pick = min(near, key=lambda m: (sent[m], candidates.index(m)))
    why = "best" if pick is best else "bytes" if sent[pick] < sent[best] else "simpler"
    others = [m for m in candidates if m is not pick]
    gaps = {m: scores[pick] - scores[m] if m in scores else float("nan") for m in others}
    against = (Against(m, verdicts[pick, m], gaps[m]) for m in others)
    return Taken(pick, tuple(against), why)


def _verdicts(study: Study, higher: bool) -> dict[tuple[Method, Method], str]:
    """Every comparison from both sides."""
    better, worse = ("above", "below") if higher else ("below", "above")
    words = {better: "better", worse: "worse", "within": "no difference"}
    back = {better: "worse", worse: "better", "within": "no difference"}
    out = {}
    for (_, one, other), decision in study.decisions().items():
        out[one, other] = words.get(decision.verdict, "undecided")
        out[other, one] = back.get(decision.verdict, "undecided")
    return out
