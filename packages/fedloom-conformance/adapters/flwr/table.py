"""Which of Flower's strategies is which method."""

from __future__ import annotations

import logging

from flwr.app import Array, ArrayRecord
from flwr.serverapp import strategy as fl
from flwr.supercore.task_identity import TaskIdentity

from fedloom_conformance import NotThereError

logging.getLogger("flwr").setLevel(logging.ERROR)
# messages carry who made them, which the SuperLink sets where there is one
TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 1


def strategy_of(method, s, cohort):
    """-> the strategy. Without momentum FedAvgM is FedAvg with a server rate."""
    common = {"min_train_nodes": 1, "min_available_nodes": 1, "fraction_evaluate": 0.0}
    adaptive = {"eta": s.get("server_lr"), "tau": s.get("tau")}
    betas = {"beta_1": s.get("beta1"), "beta_2": s.get("beta2")}
    momentum = {
        "server_learning_rate": s.get("server_lr", 1.0),
        "server_momentum": s.get("beta", 0.0),
    }
    if method.startswith("dp_"):
        noise, clip = s.get("noise", 0.0), s["clip"]
        around = fl.DifferentialPrivacyServerSideFixedClipping
        return around(fl.FedAvg(**common), noise, clip, cohort)
    makers = {
        "fedavg": lambda: fl.FedAvgM(**momentum, **common) if s else fl.FedAvg(**common),
        "fedprox": lambda: fl.FedProx(proximal_mu=s["mu"], **common),
        "fedavgm": lambda: fl.FedAvgM(**momentum, **common),
        "fedadam": lambda: fl.FedAdam(**adaptive, **betas, **common),
        "fedyogi": lambda: fl.FedYogi(**adaptive, **betas, **common),
        "fedadagrad": lambda: fl.FedAdagrad(**adaptive, **common),
        "median": lambda: fl.FedMedian(**common),
        "trimmed_mean": lambda: fl.FedTrimmedAvg(beta=s["trim"], **common),
        "krum": lambda: fl.Krum(num_malicious_nodes=s["hostile"], **common),
    }
    if method not in makers:
        raise NotThereError("no strategy of this name")
    return makers[method]()


def records(state):
    """-> a state as Flower sends it."""
    return ArrayRecord({name: Array(value) for name, value in state.items()})
