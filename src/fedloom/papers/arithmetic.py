"""What a protocol amounts to: clients, steps and samples, from its settings alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# training samples, test samples, shape of an input, classes; as published
SETS: dict[str, tuple[int, int, tuple[int, ...], int]] = {
    "digits": (1438, 359, (1, 8, 8), 10),
    "mnist": (60_000, 10_000, (1, 28, 28), 10),
    "fashion_mnist": (60_000, 10_000, (1, 28, 28), 10),
    "cifar10": (50_000, 10_000, (3, 32, 32), 10),
    "cifar100": (50_000, 10_000, (3, 32, 32), 100),
    "tiny_imagenet": (100_000, 10_000, (3, 64, 64), 200),
    "femnist": (805_263 * 9 // 10, 805_263 // 10, (1, 28, 28), 62),
    "celeba": (200_288 * 9 // 10, 200_288 // 10, (3, 84, 84), 2),
    "shakespeare": (4_226_158 * 9 // 10, 4_226_158 // 10, (80,), 80),
    "wikitext2": (2_088_628 // 35, 245_569 // 35, (35,), 33_278),
    "ag_news": (120_000, 7_600, (64,), 4),
}
# clients where each is a person: LEAF's numbers
_PEOPLE = {"femnist": 3550, "celeba": 9343, "shakespeare": 1129}
TOKENS = ("shakespeare", "wikitext2", "ag_news")


@dataclass(frozen=True)
class Work:
    """clients: of all; active: of a round; each: training samples of a client; steps: local steps
    of a client in a round; samples: of a round; evaluations: of the test set.
    """

    clients: int
    active: int
    each: float
    steps: int
    rounds: int
    samples: float
    evaluations: int
    tests: int


def work(values: Mapping[str, Any]) -> Work:
    """The work of a complete configuration; of unequal clients that of the mean one."""
    data, local = values["data"], values["local"]
    training, tests, _, _ = SETS[data["name"]]
    if str(data.get("part", "")).startswith("train-10k"):
        training = 10_001
    elif data.get("part") == "valid":
        training = 217_646 // data["length"]
    tests = min(tests, data.get("test_samples") or tests)
    partition = data["partition"]
    people = _PEOPLE.get(data["name"])
    clients = int(partition.get("clients") or people or 1)
    each = training / (people if people and partition["name"] == "natural" else clients)
    if partition["name"] == "replicated":
        each = training
    each = min(each, partition.get("samples") or each)
    there = values.get("churn", {}).get("active", clients)
    cohort = values["cohort"]
    active = round(cohort * there) if isinstance(cohort, float) else int(cohort)
    batch = local.get("batch") or each
    per_epoch = math.ceil(each / batch - 1e-9)
    steps = local.get("steps") or math.ceil(local["epochs"] * per_epoch - 1e-9)
    samples = active * (local["steps"] * batch if local.get("steps") else local["epochs"] * each)
    every = values["evaluate"]["every"]
    rounds = values["rounds"]
    evaluations = rounds // every + bool(rounds % every) if every else 1
    return Work(clients, active, each, steps, rounds, samples, evaluations, tests)
