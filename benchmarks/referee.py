"""Is a verdict of `fedloom referee` what it says? Comparisons resampled from recorded runs.

    python benchmarks/referee.py record FOLDER [--seeds 60] [--jobs 2]   240 runs of digits
    python benchmarks/referee.py calibrate FOLDER [--comparisons 4000]

`record` runs four methods with the same seeds and writes FOLDER/runs.jsonl: of each run its
accuracy at every fifth round. `calibrate` needs these lines alone. It draws comparisons from them,
seed by seed with replacement, and lets the referee's own rule decide each one:

- without a difference: two methods whose differences are shifted so that their mean over all seeds
  is zero, or one method at other seeds than itself. FedAvg and FedProx, of whose differences all
  but one are zero to the bit, are taken as they are: shifted, they would be a constant;
- with a planted one, of 0.5, 1, 1.5 or 2 standard deviations of such differences.

Half of the comparisons are of each kind. The false rate is the share of the first half in which a
difference was found; its interval is Wilson's, 95 %. A last table is of whole studies, three rivals
in four cells, without any difference: the share with one false verdict or more. There the first
looks have levels of 0.0002, and four draws from 60 values are equal, or three of them, more often
than of a continuous distribution; so it is also given for a method with itself (3,540 values).
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from fedloom.core.curves import last_tenth
from fedloom.report.curve_data import measured
from fedloom.report.runs import load_run
from fedloom.report.statistics import decide, looks
from fedloom.study import RunTrials, Sweep, run_all
from fedloom.study.trial import as_words

METHODS = ("fedavg", "fedprox", "fedavgm", "scaffold")
EFFECTS = (0.5, 1.0, 1.5, 2.0)  # standard deviations of the differences
MOST = 30  # seeds, the command's default
STUDIES = 2000
Values = dict[str, dict[int, float]]  # {method: {seed: what is compared}}


def record(folder: Path, seeds: int, jobs: int) -> None:
    """Run all methods with all seeds, and write a line for each run."""
    words = [f"algorithm={','.join(METHODS)}", "evaluate.every=5", "evaluate.clients=false"]
    with tempfile.TemporaryDirectory() as out:
        trials = Sweep("digits", words, seeds, out, by="test").grid()
        for number, (trial, ended) in enumerate(run_all(trials, RunTrials(), jobs), 1):
            said = f"{as_words(trial.choice)} seed={trial.seed}: {ended.state}"
            print(f"{number}/{len(trials)} {said}", flush=True)
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "runs.jsonl").open("w", encoding="utf-8") as file:
            for trial in trials:
                values = measured(load_run(trial.folder), "test_accuracy")[1]
                line = {
                    "method": trial.choice["algorithm"],
                    "seed": trial.seed,
                    "curve": [round(float(v), 4) for v in values],
                }
                file.write(json.dumps(line) + "\n")


def read(folder: Path) -> Values:
    """What is compared of every recorded run."""
    out: Values = {}
    for text in (folder / "runs.jsonl").read_text("utf-8").splitlines():
        line = json.loads(text)
        value = last_tenth(line["curve"])
        assert value is not None
        out.setdefault(line["method"], {})[line["seed"]] = value
    return out


def pools(values: Values) -> list[list[float]]:
    """Differences whose mean is zero: of every two methods, and of each with itself. Those of two
    that hardly ever differ come first, and are as they are.
    """
    out = []
    for one, other in itertools.combinations(values, 2):
        gaps = [values[one][s] - values[other][s] for s in sorted(values[one])]
        if gaps.count(0.0) > len(gaps) / 2:
            out.insert(0, gaps)
        else:
            out.append([gap - statistics.fmean(gaps) for gap in gaps])
    for own in values.values():
        out.append([a - b for a, b in itertools.permutations(own.values(), 2)])
    return out


def wilson(hits: int, of: int) -> tuple[float, float]:
    """The 95 % interval of a share."""
    z, share = 1.959964, hits / of
    middle, half = (
        share + z * z / (2 * of),
        z * math.sqrt(share * (1 - share) / of + (z / of) ** 2 / 4),
    )
    return (middle - half) / (1 + z * z / of), (middle + half) / (1 + z * z / of)


def calibrate(folder: Path, count: int) -> dict[str, Any]:
    """Draw and decide all comparisons."""
    draw, known, at = np.random.default_rng(0), pools(read(folder)), looks(MOST)

    def gaps(effect: float, pool: list[float]) -> list[float]:
        shift = effect * statistics.stdev(pool)
        return [shift + pool[i] for i in draw.integers(len(pool), size=MOST)]

    def look(effect: float) -> tuple[str, int]:
        pool = known[draw.integers(1 if effect else 0, len(known))]  # none is planted in the first
        found = decide({0: gaps(effect, pool)}, at)[0]
        assert found.found is not None
        return found.verdict, found.found.n

    half = count // 2
    false = sum(look(0.0)[0] != "undecided" for _ in range(half))
    power = {}
    for effect in EFFECTS:
        seen = [look(effect) for _ in range(half // len(EFFECTS))]
        hits = [n for verdict, n in seen if verdict == "above"]
        power[str(effect)] = {
            "found": len(hits) / len(seen),
            "wrong_side": sum(verdict == "below" for verdict, _ in seen) / len(seen),
            "seeds": statistics.fmean(n for _, n in seen),
        }

    def false_studies(pool: list[list[float]]) -> float:
        """The share of studies with one false difference or more."""

        def one() -> bool:
            found = decide({k: gaps(0.0, pool[draw.integers(len(pool))]) for k in range(12)}, at)
            return any(each.verdict != "undecided" for each in found.values())

        return sum(one() for _ in range(STUDIES)) / STUDIES

    whole = {"all": false_studies(known), "a method with itself": false_studies(known[-4:])}
    deviations = {
        f"{one} less {other}": statistics.stdev(values)
        for (one, other), values in zip(itertools.combinations(METHODS, 2), known, strict=False)
    }
    return {
        "comparisons": count,
        "looks": at,
        "false": false / half,
        "false_interval": wilson(false, half),
        "power": power,
        "studies": STUDIES,
        "false_studies": whole,
        "false_studies_interval": {
            k: wilson(round(v * STUDIES), STUDIES) for k, v in whole.items()
        },
        "seed_deviation_of_differences": deviations,
        "seed_deviation": {m: statistics.stdev(v.values()) for m, v in read(folder).items()},
    }


def main() -> None:
    """Do what is asked."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=("record", "calibrate"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=60)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--comparisons", type=int, default=4000)
    asked = parser.parse_args()
    if asked.what == "record":
        record(asked.folder, asked.seeds, asked.jobs)
        return
    found = json.dumps(calibrate(asked.folder, asked.comparisons), indent=1)
    (asked.folder / "calibration.json").write_text(found + "\n", encoding="utf-8")
    print(found)


if __name__ == "__main__":
    main()
