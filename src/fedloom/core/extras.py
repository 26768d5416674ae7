"""What does not come with fedloom: libraries, each in an extra, of which `install` says how to get
it, and what other installed packages add by entry points, of which none is imported to find it.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
from importlib.metadata import EntryPoint, PackageNotFoundError, distribution, entry_points
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

from ..errors import ConfigError, FedloomError

# extras that are packages of their own; a checkout has them in packages/
PACKAGES = {"flower": "fedloom-flower", "papers": "fedloom-papers"}


def install(extra: str) -> str:
    """The command that installs an extra, from the checkout or the wheel that fedloom came from.

    >>> install("report").endswith("[report]'")
    True
    """
    source, how = "fedloom", ""
    with contextlib.suppress(PackageNotFoundError, ValueError, LookupError, TypeError):
        origin = json.loads(distribution("fedloom").read_text("direct_url.json") or "{}")
        source = unquote(urlparse(origin["url"]).path)
        how = "-e " if origin.get("dir_info", {}).get("editable") else ""
    if (package := PACKAGES.get(extra)) is not None:
        place = Path(source, "packages", package)
        return f"pip install {how}'{place}'" if place.is_dir() else f"pip install '{package}'"
    return f"pip install {how}'{source}[{extra}]'"


def need(library: str, user: str, extra: str, error: type[FedloomError] = ConfigError) -> Any:
    """Import a library. user: needs it; extra: has it. Raises `error`, which says how to get it.

    >>> need("no_such_library", "a picture", "report")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    fedloom.errors.ConfigError: a picture needs no_such_library, which cannot be imported; run: ...
    """
    try:
        return importlib.import_module(library)
    except ImportError as why:
        raise error(
            f"{user} needs {library}, which cannot be imported; run: {install(extra)}"
        ) from why


def added(group: str) -> dict[str, EntryPoint]:
    """{name: what a package adds to a group}: `fedloom.commands` (a command of the command line:
    NAME = "PACKAGE.MODULE:COMMAND") or `fedloom.recipes` (a folder: NAME = "PACKAGE:FOLDER").
    """
    return {point.name: point for point in entry_points(group=group)}


def folders(group: str) -> list[Path]:
    """The folders that packages add to a group."""
    paths = []
    for _, point in sorted(added(group).items()):
        spec = importlib.util.find_spec(point.module)
        paths += [Path(p) / point.attr for p in (spec and spec.submodule_search_locations) or ()]
    return paths
