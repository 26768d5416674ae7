"""Files of published data sets: where they are, whether they are whole, and how to get them."""

from __future__ import annotations

import http.client
import os
import tarfile
import tempfile
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

from fedloom.data.download import download_file, md5_of
from fedloom.errors import DataError

__all__ = ["PublishedFile", "data_root", "fetch", "fetch_archive", "md5_of", "verify"]


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


def _download(file: PublishedFile, path: Path, folder: Path | None = None) -> None:
    """Download to path; folder: the one that keeps what arrived before it was stopped, and that
    errors name, if not the file's.
    """
    try:
        download_file(file.url, file.md5, path, folder)
    except (OSError, http.client.HTTPException) as error:
        raise DataError(_missing(file, folder or path.parent, error)) from error
