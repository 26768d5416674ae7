"""Sites of a federation on one machine: memory and processor of every process, seconds of rounds.

    python benchmarks/sites.py FOLDER [--sites 10] [--rounds 200] [--every 20] [--record sites.json]

In an environment with Flower (`nox -s test-flower` makes .nox/test-flower). The federation is the
tutorial's: `fedloom deploy new digits`, a server and a node for each site with the commands of
users, over TLS. Memory is that of /proc/PID/smaps_rollup: resident, and proportional, in which what
several processes share is counted once. Linux only.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

FEDLOOM = [str(Path(sys.executable).with_name("fedloom")), "deploy"]
# a word of a command line: what the process is
KINDS = {
    "flower-supernode": "node: connection",
    "flower_app.executor": "node: executor",
    "deploy node": "node: fedloom",
    "flower_app.superlink": "server: Flower",
    "flwr-serverapp": "server: rounds",
    "deploy server": "server: command",
}
# by kind: resident and proportional bytes, and seconds of a processor, of each
Look = dict[str, list[tuple[int, int, float]]]
TICKS = os.sysconf("SC_CLK_TCK")


def look_at(name: str) -> Look:
    """All processes of a federation. name: of its folder, in their commands. The seconds are with
    those of a process's forks that have ended.
    """
    found: Look = {}
    for path in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError, StopIteration):
            words = (path / "cmdline").read_text().replace("\0", " ")
            around = (path / "environ").read_bytes()
            if name.encode() not in around and name not in words:
                continue
            kind = next(kind for word, kind in KINDS.items() if word in words)
            lines = (path / "smaps_rollup").read_text().splitlines()
            sizes = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines[1:]}
            times = (path / "stat").read_text().rpartition(")")[2].split()[11:15]
            seconds = sum(map(int, times)) / TICKS
            found.setdefault(kind, []).append((sizes["Rss"], sizes["Pss"], seconds))
    return found


def wait(true: object, seconds: float) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"waited {seconds:g} s"
        time.sleep(0.5)


def rows(fed: Path) -> list[dict]:
    log = fed / "run" / "rounds.jsonl"
    text = log.read_text() if log.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def measured(fed: Path, sites: int, rounds: int, every: int, minutes: float) -> dict:
    """Start everything, run it, look every so many rounds, and end everything."""
    begun, said = [], fed.parent / f"{fed.name}.out"

    def start(*words: str) -> None:
        with open(said, "ab") as out:
            begun.append(subprocess.Popen([*FEDLOOM, *words], stdout=out, stderr=out))

    try:
        start("server", str(fed))
        wait(lambda: b"Ctrl-C" in said.read_bytes(), 900)
        for i in range(sites):
            start("node", str(fed), "--client", str(i))
        wait(lambda: said.read_bytes().count(b"Ctrl-C") == sites + 1, 900)
        subprocess.run([*FEDLOOM, "run", str(fed), "--quiet"], check=True)
        looks, end, next_look = {}, time.monotonic() + 60 * minutes, every
        while (done := len(rows(fed))) < rounds and time.monotonic() < end:
            if done >= next_look or done == rounds - 1:
                looks[done], next_look = look_at(str(fed)), done + every
                print(f"{done} rounds, {in_mib(looks[done])['all']} MiB", flush=True)
            time.sleep(1)
    finally:
        for process in begun:
            process.send_signal(signal.SIGTERM)
        for process in begun:
            process.wait(60)
    seconds = [row["seconds"] for row in rows(fed)]
    return {
        "rounds": len(seconds),
        "answered": sorted({row["answered"] for row in rows(fed)}),
        "seconds a round": {
            "median": statistics.median(seconds),
            "lowest": min(seconds),
            "highest": max(seconds),
            "first half, second half": [
                statistics.median(half)
                for half in (seconds[: len(seconds) // 2], seconds[len(seconds) // 2 :])
            ],
        },
        "MiB after rounds": {at: in_mib(look) for at, look in looks.items()},
        "load": os.getloadavg(),
    }


def in_mib(look: Look) -> dict[str, object]:
    """By kind: how many processes, the mean of each in MiB, seconds of all; the sum in MiB."""
    mean = lambda sizes: round(statistics.mean(sizes) / 2**20, 1)
    kinds = {
        kind: {
            "processes": len(of),
            "resident": mean([each[0] for each in of]),
            "proportional": mean([each[1] for each in of]),
            "processor seconds of all": round(sum(each[2] for each in of), 1),
        }
        for kind, of in sorted(look.items())
    }
    return kinds | {"all": round(sum(each[1] for of in look.values() for each in of) / 2**20)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="a new folder")
    parser.add_argument("--sites", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--every", type=int, default=20, help="rounds between two looks")
    parser.add_argument("--minutes", type=float, default=600, help="after which no more rounds")
    parser.add_argument("--record", type=Path, help="a file for the numbers")
    args = parser.parse_args()
    sites = [f"data.clients={args.sites}", f"cohort={args.sites}", f"rounds={args.rounds}"]
    words = ["new", "digits", *sites, "algorithm=scaffold", "checkpoint.every_rounds=1"]
    fed = args.folder.absolute()
    subprocess.run([*FEDLOOM, *words, "--out", str(fed)], check=True)
    found = json.dumps(measured(fed, args.sites, args.rounds, args.every, args.minutes), indent=1)
    print(found)
    if args.record:
        args.record.write_text(found + "\n")


if __name__ == "__main__":
    main()
