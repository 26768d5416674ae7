"""Cox's partial likelihood, the concordance index and one output for two classes, against formulas
that are written down here once more.
"""

from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from fedloom.core.net import Net
from fedloom.errors import DataError
from fedloom.evaluation.metrics import Concordance, accuracy
from fedloom.objectives import Cox, CrossEntropy

TCGA = Path(__file__).parents[3] / "shared/data/tcga-brca"


def cox(scores, times, events):
    """By FLamby's description: l_i = E_i log(sum of exp(s_j - s_i) over j not after i)."""
    order = np.argsort(-times, kind="stable")
    s, e = scores[order], events[order]
    each = [e[i] * np.log(np.exp(s[: i + 1] - s[i]).sum()) for i in range(len(s))]
    return float(np.mean(each))


def pairs(times, events):
    """Comparable pairs (first, second)."""
    n = range(len(times))
    return [
        (i, j)
        for i in n
        for j in n
        if events[i]
        and (times[i] < times[j] or (times[i] == times[j] and i != j and not events[j]))
    ]


@pytest.mark.parametrize("ties", [False, True])
def test_the_partial_likelihood_of_a_batch(ties: bool) -> None:
    draw = np.random.default_rng(3)
    scores, times = draw.normal(size=8), draw.integers(1, 4 if ties else 10**6, 8).astype(float)
    events = draw.integers(0, 2, 8).astype(float)
    x = torch.tensor(scores, requires_grad=True)
    batch = (torch.zeros(8, 1), torch.tensor(np.stack([times, events], 1)))
    found = Cox().score(x[:, None], batch)
    assert found.item() == pytest.approx(cox(scores, times, events), rel=1e-12)
    found.backward()
    step = 1e-6
    for i in range(8):
        up, down = scores.copy(), scores.copy()
        up[i], down[i] = up[i] + step, down[i] - step
        slope = (cox(up, times, events) - cox(down, times, events)) / (2 * step)
        assert float(x.grad[i]) == pytest.approx(slope, abs=1e-8)


def test_one_example_and_no_event_have_neither_loss_nor_gradient() -> None:
    for targets in ([[5.0, 1.0]], [[5.0, 0.0], [6.0, 0.0]]):
        s = torch.ones(len(targets), 1, requires_grad=True)
        loss = Cox().score(s, (None, torch.tensor(targets)))
        loss.backward()
        assert loss.item() == 0 and not s.grad.any()


def test_survival_refuses_other_targets() -> None:
    with pytest.raises(DataError, match="time and event"):
        Cox().score(torch.zeros(3, 1), (None, torch.zeros(3)))
    with pytest.raises(DataError, match="one output"):
        Concordance().update(torch.zeros(3, 2), torch.zeros(3, 2))


def test_the_concordance_counts_pairs_and_half_of_ties() -> None:
    draw = np.random.default_rng(1)
    times, events = draw.integers(1, 9, 40).astype(float), draw.integers(0, 2, 40)
    risks = draw.integers(0, 6, 40).astype(float)
    known = pairs(times, events)
    right = sum((risks[i] > risks[j]) + 0.5 * (risks[i] == risks[j]) for i, j in known)
    metric = Concordance()
    for some in np.array_split(np.arange(40), 3):  # in batches
        targets = torch.tensor(np.stack([times[some], events[some]], 1))
        metric.update(torch.tensor(risks[some])[:, None], targets)
    assert metric.compute() == pytest.approx(right / len(known), rel=1e-12)
    metric.reset()
    metric.update(torch.zeros(2), torch.tensor([[1.0, 0], [2, 0]]))
    assert math.isnan(metric.compute()), "nobody's event was seen"


@pytest.mark.skipif(not TCGA.is_dir(), reason="the data of TCGA-BRCA are not here")
def test_comparable_pairs_of_tcgas_test_sets_are_those_of_flamby() -> None:
    with (TCGA / "brca.csv").open() as file:
        rows = {row["pid"]: (float(row["T"]), float(row["E"])) for row in csv.DictReader(file)}
    with (TCGA / "train_test_split.csv").open() as file:
        folds = [(row["pid"], row["fold2"]) for row in csv.DictReader(file)]
    counts = []
    for centre in range(6):
        own = [rows[pid] for pid, fold in folds if fold == f"test_{centre}"]
        counts.append(len(pairs(*zip(*own, strict=True))))
    assert counts == [358, 44, 108, 48, 47, 3]


def test_one_output_is_the_logit_of_class_one() -> None:
    z, y = torch.tensor([[2.0], [-1.0], [0.5]], dtype=torch.float64), torch.tensor([1, 1, 0])
    two = torch.cat([torch.zeros_like(z), z], 1)
    loss, net = CrossEntropy(), Net(torch.nn.Linear(1, 1).double())
    assert torch.allclose(loss.score(z, (None, y)), loss.score(two, (None, y)))
    assert torch.allclose(loss.mean_score(z, (None, y)), loss.mean_score(two, (None, y)))
    assert accuracy(z, y).tolist() == [1, 0, 0] == accuracy(two, y).tolist()
    batch = (torch.randn(3, 1, dtype=torch.float64), y)
    assert loss.loss(net, net.init(), batch, net.init(), ()).shape == (3,)
