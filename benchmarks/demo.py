"""The record of README's two examples: the table of `make demo`, and what its twelve lines print.

    fedloom demo --out FOLDER
    python benchmarks/demo.py FOLDER RECORD     a folder below benchmarks/records

README.md.in takes its numbers from RECORD/demo.json.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from fedloom.cli.demo import ALGORITHMS
from fedloom.core.commit import own_commit
from fedloom.report import comparison, group_runs, load_run
from fedloom.report.curve_data import value_of

ROOT = Path(__file__).resolve().parents[1]


def first_example() -> str:
    """What the first block of Python in README prints."""
    page = (ROOT / "README.md.in").read_text("utf-8")
    code = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0]
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return said.stdout.splitlines()[-1]


def record(folder: Path) -> dict[str, Any]:
    """What the page needs of the demo's runs, and the example."""
    runs = [
        load_run(run)
        for name in ALGORITHMS
        for run in sorted(folder.glob(f"algorithm={name}-seed*"))
    ]
    groups = group_runs(runs)
    return {
        "commit": own_commit(),
        "rows": comparison(groups),
        "values": {g.label: {str(run.seed): value_of(run) for run in g.runs} for g in groups},
        "example": first_example(),
    }


def main() -> None:
    """The command."""
    folder, out = map(Path, sys.argv[1:])
    out.mkdir(parents=True, exist_ok=True)
    (out / "demo.json").write_text(json.dumps(record(folder), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
