"""What a masked sum costs beside training: the protocol of all clients and of the server, in one
process, and the bytes on the wire.

    python benchmarks/masked_sums.py --clients 10 --values 1000000 --record masked_sums.json
    python benchmarks/masked_sums.py --clients 100 --threshold 0.9 [--complete]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import numpy as np

from fedloom.aggregation import IntegerRing
from fedloom.aggregation.integer_ring import Needed
from fedloom_flower.masked_sums import Identity, MaskingClient, UnmaskingServer, new_session

MODEL = bytes(32)


def once(clients: int, values: int, vanish: int, needed: Needed) -> dict[str, float]:
    """Seconds of the processor for each part of a sum, all clients together; bytes of a client."""
    own = Identity.rehearsed(clients)
    session, begin = new_session("benchmark", 0, range(clients), needed)
    draw = np.random.default_rng(0)
    rows = [draw.integers(0, 2**64, values, dtype=np.uint64) for _ in range(clients)]
    server, out, at = (
        UnmaskingServer(session, values, MODEL),
        dict[str, float](),
        time.process_time(),
    )

    def lap(name: str) -> None:
        nonlocal at
        out[name] = time.process_time() - at
        at = time.process_time()

    out["neighbours"] = needed.degree
    at = time.process_time()
    members = [MaskingClient(session, i, own[i]) for i in range(clients)]
    keys = [member.keys() for member in members]
    for i, raw in enumerate(keys):
        server.take_keys(i, raw)
    lap("keys")
    came = range(clients - vanish)
    masked = [members[i].masked(server.keys_for(i), rows[i], MODEL) for i in came]
    for i, raw in zip(came, masked, strict=True):
        server.take_masked(i, raw)
    lap("masking")
    shares = [members[i].unmask(server.received()) for i in came]
    for i, raw in zip(came, shares, strict=True):
        server.take_shares(i, raw)
    found = server.sum()
    lap("unmasking")
    assert (found == np.sum([rows[i] for i in came], axis=0, dtype=np.uint64)).all()
    out["protocol"] = out["keys"] + out["masking"] + out["unmasking"]
    out["up"] = len(keys[0]) + len(masked[0]) + len(shares[0])
    out["up_over_dense"] = out["up"] / (8 * values)
    out["down_beside_broadcast"] = len(begin) + len(server.keys_for(0)) + len(server.received())
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--values", type=int, default=10**6)
    parser.add_argument("--threshold", type=float, default=0.6)
    parser.add_argument("--complete", action="store_true", help="all others are neighbours")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--record", type=Path)
    given = parser.parse_args()
    needed = IntegerRing(secure=True, threshold=given.threshold).needed(given.clients)
    if given.complete:
        needed = Needed(needed.clients, given.clients - 1, needed.clients)
    record = {}
    for vanish in (0, given.clients - needed.clients):
        runs = [once(given.clients, given.values, vanish, needed) for _ in range(given.repeats)]
        record[f"{vanish} of {given.clients} vanish"] = {
            name: round(statistics.median(run[name] for run in runs), 4) for name in runs[0]
        }
    print(json.dumps(record, indent=1))
    if given.record:
        given.record.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
