"""Pictures: CIFAR-10, CIFAR-100 and FEMNIST, ten rounds each on a CPU."""

from __future__ import annotations

from typing import Any


def cifar10() -> dict[str, Any]:
    """CIFAR-10 over 100 clients with label shares from Dir(0.3), FAFED's small network, ten rounds.

    A first look that a CPU manages in about a minute, cropped and mirrored in training; FedACG's
    protocol has rotation too, 5 epochs, a ResNet-18 and 1,000 rounds.
    """
    return _cifar("cifar10", 10, 2, 0.2)


def cifar100() -> dict[str, Any]:
    """CIFAR-100 over 100 clients with label shares from Dir(0.3), FAFED's small network, 5 epochs,
    ten rounds: a first look, as `cifar10`.
    """
    return _cifar("cifar100", 100, 5, 0.03)


def _cifar(name: str, classes: int, epochs: int, target: float) -> dict[str, Any]:
    return {
        "rounds": 10,
        "cohort": 0.1,
        "engine": "workers",
        "algorithm": {"name": "fedavg"},
        "model": {"name": "cnn_fafed_cifar", "classes": classes},
        "data": {
            "name": name,
            "partition": {"name": "dirichlet", "alpha": 0.3, "clients": 100},
            "crop": 4,
            "flip": True,
        },
        "local": {
            "epochs": epochs,
            "batch": 50,
            "lr": 0.1,
            "clip": 10.0,
            "weight_decay": 1e-3,
        },
        "evaluate": {"target": target},
    }


def femnist() -> dict[str, Any]:
    """FEMNIST, every writer with at least 20 images a client, LEAF's network, ten rounds.

    Five writers a round, one epoch of batches of 10 (the batch size of LEAF's examples), and the
    rate 0.05 instead of LEAF's 0.0003, with which ten rounds show nothing. Works with a subset of
    the writers.
    """
    return {
        "rounds": 10,
        "cohort": 5,
        "engine": "workers",
        "algorithm": {"name": "fedavg"},
        "model": {"name": "cnn_femnist"},
        "data": {"name": "femnist", "partition": {"name": "natural", "min_size": 20}},
        "local": {"epochs": 1, "batch": 10, "lr": 0.05},
        "evaluate": {"every": 5, "target": 0.2},
    }
