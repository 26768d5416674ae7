"""FedSMOO's protocols: CIFAR-10 and CIFAR-100 from class pools that restart.

Source: Sun et al., FedSMOO, ICML 2023, section 5.1 and Appendix; their code for network, clipping
at 10, augmentation, normalisation and the pools ("with replacement").
"""

from __future__ import annotations

from typing import Any

# their code's
CIFAR10 = {"mean": [0.491, 0.482, 0.447], "std": [0.247, 0.243, 0.262]}
CIFAR100 = {"mean": [0.5071, 0.4867, 0.4408], "std": [0.2675, 0.2565, 0.2761]}


def fedsmoo_cifar10() -> dict[str, Any]:
    """FedSMOO's CIFAR-10: 100 clients, Dirichlet 0.6, 10 % a round, ResNet-18 with the 7 x 7 stem.

    500 images a client, 5 epochs of batch 50 (50 steps), rate 0.1 that falls by 0.998 a round,
    weight decay 0.001, clipped at 10, 800 rounds. Other clients: data.clients=200 cohort=0.05;
    data.alpha=0.1; data.partition=pathological data.classes=3 (or 6). For a GPU.
    """
    return _cifar("cifar10", 10, CIFAR10, {"epochs": 5, "batch": 50}, 0.74)


def fedsmoo_cifar100() -> dict[str, Any]:
    """FedSMOO's CIFAR-100: as `fedsmoo_cifar10`, with 2 epochs of batch 20 (50 steps)."""
    return _cifar("cifar100", 100, CIFAR100, {"epochs": 2, "batch": 20}, 0.43)


def _cifar(
    data: str, classes: int, pixels: dict[str, Any], work: dict[str, Any], target: float
) -> dict[str, Any]:
    partition = {"name": "dirichlet_recycled", "alpha": 0.6, "clients": 100}
    augmented = {"flip": True, "crop": 4, "crop_chance": 0.5, "fill": "mean"}
    return {
        "rounds": 800,
        "cohort": 0.1,
        "algorithm": {"name": "fedavg"},
        "model": {"name": "resnet18_fedsmoo", "classes": classes},
        "data": {"name": data, "partition": partition} | pixels | augmented,
        "local": work
        | {
            "lr": 0.1,
            "clip": 10.0,
            "weight_decay": 1e-3,
            "schedule": {"name": "exponential", "decay": 0.998},
        },
        "evaluate": {"target": target},
    }
