"""Who is better, by how much, and is that chance; comparisons that may stop early."""

import math

import numpy as np
import pytest
from click.testing import CliRunner
from report_fakes import fake_groups, fake_run, groups_at
from scipy import stats

from fedloom.cli.__main__ import cli
from fedloom.core import curves
from fedloom.core.curves import VALUE_WORDS, at, crossing, last_tenth
from fedloom.errors import ConfigError
from fedloom.report import comparison, load_runs
from fedloom.report.differences import answer, as_lines, difference_columns, differences
from fedloom.report.statistics import (
    Paired,
    against,
    corrected,
    decide,
    holm,
    levels,
    looks,
    p_text,
    paired,
    student_p,
    student_t,
    unpaired,
)
from fedloom.report.table_text import as_latex, as_text
from fedloom.report.tables import human_value


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 9, 30, 101])
def test_p_and_t_are_those_of_scipy(freedom):
    for level in (0.5, 0.95, 0.999):
        assert student_t(level, freedom) == pytest.approx(stats.t.ppf((1 + level) / 2, freedom))
    for t in (0.0, 0.3, 2.0, 12.0):
        wanted = 2 * stats.t.sf(t, freedom)
        assert student_p(t, freedom) == pytest.approx(wanted, rel=1e-9, abs=1e-14)


def test_three_seeds_need_four_point_three_standard_errors():
    """Of 1, 2 and 3 points the mean is 2, the deviation 1, and t = 2 sqrt(3) = 3.46, which two
    standard errors would have called clear; p = 1 - t / sqrt(2 + t^2) = 1 - sqrt(12 / 14).
    """
    pair = paired({0: 0.81, 1: 0.82, 2: 0.83}, {0: 0.80, 1: 0.80, 2: 0.80})
    assert (pair.mean, pair.sd, pair.n) == (pytest.approx(0.02), pytest.approx(0.01), 3)
    assert pair.p == pytest.approx(1 - math.sqrt(12 / 14), abs=1e-9)
    half = 4.302653 * 0.01 / math.sqrt(3)
    assert (pair.low, pair.high) == (pytest.approx(0.02 - half), pytest.approx(0.02 + half))
    assert pair.words() == "+2.00 ± 2.48 (95 %, Student, 3 seeds), p 0.074: undecided"
    edge = 0.01 * 4.3027 / math.sqrt(3)
    means = (1.001 * edge, -0.999 * edge, -1.001 * edge)
    assert [Paired(m, 0.01, 3).verdict for m in means] == ["above", "undecided", "below"]


def test_pairs_are_by_seed():
    assert Paired.of([2.0, 4.0]) == paired({4: 5.0, 2: 3.0}, {2: 1.0, 4: 1.0, 7: 0.0})
    assert paired({0: 1.0}, {1: 1.0}) is None
    one = Paired(0.5, None, 1)
    assert (one.p, one.verdict, one.low, one.high) == (None, "undecided", -math.inf, math.inf)
    assert [Paired(m, 0.0, 3).verdict for m in (-1.0, 0.0, 1.0)] == ["below", "undecided", "above"]
    assert Paired(math.nan, math.nan, 3).verdict == "undecided"  # a run that diverged


def test_runs_that_are_no_pairs_are_compared_as_welch_does():
    ours, theirs = [0.70, 0.74, 0.73, 0.69, 0.75], [0.76, 0.77, 0.75]
    own, right = unpaired(ours, theirs), stats.ttest_ind(ours, theirs, equal_var=False)
    assert own.error == pytest.approx(own.mean / right.statistic)
    assert own.freedom == math.floor(right.df) < right.df
    assert own.p == pytest.approx(2 * stats.t.sf(abs(right.statistic), own.freedom))
    assert own.p > right.pvalue, "rounded down, so never more certain than Welch"
    assert own.half == pytest.approx(stats.t.ppf(0.975, own.freedom) * own.error)
    alike = unpaired([0.1, 0.2, 0.4], [0.7, 0.9, 1.0])  # of equal size and spread: 2n - 2
    assert alike.freedom == 4
    assert corrected({0: own, 1: alike})[0].p_holm == pytest.approx(own.p)
    one, same = unpaired([0.1], [0.2, 0.3]), unpaired([0.5] * 5, [0.5] * 5)
    assert (one.p, one.verdict, one.half) == (None, "undecided", math.inf)
    assert (same.p, same.half, same.verdict) == (1.0, 0.0, "undecided")
    assert unpaired([], [0.2]) is None


