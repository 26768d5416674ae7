"""What a weak client holds and computes, by scheme and capacity: bytes, time, and layer by layer.

    python benchmarks/submodels.py [--model resnet8|cnn_femnist] [--repeats 5] [--processor]
                                   [--layers [--weights FILE.safetensors]] [--device cpu]

Random images, batch 20, one core; KiB. part: of the model, which travels up; down: the message;
sgd, adam: the most bytes of tensors that exist at once in local steps; kept: between rounds, of
SCAFFOLD. ms: of a step, the median of `repeats` measurements; schemes alternate. --processor:
processor time, which other work changes less. --layers: what of each layer is held, how many rows
(outputs) and columns (inputs) hold nothing, at the first weights or those of a run (`fedloom export
RUN --format safetensors`).
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
from safetensors.torch import load_file

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
    net = Net(MODELS.make(options.model, **more)).to(options.device)
    if options.weights and not scale:
        net.start_from(load_file(options.weights))
    shape = SHAPES[options.model]
    one = (torch.randn(20, *shape), torch.randint(0, 10, (20,)))
    data = from_clients([tuple(t.to(options.device) for t in one)] * len(CAPACITIES))
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


def layers(rule: SubModel, options: argparse.Namespace) -> None:
    """Print what of each layer is held, and how many of its rows and columns are empty."""
    plan, fed, net = made(rule, options)
    x, shares = net.init(), received(plan, fed, net)
    print(f"{rule.name}: held, and rows and columns that hold nothing")
    small = CAPACITIES[1:]
    print(f"{'layer':28}{'weights':>10}" + "".join(f"{p:>24.4f}" for p in small))
    marks = {p: torch.zeros_like(x).index_fill_(0, shares[p].view.held, 1.0) for p in small}
    for i, (name, shape) in enumerate(zip(net.layout.names, net.layout.shapes, strict=True)):
        if len(shape) < 2:
            continue
        cells = ""
        for p in small:
            held = net.layout.pieces(marks[p])[i].reshape(shape[0], shape[1], -1).sum(2)
            rows, columns = (float((held.sum(axis) == 0).float().mean()) for axis in (1, 0))
            share = float(held.sum()) / net.layout.sizes[i]
            cells += f"{share:8.1%}{rows:8.0%}{columns:8.0%}"
        print(f"{name:28}{net.layout.sizes[i]:10,}{cells}")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=[*SHAPES], default="resnet8")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--weights")
    parser.add_argument("--layers", action="store_true")
    parser.add_argument("--processor", action="store_true")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    if options.processor:
        time.perf_counter = time.process_time
    torch.set_num_threads(1)
    rules = {k: v for k, v in RULES.items() if k != "ScaleFL" or options.model == "resnet8"}
    if options.layers:
        layers(RULES["FIARSE"], options)
    else:
        bytes_and_times(rules, options)


if __name__ == "__main__":
    main()
