"""A process that has imported what Flower's client process needs, and forks one for each message.

Flower starts the program `flwr-clientapp` for every message, and its imports take 2.3 s of a core.
The program of this name that a node finds first (`stand_in`) asks this process for a copy of it,
which takes milliseconds. Where this process is not there, it becomes Flower's program.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from shlex import quote
from typing import NoReturn

NAME = "flwr-clientapp"
_LONGEST = 1 << 16  # bytes of a command line
_PATIENCE = 5.0  # seconds

# only the standard library, and none of the site's packages: it starts in 20 ms
_ASKS = """\
import json, os, socket, sys

try:
    with socket.socket(socket.AF_UNIX) as place:
        place.settimeout({patience})
        place.connect({door!r})
        place.sendall(json.dumps(sys.argv[1:]).encode())
        place.shutdown(socket.SHUT_WR)
        if place.recv(1) != b"1":
            raise OSError("no copy was made")
except OSError:
    os.execv({program!r}, [{program!r}, *sys.argv[1:]])
"""


def stand_in(folder: Path, door: Path, program: str) -> None:
    """Write a program of Flower's name, which asks for a copy at a door or becomes `program`."""
    folder.mkdir()
    asks = folder / "asks.py"
    asks.write_text(_ASKS.format(patience=_PATIENCE, door=str(door), program=program))
    shown = " ".join(quote(word) for word in (sys.executable, "-IS", str(asks)))
    (folder / NAME).write_text(f'#!/bin/sh\nexec {shown} "$@"\n')
    (folder / NAME).chmod(0o700)


def serve(door: Path) -> None:
    """Make a copy of this process for each command line that comes, which runs it."""
    from flwr.supernode.cli import flwr_clientapp as run

    importlib.import_module(".client", __package__)  # a copy will need it
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for a copy's end
    door.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as place:
        before = os.umask(0o177)
        try:
            place.bind(str(door))
        finally:
            os.umask(before)
        place.listen()
        while True:
            connection, _address = place.accept()
            with connection, contextlib.suppress(OSError, ValueError):
                connection.settimeout(_PATIENCE)
                words = [str(word) for word in json.loads(_all_of(connection))]
                if os.fork() == 0:
                    place.close()
                    connection.close()
                    _as_program(words, run)
                connection.sendall(b"1")


def _all_of(connection: socket.socket) -> bytes:
    """What the other side says until it has ended. Raises OSError."""
    found = bytearray()
    while piece := connection.recv(4096):
        found += piece
        if len(found) > _LONGEST:
            raise OSError("a command line that is too long")
    return bytes(found)


def _as_program(words: list[str], run: Callable[[], object]) -> NoReturn:
    """Run Flower's program in this process, and end."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(15, NAME.encode(), 0, 0, 0)  # PR_SET_NAME: what ps and top show
    sys.argv = [NAME, *words]
    code = 1
    try:
        run()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
