"""Run folders as groups, and the comparison table against numbers worked out by hand."""

import io
import json
import math

import numpy as np
import pandas
import pytest
from click.testing import CliRunner
from report_fakes import BYTES_DOWN, BYTES_UP, SECONDS, fake_groups, fake_run, groups_at

import fedloom
from fedloom.cli.__main__ import cli
from fedloom.errors import CheckpointError, ConfigError
from fedloom.report import curve_data as series
from fedloom.report.curve_data import best, first_hit, group_curve, last, measured
from fedloom.report.differences import difference_columns as beside_of
from fedloom.report.differences import differences, setting_cells, setting_columns
from fedloom.report.runs import load_run
from fedloom.report.table_text import (
    aligned,
    as_csv,
    as_json,
    as_latex,
    as_markdown,
    as_text,
    table_cells,
)
from fedloom.report.tables import common_skew, comparison, fixed, human_bytes, human_seconds
from support.refusals import refused

BOTH = BYTES_DOWN + BYTES_UP


def test_rows_have_running_sums_and_a_round_that_was_run_again_counts_once(tmp_path):
    folder = fake_run(tmp_path / "a", [0.1, 0.2, 0.3])
    run = load_run(folder)
    assert run.bytes.tolist() == [BOTH, 2 * BOTH, 3 * BOTH]
    assert np.allclose(run.seconds, run.rounds * SECONDS)
    assert (run.algorithm, run.label, run.seed, run.planned) == ("fedavg", "FedAvg", 0, 3)
    assert run.finished
    with (folder / "rounds.jsonl").open("a") as file:
        file.write(json.dumps({"round": 3, "test_accuracy": 0.9, "bytes_up": 1}) + "\n")
    again = load_run(folder)
    assert again.rounds.tolist() == [1, 2, 3]
    assert last(again, "test_accuracy") == 0.9 and again.bytes[-1] == 2 * BOTH + 1


@pytest.mark.parametrize(
    "end", [b"{", b'{"round": 3, "lr": 0', '{"round": 3, "note": "é'.encode()[:-1], b'{"round": 3']
)
def test_a_last_line_that_was_cut_is_ignored(tmp_path, end):
    folder = fake_run(tmp_path / "a", [0.1, 0.2], planned=3, summary=False)
    with (folder / "rounds.jsonl").open("ab") as file:
        file.write(end)
    run = load_run(folder)
    assert run.rounds.tolist() == [1, 2] and not run.finished


def test_rounds_without_evaluation_are_told_from_values_that_are_not_finite(tmp_path):
    run = load_run(fake_run(tmp_path / "a", [0.5, None, 0.7, None, float("nan"), None]))
    rows, values = measured(run, "test_accuracy")
    assert rows.tolist() == [0, 2, 4] and np.isnan(values[-1])
    assert np.isnan(last(run, "test_accuracy")) and best(run) == 0.7


@pytest.mark.parametrize(
    "content",
    ["missing", "file", {}, "[tool]\nx = 1\n", 'rounds = 3\n[algorithm]\nname = "fedavg"\n'],
)
def test_what_is_no_run_directory_is_refused_in_one_line(tmp_path, content):
    place = tmp_path / "x"
    if content == "file":
        place.write_text("x")
    elif content != "missing":
        place.mkdir()
        if content:
            (place / "config.toml").write_text(content)
    refused(lambda: load_run(place), "is not a run directory", kind=CheckpointError)


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("summary.json", '{"a": \n\n', "summary.json"),
        ("ledger.json", '{"a": \n\n', "ledger.json"),
        ("config.toml", '{"a": \n\n', "config.toml"),
        ("ledger.json", "[1]", "holds a list"),
        ("rounds.jsonl", '{"round": 1}\n{"round": 2, "tr\n{}\n', "read at line 2"),
    ],
)
def test_a_corrupt_file_is_named_in_one_line(tmp_path, file, content, said):
    folder = fake_run(tmp_path / "a", [0.1])
    (folder / file).write_text(content)
    refused(lambda: load_run(folder), said, kind=CheckpointError)


