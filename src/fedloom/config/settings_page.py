"""docs/settings.md: every key of a configuration, read from the code."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from typing import Any

from .help_texts import EXTRA, OPTIMISERS, TABLES, Setting, options_of, settings_in
from .overrides import REGISTRIES

_HEAD = """# Settings
Made by `make docs` from the code; `fedloom show NAME` prints the same. How settings are written, in
a file and on the command line: [cli.md](cli.md). The options of methods stand on their
[pages](algorithms/README.md).
"""
_TITLES = {
    "server": "what the server does with the mean client update",
    "model": "the network",
    "data": "the examples",
    "data.partition": "which examples belong to which client",
    "local.schedule": "what the local rate is multiplied by",
    "objective": "the loss at the clients",
    "submodel": "which part of the model a weak client holds",
    "private": "which layers each client keeps for itself",
    "compress": "how client updates and broadcasts are compressed",
    "choose": "which clients take part, where they are not drawn",
    "devices": "how fast clients are, for simulated seconds",
    "clock": "when the server makes its step",
    "aggregation": "what the server makes of a round's client updates",
    "attack": "what hostile clients do, to see what an aggregation is worth",
    "tracker": "who else sees the settings and the rows of every round",
}


def as_markdown() -> str:
    """The page."""
    out = [_HEAD]
    for name, table in TABLES.items():
        title = "Outside of tables" if name == "run" else f"[{name}]"
        out += [f"## {title}", *_prose(table), "", *_grid(settings_in(name), "meaning"), ""]
        if name == "local":
            out += ["`local.optimiser`:", ""]
            out += [*(f"- `{key}`: {text}" for key, text in OPTIMISERS.items()), ""]
    for path, title in _TITLES.items():
        out += [f"## [{path}]: {title}", ""]
        if path in EXTRA:
            out += [*_grid(EXTRA[path], "meaning"), ""]
        for name, make in REGISTRIES[path].items():
            out += [f"### {path} = {name}", *_prose(make), ""]
            if options := options_of(path, name):
                out += [*_grid(options, "source"), ""]
    return "\n".join(out).rstrip() + "\n"


def _grid(settings: Iterable[Setting], last: str) -> list[str]:
    lines = list(settings)
    heads = ["key", "default", "allowed", *([last] if any(s.about for s in lines) else [])]
    rows = [[f"`{s.key}`", s.default, s.allowed, s.about][: len(heads)] for s in lines]
    return [_row(heads), _row(["---"] * len(heads)), *map(_row, rows)]


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _prose(make: Any) -> list[str]:
    """A docstring without its examples, with angle brackets and stars escaped."""
    text = (inspect.getdoc(make) or "").partition(">>>")[0].rstrip()
    for sign in "\\*_<":
        text = text.replace(sign, f"\\{sign}")
    return text.splitlines()
