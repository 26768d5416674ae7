"""Ranks as torchrun starts them: a process for each, which runs what stands below."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__)


class Ended(NamedTuple):
    """How a rank ended."""

    code: int
    out: str
    err: str


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def begin(
    size: int,
    *command: object,
    port: int | None = None,
    last: Sequence[str] = (),
    where: Sequence[Path] = (),
    **more: str,
) -> list[Any]:
    """Start a command, or what is called so below, as so many ranks -> their processes. last: what
    the last rank's command has more; where: the ranks' working folders.
    """
    from tiny import environment

    words = [str(c) for c in command]
    words = [str(HERE), *words] if words[0] in CALLED else words
    own = environment()
    own["PYTHONPATH"] += os.pathsep + str(HERE.parents[1])
    own |= {"WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size), "OMP_NUM_THREADS": "1"}
    own["PYTHONFAULTHANDLER"] = "1"  # a rank that aborts says where
    own |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port or free_port())} | more
    return [
        subprocess.Popen(
            [sys.executable, *words, *(last if r == size - 1 else ())],
            cwd=where[r] if where else None,
            env=own | {"RANK": str(r), "LOCAL_RANK": str(r)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for r in range(size)
    ]


def wait(processes: list[Any], seconds: float = 120) -> list[Ended]:
    """How they ended, by rank; those that have not are killed."""
    until, out = time.monotonic() + seconds, []
    for p in processes:
        try:
            said = p.communicate(timeout=max(1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            p.kill()
            said = p.communicate()
        out.append(Ended(p.returncode, *said))
    return out


def run(size: int, *command: object, seconds: float = 120, **more: Any) -> list[Ended]:
    """Start and wait."""
    return wait(begin(size, *command, **more), seconds)


# --------------------------------------------------------------------------------- in each rank
def agreement(which: str) -> None:
    """Run all cases, or a cut, on the ranks and alone; print what differs, and each case."""
    from rank_cases import ALL, CUT, differing

    for name in CUT if which == "cut" else ALL:
        for what in differing(name):
            print(f"differs: {name}: {what}", file=sys.stderr)
        if os.environ["RANK"] == "0":
            print(name)


def story(folder: str, until: str, *options: str) -> None:
    """A stateful run with a checkpoint after every round, begun or gone on with."""
    from rank_cases import stateful

    exp = stateful(int(until), *options)
    result = exp.run(folder, go_on=True)
    if os.environ["RANK"] == "0":
        print(json.dumps({"round": result.summary["rounds"], **result.summary.get("ranks", {})}))


def quick(folder: str) -> None:
    """A cut of all cases, then a run that fails at rank 1 in its fourth round."""
    agreement("cut")
    from rank_cases import stateful

    from fedloom.errors import FedloomError

    try:
        stateful(6, "client:1:3").run(folder)
    except FedloomError as error:
        print(error, file=sys.stderr)


CALLED: dict[str, Callable[..., None]] = {"agreement": agreement, "story": story, "quick": quick}

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    CALLED[sys.argv[1]](*sys.argv[2:])
