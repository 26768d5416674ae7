"""Images: CIFAR-10, CIFAR-100 and FEMNIST, ten rounds each on a CPU."""

from __future__ import annotations

from typing import Any


def cifar10() -> dict[str, Any]:
    """CIFAR-10 over 100 clients by Dirichlet 0.3, FAFED's small network, ten rounds: a short run.

    It takes about a minute on a CPU; training images are cropped and flipped. FedACG's protocol
    also has rotation, 5 local epochs, a ResNet-18 and 1,000 rounds.
    """
    return _cifar("cifar10", 10, 2, 0.2)


def cifar100() -> dict[str, Any]:
    """CIFAR-100 over 100 clients by Dirichlet 0.3, FAFED's small network, ten rounds: a short run.

    Each client trains for 5 local epochs; for the rest see `cifar10`.
    """
    return _cifar("cifar100", 100, 5, 0.03)


def _cifar(name: str, classes: int, epochs: int, target: float) -> dict[str, Any]:
    return {
        "rounds": 10,
        "cohort": 0.1,
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
    """FEMNIST, one client per writer with at least 20 images, LEAF's network, ten rounds.

    Five clients per round, one local epoch of batch 10 (as in LEAF's examples). The learning rate
    is 0.05; with LEAF's 0.0003 ten rounds show no progress. A subset of the writers works too.
    """
    return {
        "rounds": 10,
        "cohort": 5,
        "algorithm": {"name": "fedavg"},
        "model": {"name": "cnn_femnist"},
        "data": {"name": "femnist", "partition": {"name": "natural", "min_size": 20}},
        "local": {"epochs": 1, "batch": 10, "lr": 0.05},
        "evaluate": {"every": 5, "target": 0.2},
    }
