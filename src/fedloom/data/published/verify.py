"""Whether a copy of a published set is the published one: by checksums, or where there are none by
the numbers of writers, windows or words that the catalogue has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from fedloom.data.dataset import Arrays
from fedloom.data.published.download import CATALOGUE, Entry, fetch, fetch_set, verify
from fedloom.data.published.images import tiny_files
from fedloom.data.published.leaf import HOME as LEAF
from fedloom.data.published.leaf import leaf_files, leaf_users, load_femnist, load_shakespeare
from fedloom.data.published.texts import read_news, words_of
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
    if not entry.place:
        return Finding(VERIFIED, f"comes along, from {entry.home}")
    if not folder.is_dir():
        return Finding(MISSING, f"no folder {folder}; from {entry.home}")
    try:
        if name in COUNTS:
            return _compare(entry, COUNTS[name](folder))
        return _by_md5(entry, folder)
    except DataError as error:
        return Finding(DAMAGED, str(error))


def get(name: str, root: Path) -> Finding:
    """Download a set into root unless it is there, and check it. Raises DataError for one that
    cannot be downloaded or is damaged.
    """
    entry = CATALOGUE[name]
    if entry.downloads:
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


def _by_md5(entry: Entry, folder: Path) -> Finding:
    """The finding by checksums; of AG News a part of the training texts will do."""
    names = ", ".join(file.name for file in entry.files)
    parts = sorted(folder.glob("train-*")) if entry.name == "ag_news" else []
    if parts and not (folder / "train.csv").is_file():
        (test,) = (file for file in entry.files if file.name == "test.csv")
        verify(folder / test.name, test.md5, test.url)
        texts = [f"{path.name} with {len(read_news(path).texts):,} of 120,000" for path in parts]
        return Finding(SUBSET, f"test.csv by its md5; {', '.join(texts)}")
    for file in entry.files:
        fetch(file, folder, download=False)
    return Finding(VERIFIED, f"by md5: {names}")


def _compare(entry: Entry, counts: Sequence[int]) -> Finding:
    """The finding where only numbers are published."""
    whole = next((c for c in entry.counts if [*counts] == [*c]), None)
    published = zip(counts, whole or entry.counts[0], entry.units, strict=True)
    lines = [f"{n:,} of {all_of:,} {unit}" for n, all_of, unit in published]
    return Finding(SUBSET if whole is None else VERIFIED, ", ".join(lines))


def _owners(data: Arrays) -> tuple[int, int]:
    """How many owners there are, and samples with an owner."""
    whose = [s.owners for s in (data.train, data.test) if s is not None and s.owners is not None]
    owners = torch.cat(whose)
    return len({*owners.tolist()} - {-1}), int((owners >= 0).sum())


def _celebrities(folder: Path) -> tuple[int, int]:
    names: set[str] = set()
    pictures: set[str] = set()
    files = leaf_files(folder)
    for user in leaf_users(files["train"] + files["test"]):
        names.add(user.name)
        pictures.update(map(str, user.data.get("x", [])))
    home = folder / "img_align_celeba"
    if lacking := sorted(pictures - {path.name for path in home.glob("*")}):
        raise DataError(f"{home / lacking[0]} is missing, and {len(lacking) - 1} others")
    return len(names), len(pictures)


def _tiny(folder: Path) -> tuple[int, int, int]:
    numbers, train, test = tiny_files(folder)
    if missing := [path for path, _ in test if not path.is_file()]:
        raise DataError(f"{missing[0]} is missing; get the pictures again")
    return len(numbers), len(train), len(test)


def _words(folder: Path) -> list[int]:
    paths = [folder / f"wiki.{part}.tokens" for part in ("train", "valid", "test")]
    return [len(words_of(path)) if path.is_file() else 0 for path in paths]


# of sets without checksums what a folder holds, in the units of the catalogue
COUNTS: dict[str, Callable[[Path], Sequence[int]]] = {
    "femnist": lambda folder: _owners(load_femnist(folder)),
    "shakespeare": lambda folder: _owners(load_shakespeare(folder)),
    "celeba": _celebrities,
    "tiny_imagenet": _tiny,
    "wikitext2": _words,
}
