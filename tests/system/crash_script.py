"""A run to be killed, in a process of its own."""

import os

import torch

from fedloom import Checkpoint, Evaluation, Experiment, Local
from fedloom.algorithms import FAFED, Scaffold
from fedloom.checks.tiny_federation import CAPACITIES, SIZES, federation, network
from fedloom.compression.codecs import TopK
from fedloom.compression.error_feedback import Residual
from fedloom.compression.link import FieldCodec
from fedloom.federation.schedules import Exponential, FAFEDTheory
from fedloom.objectives import MOON
from fedloom.submodels import FIARSE
from fedloom.wrappers import Lookahead
from tiny import clusters, mlp, timeless, weights

ROUNDS = 60
SHORT = 24  # of the kinds with everything on


def kinds(kind):
    """What a kind has instead of plain SCAFFOLD; all of it with dropout between the layers.

    everything: control variates and a look-ahead, MOON's previous models, FIARSE's masks, top-k
    with a residual. fafed: Theorem 2's rates and factors per step, previous points, top-k on delta
    and momentum.
    """
    if kind == "scaffold":
        return {}
    half = {"model": network, "data": federation(torch.float32), "resident_bytes": 6000}
    half["compress"] = FieldCodec(TopK(ratio=0.2), Residual())
    if kind == "everything":
        return half | {
            "algorithm": Lookahead(inner=Scaffold(), lam=0.5),
            "objective": MOON(),
            "submodel": FIARSE(),
            "capacities": CAPACITIES,
        }
    assert kind == "fafed"
    schedule = FAFEDTheory(N=len(SIZES), q=4, rho=1.0)
    return half | {
        "algorithm": FAFED(c=schedule.c),
        "local": Local(steps=4, batch=4, lr=1.0, schedule=schedule, probe_batch=8),
    }


def experiment(engine="serial", rounds=0, kind="scaffold", **changes):
    """A run with client memory, a checkpoint every other round."""
    settings = {
        "algorithm": Scaffold(),
        "model": mlp(),
        "data": clusters(),
        "rounds": rounds or (ROUNDS if kind == "scaffold" else SHORT),
        "cohort": 4,
        "local": Local(epochs=1, batch=4, lr=0.05, schedule=Exponential(decay=0.99)),
        "seed": 5,
        "engine": engine,
        "device": "cpu",
        "evaluate": Evaluation(every=10),
        "checkpoint": Checkpoint(every_rounds=2, every_seconds=None),
        "resident_bytes": 2000,
    }
    return Experiment(**(settings | kinds(kind) | changes))


def agree(one, other):
    """Assert that two runs came to the same, bit for bit."""
    assert weights(one.model) == weights(other.model)
    assert timeless(one.history) == timeless(other.history)
    assert timeless(one.ledger.as_dict()) == timeless(other.ledger.as_dict())


def main(told, errors, folder, engine, kind):
    """Go on in the folder, or begin if there is nothing to go on from. told gets the number of
    every round that is done; errors is the file that stderr becomes.
    """
    os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    exp = experiment(engine, kind=kind, on_round=[lambda row: told.send(row["round"])])
    if (folder / "fingerprint.json").exists():
        exp.resume(folder)
    else:
        exp.run(folder)