def test_an_unfinished_run_has_its_name_and_the_metric_of_its_rows_or_no_row(tmp_path):
    parts = {"metric": ("rmse", False, ""), "summary": False, "config": 'label = "Mine"'}
    folder = fake_run(tmp_path / "a", [3.0], planned=9, **parts)
    run = load_run(folder)
    assert run.label == "Mine"
    assert (run.metric.name, run.metric.higher_is_better) == ("rmse", False)
    for file in folder.glob("*.json*"):
        file.unlink()
    (folder / "checkpoints").mkdir()
    begun = load_run(folder)
    assert (begun.rounds.size, begun.planned, begun.finished) == (0, 9, False)


def test_groups_keep_the_order_first_seen_and_take_in_unfinished_seeds(tmp_path):
    acg = {"algorithm": "fedacg", "label": "FedACG"}
    groups = groups_at(
        fake_run(tmp_path / "b0", [0.1], **acg),
        fake_run(tmp_path / "a0", [0.1]),
        fake_run(tmp_path / "b1", [0.1], **acg, seed=1),
        fake_run(tmp_path / "b2", [0.1], algorithm="fedacg", seed=2, summary=False),
    )
    assert [group.label for group in groups] == ["FedACG", "FedAvg"]
    assert [run.seed for run in groups[0].runs] == [0, 1, 2]
    assert [run.seed for run in groups[0].averaged_runs] == [0, 1]
    assert groups[0].state == "1 unfinished left out"


def test_a_seed_counts_once_its_longest_run(tmp_path):
    (group,) = groups_at(
        fake_run(tmp_path / "whole", [0.1, 0.4]),
        fake_run(tmp_path / "again", [0.1, 0.5]),
        fake_run(tmp_path / "begun", [0.9], planned=2, summary=False),
        fake_run(tmp_path / "other", [0.1, 0.6], seed=1),
    )
    assert [run.path.name for run in group.runs] == ["again", "other"]
    assert group.state == "2 of a seed already there left out"


@pytest.mark.parametrize("whole", [True, False])
def test_runs_that_differ_in_what_decides_no_number_are_one_group(tmp_path, whole):
    """Also where one of them has no summary."""
    a = fake_run(tmp_path / "a", [0.1])
    b = fake_run(tmp_path / "b", [0.2], config=FREE, seed=1, summary=whole)
    (group,) = groups_at(a, b)
    assert [run.seed for run in group.runs] == [0, 1] and group.label == "FedAvg"


FREE = 'device = "cpu"\nengine = "workers:2"\n[checkpoint]\nkeep = 3\n'


def test_groups_with_one_label_are_told_apart_by_their_settings(tmp_path):
    """And by nothing that decides no number."""
    lines = [f"weighting = 'u'\n{FREE}", f"weighting = 'v'\n{FREE}", "weighting = 'w'"]
    runs = [fake_run(tmp_path / line[13], [0.1], config=line) for line in lines]
    assert [g.label for g in groups_at(*runs)] == [f"FedAvg (weighting {x})" for x in "uvw"]


def test_a_part_in_a_label_is_called_by_its_name_alone(tmp_path):
    parts = ("", 'private = { name = "fedper", layers = [] }', 'private = { name = "fedbn" }')
    runs = [fake_run(tmp_path / str(i), [0.5], config=part) for i, part in enumerate(parts)]
    words = ["no private", "private fedper", "private fedbn"]
    assert [group.label for group in groups_at(*runs)] == [f"FedAvg ({word})" for word in words]