def test_holm_is_that_of_an_independent_calculator():
    ours = {0: 0.857, 1: 0.861, 2: 0.8555, 3: 0.863, 4: 0.859}
    rivals = {
        "a": {0: 0.853, 1: 0.850, 2: 0.8551, 3: 0.8533, 4: 0.8501},
        "b": {0: 0.801, 1: 0.8301, 2: 0.811, 3: 0.8195, 4: 0.8222},
        "c": {0: 0.8561, 1: 0.8633, 2: 0.8577, 3: 0.861, 4: 0.8581},
    }
    pairs = against(ours, rivals)
    values = lambda row: [*row.values()]
    p = {k: float(stats.ttest_rel(values(ours), values(row)).pvalue) for k, row in rivals.items()}
    least = 0.0
    for rank, name in enumerate(sorted(p, key=p.__getitem__)):
        least = max(least, min(1.0, (3 - rank) * p[name]))
        assert pairs[name].p == pytest.approx(p[name], abs=1e-12)
        assert pairs[name].p_holm == pytest.approx(least, abs=1e-12)
    assert p["a"] < 0.05 < pairs["a"].p_holm, "clear alone, and not as one of three"
    assert paired(ours, rivals["a"]).verdict == "above"
    assert [pairs[n].verdict for n in "abc"] == ["undecided", "above", "undecided"]


def test_rows_of_a_comparison_count_with_the_seeds_that_all_have():
    # a's seeds 3 and 4, added after a look, would make five seeds of it; b has three
    ours = {0: 3.0, 1: 1.0, 2: 2.0, 3: 9.0, 4: 9.0}
    pairs = against(ours, {"a": dict.fromkeys(range(5), 1.0), "b": dict.fromkeys(range(3), 0.0)})
    assert [pairs[k].n for k in "ab"] == [3, 3]
    assert [pairs[k].mean for k in "ab"] == pytest.approx([1.0, 2.0])
    assert against(ours, {"a": {7: 1.0}}) == {}


# ---------------------------------------------------------------------------- what is tested
def test_the_last_tenth_is_rounded_up():
    assert last_tenth([0.0] * 18 + [1.0, 2.0, 6.0]) == pytest.approx(3.0)  # three of 21
    assert last_tenth([float(i) for i in range(30)]) == pytest.approx(28.0)
    assert math.isnan(last_tenth([0.0] * 15 + [math.nan, 1.0])), "a run that diverged"
    # ten evaluations: one alone may be an outlier; three: the first two are the run's beginning
    assert last_tenth([0.0] * 7 + [1.0, 2.0, 6.0]) == pytest.approx(3.0)
    assert last_tenth([0.1, 0.2, 0.6]) == 0.6


def test_between_two_evaluations_a_curve_is_a_straight_line():
    # a client's 60 models are 29.999 rounds where a round costs 2.00007: not round 25
    curve = {1: 0.14, 25: 0.60, 30: 0.67}
    rounds = 60 / 2.00007
    assert at(curve, rounds) == pytest.approx(0.60 + 0.07 * (rounds - 25) / 5)
    assert at(curve, 0.99) is None and at(curve, 31) is None and at(curve, 30 + 1e-9) == 0.67
    assert crossing(curve, 0.635) == pytest.approx(27.5) and crossing(curve, 0.1) == 1
    falling = {10: 3.0, 20: 2.0, 30: math.nan, 40: 1.0}
    assert crossing(falling, 1.5, higher=False) == pytest.approx(30.0)


