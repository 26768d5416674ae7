"""How each client fares: every metric on its own test set, with the model that it uses itself."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..algorithm import FedAvg
from ..core.net import Net
from ..core.ranks import Group
from ..core.vector import Rec, Vec, rec
from ..data import FederatedData
from ..engines.author_rules import Explained
from ..engines.client_round import Client
from ..engines.guard import personal_model
from ..engines.scores import Score, final
from ..federation.federation import Federation
from ..plan import Plan
from ..storage.client_state import ClientStates
from .declared import higher_is_better
from .scorer import Current, Scorer
from .settings import Evaluation

NOT_MEASURED = "not measured"
_AT_ONCE = 64  # clients whose states are read together


@dataclass
class PerClient:
    """values: {metric: its value per client, None where there is none}. why: {metric: {reason: the
    clients without a value}}. basis: on what the first one was measured.
    """

    values: dict[str, list[float | None]] = field(default_factory=dict)
    why: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    basis: str = NOT_MEASURED

    def add(
        self, name: str, values: list[float | None], basis: str, why: Callable[[int], str]
    ) -> None:
        """Add a metric. why: says why a client has no value."""
        self.values[name] = values
        for i in (i for i, value in enumerate(values) if value is None):
            self.why.setdefault(name, {}).setdefault(why(i), []).append(i)
        self.basis = basis if self.basis == NOT_MEASURED else self.basis

    def columns(
        self, metrics: Mapping[str, Any], higher: bool | None, names: Sequence[str] = ()
    ) -> dict[str, Any]:
        """spread_of() of every metric. higher: of the first one; names: the clients'."""
        row: dict[str, Any] = {}
        for index, (name, values) in enumerate(self.values.items()):
            better = higher_is_better(name, metrics.get(name)) if index else higher
            row |= spread_of(name, values, better, names)
        return row


