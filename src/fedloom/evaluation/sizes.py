"""Evaluation of sub-models as in the papers: every size on the common test set and at the clients
of that size, and which coordinates each size has explored.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..core.net import Net
from ..core.vector import Rec, Vec
from ..engines.base import Engine
from ..engines.client_results import Request
from ..engines.scores import Score
from ..federation.federation import Federation
from ..submodels.base import SubModel, View
from ..submodels.slicing import unscaled
from .clients import NOT_MEASURED, client_values
from .scorer import Current, Scorer
from .settings import Evaluation

_HELD, _EVER, _TRAINED = 1, 2, 4  # bits of Explored.marks


def text(capacity: float) -> str:
    """A capacity as text, for columns and tables.

    >>> text(1 / 64), text(0.25)
    ('0.015625', '0.25')
    """
    return f"{capacity:.6g}"


def mean_of(values: Iterable[float | None]) -> float | None:
    """The mean of the known values; None if there are none."""
    numbers = [v for v in values if v is not None]
    return sum(numbers) / len(numbers) if numbers else None


def part_of(
    submodel: SubModel, net: Net, x: Vec, capacity: float, round: int
) -> tuple[View, nn.Module]:
    """A view of this capacity after so many rounds, and its module with these weights: a smaller
    one, or the whole one with zeros; in evaluation mode, without scalers.
    """
    view = submodel.view(x, net, capacity, round)
    return view, unscaled((view.net or net).export(view.seen(view.take(x))))


def holding(submodel: SubModel | None, fed: Federation, net: Net) -> Vec | None:
    """How many of all clients hold each coordinate, each counted by its relative weight, (d,); None
    if that changes from round to round, or if every client holds everything.
    """
    if submodel is None or not (submodel.fixed and fed.parted):
        return None
    x = net.init()
    holders = torch.zeros_like(x)
    capacities: defaultdict[float, float] = defaultdict(float)
    for i in range(fed.population):
        capacities[fed.capacity(i)] += fed.relative_weight(i)
    for capacity, clients in capacities.items():
        view = submodel.view(x, net, capacity, 0)
        holders[... if view.held is None else view.held] += clients
    return holders


class Explored(NamedTuple):
    """What sizes have explored. marks: uint8 (sizes, n) over the coordinates that count: bits say
    that a size holds one now, has ever held it, and held it in a round in which a client of that
    size took part. replaced: the share of its coordinates that the last round replaced (sizes,).
    """

    marks: Tensor
    replaced: Tensor


class Sizes:
    """Evaluates a run's sub-models. levels: the capacities among the clients, increasing."""

    def __init__(
        self, rule: SubModel, fed: Federation, net: Net, evaluation: Evaluation, scorer: Scorer
    ) -> None:
        self.rule, self.fed, self.net = rule, fed, net
        self.evaluation, self._scorer = evaluation, scorer
        self.levels = sorted(set(fed.capacities))
        self.metric = next(iter(fed.metrics), "loss")
        mask = torch.tensor(self.rule.counted(net))
        self._counts = mask.repeat_interleave(torch.tensor(net.layout.sizes)).to(net.device)
        self._views: dict[float, View] = {}  # views that never change
        self._scored: tuple[int, dict[float, Score]] = (-1, {})  # of which round, all sizes

    # ---------------------------------------------------------------------------- what was explored
    def begin(self, x: Vec, round: int) -> Explored | None:
        """What sizes have explored before a round (from 0) with x (d,): nothing is trained yet."""
        if not self.evaluation.explored:
            return None
        marks = self._all_marks(x, round) * (_HELD | _EVER)
        return Explored(marks, torch.zeros(len(marks), dtype=torch.float64))

    def advance(
        self, before: Explored | None, x: Vec, round: int, cohort: Sequence[int]
    ) -> Explored | None:
        """The same before the next round, which has the model x (d,); cohort: of the last one."""
        if before is None:
            return None
        present = set(map(self.fed.capacity, cohort))
        took_part = torch.tensor([[c in present] for c in self.levels])
        now, old = self._all_marks(x, round), before.marks & _HELD
        past = before.marks & (_EVER | _TRAINED)
        marks = past | now * (_HELD | _EVER) | old * took_part * _TRAINED
        return Explored(marks, (now ^ old).sum(1).double() / (now.sum(1) + old.sum(1)))

    def _view(self, x: Vec, capacity: float, round: int) -> View:
        if capacity in self._views:
            return self._views[capacity]
        view = self.rule.view(x, self.net, capacity, round)
        if self.rule.fixed:
            self._views[capacity] = view
        return view

    def _marks(self, x: Vec, capacity: float, round: int) -> Tensor:
        """Which of the coordinates that count a size holds, uint8 (n,) on the CPU."""
        view = self._view(x, capacity, round)
        marks = torch.zeros_like(self._counts, dtype=torch.uint8)
        marks[... if view.held is None else view.held] = 1
        return marks[self._counts].cpu()

    def _all_marks(self, x: Vec, round: int) -> Tensor:
        return torch.stack([self._marks(x, level, round) for level in self.levels])

    def restored(self, record: Rec, x: Vec, round: int) -> Explored | None:
        """What a checkpoint has of it; without that, it begins here."""
        fresh, marks = self.begin(x, round), getattr(record, "marks", None)
        if fresh is None or marks is None or marks.shape != fresh.marks.shape:
            return fresh
        return Explored(marks.cpu(), record.replaced.cpu())

    def explored(self, sizes: Explored | None) -> dict[str, float]:
        """The columns of a round. explored@p: the share of the coordinates that count which size p
        has held so far; trained@p: the same in rounds in which a client of that size took part;
        replaced@p: the share of its coordinates that the last round replaced; untrained: held by no
        size so far.

        The definitions are ours: FIARSE shows these curves (Figures 7 and 8) without formulas.
        """
        if sizes is None:
            return {}
        out, n = dict[str, float](), sizes.marks.shape[1]
        for level, marks, replaced in zip(self.levels, sizes.marks, sizes.replaced, strict=True):
            out[f"explored@{text(level)}"] = int((marks & _EVER).count_nonzero()) / n
            out[f"trained@{text(level)}"] = int((marks & _TRAINED).count_nonzero()) / n
            out[f"replaced@{text(level)}"] = float(replaced)
        return out | {"untrained": 1 - int((sizes.marks & _EVER).any(0).sum()) / n}

    def counts(self, x: Vec, capacity: float, round: int) -> dict[str, int]:
        """How many coordinates a size holds: of those its capacity is a share of, and of all."""
        marks = self._marks(x, capacity, round)
        count = int(marks.sum())
        return {"counted": count, "of": len(marks), "all": count + len(self._counts) - len(marks)}

    # ----------------------------------------------------------------------------------- evaluation
    def _tested(self, engine: Engine, current: Current, capacity: float) -> Score:
        """One size on the common test set."""
        view = self._view(current.x, capacity, current.round)
        part = view.seen(view.take(current.x))
        return self._scorer.of(part, current.buffers, Request.TEST, engine, view.net)

    def scores(
        self, engine: Engine, current: Current, whole: Score | None = None
    ) -> dict[float, Score]:
        """Every size on the common test set, {} without one. whole: the whole model's, if known."""
        if self.fed.data.test_inputs is None:
            return {}
        if self._scored[0] != current.round:
            ready = {1.0: whole} if whole is not None else {}
            by_size = {c: ready.get(c) or self._tested(engine, current, c) for c in self.levels}
            self._scored = current.round, by_size
        return self._scored[1]

    def _per_client(self, score: Score) -> tuple[list[float | None], str]:
        return client_values(self.fed.data, self.fed.metrics, score, self.metric)

    def local(self, scores: dict[float, Score]) -> tuple[list[float | None], str]:
        """The metric per client, each with a sub-model of its size, and a text: on what."""
        if not scores:
            return [None] * self.fed.population, NOT_MEASURED
        by_size = {c: self._per_client(score) for c, score in scores.items()}
        values = [by_size[c][0][i] for i, c in enumerate(self.fed.capacities)]
        return values, next(iter(by_size.values()))[1]

    def columns(self, scores: dict[float, Score]) -> dict[str, float]:
        """The columns of a round: test_METRIC@p, each size on the common test set, and @mean over
        the sizes; local_METRIC@p, its mean over the clients of that size, and @mean over all.
        """
        if not scores:
            return {}
        common: dict[str, float | None] = {
            text(c): score.mean(self.metric, self.fed.metrics) for c, score in scores.items()
        }
        values, _ = self.local(scores)
        pairs = [*zip(self.fed.capacities, values, strict=True)]
        local = {text(c): mean_of(v for level, v in pairs if level == c) for c in scores}
        tables = {
            "test": common | {"mean": mean_of(common.values())},
            "local": local | {"mean": mean_of(values)},
        }
        return {
            f"{part}_{self.metric}@{size}": value
            for part, table in tables.items()
            for size, value in table.items()
            if value is not None
        }

    def unseen(
        self, engine: Engine, current: Current, outside: Sequence[int]
    ) -> list[dict[str, Any]]:
        """One row for every size of evaluate.sizes: on the common test set, and the mean over the
        clients that never took part, each with that size; None without such clients.
        """
        rows: list[dict[str, Any]] = []
        measured = self.scores(engine, current)
        for capacity in sorted({float(s) for s in self.evaluation.sizes}) if measured else ():
            score = measured.get(capacity) or self._tested(engine, current, capacity)
            values, _ = self._per_client(score)
            rows.append(
                {
                    "capacity": capacity,
                    "trained": capacity in self.levels,
                    "global": score.mean(self.metric, self.fed.metrics),
                    "outside": mean_of(values[i] for i in outside),
                }
            )
        return rows