def test_the_best_of_validation_is_the_test_value_there():
    columns = {"test_mse": {0: 5.0, 3: 3.0, 6: 4.0}, "validation_mse": {0: 5.1, 3: 2.0, 6: 2.5}}
    tested = lambda higher, value: curves.tested(
        lambda name: columns.get(name, {}), "mse", higher, value
    )
    assert tested(False, "best-of-validation") == {0: 5.0, 3: 3.0, 6: 3.0}
    with pytest.raises(ConfigError, match="nothing says whether the metric 'mse'"):
        tested(None, "best-of-validation")
    with pytest.raises(ConfigError, match="unknown value 'lst'; did you mean 'last'"):
        tested(None, "lst")


# ------------------------------------------------------------------------------- of groups of runs
BASE = {"base": [[0.5], [0.51], [0.52]]}


def test_a_comparison_says_what_each_group_is_less_the_first(tmp_path):
    """One is +10 in every seed, one +1, +2, +3 points, and both are counted."""
    rows = {"far": [[0.6], [0.61], [0.6201]], "near": [[0.51], [0.53], [0.55]]}
    groups = fake_groups(tmp_path, BASE | rows)
    pairs = differences(groups)
    assert [(d.label, d.gap.verdict) for d in pairs] == [("far", "above"), ("near", "undecided")]
    far, near = (d.gap for d in pairs)
    assert near.p_holm == near.p and far.p_holm == 2 * far.p
    head, _, line, last = as_lines(pairs)
    assert "Less base in points (mean of the last tenth of evaluations, accuracy" in head
    assert "2 comparisons" in last
    assert "53.00 % less 51.00 %: +2.00 ± 2.48 (95 %, Student, 3 seeds), p 0.074" in line
    assert line.endswith("p 0.074 (by Holm 0.074): undecided")
    assert difference_columns("base", pairs)["p"] is None
    assert difference_columns("far", pairs)["verdict"] == "above"
    other = differences(groups, "near")
    assert [d.label for d in other] == ["base", "far"]
    assert other[0].gap.mean == pytest.approx(-0.02)
    with pytest.raises(ConfigError, match="--against 'nea' is no row of the table; did you mean"):
        differences(groups, "nea")
    assert as_lines(differences(groups[:1])) == []


def test_one_seed_is_no_test(tmp_path):
    (line,) = as_lines(differences(fake_groups(tmp_path, {"base": [[0.5]], "far": [[0.6]]})))
    assert line.startswith("Only one seed in common with base")


def test_what_is_tested_is_shown_and_can_be_chosen(tmp_path):
    """An own method 6 points ahead at its end, whose moving average is still 11 behind."""
    runs = []
    for seed, noise in enumerate((0.0, 0.001, -0.001)):
        parts = {"b": ([0.8, 0.81, 0.82], [0.8] * 3)}
        parts["own"] = [0.5, 0.6, 0.88 + noise], [0.5, 0.55, 0.683 + noise]
        for name, (values, ema) in parts.items():
            names = {"algorithm": name, "label": name, "seed": seed}
            runs.append(fake_run(tmp_path / f"{name}{seed}", values, ema=ema, **names))
    groups = groups_at(*runs)
    for value, mean, verdict in (("last-tenth", 0.06, "above"), ("ema", -0.117, "below")):
        rows = comparison(groups, value=value)
        (one,) = differences(groups, value=value)
        assert one.gap.mean == pytest.approx(mean) and one.gap.verdict == verdict
        assert one.ours == pytest.approx(rows[1]["value_mean"])
        head = f"accuracy, {'last tenth' if value == 'last-tenth' else 'EMA last'}"
        text = as_text(rows)
        assert head in text and text.index(head) < text.index("accuracy, best")
        number = human_value(one.ours, "share").removesuffix(" %")
        assert number in text and number in as_latex(rows)
        assert VALUE_WORDS[value] in as_lines([one])[0]
    with pytest.raises(ConfigError, match="has no validation split; choose last-tenth, last, ema"):
        differences(groups, value="best-of-validation")
    printed = CliRunner().invoke(cli, ["compare", *map(str, runs), "--value", "last"]).output
    assert printed.index("accuracy, last") < printed.index("accuracy, best")
    assert "Less b in points (last evaluation, accuracy" in printed
    assert ": above" in " ".join(printed.split())
    assert load_runs(runs[1], "last-tenth")["tested"].tolist() == pytest.approx([0.5, 0.6, 0.88])
    assert load_runs(runs[1], "ema")["tested"].iloc[-1] == pytest.approx(0.683)


