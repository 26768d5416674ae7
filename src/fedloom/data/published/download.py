"""The catalogue of published data sets, catalogue.toml; downloads by pooch, which are used only if
their checksum is right; and whether the copies here are the published ones.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import stat
import tarfile
import tempfile
import tomllib
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from fedloom.errors import DataError

TIMEOUT_SECONDS = 30.0  # without any byte
DataDir = str | os.PathLike[str] | None  # None: see data_root()
RETRIES = 2  # after a connection that fails or breaks off, and after a wrong checksum


@dataclass(frozen=True, kw_only=True)
class PublishedFile:
    """A file or archive, and its published checksums.

    name: as it is downloaded; md5: of that; md5_plain: of the content of a .gz, for copies that
    somebody unpacked; url: where it is published.
    """

    name: str
    md5: str
    url: str
    md5_plain: str = ""


def data_root(data_dir: DataDir = None) -> Path:
    """Return the folder of all data sets: data_dir, else FEDLOOM_DATA, else the user's cache.

    The only place of the library that reads these environment variables.
    """
    if data_dir is not None:
        return Path(data_dir).expanduser()
    if set_by_user := os.environ.get("FEDLOOM_DATA"):
        return Path(set_by_user).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "fedloom"


def fetch(file: PublishedFile, folder: Path, download: bool = True) -> Path:
    """Return the path of a whole copy in folder, plain or gzipped; download it if there is none.

    A file that is there is verified every time. Raises DataError for a wrong checksum (a truncated
    file has one), and where the file is missing and cannot or must not be downloaded.
    """
    packed = folder / file.name
    plain = folder / file.name.removesuffix(".gz")
    for path, md5 in ((packed, file.md5), (plain, file.md5_plain)):
        if md5 and path.is_file():
            verify(path, md5, file.url)
            return path
    if not download:
        raise DataError(_missing(file, folder, "download is off"))
    _download(file, folder, folder)
    return packed


def verify(path: Path, md5: str, url: str) -> None:
    """Raise DataError unless a file has this checksum; url: where to get it again."""
    if (checksum := md5_of(path)) != md5:
        raise DataError(
            f"{path} is damaged or another file: md5 {checksum}, expected {md5}; delete it and "
            f"get it again from {url}"
        )


def md5_of(path: Path) -> str:
    """The MD5 of a file, in hexadecimal. Raises DataError if it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error


