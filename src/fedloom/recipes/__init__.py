"""Recipes: complete configurations with a name, for `fedloom run NAME`.

Each is a TOML file of this folder, or of a folder that an installed package names
(core/extras.py); the comment at its head says what it is. It inherits from no other recipe.
"""

from __future__ import annotations

import itertools
import tomllib
from pathlib import Path
from typing import Any

from ..core.extras import folders
from ..core.registry import Registry

__all__ = ["RECIPES", "Recipe"]


class Recipe:
    """A recipe's file: called, it gives the settings, anew every time."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __call__(self) -> dict[str, Any]:
        return tomllib.loads(self._file.read_text(encoding="utf-8"))

    @property
    def about(self) -> str:
        """What it is: the comment at the head of its file."""
        lines = self._file.read_text(encoding="utf-8").splitlines()
        head = itertools.takewhile(lambda line: line.startswith("#"), lines)
        return "\n".join(line[2:] for line in head)


_FILES = {
    file.stem: file
    for folder in (Path(__file__).parent, *folders("fedloom.recipes"))
    for file in folder.glob("*.toml")
}
RECIPES: Registry[Recipe] = Registry(
    "recipe", {name: Recipe(file) for name, file in sorted(_FILES.items())}
)
