"""What of JSON Schema the files of docs/schemas use, checked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SCHEMAS = Path(__file__).resolve().parents[2] / "docs" / "schemas"
_TYPES: dict[str, Any] = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "null": type(None),
}
_KNOWN = {"$schema", "title", "description", "type", "properties", "required", "items", "anyOf"}


def check(name: str, text: str) -> Any:
    """A text is JSON as the schema of this name says -> its value. Raises AssertionError."""
    value = json.loads(text, parse_constant=_refused)
    _check(json.loads((SCHEMAS / f"{name}.json").read_text()), value, "$")
    return value


def _refused(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


def _is(kind: str, value: Any) -> bool:
    if kind in ("number", "integer"):
        wanted = int if kind == "integer" else int | float
        return isinstance(value, wanted) and not isinstance(value, bool)
    return isinstance(value, _TYPES[kind])


def _check(schema: dict[str, Any], value: Any, at: str) -> None:
    assert not schema.keys() - _KNOWN - {"additionalProperties"}, f"unknown words at {at}"
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    assert not kinds or any(_is(kind, value) for kind in kinds), f"{at} is {value!r}"
    if "anyOf" in schema:
        _check_any(schema["anyOf"], value, at)
    if isinstance(value, dict):
        missing = {*schema.get("required", [])} - value.keys()
        assert not missing, f"{at} lacks {missing}"
        own, others = schema.get("properties", {}), schema.get("additionalProperties", True)
        for key, inner in value.items():
            assert key in own or others is not False, f"{at}.{key} is not in the schema"
            known = own.get(key, others)
            _check(known if isinstance(known, dict) else {}, inner, f"{at}.{key}")
    for n, inner in enumerate(value if isinstance(value, list) else []):
        _check(schema.get("items", {}), inner, f"{at}[{n}]")


def _check_any(choices: list[dict[str, Any]], value: Any, at: str) -> None:
    wrong = []
    for choice in choices:
        try:
            _check(choice, value, at)
            return
        except AssertionError as error:
            wrong.append(str(error))
    raise AssertionError(f"{at}: {'; or '.join(wrong)}")
