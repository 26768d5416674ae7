"""At a site: what is told of its table, once its people have agreed to these very words; and the
preparation that all sites get, which may use no column that was not told.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import BaseModel, ConfigDict, Field

from fedloom.core.parsing import parse_toml
from fedloom.core.strict_json import Name
from fedloom.core.validation import Origin, check, live
from fedloom.data import table
from fedloom.data.own.description import Description, described_table, parsed
from fedloom.data.own.preparation import preparation_of
from fedloom.errors import ConfigError, WireError
from fedloom.storage.identity import digest

from .columns import inherited, prepared
from .folder import Folder, write
from .message import DIGITS


class Preparation(BaseModel):
    """How all sites make inputs of their rows: data.rules and data.class_names of run.toml."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
    rules: list[dict[str, Any]] = Field(min_length=1, max_length=10_000)
    class_names: list[Name] = Field(max_length=1000)

    @classmethod
    def in_table(cls, data: Mapping[str, Any]) -> Preparation:
        """That of a run.toml's table [data]."""
        return cls(rules=data["rules"], class_names=data["class_names"])

    @property
    def digest(self) -> str:
        """By which people at all places can compare it."""
        return digest(self.model_dump(), DIGITS)

    def add_to(self, text: str) -> str:
        """A run.toml with these rules, and a model with as many inputs as they make."""
        values = prepared(parse_toml(text), self.rules, self.class_names)
        if "inputs" in values["model"]:
            values["model"] = values["model"] | {"inputs": len(preparation_of(self.rules).heads)}
        return f"# data.rules, data.class_names: agreed, {self.digest}\n{tomli_w.dumps(values)}"


def described_run(name: str) -> str:
    """The run in messages about descriptions, which do not depend on its other settings."""
    return f"{name}@described"


def digest_of(description: Description) -> str:
    """By which a site's people know what they agreed to tell."""
    return digest(description.model_dump(), DIGITS)


def description_of(
    fed: Folder, site: Mapping[str, Any], run: Mapping[str, Any], file: Path
) -> Description:
    """What would be told of a site's training rows: of data.inputs of run.toml, or of all columns;
    once there are rules, of what was told before. site, run: the tables [data] of its own file and
    of run.toml. Raises ConfigError, DataError.
    """
    if site.get("name") != "table" or not site.get("path"):
        raise ConfigError(
            f"file '{file}': only a table can be described; it needs [data] with name = 'table' "
            "and path, CSV or Parquet files"
        )
    inputs = run.get("inputs") or [rule["name"] for rule in run["rules"]]
    if run["rules"] and (consent := read_consent(fed)):
        inputs = [name for name in consent.columns if name != consent.target]
    options = {k: v for k, v in inherited(site, run).items() if k not in ("name", "rules")}
    origin = Origin(f"file '{file}'")
    skip = ("partition", "seed")
    values = check(table, options | {"inputs": [*inputs]}, "data", "data 'table'", origin, skip)
    with origin.blame("data", values):
        description = described_table(live(values), fed.settings().least_count)
    return with_target(description, values["target"], run["target"])


def with_target(description: Description, local: Any, common: Any) -> Description:
    """A description with the target's name at all sites."""
    if not isinstance(local, str) or not isinstance(common, str):
        return description
    columns = {common if name == local else name: c for name, c in description.columns.items()}
    return description.model_copy(update={"target": common, "columns": columns})


def write_consent(fed: Folder, description: Description) -> None:
    """Note that a site's people agreed to tell this. Raises ConfigError."""
    write(fed.description_file, description.model_dump_json() + "\n")


def read_consent(fed: Folder) -> Description | None:
    """What a site's people agreed to tell; None if nothing, or a file that is damaged."""
    try:
        return parsed(fed.description_file.read_bytes())
    except (OSError, WireError):
        return None


def check_described(preparation: Preparation, description: Description) -> None:
    """Raise WireError for rules of a column that this site did not tell."""
    for rule in preparation.rules:
        if rule.get("name") not in description.columns or rule["name"] == description.target:
            raise WireError(
                f"the preparation uses column {str(rule.get('name'))[:60]!r}, of which this site "
                "told nothing"
            )
