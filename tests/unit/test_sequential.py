"""Comparisons that may stop early: the levels of looks, and that their errors are what is said."""

import math

import numpy as np
import pytest

from fedloom.report.statistics import decide, levels, looks, student_t


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
