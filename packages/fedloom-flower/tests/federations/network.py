"""A wire between the nodes of a federation and its server: counted, and cut."""

from __future__ import annotations

import contextlib
import socket
import threading


class Relay:
    """A port that passes on to another one of this machine. up, down: bytes to and from it; whole:
    cleared while the wire is cut, when nothing passes and nobody is told.
    """

    def __init__(self, port: int) -> None:
        self._port, self.up, self.down = port, 0, 0
        self._lock, self._ends = threading.Lock(), list[socket.socket]()
        self._place = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._place.getsockname()[1]
        self.whole = threading.Event()
        self.whole.set()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                client, _ = self._place.accept()
                try:
                    server = socket.create_connection(("127.0.0.1", self._port))
                except OSError:
                    client.close()
                    continue
                self._ends += [client, server]
                for way in ((client, server, "up"), (server, client, "down")):
                    threading.Thread(target=self._pass, args=way, daemon=True).start()

    def _pass(self, source: socket.socket, to: socket.socket, way: str) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(1 << 16):
                self.whole.wait()
                with self._lock:
                    setattr(self, way, getattr(self, way) + len(piece))
                to.sendall(piece)
        self._end(source, to)

    def _end(self, *ends: socket.socket) -> None:
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def close(self) -> None:
        self.whole.set()
        self._end(self._place, *self._ends)
