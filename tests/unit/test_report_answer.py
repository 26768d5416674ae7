"""The first words of a report: who is better, by how much, is that chance, at what cost."""

from __future__ import annotations

from pathlib import Path

import pytest
from report_fakes import fake_run

from fedloom.report import comparison, group_runs, load_run
from fedloom.report.answer import Answer, answer
from fedloom.report.differences import columns, differences


def answered(folder: Path, rows: dict[str, list[float]], **more: object) -> Answer:
    """The answer for a last evaluation of each seed, by method."""
    paths = [
        fake_run(
            folder / f"{name}{seed}", [0.1, value], algorithm=name, label=name, seed=seed, **more
        )  # type: ignore[arg-type]
        for name, values in rows.items()
        for seed, value in enumerate(values)
    ]
    groups = group_runs(map(load_run, paths))
    found = differences(groups)
    table = [row | columns(row["label"], found) for row in comparison(groups)]
    return answer(groups, table, found)


def test_a_difference_that_is_no_chance_is_said_with_its_interval_and_cost(tmp_path: Path) -> None:
    """Differences 0.19, 0.2, 0.21: t = 0.2 / (0.01 / sqrt(3)) = 34.6 with two degrees of freedom,
    p = 1 - t / sqrt(2 + t^2) = 0.0008; half the interval is 4.3027 x 0.01 / sqrt(3) = 0.0248.
    """
    found = answered(tmp_path, {"A": [0.6, 0.6, 0.6], "B": [0.79, 0.8, 0.81]}, target=0.7)
    assert found.words == [
        "B has the highest accuracy (mean of the last tenth of evaluations): 80.00 %, 20.00 points "
        "above A, the next.",
        "That is more than chance: B less A is +20.00 (+17.52 to +22.48) points, p < 0.001 by "
        "Holm, 3 seeds.",
        "B reaches 70 % after 2 rounds and 9.77 KiB; it sends 9.77 KiB in 2 rounds.",
        "A does not reach 70 %; it sends 9.77 KiB in 2 rounds.",
    ]
    assert found.heads[:4] == ["algorithm", "accuracy, last tenth (95 %)", "less A", "p (Holm)"]
    assert found.lines[1][:4] == [
        "B", "80.00 % (77.52 to 82.48 %)", "+20.00 (+17.52 to +22.48)", "< 0.001",
    ]  # fmt: skip


def test_the_best_is_compared_with_the_next_one_and_not_with_the_first_row(tmp_path: Path) -> None:
    """B is far above A, and level with C: 0.01, -0.01 and 0 are 0 on average, p = 1."""
    rows = {"A": [0.5, 0.5, 0.5], "B": [0.8, 0.8, 0.8], "C": [0.79, 0.81, 0.799]}
    found = answered(tmp_path, rows)
    assert "80.00 %, 0.03 points above C" in found.words[0]
    assert found.words[1].startswith("That may be chance: B less C is +0.03 (")
    assert found.words[3].startswith("C ") and not any("A " in said for said in found.words[:4])


def test_numbers_shown_are_over_the_seeds_that_are_tested(tmp_path: Path) -> None:
    found = answered(tmp_path, {"A": [0.5, 0.7, 0.99], "B": [0.5, 0.6]})
    assert (
        "A has the highest accuracy" in found.words[0] and "60.00 %, 5.00 points" in found.words[0]
    )
    assert found.lines[0][1].startswith("60.00 % (") and "That may be chance" in found.words[1]


def test_one_seed_one_method_and_lower_is_better(tmp_path: Path) -> None:
    found = answered(tmp_path / "a", {"A": [0.5], "B": [0.6]})
    assert "One seed cannot tell this from chance" in found.words[1]
    assert answered(tmp_path / "b", {"A": [0.5, 0.7]}).words[0].startswith("A: 60.00 % accuracy")
    low = answered(tmp_path / "c", {"A": [5.0], "B": [6.0]}, metric=("mse", False, "m2"))
    assert "A has the lowest mse" in low.words[0] and "5 m2, 1 below B" in low.words[0]


def test_the_page_begins_with_the_answer(tmp_path: Path) -> None:
    from fedloom.report import write_report

    paths = [
        fake_run(tmp_path / f"{n}{s}", [0.5, v + 0.01 * s], algorithm=n, label=n, seed=s)
        for n, v in (("A", 0.6), ("B", 0.8))
        for s in range(2)
    ]
    text = write_report(paths, tmp_path / "page.html").read_text()
    assert 0 < text.index("B has the highest accuracy") < text.index("<h2>Comparison</h2>")
    assert text.count("<table>") == text.count('<div class="wide"><table>'), "each scrolls inside"


@pytest.mark.parametrize("better", [True, False])
def test_the_best_is_by_the_direction_of_the_metric(tmp_path: Path, better: bool) -> None:
    found = answered(tmp_path, {"A": [1.0], "B": [2.0]}, metric=("m", better, ""))
    assert found.words[0].startswith("B has the highest" if better else "A has the lowest")
