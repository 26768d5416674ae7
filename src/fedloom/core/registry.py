"""Registries of names: algorithms, models, codecs, and all else that a setting names."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from ..errors import ConfigError, did_you_mean, unknown
from .own_parts import explained, find, is_own, short, split

T = TypeVar("T")  # an entry: a class, a function that makes something, a text
_SHORT = re.compile(
    r"\b(Eq|Eqs|al|Sec|App|Alg|cf|e\.g|i\.e)$"
)  # abbreviations, which end no sentence


class Registry(Mapping[str, T]):
    """{name: entry}, in a fixed order. A pair (entry, label) gives it a label for tables and
    legends.

    kind: what errors and `fedloom show` call an entry. own: what a user's own part must be, which
    is named by its file (own_parts.py); without it there is none. made_of: from a user's own
    function to an entry, where that is not a function which makes one.

    >>> numbers = Registry("number", {"whole": (int, "integer"), "part": float})
    >>> numbers.make("part"), numbers.label("whole"), numbers.label("part")
    (0.0, 'integer', 'part')
    """

    def __init__(
        self,
        kind: str,
        entries: Mapping[str, T | tuple[T, str]],
        own: type | None = None,
        made_of: Callable[[Any], Any] = lambda function: function,
    ) -> None:
        self.kind, self.own, self._made_of = kind, own, made_of
        pairs = {k: e if isinstance(e, tuple) else (e, k) for k, e in entries.items()}
        self._entries: dict[str, T] = {name: entry for name, (entry, _) in pairs.items()}
        self._labels = {name: label for name, (_, label) in pairs.items()}

    def __getitem__(self, name: str) -> T:
        return self._own_part(name) if self.own and is_own(name) else self._entries[name]

    def _own_part(self, name: str) -> Any:
        """A user's own part. Raises ConfigError for what is no part of this kind, or not loaded."""
        assert self.own is not None
        part = find(name)
        if not isinstance(part, type):
            if callable(part) and not isinstance(part, self.own):
                return self._made_of(part)
            kind = "one already" if isinstance(part, self.own) else "no class or function"
            raise ConfigError(f"{self.kind} '{short(name)}' is {kind}; give the name of a class")
        if not issubclass(part, self.own):
            raise ConfigError(
                f"'{short(name)}' is no {self.kind}: the class does not extend {self.own.__name__}"
            )
        if lacks := sorted(getattr(part, "__abstractmethods__", ())):
            raise ConfigError(f"'{short(name)}' has no {', '.join(lacks)}; write them")
        return part

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def entry(self, name: str) -> T:
        """The entry of a name. Raises ConfigError for an unknown name."""
        if name not in self and not (self.own and is_own(name)):
            raise ConfigError(unknown(self.kind, name, self))
        return self[name]

    def make(self, name: str, **options: Any) -> Any:
        """Make an entry with these options. Raises ConfigError for an unknown name or option."""
        make: Any = self.entry(name)
        allowed = inspect.signature(make).parameters
        for key in options:
            if key not in allowed:
                hint = did_you_mean(key, allowed)
                message = f"{self.kind} '{short(name)}' has no option '{key}'; {hint}"
                raise ConfigError(message)
        if not is_own(name):
            return make(**options)
        with explained(name):
            part = make(**options)
        if not isinstance(part, self.own or object):
            assert self.own is not None
            raise ConfigError(
                f"{self.kind} '{short(name)}' gives a {type(part).__name__}, and must give "
                f"a {self.own.__name__}"
            )
        return part

    def label(self, name: str) -> str:
        """The name in tables and legends: the label, or the name itself; of a user's own part the
        name without its file.
        """
        return self._labels.get(name, split(name)[1] if is_own(name) else name)

    def first_line(self, name: str) -> str:
        """The first sentence of an entry's description."""
        text = " ".join(description_of(self[name]).split("\n\n")[0].split("\n"))
        ends = (m.start() for m in re.finditer(r"\. (?=[A-Z])", text))
        end = next((i for i in ends if not _SHORT.search(text[:i])), None)
        return text[:end].removesuffix(".")


def description_of(entry: Any) -> str:
    """The description of an entry: a text itself, a table's `about`, or a docstring."""
    text = entry if isinstance(entry, str) else getattr(entry, "about", None)
    return text if isinstance(text, str) else inspect.getdoc(entry) or ""
