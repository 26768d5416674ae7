"""A disk that may crash: a real folder whose changes are written down, and every state in which a
crash may leave them.

What POSIX promises, and no more: the content of a file is safe after a sync of the file, a name in
a folder (made, replaced or removed) after a sync of the folder. Until then each name has any of
the values that it has had since, each content any of those, cut anywhere or full of zeros.
"""

from __future__ import annotations

import itertools
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from fedloom.storage import world


class Killed(BaseException):
    """The machine lost its power. No handler of errors sees it."""


@dataclass(eq=False)
class File:
    """versions: contents since the last sync, of which the first is safe."""

    versions: list[bytes]

    def torn(self, every: bool) -> list[bytes]:
        """The contents that a crash may leave. every: cut at each byte, else in a few places."""
        out = list(dict.fromkeys(self.versions))
        for before, after in itertools.pairwise(self.versions):
            if before.startswith(after):  # cut on purpose: nothing is written
                continue
            same = len(before) if after.startswith(before) else 0
            size = len(after) - same
            cuts = range(1, size) if every else sorted({1, size // 2, size - 1} - {0})
            out += [after[: same + n] for n in cuts if n < size]
            out += [after[:same] + bytes(size)] if size else []  # the length came, the blocks not
        return list(dict.fromkeys(out))


@dataclass(eq=False)
class Folder:
    """names: the values of each name since the last sync, of which the first is safe."""

    names: dict[str, list[File | Folder | None]] = field(default_factory=dict)

    def now(self, name: str) -> File | Folder | None:
        return self.names.get(name, [None])[-1]

    def give(self, name: str, value: File | Folder | None) -> None:
        self.names.setdefault(name, [None]).append(value)


Tree = dict[str, Any]  # name -> bytes, or the tree of a folder


class Disk:
    """What happened below a folder. root: the folder, which is safe itself; before: is asked before
    every call, and may end the machine with Killed; full: the call from which on there is no room.
    """

    def __init__(
        self,
        root: Path,
        before: Callable[[Disk], object] = lambda disk: None,
        full: int | None = None,
    ) -> None:
        self.root, self.before, self.full = root, before, full
        self.calls, self.top = 0, Folder()
        self.called: list[str] = []
        self.functions = self._functions()
        self._load(root, self.top)

    def _load(self, path: Path, folder: Folder) -> None:
        for p in path.iterdir():
            below = Folder() if p.is_dir() else File([p.read_bytes()])
            folder.names[p.name] = [below]
            if isinstance(below, Folder):
                self._load(p, below)

    # ----------------------------------------------------------------------------- what happens
    def call(self, name: str, *paths: Path, room: bool = False) -> None:
        """Count a call, which may be the last one. room: it needs some."""
        self.before(self)
        self.called.append(" ".join([name, *("/".join(self._parts(p)) for p in paths)]))
        self.calls += 1
        if room and self.full is not None and self.calls > self.full:
            raise OSError(28, "No space left on device", str(paths[0]))

    def at(self, path: Path) -> Any:
        """The file or folder at a path."""
        found: Any = self.top
        for part in self._parts(path):
            found = found.now(part)
        return found

    def _parts(self, path: Path) -> list[str]:
        """The names below the root: as relative_to().parts, in a tenth of the time."""
        below = str(path).removeprefix(str(self.root))
        return below.split("/")[1:]

    def wrote(self, path: Path) -> None:
        """Note the content that a file has now."""
        file = self.at(path)
        if file is None:
            file = File([b""])
            self.at(path.parent).give(path.name, file)
        if (raw := path.read_bytes()) != file.versions[-1]:
            file.versions.append(raw)

    def _functions(self) -> dict[str, Callable[..., Any]]:
        """What stands in the place of the world's functions."""

        def write(path: Path, content: Any, opener: Any = None) -> None:
            self.call("write", path, room=True)
            REAL["write"](path, content, opener)
            self.wrote(path)

        def append(path: Path, raw: bytes, opener: Any = None) -> None:
            self.call("append", path, room=True)
            REAL["append"](path, raw, opener)
            self.wrote(path)

        def open_handle(path: Path, flags: int) -> int:
            if not path.exists():
                self.call("create", path)
            handle: int = REAL["open_handle"](path, flags)
            self.wrote(path)
            return handle

        def truncate(path: Path, size: int) -> None:
            self.call("truncate", path)
            REAL["truncate"](path, size)
            self.wrote(path)

        def sync(path: Path) -> None:
            self.call("sync", path, room=True)
            file = self.at(path)
            file.versions = file.versions[-1:]

        def sync_folder(folder: Path) -> None:
            self.call("sync_folder", folder)
            there = self.at(folder)
            there.names = {name: values[-1:] for name, values in there.names.items()}

        def replace(path: Path, to: Path) -> None:
            self.call("replace", path, to)
            REAL["replace"](path, to)
            self.at(to.parent).give(to.name, self.at(path))
            self.at(path.parent).give(path.name, None)

        def unlink(path: Path) -> None:
            if path.exists():
                self.call("unlink", path)
                REAL["unlink"](path)
                self.at(path.parent).give(path.name, None)

        def mkdir(folder: Path, mode: int = 0o777) -> None:
            if not folder.exists():
                self.call("mkdir", folder, room=True)
                REAL["mkdir"](folder, mode)
                self.at(folder.parent).give(folder.name, Folder())

        def rmdir(folder: Path) -> None:
            self.call("rmdir", folder)
            REAL["rmdir"](folder)
            self.at(folder.parent).give(folder.name, None)

        here = locals()
        return {name: here[name] for name in CHANGES}

    # ------------------------------------------------------------------------------- the crashes
    def crashes(self, every: bool = False) -> Iterator[Tree]:
        """Every state that a crash now may leave, those first that lose nothing and all; see
        File.torn.
        """
        yield _tree(self.top, -1)
        yield _tree(self.top, 0)
        yield from _trees(self.top, every)

    def crash_state(self, draw: random.Random) -> Tree:
        """One of these states."""
        return _drawn(self.top, draw)


CHANGES = ("write", "append", "open_handle", "truncate", "sync", "sync_folder", "replace", "unlink")
CHANGES = (*CHANGES, "mkdir", "rmdir")
REAL = {name: getattr(world, name) for name in CHANGES}


def _tree(folder: Folder, which: int) -> Tree:
    """The state with the safe value of everything, 0, or with its newest, -1."""
    out: Tree = {}
    for name, values in folder.names.items():
        value = values[which]
        if value is not None:
            below = isinstance(value, Folder)
            out[name] = _tree(value, which) if below else value.versions[which]
    return out


def _trees(folder: Folder, every: bool) -> Iterator[Tree]:
    """All states of a folder: the product of those of its names."""
    names = sorted(folder.names)
    each = [list(_states(folder.names[name], every)) for name in names]
    for states in itertools.product(*each):
        yield {n: s for n, s in zip(names, states, strict=True) if s is not None}


def _states(values: list[File | Folder | None], every: bool) -> Iterator[Any]:
    for value in dict.fromkeys(values):
        if value is None:
            yield None
        elif isinstance(value, Folder):
            yield from _trees(value, every)
        else:
            yield from value.torn(every)


def _drawn(folder: Folder, draw: random.Random) -> Tree:
    """A state of a folder, by chance."""
    out: Tree = {}
    for name, values in sorted(folder.names.items()):
        value = draw.choice(values)
        if value is not None:
            below = isinstance(value, Folder)
            out[name] = _drawn(value, draw) if below else draw.choice(value.torn(every=False))
    return out


def lay(tree: Tree, folder: Path) -> None:
    """Make a folder hold a state, and nothing else."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, value in tree.items():
        if isinstance(value, bytes):
            (folder / name).write_bytes(value)
        else:
            lay(value, folder / name)


def key(tree: Tree) -> Any:
    """A hash of a state."""
    return hash(tuple(sorted((n, v if isinstance(v, bytes) else key(v)) for n, v in tree.items())))


def on(disk: Disk, act: Callable[[], object]) -> bool:
    """Do something on a disk -> whether the power went."""
    with pytest.MonkeyPatch.context() as patch:
        for name, function in disk.functions.items():
            patch.setattr(world, name, function)
        try:
            act()
        except Killed:
            return True
    return False
