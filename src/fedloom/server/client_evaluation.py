"""How each client fares: its metric on its own test set, with the model that it uses itself."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..core.net import Net
from ..core.ranks import Group
from ..core.vector import Rec, Vec
from ..engines.author_checks import personal_model
from ..engines.base import one_thread
from ..engines.batch_statistics import evaluate_normed, keeps_no_statistics
from ..engines.error_context import Explained
from ..engines.evaluation import Score, score_of
from ..federation.federation import Federation
from ..plan import Plan
from ..storage.client_state import ClientStates
from .submodel_evaluation import client_values

_AT_ONCE = 64  # clients whose states are read together


class ClientTests:
    """Measures the clients of a run. Where they use models of their own, every rank takes the
    clients whose states it has.
    """

    def __init__(self, plan: Plan, fed: Federation, net: Net, how: str) -> None:
        self.plan, self.fed, self.net = plan, fed, net
        self._how = how  # statistics of a batch norm that keeps none: see Evaluation.statistics
        self._normed = keeps_no_statistics(net.module)
        self._private = None if plan.private is None else plan.private.kept(net)
        self.metric = next(iter(fed.metrics), "loss")

    def values(
        self,
        score: Score,
        memory: ClientStates,
        group: Group,
        told: Callable[[], tuple[Vec, Rec, Vec]],
        round: int,
    ) -> tuple[list[float | None], str]:
        """The headline metric per client, and a text that says on what. score: of the common model
        on the test set; told: gives the server's model, the next message, and the buffers.
        """
        if self.plan.personalises and self.fed.data.test_clients is not None:
            found = self._personal(memory, group, told(), round)
            return found, "own test sets, personal models"
        if self.metric not in self.fed.metrics:
            return [None] * self.fed.population, "not measured"
        return client_values(self.fed.data, self.fed.metrics[self.metric], score)

    def _personal(
        self, memory: ClientStates, group: Group, told: tuple[Vec, Rec, Vec], round: int
    ) -> list[float | None]:
        """The same of the clients' own models, None without test samples."""
        assert self.fed.data.test_clients is not None
        some = [i for i in range(self.fed.population) if len(self.fed.data.test_clients.of(i))]
        found: dict[int, float] = {}
        for a in range(0, len(some), _AT_ONCE):
            chunk = some[a : a + _AT_ONCE]
            rows, last = memory.get(chunk), memory.last(chunk)
            new = [i for i in chunk if last[i] is None] if group.rank == 0 else []
            todo = [i for i in chunk if i in rows or i in new]
            work = functools.partial(self._some, todo, rows, told, round)
            mine, error = group.attempt(work)
            for part in group.gather(mine, error):
                found |= part or {}
        return [found.get(i) for i in range(self.fed.population)]

    def _some(
        self, todo: list[int], rows: dict[int, Rec], told: tuple[Vec, Rec, Vec], round: int
    ) -> dict[int, float]:
        return {i: self._value(i, rows.get(i), *told, round) for i in todo}

    def _value(self, i: int, row: Rec, x: Vec, msg: Rec, buffers: Vec, round: int) -> float:
        """One client's metric; row: its state, None before its first round."""
        if self._private is not None and row is not None:
            x = self._private.filled(x, row.own)
            msg = msg._replace(x=self._private.filled(msg.x, row.own))
            buffers = self._private.filled_buffers(buffers, row.own)
        if self.plan.algorithm.personalises:
            with Explained(self.plan.algorithm.method, i, max(0, round - 1)):
                own = None if row is None else row.alg
                x = personal_model(self.plan.algorithm, self.net.init(), msg, own)
        score = self._score(i, x, buffers)
        if self.metric not in self.fed.metrics:
            return score.loss / max(score.examples, 1)
        return score.mean(self.metric, self.fed.metrics[self.metric])

    def _score(self, i: int, x: Vec, buffers: Vec) -> Score:
        data = self.fed.data
        assert data.test_inputs is not None and data.test_targets is not None
        assert data.test_clients is not None
        index = data.test_clients.of(i).to(data.test_inputs.device)
        on = data.test_inputs[index], data.test_targets[index]
        with one_thread():
            self.net.load_buffers(buffers)
            if self._normed:
                return evaluate_normed(self.plan, self.fed, self.net, x, on, self._how, False)
            return score_of(self.plan, self.fed, self.net, x, [on])


def untested(plan: Plan, fed: Federation) -> str:
    """A remark if clients use models of their own that nothing measures; else empty."""
    if not plan.personalises or fed.data.test_clients is not None:
        return ""
    who = plan.private.name if plan.private is not None else plan.algorithm.method
    return (
        f"{who}: clients have models of their own, and no test sets to measure them on; give "
        "data.tests = matched (with_client_tests in Python)"
    )


def unmeasured(fed: Federation) -> str:
    """A remark if data lack a test set, or what a metric per client needs; else empty."""
    data = fed.data
    if data.test_inputs is None:
        rest = "the training loss" + (" and validation" if data.validation is not None else "")
        return (
            f"'{data.name}' has no test set, so only {rest} is measured; give test samples, or "
            "evaluate.validation = 0.1"
        )
    by_class = data.classes is not None and data.targets.ndim == 1
    if data.test_clients is not None or by_class:
        return ""
    return (
        f"'{data.name}' has no test samples of single clients, so nothing is measured per client; "
        "give client tests, or data.tests = matched"
    )


def spread_of(
    metric: str,
    values: Sequence[float | None],
    higher_is_better: bool | None,
    names: Sequence[str] = (),
) -> dict[str, Any]:
    """Columns about the clients: their mean, the worst (and its name, if clients have names), the
    percentile below which a tenth fares worse, and the standard deviation between them; nothing of
    no values.

    >>> spread_of("accuracy", [0.5, None, 1.0], True)["client_accuracy_worst"]
    0.5
    """
    known = np.array([v for v in values if v is not None], dtype=np.float64)
    if not known.size:
        return {}
    bad, tenth = (known.max(), 0.9) if higher_is_better is False else (known.min(), 0.1)
    found = {
        "mean": float(known.mean()),
        "worst": float(bad),
        "tenth": float(np.quantile(known, tenth)),
        "spread": float(known.std()),
    }
    out: dict[str, Any] = {f"client_{metric}_{name}": value for name, value in found.items()}
    if names:
        out[f"client_{metric}_worst_name"] = names[[*values].index(bad)]
    return out
