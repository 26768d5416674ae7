"""Student's t, Holm's correction and verdicts, against tables and small cases by hand."""

from __future__ import annotations

import doctest
import math
from pathlib import Path

import pytest
from click.testing import CliRunner
from report_fakes import fake_run
from scipy import stats

from fedloom.cli.__main__ import cli
from fedloom.core import curves
from fedloom.core.curves import VALUE_WORDS, at, crossing, last_tenth
from fedloom.errors import ConfigError
from fedloom.report import load_run, load_runs, statistics
from fedloom.report.differences import as_lines, columns, differences
from fedloom.report.runs import Group, group_runs
from fedloom.report.statistics import (
    Paired,
    against,
    corrected,
    paired,
    student_p,
    student_t,
    unpaired,
)
from fedloom.report.table_files import as_latex
from fedloom.report.table_text import as_text
from fedloom.report.tables import comparison, human_value


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 9, 30, 101])
def test_p_and_t_are_those_of_scipy(freedom: int) -> None:
    for level in (0.5, 0.95, 0.999):
        assert student_t(level, freedom) == pytest.approx(stats.t.ppf((1 + level) / 2, freedom))
    for t in (0.0, 0.3, 2.0, 12.0):
        wanted = 2 * stats.t.sf(t, freedom)
        assert student_p(t, freedom) == pytest.approx(wanted, rel=1e-9, abs=1e-14)


def test_three_seeds_need_four_point_three_standard_errors() -> None:
    # differences of 1, 2 and 3 points: mean 2, sd 1, t = 2 sqrt(3) = 3.46, which two standard
    # errors would have called clear; p = 1 - t / sqrt(2 + t^2) = 1 - sqrt(12 / 14)
    found = paired({0: 0.81, 1: 0.82, 2: 0.83}, {0: 0.80, 1: 0.80, 2: 0.80})
    assert found is not None
    assert (found.mean, found.sd, found.n) == (pytest.approx(0.02), pytest.approx(0.01), 3)
    assert found.p == pytest.approx(1 - math.sqrt(12 / 14), abs=1e-9)
    half = 4.302653 * 0.01 / math.sqrt(3)
    assert found.low == pytest.approx(0.02 - half) and found.high == pytest.approx(0.02 + half)
    assert found.words() == "+2.00 ± 2.48 (95 %, Student, 3 seeds), p 0.074: undecided"
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


def test_runs_that_are_no_pairs_are_compared_as_welch_does() -> None:
    ours, theirs = [0.70, 0.74, 0.73, 0.69, 0.75], [0.76, 0.77, 0.75]
    found, right = unpaired(ours, theirs), stats.ttest_ind(ours, theirs, equal_var=False)
    assert found is not None and found.error == pytest.approx(found.mean / right.statistic)
    assert found.freedom == math.floor(right.df) < right.df
    assert found.p == pytest.approx(2 * stats.t.sf(abs(right.statistic), found.freedom))
    assert found.p > right.pvalue, "rounded down, so never more certain than Welch"
    assert found.half == pytest.approx(stats.t.ppf(0.975, found.freedom) * found.error)
    # two groups of equal size and spread: 2n - 2
    alike = unpaired([0.1, 0.2, 0.4], [0.7, 0.9, 1.0])
    assert alike is not None and alike.freedom == 4
    assert corrected({0: found, 1: alike})[0].p_holm == pytest.approx(found.p)
    one, none = unpaired([0.1], [0.2, 0.3]), unpaired([], [0.2])
    assert one is not None and (one.p, one.verdict, one.half) == (None, "undecided", math.inf)
    assert none is None
    same = unpaired([0.5] * 5, [0.5] * 5)
    assert same is not None and (same.p, same.half, same.verdict) == (1.0, 0.0, "undecided")


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
    assert [(d.label, d.gap.verdict) for d in found] == [("far", "above"), ("near", "undecided")]
    far, near = (d.gap for d in found)
    assert near.p_holm == near.p and far.p_holm == 2 * (far.p or 0.0)
    head, _, line, last = as_lines(found)
    assert "Less base in points (mean of the last tenth of evaluations, accuracy" in head
    assert "2 comparisons" in last
    assert "53.00 % less 51.00 %: +2.00 ± 2.48 (95 %, Student, 3 seeds), p 0.074" in line
    assert line.endswith("p 0.074 (by Holm 0.074): undecided")
    assert columns("base", found)["p"] is None and columns("far", found)["verdict"] == "above"
    other = differences(groups, "near")
    assert [d.label for d in other] == ["base", "far"]
    assert other[0].gap.mean == pytest.approx(-0.02)
    with pytest.raises(ConfigError, match="--against 'nea' is no row of the table; did you mean"):
        differences(groups, "nea")


