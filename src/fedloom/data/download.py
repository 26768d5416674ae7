"""Downloads that go on where they stopped, and are only trusted once their checksum is right."""

from __future__ import annotations

import hashlib
import http.client
import os
import re
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedRandom, BufferedReader
from pathlib import Path
from typing import Any

from fedloom.errors import DataError

__all__ = ["download_file", "md5_of"]

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
