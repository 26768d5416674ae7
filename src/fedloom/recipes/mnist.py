"""Handwritten digits: scikit-learn's small ones, and MNIST."""

from __future__ import annotations

from typing import Any


def digits() -> dict[str, Any]:
    """Digits of 8 x 8 pixels, 50 clients, each with some classes: seconds, no download; the demo.

    1,438 samples for training: a client has 28 or 29 of them, on average half of them of one class
    (label shares from Dir(0.3)). Ten clients a round, two epochs each.
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
    """A million clients of 20 digits each, a thousand a round, logistic regression: no download.

    Every client draws its samples anew from the 1,437 training digits, with label shares of its
    own from Dir(0.3).
    """
    return {
        "algorithm": {"name": "fedavg"},
        "rounds": 50,
        "cohort": 1000,
        "engine": "vectorised",
        "model": {"name": "logistic", "inputs": 64},
        "data": {
            "name": "digits",
            "partition": {"name": "drawn", "alpha": 0.3, "clients": 1_000_000, "each": 20},
        },
        "local": {"epochs": 1, "batch": 10, "lr": 0.1},
        "evaluate": {"every": 5, "target": 0.9},
    }


def mnist_iid() -> dict[str, Any]:
    """MNIST over 100 equal clients, i.i.d., 10 % a round, CFedAvg's network of 582,026 parameters.

    The easy case: methods differ in how many rounds they take, hardly in where they end.
    """
    return _mnist({"name": "iid", "clients": 100})


def mnist_dirichlet() -> dict[str, Any]:
    """MNIST over 100 clients with label shares from Dir(0.3), 10 % a round, CFedAvg's network."""
    return _mnist({"name": "dirichlet", "alpha": 0.3, "clients": 100})


def mnist_writers() -> dict[str, Any]:
    """MNIST over the 539 people who wrote its training images, 10 % a round, CFedAvg's network.

    Every writer has all digits, in a hand of its own: the inputs differ, not the labels.
    """
    return _mnist({"name": "writers"})


def _mnist(partition: dict[str, Any]) -> dict[str, Any]:
    return {
        "rounds": 100,
        "cohort": 0.1,
        "engine": "workers",
        "algorithm": {"name": "fedavg"},
        "model": {"name": "cnn_cfedavg"},
        "data": {"name": "mnist", "partition": partition},
        "local": {"epochs": 1, "batch": 50, "lr": 0.1},
        "evaluate": {"target": 0.98},
    }
