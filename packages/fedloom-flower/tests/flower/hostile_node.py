"""A node whose answers are wrong in five ways: python hostile_node.py FOLDER CLIENT."""

from __future__ import annotations

import sys
import tempfile
import threading
from pathlib import Path

from fedloom_flower.children import Children
from fedloom_flower.folder import Folder
from fedloom_flower.local_socket import LocalSocket
from fedloom_flower.message import ANSWER, ASK, decode, encode
from fedloom_flower.programs import node
from fedloom_flower.sites import ClientSite


def wrong(raw: bytes, answer: bytes) -> bytes:
    """Bytes that are no message; a NaN; half an update; another client's name; nothing."""
    head, parts = decode(ANSWER, answer)
    first = next(iter(parts))
    half = {**parts, first: parts[first][: len(parts[first]) // 2]}
    return [
        b"\xff" * 1000,
        answer[:-4] + b"\x00\x00\xc0\x7f",
        encode(head, half),
        encode(head.model_copy(update={"client": 0}), parts),
        b"",
    ][decode(ASK, raw)[0].round % 5]


def main() -> None:
    fed = Folder(Path(sys.argv[1])).node(int(sys.argv[2]))
    place = ClientSite(fed)
    with tempfile.TemporaryDirectory() as folder:
        listening = LocalSocket(Path(folder) / "socket", lambda raw: wrong(raw, place.answer(raw)))
        threading.Thread(target=listening.serve, daemon=True).start()
        with Children() as children:
            for program in node(fed, Path(folder)):
                children.start(program)
            children.wait()


if __name__ == "__main__":
    main()
