"""How many connections a stranger can hold open, and how long one may be without a request."""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

_FIRST = 10.0  # seconds until a connection has sent the headers of a request
REFUSALS = 100  # of an address in a minute, after which it gets no new connection in that minute


def room(clients: int) -> tuple[int, int]:
    """The most connections of one address, and of all, in a federation of so many clients: all of
    its nodes may be behind one address, and each has up to 5.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # 1024 is often where it begins
    each = 64 + 8 * clients
    total = 4 * each if most == resource.RLIM_INFINITY else min(4 * each, most // 3)
    return min(each, total), total


class Listener(socket.socket):
    """A listening socket that closes what is beyond `each` connections of an address and `total` of
    all, and those of an address with too many refusals; before TLS, which costs more.
    """

    def __init__(
        self,
        port: int,
        each: int,
        total: int,
        refusals: Callable[[str], int],
        host: str = "0.0.0.0",
    ) -> None:
        super().__init__(socket.AF_INET, socket.SOCK_STREAM)
        self.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.bind((host, port))
        self._each, self._total, self._refusals = each, total, refusals
        self._open: list[tuple[str, socket.socket]] = []

    def accept(self) -> tuple[socket.socket, Any]:
        """Take a connection. Raises ConnectionAbortedError for one too many, which asyncio goes on
        after.
        """
        connection, where = super().accept()
        address = str(where[0])
        self._open = [pair for pair in self._open if pair[1].fileno() != -1]
        same_address = sum(other == address for other, _ in self._open)
        full = len(self._open) >= self._total or same_address >= self._each
        if full or self._refusals(address) >= REFUSALS:
            connection.close()
            raise ConnectionAbortedError
        self._open.append((address, connection))
        return connection, where


class Connection(H11Protocol):  # type: ignore[misc]  # uvicorn comes with Flower only
    """uvicorn's connection, which is closed if no request comes."""

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._waits = self.loop.call_later(_FIRST, self._end_without_request)

    def connection_lost(self, exc: Exception | None) -> None:
        self._waits.cancel()
        super().connection_lost(exc)

    def _end_without_request(self) -> None:
        if self.cycle is None:
            self.transport.close()
