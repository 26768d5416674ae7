"""The sentences of the result pages, filled by fill.py, against the committed lines: the
mean of the last tenth of evaluations, seeds that all rows have, scipy's t, Holm, straight lines.
"""

from __future__ import annotations

import functools
import importlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np
import pytest
from results_lines import RESULTS
from scipy.stats import ttest_1samp

from fedloom.papers import ENTRIES, PAPERS
from fedloom.papers.board import shown
from fedloom.papers.lines import NAME, read

ZOO, SUBMODELS = (importlib.import_module(name) for name in ("zoo", "submodels"))
STUDY = importlib.import_module("study")


def words(name: str) -> str:
    """Sentences of committed pages on one line: "results" is docs/results/README.md and what stands
    above the tables of each paper's page; else what stands above a page's tables.
    """
    own = {
        n: (RESULTS / f"{n}.md").read_text("utf-8")
        for n in (name, "README", *PAPERS)
        if n != "results"
    }
    above = {n: re.split(r"\n## What (?:was run|there is)\n", text)[0] for n, text in own.items()}
    wanted = ["README", *PAPERS] if name == "results" else [name]
    return " ".join(" ".join(above[n] for n in wanted).split())


def tenth(values: Sequence[float]) -> float:
    """Of at least seven evaluations: three, or a tenth of them rounded up."""
    assert len(values) >= 7
    return fmean(values[-max(3, math.ceil(len(values) / 10)) :])


def p_of(gaps: Sequence[float]) -> float:
    return float(ttest_1samp(list(gaps), 0.0).pvalue)


def by_holm(p: Mapping[str, float]) -> dict[str, float]:
    out, least = {}, 0.0
    for rank, name in enumerate(sorted(p, key=lambda n: p[n])):
        least = out[name] = max(least, min(1.0, (len(p) - rank) * p[name]))
    return out


def clear(
    ours: Sequence[float], rivals: Mapping[str, Sequence[float]], family: int = 0
) -> set[str]:
    """The rivals that a row is above with p below 0.05, corrected for their number, or for more."""
    gaps = {n: [a - b for a, b in zip(ours, row, strict=True)] for n, row in rivals.items()}
    more = {str(i): 1.0 for i in range(family - len(gaps))}
    every = by_holm({n: p_of(g) for n, g in gaps.items()} | more)
    found = {n: every[n] for n in gaps}
    return {n for n, p in found.items() if p < 0.05 and fmean(gaps[n]) > 0}


# --------------------------------------------------------------------------------------------- zoo
@functools.cache
def zoo(part: str) -> Any:
    return ZOO.Zoo(STUDY.Study("zoo"), part, (part,))


