"""Settings of a run: recipes and TOML files, changes on the command line, and the objects that they
make.
"""

from __future__ import annotations

from .overrides import parse_override
from .resolve import Config, from_run, resolve

__all__ = ["Config", "from_run", "parse_override", "resolve"]
