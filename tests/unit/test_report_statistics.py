"""Student's t, Holm's correction and verdicts, against tables and small cases by hand."""

from __future__ import annotations

import doctest
import math
from pathlib import Path

import pytest
from report_fakes import fake_run

from fedloom.errors import ConfigError
from fedloom.report import differences as module_of_differences
from fedloom.report import load_run, statistics
from fedloom.report.differences import as_lines, columns, differences
from fedloom.report.runs import Group, group_runs
from fedloom.report.statistics import Paired, holm, paired, student_p, student_t


@pytest.mark.parametrize(
    ("t", "freedom", "p"),
    [
        (1.0, 1, 0.5),  # Cauchy: 1 - 2 atan(1) / pi
        (12.706, 1, 0.05),
        (2.0, 2, 1 - 2 / math.sqrt(6)),
        (4.303, 2, 0.05),
        (3.182, 3, 0.05),
        (2.776, 4, 0.05),
        (2.571, 5, 0.05),
        (9.925, 2, 0.01),
    ],
)
def test_p_and_t_are_those_of_the_tables(t: float, freedom: int, p: float) -> None:
    assert student_p(t, freedom) == pytest.approx(p, abs=1e-4)
    assert student_p(-t, freedom) == student_p(t, freedom)
    assert student_t(1 - p, freedom) == pytest.approx(t, abs=1e-3)


def test_three_seeds_need_four_point_three_standard_errors() -> None:
    # differences of 1, 2 and 3 points: mean 2, sd 1, t = 2 sqrt(3) = 3.46, which two standard
    # errors would have called clear; p = 1 - t / sqrt(2 + t^2) = 1 - sqrt(12 / 14)
    found = paired({0: 0.81, 1: 0.82, 2: 0.83}, {0: 0.80, 1: 0.80, 2: 0.80})
    assert found is not None
    assert (found.mean, found.sd, found.n) == (pytest.approx(0.02), pytest.approx(0.01), 3)
    assert found.p == pytest.approx(1 - math.sqrt(12 / 14), abs=1e-9)
    half = 4.302653 * 0.01 / math.sqrt(3)
    assert found.low == pytest.approx(0.02 - half) and found.high == pytest.approx(0.02 + half)
    assert found.words() == "+2.00 ± 2.48 (95 %, Student, 3 seeds): undecided"
    edge = 4.3027 / math.sqrt(3)
    assert Paired(0.01 * edge * 1.001, 0.01, 3).verdict == "above"
    assert Paired(-0.01 * edge * 0.999, 0.01, 3).verdict == "undecided"
    assert Paired(-0.01 * edge * 1.001, 0.01, 3).verdict == "below"


def test_pairs_are_by_seed_or_by_place() -> None:
    assert paired([3.0, 5.0], [1.0, 1.0]) == paired({4: 5.0, 2: 3.0}, {2: 1.0, 4: 1.0, 7: 0.0})
    assert paired({0: 1.0}, {1: 1.0}) is None
    with pytest.raises(ValueError, match="2 values cannot be paired with 1"):
        paired([1.0, 2.0], [1.0])
    one = Paired(0.5, None, 1)
    assert (one.p, one.verdict, one.low, one.high) == (None, "undecided", -math.inf, math.inf)
    assert [Paired(m, 0.0, 3).verdict for m in (-1.0, 0.0, 1.0)] == ["below", "undecided", "above"]
    assert Paired(math.nan, math.nan, 3).verdict == "undecided"  # a run that diverged


def test_holm_counts_the_comparisons() -> None:
    # Holm's own order: 0.01 x 3, then 0.02 x 2, then 0.03 x 1 but no less than the one before
    assert holm([0.03, 0.01, 0.02]) == pytest.approx([0.04, 0.03, 0.04])
    assert holm([0.9, 0.6]) == [1.0, 1.0] and holm([]) == []


def groups_of(folder: Path, seeds: int, **gains: tuple[float, ...]) -> list[Group]:
    runs = [
        fake_run(folder / f"{name}{s}", [0.5 + gain[s]], algorithm=name, label=name, seed=s)
        for name, gain in {"base": (0.0, 0.01, 0.02), **gains}.items()
        for s in range(seeds)
    ]
    return group_runs(map(load_run, runs))


def test_a_comparison_says_what_each_group_is_less_the_first(tmp_path: Path) -> None:
    # less the base: one +10 in every seed, one +1, +2, +3 points, and both counted
    groups = groups_of(tmp_path / "a", 3, far=(0.1, 0.11, 0.1201), near=(0.01, 0.03, 0.05))
    found = differences(groups)
    assert [(d.label, d.verdict) for d in found] == [("far", "above"), ("near", "undecided")]
    assert found[1].p_holm == found[1].found.p and found[0].p_holm == 2 * (found[0].found.p or 0.0)
    head, _, near, last = as_lines(found)
    assert "Less base in points" in head and "2 comparisons" in last
    assert near.endswith(
        "+2.00 ± 2.48 (95 %, Student, 3 seeds), p 0.074 (by Holm 0.074): undecided"
    )
    assert columns("base", found)["p"] is None and columns("far", found)["verdict"] == "above"
    other = differences(groups, "near")
    assert [d.label for d in other] == ["base", "far"]
    assert other[0].found.mean == pytest.approx(-0.02)
    with pytest.raises(ConfigError, match="--against 'nea' is no row of the table; did you mean"):
        differences(groups, "nea")


def test_one_seed_is_no_test(tmp_path: Path) -> None:
    (line,) = as_lines(differences(groups_of(tmp_path, 1, far=(0.1,))))
    assert line.startswith("Only one seed in common with base")
    assert as_lines(differences(groups_of(tmp_path / "b", 3))) == []


@pytest.mark.parametrize("module", [statistics, module_of_differences])
def test_examples_in_docstrings(module: object) -> None:
    assert doctest.testmod(module).failed == 0  # type: ignore[arg-type]  # is a module
