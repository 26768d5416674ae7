"""Nodes measure probabilities: the Brier score, a threshold, and what they tell of a reliability
curve.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from federations.places import Here, folder, site_file, table
from fedloom.config import resolve
from fedloom.errors import WireError
from fedloom.evaluation.reliability import BINS
from fedloom_flower.message import Measured
from fedloom_flower.scores import read_score
from fedloom_flower.server import serve

pytest.importorskip("pandas", reason="the extra tables is not installed")
SETTINGS = ["model=logistic", "model.inputs=3", "model.classes=2", "cohort=3", "rounds=1"]
LEAST = 4  # rows of a bin, and of each class in it
SETTINGS += ["metrics=brier,accuracy", "evaluate.threshold=0.4"]


def test_nodes_decide_by_the_threshold_and_tell_no_bin_of_few_rows(tmp_path):
    two = {"label": lambda y: min(y, 1)}
    files = [
        site_file(
            tmp_path / f"{i}.toml",
            table(tmp_path / f"{i}.csv", 20, seed=i, **two),
            table(tmp_path / f"test{i}.csv", tests, seed=9 + i, **two),
        )
        for i, tests in enumerate((80, 40, 6))
    ]
    given = {"evaluate": "nodes", "standardise": True, "least_count": LEAST}
    fed = folder(tmp_path, resolve("digits", SETTINGS), **given)
    here = Here(fed, files)
    ended = serve(fed, lambda roll: here)
    told = json.loads((fed.run / "clients.json").read_text())
    assert told["test_rows"] == [80, 40, 6]
    assert np.any(told["reliability"]["clients"][0])
    whole = np.zeros((3, BINS))
    for i in range(3):
        data = here.places[i]._node.fed.data
        with torch.no_grad():
            p = ended.model(data.test_inputs).softmax(1)[:, 1].double().numpy()
        y = data.test_targets.numpy()
        assert told["metrics"]["accuracy"][i] == pytest.approx(((p > 0.4) == y).mean())
        assert told["metrics"]["brier"][i] == pytest.approx(((p - y) ** 2).mean(), rel=1e-5)
        place = np.minimum((p * BINS).astype(int), BINS - 1)
        bins = np.array([np.bincount(place, v, BINS) for v in (np.ones_like(p), p, y)])
        few = [
            any(0 < n < LEAST for n in (rows, second, rows - second)) for rows, _, second in bins.T
        ]
        wanted = bins * ~np.array(few)
        whole += wanted
        np.testing.assert_allclose(told["reliability"]["clients"][i], wanted, atol=1e-5)
    np.testing.assert_allclose(told["reliability"]["bins"], whole, atol=1e-5)


@pytest.mark.parametrize(
    "bins",
    [
        [[11.0] + [0.0] * 9] * 3,
        [[5.0] + [0.0] * 9, [6.0] + [0.0] * 9, [0.0] * 10],
        [[5.0] + [0.0] * 9, [1.0] + [0.0] * 9],
    ],
    ids=["more rows than there are", "a probability above 1", "no outcomes"],
)
def test_bins_that_cannot_be_are_refused(bins):
    who = {"run": "r@1", "what": "evaluate", "round": 1, "client": 0}
    values = {"values": {"brier": 1.0}, "weights": {"brier": 10.0}, "bins": bins}
    head = Measured(**who, examples=10, loss=1.0, **values)
    with pytest.raises(WireError, match="a reliability curve that its examples cannot have"):
        read_score(head, 10, {"brier": None})
