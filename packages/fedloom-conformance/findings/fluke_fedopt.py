"""fluke-fl 0.8.1, FedOpt: the server's rate is applied twice.

arXiv 2003.00295, Algorithm 2: Delta is the mean move, x <- x + eta m / (sqrt(v) + tau). FedOpt's
lr is eta, and Server.aggregate, which it calls first, takes lr as a rate of the mean too: Delta
comes out eta times too small. Adagrad with beta1 = 0, tau = 1, v = 0 before round 1.
"""

from types import SimpleNamespace

import torch
from fluke.algorithms.fedopt import FedOptServer


def model(x):
    made = torch.nn.Linear(1, 1, bias=False)
    made.weight.data.fill_(x)
    return made


clients, delta, eta = [SimpleNamespace(n_examples=1)], 0.4, 0.1
server = FedOptServer(model(1.0), None, clients, mode="adagrad", lr=eta, beta1=0.0, tau=1.0)
server.aggregate(clients, [model(1.0 + delta)])
print(server.model.weight.item(), "right:", 1 + eta * delta / (delta + 1))
print("with eta twice:", 1 + eta * (eta * delta) / (eta * delta + 1))
