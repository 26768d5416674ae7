"""Which methods are worth comparing on a federation: rules, each with what speaks for it.

A rule is a line of RULES: what the federation must be like, a change of the settings, a sentence of
why, and where it was seen. Nothing is trained to decide them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from ..config import Config
from ..core.skew import gini
from ..data import FederatedData
from ..data.heterogeneity import labels_of_counts
from ..federation.sampling import Cohorts

_TABLE = 1 << 22  # cells of the labels' counts: more take long, and clients are alike then


@dataclass(frozen=True)
class Facts:
    """What rules ask. cohort, share: clients expected in a round, and of all; examples: training
    rows of a client, median; sizes: Gini coefficient of the rows; labels: total variation between
    two clients' labels, mean over pairs, None: not of labels; demands: what the settings ask for.
    """

    clients: int
    cohort: float
    share: float
    examples: float
    sizes: float
    labels: float | None
    demands: frozenset[str] = frozenset()


def facts_of(config: Config, data: FederatedData) -> Facts:
    """The facts of a configuration and its data."""
    values = config.values
    cohorts = Cohorts(values["cohort"], data.population, sampling=values["sampling"])
    rows, labels = data.sizes.tolist(), None
    one_label = data.classes is not None and data.targets.ndim == 1
    if one_label and data.population * (data.classes or 1) <= _TABLE:
        labels = labels_of_counts(data.label_counts().numpy()).pairs
    return Facts(
        clients=data.population,
        cohort=cohorts.expected,
        share=cohorts.share,
        examples=median(rows),
        sizes=gini(rows),
        labels=labels,
        demands=frozenset(_demands(values)),
    )


DEMANDS = {
    "asynchronous": "an asynchronous clock",
    "dp": "differential privacy",
    "compressed": "compressed messages",
}


def _demands(values: Mapping[str, Any]) -> list[str]:
    aggregation = values.get("aggregation", {}).get("name")
    found = {
        "asynchronous": "clock" in values,
        "dp": "dp" in values["local"] or aggregation == "dp",
        "compressed": "compress" in values,
    }
    return [name for name, there in found.items() if there]


@dataclass(frozen=True)
class Rule:
    """least, below: bounds of facts, all of which must hold; demand: what the settings must ask
    for; changes: the candidate's settings; evidence: a page of docs/, or a paper.
    """

    changes: str
    why: str
    evidence: str
    least: Mapping[str, float] = field(default_factory=dict)
    below: Mapping[str, float] = field(default_factory=dict)
    demand: str = ""

    def holds(self, facts: Facts) -> bool:
        """Whether the federation is of this kind."""
        known = {key: getattr(facts, key) for key in (*self.least, *self.below)}
        return (
            (not self.demand or self.demand in facts.demands)
            and None not in known.values()
            and all(known[key] >= bound for key, bound in self.least.items())
            and all(known[key] < bound for key, bound in self.below.items())
        )

    @property
    def when(self) -> str:
        """The condition in words."""
        said = [DEMANDS[self.demand]] if self.demand else []
        said += [f"{_WORDS[key]} from {bound:g}" for key, bound in self.least.items()]
        said += [f"{_WORDS[key]} below {bound:g}" for key, bound in self.below.items()]
        return ", ".join(said) or "always"


_WORDS = {
    "clients": "clients",
    "share": "share of clients in a round",
    "examples": "rows of a client",
    "sizes": "Gini of the sizes",
    "labels": "label distance",
}
# in order: the first that hold, and that go with what the settings demand, are compared
RULES = (
    Rule(
        "algorithm=fedbuff",
        "it is FedAvg for clients that nobody waits for",
        "Nguyen et al., AISTATS 2022",
        demand="asynchronous",
    ),
    Rule(
        "algorithm=fedavgm",
        "momentum at the server averages the noise of rounds, and costs no privacy",
        "Hsu, Qi and Brown, 2019",
        demand="dp",
    ),
    Rule(
        "algorithm=fedacg",
        "it starts clients ahead along past moves, and sends one vector as FedAvg does",
        "results/compression.md",
        demand="compressed",
    ),
    Rule(
        "algorithm=fedavgm",
        "momentum at the server, and one vector as FedAvg sends",
        "results/fedacg.md",
        demand="compressed",
    ),
    Rule(
        "algorithm=fedsmoo",
        "clients agree on flat minima; it takes two gradients a step and sends two vectors",
        "results/zoo.md",
        least={"labels": 0.4},
    ),
    Rule(
        "algorithm=fedacg",
        "it starts clients ahead along past moves, and sends one vector as FedAvg does",
        "results/zoo.md",
    ),
    Rule(
        "algorithm=fedadam",
        "it was 3 and 11 points above FedAvg in two federations of hospitals",
        "results/flamby.md",
        least={"share": 0.5},
        below={"clients": 20},
    ),
    Rule(
        "algorithm=fedavgm",
        "momentum at the server, and one vector as FedAvg sends",
        "results/fedacg.md",
    ),
    Rule(
        "algorithm=fedprox",
        "it holds clients near the common model, and goes with most other parts",
        "Li et al., MLSys 2020",
    ),
)
