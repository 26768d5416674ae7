"""Clothes: Fashion-MNIST."""

from __future__ import annotations

from typing import Any


def fashion_dirichlet() -> dict[str, Any]:
    """Fashion-MNIST over 100 clients under FedACG's protocol, with FAFED's small network.

    Dirichlet 0.3 with equal sizes, 5 % a round, 5 epochs of batch 50, rate 0.1 that falls by 0.998
    a round, gradients clipped at 10, weight decay 0.001, 100 rounds.
    Source: Kim, Kim and Han, FedACG, CVPR 2024, section 5.1 (the protocol), which does not use this
    data set; Wu et al., FAFED, AAAI 2023, Table 4 (the network).
    """
    return fedacg_protocol(rounds=100, epochs=5)


def zoo_fashion_mnist() -> dict[str, Any]:
    """Every method beside the others: Fashion-MNIST, 100 clients, label shares from Dir(0.3), 5 %.

    FAFED's small network, one epoch of batch 50 (12 steps), rate 0.2 that falls by 0.998 a round,
    weight decay 0.001, gradients clipped at 10, 300 rounds, tested every 5. The methods and what
    was tuned: benchmarks/papers/zoo.py. Two labels per client: data.partition=classes_per_client.
    Source: the protocol of Kim, Kim and Han, FedACG, CVPR 2024, section 5.1, with less local
    work (hence the rate, the best of 0.05, 0.1 and 0.2 for FedAvg; theirs is 0.1);
    Wu et al., FAFED, AAAI 2023, Table 4 (the network).
    """
    recipe = fedacg_protocol(rounds=300, epochs=1)
    recipe["local"]["lr"] = 0.2
    recipe["evaluate"]["every"] = 5
    return recipe


def fafed_fashion() -> dict[str, Any]:
    """FAFED's Table 2, high heterogeneity: Fashion-MNIST, 20 clients with five classes each.

    All take part; 3,000 images each, of classes 0 to 4 or 5 to 9; 5 steps of batch 100 between
    exchanges, a fixed rate (0.01, of 0.001 to 0.1), nothing clipped, 150 rounds, tested every 5.
    The rivals: algorithm=stem, fedavg, scaffold, fedadam, fedams.
    Source: Wu et al., FAFED, AAAI 2023, section 6.2 and Table 4 (the network); the two groups of
    classes are those of the authors' code; steps and batch are one of the paper's choices, the
    number of rounds is ours.
    """
    return {
        "rounds": 150,
        "cohort": 1.0,
        "engine": "workers",
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
    """What FedACG's protocol says, on this data set and for this network."""
    return {
        "rounds": rounds,
        "cohort": 0.05,
        "engine": "workers",
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
