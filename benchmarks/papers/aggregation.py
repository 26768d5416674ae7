"""What an aggregation is worth: accuracy by share of attackers, and by epsilon.

    python benchmarks/papers/aggregation.py [robust] [private] [--page]

Every finished run is a line of robust.jsonl or private.jsonl in docs/results, and is not run again;
--page only makes the pages robust.md and private.md and their pictures from the lines. The digits
come with scikit-learn: nothing is downloaded. Minutes on two cores; private needs dp-accounting.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from evidence.lines import RESULTS, Line, append, made_by
from evidence.lines import read as lines_of
from evidence.page import table

from fedloom.config import resolve

Runs = dict[str, list[str]]

ROBUST = (
    "cohort=20 rounds=30 weighting=uniform data.partition.alpha=1.0 evaluate.every=30 "
    "evaluate.clients=false"
)
RULES = {
    "mean": "aggregation=mean",
    "norm bound 0.3": "aggregation=norm_bound aggregation.norm=0.3",
    "centred clipping 0.1": "aggregation=centred_clipping aggregation.radius=0.1 "
    "aggregation.steps=3",
    "geometric median": "aggregation=geometric_median",
    "median": "aggregation=median",
    "trimmed mean 0.4": "aggregation=trimmed_mean aggregation.trim=0.4",
    "multi-krum 5": "aggregation=krum aggregation.hostile=0.4 aggregation.several=5",
}
ATTACKS = {
    "sign flip x 3": "attack=sign_flip attack.strength=3",
    "label flip": "attack=label_flip",
    "a little is enough": "attack=alie",
    "inner product x 2": "attack=ipm attack.strength=2",
}
SHARES = (0.0, 0.1, 0.2, 0.3, 0.4)

PRIVATE = (
    "model=logistic model.inputs=64 cohort=0.5 rounds=30 sampling=poisson weighting=uniform "
    "data.partition=iid data.partition.clients=200 evaluate.every=30 evaluate.clients=false"
)
NOISES = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
CLIPS = {
    "clip 0.3": "aggregation.clip=0.3",
    "clip 1": "aggregation.clip=1.0",
    "clip follows the median": "aggregation.clip=0.1 aggregation.quantile=0.5 "
    "aggregation.count_noise=20",
}


def robust() -> Runs:
    """{name: changes of the recipe digits}. Without attackers the attack does not matter."""
    runs = {f"{rule}, none, 0": f"{ROBUST} {more}" for rule, more in RULES.items()}
    for attack, how in ATTACKS.items():
        for share in SHARES[1:]:
            for rule, more in RULES.items():
                changes = f"{ROBUST} {more} {how} attack.share={share}"
                runs[f"{rule}, {attack}, {share:g}"] = changes
    return {name: changes.split() for name, changes in runs.items()}


def private() -> Runs:
    """{name: changes of the recipe digits}."""
    runs = {"without noise": f"{PRIVATE} aggregation=mean"}
    for clip, more in CLIPS.items():
        for noise in NOISES:
            own = f"aggregation=dp aggregation.noise={noise} {more}"
            runs[f"{clip}, {noise:g}"] = f"{PRIVATE} {own}"
    return {name: changes.split() for name, changes in runs.items()}


def read(file: Path) -> dict[str, Line]:
    """The lines that there are, by name."""
    return {line["run"]: line for line in lines_of(file)}


def run(file: Path, runs: Runs) -> None:
    """Run what has no line yet."""
    for name, changes in runs.items():
        if name in read(file):
            continue
        experiment = resolve("digits", changes).experiment()
        last = experiment.run().history[-1]
        line: Line = {"run": name, "changes": changes, "accuracy": last["test_accuracy"]}
        if "epsilon" in last:
            aggregation = experiment.plan().aggregation
            state = aggregation.init(experiment.net().init(), 100.0, 0.5)
            line |= aggregation.summary(state, last["round"])
        append(file, line | made_by())
        print(f"{name}: {line['accuracy']:.3f}", flush=True)


# ------------------------------------------------------------------------------------------ pages
def percent(line: Line | None) -> str:
    """An accuracy in per cent."""
    return "-" if line is None else f"{100 * line['accuracy']:.1f}"


def robust_tables(lines: dict[str, Line]) -> Iterator[str]:
    """A table for each attack."""
    for attack in ATTACKS:
        names = {0.0: "none, 0"} | {s: f"{attack}, {s:g}" for s in SHARES[1:]}
        rows = [
            [rule, *(percent(lines.get(f"{rule}, {names[s]}")) for s in SHARES)] for rule in RULES
        ]
        heads = ["accuracy, %", *(f"{100 * s:.0f} % hostile" for s in SHARES)]
        yield f"\n## {attack[0].upper()}{attack[1:]}\n\n{table(heads, rows)}"


def private_tables(lines: dict[str, Line]) -> Iterator[str]:
    """One table: epsilon by noise, and the accuracy by clip."""
    rows = []
    for noise in NOISES:
        found = [lines.get(f"{clip}, {noise:g}") for clip in CLIPS]
        known = next(filter(None, found), None)
        costs = ["-", "-"]
        if known is not None:
            costs = [f"{known[k]:.2f}" for k in ("epsilon_tight", "epsilon")]
        rows.append([f"{noise:g}", *costs, *map(percent, found)])
    heads = ["noise", "epsilon (PLD)", "epsilon (RDP)", *(f"{clip}, accuracy %" for clip in CLIPS)]
    yield f"\n{table(heads, rows)}\n"
    yield f"Without noise and clipping: {percent(lines.get('without noise'))} %."


Curves = list[tuple[str, list[float], list[float]]]


def robust_curves(lines: dict[str, Line]) -> dict[str, Curves]:
    """{attack: a curve for each rule}."""
    out: dict[str, Curves] = {}
    for attack in ATTACKS:
        out[attack] = []
        for rule in RULES:
            names = [f"{rule}, none, 0", *(f"{rule}, {attack}, {s:g}" for s in SHARES[1:])]
            found = [(s, lines[n]) for s, n in zip(SHARES, names, strict=True) if n in lines]
            curve = [100 * s for s, _ in found], [100 * x["accuracy"] for _, x in found]
            out[attack].append((rule, *curve))
    return out


def private_curves(lines: dict[str, Line]) -> dict[str, Curves]:
    """{"": a curve for each clip}."""
    curves: Curves = []
    for clip in CLIPS:
        found = [lines[n] for z in NOISES if (n := f"{clip}, {z:g}") in lines]
        points = [x["epsilon_tight"] for x in found], [100 * x["accuracy"] for x in found]
        curves.append((clip, *points))
    return {"": curves}


def picture(file: Path, panels: dict[str, Curves], across: str, log: bool) -> None:
    """Draw the curves side by side."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.2 * len(panels) + 2.2, 3.2), layout="constrained", dpi=100)
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for ax, (title, curves) in zip(axes, panels.items(), strict=True):
        for name, xs, ys in curves:
            ax.plot(xs, ys, marker="o", markersize=3, label=name)
        ax.set(title=title, xlabel=across, xscale="log" if log else "linear")
        ax.grid(alpha=0.3)
    axes[0].set_ylabel("test accuracy, %")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right upper", fontsize=8)
    figure.savefig(file, metadata={"Software": None})


