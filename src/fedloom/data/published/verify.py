"""Every published set: where it lies, how to get it, whether the copy here is the published one.

What a publisher gives checksums of is verified by them. Of the rest counts are known: of writers,
windows, words. Where neither fits, the part that is there is named.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from fedloom.data.published import mnist as sources
from fedloom.data.published import text_classification as reviews
from fedloom.data.published.cifar import CIFAR10, CIFAR100, CifarSet, read_batches
from fedloom.data.published.download import fetch, fetch_archive, md5_of, verify
from fedloom.data.published.leaf import HOME as LEAF
from fedloom.data.published.leaf import leaf_files, leaf_users, load_femnist
from fedloom.data.published.shakespeare import load_shakespeare
from fedloom.data.published.tiny_imagenet import TINY, tiny_files
from fedloom.data.published.wikitext import WIKITEXT2, words_of
from fedloom.errors import DataError

VERIFIED, REORDERED, SUBSET = "verified", "complete, in another order", "subset"
MISSING, DAMAGED = "missing", "damaged"
STATES = (VERIFIED, REORDERED, SUBSET, MISSING, DAMAGED)


class Finding(NamedTuple):
    """What is known of a copy: one of STATES, and why."""

    state: str
    detail: str


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A published set. place: its folder below the root, "" if it lies in no folder; look: root ->
    Finding of a copy that is there; get: downloads it; home: where it is from.
    """

    about: str
    place: str
    home: str
    look: Callable[[Path], Finding]
    get: Callable[[Path], None] | None = None


def check(name: str, root: Path) -> Finding:
    """Say whether the copy of a set below root is the published one."""
    entry = CATALOGUE[name]
    folder = _folder(entry, root)
    if entry.place and not folder.is_dir():
        return Finding(MISSING, f"no folder {folder}; from {entry.home}")
    try:
        return entry.look(folder)
    except DataError as error:
        return Finding(DAMAGED, str(error))


def get(name: str, root: Path) -> Finding:
    """Download a set into root unless it is there, and check it. Raises DataError for one that
    cannot be downloaded or is damaged.
    """
    entry = CATALOGUE[name]
    if entry.get is not None:
        entry.get(root)
    found = check(name, root)
    if found.state == MISSING:
        raise DataError(
            f"{name} has no download: {_by_hand(entry)}; put it into {root / entry.place}"
        )
    if found.state == DAMAGED:
        raise DataError(found.detail)
    return found


def _by_hand(entry: Entry) -> str:
    if entry.home == LEAF:
        script = f"data/{Path(entry.place).name}/preprocess.sh"
        return f"its files are made by LEAF's script {script} ({LEAF})"
    return f"it is from {entry.home}"


def _folder(entry: Entry, root: Path) -> Path:
    folder = root / entry.place
    lower = root / entry.place.lower()
    return lower if not folder.is_dir() and lower.is_dir() else folder


# ------------------------------------------------------------------------------------- by checksum
def _idx(kind: sources.IdxSet) -> Entry:
    def look(folder: Path) -> Finding:
        for file in kind.files:
            fetch(file, folder, download=False)
        return Finding(VERIFIED, "4 files by their md5")

    def download(root: Path) -> None:
        for file in kind.files:
            fetch(file, root / kind.folder)

    home = kind.files[0].url.rpartition("/")[0]
    about = "70,000 grey images of 28 x 28, 10 classes"
    return Entry(about=about, place=kind.folder, home=home, look=look, get=download)


def _look_writers(folder: Path) -> Finding:
    fetch(sources.QMNIST, folder, download=False)
    return Finding(VERIFIED, "the writers of MNIST's training images, by md5")


def _get_writers(root: Path) -> None:
    fetch(sources.QMNIST, root / "qmnist")


def _cifar(kind: CifarSet, contents: dict[str, str]) -> Entry:
    """contents: {batch: hash of its images and labels in any order}, where orders differ."""

    def look(folder: Path) -> Finding:
        other = [name for name, md5 in kind.md5.items() if md5_of(folder / name) != md5]
        if not other:
            return Finding(VERIFIED, f"{len(kind.md5)} files by their md5")
        for name in other:
            if name not in contents:
                verify(folder / name, kind.md5[name], kind.archive.url)
            if _content(*read_batches(kind, folder, (name,))) != contents[name]:
                raise DataError(
                    f"{folder / name} is altered: its images are not the published ones; get it "
                    f"from {kind.archive.url}"
                )
        return Finding(
            REORDERED, f"the published images and labels; md5 differs: {', '.join(other)}"
        )

    def download(root: Path) -> None:
        fetch_archive(kind.archive, root, kind.folder)

    about = f"60,000 colour images of 32 x 32, {kind.classes} classes"
    return Entry(about=about, place=kind.folder, home=kind.archive.url, look=look, get=download)


