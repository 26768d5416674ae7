"""A Unix socket through which a process hands messages to a node, which keeps its model and data.

Flower starts a process for every message. That process imports this file only, not torch.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path

_LENGTH = struct.Struct(">Q")
_LONGEST = 1 << 36  # bytes of a message
_PATIENCE = 60.0  # seconds for the other side to go on with a message


def asked(path: str | Path, raw: bytes) -> bytes:
    """Hand a message to the node at a socket -> its answer. Raises OSError."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as place:
        place.connect(str(path))
        _send(place, raw)
        return _receive(place)


class LocalSocket:
    """The node's side. answer: message -> answer; one message at a time. Only the owner of the
    process may use it.
    """

    def __init__(self, path: Path, answer: Callable[[bytes], bytes]) -> None:
        self.path, self._answer = path, answer
        self._place = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        before = os.umask(0o177)
        try:
            self._place.bind(str(path))
        finally:
            os.umask(before)
        self._place.listen()

    def serve(self) -> None:
        """Answer messages until close()."""
        while True:
            try:
                place, _ = self._place.accept()
            except OSError:  # closed
                return
            with place, contextlib.suppress(OSError):  # whoever asked is gone
                place.settimeout(_PATIENCE)
                _send(place, self._answer(_receive(place)))

    def close(self) -> None:
        """Close the socket."""
        with contextlib.suppress(OSError):
            self._place.shutdown(socket.SHUT_RDWR)
        self._place.close()
        self.path.unlink(missing_ok=True)


def _send(place: socket.socket, raw: bytes) -> None:
    place.sendall(_LENGTH.pack(len(raw)))
    if raw:  # else the other side may be done already
        place.sendall(raw)


def _receive(place: socket.socket) -> bytes:
    with place.makefile("rb") as file:
        head = file.read(_LENGTH.size)
        length = int.from_bytes(head, "big")
        if len(head) < _LENGTH.size or length > _LONGEST:
            raise OSError(f"a message of {length} bytes, more than {_LONGEST}, or none")
        raw = file.read(length)
    if len(raw) < length:
        raise OSError(f"the connection ended after {len(raw)} of {length} bytes")
    return raw


def blocks(raw: bytes) -> list[bytes]:
    """A message (see message.py) as its header and its blocks, which Flower keeps once each however
    many clients get them. Bytes that are no message stay one block.
    """
    import json

    first = 12
    try:
        end = first + int.from_bytes(raw[8:first], "little")
        sizes = list(json.loads(raw[first:end])["parts"].values())
        out, at = [raw[:end]], end
        for size in sizes:
            out.append(raw[at : at + size])
            at += size
        return out if at == len(raw) else [raw]
    except (ValueError, KeyError, TypeError, AttributeError):
        return [raw]


def joined(parts: list[object]) -> bytes:
    """The blocks of a message as one; nothing unless all are bytes: of a number, bytes() would make
    as many zeros.
    """
    whole = [part for part in parts if isinstance(part, bytes)]
    return b"".join(whole) if len(whole) == len(parts) else b""
