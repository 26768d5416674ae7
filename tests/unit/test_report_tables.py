"""The comparison table against numbers worked out by hand."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path

import pandas
import pytest
from click.testing import CliRunner
from report_fakes import BYTES_DOWN, BYTES_UP, SECONDS, fake_run

import fedloom
from fedloom.cli.__main__ import cli
from fedloom.errors import CheckpointError, ConfigError
from fedloom.report import curve_data as series
from fedloom.report.differences import columns as beside_of
from fedloom.report.differences import differences, like_best
from fedloom.report.runs import Group, group_runs, load_run
from fedloom.report.setting_differences import setting_cells, setting_columns
from fedloom.report.skew import common
from fedloom.report.table_files import as_csv, as_json, as_latex
from fedloom.report.table_text import aligned, as_markdown, as_text, table_cells
from fedloom.report.tables import comparison, fixed, human_bytes, human_seconds
from support import latex

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
    rows = comparison(groups, None if written else target)
    heads, (line, *_) = table_cells(rows)
    assert dict(zip(heads, line, strict=True))[f"rounds to {100 * target:g} %"] == text
    row = rows[0]
    assert (row["reached"], row["not_reached"]) == (len(rounds), 3 - len(rounds))
    if rounds:
        average = sum(rounds) / len(rounds)
        assert row["rounds_to_target"] == average
        assert row["bytes_to_target"] == pytest.approx(average * BOTH)
        assert row["seconds_to_target"] == pytest.approx(average * SECONDS)
        (_, gradients) = table_cells(rows, ["gradients to target"])[1][0]
        assert gradients == f"{50 * average:,.0f}"
    else:
        assert row["bytes_to_target"] is None and row["rounds_to_target"] is None


def test_gradients_to_a_target_stand_beside_rounds_if_a_round_costs_some_rows_more(
    tmp_path: Path,
) -> None:
    row, _ = comparison(groups_of(tmp_path), 0.7)
    twice = row | {"label": "FAFED", "gradients_to_target": 2 * row["gradients_to_target"]}
    assert "gradients to 70 %" not in table_cells([row, row])[0]
    heads, (_, line) = table_cells([row, twice])
    assert dict(zip(heads, line, strict=True))["gradients to 70 %"] == "250"


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
    assert "2+" in table_cells([row])[1][0]
    assert (row["rounds_to_target"], row["not_reached"]) == (None, 1)


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


def test_columns_are_aligned_in_letters_of_two_columns_too() -> None:
    wide = "\u65b9\u6cd5"  # two letters of two columns each
    assert aligned([["ab", "1"], [wide, "22"]], ["m", "n"]).splitlines() == [
        "m      n",
        "----  --",
        "ab     1",
        f"{wide}  22",
    ]
    assert aligned([["a b", "c"]], widths=[1, 1]).splitlines() == ["a  c", "b"]


def test_markdown_has_one_cell_per_heading_whatever_the_label(tmp_path: Path) -> None:
    path = fake_run(tmp_path / "a", [0.5], label="a|b <i>\nc")
    lines = as_markdown(comparison(group_runs([load_run(path)]))).splitlines()
    assert len({line.replace("\\|", "").count("|") for line in lines}) == 1
    assert r"a\|b &lt;i> c" in lines[2]


def test_every_number_in_a_file_is_one(tmp_path: Path) -> None:
    rows = comparison(groups_of(tmp_path), 0.7)
    back = json.loads(as_json(rows))
    assert back[0]["rounds_to_target"] == 2.5 and back[0]["not_reached"] == 1
    assert back[1]["rounds_to_target"] is None and back[1]["not_reached"] == 1
    words = {"label", "state", "metric", "unit", "value"}
    assert all(isinstance(v, int | float | None) for k, v in back[0].items() if k not in words)
    frame = pandas.read_csv(io.StringIO(as_csv(rows)))
    assert frame["rounds_to_target"].dtype == float and frame["rounds_to_target"][0] == 2.5
    nan = fake_run(tmp_path / "nan", [float("nan")])
    assert json.loads(as_json(comparison(group_runs([load_run(nan)]))))[0]["last_mean"] is None


def test_latex_is_a_tabular_whatever_the_label(tmp_path: Path) -> None:
    path = fake_run(tmp_path / "a", [0.5], label="50% & $x_1$ {~}^\\")
    text = as_latex(comparison(group_runs([load_run(path)])))
    begin, top, head, _, line, _, end, last = text.split("\n")
    gaps = rf"*{{{head.count('&')}}}{{@{{\hspace{{6pt}}}}r}}"
    assert begin == rf"\begin{{tabular}}{{@{{}}l{gaps}@{{}}}}" and not last
    assert (top, end) == (r"\toprule", r"\end{tabular}")
    assert line.replace(r"\&", "").count("&") == head.count("&") and line.endswith(r" \\")
    assert r"50\% \& \$x\_1\$\\\{\textasciitilde{}\}\textasciicircum{}\textbackslash{}" in line
    assert r"$80.00\pm" not in text and " & 50.00 & " in line and r"accuracy\\(\%)," in head


def test_latex_has_the_columns_that_are_asked_for_and_the_best_is_bold(tmp_path: Path) -> None:
    """The last tenth of three evaluations is the last: 0.7 of FedAvg, 0.9 of the other."""
    paths = [
        fake_run(tmp_path / f"{name}{seed}", [start, 0.6, level + noise], algorithm=name, seed=seed)
        for name, start, level in (("a", 0.5, 0.7), ("b", 0.66, 0.9))
        for seed, noise in enumerate((-0.01, 0.0, 0.01))
    ]
    groups = group_runs(map(load_run, paths))
    beside = differences(groups)
    rows = [row | beside_of(row["label"], beside) for row in comparison(groups, 0.65)]
    heads, first, second = latex.cells(as_latex(rows))
    assert len(heads) <= 5 and heads[0] == "algorithm" and heads[-1] == "p (Holm)"
    assert heads[1] == r"\shortstack[r]{accuracy\\(\%), last\\tenth}"
    assert first[1] == r"$70.00 \pm 1.00$" and second[1] == r"$\mathbf{90.00 \pm 1.00}$"
    assert (first[-1], second[-1]) == ("-", r"\textless{} 0.001")  # no noise in the differences
    assert (first[2], second[2]) == ("3", r"\textbf{1}")
    asked = latex.cells(
        as_latex(rows, ["p", "bytes", "rounds to 65 %", "best", "bytes", "difference"])
    )
    assert len(asked[0]) == 6 and asked[0][1:3] == [heads[-1], "bytes"]
    assert asked[1][2] == asked[2][2] == "14.6 KiB", "none is bold where all are as good"
    assert asked[2][-1].startswith("+20.00 (")
    with pytest.raises(ConfigError, match=r"--columns has 'acuracy'.*did you mean 'accuracy'"):
        as_latex(rows, ["acuracy"])


def test_latex_marks_what_no_test_tells_from_the_best_and_fits_a_column(tmp_path: Path) -> None:
    """Of the best, 0.8 with a spread of 0.01, "near" is less (0.01, 0, 0): t = 1, p 0.42 with two
    degrees of freedom; "far" less (0.2, 0.21, 0.19), p 0.0003; "once" misses the target twice.
    """
    same, once = (0.0, 0.0, 0.0), (0.1, 0.7, 0.7)
    spread = {"best": same, "near": (0.01, 0.0, 0.0), "far": (0.2, 0.21, 0.19), "once": once}
    long = {"far": "FedAvgM (momentum 0.95, lr 0.001, 2 more)"}
    paths = [
        fake_run(
            tmp_path / f"{name}{seed}",
            [0.3, 0.79 + 0.01 * seed - less],
            algorithm=name,
            label=long.get(name, name),
            seed=seed,
            target=0.55,
        )
        for name, gaps in spread.items()
        for seed, less in enumerate(gaps)
    ]
    groups = group_runs(map(load_run, paths))
    alike = like_best(groups)
    assert alike == {"near", "once"}
    beside = differences(groups)
    rows = [
        row | beside_of(row["label"], beside) | {"like_best": row["label"] in alike}
        for row in comparison(groups)
    ]
    text = as_latex(rows)
    marked = {line[0]: line[1].endswith(r"\rlap{$^\dagger$}") for line in latex.cells(text)[1:]}
    assert [name for name, mark in marked.items() if mark] == ["near", "once"]
    assert r"FedAvgM\\(momentum\\0.95, lr\\0.001, 2 more)" in "".join(marked)
    assert "% bold: best; dagger: not told from the best" in text
    assert "% p: of the difference from best, by Holm" in text
    assert latex.width(text) <= latex.COLUMN


def test_settings_that_differ_are_named_all_of_them(tmp_path: Path) -> None:
    config = "[local]\nepochs = {0}\nbatch = {0}\nlr = {0}.5\ndecay = 0.{0}\nsteps = [{0}, 2]\n"
    paths = [
        fake_run(tmp_path / f"{n}{s}", [0.5], config=config.format(n), seed=s)
        for n, s in ((1, 0), (1, 1), (2, 0))
    ]
    groups = group_runs(map(load_run, paths))
    heads, lines = setting_cells(groups)
    keys = ["epochs", "batch", "lr", "decay", "steps"]
    assert [line[0] for line in lines] == [f"local.{key}" for key in keys]
    assert lines[2][1:] == ["1.5", "2.5"] and len(heads) == 3
    assert groups[0].label == "FedAvg (epochs 1, batch 1, lr 1.5, 2 more)"
    assert setting_columns(groups)[1]["setting.local.lr"] == 2.5
    assert "seed" in [line[0] for line in setting_cells(groups, within=True)[1]]


def test_one_frame_of_many_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    groups_of(tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    frame = fedloom.load_runs("runs/*")
    assert len(frame) == 3 * 3 + 2 and list(frame.columns[:5]) == FRAME
    own = frame[(frame["label"] == "FedAvg") & (frame["seed"] == 1)]
    assert own["test_accuracy"].tolist() == CURVES[1] and own["round"].tolist() == [1, 2, 3]
    assert frame["setting.model.name"].unique().tolist() == ["mlp"]
    assert frame["cohort"].iloc[0] == frame["setting.cohort"].iloc[0] == 10
    assert fedloom.load_runs(["runs/a0", tmp_path / "runs/b"])["run"].nunique() == 2
    assert len(fedloom.load_runs("runs")) == len(frame)
    with pytest.raises(CheckpointError, match="'none/\\*' does not exist"):
        fedloom.load_runs("none/*")


FRAME = ["run", "label", "algorithm", "seed", "finished"]


def test_how_unequal_clients_are_stands_beside_the_result(tmp_path: Path) -> None:
    same = {"counts": [[5, 5], [5, 5]], "sizes": [10, 10], "class_names": ["a", "b"]}
    apart = {"counts": [[9, 0], [0, 1]], "sizes": [9, 1], "class_names": ["a", "b"]}
    paths = [
        fake_run(tmp_path / n, [0.5], partition=p, label=n, config=f"x = '{n}'")
        for n, p in (("like", same), ("apart", apart))
    ]
    groups = group_runs(map(load_run, paths))
    heads, lines = table_cells(comparison(groups))
    at = heads.index("label distance")
    assert heads[at + 1] == "Gini of sizes"
    assert [line[at : at + 2] for line in lines] == [["0.00", "0.00"], ["1.00", "0.40"]]
    assert common(groups) == ""
    assert common(groups[:1]) == "2 with 10 samples (Gini 0.00), label distance 0.00 of 1"
    assert "label distance" not in table_cells(comparison(groups[:1]))[0]


def test_no_rows_make_empty_tables() -> None:
    assert (as_text([]), as_markdown([]), as_csv([]), as_latex([])) == ("", "", "", "")


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


# ------------------------------------------------------------------------------------------ width
LONG = "A method whose name has so many words that no table of a page has room for it"


def compare(*words: str) -> str:
    """What the command prints into a pipe."""
    result = CliRunner().invoke(cli, ["compare", "runs", *words])
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize("width", [80, 120])
def test_tables_fit_the_page_in_a_pipe_too(
    width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, shown in (("fedavg", "FedAvg"), ("b", LONG)):
        for seed in range(3):
            values, folder = [0.1, 0.5, 0.8 + 0.01 * seed], tmp_path / "runs" / f"{name}{seed}"
            fake_run(folder, values, algorithm=name, label=shown, seed=seed, target=0.6)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", str(width))
    text = compare()
    assert max(map(len, text.splitlines())) <= width
    assert "accuracy, last tenth" in text and "rounds to 60 %" in text
    assert "accuracy, EMA last" not in text and "--wide" in text
    assert LONG.split()[-1] in text, "a long name goes on in the next line"
    wide = compare("--wide")
    assert "accuracy, EMA last" in wide and "time per round" in wide and LONG in wide
    head = compare("--columns", "p,EMA last").splitlines()[0]
    assert head.split("  ")[-2:] == ["p (Holm)", "accuracy, EMA last"]
    monkeypatch.delenv("COLUMNS")
    assert max(map(len, compare().splitlines())) <= 80
