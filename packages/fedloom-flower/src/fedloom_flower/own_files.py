"""Parts of a user's own in a federation. Every place runs a file of its own that its own people
named: the server those of its run.toml, a node those of its site's file. run.toml says by a hash
which content they must have, so a node checks its copy before it runs it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedloom.config.own_code import CODE, each_own, load_named, own_in
from fedloom.core.own_parts import files_of, hash_of, short, split
from fedloom.errors import ConfigError

from .folder import Folder


def for_nodes(values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that nodes get: own files have no folders, those beside them that they import
    are seen from there. Raises ConfigError for two files of one name.
    """
    contents: dict[str, tuple[str, str]] = {}
    for part in own_in(values):
        folder = Path(split(part)[0]).parent
        for file, content in files_of(part).items():
            name = Path(file).relative_to(folder).as_posix()
            if contents.setdefault(name, (file, content))[0] != file:
                raise ConfigError(
                    f"'{contents[name][0]}' and '{file}' have one name, and a site finds files by "
                    "their names; rename one of them"
                )
    out = each_own(values, lambda _, part: short(part))
    out.pop(CODE, None)
    return out | ({CODE: {k: v for k, (_, v) in sorted(contents.items())}} if contents else {})


def at_sites(values: Mapping[str, Any]) -> list[str]:
    """The files of own parts that every site needs, as seen from the part's folder."""
    return [*for_nodes(values).get(CODE, {})]


def named_files(values: Mapping[str, Any]) -> list[str]:
    """Those among them that the settings name."""
    return [*dict.fromkeys(Path(split(part)[0]).name for part in own_in(values))]


class OwnFiles:
    """What a place takes for the own parts of run.toml. fed: its folder; parts: the files that a
    node's own people named, in the site's file `site`.
    """

    def __init__(self, fed: Folder, parts: Sequence[Path] = (), site: Path | None = None) -> None:
        self._fed, self._site = fed, site
        self._copies = {path.name: path for path in parts}

    def __call__(self, raw: dict[str, Any], code: Mapping[str, Any]) -> None:
        """Load the files of own parts in some settings. code: their hashes. Raises ConfigError for
        one that nobody here named, and for one that is not the run's.
        """
        if self._fed.client is None and self._fed.secret("server").exists():  # it made run.toml
            for file, expected in code.items():
                self._check(Path(file), str(expected))
        else:
            raw.update(each_own(raw, lambda _, part: self._local_part(part)))
            folders = {Path(split(part)[0]).parent for part in own_in(raw)}
            for name, expected in code.items():
                candidates = [folder / name for folder in folders]
                copy = next((path for path in candidates if path.exists()), candidates[0])
                self._check(self._copies.get(name, copy), str(expected))
        load_named(raw, f"file '{self._fed.run_file}'")

    def _local_part(self, name: str) -> str:
        """An own part with the path of this place's file. Raises ConfigError."""
        file, part = Path(split(name)[0]).name, split(name)[1]
        if file in self._copies:
            return f"{self._copies[file]}:{part}"
        where = f"'{self._site}'" if self._site else "a file mine.toml, and give --data mine.toml"
        raise ConfigError(
            f"the run uses {short(name)}, and a node runs no file because its server names it; get "
            f'{file}, read it, and name your copy, parts = ["{file}"], in {where}'
        )

    def _check(self, file: Path, expected: str) -> None:
        actual = hash_of(str(file))
        if actual == expected:
            return
        cure = "put back what it was, or make a new federation with `fedloom deploy new`"
        if self._fed.client is not None:
            cure = f"get the {file.name} of the server, read it, and put it there"
        raise ConfigError(
            f"'{file}' is not the file of the run (the hash of its content is {actual}, and "
            f"run.toml says {expected}); {cure}"
        )
