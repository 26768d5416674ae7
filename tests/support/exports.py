"""An export of a network that no run has trained."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedloom.cli.export_check import ExportFacts, describe
from fedloom.cli.export_network import write_script


def written(
    folder: Path, module: nn.Module, how: dict[str, Any], dtype: torch.dtype = torch.float32
) -> dict[str, Any]:
    """An export of this module, of inputs like these -> the names of its script."""
    about: dict[str, Any] = {"dtype": str(dtype).removeprefix("torch.")}
    about |= {"classes": [], "outcome": "classes", "threshold": 0.5, "ranges": {}, "reading": {}}
    row = describe(about, how, None, folder)
    write_script(folder, module, ExportFacts(about, row, None, ""))
    return runpy.run_path(str(folder / "predict.py"))
