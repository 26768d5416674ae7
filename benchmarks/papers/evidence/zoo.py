"""zoo.md: the papers' methods on Fashion-MNIST."""

from __future__ import annotations

from collections.abc import Sequence

from study import Study, held_out

from fedloom.core.curves import last_tenth
from fedloom.papers.lines import Line
from fedloom.report.curve_data import mean
from fedloom.report.statistics import Paired, against, p_text

from .page import MISSING, Page, Plot, mib, per_cent, points_of, seeds_cell, table
from .zoo_claims import claims, papers
from .zoo_plots import plots
from .zoo_runs import BASE, Zoo, accuracies, gradients, reached

GOAL = 80  # the recipe's target, in per cent


def results(zoo: Zoo, part: str) -> str:
    """One row for each method that has a finished or failed run."""
    target = GOAL
    head = ["method", "tuned", "seeds", "last tenth", f"less {BASE}", "p by Holm"]
    head += ["last", "best", "EMA, last", f"rounds to {target} %", f"MiB to {target} %"]
    head += ["MiB in all", f"at {BASE}'s MiB", "gradients", "s per round", "failed"]
    ranked = zoo.ranked(part)
    names = ranked + [n for n in zoo.methods if n not in ranked and zoo.finals(n, part)]
    beside = (
        against(zoo.values(BASE, part), {n: zoo.values(n, part) for n in names if n != BASE})
        if BASE in zoo.methods
        else {}
    )
    return table(head, [_row(zoo, name, part, beside.get(name)) for name in names], texts=2)


def _row(zoo: Zoo, name: str, part: str, less: Paired | None) -> list[str]:
    """less: FedAvg less this method, with p corrected for the rows."""
    every, runs = zoo.finals(name, part), list(zoo.counted(name, part).values())
    totals = [x["bytes_up"] + x["bytes_down"] for x in runs]
    failed = len(every) - len(zoo.finished(name, part))
    times = mean([x["seconds_per_round"] for x in runs])
    return [
        name,
        f"{zoo.tried(name)[0].rpartition('.')[2]} {zoo.chosen(name)}",
        str(len(runs)),
        seeds_cell([*zoo.values(name, part).values()]),
        *(("", "") if name == BASE or less is None else _beside(less.turned)),
        seeds_cell([x["last"]["value"] for x in runs]),
        seeds_cell([x["best"]["value"] for x in runs]),
        seeds_cell([x["last_ema"] for x in runs]),
        *_target(zoo, name, runs, GOAL / 100),
        mib(mean(totals)),
        seeds_cell([ours for ours, _ in zoo.at_equal_bytes(name, part).values()]),
        f"{gradients(zoo.algorithm(name)):g}",
        MISSING if times is None else f"{times:.2f}",
        f"{failed} of {len(every)}" if failed else "",
    ]


def _beside(gap: Paired) -> tuple[str, str]:
    """A difference from FedAvg, and its p corrected for the rows of the table."""
    return points_of(gap), p_text(gap.p_holm)


def _target(zoo: Zoo, name: str, runs: Sequence[Line], target: float) -> tuple[str, str]:
    """Rounds and MiB, up and down, until the moving average is there: means over the seeds that
    reached it, "63 (2/3)" if not all did.
    """
    if not runs:
        return MISSING, MISSING
    found = [(x, t) for x in runs if (t := reached(x, target)) is not None]
    if not found:
        return f"{max(x['rounds'] for x in runs)}+", MISSING
    share = "" if len(found) == len(runs) else f" ({len(found)}/{len(runs)})"
    rounds = f"{mean([t for _, t in found]):.1f}".removesuffix(".0")
    return rounds + share, mib(mean([zoo.sent(name, x, t) for x, t in found]))


def at_the_higher_rate(zoo: Zoo, high: Zoo) -> list[str | Plot]:
    """The runs at rate 0.4 as far as there are: what was tried, and the one seed of what was chosen
    beside the same seed at the common rate. Nothing is tested.
    """
    rows = []
    for name in high.methods:
        lines, (key, values) = high.tuning(name), high.tried(name)
        if not lines:
            continue
        tried = ", ".join(f"{v}: {per_cent(held_out(x))}" for v, x in lines.items())
        missing = f"; {len(values) - len(lines)} of {len(values)} not tried"
        ends = [
            per_cent(last_tenth([*accuracies(x).values()])) if x else MISSING
            for x in (high.finished(name, "higher").get(0), zoo.finished(name, zoo.tuned).get(0))
        ]
        tried += missing if len(lines) < len(values) else ""
        rows.append([name, f"`{key}`", tried, high.chosen(name) or MISSING, *ends])
    if not rows:
        return []
    head = ["method", "setting", "held-out accuracy, %", "chosen", "at 0.4, seed 0"]
    return [HIGHER_TITLE, HIGHER, table([*head, "at 0.2, seed 0"], rows, texts=4)]


