"""What fedloom does on a GPU: the contract, equality with the CPU, and what a round costs.

    python benchmarks/gpu.py [--device cuda] [--minutes 9]

`make gpu` is this command. It works for nine minutes at most and says if anything is left; then the
same command goes on. The record is benchmarks/records/DATE_gpu: the contract's tests, on several
processes, and rounds beside loops by hand (gpu_loops.py), of W1 to W4 of rounds.py, of P1, FedACG's
ResNet-18 (5 clients, 50 steps of 50), and of P2, FedSMOO's (10 clients). ratio: to the eager loop
by hand. busy: the part of a round in which the GPU computes (kernels of a profiled round). reads:
how often the host waits for it in a round. difference: the largest one to the CPU after a step of
each client in float64, as a part of the model's largest value. An error of CUDA ends the process,
and the same command goes on behind it.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import functools
import gc
import importlib.util
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

from gpu_loops import LOOPS, ON_CUDA  # noqa: E402
from rounds import WORKS as OF_CPUS  # noqa: E402
from rounds import Work  # noqa: E402

from fedloom import Experiment, FedAvg, Local  # noqa: E402
from fedloom.core.commit import own_commit  # noqa: E402
from fedloom.core.device import device_of  # noqa: E402
from fedloom.data import FederatedData  # noqa: E402
from fedloom.engines.recorded import AFTER_ON_CUDA, CHECKS  # noqa: E402
from fedloom.errors import FedloomError  # noqa: E402
from fedloom.federation.sampling import ClientSampler  # noqa: E402
from fedloom.models import resnet18, resnet18_fedsmoo  # noqa: E402
from fedloom.server.rounds import Run  # noqa: E402
from support.device import BOUND  # noqa: E402
from support.pretend_device import NAME, counted, register  # noqa: E402

FILES = ("tests/contract/test_device.py", "tests/unit/test_hardware.py")
# tests of a piece, their processes, timed rounds, and seconds that these may take
PART, PROCESSES, ROUNDS, LONGEST = 60, 6, 5, 20.0
WORDS, ENGINES = ("passed", "skipped"), ("auto", "serial", "vectorised", "streams")
Line = dict[str, Any]

STEPS = Local(steps=50, batch=50, lr=0.01)
OF_PAPERS = {
    "P1": Work(resnet18, (3, 32, 32), 10, 100, 500, 5, STEPS),
    "P2": Work(resnet18_fedsmoo, (3, 32, 32), 10, 100, 500, 10, STEPS),
}
WORKS = OF_PAPERS | OF_CPUS


def pytest(device: str, *words: str, limit: float = 600.0) -> str:
    """What pytest prints with that device, in a process of its own and without plugins, some of
    which warn: a warning is an error here.
    """
    line = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *words]
    if "--collect-only" not in words and importlib.util.find_spec("xdist"):
        line += ["-p", "xdist", "-n", str(min(PROCESSES, os.cpu_count() or 1))]
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


_examples: dict[tuple[Any, ...], FederatedData] = {}


def data(of: Work) -> FederatedData:
    """A work's examples; those of the last work are kept, for they take seconds to draw."""
    like = of[1:5]
    if like not in _examples:
        _examples.clear()
        torch.manual_seed(0)
        _examples[like] = of.data()
    return _examples[like]


def built(of: Work, engine: str, device: str, **more: Any) -> Run:
    """A work's run, before its first round."""
    torch.manual_seed(0)
    parts: Line = {"data": data(of), "model": of.model, "local": of.local, "metrics": {}} | more
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


def timed(go: Callable[[int], object], on_gpu: bool, first: int = 2) -> Line:
    """Rounds 1, 2, ... -> the median, all, and the largest memory. The first ones do not count:
    they make what later ones find.
    """
    seconds: list[float] = []
    began = time.monotonic()
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    for t in range(1, ROUNDS + first + 1):
        at = time.perf_counter()
        go(t)
        torch.cuda.synchronize() if on_gpu else None
        seconds.append(time.perf_counter() - at)
        if t > first and time.monotonic() - began > LONGEST:
            break
    peak = torch.cuda.max_memory_allocated() / 1e9 if on_gpu else None
    return {"s": statistics.median(seconds[first:]), "all": seconds, "peak": peak}


