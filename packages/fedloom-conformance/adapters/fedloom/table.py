"""Which of fedloom's parts are which method: the arguments of an Experiment."""

from __future__ import annotations

from fedloom import algorithms as alg
from fedloom.aggregation import DifferentialPrivacy, Krum, Median, TrimmedMean
from fedloom.submodels import FIARSE

METHODS = {
    "fedavg": alg.FedAvg,
    "fedprox": alg.FedProx,
    "fednova": alg.FedNova,
    "fedavgm": alg.FedAvgM,
    "fedadam": alg.FedAdam,
    "fedyogi": alg.FedYogi,
    "fedadagrad": lambda beta2, **s: alg.FedAdagrad(**s),
    "fedacg": alg.FedACG,
    "diloco": lambda decay, **s: alg.DiLoCo(**s),
    "scaffold1": lambda **s: alg.SCAFFOLD(option=1, **s),
    "scaffold2": lambda **s: alg.SCAFFOLD(option=2, **s),
    "feddyn": alg.FedDyn,
    "fedsmoo": alg.FedSMOO,
    "fafed": alg.FAFED,
    "cfedavg": lambda kept, **s: alg.CFedAvg(**s),
}


def parts_of(method, settings, problem):
    """-> the arguments of an Experiment that make the method."""
    parts = {"algorithm": METHODS[method](**settings) if method in METHODS else alg.FedAvg()}
    if method == "cfedavg":
        parts["compress"] = f"topk:{settings['kept']}"
    if method == "fiarse":
        parts |= {"submodel": FIARSE(), "capacities": [*problem.capacities]}
    if method == "median":
        parts["aggregation"] = Median()
    if method == "trimmed_mean":
        parts["aggregation"] = TrimmedMean(**settings)
    if method == "krum":
        parts["aggregation"] = Krum(hostile=settings["hostile"] / len(problem.data))
    if method.startswith("dp_"):  # noise must be above 0
        parts["aggregation"] = DifferentialPrivacy(**{"noise": 1e-9} | settings)
        parts |= {"sampling": "poisson", "cohort": 1.0}
    return parts
