"""What fedloom does on a GPU: the contract, equality with the CPU, and what a round costs.

    python benchmarks/gpu.py [--device cuda] [--minutes 9]

`make gpu` is this command. It works for nine minutes at most and says if anything is left; then the
same command goes on. The record is benchmarks/records/DATE_gpu: the contract's tests, and W1 to W4
of rounds.py. busy: the part of a round in which the GPU computes (kernels of a profiled round).
reads: how often the host waits for it in a round. difference: the largest one to the CPU after a
step of each client in float64, as a part of the model's largest value.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import functools
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "benchmarks")]

from rounds import WORKS, Work  # noqa: E402

from fedloom import Experiment, FedAvg, Local  # noqa: E402
from fedloom.core.commit import own_commit  # noqa: E402
from fedloom.core.device import device_of  # noqa: E402
from fedloom.server.rounds import Run  # noqa: E402
from support.device import BOUND  # noqa: E402
from support.pretend_device import NAME, counted, register  # noqa: E402

FILES = ("tests/contract/test_device.py", "tests/unit/test_hardware.py")
PART, ROUNDS, LONGEST = 20, 9, 60.0  # tests of a piece, timed rounds, seconds that they may take
WORDS, ENGINES = ("passed", "skipped"), ("serial", "vectorised")
Line = dict[str, Any]


def pytest(device: str, *words: str, limit: float = 600.0) -> str:
    """What pytest prints with that device, in a process of its own and without plugins, some of
    which warn: a warning is an error here.
    """
    line = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *words]
    given = {**os.environ, "FEDLOOM_TEST_DEVICE": device, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    said: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    try:
        return subprocess.run(line, cwd=ROOT, env=given, timeout=limit, **said).stdout
    except subprocess.TimeoutExpired:
        return f"longer than {limit:.0f} s: {words[-1]} and those before it"


def contract(device: str, some: list[str], end: float) -> Line:
    """Run tests -> how many passed or were left out, and the names of the others."""
    said = pytest(device, "-rf", *some, limit=max(1.0, end - time.monotonic()))
    passed, skipped = (sum(map(int, re.findall(rf"(\d+) {w}", said))) for w in WORDS)
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", said, re.MULTILINE)
    if passed + skipped + len(failed) < len(some):
        failed.append(said[-500:])
    return {"tests": len(some), "passed": passed, "skipped": skipped, "failed": failed}


def built(of: Work, engine: str, device: str, **more: Any) -> Run:
    """A work's run, before its first round."""
    torch.manual_seed(0)
    parts: Line = {"data": of.data(), "model": of.model, "local": of.local, "metrics": {}} | more
    parts |= {"cohort": of.cohort, "rounds": 2000, "engine": engine, "device": device}
    loop = Experiment(algorithm=FedAvg(), **parts).build()
    loop.engine.open(loop.plan, loop.fed, loop.net)
    loop.begin()
    return loop


def difference(of: Work, engine: str, device: str) -> float:
    """Between the models after a round on the device and on the CPU, see above."""
    ends = []
    for place in (device, "cpu"):
        local = Local(steps=1, batch=of.local.batch, lr=of.local.lr)
        loop = built(of, engine, place, dtype="float64", local=local)
        loop.until(1)
        loop.engine.close()
        ends.append(loop.model().cpu())
    return float((ends[0] - ends[1]).abs().max() / ends[1].abs().max())


@contextlib.contextmanager
def reads(on_gpu: bool) -> Iterator[Callable[[], int]]:
    """Inside, it is counted how often the host waits for the device."""
    if not on_gpu:
        with counted() as count:
            yield lambda: count.reads + count.to_host
        return
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        yield lambda: sum("synchroniz" in str(w.message) for w in said)
        torch.cuda.set_sync_debug_mode("default")


