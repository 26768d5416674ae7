"""Several pieces of work at once: results, errors, a killed process, a stop."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedloom.core.jobs import Jobs
from fedloom.errors import ConfigError, FedloomError


class Adder:
    """Keeps a sum from piece to piece."""

    def __init__(self) -> None:
        self.sum = 0

    def __call__(self, piece: int, say: Callable[[Any], None]) -> tuple[int, int, int]:
        self.sum += piece
        say(("has", piece))
        return piece, self.sum, len(os.sched_getaffinity(0))


def test_all_pieces_are_done_and_heard_of() -> None:
    begun: list[int] = []
    heard: list[tuple[int, Any]] = []
    pieces = [5, 6, 7, 8]
    found = dict(Jobs(Adder(), 2).run(pieces, begun.append, lambda n, w: heard.append((n, w))))
    assert {n: piece for n, (piece, _, _) in found.items()} == {n: n for n in pieces}
    assert sorted(begun) == pieces
    assert sorted(heard) == [(n, ("has", n)) for n in pieces]
    assert max(total for _, total, _ in found.values()) > 8, "a process keeps what it has"
    share = max(1, len(os.sched_getaffinity(0)) // 2)
    assert {processors for _, _, processors in found.values()} == {share}


def misbehave(piece: str, say: Callable[[Any], None]) -> str:
    """Raise, die, or wait for a stop and write that it came."""
    if piece == "raise":
        raise ConfigError("the piece is wrong")
    if piece == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if piece.startswith("/"):
        signal.signal(signal.SIGTERM, lambda *_: Path(piece).write_text("saved") and exit(0))
        say("ready")
        signal.pause()
    return piece


@pytest.mark.parametrize(
    ("piece", "kind", "said"),
    [
        ("raise", ConfigError, "the piece is wrong"),
        ("die", FedloomError, r"exit code -9.*run the same command again to resume"),
    ],
)
def test_what_goes_wrong_stops_all_and_is_said(
    piece: str, kind: type[Exception], said: str, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    ready: list[Any] = []
    with pytest.raises(kind, match=said):
        # the second piece of one of two waits until it is stopped, if it has begun
        list(Jobs(misbehave, 2).run([str(file), piece], lambda _: None, lambda *w: ready.append(w)))
    assert file.is_file() or not ready


def test_a_stop_stops_all(tmp_path: Path) -> None:
    files = [str(tmp_path / name) for name in "ab"]
    heard: list[str] = []

    def hear(piece: str, what: Any) -> None:
        heard.append(piece)
        if len(heard) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(Jobs(misbehave, 2).run(files, lambda _: None, hear))
    assert all(Path(file).read_text() == "saved" for file in files)
