"""fluke-fl 0.8.1, FedAVGM: the first round's move is lost.

arXiv 1909.06335, section 4.3: v <- beta v + Delta from v = 0, w <- w - v: after the first round
w is the clients' mean. The server makes v = 0 in the first round and does not add Delta.
"""

from types import SimpleNamespace

import torch
from fluke.algorithms.fedavgm import FedAVGMServer


def model(x):
    made = torch.nn.Linear(1, 1, bias=False)
    made.weight.data.fill_(x)
    return made


clients = [SimpleNamespace(n_examples=1)]
server = FedAVGMServer(model(1.0), None, clients, momentum=0.9)
for reached in (1.5, 2.0):
    server.aggregate(clients, [model(reached)])
    print(server.model.weight.item())
print("right: 1.5, then 2.45 (beta 0.5 + 0.5 behind 1.5)")