def test_one_seed_is_no_test(tmp_path: Path) -> None:
    (line,) = as_lines(differences(groups_of(tmp_path, 1, far=(0.1,))))
    assert line.startswith("Only one seed in common with base")
    assert as_lines(differences(groups_of(tmp_path / "b", 3))) == []


def test_student_and_holm_are_those_of_an_independent_calculator() -> None:
    ours = {0: 0.857, 1: 0.861, 2: 0.8555, 3: 0.863, 4: 0.859}
    rivals = {
        "a": {0: 0.853, 1: 0.850, 2: 0.8551, 3: 0.8533, 4: 0.8501},
        "b": {0: 0.801, 1: 0.8301, 2: 0.811, 3: 0.8195, 4: 0.8222},
        "c": {0: 0.8561, 1: 0.8633, 2: 0.8577, 3: 0.861, 4: 0.8581},
    }
    found = against(ours, rivals)
    p = {
        k: float(stats.ttest_rel([*ours.values()], [*row.values()]).pvalue)
        for k, row in rivals.items()
    }
    ranked = sorted(p, key=p.__getitem__)
    least, adjusted = 0.0, {}
    for rank, name in enumerate(ranked):
        least = adjusted[name] = max(least, min(1.0, (3 - rank) * p[name]))
    for name in rivals:
        assert found[name].p == pytest.approx(p[name], abs=1e-12)
        assert found[name].p_holm == pytest.approx(adjusted[name], abs=1e-12)
    # a is clear alone, and not as one of three
    assert p["a"] < 0.05 < adjusted["a"]
    assert [found[n].verdict for n in "abc"] == ["undecided", "above", "undecided"]
    alone = paired(ours, rivals["a"])
    assert alone is not None and alone.verdict == "above"


def test_rows_of_a_comparison_count_with_the_seeds_that_all_have() -> None:
    # a's seeds 3 and 4, added after a look, would make 0.9 +- of five seeds; b has three
    ours = {0: 3.0, 1: 1.0, 2: 2.0, 3: 9.0, 4: 9.0}
    found = against(ours, {"a": dict.fromkeys(range(5), 1.0), "b": dict.fromkeys(range(3), 0.0)})
    assert [found[k].n for k in "ab"] == [3, 3]
    assert found["a"].mean == pytest.approx(1.0) and found["b"].mean == pytest.approx(2.0)
    assert against(ours, {"a": {7: 1.0}}) == {}


def test_the_last_tenth_is_rounded_up() -> None:
    # 21 evaluations: three of them; by hand
    assert last_tenth([0.0] * 18 + [1.0, 2.0, 6.0]) == pytest.approx(3.0)
    assert last_tenth([float(i) for i in range(30)]) == pytest.approx(28.0)
    assert math.isnan(last_tenth([0.0] * 15 + [math.nan, 1.0]) or 0.0), "a run that diverged"
    # ten evaluations: one alone may be an outlier; three: the first two are the run's beginning
    assert last_tenth([0.0] * 7 + [1.0, 2.0, 6.0]) == pytest.approx(3.0)
    assert last_tenth([0.1, 0.2, 0.6]) == 0.6


