"""Downloads that go on where they stopped, and are only trusted once their checksum is right."""

from __future__ import annotations

import hashlib
import http.client
import os
import re
import tarfile
import tempfile
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BufferedRandom, BufferedReader
from pathlib import Path
from typing import Any

from fedloom.errors import DataError

TIMEOUT_SECONDS = 30.0  # without any byte
ATTEMPTS = 5  # in a row, of a connection that breaks off but brings something each time
_BLOCK = 1 << 16


def download_file(url: str, md5: str, path: Path, keep: Path | None = None) -> None:
    """Write a published file to path, which only ever holds a whole one.

    What arrived before a download was stopped, by a lost connection, Ctrl-C or a power cut, stays
    in a hidden file `.<name>.<md5>.part` of the folder `keep` (path's own by default): the next
    one asks for the rest. A server that knows no ranges sends everything again, and a rest that
    belongs to another version shows in the checksum: then everything is fetched once more.
    Raises OSError or http.client.HTTPException if it cannot be reached or written, DataError if its
    checksum is wrong.
    """
    folder = path.parent if keep is None else keep
    for each in (folder, path.parent):
        each.mkdir(parents=True, exist_ok=True)
    with _becoming(path, folder, md5) as file:
        resumed = file.seek(0, os.SEEK_END) > 0
        _fill(url, path.name, file)
        if resumed and _md5(file) != md5:
            file.truncate(0)
            _fill(url, path.name, file)
        if (got := _md5(file)) != md5:
            file.truncate(0)
            raise DataError(
                f"{path.name} from {url} has md5 {got}, expected {md5}; nothing was kept "
                "(a proxy may answer in its place): get the file by hand"
            )


def md5_of(path: Path) -> str:
    """The MD5 of a file, in hexadecimal. Raises DataError if it cannot be read."""
    try:
        with path.open("rb") as file:
            return _md5(file)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error


def _md5(file: BufferedReader | BufferedRandom) -> str:
    file.seek(0)
    return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


# ------------------------------------------------------------------------------------ partial file
@contextmanager
def _becoming(path: Path, folder: Path, md5: str) -> Iterator[BufferedRandom]:
    """The partial file of a download, open; at the end, without an error, it is renamed to path.

    It is nobody else's: a second process that downloads the same, and a system that cannot lock
    files, get a new one, which an error removes. Otherwise the error says how much is kept.
    """
    part, shared = folder / f".{path.name}.{md5}.part", True
    file = _locked(part)
    if file is None:
        handle, own = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=folder)
        part, file, shared = Path(own), os.fdopen(handle, "rb+"), False
    size = 0
    with file:
        try:
            try:
                yield file
            finally:
                size = os.fstat(file.fileno()).st_size if shared else 0
            if not shared:
                file.close()  # some systems rename no open file; a lock must last until then
            part.chmod(0o644)  # a data folder is often shared
            part.replace(path)
        except (OSError, http.client.HTTPException) as error:
            if not size:
                raise
            raise OSError(
                f"{error}; {size:,} bytes of it are kept: the next attempt asks for the rest"
            ) from error
        finally:
            if not size:
                part.unlink(missing_ok=True)


def _locked(path: Path) -> BufferedRandom | None:
    """A file opened to read and write, made if need be, and locked; None where that cannot be."""
    try:
        import fcntl
    except ImportError:
        return None
    while True:
        file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "rb+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            return None
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return file
        file.close()  # in between, its owner gave it its name, or removed it


# ------------------------------------------------------------------------------------- the network
def _fill(url: str, name: str, file: BufferedRandom) -> None:
    """Fetch what a partial file lacks. Raises OSError, http.client.HTTPException."""
    for attempt in range(1, ATTEMPTS + 1):
        held = file.seek(0, os.SEEK_END)
        with _answer(url, held) as answer:
            if answer is None:
                return
            file.seek(_begins_at(answer, held))
            file.truncate()
            try:
                broken = _copy(answer, name, file)
            finally:
                file.flush()
        if broken is None:
            return
        if attempt == ATTEMPTS or file.tell() <= held:
            raise broken


@contextmanager
def _answer(url: str, start: int) -> Iterator[Any]:
    """The server's answer to a request for a file from byte `start` on; None if there is no more.

    Of a file of the wrong length everything is asked for.
    """
    headers = {"Range": f"bytes={start}-"} if start else {}
    request = urllib.request.Request(url, headers=headers)
    try:
        answer = urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS)
    except urllib.error.HTTPError as error:
        error.close()  # it holds the answer's socket
        if not start or error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise
        if _total(error.headers) == start:
            yield None
            return
        answer = urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS)
    with answer:
        yield answer


def _total(headers: Any) -> int | None:
    """The whole file's length by an answer's Content-Range: bytes */1234, bytes 5-1233/1234."""
    found = re.search(r"/(\d+)$", headers.get("Content-Range") or "")
    return int(found[1]) if found else None


def _begins_at(answer: Any, asked: int) -> int:
    """The place of an answer's first byte: 0 of a server that sends everything.

    Raises HTTPException for a part that was not asked for.
    """
    if answer.status != http.HTTPStatus.PARTIAL_CONTENT:
        return 0
    said = answer.headers.get("Content-Range") or ""
    if not re.match(rf"bytes {asked}-", said):
        raise http.client.HTTPException(f"asked for bytes from {asked} on, got '{said}'")
    return asked


def _copy(answer: Any, name: str, file: BufferedRandom) -> Exception | None:
    """Copy an answer's bytes behind a file's position, with a progress bar on stderr if that is a
    terminal. -> what broke it off. Raises OSError if they cannot be written.
    """
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    length = answer.headers.get("Content-Length") or ""
    start = file.tell()
    total = start + int(length) if length.isdigit() else None
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(name, total=total, completed=start)
        while True:
            try:
                block = answer.read(_BLOCK)
            except (OSError, http.client.HTTPException) as error:
                return error
            if not block:
                break
            file.write(block)
            progress.advance(task, len(block))
    if total is not None and file.tell() < total:
        return ConnectionError(f"it broke off after {file.tell():,} of {total:,} bytes")
    return None


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
