"""How each client fares: every metric on its own test set, with the model that it uses itself."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ..algorithm import FedAvg
from ..core.metric_direction import higher_is_better
from ..core.net import Net
from ..core.ranks import Group
from ..core.vector import Rec, Vec, rec
from ..engines.author_rules import Explained
from ..engines.client_round import Client
from ..engines.evaluation import Score
from ..engines.guard import personal_model
from ..federation.federation import Federation
from ..plan import Plan
from ..storage.client_state import ClientStates
from .evaluation import Evaluation
from .scoring import Current, Scorer
from .submodel_evaluation import NOT_MEASURED, client_values

_AT_ONCE = 64  # clients whose states are read together


class PerClient(NamedTuple):
    """values: {metric: its value per client, None where there is none}. why: {metric: {reason: the
    clients without a value}}. basis: on what the first one was measured.
    """

    values: dict[str, list[float | None]]
    why: dict[str, dict[str, list[int]]]
    basis: str

    @classmethod
    def of(cls, name: str, values: list[float | None], lacking: str, basis: str) -> PerClient:
        """One metric; lacking: why a client has no value."""
        none = [i for i, v in enumerate(values) if v is None]
        return cls({name: values}, {name: {lacking: none}} if none else {}, basis)

    def joined(self, other: PerClient) -> PerClient:
        """The metrics of both."""
        basis = self.basis if self.values and self.basis != NOT_MEASURED else other.basis
        return PerClient(self.values | other.values, self.why | other.why, basis)

    def ordered(self, names: Sequence[str]) -> PerClient:
        """The same in this order of the metrics."""
        return self._replace(values={name: self.values[name] for name in names})

    def columns(
        self, metrics: Mapping[str, Any], higher: bool | None, names: Sequence[str] = ()
    ) -> dict[str, Any]:
        """spread_of() of every metric. higher: whether a larger value of the first one is better;
        names: the clients'.
        """
        row: dict[str, Any] = {}
        for place, (name, values) in enumerate(self.values.items()):
            better = higher_is_better(name, metrics.get(name)) if place else higher
            row |= spread_of(name, values, better, names)
        return row


class ClientTests:
    """Measures the clients of a run. Where they use models of their own, every rank takes the
    clients whose states it has.
    """

    def __init__(
        self, plan: Plan, fed: Federation, net: Net, settings: Evaluation, scorer: Scorer
    ) -> None:
        self.plan, self.fed, self.net = plan, fed, net
        self._finetune, self._scorer = settings.finetune, scorer

    def values(
        self,
        score: Score,
        memory: ClientStates,
        group: Group,
        current: Callable[[], Current],
        nodes: Mapping[int, Score],
        last: bool = False,
    ) -> PerClient:
        """Every metric of the run per client. score: of the common model on the test set; current:
        gives the run's model; nodes: what they measured; last: clients fine-tune it first, if they
        are to.
        """
        data, names = self.fed.data, [*self.fed.metrics] or ["loss"]
        if nodes:
            seen = {i: self._means(s) for i, s in nodes.items()}
            return self._gathered(
                seen, names, "own test rows, at the nodes", "no answer, or no test rows"
            )
        if last and self._finetune and data.test_clients is not None:
            seen = self._each(memory, group, current(), tuned=True)
            return self._gathered(seen, names, "own test sets, fine-tuned models")
        if self.plan.personalises and data.test_clients is not None:
            seen = self._each(memory, group, current())
            return self._gathered(seen, names, "own test sets, personal models")
        found = PerClient({}, {}, NOT_MEASURED)
        single = [] if self.plan.personalises else names
        alone = [k for k in single if k in score.each]  # known of single examples
        for name in alone:
            values, basis = client_values(data, self.fed.metrics, score, name)
            lacking = "no test rows" if data.test_clients is not None else "no test rows of a class"
            found = found.joined(PerClient.of(name, values, lacking, basis))
        rest = [k for k in names if k not in alone]
        if rest and self.fed.metrics and data.test_clients is not None:
            seen = self._each(None, group, current())
            return found.joined(self._gathered(seen, rest, "own test sets")).ordered(names)
        for name in rest:
            nobody: list[float | None] = [None] * self.fed.population
            why = "it needs test rows of the client's own: data.tests = matched"
            found = found.joined(PerClient.of(name, nobody, why, NOT_MEASURED))
        return found.ordered(names)

    def _gathered(
        self,
        seen: Mapping[int, Mapping[str, float]],
        names: Sequence[str],
        basis: str,
        lacking: str = "no test rows",
    ) -> PerClient:
        """What was measured client by client; NaN is None, and why says so."""
        found = PerClient({}, {}, basis)
        for name in names:
            values: list[float | None] = [None] * self.fed.population
            why: dict[str, list[int]] = {}
            for i in range(self.fed.population):
                value = seen.get(i, {}).get(name)
                if value is not None and math.isfinite(value):
                    values[i] = value
                else:
                    reason = lacking if value is None else self._undefined(i)
                    why.setdefault(reason, []).append(i)
            found = found.joined(PerClient({name: values}, {name: why} if why else {}, basis))
        return found

    def _undefined(self, i: int) -> str:
        """Why a metric is no number on a client's test rows."""
        data = self.fed.data
        if data.test_clients is not None and data.test_targets is not None:
            mine = data.test_targets[data.test_clients.of(i).to(data.test_targets.device)]
            if bool((mine == mine[:1]).all()):
                return "its test rows have one class"
        return "it is not defined on its test rows, as an AUC of one class is not"

    def _means(self, score: Score) -> dict[str, float]:
        """Every metric of a score, NaN where nothing counts; the loss where there is none."""
        if not self.fed.metrics:
            return {"loss": score.loss / max(score.examples, 1)}
        return {
            k: score.mean(k, metric) if score.weights[k] else math.nan
            for k, metric in self.fed.metrics.items()
        }

    def _each(
        self,
        memory: ClientStates | None,
        group: Group,
        current: Current,
        tuned: bool = False,
    ) -> dict[int, dict[str, float]]:
        """Every client that has test samples on these alone, with its own model, which its state
        has; memory None: with the common one; tuned: with that after its own steps.
        """
        assert self.fed.data.test_clients is not None
        some = [i for i in range(self.fed.population) if len(self.fed.data.test_clients.of(i))]
        found: dict[int, dict[str, float]] = {}
        for a in range(0, len(some), _AT_ONCE):
            chunk = some[a : a + _AT_ONCE]
            rows = dict[int, Rec]()
            if memory is None:
                mine = chunk[group.rank :: group.size]
            else:
                rows, last = memory.get(chunk), memory.last(chunk)
                new = [i for i in chunk if last[i] is None] if group.rank == 0 else []
                mine = [i for i in chunk if i in rows or i in new]
            model = (
                (lambda i, row: (current.x, current.buffers))
                if memory is None
                else functools.partial(self.model, current=current, tuned=tuned)
            )
            own, error = group.attempt(functools.partial(self._some, mine, rows, model))
            for part in group.gather(own, error):
                found |= part or {}
        return found

    def _some(
        self,
        clients: list[int],
        rows: dict[int, Rec],
        model: Callable[[int, Rec], tuple[Vec, Vec]],
    ) -> dict[int, dict[str, float]]:
        return {i: self._own(i, *model(i, rows.get(i))) for i in clients}

    def model(self, i: int, row: Rec, current: Current, tuned: bool) -> tuple[Vec, Vec]:
        """The model (d,) that a client uses itself, and its buffers. row: its state, None before
        its first round; tuned: the server's model after the client's own steps.
        """
        x, buffers, round, msg = current
        if tuned:
            return self._tuned(i, row, x, buffers, round)
        if row is not None:  # what its stages put into the model, and into the message
            there, client = (rec(x=x), msg), self._client
            shares = [client.share(client.views.whole, m, buffers) for m in there]
            model, given = [client.received(share, row) for share in shares]
            x, msg, buffers = model.msg.x, given.msg, model.buffers
        if self.plan.algorithm.personalises:
            with Explained(self.plan.algorithm.method, i, max(0, round - 1)):
                own = None if row is None else row.alg
                x = personal_model(self.plan.algorithm, self.net.init(), msg, own)
        return x, buffers

    def _tuned(self, i: int, row: Rec, x: Vec, buffers: Vec, round: int) -> tuple[Vec, Vec]:
        """A client's model after plain local steps from the common one."""
        client = self._tuner
        share = client.share(client.views.whole, rec(x=x), buffers)
        memory = client.first_memory(x, i)
        if hasattr(row, "passes"):  # its pass over its data goes on
            memory = memory._replace(passes=row.passes)
        with Explained(self.plan.algorithm.method, i, max(0, round - 1)):
            done = client.train(client.receive(share, memory), memory, i, round)
        return done.x.clone(), self.net.buffers()

    @functools.cached_property
    def _tuner(self) -> Client:
        """Trains by plain local steps, with the run's local settings."""
        local = replace(self.fed.local, steps=self._finetune, epochs=None, seconds=None)
        plain = Plan(local.around(FedAvg()), self.plan.objective, d=self.plan.d)
        return Client(plain, replace(self.fed, local=local, attack=None), self.net)

    @functools.cached_property
    def _client(self) -> Client:
        return Client(self.plan, self.fed, self.net)

    def _own(self, i: int, x: Vec, buffers: Vec) -> dict[str, float]:
        """Every metric of a model on client i's own test set."""
        data = self.fed.data
        assert data.test_inputs is not None and data.test_targets is not None
        assert data.test_clients is not None
        index = data.test_clients.of(i).to(data.test_inputs.device)
        examples = data.test_inputs[index], data.test_targets[index]
        return self._means(self._scorer.of(examples, x, buffers))


def untested(plan: Plan, fed: Federation) -> str:
    """A remark if clients use models of their own that nothing measures; else empty."""
    if not plan.personalises or fed.data.test_clients is not None:
        return ""
    who = plan.algorithm.method if (layers := plan.private) is None else layers.name
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
