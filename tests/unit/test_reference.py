"""Every setting has its words, and the defaults in words are those of a configuration."""

from __future__ import annotations

import pytest

from fedloom.config import resolve
from fedloom.config.help_texts import OPTIMISERS, TABLES, as_markdown, options_of, settings_in
from fedloom.config.overrides import REGISTRIES
from fedloom.config.validation import known
from fedloom.federation.local import Local


@pytest.mark.parametrize("name", TABLES)
def test_every_key_has_a_meaning_and_what_it_takes(name: str) -> None:
    found = settings_in(name)
    prefix = "" if name == "run" else f"{name}."
    assert [s.key for s in found] == [prefix + key for key in known(TABLES[name], {"schedule"})]
    assert all(s.about and s.allowed for s in found)


def test_defaults_are_those_of_a_configuration() -> None:
    values = resolve("digits", ["turnover.active=25"]).values
    said = {s.key: s.default for name in ("turnover", "checkpoint") for s in settings_in(name)}
    for table in ("turnover", "checkpoint"):
        for key, value in values[table].items():
            if f"{table}.{key}" != "turnover.active":
                shown = str(value).lower() if isinstance(value, bool) else str(value)
                assert said[f"{table}.{key}"] == shown
    assert said["turnover.active"] == "needed"


def test_every_option_of_every_part_is_on_the_page() -> None:
    page = as_markdown()
    for path, makers in REGISTRIES.items():
        if path in ("algorithm", "compress.down"):
            continue
        for name in makers:
            assert f"### {path} = {name}\n" in page
            assert all(f"| `{s.key}` | " in page for s in options_of(path, name))


def test_local_optimisers_are_those_there_are() -> None:
    assert set(OPTIMISERS) == set(Local.__dataclass_fields__["optimiser"].metadata["hyper"].choices)