def test_between_two_evaluations_a_curve_is_a_straight_line() -> None:
    # a client's 60 models are 29.999 rounds where a round costs 2.00007: not round 25
    curve = {1: 0.14, 25: 0.60, 30: 0.67}
    rounds = 60 / 2.00007
    assert at(curve, rounds) == pytest.approx(0.60 + 0.07 * (rounds - 25) / 5)
    assert at(curve, 0.99) is None and at(curve, 31) is None and at(curve, 30 + 1e-9) == 0.67
    assert crossing(curve, 0.635) == pytest.approx(27.5) and crossing(curve, 0.1) == 1
    falling = {10: 3.0, 20: 2.0, 30: math.nan, 40: 1.0}
    assert crossing(falling, 1.5, higher=False) == pytest.approx(30.0)


def test_what_is_tested_is_shown_and_can_be_chosen(tmp_path: Path) -> None:
    """An own method 6 points ahead at its end, whose moving average is still 11 behind."""
    runs = []
    for seed, noise in enumerate((0.0, 0.001, -0.001)):
        slow = [0.5, 0.6, 0.88 + noise]
        base = [0.8, 0.81, 0.82]
        runs.append(
            fake_run(
                tmp_path / f"b{seed}",
                base,
                ema=[0.8, 0.8, 0.8],
                algorithm="b",
                label="b",
                seed=seed,
            )
        )
        runs.append(
            fake_run(
                tmp_path / f"o{seed}",
                slow,
                ema=[0.5, 0.55, 0.683 + noise],
                algorithm="o",
                label="own",
                seed=seed,
            )
        )
    groups = group_runs(map(load_run, runs))
    for value, mean, verdict in (("last-tenth", 0.06, "above"), ("ema", -0.117, "below")):
        rows = comparison(groups, value=value)
        (one,) = differences(groups, value=value)
        assert one.gap.mean == pytest.approx(mean) and one.gap.verdict == verdict
        assert one.ours == pytest.approx(rows[1]["value_mean"])
        head = f"accuracy, {'last tenth' if value == 'last-tenth' else 'EMA last'}"
        text = as_text(rows)
        assert head in text and text.index(head) < text.index("accuracy, best")
        for made in (text, as_latex(rows)):
            assert human_value(one.ours, "share").removesuffix(" %") in made
        assert VALUE_WORDS[value] in as_lines([one])[0]
    with pytest.raises(ConfigError, match="has no validation split; choose last-tenth, last, ema"):
        differences(groups, value="best-of-validation")
    own = CliRunner().invoke(cli, ["compare", *map(str, runs), "--value", "last"]).output
    assert own.index("accuracy, last") < own.index("accuracy, best")
    assert "Less b in points (last evaluation, accuracy" in own and ": above" in " ".join(
        own.split()
    )
    frame = load_runs(runs[1], "last-tenth")
    assert frame["tested"].tolist() == pytest.approx([0.5, 0.6, 0.88])
    assert load_runs(runs[1], "ema")["tested"].iloc[-1] == pytest.approx(0.683)


def test_the_best_of_validation_is_the_test_value_there() -> None:
    columns = {
        "test_mse": {0: 5.0, 3: 3.0, 6: 4.0},
        "validation_mse": {0: 5.1, 3: 2.0, 6: 2.5},
    }
    found = curves.tested(lambda name: columns.get(name, {}), "mse", False, "best-of-validation")
    assert found == {0: 5.0, 3: 3.0, 6: 3.0}
    with pytest.raises(ConfigError, match="nothing says whether the metric 'mse'"):
        curves.tested(lambda name: columns.get(name, {}), "mse", None, "best-of-validation")
    with pytest.raises(ConfigError, match="unknown value 'lst'; did you mean 'last'"):
        curves.tested(lambda name: {}, "mse", None, "lst")  # type: ignore[arg-type]


@pytest.mark.parametrize("module", [statistics, curves])
def test_examples_in_docstrings(module: object) -> None:
    assert doctest.testmod(module).failed == 0  # type: ignore[arg-type]  # is a module