def rounds(of: Work, engine: str, device: str) -> Line:
    """What a round of a work costs on the device."""
    found: Line = {"difference": difference(of, engine, device), "peak": None, "busy": None}
    loop, seconds, began = built(of, engine, device), [], time.monotonic()
    if on_gpu := loop.net.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    for t in range(1, ROUNDS + 3):  # the first two make what later ones find
        at = time.perf_counter()
        loop.until(t)
        torch.cuda.synchronize() if on_gpu else None
        seconds.append(time.perf_counter() - at)
        if t > 2 and time.monotonic() - began > LONGEST:
            break
    with reads(on_gpu) as waits:
        loop.until(loop.state.round + 1)
    found |= {"s": statistics.median(seconds[2:]), "all": seconds, "reads": waits()}
    if on_gpu:
        found["peak"] = torch.cuda.max_memory_allocated() / 1e9
        kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=kinds) as profile:
            loop.until(loop.state.round + 1)
            torch.cuda.synchronize()
        on_it = [e for e in profile.key_averages() if e.device_type.name == "CUDA"]
        found["busy"] = sum(e.self_device_time_total for e in on_it) / 1e6 / found["s"]
    loop.engine.close()
    return found


def page(lines: list[Line]) -> str:
    """The record's page."""
    about, parts = lines[0], [x for x in lines if "tests" in x]
    failed = [name for x in parts for name in x["failed"]]
    passed, skipped, tests = (sum(x[w] for x in parts) for w in (*WORDS, "tests"))
    out = [f"# On {about['name']}: {about['day']}\n"]
    out.append(f"`make gpu` at {about['commit']}, torch {about['torch']}, {about['machine']}.\n")
    said = f"Contract: of {tests} tests {passed} passed, {skipped} left out"
    out.append(f"{said}; failed: {', '.join(failed) or 'none'}")
    out.append("\n| work | s a round | busy | peak GB | reads | difference to the CPU |")
    out.append("|:--|--:|--:|--:|--:|--:|")
    for x in (x for x in lines if "s" in x):
        busy, peak = (x[key] or float("nan") for key in ("busy", "peak"))
        out.append(f"| {x['piece']} | {x['s']:.4g} | {busy:.0%} | {peak:.2f} | {x['reads']} ")
        out[-1] += f"| {x['difference']:.1e}{' (too large)' * (x['difference'] > BOUND)} |"
    return "\n".join(out) + "\n"


def pieces(device: str, end: float) -> dict[str, Callable[[], Line]]:
    """{name: what it does}. No process runs tests of two files: test_hardware.py registers the
    stand-in with torch, which breaks every backward pass on CUDA in that process.
    """
    parts = []
    for file in FILES:
        nodes = [x for x in pytest(device, "--collect-only", file).splitlines() if "::" in x]
        parts += [nodes[at : at + PART] for at in range(0, len(nodes), PART)]
    out: dict[str, Callable[[], Line]] = {
        f"contract {n} of {len(parts)}": functools.partial(contract, device, some, end)
        for n, some in enumerate(parts, 1)
    }
    for piece, of in ((f"{w} {e}", of) for w, of in WORKS.items() for e in ENGINES):
        out[piece] = functools.partial(rounds, of, piece[3:], device)
    return out


def main(argv: list[str] | None = None) -> int:
    """Work for a while; 0: all is done and well, 1: something failed, 3: pieces are left."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(argv)
    if options.device == NAME:
        register()
    kind, end = device_of(options.device), time.monotonic() + 60 * options.minutes
    records, day = ROOT / "benchmarks" / "records", datetime.date.today().isoformat()
    begun = [f for f in sorted(records.glob("*_gpu")) if not (f / "README.md").is_file()]
    out: Path = options.out or [records / f"{day}_gpu", *begun][-1]
    out.mkdir(parents=True, exist_ok=True)
    file = out / "gpu.jsonl"
    lines = [json.loads(x) for x in file.read_text().splitlines()] if file.is_file() else []
    name = torch.cuda.get_device_name(kind) if kind.type == "cuda" else options.device
    about = {"name": name, "day": day, "commit": str(own_commit())[:12]}
    about |= {"torch": torch.__version__, "machine": platform.platform()}
    todo = pieces(options.device, end)
    for piece in [name for name in todo if all(x["piece"] != name for x in lines)]:
        if time.monotonic() > end - 2.5 * LONGEST:
            print(f"{len(todo) - len(lines)} pieces are left; run the same command again to resume")
            return 3
        lines.append({"piece": piece} | about | todo[piece]())
        print(piece, flush=True)
        file.write_text("".join(json.dumps(x) + "\n" for x in lines), encoding="utf-8")
    (out / "README.md").write_text(page(lines), encoding="utf-8")
    print(page(lines))
    return int(any(x.get("failed") or x.get("difference", 0.0) > BOUND for x in lines))


if __name__ == "__main__":
    sys.exit(main())