# -------------------------------------------------------------- the first words of a report
def answered(folder, values, **more):
    """The answer for {label: the last evaluation of each seed}."""
    groups = fake_groups(folder, {k: [[0.1, v] for v in row] for k, row in values.items()}, **more)
    pairs = differences(groups)
    table = [row | difference_columns(row["label"], pairs) for row in comparison(groups)]
    return answer(groups, table, pairs)


def test_a_difference_that_is_no_chance_is_said_with_its_interval_and_cost(tmp_path):
    """Differences 0.19, 0.2, 0.21: t = 0.2 / (0.01 / sqrt(3)) = 34.6 with two degrees of freedom,
    p = 1 - t / sqrt(2 + t^2) = 0.0008; half the interval is 4.3027 x 0.01 / sqrt(3) = 0.0248.
    """
    said = answered(tmp_path, {"A": [0.6, 0.6, 0.6], "B": [0.79, 0.8, 0.81]}, target=0.7)
    best, chance, reaches, misses = said.words
    assert "B has the highest accuracy" in best and "80.00 %, 20.00 points above A" in best
    assert "more than chance: B less A is +20.00 (+17.52 to +22.48) points, p < 0.001" in chance
    assert "Holm, 3 seeds" in chance
    assert reaches.startswith("B reaches 70 % after 2 rounds and 9.77 KiB; it sends 9.77 KiB in 2")
    assert misses.startswith("A does not reach 70 %; it sends 9.77 KiB")
    heads = ["algorithm", "accuracy, last tenth (95 %)", "less A", "p (Holm)"]
    cells = ["B", "80.00 % (77.52 to 82.48 %)", "+20.00 (+17.52 to +22.48)", "< 0.001"]
    assert (said.heads[:4], said.lines[1][:4]) == (heads, cells)


# B is far above A, and level with C: 0.01, -0.01 and 0 are 0 on average, p = 1
LEVEL = {"A": [0.5] * 3, "B": [0.8] * 3, "C": [0.79, 0.81, 0.799]}


@pytest.mark.parametrize(
    ("values", "more", "first", "second"),
    [
        (LEVEL, {}, "80.00 %, 0.03 points above C", "That may be chance: B less C is +0.03 ("),
        # over the seeds that are tested
        (
            {"A": [0.5, 0.7, 0.99], "B": [0.5, 0.6]},
            {},
            "A has the highest accuracy (mean of the last tenth of evaluations): 60.00 %, 5.00 poi",
            "That may be chance",
        ),
        ({"A": [0.5], "B": [0.6]}, {}, "B has the highest", "One seed cannot tell this from"),
        ({"A": [0.5, 0.7]}, {}, "A: 60.00 % accuracy", ""),
        ({"A": [5.0], "B": [6.0]}, {"metric": ("mse", False, "m2")}, "A has the lowest mse", ""),
        ({"A": [5.0], "B": [6.0]}, {"metric": ("mse", False, "m2")}, "5 m2, 1 below B", ""),
        ({"A": [1.0], "B": [2.0]}, {"metric": ("m", True, "")}, "B has the highest m", ""),
    ],
)
def test_the_best_is_compared_with_the_next_one_by_the_seeds_of_both(
    tmp_path, values, more, first, second
):
    said = answered(tmp_path, values, **more)
    assert first in said.words[0] and said.words[1].startswith(second)


def test_the_costs_of_the_best_and_the_next_one_come_first(tmp_path):
    said = answered(tmp_path, LEVEL)
    assert said.words[3].startswith("C ") and not any("A " in line for line in said.words[:4])


