"""What `import fedloom` and `fedloom --help` cost beyond the interpreter and torch.

    python benchmarks/imports.py [--repeats 7]

Whole processes, alternating; medians.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from functools import partial

from loops import seconds

CASES = {
    "python": "pass",
    "import fedloom": "import fedloom",
    "fedloom --help": "import sys; sys.argv = ['fedloom', '--help']; import runpy; "
    "runpy.run_module('fedloom', run_name='__main__')",
    "import torch": "import torch",
    "torch, then fedloom.Experiment": "import torch; from fedloom import Experiment",
}


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=7)
    repeats = parser.parse_args().repeats

    run = partial(subprocess.run, check=True, stdout=subprocess.DEVNULL)
    calls = {name: partial(run, [sys.executable, "-c", code]) for name, code in CASES.items()}
    times = seconds(calls, repeats)
    for name, found in times.items():
        print(f"{name:32} {statistics.median(found):8.3f} s")


if __name__ == "__main__":
    main()
