"""What other installed packages add to fedloom, by entry points; finding it imports none of them.

Groups: `fedloom.commands` (a command of the command line: NAME = "PACKAGE.MODULE:COMMAND") and
`fedloom.recipes` (a folder of recipes: NAME = "PACKAGE:FOLDER").
"""

from __future__ import annotations

import importlib.util
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path


def added(group: str) -> dict[str, EntryPoint]:
    """{name: what a package adds to a group}."""
    return {point.name: point for point in entry_points(group=group)}


def folders(group: str) -> list[Path]:
    """The folders that packages add to a group."""
    paths = []
    for _, point in sorted(added(group).items()):
        spec = importlib.util.find_spec(point.module)
        paths += [Path(p) / point.attr for p in (spec and spec.submodule_search_locations) or ()]
    return paths