def test_the_p_of_a_row_is_corrected_for_all_rows(tmp_path):
    values = {"A": [0.5, 0.5, 0.5], "B": [0.53, 0.55, 0.57], "C": [0.51, 0.5, 0.53]}
    p = [Paired.of([v - 0.5 for v in values[name]]).p for name in "BC"]
    lines = answered(tmp_path, values).lines
    assert [line[3] for line in lines] == ["-", *map(p_text, holm(p))] != ["-", *map(p_text, p)]


def power(at, error, repeats, gap=0.0):
    """The share of studies in which Student's t finds a difference at one of the looks."""
    draws = gap + np.random.default_rng(0).standard_normal((repeats, at[-1]))
    over = np.zeros(repeats, bool)
    for n, level in zip(at, levels(at, error), strict=True):
        part = draws[:, :n]
        t = np.abs(part.mean(1)) / part.std(1, ddof=1) * math.sqrt(n)
        over |= t >= student_t(1 - level, n - 1)
    return float(over.mean())


def test_looks_grow_by_half_and_end_at_the_plan():
    for most in range(4, 100):
        at = looks(most)
        assert at[-1] == most and list(at) == sorted(set(at)) and at[0] >= 4


@pytest.mark.parametrize("most", [4, 6, 12, 30])
@pytest.mark.parametrize("error", [0.05, 0.05 / 3])
def test_the_error_is_at_most_the_plans_and_not_far_below(most, error):
    assert math.fsum(levels(looks(most), error)) == pytest.approx(error)
    repeats = 40_000
    share, slack = power(looks(most), error, repeats), 3 * math.sqrt(error / repeats)
    assert 0.7 * error - slack < share < error + slack


def test_the_power_is_what_the_docstring_says():
    assert power(looks(30), 0.05, 20_000, gap=0.7) == pytest.approx(0.92, abs=0.015)


def test_differences_are_decided_at_the_first_look_that_shows_them():
    at, noise = looks(20), np.random.default_rng(0).standard_normal(20)
    cases = {
        "large": (5 + 0.1 * noise, "above"),
        "negative": (-5 + 0.1 * noise, "below"),
        "small": (0.001 * noise, "within"),
        "failed": ([*(5 + noise)[:-1], math.nan], "undecided"),
        "short": ([5.0, 5.1], "undecided"),
        "constant": ([5.0] * 20, "undecided"),
    }
    out = decide({k: list(gaps) for k, (gaps, _) in cases.items()}, at, delta=0.1)
    assert {k: d.verdict for k, d in out.items()} == {k: said for k, (_, said) in cases.items()}
    large = out["large"].pairs
    assert large.n == at[0] and large.p <= out["large"].bound and out["short"].pairs is None
    small = {"small": list(cases["small"][0])}
    assert decide(small, at)["small"].verdict == "undecided"  # without a delta


def test_more_seeds_change_no_decision():
    rng = np.random.default_rng(1)
    at = looks(24)
    for _ in range(50):
        gaps = {k: list(rng.normal(k * 0.5, 1, 24)) for k in range(4)}
        whole = decide(gaps, at, delta=1.0)
        for n in at:
            part = decide({k: v[:n] for k, v in gaps.items()}, at, delta=1.0)
            for key, one in part.items():
                assert one.verdict in ("undecided", whole[key].verdict)


def test_one_false_difference_or_more_is_as_rare_as_the_error_says():
    """Of three comparisons with one common rival's noise, and one true difference beside them."""
    rng = np.random.default_rng(2)
    at, wrong, repeats = looks(9), 0, 1500
    for _ in range(repeats):
        shared = rng.standard_normal(9)
        gaps = {k: list(rng.standard_normal(9) + shared + (3 if k == 3 else 0)) for k in range(4)}
        out = decide(gaps, at)
        wrong += any(out[k].verdict in ("above", "below") for k in range(3))
    assert wrong / repeats < 0.05 + 3 * math.sqrt(0.05 / repeats)
