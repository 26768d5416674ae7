"""What somebody or another program wrote: TOML, JSON, a path. What is wrong is one short line."""

from __future__ import annotations

import codecs
import json
import os
import tomllib
from pathlib import Path
from typing import Any

from ..errors import ConfigError

_DEPTH = 50  # tables in tables: settings have four
_LARGEST = 10**300  # of whole numbers: what a float can hold
_WIDE = {
    "UTF-32": (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE),  # first: its mark begins with UTF-16's
    "UTF-16": (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE),
}


class SizeError(ValueError):
    """TOML or JSON that is written right, and holds what no setting is as large as."""


def shortened(text: str) -> str:
    """A text for an error, cut at 60 characters."""
    return text if len(text) <= 60 else f"{text[:57]}..."


def one_line(text: str, most: int = 500) -> str:
    """A text of others, for a log: without line ends and whatever else a terminal would obey.

    >>> one_line("a\\n\\x1b[2Jb")
    'a [2Jb'
    """
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())[:most]


def decoded(raw: bytes) -> str:
    """UTF-8 as text, without the byte order mark that some editors write, lines ending in a line
    feed. Raises ValueError.

    >>> decoded(b"\\xef\\xbb\\xbfrounds = 3")
    'rounds = 3'
    """
    for name, marks in _WIDE.items():
        if raw.startswith(marks):
            raise ValueError(f"is {name} text; save it as UTF-8")
    try:
        return raw.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"is not UTF-8 text: byte 0x{raw[error.start]:02x} at {error.start}; save it as "
            "UTF-8, for example with iconv -f LATIN1 -t UTF-8"
        ) from None


def parse_toml(text: str) -> dict[str, Any]:
    """TOML whose numbers and tables have the size of settings. Raises ValueError, and SizeError for
    TOML that is larger.
    """
    try:
        table = tomllib.loads(text)
    except RecursionError:
        raise SizeError(f"it is nested deeper than the {_DEPTH} levels that are read") from None
    except tomllib.TOMLDecodeError as error:
        raise ValueError(str(error).splitlines()[0]) from None
    except ValueError:  # Python's limit of digits
        raise SizeError("it holds a whole number of thousands of digits") from None
    _check_sizes(table)
    return table


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file. Raises ConfigError on one line."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"'{path}' cannot be read: {error.strerror}; give a TOML file or a recipe "
            "(see `fedloom list recipes`)"
        ) from None
    try:
        text = decoded(raw)
    except ValueError as error:
        raise ConfigError(f"'{path}' {error}") from None
    try:
        return parse_toml(text)
    except SizeError as error:
        raise ConfigError(f"'{path}' cannot be used: {error}") from None
    except ValueError as error:
        raise ConfigError(f"'{path}' is not TOML: {error}") from None


def parse_json(text: str | bytes) -> Any:
    """JSON. Raises ValueError."""
    try:
        return json.loads(text)
    except RecursionError:
        raise SizeError("it is nested too deep") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"{error.msg} at character {error.pos}") from None
    except ValueError:
        raise SizeError("it holds a whole number of thousands of digits") from None


def user_path(path: str | os.PathLike[str]) -> Path:
    """A path that a user gave, with ~ or ~NAME at its beginning as that home folder.

    >>> user_path("~/runs/a") == Path.home() / "runs" / "a", str(user_path("runs/~"))
    (True, 'runs/~')
    """
    return Path(os.path.expanduser(path))


def is_file(path: str | Path) -> bool:
    """Whether there is such a file; False for what cannot be a name, such as thousands of letters.

    >>> is_file("x" * 5000), is_file("a\\0b")
    (False, False)
    """
    try:
        return Path(path).is_file()
    except (OSError, ValueError):
        return False


def _check_sizes(tree: Any) -> None:
    """Raise SizeError for what is nested too deep, or a whole number beyond all use."""
    level = [tree]
    for _ in range(_DEPTH):
        inner: list[Any] = []
        for value in level:
            if isinstance(value, int) and abs(value) > _LARGEST:
                raise SizeError(f"it holds a whole number of {len(str(abs(value)))} digits")
            if isinstance(value, dict):
                inner.extend(value.values())
            elif isinstance(value, list):
                inner.extend(value)
        if not inner:
            return
        level = inner
    raise SizeError(f"it is nested deeper than the {_DEPTH} levels that are read")
