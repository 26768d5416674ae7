"""fluke-fl 0.8.1, SCAFFOLD: global_step scales the model, not the move.

arXiv 1910.06378, Algorithm 1, line 17: x <- x + eta_g mean(y_i - x). Here y = x = 1, so x must
stay; the weights of the mean of models are multiplied by global_step.
"""

from types import SimpleNamespace

import torch
from fluke.algorithms.scaffold import SCAFFOLDServer
from fluke.comm import Message


def model(x):
    made = torch.nn.Linear(1, 1, bias=False)
    made.weight.data.fill_(x)
    return made


for step in (1.0, 0.5):
    clients = [SimpleNamespace(n_examples=1, index=0)]
    server = SCAFFOLDServer(model(1.0), None, clients, global_step=step)
    change = {"weight": torch.zeros(1, 1)}
    server.channel.send(Message(change, "control", 0, inmemory=True), "server")
    server.aggregate(clients, [model(1.0)])
    print("global_step", step, "x", server.model.weight.item(), "right: 1")