def test_a_mean_line_has_only_rounds_that_all_seeds_measured(tmp_path):
    (group,) = groups_at(
        fake_run(tmp_path / "a", [0.2, None, 0.6, 0.8], summary=False),
        fake_run(tmp_path / "b", [0.4, 0.5, 0.2], seed=1, planned=4, summary=False),
    )
    curve = group_curve(group, "test_accuracy", "bytes")
    assert curve.x.tolist() == [BOTH, 3 * BOTH]
    for line, values in (("mean", [0.3, 0.4]), ("low", [0.2, 0.2]), ("high", [0.4, 0.6])):
        assert np.allclose(getattr(curve, line), values)


def test_a_target_is_first_reached_on_the_ema_curve_or_from_above(tmp_path):
    run = load_run(fake_run(tmp_path / "a", [0.9, 0.9, 0.9, 0.1], ema=[0.1, 0.5, 0.6, 0.9]))
    hit = first_hit(run, 0.5)
    assert (hit.round, hit.bytes, hit.seconds) == (2, 2 * BOTH, 2 * SECONDS)
    assert hit.gradients == 2 * 50 and first_hit(run, 0.95) is None
    lower = load_run(fake_run(tmp_path / "b", [9.0, 5.0, 4.0], metric=("mse", False, "")))
    assert first_hit(lower, 5.0).round == 2 and best(lower) == 4.0


CURVES = [[0.5, 0.9, 0.8], [0.4, 0.6, 0.7], [0.3, 0.4, 0.6]]
EMAS = [[0.5, 0.7, 0.75], [0.4, 0.5, 0.7], [0.3, 0.35, 0.45]]


def groups_of(folder, target=None):
    """Three seeds of one algorithm, one seed of another."""
    pairs = enumerate(zip(CURVES, EMAS, strict=True))
    return groups_at(
        *(fake_run(folder / f"a{s}", v, ema=e, seed=s, target=target) for s, (v, e) in pairs),
        fake_run(folder / "b", [0.1, 0.2], algorithm="fedacg", label="FedACG"),
    )


def row_of(*run, **more):
    (row,) = comparison(groups_at(fake_run(*run, **more)))
    return row


# ---------------------------------------------------------------------------------------- numbers
def test_halfway_is_decimal_and_goes_away_from_zero():
    ten = [0.859745 + 0.000001 * i for i in range(11)]  # their mean is 0.85975, but for a bit
    for order in (ten, ten[::-1], ten[5:] + ten[:5]):
        assert fixed(100 * sum(order) / 11, 2) == "85.98"
    assert fixed(100 * 0.88625, 2) == "88.63"  # the next float is 88.625 itself: "even" is .62
    assert fixed(-0.125, 2) == "-0.13" and fixed(0.12, 1, "+") == "+0.1"
    assert [fixed(v, 1) for v in (0.0, math.nan, -math.inf)] == ["0.0", "nan", "-inf"]
    for value in (0.1, 2.34567, 99.994, 1 / 3, 1e11 + 0.3, -0.001, 1e300):  # none is halfway
        assert fixed(value, 2) == f"{value:.2f}"


def test_what_has_no_finite_sum_has_no_finite_mean():
    assert series.mean([1e308, 1e308]) == math.inf
    assert math.isnan(series.mean([math.inf, -math.inf]))
    assert series.sd([0.0, 1e200]) == math.inf and series.sd([1e308, 1e308, 1.0]) is not None


def test_bytes_and_seconds_are_written_for_people():
    kib = 1024
    sizes = {0: "0 B", kib - 1: "1023 B", kib: "1.00 KiB", 10 * kib: "10.0 KiB"}
    sizes |= {999 * kib: "999 KiB", 1023.9 * kib: "1.00 MiB", 3 * 2**40: "3.00 TiB"}
    times = {0: "0.00 ms", 0.5: "500 ms", 0.9999: "1.00 s", 59.99: "1 min 00 s"}
    times |= {3599.7: "1 h 00 min", 86399: "1 d 00 h", 90000: "1 d 01 h"}
    assert {n: human_bytes(n) for n in sizes} == sizes
    assert {n: human_seconds(n) for n in times} == times


