"""What a weak client holds and computes, by scheme and capacity: bytes and time.

    python benchmarks/submodels.py [--model resnet8|cnn_femnist] [--repeats 5]

Random images, batch 20, one core; KiB. part: of the model, which travels up; down: the message;
sgd, adam: the most bytes of tensors that exist at once in local steps; kept: between rounds, of
SCAFFOLD. ms: of a step, the median of `repeats` measurements; schemes alternate.
"""

from __future__ import annotations

import argparse
import statistics

import torch

from fedloom.algorithms import FedAvg, Scaffold
from fedloom.core.net import Net
from fedloom.core.vector import rec
from fedloom.data import from_clients
from fedloom.engines.client_results import TrainTask
from fedloom.engines.client_round import Client
from fedloom.engines.one_step import StepCost, step_costs
from fedloom.federation.federation import Federation
from fedloom.federation.local import Local
from fedloom.models import MODELS
from fedloom.objectives import CrossEntropy, SelfDistillation
from fedloom.plan import Plan
from fedloom.stage import Download
from fedloom.submodels import FIARSE, FedRolex, FjORD, HeteroFL, ScaleFL, SubModel

CAPACITIES = (1.0, 1 / 4, 1 / 16, 1 / 64)
SHAPES = {"resnet8": (3, 32, 32), "cnn_femnist": (1, 28, 28)}
RULES: dict[str, SubModel] = {
    "HeteroFL": HeteroFL(exact=False),
    "FedRolex": FedRolex(exact=False),
    "FjORD": FjORD(),
    "ScaleFL": ScaleFL(exact=False),
    "FIARSE": FIARSE(),
}


def made(
    rule: SubModel,
    options: argparse.Namespace,
    method: type[FedAvg] = FedAvg,
    optimiser: str = "sgd",
) -> tuple[Plan, Federation, Net]:
    """A federation of one client of each capacity."""
    torch.manual_seed(0)
    scale = isinstance(rule, ScaleFL)
    more = {"exits": True} if scale else {}
    net = Net(MODELS.make(options.model, **more))
    shape = SHAPES[options.model]
    one = (torch.randn(20, *shape), torch.randint(0, 10, (20,)))
    data = from_clients([one] * len(CAPACITIES))
    local = Local(steps=1, batch=20, lr=0.01, optimiser=optimiser)
    fed = Federation(data, local, capacities=CAPACITIES)
    loss, rule = SelfDistillation() if scale else CrossEntropy(), rule.settled(CAPACITIES)
    return Plan(local.around(method()), loss, submodel=rule, d=net.layout.d), fed, net


def received(plan: Plan, fed: Federation, net: Net) -> dict[float, Download]:
    """What clients of each capacity receive in round 1."""
    asked = TrainTask(rec(x=net.init()), net.init_buffers(), {}, list(range(len(CAPACITIES))), 0)
    return Client(plan, fed, net).downloads(asked)


def bytes_and_times(rules: dict[str, SubModel], options: argparse.Namespace) -> None:
    """Print what each scheme's clients hold, and how long a step takes."""
    sgd = {name: made(rule, options) for name, rule in rules.items()}
    rounds: list[dict[str, dict[float, StepCost]]] = []
    for _ in range(options.repeats):
        rounds.append({name: step_costs(*parts) for name, parts in sgd.items()})
    heads = ("part", "down", "sgd", "adam", "kept", "ms")
    print(f"{'scheme':10}{'capacity':>9}{'held':>9}" + "".join(f"{head:>9}" for head in heads))
    for name, rule in rules.items():
        adam = step_costs(*made(rule, options, optimiser="adam"))
        scaffold = step_costs(*made(rule, options, method=Scaffold))
        whole, shares = sgd[name][2].init().nbytes, received(*sgd[name])
        for p in CAPACITIES:
            cost = rounds[0][name][p]
            down = sum(shares[p].down.values())
            sizes = (cost.held, down, cost.peak, adam[p].peak, scaffold[p].kept)
            kib = "".join(f"{n / 1024:9,.0f}" for n in sizes)
            ms = 1e3 * statistics.median(found[name][p].seconds for found in rounds)
            print(f"{name:10}{p:9.4f}{cost.held / whole:9.2%}{kib}{ms:9.2f}")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=[*SHAPES], default="resnet8")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rules = {k: v for k, v in RULES.items() if k != "ScaleFL" or options.model == "resnet8"}
    bytes_and_times(rules, options)


if __name__ == "__main__":
    main()
