"""pfl 0.6.0, SCAFFOLD: the sign of c_i in both options, and the server's c in option II.

One client of one, loss (x - 3)^2 / 2, from x = 1: the gradient is -2. arXiv 1910.06378, Algorithm
1, line 12 has c_i+ = -2 in option I, and in II after one step from zeros; line 17 makes c = -2.
"""

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.scaffold import SCAFFOLD, SCAFFOLDParams
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.user_state import InMemoryUserStateStorage
from pfl.hyperparam import NNTrainHyperParams
from pfl.model.pytorch import PyTorchModel

for option in (1, 2):
    net = torch.nn.Linear(1, 1, bias=False)
    net.weight.data.fill_(1.0)
    net.loss = lambda u, t, net=net: ((net(u) - t) ** 2).mean() / 2
    net.metrics = lambda u, t: {}
    model = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), 1.0))
    user = Dataset([torch.ones(1, 1), torch.full((1, 1), 3.0)], user_id="0")
    data = FederatedDataset(lambda _, user=user: user, lambda: 0)
    store, method = InMemoryUserStateStorage(), SCAFFOLD()
    params = SCAFFOLDParams(1, 2, 1, None, 1, option == 1, store)
    work = NNTrainHyperParams(local_num_epochs=1, local_learning_rate=0.1, local_batch_size=None)
    method.run(params, SimulatedBackend(data, data), model, work)
    print(
        option, "c_i", store.load_state("0", "local_c")["weight"], "c", method._server_c["weight"]
    )
