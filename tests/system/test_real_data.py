"""The published sets themselves, where FEDLOOM_DATA holds them: checked, and trained on for ten
rounds.
"""

from __future__ import annotations

import math

import pytest
import torch

from fedloom.config import resolve
from fedloom.data import (
    SOURCES,
    blocks,
    cifar10,
    data_root,
    dirichlet,
    femnist,
    iid,
    mnist,
    shakespeare,
    writers,
)
from fedloom.data.partition import natural
from fedloom.data.published.catalogue import CATALOGUE
from fedloom.data.published.verify import check

pytestmark = pytest.mark.slow
ROOT = data_root()


def here(name: str) -> None:
    """Skip unless there is a copy."""
    if check(name, ROOT).state == "missing":
        pytest.skip(f"no copy of {name} in FEDLOOM_DATA or the cache")


@pytest.mark.parametrize("name", CATALOGUE)
def test_a_copy_is_not_damaged(name: str) -> None:
    here(name)
    found = check(name, ROOT)
    assert found.state in ("verified", "subset"), found.detail


def test_cifar10_is_what_its_report_says() -> None:
    here("cifar10")
    data = cifar10(dirichlet(0.3, clients=100), data_dir=ROOT, download=False)
    assert data.inputs.shape == (50_000, 3, 32, 32) and data.sizes.tolist() == [500] * 100
    assert data.label_counts().sum(0).tolist() == [5000] * 10
    assert torch.bincount(data.test_targets).tolist() == [1000] * 10
    whole = data.ready(data.inputs[::10])
    assert (
        whole.mean((0, 2, 3)).abs().max() < 0.03 and (whole.std((0, 2, 3)) - 1).abs().max() < 0.02
    )
    assert data.class_names[6] == "frog" and data.targets[0] == 6


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist"])
def test_images_of_28_by_28_are_the_published_ones(name: str) -> None:
    here(name)
    data = SOURCES[name](iid(100), download=False)
    assert data.inputs.shape == (60_000, 1, 28, 28) and data.test_inputs.shape[0] == 10_000
    assert abs(data.inputs.mean()) < 1e-3 and abs(data.inputs.std() - 1) < 2e-3
    assert data.classes == len(data.class_names) == 10
    sizes = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]  # MNIST's classes
    expected = sizes if name == "mnist" else [6000] * 10
    assert data.label_counts().sum(0).tolist() == expected


def test_mnist_was_written_by_539_people() -> None:
    here("mnist"), here("qmnist")
    data = mnist(writers(), data_dir=ROOT, download=False)
    assert data.population == 539 and int(data.sizes.sum()) == 60_000
    assert (int(data.sizes.min()), int(data.sizes.median()), int(data.sizes.max())) == (
        19,
        116,
        131,
    )


def test_shakespeare_has_leafs_numbers() -> None:
    here("shakespeare")
    data = shakespeare(natural(), data_dir=ROOT)
    assert data.population == 1129 and int(data.sizes.sum()) == 3_803_027
    assert data.classes == 80 and len(data.test_inputs) == 356_921
    assert data.inputs.untyped_storage().nbytes() < 5_000_000


def test_femnist_keeps_writers_apart() -> None:
    here("femnist")
    data = femnist(natural(min_size=20), data_dir=ROOT)
    assert int(data.sizes.min()) >= 20 and data.classes <= 62
    assert data.test_clients.sizes.sum() == len(data.test_inputs)
    assert data.inputs.float().mean() > 200, "black on white, as LEAF gives it"


TEXTS = [
    ("wikitext2", blocks(16), {"download": False}, (35,)),
    ("ag_news", iid(20), {"download": False}, (64,)),
]


@pytest.mark.parametrize(("name", "partition", "options", "shape"), TEXTS)
def test_texts_are_numbers_of_their_vocabulary(name, partition, options, shape) -> None:
    here(name)
    data = SOURCES[name](partition, data_dir=ROOT, **options)
    assert data.inputs.shape[1:] == shape and data.inputs.dtype == torch.int64
    size = data.about["vocabulary"]
    assert data.inputs.min() >= 0 and data.inputs.max() < size
    assert data.test_inputs.max() < size and data.test_inputs.shape[1:] == shape


RECIPES = {
    "cifar10": 10,
    "cifar100": 100,
    "femnist": 62,
    "shakespeare": 80,
    "wikitext2": 33_278,
    "ag_news": 4,
}


@pytest.mark.parametrize("name", RECIPES)
def test_ten_rounds_learn_something(name: str) -> None:
    here(name)
    quick = ["evaluate.clients=false", "evaluate.every=0"]  # once, at the end
    history = resolve(name, quick).experiment().run().history
    losses = [row["test_loss"] for row in history if "test_loss" in row]
    assert len(history) == 10 and losses[-1] < math.log(RECIPES[name])


def test_fiarse_learns_on_ag_news_with_thresholds_by_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    here("ag_news")
    monkeypatch.setenv("FEDLOOM_DATA", str(ROOT))
    changes = ["rounds=2", "cohort=8", "engine=serial", "evaluate.sizes=[]", "evaluate.every=2"]
    experiment = resolve("fiarse_agnews", changes).experiment()
    sizes = experiment.data.sizes
    assert len(sizes) == 200 and int(sizes.min()) >= 4 and int(sizes.max()) > 2 * int(sizes.min())
    adam = experiment.local
    assert (adam.optimiser, adam.beta1, adam.beta2) == ("adamw", None, 0.95)
    result = experiment.run()
    first, last = (row["train_loss"] for row in result.history)
    assert last < first < 1.5  # ln 4 is 1.39
    held = result.summary["sizes"]["held"]
    competing = held["1"]["of"]
    norms, head = 2 * 2 * 2 * 64 + 2 * 64, 64 * 4 + 4
    assert held["1"]["all"] - competing == norms + head
    assert 0 <= held["0.0625"]["counted"] - competing // 16 < 100
