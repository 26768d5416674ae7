"""Keeps a program running: starts it again when it ends, or when it says that it gave up."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ..storage.atomic import reason

_log = logging.getLogger(__name__)
_PAUSE = (1.0, 2.0, 5.0, 15.0, 30.0)  # seconds before the 1st, 2nd, ... start again in a row
_STEADY = 60.0  # seconds after which a program counts as having run
_LARGEST = 10 << 20  # bytes of a log, before it is put aside
_ERROR, _COLOUR = re.compile(r"ERROR|\[code: |[a-z]Error: "), re.compile(r"\x1b\[\d+m")
_LONGEST = 1 << 16  # characters of a line
_GRACE = 10.0  # seconds to end after a signal


class Supervisor:
    """One program, whose words go to a log file. gave_up: what it says when it will not go on
    though it stays alive.
    """

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        environment: Mapping[str, str],
        gave_up: str = "(?!)",
    ) -> None:
        self.command, self.log = list(command), log
        self._environment = dict(environment)
        self._gave_up = re.compile(gave_up)
        self._process: subprocess.Popen[str] | None = None
        self._stopped = threading.Event()
        self.starts = 0
        self._trouble = ""  # the last error that it named

    def run(self) -> None:
        """Keep it running until stop()."""
        in_a_row = 0
        while not self._stopped.is_set():
            began = time.monotonic()
            self._once()
            if self._stopped.is_set():
                return
            in_a_row = 0 if time.monotonic() - began > _STEADY else in_a_row + 1
            pause = _PAUSE[min(in_a_row, len(_PAUSE) - 1)]
            name = Path(self.command[0]).name
            why = f" ({self._trouble})" if self._trouble else ""
            _log.warning("%s ended%s; starts again in %g s", name, why, pause)
            self._stopped.wait(pause)

    def _once(self) -> None:
        """Run it to its end."""
        self.starts += 1
        self._trouble = ""
        try:
            self._process = process = self._started()
        except OSError as error:  # no memory for it now, or it is being installed anew
            self._trouble = reason(error)
            return
        reader = threading.Thread(target=self._read, args=(process,), daemon=True)
        reader.start()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        _signal(process.pid, signal.SIGKILL)  # what it has left; its number is still its own
        process.wait()
        reader.join()

    def _started(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,  # a signal of the terminal is this process's to pass on
            preexec_fn=ended_with_parent(signal.SIGTERM),
        )

    def _write_down(self, line: str) -> None:
        """Add to the log. On a full disk the line is lost, and no more: the program would wait for
        whoever reads what it says.
        """
        with contextlib.suppress(OSError):
            if self.log.exists() and self.log.stat().st_size > _LARGEST:
                os.replace(self.log, self.log.with_name(self.log.name + ".1"))
            with open(self.log, "a", encoding="utf-8", errors="replace") as log:
                log.write(line)

    def _read(self, process: subprocess.Popen[str]) -> None:
        """Write down what a program says, and listen to it."""
        assert process.stdout is not None
        with process.stdout as told:
            while line := told.readline(_LONGEST):
                self._write_down(line)
                if _ERROR.search(line):
                    self._trouble = " ".join(_COLOUR.sub("", line).split())[:200]
                if self._gave_up.search(line):
                    self.end()

    def end(self) -> None:
        """Ask the program and all that it started to end, and end them if they do not."""
        process = self._process
        if process is None or process.returncode is not None:  # poll() would take it from _once()
            return
        _signal(process.pid, signal.SIGTERM)
        late = threading.Timer(_GRACE, self._kill, (process,))
        late.daemon = True
        late.start()

    def _kill(self, process: subprocess.Popen[str]) -> None:
        if process.returncode is None:
            _signal(process.pid, signal.SIGKILL)

    def stop(self) -> None:
        """End it for good."""
        self._stopped.set()
        self.end()


def ended_with_parent(number: signal.Signals) -> Callable[[], None]:
    """What a new process calls to get a signal when the thread that started it ends, however that
    was; on Linux only.
    """
    if sys.platform != "linux":
        return lambda: None
    prctl = ctypes.CDLL(None).prctl  # found here: between fork and exec little is allowed
    parent = os.getpid()

    def ask() -> None:
        prctl(1, number)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:  # it ended before it could be asked for
            os.kill(os.getpid(), signal.SIGKILL)

    return ask


def _signal(group: int, number: signal.Signals) -> None:
    """Send a signal to all processes of a group, if there are any."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return
