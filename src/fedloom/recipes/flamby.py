"""FLamby's protocols: hospitals' tables, a linear model, 100 steps of every client in a round.

Source: du Terrail et al., FLamby, NeurIPS 2022 Datasets and Benchmarks; their code, edacf54d.
"""

from __future__ import annotations

from typing import Any


def flamby_heart() -> dict[str, Any]:
    """FLamby's Fed-Heart-Disease: four hospitals, 13 inputs, one logit, 15 rounds of 100 steps.

    Each client scales its inputs by its own training rows; batches of 4, and a pass over the data
    goes on across rounds. No download.
    """
    return _linear("heart", 13, 4, 15, {"lr": 0.001}, "accuracy", 0.75)


def flamby_tcga() -> dict[str, Any]:
    """FLamby's Fed-TCGA-BRCA: survival in six regions, 39 inputs, 5 rounds of 100 steps.

    Cox's partial likelihood of batches of 8; the inputs are not scaled. The files are the user's:
    `fedloom data` says where they are.
    """
    cox = {"objective": {"name": "cox"}}
    return _linear("tcga", 39, 8, 5, {"lr": 0.1}, "concordance", 0.75) | cox


def _linear(
    data: str, inputs: int, batch: int, rounds: int, local: dict[str, Any], metric: str, aim: float
) -> dict[str, Any]:
    return {
        "rounds": rounds,
        "algorithm": {"name": "fedavg"},
        "model": {"name": "logistic", "inputs": inputs, "classes": 1},
        "data": {"name": data, "partition": {"name": "natural"}},
        "local": {"steps": 100, "batch": batch, "passes": {"name": "continue"}} | local,
        "metrics": [metric],
        "evaluate": {"target": aim},
    }
