"""CFedAvg's experiments: compressed client updates."""

from __future__ import annotations

from typing import Any


def cfedavg_fashion() -> dict[str, Any]:
    """CFedAvg on Fashion-MNIST (its Figures 4, 7 and 9, scaled down): 20 clients, all take part.

    FAFED's small network, one local epoch of batch 64 at learning rate 0.1, 100 rounds, one class
    per client (data.partition.classes=2 or 5 for more); client updates have the largest 1 % of
    their values, with error feedback. Uncompressed: compress=none; the largest 10 %:
    compress=topk:0.1; random dropping: compress=dropping:0.01; without error feedback:
    compress.feedback=forget.
    Source: Yang et al., CFedAvg, section 5: 100 clients, their own network, 10 epochs.
    """
    return _cfedavg("fashion_mnist", "cnn_fafed_fashion", clients=20, rounds=100, target=0.7)


def cfedavg_mnist() -> dict[str, Any]:
    """CFedAvg's own network on MNIST: 100 clients with one class each, full participation.

    582,026 parameters, one local epoch of batch 64 at learning rate 0.1, 30 rounds; client updates
    have the largest 1 % of their values, with error feedback. The paper's settings are
    local.epochs=10 rounds=100. They take hours on a CPU; the run can be resumed.
    Source: Yang et al., CFedAvg, section 5.
    """
    return _cfedavg("mnist", "cnn_cfedavg", clients=100, rounds=30, target=0.8)


def cfedavg_cifar10() -> dict[str, Any]:
    """CFedAvg on CIFAR-10: 100 clients of one class, all take part, ResNet-18, 200 rounds.

    10 local epochs of batch 64 at 0.1 (80 steps), the largest hundredth of the values with
    feedback. GroupNorm of two groups: the paper says neither stem nor norm. For a GPU.
    Source: Yang et al., CFedAvg, section 5.
    """
    recipe = _cfedavg("cifar10", "resnet18", clients=100, rounds=200, target=0.5)
    recipe["local"]["epochs"] = 10
    return recipe


def _cfedavg(data: str, model: str, clients: int, rounds: int, target: float) -> dict[str, Any]:
    partition = {"name": "classes_per_client", "classes": 1, "clients": clients}
    return {
        "rounds": rounds,
        "cohort": 1.0,
        "weighting": "uniform",
        "algorithm": {"name": "cfedavg"},
        "model": {"name": model},
        "data": {"name": data, "partition": partition},
        "local": {"epochs": 1, "batch": 64, "lr": 0.1},
        "compress": {"name": "topk", "ratio": 0.01, "feedback": "residual"},
        "evaluate": {"target": target},
    }
