"""Sub-models in reports: the table by hand, and what the pictures mark."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from report_fakes import fake_run

from fedloom.report import group_runs, load_run
from fedloom.report.runs import Group
from fedloom.report.style import styles
from fedloom.report.submodels import size_cells, size_pictures
from fedloom.report.tables import human_size

VALUES = [0.5, *(0.6 + 0.01 * k for k in range(10))]


@pytest.fixture
def group(tmp_path: Path) -> Group:
    """Eleven evaluations of two sizes, of 0.5 only the common test set."""
    run = fake_run(tmp_path / "a", VALUES)
    rows = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    for row, value in zip(rows, VALUES, strict=True):
        shares = {"explored@0.5": 0.5, "explored@1": 1.0, "replaced@0.5": 0.1, "replaced@1": 0.0}
        row |= {"test_accuracy@0.5": value, "test_accuracy@1": 0.7, **shares}
    (run / "rounds.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    summary = json.loads((run / "summary.json").read_text())
    unseen = [
        {"capacity": c, "trained": c == 0.5, "global": c, "outside": None} for c in (0.25, 0.5)
    ]
    held = {"0.5": {"counted": 40, "of": 80, "all": 60}, "1": {"counted": 80, "of": 80, "all": 100}}
    cost = {"0.5": {"seconds": 0.002, "peak": 2048}, "1": {"seconds": 0.004, "peak": 4096}}
    sizes = {"held": held, "cost": cost, "global": {"0.5": 0.5, "1": 0.7}, "unseen": unseen}
    (run / "summary.json").write_text(json.dumps(summary | {"parameters": 100, "sizes": sizes}))
    return group_runs([load_run(run)])[0]


def test_the_table_has_last_values_means_of_ten_and_what_is_held(group: Group) -> None:
    heads, lines = size_cells([group])
    assert heads == ["algorithm", "measured", "size 1/2", "size 1", "mean"]
    assert {line[1]: line[2:4] for line in lines} == {
        "global": ["69.00 %", "70.00 %"],
        "global, mean of last 10": ["64.50 %", "70.00 %"],
        "held, of what counts": ["50.00 %", "100.00 %"],
        "held, of all parameters": ["60.00 %", "100.00 %"],
        "time of a step": ["2.00 ms", "4.00 ms"],
        "memory of a step": ["2.00 KiB", "4.00 KiB"],
    }


def test_the_pictures_mark_what_was_trained_and_stay_within_percent(group: Group) -> None:
    pictures = {p.name: p for p in size_pictures([group], styles([group]))}
    (axes,) = pictures["sizes-unseen"].figure.axes
    line, full = axes.lines
    assert line.get_xdata().tolist() == [0.25, 0.5, 1.0]
    assert line.get_markerfacecolor() == "white"
    assert full.get_xdata().tolist() == [0.5, 1.0]
    for name in ("sizes-explored", "sizes-replaced"):
        for axes in pictures[name].figure.axes:
            low, high = axes.get_ylim()
            assert -3 < low < high < 105
    left, right = pictures["sizes-rounds"].figure.axes
    assert left.get_ylim() == right.get_ylim()
    assert left.get_title("left") == "size 1/2"
    assert "1/2 50" in pictures["sizes-unseen"].alt


@pytest.mark.parametrize(
    ("share", "text"), [(1 / 64, "1/64"), (0.2, "0.2"), (1 / 3, "0.333333"), (0.5, "1/2"), (1, "1")]
)
def test_a_size_is_written_as_papers_write_it(share: float, text: str) -> None:
    assert human_size(share) == text
    assert human_size(float(f"{share:.6g}")) == text
