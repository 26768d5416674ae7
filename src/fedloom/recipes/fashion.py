"""Fashion-MNIST."""

from __future__ import annotations

from typing import Any


def fashion_dirichlet() -> dict[str, Any]:
    """Fashion-MNIST over 100 clients under FedACG's protocol, with FAFED's small network.

    Dirichlet partition with alpha 0.3 and equal sizes, participation ratio 5 %, 5 local epochs of
    batch 50, learning rate 0.1 times 0.998 per round, gradients clipped at 10, weight decay 0.001,
    100 rounds.
    Source: Kim, Kim and Han, FedACG, CVPR 2024, section 5.1 (the protocol), which does not use this
    data set; Wu et al., FAFED, AAAI 2023, Table 4 (the network).
    """
    return fedacg_protocol(rounds=100, epochs=5)


def zoo_fashion_mnist() -> dict[str, Any]:
    """The papers' methods compared: Fashion-MNIST, 100 clients by Dirichlet 0.3, 5 % per round.

    FAFED's small network, one local epoch of batch 50 (12 steps), learning rate 0.2 times 0.998 per
    round, weight decay 0.001, gradients clipped at 10, 300 rounds, evaluated every 5. The methods
    and their tuning: benchmarks/papers/studies/zoo.toml. Two labels per client:
    data.partition=classes_per_client.
    Source: the protocol of Kim, Kim and Han, FedACG, CVPR 2024, section 5.1, with fewer local steps
    (hence the learning rate, the best of 0.05, 0.1 and 0.2 for FedAvg; theirs is 0.1);
    Wu et al., FAFED, AAAI 2023, Table 4 (the network).
    """
    recipe = fedacg_protocol(rounds=300, epochs=1)
    recipe["local"]["lr"] = 0.2
    recipe["evaluate"]["every"] = 5
    return recipe


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
        "data": {
            "name": "fashion_mnist",
            "partition": {
                "name": "class_groups",
                "clients": 20,
                "groups": [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]],
            },
        },
        "local": {"steps": 5, "batch": 100, "lr": 0.01},
        "evaluate": {"every": 5, "target": 0.75},
    }


def fedacg_protocol(rounds: int, epochs: int) -> dict[str, Any]:
    """Settings of FedACG's protocol, on Fashion-MNIST with FAFED's small network."""
    return {
        "rounds": rounds,
        "cohort": 0.05,
        "algorithm": {"name": "fedavg"},
        "model": {"name": "cnn_fafed_fashion"},
        "data": {
            "name": "fashion_mnist",
            "partition": {"name": "dirichlet", "alpha": 0.3, "clients": 100},
        },
        "local": {
            "epochs": epochs,
            "batch": 50,
            "lr": 0.1,
            "clip": 10.0,
            "weight_decay": 1e-3,
            "schedule": {"name": "exponential", "decay": 0.998},
        },
        "evaluate": {"target": 0.8},
    }