HIGHER_TITLE = "## At rate 0.4, as far as it was run"
HIGHER = (
    "`--table higher` gives every method FedAvg's better rate; it was stopped. The last two "
    "columns are the mean of the last tenth of evaluations of one seed, at 0.4 and at the common "
    "rate, each with what was chosen there. One seed is no test: nothing is claimed."
)


def tuning(zoo: Zoo) -> str:
    """Every value that was tried, with its held-out accuracy; the chosen one in bold."""
    rows = []
    for name in zoo.methods:
        lines, (key, values) = zoo.tuning(name), zoo.tried(name)
        if not lines:
            continue
        best = zoo.chosen(name)
        cells = []
        for value in values:
            line = lines.get(value)
            shown = "open" if line is None else "failed"
            if line is not None and line["state"] == "finished":
                shown = per_cent(held_out(line))
            cells.append(f"**{value}: {shown}**" if value == best else f"{value}: {shown}")
        edge = "at the edge" if best in (values[0], values[-1]) else ""
        rows.append([name, f"`{key}`", ", ".join(cells), edge])
    return table(["method", "setting", "held-out accuracy, %", "chosen"], rows, texts=4)


def failures(zoo: Zoo) -> str:
    """A line for each run that failed, and its reason; of all parts."""
    rows = []
    for name in zoo.methods:
        key = zoo.tried(name)[0]
        ended = [("tuning", v, x) for v, x in zoo.tuning(name).items()]
        for part in zoo.parts:
            finals = zoo.finals(name, part).values()
            ended += [(zoo.words_of(part), zoo.chosen(name) or "", x) for x in finals]
        for stage, value, x in ended:
            if x["state"] == "failed":
                why = (x.get("reason") or x.get("why") or "no reason given").splitlines()[0]
                rows.append([name, stage, f"{key}={value}", str(x["seed"]), why])
    return table(["method", "stage", "value", "seed", "why"], rows, texts=5) if rows else ""


def state(zoo: Zoo) -> str:
    """What is there, and what is not."""
    untuned = zoo.untuned()
    said = f"- {len(zoo.methods) - len(untuned)} of {len(zoo.methods)} methods are tuned.\n"
    said += f"- Not yet tuned: {', '.join(untuned)}.\n" if untuned else ""
    return said + zoo.study.state(zoo.parts)


def make(study: Study, words: str) -> Page:
    """The page."""
    zoo, high = Zoo(study), Zoo(study, "higher", ("higher",))
    parts: list[str | Plot] = ["## What there is", state(zoo)]
    for part in zoo.parts:
        said = zoo.words_of(part)[0].upper() + zoo.words_of(part)[1:]
        if any(zoo.finals(n, part) for n in zoo.methods):
            parts += [f"## {said}", LEGEND, results(zoo, part)]
            parts += plots(zoo, part)
            parts += papers(zoo) if part == zoo.tuned else []
        if part == "dirichlet":
            parts += at_the_higher_rate(zoo, high)
    if parts[-1] != parts[1]:
        parts += ["## The papers' claims", *claims(zoo)]
    if any(zoo.tuning(n) for n in zoo.methods):
        parts += ["## Tuning", TUNING, tuning(zoo)]
    if failed := failures(zoo):
        parts += ["## Failed runs", failed]
    return Page("zoo", words, parts)


LEGEND = (
    "Accuracies in per cent on the whole test set, mean ± standard deviation over the seeds. *Last "
    "tenth* is the mean of the last tenth of the evaluations: all verdicts are on it. "
    f"*Less {BASE}* is that of the method less that of {BASE}, in points, paired by seed, with the "
    "95 % interval by Student's t (three seeds: 4.303 standard errors); its two-sided p is "
    "corrected by Holm for the rows of this table. *EMA* is the debiased moving average (0.9 per "
    "round): it is shown, not tested; rounds to the target are read from it, on straight lines "
    f"between evaluations. MiB count up and down, all clients. *At {BASE}'s MiB*: the accuracy "
    f"after as much was sent as {BASE} does, at the last tenth of {BASE}'s evaluations, between "
    "the method's own ones on straight lines. "
    "*Gradients* are those of a batch per local step (MOON's, FedNTD's and FedMLB's need further "
    "passes through the network, which only the time shows); seconds are medians on a shared "
    "machine. In the pictures a line is the mean over the seeds, its band from the lowest to the "
    "highest."
)
TUNING = (
    "One seed, 150 rounds, the last accuracy on a tenth of every client's samples that was held "
    "out; in bold what was taken. *At the edge*: the best of what was tried was its first or last "
    "value, so that a better one may lie outside."
)