def test_means_and_the_sample_deviation(tmp_path):
    row, other = comparison(groups_of(tmp_path))
    assert (row["label"], row["seeds"], row["rounds"]) == ("FedAvg", 3, 3)
    wanted = {"last_mean": (0.8 + 0.7 + 0.6) / 3, "last_sd": 0.1}  # sqrt((0.01 + 0 + 0.01) / 2)
    wanted |= {"best_mean": (0.9 + 0.7 + 0.6) / 3, "ema_mean": (0.75 + 0.7 + 0.45) / 3}
    wanted |= {"bytes": 3 * BOTH, "seconds": 3 * SECONDS, "seconds_per_round": SECONDS}
    assert {key: row[key] for key in wanted} == pytest.approx(wanted)
    assert other["last_sd"] is None and other["bytes"] == 2 * BOTH


@pytest.mark.parametrize("written", [True, False])
@pytest.mark.parametrize(
    ("target", "text", "rounds"),
    [(0.7, "2.5 (2/3)", [2, 3]), (0.4, "1.7", [1, 1, 3]), (0.8, "3+", []), (0.75, "3 (1/3)", [3])],
)
def test_rounds_to_a_target_written_or_found_anew(tmp_path, written, target, text, rounds):
    groups = groups_of(tmp_path, target if written else 0.99)
    rows = comparison(groups, None if written else target)
    heads, (line, *_) = table_cells(rows)
    assert dict(zip(heads, line, strict=True))[f"rounds to {100 * target:g} %"] == text
    row = rows[0]
    assert (row["reached"], row["not_reached"]) == (len(rounds), 3 - len(rounds))
    average = sum(rounds) / len(rounds) if rounds else None
    assert row["rounds_to_target"] == average
    assert row["bytes_to_target"] == (average and pytest.approx(average * BOTH))
    if average:
        assert row["seconds_to_target"] == pytest.approx(average * SECONDS)
        (_, gradients) = table_cells(rows, ["gradients to target"])[1][0]
        assert gradients == f"{50 * average:,.0f}"


def test_columns_to_a_target_stand_where_they_say_something(tmp_path):
    """Gradients beside rounds if a round costs some rows more of them."""
    groups = groups_of(tmp_path)
    assert "rounds to" not in as_text(comparison(groups))
    row, _ = comparison(groups, 0.7)
    twice = row | {"label": "FAFED", "gradients_to_target": 2 * row["gradients_to_target"]}
    assert "gradients to 70 %" not in table_cells([row, row])[0]
    heads, (_, line) = table_cells([row, twice])
    assert dict(zip(heads, line, strict=True))["gradients to 70 %"] == "250"


# ------------------------------------------------------------------------------------ odd runs
def test_unfinished_seeds_stay_out_of_the_means_of_finished_ones(tmp_path):
    whole = fake_run(tmp_path / "a", [0.5, 0.6])
    part = fake_run(tmp_path / "b", [0.1], seed=1, planned=2, summary=False)
    (row,) = comparison(groups_at(whole, part))
    assert (row["seeds"], row["last_mean"]) == (1, 0.6)
    assert "1 unfinished left out" in as_text([row])


def test_a_group_without_a_finished_seed_or_any_round_is_marked(tmp_path):
    run = fake_run(tmp_path / "a", [0.5, 0.6], planned=10, summary=False)
    (row,) = comparison(groups_at(run), 0.9)
    assert row["state"] == "unfinished: 2 of 10 rounds" and "2+" in table_cells([row])[1][0]
    assert (row["rounds_to_target"], row["not_reached"]) == (None, 1)
    none = row_of(tmp_path / "b", [], planned=10, summary=False)
    assert none["last_mean"] is None and "unfinished: 0 of 10 rounds" in as_text([none])


def test_a_run_that_diverged_shows_it(tmp_path):
    row = row_of(tmp_path / "a", [0.5, float("nan")])
    assert math.isnan(row["last_mean"]) and row["best_mean"] == 0.5
    assert "nan %" in as_text([row]) and json.loads(as_json([row]))[0]["last_mean"] is None


