"""Sub-models at the command line: runs, exports of any size, reports, bad input."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest
from safetensors.torch import load_file

from fedloom.data import digits, iid
from fedloom.report import group_runs, load_run, write_report
from fedloom.report.submodels import size_cells
from tiny import Fedloom

SMALL = ("rounds=2", "local.epochs=1", "--out", "a")


@pytest.mark.parametrize("rule", ["heterofl", "fedrolex", "fjord", "fiarse"])
def test_a_size_that_nobody_trained_is_cut_out_and_computes_what_was_evaluated(
    rule: str, fedloom: Fedloom
) -> None:
    sizes = "evaluate.sizes=['1/20']"
    fedloom("run", "digits", f"submodel={rule}", "submodel.capacities=1/4,1", sizes, *SMALL)
    text = fedloom("export", "a", "--capacity", "1/20").output
    assert "at capacity 0.05" in text
    module = runpy.run_path("a/export-0.05/predict.py")["load"]()
    data = digits(iid(2))
    right = (module(data.test_inputs).argmax(1) == data.test_targets).double().mean()
    summary = json.loads(Path("a/summary.json").read_text())["sizes"]
    (row,) = summary["unseen"]
    assert (row["capacity"], row["trained"]) == (0.05, False)
    assert row["global"] == pytest.approx(float(right))
    numbers = sum(p.numel() for p in module.parameters())
    mask = Path("a/export-0.05/mask.safetensors")
    assert mask.exists() == (rule == "fiarse") == (numbers == 4810)
    if mask.exists():
        marks = load_file(mask)
        assert sum(int(m.sum()) for m in marks.values()) == 240  # floor(0.05 * 4810)
        weights = module.state_dict()
        assert all(not weights[n][~m].any() for n, m in marks.items())


def test_only_a_run_with_sub_models_is_cut(fedloom: Fedloom) -> None:
    fedloom("run", "digits", *SMALL)
    assert "trained whole models" in fedloom("export", "a", "--capacity", "0.5", code=2).output
    assert "must be in (0, 1]" in fedloom("export", "a", "--capacity", "5", code=2).output


@pytest.mark.slow
def test_a_report_has_the_sizes(fedloom: Fedloom) -> None:
    fedloom("run", "digits", "submodel=pruning-greedy", "submodel.capacities=1/4,1", *SMALL)
    page = write_report("a", "a/report.html").read_text()
    assert "Sub-models" in page and "size 1/4" in page and "FedAvg + Pruning-Greedy" in page
    heads, lines = size_cells_of(Path("a"))
    assert heads == ["algorithm", "measured", "size 1/4", "size 1", "mean"]
    kinds = ["local", "global", "local, mean of last 10", "global, mean of last 10"]
    more = ["held, of all parameters", "time of a step", "memory of a step"]
    assert [line[1] for line in lines] == kinds + more
    curve = load_run("a").columns["test_accuracy@0.25"]
    assert lines[1][2] == f"{100 * curve[-1]:.2f} %"
    assert lines[3][2] == f"{50 * (curve[-1] + curve[-2]):.2f} %"
    assert lines[4][2:] == [f"{100 * (4810 // 4) / 4810:.2f} %", "100.00 %", "-"]


def test_the_end_of_a_run_says_every_size(fedloom: Fedloom) -> None:
    text = fedloom("run", "digits", "submodel=heterofl", "submodel.capacities=1/4,1", *SMALL).output
    small = json.loads(Path("a/summary.json").read_text())["sizes"]
    line = next(line for line in text.splitlines() if line.startswith("  size 1/4"))
    assert f"{100 * small['global']['0.25']:.2f} % global" in line
    assert f"holds {small['held']['0.25']['all']:,} of 4,810 parameters" in line


def size_cells_of(run: Path) -> tuple[list[str], list[list[str]]]:
    return size_cells(group_runs([load_run(run)]))
