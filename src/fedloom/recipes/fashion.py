"""Clothes: Fashion-MNIST."""

from __future__ import annotations

from typing import Any

__all__ = ["fashion_dirichlet"]


def fashion_dirichlet() -> dict[str, Any]:
    """Fashion-MNIST over 100 clients under FedACG's protocol, with FAFED's small network.

    Dirichlet 0.3 with equal sizes, 5 % a round, 5 epochs of batch 50, rate 0.1 that falls by 0.998
    a round, gradients clipped at 10, weight decay 0.001, 100 rounds.
    Source: Kim, Kim and Han, FedACG, CVPR 2024, section 5.1 (the protocol), which does not use this
    data set; Wu et al., FAFED, AAAI 2023, Table 4 (the network).
    """
    return {
        "rounds": 100,
        "cohort": 0.05,
        "engine": "workers",
        "algorithm": {"name": "fedavg"},
        "model": {"name": "cnn_fafed_fashion"},
        "data": {
            "name": "fashion_mnist",
            "partition": {"name": "dirichlet", "alpha": 0.3, "clients": 100},
        },
        "local": {
            "epochs": 5,
            "batch": 50,
            "lr": 0.1,
            "clip": 10.0,
            "weight_decay": 1e-3,
            "schedule": {"name": "exponential", "decay": 0.998},
        },
        "evaluate": {"target": 0.8},
    }
