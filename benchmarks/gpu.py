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
from fedloom.errors import ConfigError  # noqa: E402
from fedloom.federation.sampling import ClientSampler  # noqa: E402
from fedloom.models import resnet18, resnet18_fedsmoo  # noqa: E402
from fedloom.server.rounds import Run  # noqa: E402
from support.device import BOUND  # noqa: E402
from support.pretend_device import NAME, counted, register  # noqa: E402

FILES = ("tests/contract/test_device.py", "tests/unit/test_hardware.py")
# tests of a piece, their processes, timed rounds, and seconds that these may take
PART, PROCESSES, ROUNDS, LONGEST = 30, 6, 5, 20.0
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
    return subprocess.run(line, cwd=ROOT, env=given, timeout=limit, **said).stdout


def contract(device: str, some: list[str], end: float) -> Line:
    """Run tests -> how many passed or were left out, and the names of the others. Raises
    TimeoutExpired at the end of the time.
    """
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
        try:
            yield lambda: sum("called a synchronizing" in str(w.message) for w in said)
        finally:
            torch.cuda.set_sync_debug_mode("default")


def timed(go: Callable[[int], object], on_gpu: bool, first: int = 2) -> Line:
    """Rounds 1, 2, ... -> the median, all, and the memory that torch held. The first ones do not
    count: they make what later ones find.
    """
    seconds, began = [], 0.0
    for t in range(1, ROUNDS + first + 1):
        if t == first + 1:
            began = time.monotonic()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats() if on_gpu else None
        at = time.perf_counter()
        go(t)
        torch.cuda.synchronize() if on_gpu else None
        seconds.append(time.perf_counter() - at)
        if t > first and time.monotonic() - began > LONGEST:
            break
    peak = torch.cuda.max_memory_reserved() / 1e9 if on_gpu else None
    return {"s": statistics.median(seconds[first:]), "all": seconds, "peak": peak}


def busy(go: Callable[[], object]) -> float:
    """The part of a round's time in which kernels run on the GPU, several at once counted once."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        began = time.perf_counter()
        go()
        torch.cuda.synchronize()
        seconds = time.perf_counter() - began
    ranges = (e.time_range for e in profile.events() if e.device_type.name == "CUDA")
    total = end = 0.0
    for start, stop in sorted((r.start, r.end) for r in ranges):  # microseconds
        total += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return total / 1e6 / seconds


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
    records = getattr(getattr(loop.engine, "inner", loop.engine), "recorded", None)
    first = AFTER_ON_CUDA + CHECKS + 2 if on_gpu and records else 2
    found |= timed(loop.until, on_gpu, first) | {"took": getattr(loop.engine, "text", engine)}
    one_more = lambda: loop.until(loop.state.round + 1)
    with reads(on_gpu) as waits:
        one_more()
    found |= {"reads": waits(), "busy": busy(one_more) if on_gpu else None}
    if records:
        refused = sorted(set(records.refused.values()))
        found |= {"recorded": records.recordings, "replayed": records.replayed, "refused": refused}
    loop.engine.close()
    return found


def page(lines: list[Line], left: int = 0) -> str:
    """The record's page. left: how many pieces are."""
    about, parts = lines[0], [x for x in lines if "tests" in x]
    failed = [name for x in parts for name in x["failed"]]
    passed, skipped, tests = (sum(x[w] for x in parts) for w in (*WORDS, "tests"))
    out = [f"# On {about['name']}: {about['day']}\n"]
    out.append(f"`make gpu` at {about['commit']}, torch {about['torch']}, {about['machine']}.\n")
    said = f"Contract: of {tests} tests {passed} passed, {skipped} left out"
    out.append(f"{said}; failed: {', '.join(failed) or 'none'}")
    if left:
        out.append(f"\n{left} pieces are left.")
    if refused := {why for x in lines for why in x.get("refused", ())}:
        out.append(f"\nSteps that were not recorded: {'; '.join(sorted(refused))}")
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
    """{name: what it does}, what is asked most first. No process runs tests of two files:
    test_hardware.py registers the stand-in with torch, which breaks every backward pass on CUDA in
    that process.
    """
    on_cuda, usual, others = torch.device(device).type == "cuda", {}, {}
    for name, of in WORKS.items():
        first = "tf32" if name in OF_PAPERS and on_cuda else "full"
        for loop in (x for x in LOOPS if on_cuda or x not in ON_CUDA):
            usual[f"{name} by hand, {loop}, {first}"] = functools.partial(
                by_hand, of, loop, device, first
            )
        for engine in ENGINES:
            usual[f"{name} {first}, {engine}"] = functools.partial(
                rounds, of, engine, device, first
            )
        for other in (x for x in ("full", "tf32", "bf16") if on_cuda and x != first):
            others[f"{name} {other}, auto"] = functools.partial(rounds, of, "auto", device, other)
    parts = []
    for file in FILES:
        nodes = [x for x in pytest(device, "--collect-only", file).splitlines() if "::" in x]
        parts += [nodes[at : at + PART] for at in range(0, len(nodes), PART)]
    tests = {
        f"contract {n} of {len(parts)}": functools.partial(contract, device, some, end)
        for n, some in enumerate(parts, 1)
    }
    return usual | tests | others


def main(argv: list[str] | None = None) -> int:
    """Work for a while; 0: all is done and well, 1: something failed, 3: pieces are left."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(argv)
    if options.device == NAME:
        register()
    try:
        kind, end = device_of(options.device), time.monotonic() + 60 * options.minutes
    except ConfigError as error:
        parser.error(str(error))
    records, day = ROOT / "benchmarks" / "records", datetime.date.today().isoformat()
    todo = pieces(options.device, end)
    begun = [f.parent for f in sorted(records.glob("*_gpu/gpu.jsonl")) if len(read(f)) < len(todo)]
    out: Path = options.out or [records / f"{day}_gpu", *begun][-1]
    out.mkdir(parents=True, exist_ok=True)
    lines = read(file := out / "gpu.jsonl")
    name = torch.cuda.get_device_name(kind) if kind.type == "cuda" else options.device
    about = {"name": name, "day": day, "commit": str(own_commit())[:12]}
    about |= {"torch": torch.__version__, "machine": platform.platform()}
    broken = False
    for piece in [name for name in todo if all(x["piece"] != name for x in lines)]:
        if broken or time.monotonic() > end - 5 * LONGEST:
            break
        try:
            found = todo[piece]()
        except subprocess.TimeoutExpired:
            break
        except Exception as error:  # whatever it is: what the others cost is still asked
            found = {"error": f"{type(error).__name__}: {error}"}
            broken = "CUDA error" in str(error)  # of no use any more is this process then
        lines.append({"piece": piece} | about | found)
        print(piece, found.get("s", found.get("error", "")), flush=True)
        file.write_text("".join(json.dumps(x) + "\n" for x in lines), encoding="utf-8")
        left = len(todo) - len(lines)
        (out / "README.md").write_text(page(lines, left), encoding="utf-8")
        if not broken:
            gc.collect()
            torch.cuda.empty_cache()  # a piece finds the memory that the first one found
    if left := len(todo) - len(lines):
        print(f"{left} pieces are left; run the same command again to resume")
        return 3
    print(page(lines))
    wrong = (
        x.get("failed") or x.get("error") or (x.get("difference") or 0.0) > BOUND for x in lines
    )
    return int(any(wrong))


def read(file: Path) -> list[Line]:
    """The lines of a record; none if there is no such file."""
    return [json.loads(x) for x in file.read_text().splitlines()] if file.is_file() else []


if __name__ == "__main__":
    sys.exit(main())
