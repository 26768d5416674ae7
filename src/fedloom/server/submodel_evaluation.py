"""Evaluation of sub-models as in the papers: every size on the common test set and at the clients
of that size, and which coordinates each size has explored.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ..core.net import Net
from ..core.vector import Rec, Vec, rec
from ..data import FederatedData
from ..engines.base import Engine
from ..engines.client_results import Request
from ..engines.evaluation import Score, final
from ..federation.federation import Federation
from ..submodels.base import Rule, View
from ..submodels.slicing.layers import unscaled
from .evaluation import Evaluation
from .scoring import Current, Scorer

NOT_MEASURED = "not measured"


def text(capacity: float) -> str:
    """A capacity as text, for columns and tables.

    >>> text(1 / 64), text(0.25)
    ('0.015625', '0.25')
    """
    return f"{capacity:.6g}"


def mean_of(values: Iterable[float | None]) -> float | None:
    """The mean of the known values; None if there are none."""
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if known else None


def part_of(rule: Rule, net: Net, x: Vec, capacity: float, round: int) -> tuple[View, nn.Module]:
    """A view of this capacity after so many rounds, and its module with these weights: a smaller
    one, or the whole one with zeros; in evaluation mode, without scalers.
    """
    view = rule.view(x, net, capacity, round)
    return view, unscaled((view.net or net).export(view.seen(view.take(x))))


def holding(rule: Rule | None, fed: Federation, net: Net) -> Vec | None:
    """How many of all clients hold each coordinate, each counted by its relative weight, (d,); None
    if that changes from round to round, or if every client holds everything.
    """
    if rule is None or not (rule.fixed and fed.parted):
        return None
    x = net.init()
    held = torch.zeros_like(x)
    capacities: defaultdict[float, float] = defaultdict(float)
    for i in range(fed.population):
        capacities[fed.capacity(i)] += fed.relative_weight(i)
    for capacity, clients in capacities.items():
        view = rule.view(x, net, capacity, 0)
        held[... if view.held is None else view.held] += clients
    return held


def client_values(
    data: FederatedData, metrics: Mapping[str, Any], score: Score, name: str
) -> tuple[list[float | None], str]:
    """{client: metric} from one pass over the common test set, and a text that says on what.

    Clients with test sets of their own are measured on these. Otherwise a client's value is the
    test set's value per class, weighted by the client's label shares: what a test set with its own
    label distribution would give on average. Means of batches tell nothing of clients.
    """
    if name not in score.each:  # nothing is known of single examples
        return [None] * data.population, NOT_MEASURED
    share = score.share[name]
    rows = torch.stack([score.each[name] * share, share], 1)
    targets, basis = data.test_targets, "own test sets"
    if data.test_clients is not None:
        index, owners = data.test_clients.indices, data.test_clients.owners()
        sums = torch.zeros(data.population, 2, dtype=rows.dtype).index_add_(0, owners, rows[index])
    elif data.classes is None or targets is None or targets.ndim != 1:
        return [None] * data.population, NOT_MEASURED
    else:
        sums = _by_class(data, targets.cpu(), rows)
        basis = "test set weighted by the client's labels"
    return [final(metrics[name], v / w) if w else None for v, w in sums.tolist()], basis


def _by_class(data: FederatedData, labels: Tensor, rows: Tensor) -> Tensor:
    """The means of these columns (n, 2) per class, weighted by each client's labels: (clients, 2).
    Zeros where that is not known.
    """
    examples = torch.bincount(labels, minlength=data.classes or 0).clamp_min(1)
    of_class = [torch.bincount(labels, v, len(examples)) / examples for v in rows.T]
    counts = data.label_counts().double()
    sums = torch.stack([counts @ v for v in of_class], 1)
    sums[sums.isnan().any(1)] = 0.0
    return sums


class Explored(NamedTuple):
    """The coordinates that one size holds now, has ever held, and held in a round in which a client
    of that size took part: bool over those that count (n,). replaced: the share of its coordinates
    that the last round replaced.
    """

    now: Tensor
    ever: Tensor
    trained: Tensor
    replaced: float = 0.0

    def after(self, new: Tensor, took_part: bool) -> Explored:
        """The same after a round; new: what the size holds then."""
        both = int(new.sum()) + int(self.now.sum())
        return Explored(
            now=new,
            ever=self.ever | new,
            trained=self.trained | self.now if took_part else self.trained,
            replaced=int((new ^ self.now).sum()) / both,
        )


def packed(sizes: Sequence[Explored]) -> Rec:
    """What sizes have explored, for a checkpoint: a bit for a coordinate."""

    def own(size: Explored) -> Rec:
        marks = {"now": size.now, "ever": size.ever, "trained": size.trained}
        bits = {k: torch.from_numpy(np.packbits(v.numpy())) for k, v in marks.items()}
        return rec(**bits, replaced=size.replaced)

    return rec(**{f"size{i}": own(e) for i, e in enumerate(sizes)})


def _unpacked(bits: Tensor, n: int) -> Tensor:
    return torch.from_numpy(np.unpackbits(bits.cpu().numpy(), count=n).astype(bool))


class Sizes:
    """Evaluates a run's sub-models. levels: the capacities among the clients, increasing."""

    def __init__(
        self, rule: Rule, fed: Federation, net: Net, evaluation: Evaluation, scorer: Scorer
    ) -> None:
        self.rule, self.fed, self.net = rule, fed, net
        self.evaluation, self._scorer = evaluation, scorer
        self.levels = sorted(set(fed.capacities))
        self.metric = next(iter(fed.metrics), "loss")
        counted = torch.tensor(self.rule.counted(net))
        self._counts = counted.repeat_interleave(torch.tensor(net.layout.sizes)).to(net.device)
        self._kept: dict[float, View] = {}  # views that never change
        self._scored: tuple[int, dict[float, Score]] = (-1, {})  # of which round, all sizes

    # ---------------------------------------------------------------------------- what was explored
    def begin(self, x: Vec, round: int) -> tuple[Explored, ...]:
        """What each size has explored before a round (from 0) with the model x (d,): nothing is
        trained yet. Empty if that is not recorded.
        """
        if not self.evaluation.explored:
            return ()
        held = [self._held(x, level, round) for level in self.levels]
        return tuple(Explored(now, now, torch.zeros_like(now)) for now in held)

    def moved(
        self, before: tuple[Explored, ...], x: Vec, round: int, cohort: Sequence[int]
    ) -> tuple[Explored, ...]:
        """The same before the next round, which has the model x (d,); cohort: of the last one."""
        present = set(map(self.fed.capacity, cohort))
        pairs = zip(self.levels, before, strict=False)
        return tuple(e.after(self._held(x, c, round), c in present) for c, e in pairs)

    def _view(self, x: Vec, capacity: float, round: int) -> View:
        if capacity in self._kept:
            return self._kept[capacity]
        view = self.rule.view(x, self.net, capacity, round)
        if self.rule.fixed:
            self._kept[capacity] = view
        return view

    def _held(self, x: Vec, capacity: float, round: int) -> Tensor:
        view = self._view(x, capacity, round)
        if view.held is None:
            return torch.ones(int(self._counts.sum()), dtype=torch.bool)
        marks = torch.zeros_like(self._counts).index_fill_(0, view.held, True)
        return marks[self._counts].cpu()

    def restored(self, kept: Rec, x: Vec, round: int) -> tuple[Explored, ...]:
        """What packed() made of it, out of a checkpoint; without that, it begins here."""
        begun = self.begin(x, round)
        if kept is None or len(kept) != len(begun):
            return begun
        n = int(self._counts.sum())

        def one(own: Rec) -> Explored:
            now, ever, trained = (_unpacked(b, n) for b in (own.now, own.ever, own.trained))
            return Explored(now, ever, trained, float(own.replaced))

        return tuple(map(one, kept))

    def explored(self, sizes: Sequence[Explored]) -> dict[str, float]:
        """The columns of a round. explored@p: the share of the coordinates that count which size p
        has held so far; trained@p: the same in rounds in which a client of that size took part;
        replaced@p: the share of its coordinates that the last round replaced; untrained: held by no
        size so far.

        The definitions are ours: FIARSE shows these curves (Figures 7 and 8) without formulas.
        """
        out: dict[str, float] = {}
        for level, one in zip(self.levels, sizes, strict=False):
            name, n = text(level), len(one.ever)
            out[f"explored@{name}"] = int(one.ever.sum()) / n
            out[f"trained@{name}"] = int(one.trained.sum()) / n
            out[f"replaced@{name}"] = one.replaced
        if sizes:
            ever = torch.stack([one.ever for one in sizes]).any(0)
            out["untrained"] = 1 - int(ever.sum()) / len(ever)
        return out

    def held(self, x: Vec, capacity: float, round: int) -> dict[str, int]:
        """How many coordinates a size holds: of those its capacity is a share of, and of all."""
        marks = self._held(x, capacity, round)
        exempt = len(self._counts) - len(marks)
        count = int(marks.sum())
        return {"counted": count, "of": len(marks), "all": count + exempt}

    # ----------------------------------------------------------------------------------- evaluation
    def _tested(self, engine: Engine, current: Current, capacity: float) -> Score:
        """One size on the common test set."""
        view = self._view(current.x, capacity, current.round)
        part = view.seen(view.take(current.x))
        return self._scorer.of_set(engine, Request.TEST, part, current.buffers, view.net)

    def value(self, score: Score) -> float:
        """The headline metric of a score, or its loss if there is no metric."""
        if self.metric not in self.fed.metrics:
            return score.loss / max(score.examples, 1)
        return score.mean(self.metric, self.fed.metrics[self.metric])

    def scores(
        self, engine: Engine, current: Current, whole: Score | None = None
    ) -> dict[float, Score]:
        """Every size among the clients on the common test set; nothing without one. whole: the
        score of the whole model, if it is known.
        """
        if self.fed.data.test_inputs is None:
            return {}
        if self._scored[0] != current.round:
            known = {1.0: whole} if whole is not None else {}
            found = {c: known.get(c) or self._tested(engine, current, c) for c in self.levels}
            self._scored = current.round, found
        return self._scored[1]

    def local(self, scores: dict[float, Score]) -> tuple[list[float | None], str]:
        """The metric per client, each with a sub-model of its size, and a text: on what."""
        if self.metric not in self.fed.metrics or not scores:
            return [None] * self.fed.population, NOT_MEASURED
        about = self.fed.data, self.fed.metrics
        found = {c: client_values(*about, s, self.metric) for c, s in scores.items()}
        own = [found[c][0][i] for i, c in enumerate(self.fed.capacities)]
        return own, next(iter(found.values()))[1]

    def columns(self, scores: dict[float, Score]) -> dict[str, float]:
        """The columns of a round: test_METRIC@p, each size on the common test set, and @mean over
        the sizes; local_METRIC@p, its mean over the clients of that size, and @mean over all.
        """
        if not scores:
            return {}
        known: dict[str, float | None] = {
            f"test_{self.metric}@{text(c)}": self.value(s) for c, s in scores.items()
        }
        known[f"test_{self.metric}@mean"] = mean_of(known.values())
        local, _ = self.local(scores)
        for c in scores:
            same = (v for v, own in zip(local, self.fed.capacities, strict=True) if own == c)
            known[f"local_{self.metric}@{text(c)}"] = mean_of(same)
        known[f"local_{self.metric}@mean"] = mean_of(local)
        return {k: v for k, v in known.items() if v is not None}

    def unseen(
        self,
        engine: Engine,
        current: Current,
        outside: Sequence[int],
        known: Mapping[float, Score],
    ) -> list[dict[str, Any]]:
        """One row for every size of evaluate.sizes: on the common test set, and the mean over the
        clients that never took part, each with that size; None without such clients. known: scores
        of some sizes.
        """
        rows = []
        for capacity in sorted({float(s) for s in self.evaluation.sizes}):
            if self.fed.data.test_inputs is None:
                break
            score = known.get(capacity) or self._tested(engine, current, capacity)
            values: list[float | None] = []
            if self.metric in self.fed.metrics:
                about = self.fed.data, self.fed.metrics
                values, _ = client_values(*about, score, self.metric)
            rows.append(
                {
                    "capacity": capacity,
                    "trained": capacity in self.levels,
                    "global": self.value(score),
                    "outside": mean_of(values[i] for i in outside) if values else None,
                }
            )
        return rows
