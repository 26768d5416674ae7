"""Columns of tables in a federation: all sites apply the rules of run.toml, found in one table."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedloom.config.resolve import Config
from fedloom.core.validation import NOTHING
from fedloom.data import FederatedData, iid, table
from fedloom.data.own.preparation import (
    DROP,
    FitOptions,
    PerClient,
    Preparation,
    preparation_of,
    rules_of,
)
from fedloom.data.own.reading import BY_FILE, files_of, stem
from fedloom.data.raw_inputs import Words
from fedloom.errors import ConfigError, DataError

READ_FROM_ROWS = ("columns", "missing", "standardise")  # options of `table` that look at rows
_SCALE = ("per_client", "missing", "standardise", "ddof")  # what each site does with its own
_AGREED = ("inputs", "text", "rules", "class_names", "columns", *_SCALE)
# where rows are and whose: each site's own. All other keys come from run.toml, today's and to come
SITES_OWN = ("partition", "seed", "tests", "path", "client", "test", "data_dir", "download")
_HELD_OUT = ({"test"}, {"date", "test_from"}, {"test_share", "test_seed"})  # ways to say test rows
_HOW = (
    "run `fedloom deploy describe`; or make the federation with `fedloom deploy new` where a table "
    "of these columns is (data.path), or write [[data.rules]] into run.toml at every place "
    "(docs/tables.md)"
)


def with_rules(config: Config, elsewhere: bool) -> Config:
    """The settings with the rules of the server's table, and its classes, written out. elsewhere:
    the clients' data are, so that a table need not be here: a table of numbers needs no rules, and
    for others sites can be described. Raises DataError.
    """
    settings = config.values["data"]
    if settings["name"] != "table" or settings["rules"]:
        return config
    if elsewhere and not (settings["path"] if _looks(settings) else _is_here(settings["path"])):
        return config
    try:
        with config.origin.blame("data", settings):
            data = table(iid(clients=1), **config.options("data"))
    except DataError as error:
        if elsewhere:
            raise DataError(f"{error}; the columns' rules are found in it: {_HOW}") from error
        raise
    raw = data.raw.common if isinstance(data.raw, PerClient) else data.raw
    rules = rules_of(raw)
    if data.inputs.ndim != 2 or not rules:  # columns of lists, and texts
        return config
    return Config(prepared(config.values, rules, data.class_names), config.origin)


def prepared(
    values: Mapping[str, Any], rules: Sequence[Mapping[str, Any]], classes: Sequence[str]
) -> dict[str, Any]:
    """Settings with rules in place of what finds them."""
    data = values["data"]
    replaced = {"inputs", "columns", *(() if data["per_client"] else _SCALE)}
    remaining = {k: v for k, v in data.items() if k not in replaced or v == DROP}
    return {**values, "data": remaining | {"rules": [*rules], "class_names": [*classes]}}


def unagreed(data: Mapping[str, Any]) -> str:
    """Why a table's rules are still to be agreed on: every site would find them anew. Empty if that
    is not so.
    """
    if data["name"] != "table" or data.get("rules") or not (key := _looks(data)):
        return ""
    return (
        f"data.{key} is found in the rows of a table, by each site in its own, and a column would "
        f"mean something else at each: {_HOW}"
    )


def as_agreed(site: Mapping[str, Any], run: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """The options of a site's own data, with the rules of the run's data. Raises ConfigError."""
    rules, name = run.get("rules"), site.get("name")
    options = inherited(site, run)
    if name == "table":
        if repeated := site.keys() & (_AGREED if rules else ("rules", "class_names")):
            raise ConfigError(
                f"file '{file}': data.{min(repeated)} must be the same at all sites, so it is in "
                "run.toml (data.rules, data.class_names) alone; take it out here"
            )
        if why := unagreed(options):
            raise ConfigError(f"file '{file}': {why}")
    elif rules:
        raise ConfigError(
            f"file '{file}': data '{name}' has no columns, and run.toml has rules for columns "
            "(data.rules); take name = 'table', a CSV or Parquet file"
        )
    return options


def inherited(site: Mapping[str, Any], run: Mapping[str, Any]) -> dict[str, Any]:
    """A site's table [data] with what run.toml says for all sites: of options by file that of the
    site's files, and test rows in one way, the site's before the run's.
    """
    options = {key: value for key, value in run.items() if key not in SITES_OWN}
    if site.get("name") != run.get("name"):
        return dict(site)
    if any(way & site.keys() for way in _HELD_OUT):
        other_ways = {key for way in _HELD_OUT if not way & site.keys() for key in way}
        options = {key: value for key, value in options.items() if key not in other_ways}
    with contextlib.suppress(DataError):  # a file that is missing is said when it is read
        names = {"*", *(stem(file) for file in files_of(site.get("path", "")))}
        for key in BY_FILE:
            if isinstance(by_name := options.get(key), Mapping):
                options[key] = {k: v for k, v in by_name.items() if k in names}
    return {**options, **site}


def refuse_own_words(data: FederatedData, name: str, file: Path) -> None:
    """Raise ConfigError for texts whose words are numbered as they occur at this site."""
    if isinstance(data.raw, Words) and name in ("table", "hugging_face"):
        raise ConfigError(
            f"file '{file}': the words of its texts would be numbered by this site's texts alone; "
            "deploy a table without data.text, or data sets whose vocabulary is published"
        )


def preparation_in(config: Config) -> Preparation | PerClient | None:
    """How all sites make inputs of their tables; None if nothing is agreed."""
    data = config.values["data"]
    if not data.get("rules"):
        return None
    preparation = preparation_of(data["rules"])
    if not data.get("per_client"):
        return preparation
    finding = FitOptions(data.get("missing"), data["standardise"], data["ddof"])
    return PerClient(preparation, finding, {})  # what sites find stays there


def scale_in(data: Mapping[str, Any]) -> dict[str, Any]:
    """How every site fills and scales its rows by its own; nothing where rules say it all."""
    return {key: data.get(key) for key in _SCALE} if data.get("per_client") else {}


def _looks(data: Mapping[str, Any]) -> str:
    """The first option of a table whose rules are found in its rows; empty if there is none."""
    options = READ_FROM_ROWS if not data.get("per_client") else ("columns",)
    values = {k: v for k in options if (v := data.get(k)) is not None and v is not False}
    return next((k for k, v in values.items() if v not in (NOTHING, DROP, {})), "")


def rows_here(data: Mapping[str, Any]) -> bool:
    """Whether the rows of a run's table [data] are at this place."""
    return data["name"] != "table" or _is_here(data.get("path"))


def _is_here(path: Any) -> bool:
    try:
        return bool(path) and all(file.is_file() for file in files_of(path))
    except DataError:
        return False
