"""Which of pfl's algorithms, and which of torch's optimisers at the server, is which method."""

from __future__ import annotations

from functools import partial

import torch
from pfl.aggregate.weighting import WeightByDatapoints, WeightByUser
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.algorithm.fedprox import FedProx, FedProxParams
from pfl.algorithm.scaffold import SCAFFOLD, SCAFFOLDParams
from pfl.data.user_state import InMemoryUserStateStorage
from pfl.privacy.gaussian_mechanism import GaussianMechanism
from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism

from fedloom_conformance import NotThereError

OTHERS = ("fedprox", "scaffold1", "scaffold2", "dp_clip", "dp_noise")


def server_of(method, s):
    """-> what makes the server's optimiser of the parameters."""
    sgd, lr = torch.optim.SGD, s.get("server_lr", 1.0)
    if method == "fedadam":
        betas = s["beta1"], s["beta2"]
        return partial(torch.optim.Adam, lr=lr, betas=betas, eps=s["tau"])
    if method == "fedadagrad":
        first = {"initial_accumulator_value": s["tau"] ** 2}
        return partial(torch.optim.Adagrad, lr=lr, eps=s["tau"], **first)
    if method in ("fedavgm", "diloco"):
        return partial(sgd, lr=lr, momentum=s["beta"], nesterov=method == "diloco")
    if method not in ("fedavg", *OTHERS):
        raise NotThereError("no algorithm or optimiser of this name")
    return partial(sgd, lr=lr)


def client_of(method, s):
    """-> what makes a client's optimiser."""
    if method == "diloco":
        return partial(torch.optim.AdamW, weight_decay=s["decay"])
    return torch.optim.SGD


def algorithm_of(method, s, problem):
    """-> the algorithm and its parameters; pfl has cohorts of one size."""
    if len({len(who) for who in problem.cohorts}) > 1:
        raise NotThereError("no cohorts of several sizes")
    base = len(problem.cohorts), len(problem.cohorts) + 1, len(problem.cohorts[0]), None
    if method == "fedprox":
        return FedProx(), FedProxParams(*base, mu=s["mu"])
    if method.startswith("scaffold"):
        more = len(problem.data), method == "scaffold1", InMemoryUserStateStorage()
        return SCAFFOLD(), SCAFFOLDParams(*base, *more)
    return FederatedAveraging(), NNAlgorithmParams(*base)


def postprocessors_of(method, s, problem):
    """-> how clients count, and the privacy mechanism."""
    counts = [WeightByDatapoints() if problem.weights == "sizes" else WeightByUser()]
    if not method.startswith("dp_"):
        return counts
    gauss = GaussianMechanism(s["clip"], s.get("noise", 0.0))
    return [*counts, CentrallyAppliedPrivacyMechanism(gauss)]
