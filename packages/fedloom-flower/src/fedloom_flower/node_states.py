"""The client state at a node: a version after every round, for the server may not have taken it.

An update may be lost, late or refused, and a server may return to an older checkpoint. So a node
overwrites nothing: the server says which version it counts on, and which it may ask for again.
"""

from __future__ import annotations

import json
from pathlib import Path

from safetensors import SafetensorError, safe_open

from fedloom.core.vector import Rec
from fedloom.errors import CheckpointError
from fedloom.storage import world
from fedloom.storage.atomic import make_folder
from fedloom.storage.manifest import ROUND
from fedloom.storage.records import densify, freeze, sparsify, thaw, write_tensors


class NodeStates:
    """The versions of one client's state in a folder, by the round that made them."""

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        self._make()

    def at(self, taken: int, kept: int, tidy: bool = True) -> Rec | None:
        """The version after round `taken`, its `state` and what was `seen` of the compressed fields
        of a broadcast; None if it is not here. tidy: all versions are deleted that no
        server can ask for: what it did not take, and what is older than its oldest checkpoint, at
        which `kept` rounds were done. Raises CheckpointError for a damaged file.
        """
        rounds = self._rounds()
        oldest = max((v for v in rounds if v <= min(taken, kept - 1)), default=-1)
        for v in rounds:
            if tidy and not oldest <= v <= taken:
                world.unlink(self._path(v))
        return self._read(taken) if taken in rounds else None

    def newest(self) -> Rec | None:
        """The version after the last round, None if there is none. Raises as at()."""
        rounds = self._rounds()
        return self._read(rounds[-1]) if rounds else None

    def _rounds(self) -> list[int]:
        """The rounds of all versions, rising."""
        paths = self.folder.glob("*.safetensors")
        return sorted(int(p.stem) for p in paths if ROUND.fullmatch(p.stem))

    def _make(self) -> None:
        make_folder(self.folder, 0o700)  # it tells of the data

    def attempt(self) -> int:
        """The number of the message that made the newest version, 0 if it has none."""
        try:
            with safe_open(self._path(self._rounds()[-1]), framework="pt") as file:
                return int(file.metadata().get("attempt", 0))
        except (IndexError, OSError, SafetensorError, ValueError):
            return 0  # there is none, or at() says that it is damaged

    def put(self, round: int, version: Rec, attempt: int = 0) -> None:
        """Write the version after a round, of a part of the model only that. attempt: the number of
        the message that asked for it. Raises OSError.
        """
        self._make()  # it may have been removed since this node began
        shape, tensors = freeze(sparsify(version))
        metadata = {"shape": json.dumps(shape), "attempt": str(attempt)}
        write_tensors(self._path(round), tensors, metadata)

    def _path(self, round: int) -> Path:
        return self.folder / f"{round:08d}.safetensors"

    def _read(self, round: int) -> Rec:
        path = self._path(round)
        try:
            if path.is_symlink():
                raise ValueError("it is a link")
            with safe_open(path, framework="pt") as file:
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
                return densify(thaw(json.loads(file.metadata()["shape"]), tensors))
        except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(
                f"the client state '{path}' cannot be read ({str(error).splitlines()[0]}); put "
                "back the file as it was, or delete it: the client then begins anew"
            ) from None
