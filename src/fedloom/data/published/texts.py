"""Texts: WikiText-2, cut into windows whose targets are the next words; AG News, as words of a
small vocabulary or the tokens of a model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple

import torch

from fedloom.core.hyper import PositiveInt, checked
from fedloom.data.client_indices import Partition
from fedloom.data.dataset import Arrays, Samples
from fedloom.data.federated import FederatedData
from fedloom.data.published.download import CATALOGUE, DataDir, data_root, fetch, fetch_set
from fedloom.data.published.files import read_rows, read_text
from fedloom.data.raw_inputs import (
    END,
    UNKNOWN,
    Raw,
    Running,
    Subwords,
    Words,
    by_appearance,
    by_frequency,
    padded,
    subwords,
)
from fedloom.errors import DataError

WIKITEXT2 = CATALOGUE["wikitext2"]


@checked
def wikitext2(
    partition: Partition,
    seed: int = 0,
    data_dir: DataDir = None,
    download: bool = True,
    length: PositiveInt = 35,
    part: Literal["train", "valid"] = "train",
    test_samples: PositiveInt | None = None,
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
    path, test = folder / f"wiki.{part}.tokens", folder / "wiki.test.tokens"
    if not path.is_file():
        hint = ""
        if (folder / "wiki.valid.tokens").is_file():
            hint = ', or train on the validation text with part="valid" (data.part=valid)'
        raise DataError(f"{path} is missing; get it from {WIKITEXT2.home}{hint}")
    words = words_of(path)
    vocabulary = by_appearance(words)
    tests = _windows(words_of(test), vocabulary, length, test)
    step = 1 if test_samples is None else -(-len(tests.inputs) // test_samples)
    return Arrays(
        name="wikitext2",
        train=_windows(words, vocabulary, length, path),
        test=Samples(tests.inputs[::step], tests.targets[::step]),
        class_names=tuple(vocabulary),
        raw=Running(tuple(vocabulary)),
        details={"part": part, "length": length, "vocabulary": len(vocabulary)},
    ).divided(partition, seed)


def words_of(path: Path) -> list[str]:
    """The words of a text, <eos> at the end of every line. Raises DataError."""
    words: list[str] = []
    for line in read_text(path).rstrip("\n").split("\n"):
        words += line.split()
        words.append(END)
    return words


def _windows(words: list[str], vocabulary: dict[str, int], length: int, path: Path) -> Samples:
    """Consecutive windows, and the same one word later; the remainder is not used."""
    count = (len(words) - 1) // length
    if count < 1:
        raise DataError(
            f"{path} has {len(words)} words, too few for a window of {length} and the next word; "
            "get the file again"
        )
    unknown = vocabulary[UNKNOWN]
    text = torch.tensor([vocabulary.get(word, unknown) for word in words])
    inputs = text[: count * length].view(count, length)
    return Samples(inputs, text[1 : count * length + 1].view(count, length))


AG_NEWS = {file.name.removesuffix(".csv"): file for file in CATALOGUE["ag_news"].files}
_WORDS = 20_000  # that a vocabulary of words has if nothing is said
NEWS_CLASSES = ("World", "Sports", "Business", "Sci/Tech")


class Labelled(NamedTuple):
    """Texts and their labels."""

    texts: list[str]
    labels: list[int]


def ag_news(
    partition: Partition,
    seed: int = 0,
    data_dir: DataDir = None,
    download: bool = True,
    length: int = 64,
    vocabulary: int = _WORDS,
    part: str = "train",
    tokeniser: str = "words",
) -> FederatedData:
    """Load AG News (120,000 + 7,600 news in 4 classes) from <root>/ag_news_csv: inputs (n, length)
    int64 numbers of words.

    A text is title and description; its first `length` words and signs count, shorter ones are
    filled up with 0. The vocabulary is that of the most frequent words of the training texts, 1
    stands for all others. tokeniser: instead of "words", a folder or a name on the hub with a
    Hugging Face tokeniser, such as "roberta-base" for the model of that name, with its own
    vocabulary and padding. part: the training file, train.csv, which is verified by its md5 and
    downloaded if it is missing; or a subset of yours, a .csv of the same columns or a .tsv of text
    and class name ("mine" reads mine.tsv). Raises DataError for files that are missing,
    damaged or in another encoding.

    Source: Zhang, Zhao and LeCun, NeurIPS 2015; length 64 as FIARSE's runs are costed here.
    """
    folder = data_root(data_dir) / "ag_news_csv"
    test = read_news(fetch(AG_NEWS["test"], folder, download))
    train = read_news(_training_file(folder, part, download))
    details: dict[str, object] = {"length": length}
    raw: Raw
    if tokeniser == "words":
        numbers = by_frequency(train.texts, vocabulary)
        inputs, tests = (padded(texts, numbers, length) for texts in (train.texts, test.texts))
        raw, count = Words(numbers, length), len(numbers)
    elif vocabulary != _WORDS:
        raise DataError(
            f"vocabulary = {vocabulary} is for words; tokeniser '{tokeniser}' has its own; drop one"
        )
    else:
        inputs, count = subwords(train.texts, tokeniser, length)
        tests, _ = subwords(test.texts, tokeniser, length)
        details["tokeniser"], raw = tokeniser, Subwords(tokeniser, length)
    details |= {"vocabulary": count} | ({} if part == "train" else {"part": part})
    return Arrays(
        name="ag_news",
        train=Samples(inputs, torch.tensor(train.labels)),
        test=Samples(tests, torch.tensor(test.labels)),
        class_names=NEWS_CLASSES,
        raw=raw,
        details=details,
    ).divided(partition, seed)


def _training_file(folder: Path, part: str, download: bool) -> Path:
    if part == "train":
        others = sorted(p.stem for p in folder.glob("train-*") if p.suffix in (".csv", ".tsv"))
        try:
            return fetch(AG_NEWS["train"], folder, download)
        except DataError as error:
            if not others or (folder / "train.csv").is_file():
                raise
            raise DataError(
                f"{error}; or train on a subset that is there: part={others[0]!r} "
                f"(data.part={others[0]})"
            ) from error
    for ending in (".csv", ".tsv"):
        path = folder / f"{part}{ending}"
        if path.parent == folder and path.is_file():
            return path
    raise DataError(f"part {part!r}: {folder} has no file {part}.csv or {part}.tsv")


def read_news(path: Path) -> Labelled:
    """Texts and labels from 0 of a .csv (class 1..4, title, description) or a .tsv (text, class
    name). Raises DataError naming the row.
    """
    if path.suffix == ".tsv":
        numbers = {name: i for i, name in enumerate(NEWS_CLASSES)}
        rows = ((text, name) for text, name in read_rows(path, columns=2, tabs=True))
    else:
        numbers = {str(i + 1): i for i in range(len(NEWS_CLASSES))}
        rows = ((f"{title} {text}", name) for name, title, text in read_rows(path, columns=3))
    labelled = Labelled([], [])
    for number, (text, name) in enumerate(rows, start=1):
        if name not in numbers:
            raise DataError(
                f"{path}, row {number}: class {name!r}; known: {', '.join(numbers)}; the file is "
                "altered: get it again"
            )
        labelled.texts.append(text.replace("\\", " "))  # a backslash stands for a line's end
        labelled.labels.append(numbers[name])
    if not labelled.texts:
        raise DataError(f"{path} has no rows; get it again")
    return labelled
