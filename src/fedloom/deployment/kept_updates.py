"""What nodes sent, kept at the server for `fedloom replay`, encrypted: an update tells of a site's
data, so that who copies the disk must not be able to read it.

updates/00000412/round-0-7 is the answer of client 7 in round 412, at the first exchange of its
kind: a nonce of 12 bytes and the bytes of the message under ChaCha20-Poly1305, bound to that place
and to the run. The key is a file that the operator keeps elsewhere.
"""

from __future__ import annotations

import logging
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

from ..errors import CheckpointError, ConfigError
from ..storage import world
from ..storage.atomic import make_folder, reason
from .engine import Exchange
from .folder import Folder, check_secret, owned, write_secret
from .message import ASK, opened

_log = logging.getLogger(__name__)
_KEY, _NONCE = 32, 12  # bytes


class KeptUpdates:
    """An exchange whose answers are kept, or without one those that were kept. run: its name and
    the hash of its settings, as messages have it. A round that is done again replaces what was
    kept of it.
    """

    def __init__(self, fed: Folder, run: str, exchange: Exchange | None = None) -> None:
        self._folder, self._run, self._exchange = fed.updates, run, exchange
        self._cipher = _cipher(fed, new=exchange is not None)
        self._count = Counter[tuple[str, int]]()  # exchanges of a kind in a round
        self._round: int | None = None

    def __call__(self, messages: dict[int, bytes], seconds: float, enough: int) -> dict[int, bytes]:
        head = opened(ASK, next(iter(messages.values())))[0]
        if head.what == "evaluate":  # a replay measures another model
            return {} if self._exchange is None else self._exchange(messages, seconds, enough)
        if head.round != self._round:
            self._round, self._count = head.round, Counter()
        place = f"{head.what}-{self._count[head.what, head.round]}"
        self._count[head.what, head.round] += 1
        folder = self._folder / f"{head.round + 1:08d}"  # as rounds are counted in rows; 0: before
        if self._exchange is None:
            return self._read(folder, place, messages)
        if place.endswith("-0"):
            for old in folder.glob(f"{head.what}-*"):
                world.unlink(old)
        answers = self._exchange(messages, seconds, enough)
        try:
            self._write(folder, place, answers)
        except OSError as error:
            _log.warning("round %d: what came is not kept: %s", head.round + 1, reason(error))
        return answers

    def _write(self, folder: Path, place: str, answers: dict[int, bytes]) -> None:
        make_folder(folder, 0o700)
        for i, raw in answers.items():
            nonce = world.urandom(_NONCE)
            sealed = self._cipher.encrypt(nonce, raw, self._bound(folder, f"{place}-{i}"))
            world.write(folder / f"{place}-{i}", nonce + sealed, owned)

    def check(self, round: int) -> None:
        """Raise CheckpointError for what was kept of a round (from 1) and cannot be read."""
        for path in sorted((self._folder / f"{round:08d}").iterdir()):
            self._opened(path)

    def _read(self, folder: Path, place: str, messages: dict[int, bytes]) -> dict[int, bytes]:
        paths = {i: folder / f"{place}-{i}" for i in messages}  # who has none did not answer then
        return {i: self._opened(path) for i, path in paths.items() if path.exists()}

    def _opened(self, path: Path) -> bytes:
        from cryptography.exceptions import InvalidTag

        try:
            raw = path.read_bytes()
            nonce, sealed, bound = raw[:_NONCE], raw[_NONCE:], self._bound(path.parent, path.name)
            return bytes(self._cipher.decrypt(nonce, sealed, bound))
        except (OSError, ValueError, InvalidTag) as error:
            why = reason(error) if isinstance(error, OSError) else "another key or other bytes"
            raise CheckpointError(f"'{path}' cannot be read: {why}") from None

    def _bound(self, folder: Path, name: str) -> bytes:
        return f"{self._run}/{folder.name}/{name}".encode()


def kept_rounds(fed: Folder) -> list[int]:
    """The rounds (from 1) of which something is kept."""
    folders = fed.updates.iterdir() if fed.updates.is_dir() else ()
    return sorted(int(p.name) for p in folders if p.name.isdecimal() and int(p.name))


def remove_others(fed: Folder) -> None:
    """Delete what was kept of a run before, when a new one begins in the folder."""
    if not (fed.run / "config.toml").is_file():
        shutil.rmtree(fed.updates, ignore_errors=True)


def _cipher(fed: Folder, new: bool) -> Any:
    """What encrypts. new: make a key that is not there. Raises ConfigError."""
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    name = fed.settings().keep_updates
    if not name:
        raise ConfigError(
            f"nothing is kept of what nodes sent: keep_updates of '{fed.settings_file}' is empty"
        )
    path = fed.path / Path(name).expanduser()
    if new and not path.exists() and not kept_rounds(fed):
        write_secret(path, world.urandom(_KEY).hex().encode())
    check_secret(path)
    try:
        key = bytes.fromhex(path.read_text(encoding="ascii"))
        return ChaCha20Poly1305(key)
    except ValueError:
        raise ConfigError(
            f"'{path}' (keep_updates) is no key: it needs {2 * _KEY} digits of 0 to f; "
            "name a file that is not there yet, and it is made"
        ) from None