# ----------------------------------------------------------------------------------------- forms
def test_columns_are_aligned_in_letters_of_two_columns_too():
    wide = "\u65b9\u6cd5"  # two letters of two columns each
    lines = aligned([["ab", "1"], [wide, "22"]], ["m", "n"]).splitlines()
    assert lines == ["m      n", "----  --", "ab     1", f"{wide}  22"]
    assert aligned([["a b", "c"]], widths=[1, 1]).splitlines() == ["a  c", "b"]


def test_a_label_breaks_neither_markdown_nor_latex(tmp_path):
    row = row_of(tmp_path / "a", [0.5], label="a|b <i>\nc")
    lines = as_markdown([row]).splitlines()
    assert len({line.replace("\\|", "").count("|") for line in lines}) == 1
    assert r"a\|b &lt;i> c" in lines[2]
    text = as_latex([row_of(tmp_path / "b", [0.5], label="50% & $x_1$ {~}^\\")])
    begin, top, head, _, line, _, end, last = text.split("\n")
    assert begin == rf"\begin{{tabular}}{{l{'r' * head.count('&')}}}" and not last
    assert (top, end) == (r"\toprule", r"\end{tabular}")
    assert line.replace(r"\&", "").count("&") == head.count("&") and line.endswith(r" \\")
    assert r"50\% \& \$x\_1\$ \{\textasciitilde{}\}\textasciicircum{}\textbackslash{}" in line
    assert r" & 50.00 \% & " in line and "accuracy, last tenth" in head
    assert (as_text([]), as_markdown([]), as_csv([]), as_latex([])) == ("", "", "", "")


def test_every_number_in_a_file_is_one(tmp_path):
    rows = comparison(groups_of(tmp_path), 0.7)
    back = json.loads(as_json(rows))
    assert [r["rounds_to_target"] for r in back] == [2.5, None]
    assert [r["not_reached"] for r in back] == [1, 1]
    words = {"label", "state", "metric", "unit", "value"}
    assert all(isinstance(v, int | float | None) for k, v in back[0].items() if k not in words)
    frame = pandas.read_csv(io.StringIO(as_csv(rows)))
    assert frame["rounds_to_target"].dtype == float and frame["rounds_to_target"][0] == 2.5


def test_latex_has_the_columns_that_are_asked_for_and_the_best_is_bold(tmp_path):
    """The last tenth of three evaluations is the last: 0.7 of one, 0.9 of the other."""
    noise = (-0.01, 0.0, 0.01)
    curves = {"a": [[0.5, 0.6, 0.7 + n] for n in noise], "b": [[0.66, 0.6, 0.9 + n] for n in noise]}
    groups = fake_groups(tmp_path, curves)
    beside = differences(groups)
    rows = [row | beside_of(row["label"], beside) for row in comparison(groups, 0.65)]
    cells = lambda *more: [
        line.removesuffix(r" \\").split(" & ")
        for line in as_latex(rows, *more).splitlines()
        if line.endswith(r" \\")
    ]
    heads, first, second = cells()
    assert len(heads) <= 5 and heads[0] == "algorithm" and heads[-1] == "p (Holm)"
    assert heads[1] == "accuracy, last tenth"
    assert first[1] == r"$70.00 \pm 1.00 \%$" and second[1] == r"$\mathbf{90.00 \pm 1.00 \%}$"
    assert (first[-1], second[-1]) == ("-", r"\textless{} 0.001")  # no noise in the differences
    assert (first[2], second[2]) == ("3", r"\textbf{1}")
    columns = ["p", "bytes", "rounds to 65 %", "best", "bytes", "difference"]
    own = cells(columns)
    assert len(own[0]) == 6 and own[0][1:3] == [heads[-1], "bytes"]
    assert own[1][2] == own[2][2] == "14.6 KiB", "none is bold where all are as good"
    assert own[2][-1].startswith("+20.00 (")
    with pytest.raises(ConfigError, match=r"--columns has 'acuracy'.*did you mean 'accuracy'"):
        as_latex(rows, ["acuracy"])


