"""python -m fedloom_conformance ADAPTER.py [--rows fedavg,krum] [--out FILE.json]"""

from __future__ import annotations

import argparse
import importlib.util
import json
import platform
import sys
from pathlib import Path

from . import rows
from .verdict import Train, judge


def load(path: Path) -> tuple[Train, str]:
    """-> the adapter's train, and what it says its framework is: FRAMEWORK, "name version"."""
    folder = path.resolve().parent
    sys.path[:0] = [str(folder), str(folder.parent)]  # its table, and what adapters share
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{path} cannot be read as a Python file; give the adapter's file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.train, module.FRAMEWORK


def main() -> int:
    """Judge an adapter -> 0 if it is right wherever it has a method."""
    parser = argparse.ArgumentParser(prog="fedloom_conformance", description=__doc__)
    parser.add_argument("adapter", type=Path)
    parser.add_argument("--rows", default="", help="names with commas; all without it")
    parser.add_argument("--out", type=Path, help="write the verdicts as JSON")
    options = parser.parse_args()
    train, framework = load(options.adapter)
    wanted = {name for name in options.rows.split(",") if name}
    unknown = wanted - {row.name for row in rows()}
    if unknown:
        names = ", ".join(row.name for row in rows())
        raise SystemExit(f"--rows {', '.join(sorted(unknown))} is unknown; rows are {names}")
    verdicts = {}
    for row in rows():
        if not wanted or row.name in wanted:
            verdict = judge(row, train)
            verdicts[row.name] = verdict.record()
            more = verdict.fault or verdict.words or verdict.reading
            print(f"{row.name:20} {verdict.kind:8} {more}", flush=True)
    if options.out:
        about = {"framework": framework, "python": platform.python_version()}
        text = json.dumps(about | {"verdicts": verdicts}, indent=1)
        options.out.write_text(text + "\n", encoding="utf-8")
    return int(any(v["kind"] in ("wrong", "error") for v in verdicts.values()))


if __name__ == "__main__":
    raise SystemExit(main())
