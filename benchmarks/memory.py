"""What codecs add to the peak memory of a round: a ResNet-18's 11.2 million values, FedAvg.

    python benchmarks/memory.py [--clients 4] [--rounds 2] [--codecs topk:0.1 sign] [--live]
        [--width 10000]

Every line is a process of its own: one linear layer of 3345 x 3345 and its bias (--width: another),
all clients take part, one step of two examples each. Codecs go with residual feedback, or with none
where it would not converge. peak: the most that the process held in the rounds, less what it held
after the imports, in vectors of the model's length (45 MB); over: that, over the same without a
codec; kept: of it, what clients remember between rounds, which is feedback's and no codec's.
Engines ask the C library to keep freed vectors for the next ones; the gaps between these differ by
two vectors from run to run. --live: without that, and with every vector in pages of its own: the
peak is what is in use, the same in every run. Linux only.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

NONE = "none"
CODECS = ["topk:0.01", "topk:0.1", "topk:0.5", "topk:0.1,layer", "topk:0.01|int8", "qsgd:127"]
CODECS += ["qsgd:7,64", "fedpaq", "sign", "natural", "int8", "fp16", "bf16", "dropping:0.01"]
CODECS += ["dropping:0.5", "threshold:0.0001", "powersgd:2"]


def values(width: int) -> int:
    """The length of the model."""
    return (width + 1) * width


def field(name: str) -> int:
    """A line of /proc/self/status in bytes."""
    with open("/proc/self/status") as file:
        return int(file.read().split(f"{name}:")[1].split()[0]) * 1024


def child(text: str, options: argparse.Namespace) -> None:
    """Run the rounds, and print peak and what the clients remember, in bytes."""
    import torch

    import fedloom.engines.serial
    from fedloom import Experiment
    from fedloom.algorithms import FedAvg
    from fedloom.compression.codecs import make_codec
    from fedloom.compression.error_feedback import Forget, Residual
    from fedloom.compression.link import FieldCodec
    from fedloom.core.vector import leaves
    from fedloom.data import from_clients
    from fedloom.federation.local import Local

    width, clients, rounds = options.width, options.clients, options.rounds
    if options.live:
        fedloom.engines.serial.keep_memory = lambda: None
    torch.set_num_threads(1)
    torch.manual_seed(0)
    imported = field("VmRSS")
    data = from_clients([(torch.randn(2, width), torch.tensor([0, 1])) for _ in range(clients)])
    via = None
    if text != NONE:
        codec = make_codec(text)
        via = FieldCodec(codec, Forget() if codec.unfit(values(width)) else Residual())
    loop = Experiment(
        algorithm=FedAvg(),
        model=lambda: torch.nn.Linear(width, width),
        data=data,
        rounds=rounds,
        local=Local(steps=1, batch=2, lr=0.1),
        compress=via,
        metrics={},
    ).build()
    loop.engine.open(loop.plan, loop.fed, loop.net)
    loop.begin()
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the peak begins anew
    loop.until(rounds)
    peak = field("VmHWM") - imported
    kept = sum(
        v.nbytes
        for row in loop.memory.get(range(clients)).values()
        for v in leaves(row)
        if isinstance(v, torch.Tensor)
    )
    print(peak, kept)


def measured(text: str, options: argparse.Namespace) -> tuple[float, float]:
    """-> peak and kept in vectors."""
    fixed = dict.fromkeys(("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"), "131072")
    environment = os.environ | (fixed if options.live else {})
    command = [sys.executable, __file__, "--child", text, *["--live"][: options.live]]
    for name in ("clients", "rounds", "width"):
        command += [f"--{name}", str(getattr(options, name))]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        sys.exit(f"{text}: {done.stderr}")
    peak, kept = (int(n) / (4 * values(options.width)) for n in done.stdout.split())
    return peak, kept


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--width", type=int, default=3345)
    parser.add_argument("--live", action="store_true")
    parser.add_argument("--codecs", nargs="*", default=CODECS)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child, options)
        return
    base, _ = measured(NONE, options)
    d = values(options.width)
    print(f"{d:,} values, {options.clients} clients, {options.rounds} rounds; vectors of 4 d bytes")
    print(f"{'codec':16} {'peak':>6} {'over':>6} {'kept':>6}\n{NONE:16} {base:6.2f}")
    for text in options.codecs:
        peak, kept = measured(text, options)
        print(f"{text:16} {peak:6.2f} {peak - base:6.2f} {kept:6.2f}", flush=True)


if __name__ == "__main__":
    main()
