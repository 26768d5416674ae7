"""A text of a few hundred words in WikiText-2's layout, for language models at scale smoke."""

from __future__ import annotations

from pathlib import Path

from ..storage.atomic import write_atomic

_WORDS = 18  # and <eos>, <unk>: twenty symbols


def write_text(folder: Path) -> Path:
    """Write the text below a folder, if it is not there -> the folder's whole path."""
    home = folder / "wikitext-2"
    home.mkdir(parents=True, exist_ok=True)
    for name, length in (("valid", 1200), ("test", 200)):
        file = home / f"wiki.{name}.tokens"
        if not file.is_file():
            words = ["<unk>", *_words(length)]
            lines = (" ".join(words[at : at + 20]) for at in range(0, len(words), 20))
            write_atomic(file, "\n".join(lines) + "\n")
    return folder.absolute()


def _words(length: int) -> list[str]:
    """Words in an order of no meaning, always the same (a linear congruential sequence)."""
    out, state = [], 1
    for _ in range(length):
        state = (1_103_515_245 * state + 12_345) % 2**31
        out.append(f"w{(state >> 16) % _WORDS}")
    return out
