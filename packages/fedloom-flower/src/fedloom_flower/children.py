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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedloom.core.child_processes import ended_with_parent
from fedloom.errors import FedloomError
from fedloom.storage.atomic import reason

_LARGEST = 10 << 20  # bytes of a log, before it is put aside
_ERROR, _COLOUR = re.compile(r"ERROR|\[code: |[a-z]Error: "), re.compile(r"\x1b\[\d+m")
_GRACE = 10.0  # seconds to end after a signal
_POLL = 0.5  # seconds


class FlowerError(FedloomError, RuntimeError):
    """What Flower's program said when it failed."""


@dataclass
class Program:
    """A command line, the file that its words go to, and its environment. gave_up: patterns of
    what it says when it will not go on though it stays alive, and why; "": as it says itself.
    """

    command: list[str]
    log: Path
    environment: Mapping[str, str]
    gave_up: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return Path(self.command[0]).name

    def start(self) -> None:
        """Start it; its words are added to its log. Raises OSError."""
        if self.log.exists() and self.log.stat().st_size > _LARGEST:
            os.replace(self.log, self.log.with_name(self.log.name + ".1"))
        with open(self.log, "ab") as log:
            self._position = log.tell()  # bytes that were looked at; what it writes moves the file
            self._trouble = ""  # the last error that it named
            self.process = subprocess.Popen(
                self.command,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a signal of the terminal is this process's to pass on
                preexec_fn=ended_with_parent(signal.SIGTERM),
            )

    def send(self, number: signal.Signals) -> None:
        """Send a signal to it and to all that it started, if there are any."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)

    def check(self) -> None:
        """Raise FlowerError if it has ended, or given up."""
        exited = self.process.poll() is not None
        if self._gave_up() or exited:
            why = f" ({self._trouble})" if self._trouble else ""
            raise FlowerError(f"{self.name} ended{why}; its words are in '{self.log}'")

    def _gave_up(self) -> bool:
        """Whether it says, in the whole lines since the last call, that it gave up."""
        try:
            with open(self.log, "rb") as log:
                log.seek(self._position)
                text, newline, _ = log.read().rpartition(b"\n")
        except OSError:  # somebody has removed it
            return False
        self._position += len(text + newline)
        lines = text.decode(errors="replace").splitlines()
        if errors := [line for line in lines if _ERROR.search(line)]:
            self._trouble = " ".join(_COLOUR.sub("", errors[-1]).split())[:200]
        for pattern, why in self.gave_up.items():
            if any(re.search(pattern, line) for line in lines):
                self._trouble = why or self._trouble
                return True
        return False


class Children:
    """Programs that run inside of a `with` block."""

    def __init__(self) -> None:
        self._all: list[Program] = []

    def __enter__(self) -> Children:
        return self

    def __exit__(self, *_: object) -> None:
        for program in self._all:
            program.send(signal.SIGTERM)
        for program in self._all:
            with contextlib.suppress(subprocess.TimeoutExpired):
                program.process.wait(_GRACE)
            program.send(signal.SIGKILL)  # it does not end, or has left something
            program.process.wait()

    def start(self, program: Program) -> None:
        """Start one. Raises FlowerError if it cannot be started."""
        try:
            program.start()
        except OSError as error:  # no memory for it now, or it is being installed anew
            raise FlowerError(f"{program.name} cannot be started: {reason(error)}") from None
        self._all.append(program)

    def check(self) -> None:
        """Raise FlowerError if one has ended, or given up."""
        for program in self._all:
            program.check()

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
