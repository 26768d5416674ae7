"""Recipes: complete configurations with a name, for `fedloom run NAME`.

A recipe is a function of one of these files that returns plain nested settings, as in a TOML file.
It builds nothing, and inherits from no other recipe.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..core.registry import Registry
from . import cfedavg, fafed, fedacg, fedsmoo, fiarse, flamby, short

__all__ = ["RECIPES", "Recipe"]

Recipe = Callable[[], dict[str, Any]]

_FOUND: dict[str, Recipe] = {
    name: make
    for file in (cfedavg, fafed, fedacg, fedsmoo, fiarse, flamby, short)
    for name, make in vars(file).items()
    if getattr(make, "__module__", "") == file.__name__ and not name.startswith("_")
}
RECIPES: Registry[Recipe] = Registry("recipe", {name: _FOUND[name] for name in sorted(_FOUND)})
