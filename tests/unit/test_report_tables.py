"""The comparison table against numbers worked out by hand."""

from __future__ import annotations

import csv
import doctest
import io
import math
from pathlib import Path

import pytest
from report_fakes import BYTES_DOWN, BYTES_UP, SECONDS, fake_run

from fedloom.report import curve_data as series
from fedloom.report import runs as load
from fedloom.report import style, tables
from fedloom.report import style as support
from fedloom.report.runs import Group, group_runs, load_run
from fedloom.report.tables import (
    as_csv,
    as_markdown,
    as_text,
    comparison,
    fixed,
    human_bytes,
    human_seconds,
)

BOTH = BYTES_DOWN + BYTES_UP
CURVES = [[0.5, 0.9, 0.8], [0.4, 0.6, 0.7], [0.3, 0.4, 0.6]]
EMAS = [[0.5, 0.7, 0.75], [0.4, 0.5, 0.7], [0.3, 0.35, 0.45]]


def groups_of(folder: Path, target: float | None = None) -> list[Group]:
    """Three seeds of one algorithm, one seed of another."""
    paths = [
        fake_run(folder / f"a{seed}", CURVES[seed], ema=EMAS[seed], seed=seed, target=target)
        for seed in range(3)
    ]
    paths.append(fake_run(folder / "b", [0.1, 0.2], algorithm="fedacg", label="FedACG"))
    return group_runs(map(load_run, paths))


def test_halfway_is_decimal_and_goes_away_from_zero() -> None:
    ten = [0.859745 + 0.000001 * i for i in range(11)]  # their mean is 0.85975, but for a bit
    for order in (ten, ten[::-1], ten[5:] + ten[:5]):
        assert fixed(100 * sum(order) / 11, 2) == "85.98"
    assert fixed(100 * 0.88625, 2) == "88.63"  # the next float is 88.625 itself: "even" is .62
    assert fixed(-0.125, 2) == "-0.13"
    assert fixed(0.12, 1, "+") == "+0.1"
    assert [fixed(v, 1) for v in (0.0, math.nan, -math.inf)] == ["0.0", "nan", "-inf"]
    for value in (0.1, 2.34567, 99.994, 1 / 3, 1e11 + 0.3, -0.001, 1e300):  # none is halfway
        assert fixed(value, 2) == f"{value:.2f}"


def test_what_has_no_finite_sum_has_no_finite_mean() -> None:
    assert series.mean([1e308, 1e308]) == math.inf
    assert math.isnan(series.mean([math.inf, -math.inf]) or 0.0)
    assert series.sd([0.0, 1e200]) == math.inf
    assert series.sd([1e308, 1e308, 1.0]) is not None


def test_means_and_the_sample_deviation(tmp_path: Path) -> None:
    row, other = comparison(groups_of(tmp_path))
    assert (row["label"], row["seeds"], row["rounds"]) == ("FedAvg", 3, 3)
    assert row["last_mean"] == pytest.approx((0.8 + 0.7 + 0.6) / 3)
    assert row["last_sd"] == pytest.approx(0.1)  # sqrt((0.01 + 0 + 0.01) / 2)
    assert row["best_mean"] == pytest.approx((0.9 + 0.7 + 0.6) / 3)
    assert row["ema_mean"] == pytest.approx((0.75 + 0.7 + 0.45) / 3)
    assert row["bytes"] == 3 * BOTH
    assert row["seconds"] == pytest.approx(3 * SECONDS)
    assert row["seconds_per_round"] == pytest.approx(SECONDS)
    assert other["last_sd"] is None
    assert other["bytes"] == 2 * BOTH


@pytest.mark.parametrize("written", [True, False])
@pytest.mark.parametrize(
    ("target", "text", "rounds"),
    [(0.7, "2.5 (2/3)", [2, 3]), (0.4, "1.7", [1, 1, 3]), (0.8, "3+", []), (0.75, "3 (1/3)", [3])],
)
def test_rounds_to_a_target_written_or_found_anew(
    tmp_path: Path, written: bool, target: float, text: str, rounds: list[int]
) -> None:
    groups = groups_of(tmp_path, target if written else 0.99)
    row = comparison(groups, None if written else target)[0]
    assert row["rounds_to_target"] == text
    assert row["reached"] == len(rounds)
    if rounds:
        average = sum(rounds) / len(rounds)
        assert row["bytes_to_target"] == pytest.approx(average * BOTH)
        assert row["seconds_to_target"] == pytest.approx(average * SECONDS)
    else:
        assert row["bytes_to_target"] is None


