"""FIARSE's ResNet-18 set-ups from the command line on a few real images: one round, every size with
statistics of its own, a report, and exports that compute what was evaluated.
"""

from __future__ import annotations

import hashlib
import json
import pickle
import runpy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from fedloom.config import from_run
from fedloom.data import SOURCES, data_root, iid
from fedloom.data.published import images as published
from fedloom.data.published.images import CIFAR10, CIFAR100, ImageSet
from fedloom.data.published.verify import check
from tiny import Fedloom

pytestmark = pytest.mark.slow
ROOT = data_root()
TRAIN, TEST = 100, 100  # images that are kept

SMALL = (
    "rounds=1", "cohort=4", "data.partition.clients=8", "local.epochs=none", "local.steps=2",
    "local.batch=10", "evaluate.sizes=['1/32']",
)  # fmt: skip


def few_images(kind: ImageSet, folder: Path, patch: pytest.MonkeyPatch) -> None:
    """The publisher's files with the first images of each class only."""
    if check(kind.name, ROOT).state == "missing":
        pytest.skip(f"no copy of {kind.name} in FEDLOOM_DATA or the cache")
    whole = SOURCES[kind.name](iid(1), data_dir=ROOT, download=False)
    folder.mkdir(parents=True)
    sums: dict[str, str] = {}
    *train, test, names_of_classes = (file.name for file in kind.files)

    def write(name: str, content: dict[bytes, Any]) -> None:
        raw = pickle.dumps(content, protocol=3)
        (folder / name).write_bytes(raw)
        sums[name] = hashlib.md5(raw).hexdigest()

    def first(targets: torch.Tensor, count: int) -> torch.Tensor:
        each = count // kind.classes
        found = [(targets == c).nonzero()[:each, 0] for c in range(kind.classes)]
        return torch.stack(found, 1).flatten()

    parts = [(whole.inputs, whole.targets, TRAIN, train)]
    parts.append((whole.test_inputs, whole.test_targets, TEST, [test]))
    for images, targets, count, names in parts:
        chosen = torch.chunk(first(targets, count), len(names))
        for name, index in zip(names, chosen, strict=True):
            rows, labels = images[index].flatten(1).numpy(), targets[index].tolist()
            write(name, {b"data": rows, kind.key + b"labels": labels})
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
def test_one_round_of_the_paper_s_set_up(
    kind: ImageSet,
    rule: str,
    fedloom: Fedloom,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    few_images(kind, tmp_path / "data" / kind.place, monkeypatch)
    monkeypatch.setenv("FEDLOOM_DATA", str(tmp_path / "data"))
    changes = [f"submodel={rule}", "submodel.capacities=1/64,1/4,1", *SMALL]
    said = fedloom("run", f"fiarse_{kind.name}", *changes, "--out", "a").output
    assert "size 1/64" in said and Path("a/report.html").stat().st_size > 10_000
    (row,) = map(json.loads, Path("a/rounds.jsonl").read_text().splitlines())
    sizes = json.loads(Path("a/summary.json").read_text())["sizes"]
    assert row["answered"] == 4 and 1 < row["train_loss"] < 8
    assert sorted(sizes["held"]) == ["0.015625", "0.25", "1"]
    assert row["test_accuracy"] == row["test_accuracy@1"]  # one model, one way to evaluate it
    assert "and the run said" in fedloom("export", "a").output  # the whole, with statistics
    data = from_run(Path("a")).data()
    images = data.ready(data.test_inputs)
    for text, measured in (
        ("1/4", sizes["global"]["0.25"]),
        ("1/32", sizes["unseen"][0]["global"]),
    ):
        fedloom("export", "a", "--capacity", text)
        share = f"{1 / int(text[2:]):g}"
        module = runpy.run_path(f"a/export-{share}/predict.py")["load"]()
        with torch.no_grad():
            right = (module(images).argmax(1) == data.test_targets).double().mean()
        assert measured == pytest.approx(float(right), abs=0.011), text  # one image may be a tie
        spread = [v for n, v in module.named_buffers() if n.endswith("running_var")]
        # maps behind a convolution of which nothing is held are constant
        assert spread[0].min() > 0
        assert all(values.isfinite().all() for values in spread)
        mask = Path(f"a/export-{share}/mask.safetensors")
        assert mask.exists() == (rule == "fiarse")
        if rule == "fiarse":
            held = sum(int(m.sum()) for m in load_file(mask).values())
            exempt = 9_600  # the norms
            counted = sizes["held"]["1"]["of"]
            assert 0 <= held - exempt - int(counted / int(text[2:])) < 100
