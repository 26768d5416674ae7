"""Settings of a run: recipes and TOML files, changes on the command line, and what they stand for.

Importing this package imports pydantic; nothing else of fedloom does, and nothing imports it before
a run is asked for.
"""

from __future__ import annotations

from .overrides import parse_override
from .resolve import Config, from_run, resolve

__all__ = ["Config", "from_run", "parse_override", "resolve"]
