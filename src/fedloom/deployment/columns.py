"""Columns of tables in a federation: all sites apply the rules of run.toml, found in one table."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..config.resolve import Config
from ..config.validation import NOTHING
from ..data import FederatedData, iid, table
from ..data.own.preparation import Preparation, preparation_of, rules_of
from ..data.own.files import files_of
from ..data.raw_inputs import Words
from ..errors import CompositionError, ConfigError, DataError

FOUND = ("columns", "missing", "standardise")  # options of `table` that look at rows
_AGREED = ("inputs", "text", "rules", "class_names", *FOUND)
_HOW = (
    "make the federation with `fedloom deploy new` where a table of these columns is (data.path), "
    "or write [[data.rules]] into run.toml at every place (docs/data.md)"
)


def with_rules(config: Config, elsewhere: bool) -> Config:
    """The settings with the rules of the server's table, and its classes, written out. elsewhere:
    the clients' data are, so that a table of numbers need not be here. Raises DataError.
    """
    data = config.values["data"]
    if data["name"] != "table" or data["rules"]:
        return config
    if elsewhere and not _looks(data) and not _is_here(data["path"]):
        return config
    try:
        with config.origin.blame("data", data):
            found = table(iid(clients=1), **config.options("data"))
    except DataError as error:
        if elsewhere:
            raise DataError(f"{error}; the columns' rules are found in it: {_HOW}") from error
        raise
    rules = rules_of(found.raw)
    if found.inputs.ndim != 2 or not rules:  # columns of lists, and texts
        return config
    kept = {k: v for k, v in data.items() if k not in ("inputs", *FOUND)}
    told = {"rules": rules, "class_names": list(found.class_names)}
    return Config({**config.values, "data": kept | told}, config.origin)


def refuse_unagreed(data: Mapping[str, Any]) -> None:
    """Raise CompositionError for settings of a table whose rules every site would find anew."""
    if data["name"] == "table" and not data.get("rules") and (key := _looks(data)):
        raise CompositionError(
            f"data.{key} is found in the rows of a table, by each site in its own, and a column "
            f"would mean something else at each: {_HOW}"
        )


def as_agreed(given: Mapping[str, Any], run: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """The options of a site's own data, with the rules of the run's data. Raises ConfigError."""
    rules, name = run.get("rules"), given.get("name")
    if name == "table":
        if twice := given.keys() & (_AGREED if rules else ("rules", "class_names")):
            raise ConfigError(
                f"file '{file}': data.{min(twice)} must be the same at all sites, so it is in "
                "run.toml (data.rules, data.class_names) alone; take it out here"
            )
        try:
            refuse_unagreed(given)
        except CompositionError as error:
            raise ConfigError(f"file '{file}': {error}") from None
    elif rules:
        raise ConfigError(
            f"file '{file}': data '{name}' has no columns, and run.toml has rules for columns "
            "(data.rules); take name = 'table', a CSV or Parquet file"
        )
    agreed = {key: run[key] for key in ("target", "rules", "class_names") if rules}
    return {**agreed, **given}


def refuse_own_words(own: FederatedData, name: str, file: Path) -> None:
    """Raise ConfigError for texts whose words are numbered as they occur at this site."""
    if isinstance(own.raw, Words) and name in ("table", "hugging_face"):
        raise ConfigError(
            f"file '{file}': the words of its texts would be numbered by this site's texts alone; "
            "deploy a table without data.text, or data sets whose vocabulary is published"
        )


def preparation_in(config: Config) -> Preparation | None:
    """How all sites make inputs of their tables; None if nothing is agreed."""
    rules = config.values["data"].get("rules")
    return preparation_of(rules) if rules else None


def _looks(data: Mapping[str, Any]) -> str:
    """The first option of a table whose rules are found in its rows; empty if there is none."""
    given = {k: v for k in FOUND if (v := data.get(k)) is not None and v is not False}
    return next((k for k, v in given.items() if v not in (NOTHING, {})), "")


def _is_here(path: Any) -> bool:
    try:
        return bool(path) and all(file.is_file() for file in files_of(path))
    except DataError:
        return False
