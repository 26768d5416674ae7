"""The published sets themselves, where FEDLOOM_DATA holds them: checked, and trained on for a few
rounds; FIARSE's ResNet-18 set-ups on a few of their images.
"""

import hashlib
import math
import pickle
import runpy
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedloom.config import from_run, resolve
from fedloom.data import SOURCES, blocks, data_root, iid, writers
from fedloom.data.partition import natural
from fedloom.data.published import images as published
from fedloom.data.published.download import CATALOGUE, check
from fedloom.data.published.images import CIFAR10, CIFAR100
from support.folders import record, rows

pytestmark = pytest.mark.slow
ROOT = data_root()


def here(name):
    if check(name, ROOT).state == "missing":
        pytest.skip(f"no copy of {name} in FEDLOOM_DATA or the cache")


def load(name, partition, **options):
    here(name)
    return SOURCES[name](partition, data_dir=ROOT, **options)


@pytest.mark.parametrize("name", CATALOGUE)
def test_a_copy_is_not_damaged(name):
    here(name)
    found = check(name, ROOT)
    assert found.state in ("verified", "subset", "unchecked"), found.detail


MNIST = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
GREY = (60_000, 1, 28, 28)


@pytest.mark.parametrize(
    ("name", "shape", "counts"),
    [
        ("mnist", GREY, MNIST),
        ("fashion_mnist", GREY, [6000] * 10),
        ("cifar10", (50_000, 3, 32, 32), [5000] * 10),
    ],
)
def test_images_are_the_published_ones(name, shape, counts):
    data = load(name, iid(clients=100), download=False)
    assert data.inputs.shape == shape and len(data.test_inputs) == 10_000
    assert data.label_counts().sum(0).tolist() == counts
    assert data.classes == len(data.class_names) == 10
    some = data.ready(data.inputs[::10])
    assert some.mean((0, 2, 3)).abs().max() < 0.03
    assert (some.std((0, 2, 3)) - 1).abs().max() < 0.02
    if name == "cifar10":
        assert torch.bincount(data.test_targets).tolist() == [1000] * 10
        assert data.class_names[6] == "frog" and data.targets[0] == 6


def test_mnist_was_written_by_539_people():
    here("qmnist")
    data = load("mnist", writers(), download=False)
    assert data.population == 539 and int(data.sizes.sum()) == 60_000
    extremes = data.sizes.min(), data.sizes.median(), data.sizes.max()
    assert [*map(int, extremes)] == [19, 116, 131]


def test_shakespeare_has_leafs_numbers():
    data = load("shakespeare", natural())
    assert data.population == 1129 and int(data.sizes.sum()) == 3_803_027
    assert data.classes == 80 and len(data.test_inputs) == 356_921
    assert data.inputs.untyped_storage().nbytes() < 5_000_000


def test_femnist_keeps_writers_apart():
    data = load("femnist", natural(min_size=20))
    assert int(data.sizes.min()) >= 20 and data.classes <= 62
    assert data.test_clients.sizes.sum() == len(data.test_inputs)
    assert data.inputs.float().mean() > 200, "black on white, as LEAF gives it"


@pytest.mark.parametrize(
    ("name", "partition", "length"), [("wikitext2", blocks(16), 35), ("ag_news", iid(20), 64)]
)
def test_texts_are_numbers_of_their_vocabulary(name, partition, length):
    data = load(name, partition, download=False)
    assert data.inputs.shape[1:] == data.test_inputs.shape[1:] == (length,)
    size = data.about["vocabulary"]
    assert data.inputs.dtype == torch.int64
    assert data.inputs.min() >= 0 and data.inputs.max() < size > data.test_inputs.max()


CLASSES = {"cifar10": 10, "cifar100": 100, "femnist": 62, "shakespeare": 80, "wikitext2": 33_278}
CLASSES |= {"ag_news": 4}


@pytest.mark.parametrize("name", CLASSES)
def test_ten_rounds_learn_something(name):
    here(name)
    quick = ["evaluate.clients=false", "evaluate.every=0"]  # once, at the end
    history = resolve(name, quick).experiment().run().history
    losses = [row["test_loss"] for row in history if "test_loss" in row]
    assert len(history) == 10 and losses[-1] < math.log(CLASSES[name])


