"""Numbers that the papers print, to set beside ours. Other data and sizes: only signs compare."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Published:
    """A column of a paper's table: accuracies in per cent by method, with FedAvg among them.

    own: the method that the paper proposes.
    """

    source: str
    own: str
    values: Mapping[str, float]


ZOO = (
    Published(
        "FedACG, Table 1a: CIFAR-10, Dirichlet 0.3, 5 of 100, moving average at round 1,000",
        "FedACG",
        {
            "FedAvg": 82.53,
            "FedProx": 82.68,
            "FedAvgM": 85.48,
            "FedAdam": 81.73,
            "FedDyn": 88.10,
            "MOON": 86.30,
            "FedCM": 83.71,
            "FedMLB": 84.04,
            "FedLC": 84.79,
            "FedNTD": 83.78,
            "FedDC": 87.47,
            "FedDecorr": 83.40,
            "FedACG": 89.10,
        },
    ),
    Published(
        "FedSMOO, Table 1: CIFAR-10, Dirichlet 0.6, 10 of 100, round 800",
        "FedSMOO",
        {
            "FedAvg": 79.52,
            "FedAdam": 77.08,
            "SCAFFOLD": 81.81,
            "FedCM": 82.97,
            "FedDyn": 83.22,
            "FedSAM": 80.10,
            "MoFedSAM": 84.13,
            "FedSMOO": 84.55,
        },
    ),
    Published(
        "FAFED, Table 2c: Fashion-MNIST, 5 classes a client, all of 20",
        "FAFED",
        {
            "FedAvg": 79.58,
            "SCAFFOLD": 80.34,
            "STEM": 80.53,
            "FedAdam": 80.40,
            "FedAMS": 80.15,
            "FAFED": 81.88,
        },
    ),
)

# FedACG, Table Aa: CIFAR-100, 5 of 100, moving average at round 1,000: alone, and with the
# look-ahead
ACG_GAINS = {"FedMLB": (54.58, 65.67), "FedLC": (47.23, 62.09), "FedDecorr": (49.17, 63.02)}

# FedSMOO, Table 8: CIFAR-10, three classes a client: all of FedSMOO less it without the correction
CORRECTION = 81.58 - 80.13