# ------------------------------------------------------------------------- settings, data, frames
def test_settings_that_differ_are_named_all_of_them(tmp_path):
    config = "[local]\nepochs = {0}\nbatch = {0}\nlr = {0}.5\ndecay = 0.{0}\nsteps = [{0}, 2]\n"
    groups = groups_at(
        *(
            fake_run(tmp_path / f"{n}{s}", [0.5], config=config.format(n), seed=s)
            for n, s in ((1, 0), (1, 1), (2, 0))
        )
    )
    heads, lines = setting_cells(groups)
    keys = ["epochs", "batch", "lr", "decay", "steps"]
    assert [line[0] for line in lines] == [f"local.{key}" for key in keys]
    assert lines[2][1:] == ["1.5", "2.5"] and len(heads) == 3
    assert groups[0].label == "FedAvg (epochs 1, batch 1, lr 1.5, 2 more)"
    assert setting_columns(groups)[1]["setting.local.lr"] == 2.5
    assert "seed" in [line[0] for line in setting_cells(groups, within=True)[1]]


def test_one_frame_of_many_runs(tmp_path, monkeypatch):
    groups_of(tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    frame = fedloom.load_runs("runs/*")
    assert len(frame) == len(fedloom.load_runs("runs")) == 3 * 3 + 2
    assert list(frame.columns[:5]) == ["run", "label", "algorithm", "seed", "finished"]
    own = frame[(frame["label"] == "FedAvg") & (frame["seed"] == 1)]
    assert own["test_accuracy"].tolist() == CURVES[1] and own["round"].tolist() == [1, 2, 3]
    assert frame["setting.model.name"].unique().tolist() == ["mlp"]
    assert frame["cohort"].iloc[0] == frame["setting.cohort"].iloc[0] == 10
    assert fedloom.load_runs(["runs/a0", tmp_path / "runs/b"])["run"].nunique() == 2
    refused(lambda: fedloom.load_runs("none/*"), "'none/*' does not exist", kind=CheckpointError)


def test_how_unequal_clients_are_stands_beside_the_result(tmp_path):
    same = {"counts": [[5, 5], [5, 5]], "sizes": [10, 10], "class_names": ["a", "b"]}
    apart = {"counts": [[9, 0], [0, 1]], "sizes": [9, 1], "class_names": ["a", "b"]}
    groups = groups_at(
        fake_run(tmp_path / "a", [0.5], partition=same, label="like", config="x = 1"),
        fake_run(tmp_path / "b", [0.5], partition=apart, label="apart", config="x = 2"),
    )
    heads, lines = table_cells(comparison(groups))
    at = heads.index("label distance")
    assert heads[at + 1] == "Gini of sizes"
    assert [line[at : at + 2] for line in lines] == [["0.00", "0.00"], ["1.00", "0.40"]]
    assert common_skew(groups) == ""
    assert common_skew(groups[:1]) == "2 with 10 samples (Gini 0.00), label distance 0.00 of 1"
    assert "label distance" not in table_cells(comparison(groups[:1]))[0]


LONG = "A method whose name has so many words that no table of a page has room for it"


@pytest.mark.parametrize("width", [80, 120])
def test_tables_fit_the_page_in_a_pipe_too(width, tmp_path, monkeypatch):
    curves = [[0.1, 0.5, 0.8 + 0.01 * seed] for seed in range(3)]
    fake_groups(tmp_path / "runs", {"FedAvg": curves, LONG: curves}, target=0.6)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", str(width))

    def compare(*words):
        result = CliRunner().invoke(cli, ["compare", "runs", *words])
        assert result.exit_code == 0, result.output
        return result.stdout

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
