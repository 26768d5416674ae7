"""Rounds of FedAvg in another system, as its own documentation has them; `rounds.py` starts this
file in that system's environment.

    PYTHON benchmarks/peer_rounds.py pfl W1 ADDRESS

A peer calls `turns.end_of_round()` after every round, from the hook that it has for evaluation;
there it waits until it is this contender's turn again.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from multiprocessing.connection import Client
from types import SimpleNamespace
from typing import Any

import torch
from rounds import WORKS, Work, clients, model
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedloom import Evaluation, Experiment, FedAvg
from fedloom.federation.sampling import ClientSampler

ROUNDS = 10_000  # more than anybody waits for: the driver ends the process


class Turns:
    """The line to the driver: a number starts a round, its seconds are the answer."""

    def __init__(self, address: str) -> None:
        self.pipe = Client(address)
        self.pipe.send("")
        self.began = 0.0

    def end_of_round(self) -> None:
        """Answer with the round's seconds, and wait; the first call only waits."""
        if self.began:
            self.pipe.send(time.perf_counter() - self.began)
        self.pipe.recv()
        self.began = time.perf_counter()


# ------------------------------------------------------------------------------------------ ours
def ranks(name: str, address: str) -> None:
    """fedloom itself under torchrun: a rank takes a part of every cohort."""
    work = WORKS[name]
    turns = Turns(address) if os.environ["RANK"] == "0" else None
    if turns:
        turns.end_of_round()
    torch.manual_seed(0)
    parts: dict[str, Any] = {"data": work.data(), "model": work.model, "local": work.local}
    never = Evaluation(every=0, clients=False)
    Experiment(
        algorithm=FedAvg(),
        engine="serial",
        cohort=work.cohort,
        rounds=ROUNDS,
        metrics={},
        evaluate=never,
        device="cpu",
        on_round=lambda _: turns.end_of_round() if turns else None,  # of rank 0, others wait
        **parts,
    ).run()


# ------------------------------------------------------------------------------------------- pfl
def pfl(name: str, address: str) -> None:
    """Its simulated backend; under torchrun each process takes a part of the cohort."""
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByDatapoints
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.metrics import Metrics, Weighted
    from pfl.model.pytorch import PyTorchModel

    work, first = WORKS[name], os.environ.get("RANK", "0") == "0"
    turns = Turns(address) if first else None

    class Hook(TrainingProcessCallback):
        def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
            if turns:
                turns.end_of_round()
            if torch.distributed.is_initialized():
                torch.distributed.barrier()  # or the others begin the next round before its turn
            return False, Metrics()

    module: Any = model(name)
    module.loss = lambda inputs, targets: cross_entropy(module(inputs), targets)
    module.metrics = lambda inputs, targets: {"users": Weighted(1, 1)}
    trained = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    users = [Dataset([*pair], user_id=str(i)) for i, pair in enumerate(clients(name))]
    cohorts = ClientSampler(work.cohort, work.clients)
    order = itertools.chain.from_iterable(cohorts.of(t) for t in itertools.count())
    data = FederatedDataset(lambda i: users[i], lambda: next(order))
    epochs = None if work.local.steps else int(work.local.epochs or 1)
    training = NNTrainHyperParams(
        local_num_epochs=epochs,
        local_num_steps=work.local.steps,
        local_learning_rate=work.local.lr,
        local_batch_size=work.local.batch,
    )
    # no round is evaluated: the frequency is beyond the last
    parameters = NNAlgorithmParams(ROUNDS, ROUNDS + 1, work.cohort, None)
    backend = SimulatedBackend(data, data, [WeightByDatapoints()])
    if turns:
        turns.end_of_round()
    FederatedAveraging().run(parameters, backend, trained, training, callbacks=[Hook()])


