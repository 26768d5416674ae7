"""Samples as they are published, and the tensors that are stored of them.

A loader makes its inputs by one of these, and an exported model includes it: a user of the model
has images and texts, not our tensors.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from fedloom.core.extras import need
from fedloom.data.transforms import Images, Tokens, Transform
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


# stands for an unknown word: one sign that no text has
_STRANGE = "\x01"


@runtime_checkable
class Raw(Protocol):
    """Converts published samples to stored ones."""

    def about(self) -> dict[str, Any]:
        """A description, fit for JSON: `kind`, and what that kind needs."""
        ...

    def back(self, stored: Tensor) -> Any:
        """Published samples from stored ones: an array, or a list of texts."""
        return stored.numpy()


@dataclass(frozen=True)
class Pixels:
    """Whole numbers as (pixel / scale - mean) / std, float32.

    >>> Pixels(16).store(np.array([[8]])), Pixels(16).back(torch.tensor([[0.5]])).tolist()
    (tensor([[0.5000]]), [[8]])
    """

    scale: float
    mean: float = 0.0
    std: float = 1.0

    def store(self, pixels: Any) -> Tensor:
        """Pixels of any shape -> float32 of that shape."""
        values = torch.from_numpy(np.asarray(pixels).astype(np.float32))
        return values.div_(self.scale).sub_(self.mean).div_(self.std)

    def back(self, stored: Tensor) -> np.ndarray[Any, Any]:
        """Stored inputs of any shape -> pixels of that shape, uint8, to the nearest integer."""
        values = (stored.double().numpy() * self.std + self.mean) * self.scale
        return np.rint(values).astype(np.uint8)

    def about(self) -> dict[str, Any]:
        """Kind "pixels"; dtype: in which they are normalised."""
        numbers = {"scale": self.scale, "mean": [self.mean], "std": [self.std]}
        return {"kind": "pixels", **numbers, "dtype": "float32"}


@dataclass(frozen=True)
class Words(Raw):
    """The first `length` words as numbers (n, length) int64; 0 is padding, 1 any unknown word."""

    vocabulary: Mapping[str, int]
    length: int

    def back(self, stored: Tensor) -> list[str]:
        """Texts of the same words."""
        names = {i: word for word, i in self.vocabulary.items()}
        names[self.vocabulary[UNKNOWN]] = _STRANGE
        end = self.vocabulary[PADDING]
        return [" ".join(names[i] for i in row if i != end) for row in stored.tolist()]

    def about(self) -> dict[str, Any]:
        """Kind "words", with the words in the order of their numbers."""
        return {"kind": "words", "length": self.length, "words": list(self.vocabulary)}


@dataclass(frozen=True)
class Subwords(Raw):
    """The first `length` tokens by a Hugging Face tokeniser; the texts are not kept."""

    source: str
    length: int

    def about(self) -> dict[str, Any]:
        """Kind "subwords", with the tokeniser and the number of tokens."""
        return {"kind": "subwords", "source": self.source, "length": self.length}


@dataclass(frozen=True)
class Running(Raw):
    """A stretch of a text whose words are set apart by spaces, by their numbers. words: in the
    order of these.
    """

    words: Iterable[str]
    kind: ClassVar[str] = "running"
    between: ClassVar[str] = " "

    def back(self, stored: Tensor) -> list[str]:
        """Numbers (n, length) -> n texts of that many words."""
        words = [*self.words]
        return [self.between.join(words[i] for i in row) for row in stored.tolist()]

    def about(self) -> dict[str, Any]:
        """Kind "running" or "characters", with the words in the order of their numbers."""
        return {"kind": self.kind, "words": [*self.words]}


class Characters(Running):
    """Texts of one length by their characters' places in an alphabet; an unknown character counts
    as the last one.
    """

    kind = "characters"
    between = ""


@dataclass(frozen=True)
class Columns(Raw):
    """Numbers in columns of a table, in this order."""

    names: tuple[str, ...]

    def about(self) -> dict[str, Any]:
        """Kind "numbers", with the names of the columns."""
        return {"kind": "numbers", "columns": list(self.names)}


@dataclass(frozen=True)
class Resized(Raw):
    """Pixels of picture files that were brought to the inputs' size by open_picture()."""

    def about(self) -> dict[str, Any]:
        """Beside what `Images` says."""
        return {"resized": True}


@dataclass(frozen=True)
class Undescribed(Raw):
    """Inputs that no description makes."""

    def about(self) -> dict[str, Any]:
        """Kind "unknown" and nothing else."""
        return {"kind": "unknown"}


def recipe(raw: Raw | None, transform: Transform | None, inputs: Tensor) -> dict[str, Any]:
    """How samples become the model's inputs in evaluation, fit for JSON.

    kind: of the Raw, or "pixels" for `Images`, "numbers" for no conversion, "own" for a transform
    of the user's, which no file can hold. shape: of an input; dtype: of numbers.
    """
    shape = {"shape": list(inputs.shape[1:])}
    if type(transform) is Images:
        by: dict[str, Any] = {"mean": list(transform.mean), "std": list(transform.std)}
        by |= raw.about() if isinstance(raw, Resized) else {}
        return {"kind": "pixels", "scale": 255, **by, "dtype": _name(transform.dtype)} | shape
    if transform is not None and type(transform) is not Tokens:
        return {"kind": "own", "transform": type(transform).__name__} | shape
    kind = raw.about() if raw is not None else {"kind": "numbers", "columns": []}
    dtype = _name(inputs.dtype if transform is None else transform.out)
    return {"dtype": dtype} | kind | shape


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
