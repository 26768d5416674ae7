"""Complete configurations under a name: what `fedloom run NAME` runs.

A recipe is a function that returns plain nested settings, as a TOML file would hold them. It builds
nothing, and inherits from no other recipe.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .compressed import cfedavg_fashion, cfedavg_mnist, fedacg_fedpaq
from .fashion import fashion_dirichlet
from .handwriting import digits, mnist_dirichlet, mnist_iid

__all__ = ["RECIPES", "Recipe"]

Recipe = Callable[[], dict[str, Any]]

RECIPES: dict[str, Recipe] = {
    "cfedavg_fashion": cfedavg_fashion,
    "cfedavg_mnist": cfedavg_mnist,
    "digits": digits,
    "fashion_dirichlet": fashion_dirichlet,
    "fedacg_fedpaq": fedacg_fedpaq,
    "mnist_dirichlet": mnist_dirichlet,
    "mnist_iid": mnist_iid,
}
