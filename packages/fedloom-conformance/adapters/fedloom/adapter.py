"""fedloom: one Experiment, of which every round's model is kept."""

from __future__ import annotations

from table import parts_of
from torch_network import module_of, state_of

import fedloom
from fedloom.data import from_clients

FRAMEWORK = f"fedloom {fedloom.__version__}"


def train(problem, method, settings):
    states = []
    work = {"lr": problem.lr, "batch": problem.batch, "epochs": problem.epochs}
    if method == "diloco":
        work |= {"optimiser": "adamw", "weight_decay": settings["decay"]}
    parts = {"cohort": [[*who] for who in problem.cohorts]} | parts_of(method, settings, problem)
    fedloom.Experiment(
        model=module_of(problem),
        data=from_clients([*problem.data], test=problem.data[0]),
        local=fedloom.Local(**work),
        weighting="examples" if problem.weights == "sizes" else "uniform",
        rounds=len(problem.cohorts),
        engine="serial",
        dtype="float64",
        evaluate=fedloom.Evaluation(every=1),
        on_evaluation=lambda row, model: states.append(state_of(model, problem)),
        **parts,
    ).run()
    return states[-len(problem.cohorts) :]
