"""Words and vocabularies: small, deterministic, made from the training text only."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedloom.core.extras import need
from fedloom.errors import DataError

PADDING, UNKNOWN, END = "<pad>", "<unk>", "<eos>"
_WORD = re.compile(r"\w+(?:'\w+)?|[^\w\s]")  # a word with its apostrophe, or one sign


def split_words(text: str) -> list[str]:
    """The lower-case words and signs of a text.

    >>> split_words("It's 10 o'clock, Sam.")
    ["it's", '10', "o'clock", ',', 'sam', '.']
    """
    return _WORD.findall(text.lower())


def by_frequency(texts: Iterable[str], size: int) -> dict[str, int]:
    """Number the `size` - 2 most frequent words from 2, the more frequent first, among equals the
    earlier; 0 is padding, 1 any other word. Raises DataError for a size below 3.

    >>> by_frequency(["b a", "b c"], size=4)
    {'<pad>': 0, '<unk>': 1, 'b': 2, 'a': 3}
    """
    if size < 3:
        raise DataError(f"vocabulary must be at least 3 (padding, unknown, a word), got {size}")
    counts = Counter(word for text in texts for word in split_words(text))
    words = [word for word, _ in counts.most_common(size - 2)]
    return {word: i for i, word in enumerate([PADDING, UNKNOWN, *words])}


def padded(texts: Sequence[str], vocabulary: Mapping[str, int], length: int) -> Tensor:
    """The first `length` words of every text as numbers, (n, length) int64, padded with 0.

    >>> padded(["b z"], {"<pad>": 0, "<unk>": 1, "b": 2}, length=3).tolist()
    [[2, 1, 0]]
    """
    if length < 1:
        raise DataError(f"length must be at least 1, got {length}")
    unknown = vocabulary[UNKNOWN]
    out = np.full((len(texts), length), vocabulary[PADDING], dtype=np.int64)
    for row, text in enumerate(texts):
        words = split_words(text)[:length]
        out[row, : len(words)] = [vocabulary.get(word, unknown) for word in words]
    return torch.from_numpy(out)


def subwords(texts: Sequence[str], source: str, length: int) -> tuple[Tensor, int]:
    """The first `length` tokens of texts by a Hugging Face tokeniser, (n, length) int64, with its
    own padding; and the size of its vocabulary.

    source: a folder, or a name on the hub. Needs the extra fedloom[text]. Raises DataError.
    """
    if length < 1:
        raise DataError(f"length must be at least 1, got {length}")
    library = need("transformers", f"tokeniser '{source}'", "text", DataError)
    try:
        tokeniser = library.AutoTokenizer.from_pretrained(source)
        encoded = tokeniser(list(texts), truncation=True, max_length=length, padding="max_length")
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        why = next((line for line in str(error).splitlines() if line.strip()), "")
        raise DataError(
            f"tokeniser '{source}' cannot be used: {why}; give a folder with one that pads, or "
            "its name on the hub and a network"
        ) from None
    return torch.tensor(encoded["input_ids"], dtype=torch.int64), len(tokeniser)


def by_appearance(words: Iterable[str]) -> dict[str, int]:
    """Number words from 0 in the order in which they appear first, then <unk> if none is.

    >>> by_appearance(["b", "a", "b"])
    {'b': 0, 'a': 1, '<unk>': 2}
    """
    numbers = {word: i for i, word in enumerate(dict.fromkeys(words))}
    numbers.setdefault(UNKNOWN, len(numbers))
    return numbers


def numbers(words: Sequence[str], vocabulary: Mapping[str, int]) -> np.ndarray[Any, Any]:
    """Words as numbers, (n,) int64; unknown ones as <unk>."""
    unknown = vocabulary[UNKNOWN]
    return np.fromiter((vocabulary.get(w, unknown) for w in words), np.int64, count=len(words))
