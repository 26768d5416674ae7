"""What stands in a run's folder."""

from __future__ import annotations

import contextlib
import json
import tomllib
from pathlib import Path
from typing import Any

from safetensors.torch import load_file


def rows(run: str | Path) -> list[dict[str, Any]]:
    """The rows of its rounds."""
    lines = Path(run, "rounds.jsonl").read_text("utf-8").splitlines()
    return [json.loads(line) for line in lines]


def record(run: str | Path, name: str = "summary") -> Any:
    """One of its JSON files."""
    return json.loads(Path(run, f"{name}.json").read_text("utf-8"))


def settings(run: str | Path) -> dict[str, Any]:
    """Its configuration."""
    return tomllib.loads(Path(run, "config.toml").read_text("utf-8"))


def parameters(run: str | Path, file: str = "model.safetensors") -> dict[str, list[Any]]:
    """The numbers of its model."""
    return {name: tensor.tolist() for name, tensor in load_file(Path(run, file)).items()}


def fill(ballast: Path) -> None:
    """Leave no room on the file system of this file."""
    with contextlib.suppress(OSError), open(ballast, "wb", buffering=0) as file:
        while file.write(b"x" * 4096):
            pass
