"""What commands print with --json, checked against the records of docs/schemas.py."""

from __future__ import annotations

import json
from typing import Any

from pydantic import TypeAdapter, ValidationError
from schemas import PRINTED


def check(name: str, text: str) -> Any:
    """A text is JSON as the schema of this name says -> its value. Raises AssertionError."""
    try:
        TypeAdapter(PRINTED[name][1]).validate_json(text)
    except ValidationError as error:
        raise AssertionError(f"{name}: {error}") from None
    return json.loads(text)
