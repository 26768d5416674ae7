"""A Unix socket through which a process hands messages to a node, which keeps its model and data.

Flower starts a process for every message. That process imports this file only, not torch.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from multiprocessing.connection import Client, Listener
from pathlib import Path

_LONGEST = 1 << 36  # bytes of a message
_PATIENCE = 60.0  # seconds until whoever came must say something


def ask_node(path: str | Path, raw: bytes) -> bytes:
    """Hand a message to the node at a socket -> its answer. Raises OSError."""
    with Client(str(path), "AF_UNIX") as connection:
        connection.send_bytes(raw)
        try:
            return connection.recv_bytes(_LONGEST)
        except EOFError:
            raise OSError("the node has ended before it answered") from None


class LocalSocket:
    """The node's side. answer: message -> answer; one message at a time. Only the owner of the
    process may use it.
    """

    def __init__(self, path: Path, answer: Callable[[bytes], bytes]) -> None:
        self.path, self._answer, self._open = path, answer, True
        before = os.umask(0o177)
        try:
            self._listener = Listener(str(path), "AF_UNIX", backlog=16)
        finally:
            os.umask(before)

    def serve(self) -> None:
        """Answer messages until close()."""
        while self._open:
            with (
                contextlib.suppress(OSError, EOFError),  # closed, or whoever asked is gone
                self._listener.accept() as connection,
            ):
                if connection.poll(_PATIENCE):
                    connection.send_bytes(self._answer(connection.recv_bytes(_LONGEST)))

    def close(self) -> None:
        """Close the socket, for whoever waits at it too."""
        self._open = False
        with contextlib.suppress(OSError):
            Client(str(self.path), "AF_UNIX").close()
        self._listener.close()


def blocks(raw: bytes) -> list[bytes]:
    """A message (see message.py) as its header and its blocks, which Flower keeps once each however
    many clients get them. Bytes that are no message stay one block.
    """
    import json

    first = 12
    try:
        end = first + int.from_bytes(raw[8:first], "little")
        sizes = list(json.loads(raw[first:end])["parts"].values())
        out, start = [raw[:end]], end
        for size in sizes:
            out.append(raw[start : start + size])
            start += size
        return out if start == len(raw) else [raw]
    except (ValueError, KeyError, TypeError, AttributeError):
        return [raw]


def join_blocks(parts: list[object]) -> bytes:
    """The blocks of a message as one; nothing unless all are bytes: of a number, bytes() would make
    as many zeros.
    """
    whole = [part for part in parts if isinstance(part, bytes)]
    return b"".join(whole) if len(whole) == len(parts) else b""
