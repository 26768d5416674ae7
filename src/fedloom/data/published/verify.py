"""Whether a copy of a published set is the published one.

Files with published checksums are verified by them; for the others the numbers of writers, windows
or words are known. If neither fits, the message names the part that is there.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from fedloom.data.published.catalogue import CATALOGUE, Entry, fetch_set
from fedloom.data.published.download import fetch, verify
from fedloom.data.published.heart import heart_files
from fedloom.data.published.images import digits
from fedloom.data.published.leaf import HOME as LEAF
from fedloom.data.published.leaf import leaf_files, leaf_users, load_femnist
from fedloom.data.published.shakespeare import load_shakespeare
from fedloom.data.published.tcga import tcga
from fedloom.data.published.text_classification import read_news
from fedloom.data.published.tiny_imagenet import tiny_files
from fedloom.data.published.wikitext import words_of
from fedloom.errors import DataError

VERIFIED, SUBSET, MISSING, DAMAGED = STATES = ("verified", "subset", "missing", "damaged")


class Finding(NamedTuple):
    """The result for a copy: one of STATES, and why."""

    state: str
    detail: str


def check(name: str, root: Path) -> Finding:
    """Whether the copy of a set below root is the published one."""
    entry = CATALOGUE[name]
    folder = root / entry.place
    if entry.place and not folder.is_dir():
        return Finding(MISSING, f"no folder {folder}; from {entry.home}")
    try:
        return LOOKS.get(name, _by_md5)(entry, folder)
    except DataError as error:
        return Finding(DAMAGED, str(error))


def get(name: str, root: Path) -> Finding:
    """Download a set into root unless it is there, and check it. Raises DataError for one that
    cannot be downloaded or is damaged.
    """
    entry = CATALOGUE[name]
    fetch_set(entry, root)
    finding = check(name, root)
    if finding.state == MISSING:
        origin = f"it is from {entry.home}"
        if entry.home == LEAF:
            script = f"data/{Path(entry.place).name}/preprocess.sh"
            origin = f"its files are made by LEAF's script {script} ({LEAF})"
        raise DataError(f"{name} has no download: {origin}; put it into {root / entry.place}")
    if finding.state == DAMAGED:
        raise DataError(finding.detail)
    return finding


# ------------------------------------------------------------------------------------- by checksum
def _by_md5(entry: Entry, folder: Path) -> Finding:
    for file in entry.files:
        fetch(file, folder, download=False)
    return Finding(VERIFIED, f"by md5: {', '.join(file.name for file in entry.files)}")


def _look_news(entry: Entry, folder: Path) -> Finding:
    train, test = entry.files
    verify(folder / test.name, test.md5, test.url)
    if (folder / train.name).is_file():
        verify(folder / train.name, train.md5, train.url)
        return Finding(VERIFIED, "train.csv and test.csv by their md5")
    parts = []
    for path in sorted(folder.glob("train-*")):
        parts.append(f"{path.name} with {len(read_news(path).texts):,} of 120,000")
    return Finding(SUBSET, f"test.csv by its md5; {', '.join(parts) or 'no training texts'}")


# ---------------------------------------------------------------------------------------- by count
def _compare(detail: str, counts: tuple[int, ...], *whole: tuple[int, ...]) -> Finding:
    """The finding where only numbers are published; whole: one of them must be found."""
    if counts in whole:
        return Finding(VERIFIED, f"{detail}, as many as are published")
    return Finding(SUBSET, f"{detail}; the whole has {' and '.join(f'{n:,}' for n in whole[0])}")


def _look_digits(entry: Entry, folder: Path) -> Finding:
    data = digits()
    count = len(data.inputs) + len(data.test_targets if data.test_targets is not None else ())
    return _compare(f"{count:,} images inside scikit-learn", (count,), (1_797,))


def _look_heart(entry: Entry, folder: Path) -> Finding:
    return Finding(VERIFIED, f"{len(heart_files())} files by their md5")


def _look_tcga(entry: Entry, folder: Path) -> Finding:
    data = tcga(data_dir=folder.parent)
    tests = 0 if data.test_inputs is None else len(data.test_inputs)
    return Finding(VERIFIED, f"{len(data.inputs) + tests:,} patients, 2 files by their md5")


def _look_tiny(entry: Entry, folder: Path) -> Finding:
    numbers, train, test = tiny_files(folder)
    missing = [path for path, _ in test if not path.is_file()]
    if missing:
        raise DataError(f"{missing[0]} is missing; get it from {entry.home}")
    counts = (len(train), len(test), len(numbers))
    words = "{:,} training and {:,} validation pictures of {} classes"
    return _compare(words.format(*counts), counts, (100_000, 10_000, 200))


def _owners(owners: Tensor | None) -> tuple[int, int]:
    """The number of owners, and of samples with an owner."""
    if owners is None:
        return 0, 0
    counts = torch.bincount(owners[owners >= 0])
    return int((counts > 0).sum()), int(counts.sum())


def _look_femnist(entry: Entry, folder: Path) -> Finding:
    data = load_femnist(folder)
    assert data.owners is not None and data.test_owners is not None
    (writers, train), (tests, test) = _owners(data.owners), _owners(data.test_owners)
    everyone, count = _owners(torch.cat([data.owners, data.test_owners]))
    detail = f"{writers} writers, {train:,} training and {test:,} test images (of {tests} writers)"
    # the paper's, and what LEAF's scripts give now
    return _compare(detail, (everyone, count), (3_550, 805_263), (3_597, 817_851))


def _look_celeba(entry: Entry, folder: Path) -> Finding:
    files = leaf_files(folder)
    names: set[str] = set()
    pictures: set[str] = set()
    for user in leaf_users(files["train"] + files["test"]):
        names.add(user.name)
        pictures.update(map(str, user.data.get("x", [])))
    present = {path.name for path in (folder / "img_align_celeba").glob("*")}
    if lacking := sorted(pictures - present):
        raise DataError(
            f"{folder / 'img_align_celeba' / lacking[0]} is missing, and {len(lacking) - 1} others"
        )
    counts = (len(names), len(pictures))
    return _compare("{:,} celebrities, {:,} pictures".format(*counts), counts, (9_343, 200_288))


def _look_shakespeare(entry: Entry, folder: Path) -> Finding:
    data = load_shakespeare(folder)
    (roles, train), (_, test) = _owners(data.owners), _owners(data.test_owners)
    detail = f"{roles:,} roles, {train:,} training and {test:,} test windows"
    # the first 0.9 of each role for training, and no test window that overlaps them
    return _compare(detail, (roles, train, test), (1_129, 3_803_027, 356_921))


_WORDS = {"train": 2_088_628, "valid": 217_646, "test": 245_569}


def _look_wikitext(entry: Entry, folder: Path) -> Finding:
    paths = {part: folder / f"wiki.{part}.tokens" for part in _WORDS}
    available = {part: path for part, path in paths.items() if path.is_file()}
    for part, path in available.items():
        if (size := len(words_of(path))) != (count := _WORDS[part]):
            raise DataError(f"{path} has {size:,} words, published are {count:,}; get it again")
    if not available:
        raise DataError(f"{folder} holds no wiki.*.tokens; get them from {entry.home}")
    if lacking := ", ".join(part for part in _WORDS if part not in available):
        detail = f"{' and '.join(available)} by their numbers of words; missing: {lacking}"
        return Finding(SUBSET, detail)
    return Finding(VERIFIED, "train, valid and test by their numbers of words")


# (entry, folder) -> the finding of a copy that exists; of others whether the files have their md5
LOOKS = {
    "digits": _look_digits,
    "heart": _look_heart,
    "tiny_imagenet": _look_tiny,
    "femnist": _look_femnist,
    "celeba": _look_celeba,
    "shakespeare": _look_shakespeare,
    "wikitext2": _look_wikitext,
    "ag_news": _look_news,
    "tcga": _look_tcga,
}