def test_without_a_target_there_is_no_column_for_it(tmp_path: Path) -> None:
    groups = groups_of(tmp_path)
    assert "rounds to" not in as_text(comparison(groups))
    assert "rounds to 70 %" in as_text(comparison(groups, 0.7))


def test_unfinished_seeds_stay_out_of_the_means_of_finished_ones(tmp_path: Path) -> None:
    paths = [
        fake_run(tmp_path / "a", [0.5, 0.6]),
        fake_run(tmp_path / "b", [0.1], seed=1, planned=2, summary=False),
    ]
    (row,) = comparison(group_runs(map(load_run, paths)))
    assert (row["seeds"], row["last_mean"]) == (1, 0.6)
    assert "1 unfinished left out" in as_text([row])


def test_a_group_without_a_finished_seed_is_marked(tmp_path: Path) -> None:
    path = fake_run(tmp_path / "a", [0.5, 0.6], planned=10, summary=False)
    (row,) = comparison(group_runs([load_run(path)]), 0.9)
    assert row["state"] == "unfinished: 2 of 10 rounds"
    assert row["rounds_to_target"] == "2+"


def test_a_group_without_any_round_still_has_a_row(tmp_path: Path) -> None:
    path = fake_run(tmp_path / "a", [], planned=10, summary=False)
    (row,) = comparison(group_runs([load_run(path)]))
    assert row["last_mean"] is None
    assert "unfinished: 0 of 10 rounds" in as_text([row])


def test_a_run_that_diverged_shows_it(tmp_path: Path) -> None:
    path = fake_run(tmp_path / "a", [0.5, float("nan")])
    (row,) = comparison(group_runs([load_run(path)]))
    assert math.isnan(row["last_mean"])
    assert row["best_mean"] == 0.5
    assert "nan %" in as_text([row])


def test_text_is_aligned(tmp_path: Path) -> None:
    heads, rule, *lines = as_text(comparison(groups_of(tmp_path), 0.7)).splitlines()
    assert len(lines) == 2
    ends = {line.rstrip()[-1] for line in lines}
    assert ends == {"s"}
    assert len({len(line) for line in [heads, rule, *lines]}) == 1


def test_markdown_has_one_cell_per_heading_whatever_the_label(tmp_path: Path) -> None:
    path = fake_run(tmp_path / "a", [0.5], label="a|b <i>\nc")
    lines = as_markdown(comparison(group_runs([load_run(path)]))).splitlines()
    assert len({line.replace("\\|", "").count("|") for line in lines}) == 1
    assert r"a\|b &lt;i> c" in lines[2]


def test_csv_reads_back_to_the_raw_numbers(tmp_path: Path) -> None:
    rows = comparison(groups_of(tmp_path), 0.7)
    back = list(csv.DictReader(io.StringIO(as_csv(rows))))
    assert [row["label"] for row in back] == ["FedAvg", "FedACG"]
    assert float(back[0]["last_mean"]) == rows[0]["last_mean"]
    assert back[1]["last_sd"] == ""


def test_no_rows_make_empty_tables() -> None:
    assert (as_text([]), as_markdown([]), as_csv([])) == ("", "", "")


@pytest.mark.parametrize(
    ("n", "text"),
    [
        (0, "0 B"), (1023, "1023 B"), (1024, "1.00 KiB"), (10 * 1024, "10.0 KiB"),
        (999 * 1024, "999 KiB"), (1023.9 * 1024, "1.00 MiB"), (3 * 2**40, "3.00 TiB"),
    ],
)  # fmt: skip
def test_human_bytes(n: float, text: str) -> None:
    assert human_bytes(n) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.00 ms"), (0.5, "500 ms"), (0.9999, "1.00 s"), (59.99, "1 min 00 s"),
        (3599.7, "1 h 00 min"), (86399, "1 d 00 h"), (90000, "1 d 01 h"),
    ],
)  # fmt: skip
def test_human_seconds(seconds: float, text: str) -> None:
    assert human_seconds(seconds) == text


@pytest.mark.parametrize("module", [load, series, style, support, tables])
def test_examples_in_docstrings(module: object) -> None:
    result = doctest.testmod(module, raise_on_error=False)  # type: ignore[arg-type]  # is a module
    assert result.attempted > 0
    assert result.failed == 0
