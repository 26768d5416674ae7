"""README says what there is."""

from __future__ import annotations

import re
from pathlib import Path

from fedloom.algorithms.registry import ALGORITHMS
from fedloom.compression.codecs import CODECS
from fedloom.data import PARTITIONS, SOURCES
from fedloom.models import MODELS
from fedloom.objectives import OBJECTIVES
from fedloom.submodels import VIEWS

OWN = {"folders", "table", "hugging_face"}  # a user's data, no published set


def test_counts_are_those_of_the_registries() -> None:
    text = " ".join((Path(__file__).parents[2] / "README.md").read_text("utf-8").split())
    counts = {
        "methods": len(ALGORITHMS),
        "objectives": len(OBJECTIVES),
        "sub-model rules": len(VIEWS),
        "codecs": len(CODECS),
        "partitions": len(PARTITIONS),
        "published data sets": len(set(SOURCES) - OWN),
        "models": len(MODELS),
    }
    state = text[text.index("*State: ") :].split("*", 2)[1]
    said = {what: re.search(rf"(\d+) {what}\b", state) for what in counts}
    assert {what: int(m[1]) for what, m in said.items() if m} == counts
