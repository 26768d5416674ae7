"""fluke: its algorithms' own servers and clients."""

from importlib.metadata import version
from types import SimpleNamespace

import torch
from fluke import DDict
from fluke.data import FastDataLoader
from table import parts_of
from torch_network import module_of, state_of, tensors_of

FRAMEWORK = f"fluke-fl {version('fluke-fl')}"


def train(problem, method, settings):
    kind, server, client = parts_of(method, settings)
    how = {"num_labels": 1, "batch_size": problem.batch, "skip_singleton": False}
    loaders = [FastDataLoader(u, t, **how) for u, t in tensors_of(problem)]
    given = SimpleNamespace(assign=lambda *_: ((loaders, [None] * len(loaders)), None))
    client |= {"loss": torch.nn.MSELoss, "local_epochs": problem.epochs, "batch_size": 0}
    client["optimizer"] = DDict(name="SGD", lr=problem.lr)
    client["scheduler"] = DDict(name="StepLR", step_size=1, gamma=1)
    server["weighted"] = problem.weights == "sizes"
    hyper = DDict(model=module_of(problem), client=DDict(**client), server=DDict(**server))
    run = kind(len(loaders), given, hyper)
    states, aggregate = [], run.server.aggregate

    def seen(eligible, models):
        aggregate(eligible, models)
        model = getattr(run.server, "cld_mdl", run.server.model)  # FedDyn broadcasts that one
        states.append(state_of(model, problem))

    who = lambda _: [run.clients[i] for i in problem.cohorts[len(states)]]
    run.server.get_eligible_clients, run.server.aggregate = who, seen
    run.finalize = lambda: None
    run.run(len(problem.cohorts), 1.0)
    return states