@functools.cache
def zoo_lines() -> list[dict[str, Any]]:
    text = (RESULTS / "zoo.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def ends(name: str, part: str = "dirichlet") -> list[float]:
    """What a verdict on a method is on, seed by seed."""
    study = zoo(part)
    key, best = study.tried(name)[0], study.chosen(name)
    own = {
        x["seed"]: [a for _, a in x["curve"]]
        for x in zoo_lines()
        if (x["method"], x["part"], x["stage"]) == (name, part, "final")
        if x["choice"] == {key: best} and x["state"] == "finished"
    }
    return [tenth(own[seed]) for seed in sorted(own)]


def rivals_of(paper: str, part: str = "dirichlet") -> dict[str, list[float]]:
    (column,) = [c for c in ZOO.columns(zoo(part).study) if c.own == paper]
    return {v: ends(v, part) for n in column.values if (v := zoo(part).variant(n)) and n != paper}


def test_sentences_on_fedacg_and_fedsmoo() -> None:
    text, front = words("zoo"), words("results")
    acg, smoo, avg = ends("FedACG"), ends("FedSMOO"), ends("FedAvg")
    rivals = rivals_of("FedACG")
    assert all(fmean(acg) > fmean(row) for row in rivals.values()) and len(rivals) == 12
    alike = {n: row for n, row in rivals.items() if n != "FedCM, alpha 0.1"}
    assert len(alike) == 11 and clear(acg, alike, 12) == set()
    assert f"{100 * fmean(acg):.2f} %, {100 * fmean(np.subtract(acg, avg)):.2f} points" in text
    high = [ends(n, "higher")[0] for n in ("FedDyn", "FedACG")]
    assert f"FedDyn is at {100 * high[0]:.2f} and FedACG at {100 * high[1]:.2f}" in text
    assert "FedACG is better at 0.2 and level with FedDyn: a tie" in text
    assert acg[0] > high[1] and abs(high[0] - acg[0]) < 0.001
    rivals = rivals_of("FedSMOO")
    alike = {n: row for n, row in rivals.items() if not n.endswith("alpha 0.1")}
    assert (len(rivals), len(alike)) == (7, 5)
    assert clear(smoo, alike, 7) == {"FedAvg", "FedSAM", "SCAFFOLD", "FedDyn"}
    assert "clear of four of the five rivals that compare" in text
    assert f"{100 * fmean(np.subtract(smoo, avg)):.1f} points above FedAvg at its rate" in front
    correction = np.subtract(smoo, ends("FedSpeed"))
    assert f"is {100 * fmean(correction):.2f} points below" in text and p_of(correction) > 0.05
    gain = np.subtract(ends(ZOO.OWN_RATE), avg)
    assert f"gains {100 * fmean(gain):.2f} points" in text and p_of(gain) > 0.05
    lifts = {n: np.subtract(ends(f"{n} + ACG"), ends(n)) for n in ("FedLC", "FedDecorr", "FedMLB")}
    p = by_holm({n: p_of(g) for n, g in lifts.items()})
    assert [p[n] < 0.05 for n in lifts] == [True, True, False]
    by = [f"{100 * fmean(g):.2f}" for g in lifts.values()]
    assert f"FedLC by {by[0]} and FedDecorr by {by[1]} points (clear), FedMLB by {by[2]}" in text


def test_a_difference_from_fedavg_has_one_p_on_the_page() -> None:
    """FedDyn's was 0.112, 0.0499 and 0.025. The family: all that the papers' tables name."""
    page = (RESULTS / "zoo.md").read_text("utf-8")
    columns = ZOO.columns(zoo("dirichlet").study)
    named = {v for c in columns for n in c.values for v in zoo("dirichlet").variants(n)}
    named -= {"FedAvg", ZOO.OWN_RATE}
    alike = [n for n in named if not zoo("dirichlet").unequal(n)]
    p = {n: p_of(np.subtract(ends(n), ends("FedAvg"))) for n in alike}
    more = {str(i): 1.0 for i in range(len(named) - len(alike))}
    found = by_holm(p | more)["FedDyn"]
    rows = [r for r in page.splitlines() if r.startswith("| FedDyn |") and "+1.94 ± 0.54" in r]
    assert len(rows) == 3 and all(f"+1.94 ± 0.54 | {found:.3f} |" in row for row in rows)
    assert [n for n in alike if by_holm(p | more)[n] < 0.05] == ["FedSMOO"]


def test_rounds_to_a_target_lie_between_evaluations() -> None:
    def rounds(name: str) -> float:
        found = []
        for line in zoo("dirichlet").study.finished("dirichlet", name).values():
            places, values = zip(*line["curves"]["curve"], strict=True)
            total = weight = 0.0
            average, before = [], 0
            for t, a in zip(places, values, strict=True):
                keep = 0.9 ** (t - before)
                total, weight = keep * total + (1 - keep) * a, keep * weight + 1 - keep
                average.append(total / weight)
                before = t
            after = next(i for i, a in enumerate(average) if a >= 0.8)
            line_of = np.interp(np.arange(places[after] + 1), places, average)
            found.append(int(np.argmax(line_of >= 0.8)))
        return fmean(found)

    said = {n: f"{rounds(n):.0f}" for n in ("FedACG", "FedAvg")}
    assert "It is the first of that table at 80 %" in words("zoo")
    assert f"after {said['FedACG']} rounds, where FedAvg needs {said['FedAvg']}" in words("results")


def test_every_run_at_the_higher_rate_is_on_the_page() -> None:
    page = (RESULTS / "zoo.md").read_text(encoding="utf-8")
    section = page.split("## At rate 0.4, as far as it was run")[1].split("\n## ")[0]
    runs = [x for x in zoo_lines() if x["part"] == "higher"]
    assert len(runs) == 24 and "(24 of them, one seed" in words("results")
    for x in runs:
        (row,) = [r for r in section.splitlines() if r.startswith(f"| {x['method']} |")]
        (value,) = x["choice"].values()
        if x["stage"] == "tuning":
            assert f"{value}: {100 * x['last_validation']:.2f}" in row.replace("**", "")
        else:
            assert f"| {100 * tenth([a for _, a in x['curve']]):.2f} |" in row
    assert "was not tried" not in page


# ------------------------------------------------------------------------------------ FAFED's table
@functools.cache
def fafed(level: str) -> tuple[Any, dict[tuple[str, int], dict[str, Any]]]:
    """A table of FAFED at its best points, and its lines."""
    folder = RESULTS / "papers"
    lines = read(folder / NAME)
    (one,) = shown(lines, folder, [ENTRIES[f"fafed:{level}"]])
    return one.found, {(line["digest"], line["seed"]): line for line in lines}


def runs_of(level: str, row: str, seeds: int = 3) -> list[dict[str, Any]]:
    found, at = fafed(level)
    name = found.plan.entry.protocols[0].name
    return [at[found.plan.digests[name, row, seed], seed] for seed in range(seeds)]


def last_of(level: str, row: str) -> list[float]:
    return [tenth([a for _, a in x["curves"]["curve"]]) for x in runs_of(level, row)]


ROWS = {"FedAvg": "fedavg", "SCAFFOLD": "scaffold", "STEM": "stem", "FedAdam": "fedadam"}
ROWS["FedAMS"] = "fedams"


@pytest.mark.parametrize(
    ("level", "place", "are_clear"),
    [("2a", 3, set()), ("2b", 1, {"FedAvg", "SCAFFOLD", "STEM"}), ("2c", 1, set())],
)
def test_sentences_on_fafeds_table_2(level: str, place: int, are_clear: set[str]) -> None:
    front = words("results")
    ours = last_of(level, "fafed")
    rivals = {name: last_of(level, key) for name, key in ROWS.items()}
    assert clear(ours, rivals) == are_clear
    assert sum(fmean(row) > fmean(ours) for row in rivals.values()) == place - 1
    means = {name: f"{100 * fmean(row):.1f}" for name, row in rivals.items()}
    own = f"{100 * fmean(ours):.1f}"
    counts = "clear of 0, 3 and 0 of its 5 rivals at low, medium and high heterogeneity"
    assert counts in front and len(are_clear) == {"2a": 0, "2b": 3, "2c": 0}[level]
    level_words = {"2a": "At low", "2b": "At medium", "2c": "At high"}[level]
    assert f"{level_words} heterogeneity {own} %, FedAdam {means['FedAdam']}" in front
    part = front.split(f"{level_words} heterogeneity {own} %")[1][:160]
    for name, row in rivals.items():  # 85.55 is 85.5 or 85.6
        told = re.search(rf"{name} ([\d.]+)", part)
        assert told and abs(float(told.group(1)) - 100 * fmean(row)) < 0.0501
    gap = np.subtract(ours, rivals["FedAdam"])
    if level != "2a":
        assert f"{100 * fmean(gap):.2f} points, p {p_of(gap):.3f}" in front
    # the seeds that were added to one pair after a look are in the lines, and count nowhere
    found = fafed(level)[0]
    (seeds,) = found.seeds.values()
    assert list(seeds) == [0, 1, 2]
    assert found.claims[0].verdict == "undecided"
    more = {} if level == "2a" else {"FedAdam": [3, 4], "FAFED": [3, 4]}
    assert [dict(own) for own in found.more.values()] == [more]


@pytest.mark.parametrize(
    ("level", "rival", "said", "is_clear"),
    [
        ("2a", "FedAdam", "by 3.14 points at low (clear)", True),
        ("2b", "FedAdam", "1.32 at medium (p 0.038, by Holm 0.114: undecided)", False),
        ("2c", "FedAdam", "2.49 at high (clear)", True),
        ("2a", "FedAvg", "by 2.17 at low (clear)", True),
        ("2b", "FedAvg", "0.18 above it at medium", False),
        ("2c", "FedAvg", "1.46 at high (both undecided)", False),
    ],
)
def test_fafed_at_equal_bytes(level: str, rival: str, said: str, is_clear: bool) -> None:
    """All three heterogeneities: 20 clients say three vectors first, then six a round."""
    gaps: dict[str, list[float]] = {}
    for name, key in ROWS.items():
        before = 2 * 20 * 4 * 26620 if name == "STEM" else 0
        for one, other in zip(runs_of(level, "fafed"), runs_of(level, key), strict=True):
            curve, theirs = one["curves"]["curve"], other["curves"]["curve"][-3:]
            first = 3 * 20 * 4 * 26620
            each = (one["bytes_up"] + one["bytes_down"] - first) / 150
            sent = (other["bytes_up"] + other["bytes_down"] - before) / 150
            places = [first + t * each for t, _ in curve]
            at = [before + t * sent for t, _ in theirs]
            here = np.interp(at, places, [a for _, a in curve])
            gaps.setdefault(name, []).append(fmean(here) - fmean(a for _, a in theirs))
    p = by_holm({name: p_of(g) for name, g in gaps.items()})
    assert f"{abs(100 * fmean(gaps[rival])):.2f}" in said and (p[rival] < 0.05) == is_clear
    if "p 0" in said:
        assert f"p {p_of(gaps[rival]):.3f}, by Holm {p[rival]:.3f}" in said


# ------------------------------------------------------------------------------------- compression
def test_sentences_on_compression() -> None:
    file = (RESULTS / "compression.jsonl").read_text(encoding="utf-8")
    lines = {x["run"]: x for x in map(json.loads, file.splitlines())}
    text = words("compression")

    def between(p: int, way: str, models: float, both: bool) -> float:
        line = lines[f"fashion p={p}, {way}"]
        bytes_ = line["bytes_up"] + (line["bytes_down"] if both else 0)
        each = bytes_ / (line["rounds"] * 20 * 4 * line["parameters"])
        curve = [(r["round"] * each, r["test_accuracy"]) for r in line["curve"]]
        return 100 * float(np.interp(models, *zip(*curve, strict=True)))

    leads = {
        way: [
            f"{between(p, way, 60, True) - between(p, 'uncompressed', 60, True):.1f}"
            for p in (1, 2, 5)
        ]
        for way in ("topk .9", "topk .99")
    }
    assert leads["topk .9"] == ["2.5", "2.4", "1.7"] and leads["topk .99"] == ["-1.8", "1.8", "1.2"]
    for page in (text, words("results")):
        assert "is +2.5, +2.4 and +1.7 points" in page and "less it -1.8, +1.8 and +1.2" in page
    up = [[between(p, w, 2, False) for p in (1, 2, 5)] for w in ("topk .99", "uncompressed")]
    assert [f"{v:.1f}" for v in up[0]] == ["72.5", "81.4", "86.3"]
    assert up[1] == pytest.approx([22.7, 38.2, 65.4], abs=0.051)
    assert "22.7, 38.2 and 65.4" in text

    def late(run: str) -> float:
        values = [r["test_accuracy"] for r in sorted(lines[run]["curve"], key=lambda r: r["round"])]
        return 100 * tenth(values)

    behind = {
        way: [
            late(f"fashion p={p}, uncompressed") - late(f"fashion p={p}, {way}") for p in (1, 2, 5)
        ]
        for way in ("topk .99", "dropping .9")
    }
    assert (
        f"{behind['topk .99'][0]:.1f} points below it" in text and max(behind["topk .99"][1:]) < 1
    )
    assert min(behind["dropping .9"]) > 1.05 and max(behind["dropping .9"]) < 1.95
    costs = [late(f"{a}, fedpaq {n}") - late(a) for a in ("fedavg", "fedacg") for n in (7, 127)]
    assert (f"{min(costs):.2f}", f"{max(costs):.2f}") == ("0.01", "0.30")
    seven = [f"{late(f'{a}, fedpaq 7') - late(a):+.2f}" for a in ("fedavg", "fedacg")]
    assert f"less FedAvg is {seven[0]} points, FedACG with it less FedACG {seven[1]}" in text


def test_sentences_on_cfedavgs_figure_4() -> None:
    """The last five of 50 evaluations count; bytes are those of whole runs and of all clients."""
    text = words("cfedavg")
    lines = read(RESULTS / "papers" / NAME)
    rows: dict[tuple[str, str], dict[int, Mapping[str, Any]]] = {}
    for line in lines:
        if line["recipe"] == "cfedavg_fashion" and line["scale"] == "cpu":
            given = dict(change.split("=", 1) for change in line["changes"])
            place = given["data.classes"], given["compress"]
            rows.setdefault(place, {})[int(line["seed"])] = line
    codecs = ("none", "topk:0.1", "topk:0.01", "dropping:0.1", "dropping:0.01")
    places = [(classes, codec) for classes in ("10", "2") for codec in codecs]
    assert all(sorted(rows[place]) == [0, 1, 2] for place in places)
    assert {len(rows["5", codec]) for codec in codecs} == {1} and not any(p == "1" for p, _ in rows)

    def late(classes: str, codec: str) -> list[float]:
        own = rows[classes, codec]
        return [100 * tenth([a for _, a in own[s]["curves"]["curve"]]) for s in sorted(own)]

    def gaps(classes: str, one: str, other: str) -> list[float]:
        return list(np.subtract(late(classes, one), late(classes, other)))

    def both(one: str, other: str) -> list[float]:
        return [fmean(gaps(classes, one, other)) for classes in ("10", "2")]

    below = {}
    for classes in ("10", "2"):
        found = {codec: gaps(classes, "none", codec) for codec in ("topk:0.1", "topk:0.01")}
        raw = {codec: p_of(gap) for codec, gap in found.items()}
        below[classes] = raw["topk:0.01"], by_holm(raw)["topk:0.01"]
        assert min(by_holm(raw).values()) > 0.05
    few = both("none", "topk:0.01")
    said = [f"(p {p:.3f}, by Holm {holm:.3f})" for p, holm in below.values()]
    assert f"ends {few[0]:.2f} {said[0]} and {few[1]:.2f} points {said[1]} below" in text
    dropped = both("dropping:0.1", "dropping:0.01")
    assert f"is {dropped[0]:.1f} and {dropped[1]:.1f} points behind a tenth (clear" in text
    assert all(p_of(gaps(c, "dropping:0.1", "dropping:0.01")) < 0.05 for c in ("10", "2"))
    p = {
        classes: by_holm(
            {k: p_of(gaps(classes, f"topk:{k}", f"dropping:{k}")) for k in ("0.1", "0.01")}
        )
        for classes in ("10", "2")
    }
    assert max(p["10"].values()) < 0.05 < min(p["2"].values())

    def sent(codec: str, way: str) -> str:
        return f"{rows['10', codec][0][f'bytes_{way}'] / 2**20:.1f}"

    up = f"all clients send {sent('topk:0.01', 'up')} MiB in place of {sent('none', 'up')}"
    assert f"{up}, and receive {sent('none', 'down')} either way" in text

    made = (RESULTS / "cfedavg.md").read_text(encoding="utf-8")
    kept = [
        re.search(rf"fig9, fashion-{c} \| clear \| Top-k .99 ([\d.]+) less Top-k .9 ([\d.]+)", made)
        for c in ("10", "2")
    ]
    large, small = zip(*([float(v) for v in k.groups()] for k in kept if k), strict=True)
    assert f"is {small[0]:.0f} and {small[1]:.0f} times their update" in text
    assert f"{large[0]:.0f} and {large[1]:.0f} times with a hundredth" in text


def test_sentences_on_fedacgs_table_4() -> None:
    """The last five of 50 evaluations count."""
    front = words("results")
    text = (RESULTS / "papers" / "lines.jsonl").read_text(encoding="utf-8")
    lines = [json.loads(line) for line in text.splitlines()]
    own = [line for line in lines if line["recipe"] == "fedacg_cifar10_500"]

    def late(*changes: str) -> dict[int, float]:
        parts = ("algorithm", "server")
        found = [x for x in own if {*changes} == {c for c in x["changes"] if c.startswith(parts)}]
        curves = {line["seed"]: line["curves"]["curve"] for line in found}
        return {seed: tenth([a for _, a in curve]) for seed, curve in sorted(curves.items())}

    momentum = late("algorithm=fedavgm", "algorithm.beta=0.4")
    ahead = late("algorithm=fedavg", "server=lookahead", "server.lam=0.85")
    whole = late("algorithm=fedacg", "algorithm.lam=0.85", "algorithm.beta=0.01")
    gaps = [ahead[s] - momentum[s] for s in momentum], [whole[s] - ahead[s] for s in whole]
    assert [len(gap) for gap in gaps] == [3, 3]
    first, second = (100 * fmean(gap) for gap in gaps)
    assert f"{first:.2f} points above server momentum (p {p_of(gaps[0]):.3f}: clear)" in front
    assert f"the pull adds to it is {second:.2f} (undecided)" in front and p_of(gaps[1]) > 0.05


def test_sentences_on_fedsmoos_table_8() -> None:
    """The last five of 50 evaluations count."""
    front = words("results")
    text = (RESULTS / "papers" / "lines.jsonl").read_text(encoding="utf-8")
    lines = [json.loads(line) for line in text.splitlines()]
    rows: dict[str, dict[int, float]] = {}
    for line in lines:
        if line["recipe"] == "fedsmoo_cifar10" and "data.classes=3" in line["changes"]:
            (method,) = [c for c in line["changes"] if c.startswith("algorithm=")]
            part = " without" * ("algorithm.correction=false" in line["changes"])
            curve = [a for _, a in line["curves"]["curve"]]
            rows.setdefault(method.partition("=")[2] + part, {})[line["seed"]] = tenth(curve)
    late = {name: [100 * row[seed] for seed in (0, 1, 2)] for name, row in rows.items()}
    assert set(late) == {"fedavg", "feddyn", "fedsmoo without", "fedsmoo"}
    regular = np.subtract(late["feddyn"], late["fedavg"])
    sam = np.subtract(late["fedsmoo without"], late["feddyn"])
    correction = np.subtract(late["fedsmoo"], late["fedsmoo without"])
    assert [p_of(gap) < 0.05 for gap in (regular, sam, correction)] == [False, True, True]
    assert f"(+{fmean(regular):.2f} points: undecided), SAM takes {-fmean(sam):.1f} points" in front
    assert f"gives {fmean(correction):.1f} of them back (clear)" in front
    below = {name: np.subtract(late[name], late["fedsmoo"]) for name in ("fedavg", "feddyn")}
    p = {name: p_of(gap) for name, gap in below.items()}
    said = f"{fmean(below['fedavg']):.2f} points below FedAvg (p {p['fedavg']:.3f}) and "
    assert f"{said}{fmean(below['feddyn']):.2f} below FedDyn (p {p['feddyn']:.3f})" in front
    of_seven = by_holm(p | {str(i): 1.0 for i in range(5)})
    assert max(of_seven[name] for name in p) < 0.05, "of all rivals of Table 1"


# -------------------------------------------------------------------------------------- sub-models
def test_sentences_on_sub_models() -> None:
    text, front = words("submodels"), words("results")
    part = SUBMODELS.Part("main", STUDY.Study("submodels"))

    def ends_of(method: str, column: str, last: int = 0) -> list[float]:
        out = []
        for line in part.runs(method).values():
            values = [v for _, v in line["curves"][column]]
            out.append(fmean(values[-last:]) if last else tenth(values))
        return out

    rules = ("HeteroFL", "FedRolex", "ScaleFL")
    leads = []
    for size in ("0.015625", "0.0625"):
        rows = {m: ends_of(m, f"test_accuracy@{size}") for m in rules}
        ours = ends_of("FIARSE", f"test_accuracy@{size}")
        assert clear(ours, rows) == {*rules}
        leads.append(f"{100 * fmean(np.subtract(ours, rows['HeteroFL'])):.1f}")
    assert f"{leads[0]} points ahead of HeteroFL at 1/64 and {leads[1]} at 1/16" in text
    assert f"{leads[0]} points ahead of HeteroFL at 1/64" in front
    for size in ("0.25", "1"):
        rows = {m: ends_of(m, f"test_accuracy@{size}") for m in rules}
        assert "HeteroFL" not in clear(ends_of("FIARSE", f"test_accuracy@{size}"), rows)
    mean = "test_accuracy@mean"
    greedy = {
        k: np.subtract(ends_of("FIARSE", mean, k), ends_of("Pruning-Greedy", mean, k))
        for k in (0, 1, 10)
    }
    by = [f"{100 * fmean(greedy[k]):+.2f}" for k in (0, 1, 10)]
    assert all(p_of(g) > 0.05 for g in greedy.values())
    assert f"is {by[0]} points (global; {by[1]} by the last evaluation, {by[2]} by the" in text
    assert f"FIARSE less it is {by[0]} points" in front
    masks = [
        100
        * fmean(
            fmean(ends_of(a, mean, k)) - fmean(ends_of(b, mean, k))
            for a, b in (("FIARSE", "factor alone"), ("re-masking alone", "Pruning-Greedy"))
        )
        for k in (0, 1, 10)
    ]
    said = [f"{v:+.2f}" for v in masks]
    assert f"are {said[0]} points (global" in text
    assert f"{said[1]} by the last evaluation, {said[2]} by the mean of the last ten" in text
    scale = part.runs("ScaleFL")[0]
    held = scale["sizes"]["held"]
    shares = [f"{100 * held[s]['all'] / scale['parameters']:.2f}" for s in part.sizes[:2]]
    assert shares == ["1.44", "2.14"]
    assert 0.3 < 2.14 / 6.25 < 0.37 and "about a third of what it may at 1/16" in text


def test_sentences_on_fiarses_table_1() -> None:
    """The last three of 10 evaluations count."""
    front = words("results")
    text = (RESULTS / "papers" / "lines.jsonl").read_text(encoding="utf-8")
    found: dict[str, dict[int, Any]] = {}
    for line in map(json.loads, text.splitlines()):
        if line["recipe"] == "fiarse_cifar10" and "cohort=10" in line["changes"]:
            (rule,) = [c for c in line["changes"] if c.startswith("submodel=")]
            found.setdefault(rule.partition("=")[2], {})[line["seed"]] = line["curves"]

    def gaps_at(size: str) -> tuple[dict[str, float], dict[str, Any], dict[str, float]]:
        late = {
            rule: [100 * tenth([v for _, v in of[s][f"local_accuracy@{size}"]]) for s in range(3)]
            for rule, of in found.items()
        }
        gaps = {r: np.subtract(late["fiarse"], late[r]) for r in late if r != "fiarse"}
        p = {rule: p_of(gap) for rule, gap in gaps.items()}
        return {r: fmean(v) for r, v in late.items()}, gaps, by_holm(p)

    means, gaps, p = gaps_at("mean")
    names = {"heterofl": "HeteroFL's", "scalefl": "ScaleFL's", "fedrolex": "FedRolex's"}
    said = ", ".join(f"{name} {means[rule]:.1f}" for rule, name in names.items())
    assert f"the clients is {means['fiarse']:.1f}, {said}: clear of 1 of 3" in front
    assert [rule for rule in p if p[rule] < 0.05] == ["fedrolex"]
    gap = gaps["heterofl"]
    one = f"{fmean(gap):.2f} points, p {p_of(gap):.3f}, by Holm {p['heterofl']:.3f}"
    assert f"(HeteroFL by {one})" in front
    _, gaps, p = gaps_at("0.0625")
    holm = f"(p {p['heterofl']:.3f} by Holm: undecided)"
    assert f"At 1/16 it is {fmean(gaps['heterofl']):.1f} above HeteroFL {holm}" in front
    _, gaps, p = gaps_at("0.015625")
    ours = f"are {-fmean(gaps['heterofl']):.1f} points below HeteroFL's (p {p['heterofl']:.3f} by"
    assert f"{ours} Holm: the opposite is clear)" in front and p["heterofl"] < 0.05
    assert (f"{p['heterofl']:.3f}", holm[3:8]) == ("0.008", "0.082"), "with one evaluation 0.0496"


def test_the_page_of_engines_counts_them() -> None:
    page = (RESULTS.parent / "engines.md").read_text(encoding="utf-8")
    assert "There are four engines" in page
