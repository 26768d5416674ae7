"""Settings from a recipe or a TOML file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..core.own_parts import is_own
from ..core.parsing import is_file, read_toml, user_path
from ..errors import ConfigError, unknown
from ..recipes import RECIPES
from .own_code import placed_in


def load(source: str | Path) -> tuple[dict[str, Any], str, str]:
    """A recipe's name or a file -> settings, the source's name in errors, a name for the run.

    Raises ConfigError if it is neither.
    """
    text = str(source)
    if text in RECIPES:
        return RECIPES[text](), f"recipe '{text}'", text
    path = user_path(source)
    if is_file(path / "config.toml"):
        path = path / "config.toml"
    if is_file(path) or path.suffix == ".toml":
        raw = read(path)
        if raw.get("source") == "python":
            raise ConfigError(
                f"'{path}' describes a run that was started from Python, which made its model and "
                "data; run that code again, or write a file from `fedloom show digits`"
            )
        return raw, f"file '{path}'", path.stem
    if is_own(text):
        raise ConfigError(
            f"'{text}' is a part, and not what it runs on; give a recipe or a TOML file too, "
            f"as in digits algorithm={text}"
        )
    raise ConfigError(unknown(RECIPES.kind, text, RECIPES))


def read(path: Path) -> dict[str, Any]:
    """The settings of a TOML file; paths of own parts are seen from its folder. Raises ConfigError
    on one line.
    """
    return placed_in(read_toml(path), path.parent)
