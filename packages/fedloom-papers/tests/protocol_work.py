"""What a protocol amounts to, by arithmetic from its settings and the published sizes of data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

# training samples
SETS = {
    "mnist": 60_000,
    "fashion_mnist": 60_000,
    "cifar10": 50_000,
    "cifar100": 50_000,
    "tiny_imagenet": 100_000,
    "wikitext2": 2_088_628 // 35,
    "ag_news": 120_000,
}


class Work(NamedTuple):
    """clients: of all; active: of a round; each: training samples of a client; steps: local steps
    of a client in a round.
    """

    clients: int
    active: int
    each: float
    steps: int
    rounds: int


def work(values: Mapping[str, Any]) -> Work:
    """The work of a complete configuration."""
    data, local = values["data"], values["local"]
    training = SETS[data["name"]]
    if data.get("part") == "valid":
        training = 217_646 // data["length"]
    clients = int(data["partition"]["clients"])
    each = min(training / clients, data["partition"].get("samples") or training)
    there, cohort = values.get("churn", {}).get("active", clients), values["cohort"]
    active = round(cohort * there) if isinstance(cohort, float) else int(cohort)
    per_epoch = math.ceil(each / (local.get("batch") or each) - 1e-9)
    steps = local.get("steps") or math.ceil(local["epochs"] * per_epoch - 1e-9)
    return Work(clients, active, each, steps, values["rounds"])
