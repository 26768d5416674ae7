"""The fixtures of fedloom's own tests, for those of this package."""

from __future__ import annotations

import importlib.util
from pathlib import Path

TESTS = Path(__file__).resolve().parents[3] / "tests"

for _name, _file in (("of_all", "conftest.py"), ("of_commands", "system/conftest.py")):
    _spec = importlib.util.spec_from_file_location(_name, TESTS / _file)
    assert _spec is not None and _spec.loader is not None
    _module = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(_module)
    globals().update(
        {k: v for k, v in vars(_module).items() if "fixture" in type(v).__name__.lower()}
    )
