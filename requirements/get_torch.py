"""Install PyTorch for the Python that runs this, and say its size first.

    python requirements/get_torch.py [auto|cpu|cuda] [--newest | --lock FILE]

cpu: the build without CUDA, from the package indexes that pip knows or from PyTorch's own; if there
is none, nothing is fetched and the exit code is 3. cuda: the build that the package index has.
auto: cpu, and if there is none, cuda. --newest: the newest version, not the one in lock.txt;
--lock: the one in another such file. A PyTorch that is there and will do stays. Only Linux has
builds with CUDA on the package index.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

LOCK = Path(__file__).with_name("lock.txt")
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
CPU_SIZE = "about 0.2 GB to fetch, 0.8 GB on disk"
CUDA_SIZE = "about 2.7 GB to fetch, 4.7 GB on disk"  # 2.13.0 with its libraries
KINDS = ("auto", "cpu", "cuda")
NO_CPU_BUILD = 3
# what pip says of a build that is not there; the second where constraints bound the versions
ABSENT = ("No matching distribution", "ResolutionImpossible")
OLDEST = (3, 11)


def locked(lock: Path = LOCK) -> str:
    """The version in a lock."""
    found = re.search(r"^torch==(\S+)", lock.read_text(encoding="utf-8"), re.MULTILINE)
    if found is None:
        raise SystemExit(f"{lock} names no torch; write it again: make lock")
    return found[1]


def installed() -> str | None:
    """The version that is there, such as 2.13.0+cpu, or None."""
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return None


def pip(*arguments: str) -> tuple[int, str]:
    """Run this Python's pip -> exit code, what it said."""
    done = subprocess.run(
        [sys.executable, "-m", "pip", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return done.returncode, done.stdout


def install(*arguments: str) -> bool:
    """Install -> whether there was such a version. What it needs comes later, from the lock. Raises
    SystemExit with pip's words if something else went wrong.
    """
    code, said = pip("install", "--quiet", "--no-compile", "--no-deps", *arguments)
    if code and not any(word in said for word in ABSENT):
        raise SystemExit(said)
    return code == 0


def cpu_build(version: str | None) -> bool:
    """Install the build without CUDA, the newest without a version -> whether there was one."""
    index = ("--retries", "1", "--timeout", "20", "--extra-index-url", CPU_INDEX)
    if version is None:
        names = re.findall(r"[\d.]+\+cpu", pip("index", "versions", "torch", *index)[1])
        if not names:
            return False
        version = names[0].partition("+")[0]  # pip lists the newest first
    print(f"Looking for torch {version} without CUDA: {CPU_SIZE}", flush=True)
    return install(*index, f"torch=={version}+cpu")


def usual_build(version: str | None, not_cpu: bool) -> bool:
    """Install what the package index has -> whether there was one."""
    wanted = f"torch=={version}" if version else "torch"
    if version and not_cpu:
        wanted += f",!={version}+cpu"  # an index may have both, and pip would take that one
    return install("--upgrade", wanted)


def will_do(there: str | None, version: str | None, kind: str) -> bool:
    """Whether what is there is of this version and kind."""
    if there is None or there.partition("+")[0] != version:
        return False
    return kind == "auto" or (kind == "cpu") == there.endswith("+cpu")


def main() -> int:
    """Install it -> the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("kind", nargs="?", default="auto", metavar="|".join(KINDS))
    parser.add_argument("--newest", action="store_true")
    parser.add_argument("--lock", type=Path, default=LOCK)
    options = parser.parse_args()
    kind, version = options.kind, None if options.newest else locked(options.lock)
    name = f"torch {version or ''}".strip()
    if kind not in KINDS:
        raise SystemExit(f"TORCH={kind} is unknown; TORCH is one of {', '.join(KINDS)}")
    if sys.version_info < OLDEST:
        here = ".".join(map(str, sys.version_info[:3]))
        raise SystemExit(
            f"fedloom needs Python 3.11 or newer, and this is {here}; after `rm -r .venv` name a "
            "newer one: make demo PYTHON=python3.12"
        )
    linux = sys.platform == "linux"
    if will_do(installed(), version, kind if linux else "auto"):
        return 0
    if linux and kind != "cuda":
        if cpu_build(version):
            return 0
        if kind == "cpu":
            print(
                f"No build of {name} without CUDA was found for Python "
                f"{sys.version_info[0]}.{sys.version_info[1]}; nothing was fetched. The one with "
                f"CUDA ({CUDA_SIZE}): TORCH=cuda",
                file=sys.stderr,
            )
            return NO_CPU_BUILD
        print("There is none for this Python in the package indexes that can be reached.")
    about = f"with CUDA: {CUDA_SIZE}" if linux else f"without CUDA: {CPU_SIZE}"
    print(f"Fetching {name} {about}", flush=True)
    if not usual_build(version, kind == "cuda"):
        raise SystemExit(f"{name} was not found for this Python; is the package index reachable?")
    return 0


if __name__ == "__main__":
    sys.exit(main())