def by_hand(of: Work, name: str, device: str, precision: str) -> Line:
    """What a round of a loop by hand costs."""
    torch.manual_seed(0)
    loop, cohorts = (
        LOOPS[name](of, data(of), device, precision),
        ClientSampler(of.cohort, of.clients),
    )
    return timed(lambda t: loop.round(cohorts.of(t)), loop.device.type == "cuda")


def rounds(of: Work, engine: str, device: str, precision: str) -> Line:
    """What a round of a work costs on the device."""
    found: Line = {"difference": None, "busy": None, "took": None}
    if precision == "full" and engine != "auto":
        found["difference"] = difference(of, engine, device)
    local = dataclasses.replace(of.local, precision=precision)
    loop = built(of, engine, device, local=local)
    on_gpu = loop.net.device.type == "cuda"
    # a step that comes once a round is computed, recorded, and checked, before it is replayed
    first = AFTER_ON_CUDA + CHECKS + 2 if on_gpu else 2
    found |= timed(loop.until, on_gpu, first) | {"took": getattr(loop.engine, "text", engine)}
    with reads(on_gpu) as waits:
        loop.until(loop.state.round + 1)
    found["reads"] = waits()
    if on_gpu:
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
    out.append("\n| work | s a round | ratio | busy | peak GB | reads | difference to the CPU |")
    out.append("|:--|--:|--:|--:|--:|--:|--:|")
    base: dict[str, float] = {}
    for x in lines:
        if "error" in x:
            out.append(f"| {x['piece']} | failed: {x['error'][:80]} | | | | | |")
        elif "s" in x:
            work, _, way = x["piece"].partition(" ")
            if way.startswith("by hand, eager"):
                base[work] = x["s"]
            ratio = f"{x['s'] / base[work]:.3g}" if work in base else "-"
            took = f" ({x['took']})" if x["piece"].endswith("auto") else ""
            out.append(f"| {x['piece']}{took} | {x['s']:.4g} | {ratio} ")
            cells = [("busy", ".0%"), ("peak", ".2f"), ("reads", "d"), ("difference", ".1e")]
            each = ["-" if x.get(k) is None else format(x[k], form) for k, form in cells]
            too = " (too large)" * ((x.get("difference") or 0.0) > BOUND)
            out[-1] += f"| {' | '.join(each)}{too} |"
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
    on_cuda = torch.device(device).type == "cuda"
    for name, of in WORKS.items():
        usual = "tf32" if name in OF_PAPERS and on_cuda else "full"
        for loop in (x for x in LOOPS if on_cuda or x not in ON_CUDA):
            place = f"{name} by hand, {loop}, {usual}"
            out[place] = functools.partial(by_hand, of, loop, device, usual)
        for engine in ENGINES:
            place = f"{name} {usual}, {engine}"
            out[place] = functools.partial(rounds, of, engine, device, usual)
        for other in (x for x in ("full", "tf32", "bf16") if on_cuda and x != usual):
            place = f"{name} {other}, auto"
            out[place] = functools.partial(rounds, of, "auto", device, other)
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
        try:
            found, broken = todo[piece](), False
        except (RuntimeError, FedloomError) as error:  # and what the others cost is still asked
            found, broken = (
                {"error": f"{type(error).__name__}: {error}"},
                "CUDA error" in str(error),
            )
        lines.append({"piece": piece} | about | found)
        print(piece, found.get("s", found.get("error", "")), flush=True)
        file.write_text("".join(json.dumps(x) + "\n" for x in lines), encoding="utf-8")
        if broken:
            print("this process is of no use to CUDA any more; run the same command again")
            return 3
        gc.collect()
        torch.cuda.empty_cache()  # a piece finds the memory that the first one found
    (out / "README.md").write_text(page(lines), encoding="utf-8")
    print(page(lines))
    wrong = (
        x.get("failed") or x.get("error") or (x.get("difference") or 0.0) > BOUND for x in lines
    )
    return int(any(wrong))


if __name__ == "__main__":
    sys.exit(main())
