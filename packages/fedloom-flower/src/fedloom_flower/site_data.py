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
from fedloom.core.parsing import user_path
from fedloom.core.validation import Origin, check, live
from fedloom.data import SOURCES, FederatedData, iid
from fedloom.data.client_indices import Ragged
from fedloom.errors import ConfigError, DataError, unknown

from .agreement import Agreement, agree, fitted, site_of
from .columns import as_agreed, refuse_own_words
from .message import Head


def data_of(whole: FederatedData, client: int) -> FederatedData:
    """What one client of some data has, as data of one client."""
    data = whole.only(client, tests=True)
    everything = Ragged.from_lists([range(len(data.inputs))])
    return dataclasses.replace(data, clients=everything, roll=None)


def agreement_on(data: FederatedData) -> Agreement:
    """What all agree on where the data of all are in one place, so that none needs to join."""
    sizes, largest = data.sizes.tolist(), int(data.sizes.argmax())
    question = Head(run="", what="join", round=-1, client=largest)
    agreement = agree({largest: site_of(data_of(data, largest), question)}, len(sizes))
    counts = {"examples": sizes, "tests": [0] * len(sizes), "classes": data.classes}
    return agreement.model_copy(update=counts)


def read_site(file: Path) -> tuple[list[Path], dict[str, Any] | None]:
    """A site's file, a TOML file with a table [data] as in the settings of a run: the files of own
    parts that this site lets run (parts), and that table. Raises ConfigError.
    """
    content = read(file)
    for key in content.keys() - {"data", "parts"}:
        raise ConfigError(
            f"file '{file}': unknown key '{key}'; a site's file has the table [data], and parts"
        )
    parts, table = content.get("parts", []), content.get("data")
    if not isinstance(parts, list) or not all(str(name).endswith(".py") for name in parts):
        raise ConfigError(
            f"file '{file}': parts must be a list of Python files, as [\"my_method.py\"], got "
            f"{parts!r}"
        )
    if "data" in content:
        table = _resolve_paths(file.parent, in_full(content)["data"])
        load_named({"data": table}, f"file '{file}'")  # a function of the site's own
    files = [Path(_absolute(file.parent, str(name))) for name in parts]
    with Origin(f"file '{file}'").blame(""):
        for path in files:
            hash_of(str(path))  # it is there
        return files, table


def _resolve_paths(folder: Path, table: Mapping[str, Any]) -> dict[str, Any]:
    """A site's table [data] whose files are seen from the folder of the site's file."""
    resolved = dict(table)
    for key in ("path", "test", "data_dir"):
        files = [value] if isinstance(value := resolved.get(key), str) else value
        if isinstance(files, list) and not _in_the_hub(folder, resolved, key):
            paths = [_absolute(folder, str(name)) if name else name for name in files]
            resolved[key] = paths if isinstance(value, list) else paths[0]
    if is_own(name := resolved.get("name")):
        resolved["name"] = _absolute(folder, str(name))
    return resolved


def _in_the_hub(folder: Path, table: Mapping[str, Any], key: str) -> bool:
    """Whether a path is the name of a data set elsewhere, and no folder here."""
    hub = key == "path" and table.get("name") == "hugging_face"
    return hub and not Path(_absolute(folder, str(table[key]))).exists()


def _absolute(folder: Path, name: str) -> str:
    return str((folder / user_path(name)).absolute())


def load_data(site: Mapping[str, Any], file: Path, run: Mapping[str, Any]) -> FederatedData:
    """The data of the table of a site's file, as data of one client. run: the run's own table,
    whose rules of columns hold at all sites. Raises ConfigError, DataError.
    """
    origin, table = Origin(f"file '{file}'"), as_agreed(site, run, file)
    name = str(table.pop("name", ""))
    if name not in SOURCES and not is_own(name):
        raise ConfigError(f"file '{file}': {unknown('data', name, SOURCES)}")
    with origin.blame("data"):
        make = SOURCES[name]
    skip = ("partition", "seed")
    values = check(make, table, "data", f"data '{short(name)}'", origin, skip)
    whole = {} if is_divided(make) else {"partition": iid(clients=1)}
    with origin.blame("data", values):
        data: FederatedData = SOURCES.make(name, **whole, **live(values))
        if data.population != 1:
            raise DataError(f"'{short(name)}' gives {data.population} clients; a site is one")
    refuse_own_words(data, name, file)
    return data


def at_client(data: FederatedData, client: int, agreement: Agreement) -> FederatedData:
    """A client's data with empty lists for all others, in the form that all agreed on."""
    pairs = [(data.inputs, data.targets)]
    if data.test_inputs is not None and data.test_targets is not None:
        pairs.append((data.test_inputs, data.test_targets))
    pairs = [fitted(x, y, data.class_names, agreement) for x, y in pairs]
    sizes = torch.zeros_like(agreement.roll.sizes)
    sizes[client] = len(data.inputs)
    tests = pairs[1] if len(pairs) > 1 else (None, None)
    return dataclasses.replace(
        data,
        inputs=pairs[0][0],
        targets=pairs[0][1],
        test_inputs=tests[0],
        test_targets=tests[1],
        clients=Ragged.from_sizes(sizes, data.clients.indices),
        class_names=tuple(agreement.class_names),
        roll=agreement.roll,
    )
