"""Whether equal bits with one thread and with several are a matter of shapes alone.

    python benchmarks/threads.py [--threads 2 4] [--draws 6]

engines/threads.py takes several threads for a shape whose steps had equal bits three times. That is
right if an operation either always has equal bits for a shape, or almost never. Every operation
that a step does on many clients is done here on random numbers, `--draws` times each, and counted:
always equal, never, or mixed. A mixed one whose first three draws are equal would pass the check
and change bits later; it is printed.
"""

from __future__ import annotations

import argparse
import itertools
from collections import Counter
from collections.abc import Callable

import torch
from torch import Tensor, nn

CLIENTS, BATCHES, LAYERS = (5, 16, 50), (1, 7, 20, 50), ((784, 10), (64, 10), (100, 33), (784, 128))
Operation = Callable[[Tensor, Tensor], Tensor]
BATCHED: dict[str, Operation] = {  # inputs (C, B, D), weights (C, H, D)
    "products": lambda x, w: torch.bmm(x, w.transpose(1, 2)),
    "products of gradients": lambda x, w: torch.bmm((x @ w.transpose(1, 2)).transpose(1, 2), x),
    "products with one model": lambda x, w: x @ w[0].t(),
    "sum over batches": lambda x, w: x.sum(1),
    "sum over entries": lambda x, w: x.sum(2),
    "sum over clients": lambda x, w: w.sum(0),
    "sum of all": lambda x, w: x.sum((1, 2)),
    "norms": lambda x, w: w.flatten(1).norm(dim=1),
    "softmax": lambda x, w: x.log_softmax(2),
}


def convolution(x: Tensor, w: Tensor) -> Tensor:
    """The gradient of grouped convolutions, a group for each client: images (C, B, 1, 28, 28)."""
    clients, batch = x.shape[:2]
    kernels = w[:, :8, :25].reshape(clients * 8, 1, 5, 5).clone().requires_grad_()
    images = x[..., :784].view(clients, batch, 28, 28).transpose(0, 1)
    loss = nn.functional.conv2d(images, kernels, groups=clients).square().sum()
    return torch.autograd.grad(loss, kernels)[0]


def verdict(do: Operation, shape: tuple[int, ...], threads: int, draws: int) -> list[bool]:
    """Whether the bits were equal, draw by draw."""
    clients, batch, wide, high = shape
    found = []
    for _ in range(draws):
        given = torch.randn(clients, batch, wide), torch.randn(clients, high, wide)
        torch.set_num_threads(1)
        one = do(*given)
        torch.set_num_threads(threads)
        found.append(torch.equal(one, do(*given)))
    return found


def main() -> None:
    """Print a line for each operation."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--threads", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--draws", type=int, default=6)
    options = parser.parse_args()
    torch.manual_seed(0)
    for name, do in [*BATCHED.items(), ("convolutions", convolution)]:
        counts: Counter[str] = Counter()
        for c, b, (d, h), threads in itertools.product(CLIENTS, BATCHES, LAYERS, options.threads):
            if name == "convolutions" and (d < 784 or c > 16):
                continue
            found = verdict(do, (c, b, d, h), threads, options.draws)
            counts["equal" if all(found) else "mixed" if any(found) else "never"] += 1
            if any(found) and not all(found):
                print(f"  {name}, {c} x {b} x {d} -> {h}, {threads} threads: {found}")
        print(f"{name:26} {dict(counts)}", flush=True)


if __name__ == "__main__":
    main()
