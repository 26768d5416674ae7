"""pfl 0.6.0, SCAFFOLD, option I: the c_i of all users are the same memory.

Two users with the loss (x - b)^2 / 2, b = 3 and -5, from x = 1: their gradients are -2 and 6. The
state that is kept of both is the last one's, because get_model_difference writes into one buffer
of the model, which InMemoryUserStateStorage keeps as it is.
"""

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.scaffold import SCAFFOLD, SCAFFOLDParams
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.user_state import InMemoryUserStateStorage
from pfl.hyperparam import NNTrainHyperParams
from pfl.model.pytorch import PyTorchModel

net = torch.nn.Linear(1, 1, bias=False)
net.weight.data.fill_(1.0)
net.loss, net.metrics = lambda u, t: ((net(u) - t) ** 2).mean() / 2, lambda u, t: {}
model = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), 1.0))
users = [Dataset([torch.ones(1, 1), torch.full((1, 1), b)], user_id=str(b)) for b in (3.0, -5.0)]
order = iter(users)
data = FederatedDataset(lambda user: user, lambda: next(order))
store = InMemoryUserStateStorage()
params = SCAFFOLDParams(1, 2, 2, None, 2, True, store)
work = NNTrainHyperParams(local_num_epochs=1, local_learning_rate=0.1, local_batch_size=None)
SCAFFOLD().run(params, SimulatedBackend(data, data), model, work)
kept = [store.load_state(user.user_id, "local_c")["weight"] for user in users]
print(kept, "same memory:", kept[0].data_ptr() == kept[1].data_ptr())
