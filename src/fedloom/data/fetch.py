"""Files of published data sets: where they are, whether they are whole, and how to get them."""

from __future__ import annotations

import hashlib
import http.client
import os
import tarfile
import tempfile
import urllib.error
import urllib.request
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from fedloom.errors import DataError

__all__ = ["PublishedFile", "data_root", "fetch", "fetch_archive", "md5_of", "verify"]

TIMEOUT_SECONDS = 30.0  # without any byte


@dataclass(frozen=True, kw_only=True)
class PublishedFile:
    """Name a file or archive and what its publisher says of it.

    name: as it is downloaded; md5: of that; md5_plain: of the content of a .gz, for copies that
    somebody unpacked; url: the file's home.
    """

    name: str
    md5: str
    url: str
    md5_plain: str = ""


def data_root(data_dir: str | os.PathLike[str] | None = None) -> Path:
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
    _download(file, packed)
    return packed


def verify(path: Path, md5: str, url: str) -> None:
    """Raise DataError unless a file has this checksum; url: where to get it again."""
    if (got := md5_of(path)) != md5:
        raise DataError(
            f"{path} is damaged or another file: md5 {got}, expected {md5}; delete it and "
            f"get it again from {url}"
        )


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
            packed = Path(part) / file.name
            _download(file, packed, root)
            _unpack(packed, Path(part))
            if not (Path(part) / inside).is_dir():
                raise DataError(f"{file.name} from {file.url} holds no folder {inside}")
            (Path(part) / inside).replace(folder)
    except OSError as error:
        raise DataError(f"{file.name} cannot be unpacked in {root}: {error}") from error
    return folder


def _unpack(packed: Path, folder: Path) -> None:
    """Unpack a verified .zip or .tar.gz; nothing can be written outside the folder."""
    try:
        if packed.suffix == ".zip":
            with zipfile.ZipFile(packed) as archive:
                archive.extractall(folder)
        else:
            with tarfile.open(packed) as tar:
                tar.extractall(folder, filter="data")
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise DataError(f"{packed.name} cannot be unpacked: {error}") from error


def _missing(file: PublishedFile, folder: Path, why: object) -> str:
    return (
        f"{file.name} is not in {folder} and was not downloaded ({why}); get it from {file.url} "
        f"(md5 {file.md5}) and put it there, or set FEDLOOM_DATA to the folder that holds "
        f"{folder.name}"
    )


def md5_of(path: Path) -> str:
    """The MD5 of a file, in hexadecimal. Raises DataError if it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error


def _download(file: PublishedFile, path: Path, folder: Path | None = None) -> None:
    """Write to a temporary name in the same folder, so that no half file ever has the real name.

    folder: the one that errors name, if not the file's.
    """
    partial = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{file.name}.", suffix=".part", dir=path.parent)
        partial = Path(name)
        with os.fdopen(handle, "wb") as out:
            _copy(file, out)
        if (got := md5_of(partial)) != file.md5:
            raise DataError(
                f"{file.name} from {file.url} has md5 {got}, expected {file.md5}; nothing was kept "
                "(a proxy may answer in its place): get the file by hand"
            )
        partial.chmod(0o644)  # mkstemp lets only the owner read; a data folder is often shared
        partial.replace(path)
    except (OSError, http.client.HTTPException) as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()  # it holds the answer's socket
        raise DataError(_missing(file, folder or path.parent, error)) from error
    finally:
        if partial is not None:
            partial.unlink(missing_ok=True)


def _copy(file: PublishedFile, out: BinaryIO) -> None:
    """Copy the file's bytes to out, with a progress bar on stderr if that is a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with (
        urllib.request.urlopen(file.url, timeout=TIMEOUT_SECONDS) as answer,
        Progress(console=console, transient=True, disable=not console.is_terminal) as progress,
    ):
        length = answer.headers.get("Content-Length")
        task = progress.add_task(
            file.name, total=int(length) if length and length.isdigit() else None
        )
        while block := answer.read(1 << 16):
            out.write(block)
            progress.advance(task, len(block))
