"""fluke-fl 0.8.1, FedNova: weights that do not sum to 1 are applied to models, not to moves.

arXiv 2007.07481, Algorithm 1: x moves by tau_eff sum p_i (y_i - x) / tau_i. Here no y_i moved from
x = 1, so x may not move. The clients took 1 and 3 steps: the server makes sum p_i tau_eff / tau_i
y_i, whose weights sum to 1.25 (p = 1/4 and 3/4, tau_eff = 2.5).
"""

from types import SimpleNamespace

import torch
from fluke.algorithms.fednova import FedNovaServer
from fluke.comm import Message


def model(x):
    made = torch.nn.Linear(1, 1, bias=False)
    made.weight.data.fill_(x)
    return made


clients = [SimpleNamespace(n_examples=n, index=i) for i, n in enumerate((1, 3))]
server = FedNovaServer(model(1.0), None, clients, weighted=True)
for client, steps in zip(clients, (1.0, 3.0), strict=True):
    server.channel.send(Message(steps, "local_a", client.index, inmemory=True), "server")
server.aggregate(clients, [model(1.0), model(1.0)])
print(server.model.weight.item(), "right: 1")
