"""Print the interpreters at hand of the Pythons that pyproject.toml names, oldest first.

    python requirements/pythons.py

One path a line: this Python, else python3.X on PATH, else the newest 3.X of pyenv. One that does
not start, or cannot make virtual environments, is passed over.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

PROJECT = Path(__file__).parents[1] / "pyproject.toml"


def supported() -> list[str]:
    """The versions, such as 3.11, oldest first."""
    text = PROJECT.read_text(encoding="utf-8")
    found: list[str] = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', text)
    return sorted(found, key=lambda v: int(v[2:]))


def candidates(version: str) -> Iterator[str]:
    """Where an interpreter of this version may be, the best first."""
    yield sys.executable
    if on_path := shutil.which(f"python{version}"):
        yield on_path
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    patch = lambda p: int(p.name.rpartition(".")[2])
    whole = re.compile(re.escape(version) + r"\.\d+")  # no release candidates
    places = [p for p in root.glob(f"versions/{version}.*") if whole.fullmatch(p.name)]
    for place in sorted(places, key=patch, reverse=True):
        yield str(place / "bin" / "python")


def starts(path: str, version: str) -> bool:
    """Whether it is of this version and can make environments."""
    ask = "import ensurepip, sys, venv; print('%d.%d' % sys.version_info[:2])"
    try:
        done = subprocess.run([path, "-c", ask], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and done.stdout.strip() == version


def at_hand() -> list[str]:
    """One interpreter of each version that there is."""
    firsts = (next((c for c in candidates(v) if starts(c, v)), None) for v in supported())
    return [path for path in firsts if path is not None]


if __name__ == "__main__":
    if not (found := at_hand()):
        sys.exit(f"none of Python {', '.join(supported())} was found")
    print("\n".join(found))
