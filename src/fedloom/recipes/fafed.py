"""FAFED's experiments.

Source of all: Wu et al., FAFED, AAAI 2023, section 6; the two groups of classes, normalisation and
length 35 are those of the code taken for its authors'. Numbers of rounds are not given there. All
clients count equally, as in its Algorithm 2.
"""

from __future__ import annotations

from typing import Any

_GROUPS = {
    "mnist": [[0, 1, 2, 5, 9], [3, 4, 6, 7, 8]],
    "fashion_mnist": [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]],
    "cifar10": [[1, 2, 3, 4, 9], [0, 5, 6, 7, 8]],
}


def fafed_mnist() -> dict[str, Any]:
    """FAFED's MNIST, high heterogeneity: 20 clients of five classes, all take part, 500 rounds.

    5 steps of batch 100 between exchanges, a fixed rate (0.01, of 0.001 to 0.1), nothing clipped.
    Medium: data.partition=blocks local.steps=10 local.batch=50; low: data.partition=similarity
    local.steps=20 local.batch=5.
    """
    return _images("mnist", "cnn_fafed_mnist", {}, 0.95)


def fafed_cifar10() -> dict[str, Any]:
    """FAFED's CIFAR-10, high heterogeneity: as `fafed_mnist`, 2,500 images a client.

    Medium: data.partition=stratified local.steps=10 local.batch=50; low as there.
    """
    pixels = {"mean": [0.5071, 0.4867, 0.4408], "std": [0.2675, 0.2565, 0.2761]}
    return _images("cifar10", "cnn_fafed_cifar", pixels, 0.5)


def _images(data: str, model: str, pixels: dict[str, Any], target: float) -> dict[str, Any]:
    return {
        "rounds": 500,
        "cohort": 1.0,
        "weighting": "uniform",
        "algorithm": {"name": "fafed", "alpha": 0.9},
        "model": {"name": model},
        "data": {"name": data, "partition": _halves(data)} | pixels,
        "local": {"steps": 5, "batch": 100, "lr": 0.01},
        "evaluate": {"every": 5, "target": target},
    }


def _halves(data: str) -> dict[str, Any]:
    return {"name": "class_groups", "clients": 20, "groups": _GROUPS[data]}


def fafed_fashion() -> dict[str, Any]:
    """FAFED's Table 2, high heterogeneity: Fashion-MNIST, 20 clients with five classes each.

    Full participation; 3,000 images each, of classes 0 to 4 or 5 to 9; 5 local steps of batch 100
    per round, a constant learning rate (0.01, of 0.001 to 0.1), no clipping, 150 rounds, evaluated
    every 5. Baselines: algorithm=stem, fedavg, scaffold, fedadam, fedams.
    Source: Wu et al., FAFED, AAAI 2023, section 6.2 and Table 4 (the network); the two groups of
    classes are those of the authors' code; steps and batch are one of the paper's choices; the
    number of rounds is not from the paper.
    """
    return {
        "rounds": 150,
        "cohort": 1.0,
        "algorithm": {"name": "fafed"},
        "model": {"name": "cnn_fafed_fashion"},
        "data": {"name": "fashion_mnist", "partition": _halves("fashion_mnist")},
        "local": {"steps": 5, "batch": 100, "lr": 0.01},
        "evaluate": {"every": 5, "target": 0.75},
    }


def fafed_wikitext2() -> dict[str, Any]:
    """FAFED's language model: WikiText-2 over 16 clients, an LSTM of 2 x 650, 10 steps of batch 20.

    Rate 10, clipped at 0.25, dropout 0.5, windows of 35 words in the order of the text, 300 rounds
    (about 16 passes; ours). FAFED itself: algorithm=fafed local.lr=1 local.schedule=cube_root
    local.schedule.w=2; STEM: algorithm=stem local.lr=20 local.schedule=cube_root
    local.schedule.unit=epoch local.schedule.epoch=186. For a GPU.
    """
    return {
        "rounds": 300,
        "cohort": 1.0,
        "weighting": "uniform",
        "algorithm": {"name": "fedavg"},
        "objective": {"name": "language_model"},
        "model": {"name": "lstm_language_model"},
        "data": {"name": "wikitext2", "partition": {"name": "blocks", "clients": 16}},
        "local": {"steps": 10, "batch": 20, "lr": 10.0, "clip": 0.25, "order": "text"},
        "evaluate": {"every": 10, "target": 200.0, "clients": False},
    }
