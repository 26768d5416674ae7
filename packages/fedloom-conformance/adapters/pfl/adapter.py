"""pfl: its simulated backend on PyTorch models."""

from importlib.metadata import version
from itertools import chain

import table
from pfl.aggregate.simulate import SimulatedBackend
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch.nn.functional import mse_loss
from torch_network import module_of, state_of, tensors_of

FRAMEWORK = f"pfl {version('pfl')}"


class Recorder(TrainingProcessCallback, list):
    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        self.append(state_of(model.pytorch_model, self.problem))
        return False, Metrics()


def train(problem, method, settings):
    make, module, states = table.server_of(method, settings), module_of(problem), Recorder()
    states.problem = problem
    module.loss = lambda u, t: mse_loss(module(u), t)
    module.metrics = lambda u, t: {"users": Weighted(1, 1)}
    model = PyTorchModel(module, table.client_of(method, settings), make(module.parameters()))
    clients = [Dataset([*pair], user_id=str(i)) for i, pair in enumerate(tensors_of(problem))]
    order = chain.from_iterable(problem.cohorts)
    data = FederatedDataset(lambda i: clients[i], lambda: next(order))
    backend = SimulatedBackend(data, data, table.postprocessors_of(method, settings, problem))
    algorithm, parameters = table.algorithm_of(method, settings, problem)
    work = {"local_num_epochs": problem.epochs, "local_learning_rate": problem.lr}
    work = NNTrainHyperParams(local_batch_size=problem.batch, **work)
    algorithm.run(parameters, backend, model, work, callbacks=[states])
    return states
