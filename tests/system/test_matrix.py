"""The tables of what goes with what: they say what a run says."""

import functools
import itertools

import pytest

from fedloom.algorithms.registry import ALGORITHMS
from fedloom.cli import compatibility
from fedloom.cli.compatibility import AXES, LOCALS, NOTHING
from fedloom.config import resolve
from fedloom.errors import CompositionError
from fedloom.wrappers.registry import SERVERS

table = functools.cache(compatibility.table)
EXITS = ["model.hidden=[16, 8]", "model.exits=true"]


def test_it_asks_about_everything_that_is_registered():
    for name in AXES:
        assert len(table(name).rows) * len(AXES[name].names) >= 40
    assert set(AXES["server"].names) == {NOTHING, *SERVERS}
    assert set(table("objective").rows) == set(ALGORITHMS)


def changes(axis, row, column):
    """A cell as a person would type it."""
    codec, _, feedback = (row if axis.startswith("compress_") else column).partition(", ")
    link = [f"compress={codec}", f"compress.feedback={feedback or 'forget'}"]
    out = [f"submodel={row}" if axis.startswith("submodel_") else f"algorithm={row}"]
    if axis.startswith("compress_"):
        out = link
    if axis == "local":
        return [*out, *(f"local.{key}={value}" for key, value in LOCALS[column].items())]
    if axis == "dp":
        return [*out, "local.dp.noise=1"] if column != NOTHING else out
    if axis.endswith("compress"):
        out += ["objective=self_distillation", *EXITS] * (row == "scalefl")
        return [*out, *link, *(["weighting=uniform"] * (feedback == "ef21"))]
    if axis == "clock":
        name, *equal = column.split(", ")
        return [*out, f"clock={name}", *(["clock.staleness=0"] if equal else [])]
    if "scalefl" in (row, column):
        out += ["objective=self_distillation", *EXITS]
    if column == "self_distillation":
        out += EXITS
    if column == "ordered_distillation":
        out.append("submodel=fjord")
    if axis.endswith("aggregation"):
        out += ["weighting=uniform", *(["sampling=poisson"] * (column == "dp"))]
    return [*out, f"{axis.rpartition('_')[2]}={column}"] if column != NOTHING else out


def some_cells():
    """Every refused cell of one of its rows, and now and then one that is not."""
    out = []
    for axis in AXES:
        cells, seen = table(axis), set()
        for number, cell in enumerate(itertools.product(cells.rows, cells.axis.names)):
            why = cells.reasons.get(cell, "")
            kind = (why.partition(": ")[2], cell[1])
            labels = cell[1] != "squared_error"  # the digits have no numbers to hit
            if (why and kind not in seen) or (not why and number % 41 == 0 and labels):
                seen.add(kind)
                out.append((axis, *cell))
    return out


@pytest.mark.parametrize(("axis", "row", "column"), some_cells())
def test_a_cell_says_what_a_run_says(axis, row, column):
    why = table(axis).reasons.get((row, column))
    config = resolve("digits", changes(axis, row, column))
    if why is None:
        config.experiment().plan()
        return
    with pytest.raises(CompositionError) as caught:
        config.experiment().plan()
    assert str(caught.value) == why and "\n" not in why


SUMS = {"scaffold", "fedgamma", "fafed", "fedcm", "feddc", "mofedsam", "stem", "scaffnew"}
NORMS = {"fedexp", "qfedavg", "afl", "ifca", "ditto", "scaffnew"}  # and personal models
CUT = {"fafed", "stem", "fedcm", "mofedsam"} | NORMS
ADAM = SUMS | {"fednova"}  # no weights to divide by
REFUSED = {
    ("local", "sgd"): set(),
    ("local", "momentum"): SUMS,
    ("local", "adam"): ADAM,
    ("local", "adamw"): ADAM,
    ("local", "sam"): {"fedsmoo", "fedsam", "mofedsam", "fedgamma", "fedspeed"},
    ("submodel", "fiarse"): CUT,
    ("submodel", "heterofl"): CUT,
    **{("server", name): {"fedacg", "ifca"} for name in SERVERS},  # ifca: models at the server
}


@pytest.mark.parametrize(("axis", "column"), REFUSED)
def test_what_has_no_meaning_is_no_and_only_that(axis, column):
    refused = {row for row, name in table(axis).reasons if name == column}
    assert refused == REFUSED[axis, column]


def test_the_command(fedloom):
    show = lambda *words, code=0: fedloom("list", "--compatibility", *words, code=code).output
    text = show("local")
    assert "scaffold        ok   no (1)    no (1)  no (1)  ok" in text
    assert "1. it takes its move for the sum of its directions" in text
    assert "did you mean 'local'" in show("locl", code=2)