def _content(images: Tensor, labels: Tensor) -> str:
    """A hash of images with their labels that does not depend on their order."""
    rows = zip(images.numpy(), labels.tolist(), strict=True)
    each = [hashlib.blake2b(x.tobytes() + bytes([y]), digest_size=16).digest() for x, y in rows]
    return hashlib.sha256(b"".join(sorted(each))).hexdigest()


# ---------------------------------------------------------------------------------------- by count
def _look_tiny(folder: Path) -> Finding:
    numbers, train, test = tiny_files(folder)
    missing = [path for path, _ in test if not path.is_file()]
    if missing:
        raise DataError(f"{missing[0]} is missing; get it from {TINY.url}")
    found = f"{len(train):,} training and {len(test):,} validation pictures"
    if (len(numbers), len(train), len(test)) == (200, 100_000, 10_000):
        return Finding(VERIFIED, f"{found}, by their number")
    return Finding(SUBSET, f"{found}, {len(numbers)} classes")


def _get_tiny(root: Path) -> None:
    fetch_archive(TINY, root, "tiny-imagenet-200")


# clients and samples that LEAF's scripts give: the paper's, and today's
_FEMNIST_WHOLE = {(3_550, 805_263), (3_597, 817_851)}
_CELEBA_WHOLE = {(9_343, 200_288)}


def _count(owners: Tensor) -> int:
    """How many owners there are."""
    return int((torch.bincount(owners[owners >= 0]) > 0).sum())


def _look_femnist(folder: Path) -> Finding:
    data = load_femnist(folder)
    assert data.owners is not None and data.test_owners is not None
    assert data.test_inputs is not None
    who, tests = _count(data.owners), _count(data.test_owners)
    everyone = _count(torch.cat([data.owners, data.test_owners]))
    count = len(data.inputs) + len(data.test_inputs)
    detail = f"{who} writers, {len(data.inputs):,} training and {len(data.test_inputs):,} test "
    detail += f"images (test images of {tests} writers)"
    if (everyone, count) in _FEMNIST_WHOLE:
        return Finding(VERIFIED, f"{detail}, as LEAF counts them")
    return Finding(SUBSET, f"{detail}; the whole has 3,550 writers and 805,263 images")


def _look_celeba(folder: Path) -> Finding:
    files = leaf_files(folder)
    names: set[str] = set()
    pictures: set[str] = set()
    for user in leaf_users(files["train"] + files["test"]):
        names.add(user.name)
        pictures.update(map(str, user.data.get("x", [])))
    here = {path.name for path in (folder / "img_align_celeba").glob("*")}
    if lacking := sorted(pictures - here):
        raise DataError(
            f"{folder / 'img_align_celeba' / lacking[0]} is missing, and {len(lacking) - 1} others"
        )
    detail = f"{len(names):,} celebrities, {len(pictures):,} pictures"
    if (len(names), len(pictures)) in _CELEBA_WHOLE:
        return Finding(VERIFIED, f"{detail}, as LEAF counts them")
    return Finding(SUBSET, f"{detail}; the whole has 9,343 and 200,288")


def _look_shakespeare(folder: Path) -> Finding:
    data = load_shakespeare(folder)
    assert data.owners is not None
    who = _count(data.owners)
    train = int((data.owners >= 0).sum())
    test = 0 if data.test_owners is None else int((data.test_owners >= 0).sum())
    detail = f"{who:,} roles, {train:,} training and {test:,} test windows"
    # LEAF's 1,129 roles and 4,226,158 windows of the 2011 text, the first 0.9 of each for training,
    # and no test window that overlaps them
    if (who, train, test) == (1_129, 3_803_027, 356_921):
        return Finding(VERIFIED, f"{detail}, by count: LEAF's split of all 4,226,158")
    return Finding(SUBSET, f"{detail}; LEAF's split of the whole has 3,803,027 and 356,921")


_WORDS = {"train": 2_088_628, "valid": 217_646, "test": 245_569}