# ------------------------------------------------------------------------------------------ flwr
def train_with_torch(work: Work, module: nn.Module, pair: tuple[Tensor, Tensor]) -> None:
    """A client's loop, as Flower's PyTorch quickstart writes it: torch's own DataLoader."""
    dataset = torch.utils.data.TensorDataset(*pair)
    loader = torch.utils.data.DataLoader(dataset, batch_size=work.local.batch, shuffle=True)
    optimiser, steps = torch.optim.SGD(module.parameters(), lr=work.local.lr), 0
    module.train()
    for _ in range(1 if work.local.steps else int(work.local.epochs or 1)):
        for inputs, targets in loader:
            optimiser.zero_grad()
            cross_entropy(module(inputs), targets).backward()
            optimiser.step()
            steps += 1
            if steps == work.local.steps:
                return


def flwr(name: str, address: str) -> None:
    """Its simulation on Ray, a processor for each client, FedAvg of flwr.serverapp."""
    import ray
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    turns, work = Turns(address), WORKS[name]
    app, server = ClientApp(), ServerApp()

    @app.train()
    def train(message, context):
        torch.set_num_threads(1)
        module = model(name)
        module.load_state_dict(message.content["arrays"].to_torch_state_dict())
        pair = clients(name)[int(context.node_config["partition-id"])]
        train_with_torch(work, module, pair)
        metrics = MetricRecord({"num-examples": len(pair[0])})
        reply = {"arrays": ArrayRecord(module.state_dict()), "metrics": metrics}
        return Message(content=RecordDict(reply), reply_to=message)

    @server.main()
    def main(grid, context):
        part = work.cohort / work.clients
        least = {"min_train_nodes": work.cohort, "min_available_nodes": work.clients}
        strategy = FedAvg(fraction_train=part, fraction_evaluate=0.0, **least)
        hook = lambda round, arrays: turns.end_of_round()  # before the first round, too
        start = ArrayRecord(model(name).state_dict())
        strategy.start(grid, start, num_rounds=ROUNDS, evaluate_fn=hook)

    machine = {"num_cpus": 2, "include_dashboard": False}
    backend = {"client_resources": {"num_cpus": 1}, "init_args": machine}
    run_simulation(server, app, num_supernodes=work.clients, backend_config=backend)
    ray.shutdown()


# ----------------------------------------------------------------------------------------- fluke
def fluke(name: str, address: str) -> None:
    """Its FedAvg, in one process. It has no number of steps: each client has as many of its own
    examples as these need.
    """
    if sys.platform == "linux" and torch.version.cuda is None:
        for operator in ("nms", "qnms"):  # torchvision's one build for Linux is for CUDA
            torch.library.define(
                f"torchvision::{operator}", "(Tensor a, Tensor b, float c) -> Tensor"
            )
    from fluke import DDict
    from fluke.algorithms import CentralizedFL
    from fluke.data import FastDataLoader

    turns, work = Turns(address), WORKS[name]
    batch = work.local.batch or work.each
    most = batch * work.local.steps if work.local.steps else work.each
    many = {"num_labels": work.classes, "batch_size": batch, "skip_singleton": False}
    loaders = [FastDataLoader(u[:most], t[:most], **many) for u, t in clients(name)]
    given = SimpleNamespace(assign=lambda *_: ((loaders, [None] * len(loaders)), None))
    epochs = 1 if work.local.steps else int(work.local.epochs or 1)
    client = {"loss": nn.CrossEntropyLoss, "local_epochs": epochs, "batch_size": batch}
    client["optimizer"] = DDict(name="SGD", lr=work.local.lr)
    client["scheduler"] = DDict(name="StepLR", step_size=1, gamma=1)
    hyper = DDict(model=model(name), client=DDict(**client), server=DDict(weighted=True))
    run = CentralizedFL(len(loaders), given, hyper)
    aggregate = run.server.aggregate

    def aggregate_and_wait(eligible, models):
        aggregate(eligible, models)
        turns.end_of_round()

    run.server.aggregate = aggregate_and_wait
    turns.end_of_round()
    run.run(ROUNDS, work.cohort / work.clients)


if __name__ == "__main__":
    {"ranks": ranks, "pfl": pfl, "flwr": flwr, "fluke": fluke}[sys.argv[1]](
        sys.argv[2], sys.argv[3]
    )
