"""fluke-fl 0.8.1, FedDyn: the dual enters the local gradient with the other sign, and alpha twice.

arXiv 2111.04263, Algorithm 1: the local gradient is f' - g_i + alpha (y - x), and g_i <- g_i -
alpha (y - x). The client keeps that g_i as prev_grads, and its penalty adds alpha prev_grads.
"""

import torch
from fluke import DDict
from fluke.algorithms.feddyn import FedDynClient
from fluke.config import OptimizerConfigurator
from fluke.data import FastDataLoader

pair = torch.ones(1, 1), torch.full((1, 1), 3.0)  # loss (x - 3)^2
data = FastDataLoader(*pair, num_labels=1, batch_size=1, skip_singleton=False)
sgd = OptimizerConfigurator(DDict(name="SGD", lr=0.1))
client = FedDynClient(0, data, None, sgd, torch.nn.MSELoss(), 1, alpha=0.5, clipping=0)
client.model = torch.nn.Linear(1, 1, bias=False)
client.model.weight.data.fill_(1.0)
client.weight, client.prev_grads = 1.0, torch.tensor([2.0])
client.fit()
print("after a step", client.model.weight.item(), "right:", 1 - 0.1 * (2 * (1 - 3) - 2.0))
print("with + alpha g:", 1 - 0.1 * (2 * (1 - 3) + 0.5 * 2.0))
print("g", client.prev_grads.item())  # 2 - 0.5 (y - 1): the paper's renewal, of this y
