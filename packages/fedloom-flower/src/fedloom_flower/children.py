"""Programs that a command of fedloom starts. When one of them ends they all end, and the command
with them: systemd, or a loop in a shell, starts the command again.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from fedloom.core.child_processes import ended_with_parent
from fedloom.errors import FedloomError
from fedloom.storage.atomic import reason

_LARGEST = 10 << 20  # bytes of a log, before it is put aside
_ERROR, _COLOUR = re.compile(r"ERROR|\[code: |[a-z]Error: "), re.compile(r"\x1b\[\d+m")
_GRACE = 10.0  # seconds to end after a signal
_POLL = 0.5  # seconds


class FlowerError(FedloomError, RuntimeError):
    """What Flower's program said when it failed."""


class Program(NamedTuple):
    """A command line, the file that its words go to, and its environment. gave_up: patterns of
    what it says when it will not go on though it stays alive, and why; "": as it says itself.
    """

    command: list[str]
    log: Path
    environment: Mapping[str, str]
    gave_up: Mapping[str, str] = MappingProxyType({})


class Children:
    """Programs that run inside of a `with` block."""

    def __init__(self) -> None:
        self._all: list[_Child] = []

    def __enter__(self) -> Children:
        return self

    def __exit__(self, *_: object) -> None:
        for child in self._all:
            child.send(signal.SIGTERM)
        for child in self._all:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.process.wait(_GRACE)
            child.send(signal.SIGKILL)  # it does not end, or has left something
            child.process.wait()

    def start(self, program: Program) -> None:
        """Start one. Raises FlowerError if it cannot be started."""
        try:
            self._all.append(_start(program))
        except OSError as error:  # no memory for it now, or it is being installed anew
            name = Path(program.command[0]).name
            raise FlowerError(f"{name} cannot be started: {reason(error)}") from None

    def check(self) -> None:
        """Raise FlowerError if one has ended, or given up."""
        for child in self._all:
            exited = child.process.poll() is not None
            if child.listen() or exited:
                program, why = child.program, f" ({child.trouble})" if child.trouble else ""
                name = Path(program.command[0]).name
                raise FlowerError(f"{name} ended{why}; its words are in '{program.log}'")

    def wait(self) -> None:
        """Return at Ctrl-C or SIGTERM. Raises FlowerError as soon as one has ended."""

        def stop(*_: Any) -> None:
            raise KeyboardInterrupt

        before = signal.signal(signal.SIGTERM, stop)
        try:
            with contextlib.suppress(KeyboardInterrupt):
                while True:
                    self.check()
                    time.sleep(_POLL)
        finally:
            signal.signal(signal.SIGTERM, before)


@dataclass
class _Child:
    """A program that was started. position: bytes of its log that were looked at; trouble: the last
    error that it named.
    """

    program: Program
    process: subprocess.Popen[bytes]
    position: int
    trouble: str = ""

    def send(self, number: signal.Signals) -> None:
        """Send a signal to it and to all that it started, if there are any."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)

    def listen(self) -> bool:
        """Whether it says, in the whole lines since the last call, that it gave up."""
        try:
            with open(self.program.log, "rb") as log:
                log.seek(self.position)
                text, newline, _ = log.read().rpartition(b"\n")
        except OSError:  # somebody has removed it
            return False
        self.position += len(text + newline)
        lines = text.decode(errors="replace").splitlines()
        if errors := [line for line in lines if _ERROR.search(line)]:
            self.trouble = " ".join(_COLOUR.sub("", errors[-1]).split())[:200]
        for pattern, why in self.program.gave_up.items():
            if any(re.search(pattern, line) for line in lines):
                self.trouble = why or self.trouble
                return True
        return False


def _start(program: Program) -> _Child:
    """Start a program, whose words are added to its log. Raises OSError."""
    path = program.log
    if path.exists() and path.stat().st_size > _LARGEST:
        os.replace(path, path.with_name(path.name + ".1"))
    with open(path, "ab") as log:
        position = log.tell()  # now: what the program writes moves it
        process = subprocess.Popen(
            program.command,
            env=program.environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a signal of the terminal is this process's to pass on
            preexec_fn=ended_with_parent(signal.SIGTERM),
        )
        return _Child(program, process, position)
