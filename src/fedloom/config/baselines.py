"""What a federation is compared with: each client alone, the model passed from one client to the
next, all rows in one place, and the federation's model fine-tuned by each client.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from ..data import FederatedData
from ..federation.federation import Federation
from ..federation.sampling import ClientSampler
from .resolve import Config

NAMES = ("alone", "cyclic", "fine-tuned", "pooled")
# what a baseline has none of: it takes plain local steps
_PARTS = ("server", "compress", "submodel", "private", "aggregation", "attack", "choose", "clock")


def baselines(config: Config, data: FederatedData) -> dict[str, list[str]]:
    """{name: changes of a run} with about the steps of the run itself. data: the run's. All rows in
    one place need data that take a partition: else there is no "pooled".
    """
    values = config.values
    cohorts = ClientSampler(values["cohort"], data.population, sampling=values["sampling"])
    fed = Federation(data, config.part("local"))
    together, rounds = max(1, round(cohorts.expected)), values["rounds"]
    plain = ["algorithm=fedavg", *(f"{part}=none" for part in _PARTS if part in values)]
    often = max(1, values["evaluate"]["every"]) * together
    steps = round(median(map(fed.steps, range(data.population))))
    turns = ["cohort=1", "sampling=cycle", f"rounds={rounds * together}"]
    rows = {
        "alone": [*plain, "private=alone"],
        "cyclic": [*plain, *turns, f"evaluate.every={often}"],
        "fine-tuned": [f"evaluate.finetune={steps}"],
    }
    if "partition" in values["data"]:
        epochs = values["local"].get("epochs")
        work = f"steps={steps * together}" if epochs is None else f"epochs={epochs * cohorts.share}"
        one = ["data.partition=iid", "data.partition.clients=1", "cohort=1.0", f"local.{work}"]
        rows["pooled"] = [*plain, *one]
    return {name: [*changes, f"label={name}"] for name, changes in rows.items()}


def without_partition(config: Config, words: Sequence[str]) -> list[str]:
    """A line's changes KEY=VALUE without the options of the configuration's partition: of a row
    that has another partition.
    """
    data = config.values["data"]
    keys = data["partition"].keys() - data.keys()

    def replaced(word: str) -> bool:
        key = word.partition("=")[0].strip()
        return key.startswith(("data.", "partition.")) and key.rpartition(".")[2] in keys

    return [word for word in words if not replaced(word)]