def _look_wikitext(folder: Path) -> Finding:
    here = []
    for part, count in _WORDS.items():
        path = folder / f"wiki.{part}.tokens"
        if not path.is_file():
            continue
        if (found := len(words_of(path))) != count:
            raise DataError(f"{path} has {found:,} words, published are {count:,}; get it again")
        here.append(part)
    lacking = [part for part in _WORDS if part not in here]
    if not here:
        raise DataError(f"{folder} holds no wiki.*.tokens; get them from {WIKITEXT2.url}")
    if lacking:
        detail = f"{' and '.join(here)} by their numbers of words; missing: {', '.join(lacking)}"
        return Finding(SUBSET, detail)
    return Finding(VERIFIED, "train, valid and test by their numbers of words")


def _get_wikitext(root: Path) -> None:
    fetch_archive(WIKITEXT2, root, "wikitext-2")


def _look_news(folder: Path) -> Finding:
    verify(folder / "test.csv", reviews.AG_NEWS["test"].md5, reviews.AG_NEWS["test"].url)
    train = reviews.AG_NEWS["train"]
    if (folder / train.name).is_file():
        verify(folder / train.name, train.md5, train.url)
        return Finding(VERIFIED, "train.csv and test.csv by their md5")
    parts = []
    for path in sorted(folder.glob("train-*")):
        parts.append(f"{path.name} with {len(reviews.read_news(path).texts):,} of 120,000")
    return Finding(SUBSET, f"test.csv by its md5; {', '.join(parts) or 'no training texts'}")


def _get_news(root: Path) -> None:
    for file in reviews.AG_NEWS.values():
        fetch(file, root / "ag_news_csv")


def _look_sst2(folder: Path) -> Finding:
    train, test = (len(part.texts) for part in reviews.read_sst2(folder))
    detail = f"{train:,} training and {test:,} test phrases"
    if (train, test) == (67_349, 872):
        return Finding(VERIFIED, f"{detail}, as GLUE counts them")
    return Finding(SUBSET, f"{detail}; the whole has 67,349 and 872")


def _get_sst2(root: Path) -> None:
    reviews.sst2_folder(root, download=True)


def _look_digits(folder: Path) -> Finding:
    data = sources.digits()
    assert data.test_inputs is not None
    count = len(data.inputs) + len(data.test_inputs)
    return Finding(VERIFIED, f"{count:,} images inside scikit-learn")


CATALOGUE: dict[str, Entry] = {
    "digits": Entry(
        about="1,797 grey images of 8 x 8, 10 classes",
        place="",
        home="scikit-learn",
        look=_look_digits,
    ),
    "mnist": _idx(sources.MNIST),
    "qmnist": Entry(
        about="who wrote MNIST's training images: 539 writers",
        place="qmnist",
        home=sources.QMNIST.url,
        look=_look_writers,
        get=_get_writers,
    ),
    "fashion_mnist": _idx(sources.FASHION_MNIST),
    "cifar10": _cifar(CIFAR10, {}),
    "cifar100": _cifar(
        CIFAR100,
        {
            "train": "dc60b251f13886b8ac418bc06e988e1118c07d07f7b794dd254d8d6fa0949162",
            "test": "796ea712d93465f002f315ed6b4556ad895dc6d48d59960e9e311d2775d7640f",
        },
    ),
    "tiny_imagenet": Entry(
        about="110,000 colour images of 64 x 64, 200 classes",
        place="tiny-imagenet-200",
        home=TINY.url,
        look=_look_tiny,
        get=_get_tiny,
    ),
    "femnist": Entry(
        about="805,263 grey images of 28 x 28, 62 classes, 3,550 writers",
        place="leaf/femnist",
        home=LEAF,
        look=_look_femnist,
    ),
    "celeba": Entry(
        about="200,288 colour images of 84 x 84, smiling or not, 9,343 celebrities",
        place="leaf/celeba",
        home=LEAF,
        look=_look_celeba,
    ),
    "shakespeare": Entry(
        about="4,226,158 windows of 80 characters, the next one, 1,129 roles",
        place="leaf/shakespeare",
        home=LEAF,
        look=_look_shakespeare,
    ),
    "wikitext2": Entry(
        about="2,551,843 words, the next word",
        place="wikitext-2",
        home=WIKITEXT2.url,
        look=_look_wikitext,
        get=_get_wikitext,
    ),
    "ag_news": Entry(
        about="127,600 news, 4 classes",
        place="ag_news_csv",
        home=reviews.AG_NEWS["train"].url.rpartition("/")[0],
        look=_look_news,
        get=_get_news,
    ),
    "sst2": Entry(
        about="68,221 phrases of film reviews, 2 classes",
        place="SST-2",
        home=reviews.SST2.url,
        look=_look_sst2,
        get=_get_sst2,
    ),
}
