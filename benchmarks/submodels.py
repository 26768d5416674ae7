"""What a step of a sub-model costs: time, memory and bytes of a message, by capacity and rule.

    python benchmarks/submodels.py [--repeats 15] [--batch 20] [--device cpu]

LEAF's FEMNIST network (6,603,710 parameters; for ScaleFL FAFED's Fashion-MNIST network eight times
as wide, with exits), random images. Milliseconds: the median of one local step; rules alternate.
Memory: what a step holds at its peak: model, gradient, and what the forward pass keeps for the
backward one; on a GPU, torch's own count. Bytes: the messages of one round, as they are billed.
"""

from __future__ import annotations

import argparse
import statistics
from functools import partial

import torch
from loops import seconds
from torch import Tensor

from fedloom.algorithms import FedAvg
from fedloom.core.net import Net
from fedloom.core.vector import Vec, rec
from fedloom.data import from_clients
from fedloom.engines.client_results import Asked
from fedloom.engines.client_round import Client
from fedloom.federation.federation import Federation
from fedloom.federation.local import Local
from fedloom.models import cnn_fafed_fashion, cnn_femnist
from fedloom.objectives import CrossEntropy, SelfDistillation
from fedloom.plan import Plan
from fedloom.stage import Share
from fedloom.submodels import FIARSE, FedRolex, FjORD, HeteroFL, Rule, ScaleFL

CAPACITIES = (1.0, 1 / 4, 1 / 16, 1 / 64)


def client_of(rule: Rule, batch: int, device: str) -> Client:
    """One client for each capacity, with a batch of random images."""
    torch.manual_seed(0)
    shallow = isinstance(rule, ScaleFL)
    model = cnn_fafed_fashion(classes=62, widen=8, exits=True) if shallow else cnn_femnist()
    net = Net(model).to(device)
    one = (torch.randn(batch, 1, 28, 28).to(device), torch.randint(0, 62, (batch,)).to(device))
    data = from_clients([one] * len(CAPACITIES))
    objective = SelfDistillation() if shallow else CrossEntropy()
    fed = Federation(data, Local(steps=1, batch=batch, lr=0.01), capacities=CAPACITIES)
    plan = Plan(FedAvg(), objective, rule=rule.settled(CAPACITIES), d=net.layout.d)
    return Client(plan, fed, net)


def synchronise(device: str) -> None:
    """Wait until a GPU has done what it was given."""
    if device != "cpu":
        torch.cuda.synchronize()


def memory(client: Client, share: Share, i: int, device: str) -> float:
    """Bytes that a step holds at its peak."""
    x: Vec = share.msg.x
    first = client.first_memory(client.net.init(), i, share.view)
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        client.train(share, first, i, 0)
        return float(torch.cuda.max_memory_allocated() - before)
    kept: dict[int, int] = {}

    def note(t: Tensor) -> Tensor:
        kept[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
        client.train(share, first, i, 0)
    return float(sum(kept.values()) + 2 * x.nbytes)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--batch", type=int, default=20)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rules: list[Rule] = [HeteroFL(), FedRolex(), FjORD(), ScaleFL(), FIARSE()]
    clients = {rule.name: client_of(rule, options.batch, options.device) for rule in rules}
    shares = {}
    for name, client in clients.items():
        x, cohort = client.net.init(), list(range(len(CAPACITIES)))
        found = client.shares(Asked(rec(x=x), x[:0], {}, cohort, 0))
        shares[name] = [found[c] for c in CAPACITIES]

    places = [(name, i) for name in clients for i in range(len(CAPACITIES))]
    first = {
        (name, i): clients[name].first_memory(clients[name].net.init(), i, shares[name][i].view)
        for name, i in places
    }

    def step(name: str, i: int) -> None:
        clients[name].train(shares[name][i], first[name, i], i, 0)
        synchronise(options.device)

    times = seconds({place: partial(step, *place) for place in places}, options.repeats)
    print(
        f"{'rule':10} {'capacity':>9} {'held':>7} {'ms':>8} {'MiB':>8} "
        f"{'KiB down':>9} {'KiB up':>8}"
    )
    for name, client in clients.items():
        for i, share in enumerate(shares[name]):
            view = client.plan.rule.view(client.net.init(), client.net, CAPACITIES[i], 0)
            held = view.layout.d / client.net.layout.d
            print(
                f"{name:10} {CAPACITIES[i]:9.4f} {held:7.2%} "
                f"{1e3 * statistics.median(times[name, i]):8.2f} "
                f"{memory(client, share, i, options.device) / 2**20:8.1f} "
                f"{sum(share.down.values()) / 1024:9.1f} {share.msg.x.nbytes / 1024:8.1f}"
            )


if __name__ == "__main__":
    main()
