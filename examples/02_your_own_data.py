"""Your own arrays, one pair per client; your own module, loss and metric."""

import torch
from torch import Tensor, nn

from fedloom import Experiment, Local
from fedloom.algorithms import Scaffold
from fedloom.data import from_clients, heart

hospitals = heart()  # four hospitals; the arrays may be yours: measurements (n, 13), ill (n, 1)
clients = {}
for i, name in enumerate(hospitals.client_names):
    measured, ill = hospitals.client(i)
    clients[name] = measured.numpy(), ill[:, None].float().numpy()
assert hospitals.test_inputs is not None and hospitals.test_targets is not None
test = hospitals.test_inputs.numpy(), hospitals.test_targets[:, None].float().numpy()


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy in which an ill patient counts twice."""
    twice = torch.tensor([2.0])
    return nn.functional.binary_cross_entropy_with_logits(outputs, targets, pos_weight=twice)


result = Experiment(
    algorithm=Scaffold(),
    model=lambda: nn.Linear(13, 1),
    data=from_clients(clients, test=test),
    rounds=20,
    local=Local(steps=10, batch=16, lr=0.05),
    objective=loss,
    metrics={"recognised": lambda outputs, targets: ((outputs > 0) == (targets > 0)).float()},
    higher_is_better=True,
).run()
print(f"accuracy {result.last:.3f} on the test patients of all hospitals")
