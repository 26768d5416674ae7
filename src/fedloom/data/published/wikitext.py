"""WikiText-2: a text of words, cut into windows whose targets are the next words."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from fedloom.data.client_indices import Partition
from fedloom.data.dataset import Arrays, Samples
from fedloom.data.federated import FederatedData
from fedloom.data.published.catalogue import CATALOGUE, fetch_set
from fedloom.data.published.download import DataDir, data_root
from fedloom.data.published.files import read_text
from fedloom.data.published.vocabulary import END, by_appearance
from fedloom.data.raw_inputs import Running
from fedloom.errors import DataError

WIKITEXT2 = CATALOGUE["wikitext2"]


def wikitext2(
    partition: Partition,
    seed: int = 0,
    data_dir: DataDir = None,
    download: bool = True,
    length: int = 35,
    part: Literal["train", "valid"] = "train",
    test_samples: int | None = None,
) -> FederatedData:
    """Load WikiText-2 by words from <root>/wikitext-2: inputs (n, length) int64, targets (n,
    length) int64, the next words.

    Windows follow each other without overlap, so the partition blocks assigns stretches of text.
    Every line ends in <eos>. The vocabulary is that of the training text alone, in order of first
    appearance (33,278 words); other words of the test text are <unk>. part: the file to train on;
    "valid" (217,646 words) is for copies without wiki.train.tokens and for quick trials: its
    vocabulary is its own. test_samples: at most about so many test windows, evenly spaced; logits
    of all words for all 7,016 take a CPU minutes. The archive is downloaded if the folder is not
    there. Raises DataError for files that are missing, damaged or in another encoding.

    Source: Merity et al., ICLR 2017; length 35 as in FAFED.
    """
    root = data_root(data_dir)
    fetch_set(WIKITEXT2, root, download)
    folder = root / WIKITEXT2.place
    return load_wikitext2(folder, length, part, test_samples).divided(partition, seed)


def load_wikitext2(
    folder: Path, length: int = 35, part: str = "train", test_samples: int | None = None
) -> Arrays:
    """The arrays of WikiText-2. Raises DataError."""
    if part not in ("train", "valid"):
        raise DataError(
            f'part must be "train" or "valid", got {part!r}; the test text is for tests'
        )
    for name, value in (("length", length), ("test_samples", test_samples)):
        if value is not None and value < 1:
            raise DataError(f"{name} must be at least 1, got {value}")
    path = folder / f"wiki.{part}.tokens"
    if not path.is_file():
        hint = ""
        if (folder / "wiki.valid.tokens").is_file():
            hint = ', or train on the validation text with part="valid" (data.part=valid)'
        raise DataError(f"{path} is missing; get it from {WIKITEXT2.home}{hint}")
    words = words_of(path)
    vocabulary = by_appearance(words)
    raw = Running(vocabulary)
    test = folder / "wiki.test.tokens"
    tests = _windows(raw.store(words_of(test)), length, test)
    step = 1 if test_samples is None else -(-len(tests.inputs) // test_samples)
    return Arrays(
        name="wikitext2",
        train=_windows(raw.store(words), length, path),
        test=Samples(tests.inputs[::step], tests.targets[::step]),
        class_names=tuple(vocabulary),
        raw=raw,
        details={"part": part, "length": length, "vocabulary": len(vocabulary)},
    )


def words_of(path: Path) -> list[str]:
    """The words of a text, <eos> at the end of every line. Raises DataError."""
    words: list[str] = []
    for line in read_text(path).rstrip("\n").split("\n"):
        words += line.split()
        words.append(END)
    return words


def _windows(tokens: np.ndarray[Any, Any], length: int, path: Path) -> Samples:
    """Consecutive windows, and the same one word later; the remainder is not used."""
    count = (len(tokens) - 1) // length
    if count < 1:
        raise DataError(
            f"{path} has {len(tokens)} words, too few for a window of {length} and the next word; "
            "get the file again"
        )
    text = torch.from_numpy(tokens)
    inputs = text[: count * length].view(count, length)
    return Samples(inputs, text[1 : count * length + 1].view(count, length))
