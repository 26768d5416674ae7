"""What codecs cost on a ResNet-18's 11.2 million values, beside torch.topk.

    python benchmarks/codecs.py [--repeats 9] [--values 11173962]

One thread, medians and the fastest, in milliseconds. send: what a client does with feedback (add
the residual, choose, pack, keep the rest); read: what a server does (unpack, decode). The list
alternates, so that a busy machine hits all alike; memory.py has the peaks.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable

import torch
from loops import seconds

from fedloom import FedAvg
from fedloom.compression.codecs import make_codec
from fedloom.compression.error_feedback import Forget, Residual
from fedloom.compression.link import FieldCodec, Link
from fedloom.core.layout import Layout
from fedloom.core.rng import generator
from fedloom.core.vector import rec
from fedloom.engines.base import keep_memory
from fedloom.submodels import whole

CODECS = ["topk:0.01", "topk:0.1", "topk:0.01|int8", "qsgd:127", "qsgd:7,64", "fedpaq", "sign"]
CODECS += ["natural", "int8", "bf16", "dropping:0.01", "threshold:2.6"]


def sender(text: str, d: int) -> tuple[Callable[[], object], Callable[[], object], int]:
    """-> send(), read(), bytes."""
    codec, layout = make_codec(text), Layout(("x",), ((d,),))
    feedback = Forget() if codec.unfit(d) else Residual()
    link = Link(FieldCodec(codec, feedback)).settled(FedAvg())
    up = rec(delta=torch.randn(d, generator=generator(0, "benchmark")), weight=1.0)
    _, state = link.send(up, link.init(up.delta, layout, 0), whole(layout), 0, 0, 0)
    packet, _ = link.send(up, state, whole(layout), 0, 1, 0)
    send = lambda: link.send(up, state, whole(layout), 0, 1, 0)
    return send, lambda: link.receive(packet, layout, up), len(packet["delta"])


def measured(calls: dict[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """Milliseconds of every call, taken in turn."""
    return {k: [1e3 * s for s in found] for k, found in seconds(calls, repeats).items()}


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--values", type=int, default=11_173_962)
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_memory()  # as engines do
    d = options.values
    v = torch.randn(d, generator=generator(0, "benchmark"))
    size, k = v.abs(), round(0.01 * d)
    calls: dict[str, Callable[[], object]] = {"torch.topk": lambda: torch.topk(size, k)}
    sizes = {}
    for text in CODECS:
        calls[f"send {text}"], calls[f"read {text}"], sizes[text] = sender(text, d)
    times = measured(calls, options.repeats)
    say = lambda name: f"{statistics.median(times[name]):9.1f} {min(times[name]):9.1f}"
    print(f"{d:,} values, {4 * d:,} bytes dense; median and fastest of {options.repeats}, ms")
    for name in calls:
        if not name.startswith(("send", "read")):
            print(f"{name:18} {say(name)}")
    head = ("codec", "send", "fastest", "read", "fastest", "bytes", "of dense")
    print("{:18} {:>9} {:>9} {:>9} {:>9} {:>11} {:>9}".format(*head))
    for text in CODECS:
        share = 100 * sizes[text] / (4 * d)
        print(
            f"{text:18} {say(f'send {text}')} {say(f'read {text}')} {sizes[text]:11,} {share:8.2f}%"
        )


if __name__ == "__main__":
    main()
