"""pfl 0.6.0: running statistics of a batch norm are not averaged.

Two users with inputs of mean 0 and 10, momentum 0.1, one step each from running_mean 0: their mean
is (0 + 1) / 2 = 0.5. The simulated server has what the second user's pass made of the first's.
"""

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam import NNTrainHyperParams
from pfl.model.pytorch import PyTorchModel

for order in ((0, 1), (1, 0)):
    net = torch.nn.BatchNorm1d(1)
    net.loss = lambda u, net=net: (net(u) ** 2).mean()
    net.metrics = lambda u: {}
    model = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), 1.0))
    users = [Dataset([torch.tensor([[m - 1.0], [m + 1.0]])], user_id=str(m)) for m in (0, 10)]
    who = iter(order)
    data = FederatedDataset(lambda i, users=users: users[i], lambda who=who: next(who))
    work = NNTrainHyperParams(local_num_epochs=1, local_learning_rate=0.1, local_batch_size=None)
    params = NNAlgorithmParams(1, 2, 2, None)
    FederatedAveraging().run(params, SimulatedBackend(data, data), model, work)
    print(order, "running_mean", net.running_mean, "the users' mean is 0.5")
