"""The catalogue of published data sets: catalogue.toml, as entries."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedloom.data.published.download import PublishedFile, fetch, fetch_archive


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A published set. place: its folder below the root, "" if it has none; home: where it is
    published; files, archive: to download; an archive holds the files. by_hand: the user fetches
    the files. counts: what a whole copy has of these units, where there are no checksums.
    """

    name: str
    about: str
    home: str
    place: str = ""
    files: tuple[PublishedFile, ...] = ()
    archive: PublishedFile | None = None
    by_hand: bool = False
    counts: Sequence[Sequence[int]] = ()
    units: Sequence[str] = ()

    @property
    def downloads(self) -> bool:
        """True if it can be downloaded."""
        return bool(self.files or self.archive) and not self.by_hand


def _entry(name: str, record: Mapping[str, Any]) -> Entry:
    def file(name: str, sums: str | list[str], url: str) -> PublishedFile:
        packed, plain = (sums, "") if isinstance(sums, str) else sums
        return PublishedFile(name=name, md5=packed, md5_plain=plain, url=url)

    home, archive, alone = record["home"], None, not record.get("by_hand", False)
    for packed, md5 in record.get("archive", {}).items():
        home, alone = f"{home}/{packed}", False
        archive = file(packed, md5, home)
    sums = record.get("files", {}).items()
    files = tuple(file(n, md5, f"{home}/{n}" if alone else home) for n, md5 in sums)
    return Entry(**{**record, "name": name, "home": home, "files": files, "archive": archive})


def _read() -> dict[str, Entry]:
    text = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
    return {name: _entry(name, record) for name, record in tomllib.loads(text).items()}


CATALOGUE = _read()


def fetch_set(entry: Entry, root: Path, download: bool = True) -> list[Path]:
    """The files of a set below root, whole copies; what is missing is downloaded. Raises DataError
    as `fetch` does.
    """
    if entry.archive is not None:
        fetch_archive(entry.archive, root, entry.place, download)
        download = False
    return [fetch(file, root / entry.place, download) for file in entry.files]
