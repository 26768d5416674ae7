"""A site's own data: its file mine.toml, its examples, and the form that all agreed on."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from fedloom.config.overrides import in_full, is_divided
from fedloom.config.own_code import load_named
from fedloom.config.sources import read
from fedloom.core.own_parts import hash_of, is_own, short
from fedloom.core.user_paths import user_path
from fedloom.core.validation import Origin, check, live
from fedloom.data import SOURCES, FederatedData, iid
from fedloom.data.client_indices import Ragged
from fedloom.data.federated import Roll
from fedloom.errors import ConfigError, DataError, unknown

from .agreement import Agreement, fitted
from .columns import as_agreed, refuse_own_words


def alone(data: FederatedData, client: int) -> FederatedData:
    """What one client of some data has, as data of one client."""
    found = data.only(client, tests=True)
    everything = Ragged.from_lists([range(len(found.inputs))])
    return dataclasses.replace(found, clients=everything, roll=None)


def read_site(file: Path) -> tuple[list[Path], dict[str, Any] | None]:
    """A site's file, a TOML file with a table [data] as in the settings of a run: the files of own
    parts that this site lets run (parts), and that table. Raises ConfigError.
    """
    given = read(file)
    for key in given.keys() - {"data", "parts"}:
        raise ConfigError(
            f"file '{file}': unknown key '{key}'; a site's file has the table [data], and parts"
        )
    parts, table = given.get("parts", []), given.get("data")
    if not isinstance(parts, list) or not all(str(name).endswith(".py") for name in parts):
        raise ConfigError(
            f"file '{file}': parts must be a list of Python files, as [\"my_method.py\"], got "
            f"{parts!r}"
        )
    if "data" in given:
        table = _seen_from(file.parent, in_full(given)["data"])
        load_named({"data": table}, f"file '{file}'")  # a function of the site's own
    files = [Path(_seen(file.parent, str(name))) for name in parts]
    with Origin(f"file '{file}'").blame(""):
        for path in files:
            hash_of(str(path))  # it is there
        return files, table


def _seen_from(folder: Path, table: Mapping[str, Any]) -> dict[str, Any]:
    """A site's table [data] whose files are seen from the folder of the site's file."""
    found = dict(table)
    for key in ("path", "test", "data_dir"):
        files = [given] if isinstance(given := found.get(key), str) else given
        if isinstance(files, list) and not _in_the_hub(folder, found, key):
            seen = [_seen(folder, str(name)) if name else name for name in files]
            found[key] = seen if isinstance(given, list) else seen[0]
    if is_own(name := found.get("name")):
        found["name"] = _seen(folder, str(name))
    return found


def _in_the_hub(folder: Path, table: Mapping[str, Any], key: str) -> bool:
    """Whether a path is the name of a data set elsewhere, and no folder here."""
    hub = key == "path" and table.get("name") == "hugging_face"
    return hub and not Path(_seen(folder, str(table[key]))).exists()


def _seen(folder: Path, name: str) -> str:
    return str((folder / user_path(name)).absolute())


def own_data(given: Mapping[str, Any], file: Path, run: Mapping[str, Any]) -> FederatedData:
    """The data of the table of a site's file, as data of one client. run: the run's own table,
    whose rules of columns hold at all sites. Raises ConfigError, DataError.
    """
    origin, table = Origin(f"file '{file}'"), as_agreed(given, run, file)
    name = str(table.pop("name", ""))
    if name not in SOURCES and not is_own(name):
        raise ConfigError(f"file '{file}': {unknown('data', name, SOURCES)}")
    with origin.blame("data"):
        make = SOURCES[name]
    skip = ("partition", "seed")
    values = check(make, table, "data", f"data '{short(name)}'", origin, skip)
    whole = {} if is_divided(make) else {"partition": iid(clients=1)}
    with origin.blame("data", values):
        found: FederatedData = SOURCES.make(name, **whole, **live(values))
        if found.population != 1:
            raise DataError(f"'{short(name)}' gives {found.population} clients; a site is one")
    refuse_own_words(found, name, file)
    return found


def at_client(
    own: FederatedData, client: int, roll: Roll, agreed: Agreement | None
) -> FederatedData:
    """A client's data with empty lists for all others, in the form that all agreed on."""
    pairs = [(own.inputs, own.targets)]
    if own.test_inputs is not None and own.test_targets is not None:
        pairs.append((own.test_inputs, own.test_targets))
    if agreed is not None:
        pairs = [fitted(x, y, own.class_names, agreed) for x, y in pairs]
    sizes = torch.zeros_like(roll.sizes)
    sizes[client] = len(own.inputs)
    tests = pairs[1] if len(pairs) > 1 else (None, None)
    names = own.class_names if agreed is None else tuple(agreed.class_names)
    return dataclasses.replace(
        own,
        inputs=pairs[0][0],
        targets=pairs[0][1],
        test_inputs=tests[0],
        test_targets=tests[1],
        clients=Ragged.from_sizes(sizes, own.clients.indices),
        class_names=names,
        roll=roll,
    )
