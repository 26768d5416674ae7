"""A class for each pixel: the recipe on the command line, the page's code, and what is refused."""

import logging
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

from fedloom import Experiment, FedAvg, Local
from fedloom.data import dirichlet, from_arrays, from_clients, iid
from fedloom.errors import ConfigError, DataError
from fedloom.federation.attacks import LabelFlip
from fedloom.objectives import CrossEntropy, Dice
from support.folders import record, rows
from support.scripts import ROOT


def site(n, most=1):
    """Pictures, and 0 or `most` for a dark and a light pixel."""
    x = np.random.default_rng(n).normal(size=(n, 1, 16, 16)).astype("float32")
    return x, (x[:, 0] > 0.5).astype("int64") * most


def clients(change=lambda x, y: (x, y), most=1, **more):
    pairs = [change(*site(n, most)) for n in (12, 8)]
    return from_clients(pairs, test=change(*site(10, most)), **more)


def run(data, **more):
    given = {"algorithm": FedAvg(), "model": lambda: nn.Conv2d(1, 2, 3, padding=1), "rounds": 2}
    return Experiment(data=data, **(given | {"local": Local(batch=4)} | more)).run()


def test_masks_of_integers_train_by_cross_entropy_and_accuracy_per_pixel():
    result = run(clients())
    inputs, truth = (torch.tensor(v) for v in site(10))
    with torch.no_grad():
        right = (result.model(inputs).argmax(1) == truth).double().mean()
    assert 0.5 < result.last <= 1 and result.last == pytest.approx(right.item(), rel=1e-6)


@pytest.mark.parametrize(
    "loss",
    [CrossEntropy(ignore=255), Dice(ignore=255), nn.CrossEntropyLoss(ignore_index=255)],
    ids=["cross-entropy", "Dice", "torch's"],
)
def test_an_ignored_label_is_said_by_the_loss_or_by_the_data(loss):
    metrics = {"metrics": ["accuracy", "dice", "iou"]}
    said = run(clients(most=255), objective=loss, **metrics)
    assert said.last == pytest.approx(said.history[-1]["test_accuracy"])
    if not isinstance(loss, nn.Module):
        plain = Dice() if isinstance(loss, Dice) else None
        known = run(clients(most=255, ignore=255), objective=plain, **metrics)
        for name in ("accuracy", "dice", "iou"):
            assert known.history[-1][f"test_{name}"] == said.history[-1][f"test_{name}"]


def test_the_recipe_beats_the_majority_and_measures_every_site(fedloom):
    fedloom("run", "shapes", "rounds=2", "--out", "a", "--quiet")
    clients = record("a", "clients")
    assert clients["names"] == ["site0", "site1", "site2", "site3"]
    assert min(clients["metrics"]["accuracy"]) > 0.82, "78 % are background"
    pairs = zip(*(clients["metrics"][m] for m in ("dice", "iou")), strict=True)
    assert all(0.3 < iou < dice < 1 for dice, iou in pairs)
    assert rows("a")[-1]["client_dice_worst"] == min(clients["metrics"]["dice"])
    fedloom("report", "a", "--out", "report.html")
    small = "data.size=8", "data.samples=5", "data.test_samples=3", "objective=cross_entropy"
    fedloom("run", "shapes", "rounds=1", *small, "--out", "b", "--quiet")
    assert record("b", "clients")["test_rows"] == [3] * 4
    fedloom("export", "a", "--out", "exported")
    np.save("pictures.npy", np.random.default_rng(0).random((2, 1, 24, 24), dtype="float32"))
    script = [sys.executable, "exported/predict.py", "pictures.npy"]
    lines = subprocess.run(script, check=True, capture_output=True, text=True).stdout.splitlines()
    assert lines[0] == "row,y,x,class" and len(lines) == 1 + 2 * 24 * 24
    assert {line.split(",")[3] for line in lines[1:]} <= {"background", "disc", "square"}
    assert lines[-1].startswith("2,23,23,")


def test_the_code_of_the_page_runs(capsys):
    page = (ROOT / "docs/models.md").read_text(encoding="utf-8")
    page = page.partition("### A class for each pixel")[2]
    exec(re.search(r"```python\n(.*?)```", page, re.DOTALL)[1], {})
    assert "lyon" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("data", "more", "error"),
    [
        (lambda: clients(most=7), {}, "labels go up to 7; it needs 8; if 7 marks pixels"),
        (lambda: clients(lambda x, y: (x, -y)), {}, "row 0 is -1; .* may be 255, with ignore"),
        (lambda: clients(lambda x, y: (x, y[:, None])), {}, r"give targets\[:, 0\]"),
        (lambda: clients(lambda x, y: (x, y[:, :8])), {}, r"targets of shape \[2, 8, 16\]"),
        (lambda: clients(lambda x, y: (x, y * 1.0)), {}, "each pixel give integers"),
        (lambda: clients(lambda x, y: (x, y * 1.0)), {"objective": Dice()}, "integer labels"),
        (lambda: clients(), {"metrics": ["perplexity"]}, "is for texts"),
        (lambda: clients(most=255, class_names=["a", "b"]), {}, "do not count, give ignore"),
        (lambda: from_arrays(*site(20), dirichlet(0.3, clients=2)), {}, "one of a sample"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(data, more, error):
    with pytest.raises((DataError, ConfigError), match=error) as caught:
        run(data(), **more)
    assert "\n" not in str(caught.value)


def test_a_class_without_training_pixels_is_named(caplog):
    with caplog.at_level(logging.WARNING):
        run(clients(class_names=["dark", "light", "red"]), rounds=1, metrics=["accuracy", "dice"])
    assert "no training row has a pixel of class red" in caplog.text


def test_a_partition_without_labels_and_hostile_clients():
    masks = torch.tensor([[[0, 1], [255, 2]]] * 4)
    data = from_arrays(torch.randn(4, 1, 2, 2), masks, iid(clients=4), ignore=255)
    attack = LabelFlip(share=0.5)
    flipped = attack.data(data, frozenset({0})).client(0)[1]
    assert flipped.tolist() == [[[2, 1], [255, 0]]], "what does not count stays"
    model = lambda: nn.Conv2d(1, 3, 1)
    assert run(data, attack=attack, model=model).history[-1]["train_loss"] > 0