# ----------------------------------------------------------------------------------------- FIARSE
def test_fiarse_learns_on_ag_news_with_thresholds_by_shard(monkeypatch):
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


def few_images(kind, folder, patch):
    """The publisher's files with the first images of each class only, a hundred of each part."""
    whole = load(kind.name, iid(1), download=False)
    folder.mkdir(parents=True)
    sums = {}
    *train, test, names_of_classes = (file.name for file in kind.files)

    def write(name, content):
        raw = pickle.dumps(content, protocol=3)
        (folder / name).write_bytes(raw)
        sums[name] = hashlib.md5(raw).hexdigest()

    def first(targets):
        each = 100 // kind.classes
        found = [(targets == c).nonzero()[:each, 0] for c in range(kind.classes)]
        return torch.stack(found, 1).flatten()

    tests = (whole.test_inputs, whole.test_targets, [test])
    for images, targets, names in ((whole.inputs, whole.targets, train), tests):
        for name, index in zip(names, torch.chunk(first(targets), len(names)), strict=True):
            pixels, labels = images[index].flatten(1).numpy(), targets[index].tolist()
            write(name, {b"data": pixels, kind.key + b"labels": labels})
    names = [name.encode() for name in whole.class_names]
    write(names_of_classes, {kind.key + b"label_names": names})
    files = tuple(replace(file, md5=sums[file.name]) for file in kind.files)
    patch.setattr(published, kind.name.upper(), replace(kind, files=files))


@pytest.mark.usefixtures("pictures")
@pytest.mark.parametrize(
    ("rule", "kind"),
    [("fiarse", CIFAR10), ("fiarse", CIFAR100), ("heterofl", CIFAR10)],
    ids=lambda part: getattr(part, "name", part),
)
def test_one_round_of_fiarses_resnets(kind, rule, fedloom, monkeypatch, tmp_path):
    """Every size with statistics of its own, a report, exports that compute what was evaluated."""
    few_images(kind, tmp_path / "data" / kind.place, monkeypatch)
    monkeypatch.setenv("FEDLOOM_DATA", str(tmp_path / "data"))
    words = "rounds=1 cohort=4 data.partition.clients=8 local.epochs=none local.steps=2"
    words += f" local.batch=10 evaluate.sizes=['1/32'] submodel={rule}"
    words += " submodel.capacities=1/64,1/4,1 --out a"
    said = fedloom("run", f"fiarse_{kind.name}", *words.split()).output
    assert "size 1/64" in said and Path("a/report.html").stat().st_size > 10_000
    (row,), sizes = rows("a"), record("a")["sizes"]
    assert row["answered"] == 4 and 1 < row["train_loss"] < 8
    assert sorted(sizes["held"]) == ["0.015625", "0.25", "1"]
    assert row["test_accuracy"] == row["test_accuracy@1"]  # one model, one way to evaluate it
    assert "checked: on " in fedloom("export", "a").output  # the whole, with statistics
    data = from_run(Path("a")).data()
    images = data.ready(data.test_inputs)
    for part, value in ((4, sizes["global"]["0.25"]), (32, sizes["unseen"][0]["global"])):
        fedloom("export", "a", "--capacity", f"1/{part}")
        folder = Path(f"a/export-{1 / part:g}")
        module = runpy.run_path(str(folder / "predict.py"))["load"]()
        with torch.no_grad():
            right = (module(images).argmax(1) == data.test_targets).double().mean()
        assert value == pytest.approx(float(right), abs=0.011), part  # one image may be a tie
        spread = [v for n, v in module.named_buffers() if n.endswith("running_var")]
        # maps behind a convolution of which nothing is held are constant
        assert spread[0].min() > 0 and all(values.isfinite().all() for values in spread)
        if rule == "fiarse":
            held = sum(int(p.count_nonzero()) for p in module.parameters())
            exempt = 9_600  # the norms
            assert 0 <= held - exempt - int(sizes["held"]["1"]["of"] / part) < 100