PAGES: dict[str, tuple[Callable[[], Runs], Any, Any, str]] = {
    "robust": (robust, robust_tables, robust_curves, "hostile clients, %"),
    "private": (private, private_tables, private_curves, "epsilon"),
}


def page(name: str) -> str:
    """The text of a page: what is written by hand, and the tables."""
    lines, plan = read(RESULTS / f"{name}.jsonl"), PAGES[name][0]()
    words = (RESULTS / "words" / f"{name}.md").read_text(encoding="utf-8")
    done = len(lines.keys() & plan.keys())
    head = (
        f"<!-- Made by `python benchmarks/papers/aggregation.py --page`: write words/{name}.md. -->"
    )
    there = f"{done} of {len(plan)} planned runs are finished, one seed each."
    shown = f"![{name}](pictures/{name}.png)"
    return "\n".join([head, "", words.rstrip(), "", there, "", shown, *PAGES[name][1](lines), ""])


def main() -> None:
    """Run, and make the pages."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(PAGES))
    parser.add_argument("--page", action="store_true", help="run nothing")
    options = parser.parse_args()
    for name in options.names or PAGES:
        plan, _, curves, across = PAGES[name]
        if not options.page:
            run(RESULTS / f"{name}.jsonl", plan())
        lines = read(RESULTS / f"{name}.jsonl")
        picture(RESULTS / "pictures" / f"{name}.png", curves(lines), across, name == "private")
        (RESULTS / f"{name}.md").write_text(page(name), encoding="utf-8")


if __name__ == "__main__":
    main()
