"""Wires between the nodes of a federation and its server: counted, and cut."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

HERE, THERE = "198.18.77.1", "198.18.77.2"  # of a range that is for tests of networks


class Relay:
    """A port that passes on to another one of this machine. up, down: bytes to and from it."""

    def __init__(self, port: int) -> None:
        self._port, self.up, self.down = port, 0, 0
        self._lock, self._ends = threading.Lock(), list[socket.socket]()
        self._place = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._place.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._place.accept()
            except OSError:  # closed
                return
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
        self._end(self._place, *self._ends)


class Wire(NamedTuple):
    """A wire to a network namespace, in which a node runs. before: what its command begins with."""

    space: str
    near: str
    far: str

    @property
    def before(self) -> list[str]:
        return ["ip", "netns", "exec", self.space]

    def received(self) -> int:
        """Bytes that came from there, with their headers."""
        return int(Path(f"/sys/class/net/{self.near}/statistics/rx_bytes").read_text())

    def cut(self) -> None:
        """Take the link down at the far side."""
        ip("-n", self.space, "link", "set", self.far, "down")

    def mend(self) -> None:
        ip("-n", self.space, "link", "set", self.far, "up")


@contextlib.contextmanager
def wire(rate: str) -> Iterator[Wire]:
    """A namespace with a wire on which at most `rate` is sent. Raises CalledProcessError or
    FileNotFoundError where that is not allowed.
    """
    number = os.getpid() % 100_000
    link = Wire(f"fedloom{number}", f"fln{number}", f"flf{number}")
    ip("netns", "add", link.space)
    try:
        in_namespace = "-n", link.space
        ip("link", "add", link.near, "type", "veth", "peer", link.far, "netns", link.space)
        ip("addr", "add", f"{HERE}/30", "dev", link.near)
        ip(*in_namespace, "addr", "add", f"{THERE}/30", "dev", link.far)
        ip("link", "set", link.near, "up")
        for device in (link.far, "lo"):
            ip(*in_namespace, "link", "set", device, "up")
        limit = ["tbf", "rate", rate, "burst", "64kb", "latency", "400ms"]
        call(
            "ip",
            "netns",
            "exec",
            link.space,
            "tc",
            "qdisc",
            "add",
            "dev",
            link.far,
            "root",
            *limit,
        )
        yield link
    finally:
        ip("netns", "del", link.space)  # and with it both ends of the wire


def ip(*words: str) -> None:
    call("ip", *words)


def call(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, text=True)
