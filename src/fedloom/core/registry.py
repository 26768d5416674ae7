"""Registries of names: algorithms, models, codecs, and all else that a setting names."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from ..errors import ConfigError, did_you_mean, unknown

T = TypeVar("T")  # an entry: a class, a function that makes something, a text
_SHORT = re.compile(
    r"\b(Eq|Eqs|al|Sec|App|Alg|cf|e\.g|i\.e)$"
)  # abbreviations, which end no sentence


class Registry(Mapping[str, T]):
    """{name: entry}, in a fixed order. A pair (entry, label) gives it a label for tables and
    legends.

    kind: what errors and `fedloom show` call an entry.

    >>> numbers = Registry("number", {"whole": (int, "integer"), "part": float})
    >>> numbers.make("part"), numbers.label("whole"), numbers.label("part")
    (0.0, 'integer', 'part')
    """

    def __init__(self, kind: str, entries: Mapping[str, T | tuple[T, str]]) -> None:
        self.kind = kind
        pairs = {k: e if isinstance(e, tuple) else (e, k) for k, e in entries.items()}
        self._entries: dict[str, T] = {name: what for name, (what, _) in pairs.items()}
        self._labels = {name: label for name, (_, label) in pairs.items()}

    def __getitem__(self, name: str) -> T:
        return self._entries[name]

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def known(self, name: str) -> T:
        """The entry of a name. Raises ConfigError for an unknown name."""
        if name not in self:
            raise ConfigError(unknown(self.kind, name, self))
        return self[name]

    def make(self, name: str, **options: Any) -> Any:
        """Make an entry with these options. Raises ConfigError for an unknown name or option."""
        make: Any = self.known(name)
        allowed = inspect.signature(make).parameters
        for key in options:
            if key not in allowed:
                hint = did_you_mean(key, allowed)
                raise ConfigError(f"{self.kind} '{name}' has no option '{key}'; {hint}")
        return make(**options)

    def label(self, name: str) -> str:
        """The name in tables and legends: the label, or the name itself."""
        return self._labels.get(name, name)

    def first_line(self, name: str) -> str:
        """The first sentence of an entry's description."""
        text = " ".join(said(self[name]).split("\n\n")[0].split("\n"))
        ends = (m.start() for m in re.finditer(r"\. (?=[A-Z])", text))
        end = next((at for at in ends if not _SHORT.search(text[:at])), None)
        return text[:end].removesuffix(".")


def said(what: Any) -> str:
    """The description of an entry: a text itself, a table's `about`, or a docstring."""
    text = what if isinstance(what, str) else getattr(what, "about", None)
    return text if isinstance(text, str) else inspect.getdoc(what) or ""
