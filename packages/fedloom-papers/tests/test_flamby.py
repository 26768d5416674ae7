"""FLamby's tables: the published runs as data, the authors' changes, and the numbers of one run
that an independent restatement in numpy gave (weights after round 1 and 15, accuracies).
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from fedloom.config import resolve
from fedloom.errors import ConfigError
from fedloom_papers.catalogue import entry
from fedloom_papers.entry import published
from fedloom_papers.flamby import as_published, centres, seeds_of, visits
from fedloom_papers.lines import NAME, read
from fedloom_papers.pages import page
from fedloom_papers.plan import plan
from fedloom_papers.table import equal_cells, gaps_to_runs, table

LINES = Path(__file__).parents[3] / "docs/results/flamby"
HEART, TCGA, PERSONAL = (entry(f"flamby:{name}") for name in ("heart", "tcga", "personal"))


def test_published_runs_are_whole():
    for name, cells in (("heart", 300), ("tcga", 490)):
        runs = published("flamby", name)
        assert sum(len(cell.seeds) for cell in runs) == cells
        assert all({*cell.seeds} == {42, 43, 44, 45, 46} for cell in runs)
    common, tuned = published("flamby", "personal")
    assert (round(common.value, 4), round(tuned.value, 4)) == (0.7178, 0.7351)
    fedavg = {c.metric: c.value for c in published("flamby", "heart") if c.method == "FedAvg"}
    assert fedavg["centre_pooled"] == pytest.approx(0.7480, abs=5e-5)


def test_what_makes_a_run_the_authors_own(tmp_path):
    turns = [visits(seed, 6, 5).count(0) for seed in range(42, 47)]
    assert turns == [0, 1, 1, 1, 1], "their Cyclic of seed 42 reports an untrained model"
    cyclic = next(row for row in TCGA.rows if row.key == "cyclic-as-published")
    words = as_published(TCGA.protocols[0], cyclic, 42)
    assert "local.lr=1e-30" in words and "local.passes.before=67" in words
    for row in TCGA.rows:
        assert as_published(TCGA.protocols[0], row, 43)[0] == "model_seed=43"
    with pytest.raises(ConfigError, match="publishes 5 seeds"):
        seeds_of(6)
    with pytest.raises(ConfigError, match="as-published is of flamby"):
        plan(entry("fedsmoo:8"), "cpu", tmp_path, as_published=True)
    made = plan(HEART, "cpu", tmp_path, ["cyclic-transfer", "pooled"], 5, as_published=True)
    lists = [run.config.values["cohort"] for run in made.runs if run.row.key == "cyclic-transfer"]
    assert [[i for (i,) in cohort] for cohort in lists] == [visits(s, 4, 15) for s in made.seeds]


def test_the_weights_and_accuracies_of_a_published_run():
    """FedAvg at seed 42; flamby.md, section 13."""
    row = next(row for row in HEART.rows if row.key == "fedavg")
    words = ["local.lr=0.001", *as_published(HEART.protocols[0], row, 42), "seed=42"]
    config = resolve("flamby_heart", [*words, "engine=serial", "device=cpu"])
    loop = config.experiment().build()
    loop.engine.open(loop.plan, loop.fed, loop.net)
    loop.begin()
    assert float(loop.model()[-1]) == pytest.approx(0.03756168, abs=1e-8)
    for round, first in (
        (0, [0.21204484, 0.23020278, -0.06497549, 0.25477493]),
        (1, [0.2172794, 0.2363949, -0.0605990, 0.2572140]),
        (15, [0.2527853, 0.2993937, -0.0218889, 0.2732516]),
    ):
        loop.until(round)
        assert loop.model()[:4].tolist() == pytest.approx(first, rel=1e-5), round
        if round == 1:
            assert float(loop.model().norm()) == pytest.approx(0.6525703, abs=2e-7)
    right = [0.759615, 0.696629, 0.6875, 0.622222, 0.751969]
    assert [*centres(config, "flamby_heart", loop).values()] == pytest.approx(right, abs=1e-6)


@pytest.mark.parametrize(("one", "least"), [(HEART, 300), (TCGA, 245)], ids=["heart", "tcga"])
def test_committed_lines_have_the_published_cells(one, least, tmp_path):
    left_out = () if one is HEART else ("pool", "local", "cyclic-t")
    keys = [row.key for row in one.rows if not row.key.startswith(left_out)]
    made = plan(one, "cpu", tmp_path, keys, 5, as_published=True)
    rows = equal_cells(table(made, read(LINES / NAME)).numbers)
    assert sum(row.cells for row in rows.values()) == least
    assert all(row.equal == row.cells and not row.others for row in rows.values())


@pytest.mark.parametrize(
    ("one", "name"),
    [
        (HEART, "Fed-Heart-Disease"),
        (TCGA, "Fed-TCGA-BRCA"),
        (PERSONAL, "fine-tuned, Fed-Heart-Disease"),
    ],
)
def test_committed_lines_of_our_own_order_have_these_verdicts(one, name, tmp_path):
    made = table(plan(one, "cpu", tmp_path, seeds=5), read(LINES / NAME))
    gaps = gaps_to_runs(made.numbers)
    sides = Counter(side for _, side in gaps.values())
    apart = sides["above"] + sides["below"]
    counts = len(gaps), apart, sides["within"], sides["undecided"]
    text = (LINES.parent / "flamby.md").read_text()
    assert f"| {name} | {' | '.join(map(str, counts))} |" in text
    # one of them has no spread on either side: p is 0
    assert f"p is below 0.05 in {apart}" in " ".join(page(made, []).split())
    assert {row for (row, _), (_, side) in gaps.items() if side == "above"} <= {"local-5"}
    assert sides["below"] == 0
    if one is PERSONAL:
        means = [f"{n.mean:.4f}" for n in made.numbers if n.mean is not None]
        assert f"{means[0]} for the common one and {means[1]} fine-tuned here" in text


def test_our_own_runs_are_compared_with_the_published_means(tmp_path):
    """Three rows: the published runs, 30 points above them without a spread, one point above."""
    there = {(c.method, c.metric): c.seeds for c in published("flamby", "heart")}
    metrics = ("centre_0", "centre_1", "centre_2", "centre_3", "centre_pooled")
    more, lines = {"fedavg": 0.0, "fedadam": 0.3, "scaffold": 0.01}, []
    made = plan(HEART, "cpu", tmp_path, [*more], 5)
    for run in made.runs:
        own = {}
        for metric in metrics:
            runs = there[run.row.name, metric]
            value = sum(runs.values()) / 5 if run.row.key == "fedadam" else runs[42 + run.seed]
            own[metric] = value + more[run.row.key]
        head = {"digest": run.digest, "seed": run.seed, "state": "finished", "rounds": 15}
        lines.append(head | {"curves": {}, "afterwards": own})
    found = table(made, lines)
    gaps = gaps_to_runs(found.numbers)
    assert len(gaps) == 15
    for (row, metric), (gap, side) in gaps.items():
        assert gap.mean == pytest.approx(more[row], abs=1e-9), (row, metric)
        assert (side == "above") == (row == "fedadam"), (row, metric, gap)
    exact, spread = gaps["fedadam", "centre_0"][0], gaps["fedavg", "centre_0"][0]
    assert exact.freedom == 4 and spread.freedom == 8, "one side varies, or both alike"
    deviation = 0.0215 * (2 / 5) ** 0.5
    assert spread.half == pytest.approx(2.306 * deviation, rel=0.005)
    said = " ".join(page(found, []).split())
    assert "+0.3000±" in said and "above" in said
    assert "Of 15 differences 5 are more than chance" in said and "0 within a point" in said
    assert "below 0.05 in 5: chance makes about 1 of 15" in said
    published_too = table(plan(HEART, "cpu", tmp_path, ["fedavg"], 1, as_published=True), [])
    assert "differences" not in page(published_too, [])
