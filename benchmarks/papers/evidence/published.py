"""Numbers that the papers print, to set beside ours. Other data and sizes: only signs compare."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from study import Study

from fedloom.papers import published
from fedloom.papers.published_tables import settings_of


@dataclass(frozen=True)
class Published:
    """A column of a paper's table: accuracies in per cent by method, with FedAvg among them.

    own: the method that the paper proposes.
    """

    source: str
    own: str
    values: Mapping[str, float]


def _column(
    paper: str, table: str, metric: str, at: str, dataset: str, setting: str = ""
) -> dict[str, float]:
    """{method: number} of a printed column, in per cent."""
    scale = 100 if metric.endswith("_fraction") else 1
    return {
        cell.method: round(scale * cell.value, 2)
        for cell in published(paper, table)
        if (cell.metric, cell.at, cell.dataset) == (metric, at, dataset)
        if cell.value is not None and cell.has(settings_of(setting))
    }


def columns(study: Study) -> list[Published]:
    """The columns that a study is set beside."""
    return [
        Published(one["source"], one["own"], _column(*one["cells"]))
        for one in study.words["published"]
    ]


# FedACG, Table Aa: CIFAR-100, 5 of 100, average at round 1,000: alone, and with the look-ahead
_AA = _column("fedacg", "Aa", "acc_ema_pct", "round=1000", "CIFAR-100")
ACG_GAINS = {name: (_AA[name], _AA[f"{name} + ACG"]) for name in ("FedMLB", "FedLC", "FedDecorr")}

# FedSMOO, Table 8: CIFAR-10, three classes a client: all of FedSMOO less it without the correction
_PARTS = _column("fedsmoo", "8", "test_acc_pct", "round=800", "CIFAR-10")
CORRECTION = _PARTS["FedSMOO"] - _PARTS["FedDyn+SAM"]
