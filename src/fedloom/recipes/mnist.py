"""Handwritten digits: scikit-learn's small images, and MNIST."""

from __future__ import annotations

from typing import Any


def digits() -> dict[str, Any]:
    """Digits of 8 x 8 pixels over 50 clients by Dirichlet 0.3: the demo; seconds, no download.

    There are 1,438 training samples, 28 or 29 per client; on average half of a client's samples
    have the same label. Ten clients per round, two local epochs.
    """
    return {
        "rounds": 150,
        "cohort": 0.2,
        "algorithm": {"name": "fedavg"},
        "model": {"name": "mlp", "inputs": 64, "hidden": [64], "classes": 10},
        "data": {"name": "digits", "partition": {"name": "dirichlet", "alpha": 0.3, "clients": 50}},
        "local": {"epochs": 2, "batch": 16, "lr": 0.1},
        "evaluate": {"target": 0.95},
    }


def million_clients() -> dict[str, Any]:
    """A million clients with 20 digits each, 1,000 per round, logistic regression; no download.

    Every client draws its samples from the 1,437 training digits, with its own label distribution
    from Dirichlet 0.3.
    """
    return {
        "algorithm": {"name": "fedavg"},
        "rounds": 50,
        "cohort": 1000,
        "model": {"name": "logistic", "inputs": 64},
        "data": {
            "name": "digits",
            "partition": {"name": "drawn", "alpha": 0.3, "clients": 1_000_000, "each": 20},
        },
        "local": {"epochs": 1, "batch": 10, "lr": 0.1},
        "evaluate": {"every": 5, "target": 0.9},
    }


def mnist_iid() -> dict[str, Any]:
    """MNIST over 100 clients, IID, participation ratio 10 %, CFedAvg's network.

    The easy case: methods differ in the number of rounds, and hardly in the final accuracy.
    """
    return _mnist({"name": "iid", "clients": 100})


def mnist_dirichlet() -> dict[str, Any]:
    """MNIST over 100 clients by Dirichlet 0.3, participation ratio 10 %, CFedAvg's network."""
    return _mnist({"name": "dirichlet", "alpha": 0.3, "clients": 100})


def mnist_writers() -> dict[str, Any]:
    """MNIST, one client per writer of its training images (539), 10 % per round, CFedAvg's network.

    Every client has all ten digits in one handwriting: the inputs differ, and the labels do not.
    """
    return _mnist({"name": "writers"})


def _mnist(partition: dict[str, Any]) -> dict[str, Any]:
    return {
        "rounds": 100,
        "cohort": 0.1,
        "algorithm": {"name": "fedavg"},
        "model": {"name": "cnn_cfedavg"},
        "data": {"name": "mnist", "partition": partition},
        "local": {"epochs": 1, "batch": 50, "lr": 0.1},
        "evaluate": {"target": 0.98},
    }