def fetch_archive(file: PublishedFile, root: Path, inside: str, download: bool = True) -> Path:
    """Return <root>/<inside>, a folder; if it is not there, download an archive that holds it.

    The archive is verified, unpacked under a temporary name, and only then the folder gets its own;
    the archive itself is not kept. Raises DataError, as `fetch` does.
    """
    folder = root / inside
    if folder.is_dir():
        return folder
    if not download:
        raise DataError(_missing(file, root, f"there is no folder {inside}, and download is off"))
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{inside}.", dir=root) as part:
            _download(file, Path(part), root)
            packed = Path(part) / file.name
            options: dict[str, Any] = {} if packed.suffix == ".zip" else {"filter": "data"}
            shutil.unpack_archive(packed, part, **options)  # nothing outside of its folder
            if not (Path(part) / inside).is_dir():
                raise DataError(f"{file.name} from {file.url} holds no folder {inside}")
            (Path(part) / inside).replace(folder)
    except (OSError, tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise DataError(f"{file.name} cannot be unpacked in {root}: {error}") from error
    return folder


def _missing(file: PublishedFile, folder: Path, why: object) -> str:
    return (
        f"{file.name} is not in {folder} and was not downloaded ({why}); get it from {file.url} "
        f"(md5 {file.md5}) and put it there, or set FEDLOOM_DATA to the folder that holds "
        f"{folder.name}"
    )


def _download(file: PublishedFile, folder: Path, shown_path: Path) -> None:
    """Download to a folder, which only ever holds a whole file; shown_path: the one in errors."""
    import pooch
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    pooch.get_logger().setLevel("ERROR")  # its messages about every file are written here
    home = pooch.create(
        path=folder,
        base_url="",
        registry={file.name: f"md5:{file.md5}"},
        urls={file.name: file.url},
        retry_if_failed=RETRIES,
    )
    try:
        with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
            bar = _Bar(progress, file.name)
            get = pooch.HTTPDownloader(bar, chunk_size=1 << 16, timeout=TIMEOUT_SECONDS)
            path = home.fetch(file.name, downloader=get)
        like = folder / f".{secrets.token_hex(8)}"
        like.touch()  # pooch's files are its owner's alone; a data folder is often shared
        Path(path).chmod(stat.S_IMODE(like.stat().st_mode))
        like.unlink()
    except (OSError, ValueError) as error:  # ValueError: of the checksum
        raise DataError(_missing(file, shown_path, _reason(error))) from error


def _reason(error: BaseException) -> str:
    """The first cause of an error, on one line, without the names of a library's parts."""
    while (before := error.__cause__ or error.__context__) is not None:
        error = before
    return (str(error) or type(error).__name__).splitlines()[0]


class _Bar:
    """A progress bar with the interface that pooch expects."""

    total = 0

    def __init__(self, progress: Any, name: str) -> None:
        self._progress, self._task = progress, progress.add_task(name, total=None)

    def update(self, count: int) -> None:
        """Add this many bytes."""
        self._progress.update(self._task, total=self.total or None, advance=count)

    def reset(self) -> None:
        """Begin again: pooch does so at the end, to fill the bar."""
        self._progress.reset(self._task)

    def close(self) -> None:
        """The download is complete."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A published set. place: its folder below the root, "" if it has none; home: where it is
    published; files, archive: to download; an archive holds the files. by_hand: the user fetches
    the files.
    """

    name: str
    about: str
    home: str
    place: str = ""
    files: tuple[PublishedFile, ...] = ()
    archive: PublishedFile | None = None
    by_hand: bool = False

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


CATALOGUE = {
    name: _entry(name, record)
    for name, record in tomllib.loads(
        Path(__file__).with_name("catalogue.toml").read_text(encoding="utf-8")
    ).items()
}


def fetch_set(entry: Entry, root: Path, download: bool = True) -> list[Path]:
    """The files of a set below root, whole copies; what is missing is downloaded. Raises DataError
    as `fetch` does.
    """
    if entry.archive is not None:
        fetch_archive(entry.archive, root, entry.place, download)
        download = False
    return [fetch(file, root / entry.place, download) for file in entry.files]


# ------------------------------------------------------------------------- copies that are here
VERIFIED, SUBSET, UNCHECKED = "verified", "subset", "unchecked"
MISSING, DAMAGED = "missing", "damaged"


class Finding(NamedTuple):
    """The result for a copy: one of the states above, and why."""

    state: str
    detail: str


def check(name: str, root: Path) -> Finding:
    """Whether the copy of a set below root is the published one: by checksums of its files."""
    entry = CATALOGUE[name]
    folder = root / entry.place
    if not entry.place:
        return Finding(VERIFIED, f"comes along, from {entry.home}")
    if not folder.is_dir():
        return Finding(MISSING, f"no folder {folder}; from {entry.home}")
    if not entry.files:
        return Finding(UNCHECKED, f"{folder} is here, and no checksums of its files are published")
    parts = [path.name for path in sorted(folder.glob("train-*"))] if name == "ag_news" else []
    own = bool(parts) and not (folder / "train.csv").is_file()  # a part will do to train on
    files = [file for file in entry.files if not (own and file.name == "train.csv")]
    try:
        for file in files:
            fetch(file, folder, download=False)
    except DataError as error:
        return Finding(DAMAGED, str(error))
    detail = f"by md5: {', '.join(file.name for file in files)}"
    if own:
        return Finding(SUBSET, f"{detail}; of yours: {', '.join(parts)}")
    return Finding(VERIFIED, detail)


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
        if entry.place.startswith("leaf/"):
            script = f"data/{Path(entry.place).name}/preprocess.sh"
            origin = f"its files are made by LEAF's script {script} ({entry.home})"
        raise DataError(f"{name} has no download: {origin}; put it into {root / entry.place}")
    if finding.state == DAMAGED:
        raise DataError(finding.detail)
    return finding
