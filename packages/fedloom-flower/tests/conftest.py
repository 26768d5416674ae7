"""The fixtures and marks of fedloom's own tests hold here too."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

_FILE = Path(__file__).parents[3] / "tests" / "conftest.py"
_SPEC = importlib.util.spec_from_file_location("fedloom_conftest", _FILE)
assert _SPEC is not None and _SPEC.loader is not None
_SHARED = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(_SHARED)
globals().update({name: v for name, v in vars(_SHARED).items() if not name.startswith("__")})


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Masks by keys on P-256: P-384 takes ten times as long."""
    from cryptography.hazmat.primitives.asymmetric import ec

    from fedloom_flower import masked_sums

    monkeypatch.setattr(masked_sums, "CURVE", ec.SECP256R1())