class ClientTests:
    """Measures a run's clients; with models of their own, each rank those whose states it has."""

    def __init__(
        self, plan: Plan, fed: Federation, net: Net, settings: Evaluation, scorer: Scorer
    ) -> None:
        self.plan, self.fed, self.net = plan, fed, net
        self._finetune, self._scorer = settings.finetune, scorer
        self._names = [*fed.metrics] or ["loss"]

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
        data, metrics, result = self.fed.data, self.fed.metrics, PerClient()
        has_rows, tuned = data.test_clients is not None, last and self._finetune > 0
        lacking = "no test rows" if has_rows else "no test rows of a class"
        rows: dict[int, dict[str, float]] = {}  # what was measured client by client
        common, basis = list[str](), ""
        needs = "it needs test rows of the client's own: data.tests = matched"
        if nodes:
            rows = {i: self._means(s) for i, s in nodes.items()}
            basis, lacking = "own test rows, at the nodes", "no answer, or no test rows"
        elif has_rows and (tuned or self.plan.personalises):
            rows = self._each(group, current(), memory, tuned)
            basis = f"own test sets, {'fine-tuned' if tuned else 'personal'} models"
        elif not self.plan.personalises:
            common = [k for k in self._names if k in score.each]  # known of single examples
            if len(common) < len(self._names) and metrics and has_rows:
                rows, basis = self._each(group, current()), "own test sets"
        for name in self._names:
            if name in common:
                values, on = client_values(data, metrics, score, name)
                result.add(name, values, on, lambda _: lacking)
            elif basis:
                each = [
                    rows[i][name] if i in rows else math.nan for i in range(self.fed.population)
                ]
                values = [value if math.isfinite(value) else None for value in each]
                why = lambda i: self._undefined(i) if i in rows else lacking
                result.add(name, values, basis, why)
            else:
                result.add(name, [None] * self.fed.population, NOT_MEASURED, lambda _: needs)
        return result

    def _undefined(self, i: int) -> str:
        """Why a metric is no number on a client's test rows."""
        data = self.fed.data
        if data.test_clients is not None and data.test_targets is not None:
            labels = data.test_targets[data.test_clients.of(i).to(data.test_targets.device)]
            if bool((labels == labels[:1]).all()):
                return "its test rows have one class"
        return "it is not defined on its test rows, as an AUC of one class is not"

    def _means(self, score: Score) -> dict[str, float]:
        """Every metric of a score, NaN where nothing counts; the loss where there is none."""
        counts = {"loss": 1.0} | score.weights
        return {k: score.mean(k, self.fed.metrics) if counts[k] else math.nan for k in self._names}

    def _each(
        self,
        group: Group,
        current: Current,
        memory: ClientStates | None = None,
        tuned: bool = False,
    ) -> dict[int, dict[str, float]]:
        """Every client that has test samples on these alone, with its own model, which its state
        has; memory None: with the common one; tuned: with that after its own steps.
        """
        assert self.fed.data.test_clients is not None
        some = [i for i in range(self.fed.population) if len(self.fed.data.test_clients.of(i))]
        means: dict[int, dict[str, float]] = {}
        for a in range(0, len(some), _AT_ONCE):
            chunk, rows = some[a : a + _AT_ONCE], None
            clients = chunk[group.rank :: group.size]
            if memory is not None:
                rows, last = memory.get(chunk), memory.last(chunk)
                new = [i for i in chunk if last[i] is None] if group.rank == 0 else []
                clients = [i for i in chunk if i in rows or i in new]
            values, error = group.attempt(
                functools.partial(self._measured, clients, current, rows, tuned)
            )
            for part in group.gather(values, error):
                means |= part or {}
        return means

    def _measured(
        self, clients: list[int], current: Current, rows: dict[int, Rec] | None, tuned: bool
    ) -> dict[int, dict[str, float]]:
        """Every metric of clients on their own test sets. rows: the states of those that have
        one; None: all are measured with the common model.
        """
        data, means = self.fed.data, dict[int, dict[str, float]]()
        assert data.test_inputs is not None and data.test_targets is not None
        assert data.test_clients is not None
        for i in clients:
            x, buffers = current.x, current.buffers
            if rows is not None:
                x, buffers = self.model(i, rows.get(i), current, tuned)
            index = data.test_clients.of(i).to(data.test_inputs.device)
            examples = data.test_inputs[index], data.test_targets[index]
            means[i] = self._means(self._scorer.of(x, buffers, examples))
        return means

    def model(self, i: int, row: Rec, current: Current, tuned: bool) -> tuple[Vec, Vec]:
        """The model (d,) that a client uses itself, and its buffers. row: its state, None before
        its first round; tuned: the server's model after the client's own steps.
        """
        x, buffers, round, msg = current
        if tuned:
            return self._tuned(i, row, x, buffers, round)
        if row is not None:  # what its stages put into the model, and into the message
            parts, client = (rec(x=x), msg), self._client
            received = [client.download(client.views.whole, m, buffers) for m in parts]
            model, message = [client.received(download, row) for download in received]
            x, msg, buffers = model.msg.x, message.msg, model.buffers
        if self.plan.algorithm.personalises:
            with Explained(self.plan.algorithm.method, i, max(0, round - 1)):
                state = None if row is None else row.alg
                x = personal_model(self.plan.algorithm, self.net.init(), msg, state)
        return x, buffers

    def _tuned(self, i: int, row: Rec, x: Vec, buffers: Vec, round: int) -> tuple[Vec, Vec]:
        """A client's model after plain local steps from the common one."""
        client = self._tuner
        received = client.download(client.views.whole, rec(x=x), buffers)
        memory = client.first_memory(x, i)
        if hasattr(row, "passes"):  # its pass over its data goes on
            memory = memory._replace(passes=row.passes)
        with Explained(self.plan.algorithm.method, i, max(0, round - 1)):
            result = client.train(client.receive(received, memory), memory, i, round)
        return result.x.clone(), self.net.buffers()

    @functools.cached_property
    def _tuner(self) -> Client:
        """Trains by plain local steps, with the run's local settings."""
        local = replace(self.fed.local, steps=self._finetune, epochs=None, seconds=None)
        plain = Plan(local.around(FedAvg()), self.plan.objective, d=self.plan.d)
        return Client(plain, replace(self.fed, local=local, attack=None), self.net)

    @functools.cached_property
    def _client(self) -> Client:
        return Client(self.plan, self.fed, self.net)


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
    counts = score.each_weights[name]
    rows = torch.stack([score.each[name] * counts, counts], 1)
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
    """Means of columns (n, 2) per class, by each client's labels (clients, 2); 0 if not known."""
    examples = torch.bincount(labels, minlength=data.classes or 0).clamp_min(1)
    of_class = [torch.bincount(labels, v, len(examples)) / examples for v in rows.T]
    counts = data.label_counts().double()
    sums = torch.stack([counts @ v for v in of_class], 1)
    sums[sums.isnan().any(1)] = 0.0
    return sums


def untested(plan: Plan, fed: Federation) -> str:
    """A remark if clients use models of their own that nothing measures; else empty."""
    if not plan.personalises or fed.data.test_clients is not None:
        return ""
    owner = plan.algorithm.method if (layers := plan.private) is None else layers.name
    return (
        f"{owner}: clients have models of their own, and no test sets to measure them on; give "
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
    scores = np.array([v for v in values if v is not None], dtype=np.float64)
    if not scores.size:
        return {}
    bad, tenth = (scores.max(), 0.9) if higher_is_better is False else (scores.min(), 0.1)
    entries = {
        "mean": float(scores.mean()),
        "worst": float(bad),
        "tenth": float(np.quantile(scores, tenth)),
        "spread": float(scores.std()),
    }
    out: dict[str, Any] = {f"client_{metric}_{name}": value for name, value in entries.items()}
    if names:
        out[f"client_{metric}_worst_name"] = names[[*values].index(bad)]
    return out
