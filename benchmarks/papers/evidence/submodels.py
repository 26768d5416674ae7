"""submodels.md: FIARSE, its rivals and its ablation."""

from __future__ import annotations

from study import Study

from fedloom.report.curve_data import mean

from .page import MISSING, Page, Plot, mib, points_of, seeds_cell, table
from .submodel_claims import claims
from .submodel_plots import by_round, explored, histograms, unseen
from .submodel_runs import TENTH, WINDOW, Part, size_name

OURS = "FIARSE"
# the 2 x 2: what re-masking at every step and the bias factor do, alone and together
SQUARE = (
    ("Pruning-Greedy", "no", "no"),
    ("re-masking alone", "yes", "no"),
    ("factor alone", "no", "yes"),
    (OURS, "yes", "yes"),
)


def accuracies(part: Part, kind: str, last: int = TENTH) -> str:
    """One row for each method: the sizes and their mean, of the last tenth of evaluations, or of so
    many.
    """
    columns = [*part.sizes, "mean"]
    head = ["method", "seeds", *(f"size {size_name(s)}" for s in part.sizes), "mean"]
    rows = []
    for method in part.there:
        cells = [seeds_cell(list(part.values(method, kind, s, last).values())) for s in columns]
        rows.append([method, str(len(part.runs(method))), *cells])
    return table(head, rows)


def traffic(part: Part) -> str:
    """Bytes, what a size really holds, and rounds to the target."""
    goal = f"{100 * part.target:g} %"
    head = ["method", "MiB down", "MiB up"]
    head += [f"size {size_name(s)} holds, %" for s in part.sizes]
    head += [f"rounds to {goal}, size {size_name(s)}" for s in part.sizes]
    rows = []
    for method in part.there:
        runs = list(part.runs(method).values())
        held = [runs[0]["sizes"]["held"].get(s) for s in part.sizes]
        rows.append(
            [
                method,
                mib(mean([x["bytes_down"] for x in runs])),
                mib(mean([x["bytes_up"] for x in runs])),
                *(f"{100 * h['all'] / runs[0]['parameters']:.2f}" if h else MISSING for h in held),
                *(_rounds(part, method, s) for s in part.sizes),
            ]
        )
    return table(head, rows)


def _rounds(part: Part, method: str, size: str) -> str:
    found = part.rounds_to(method, size)
    known = [t for t in found if t is not None]
    if not known:
        return f"{max(x['rounds'] for x in part.runs(method).values())}+"
    text = f"{mean(known):.1f}".removesuffix(".0")
    return text if len(known) == len(found) else f"{text} ({len(known)}/{len(found)})"


def square(part: Part, last: int = TENTH) -> str:
    """The ablation: local and global mean, and what each adds to Pruning-Greedy."""
    head = ["method", "re-masking", "factor", "local mean", "less neither", "global mean"]
    rows = []
    for method, masks, factor in SQUARE:
        if not part.runs(method):
            continue
        cells = []
        for kind in ("local", "global"):
            cells.append(seeds_cell(list(part.values(method, kind, "mean", last).values())))
            base = SQUARE[0][0]
            gap = part.gap(method, base, kind, "mean", last) if method != base else None
            cells.append("" if gap is None else points_of(gap))
        rows.append([method, masks, factor, *cells])
    return table([*head, "less neither"], rows, texts=3)


def section(part: Part) -> list[str | Plot]:
    """All of a part."""
    out: list[str | Plot] = [f"## {part.table.title}", LEGEND, "### Local accuracy"]
    out += [accuracies(part, "local"), "### Global accuracy", accuracies(part, "global")]
    out += [f"### Local accuracy, mean of the last {WINDOW} evaluations"]
    out += [accuracies(part, "local", WINDOW)]
    out += [f"### Global accuracy, mean of the last {WINDOW} evaluations"]
    out += [accuracies(part, "global", WINDOW)]
    out += ["### Messages and rounds", traffic(part)]
    if sum(bool(part.runs(m)) for m, _, _ in SQUARE) > 1:
        out += ["### Re-masking and bias factor"]
        out += ["Means of the last tenth of evaluations, which verdicts are on:", square(part)]
        out += ["After the last round:", square(part, 1)]
        out += [f"Means of the last {WINDOW} evaluations:", square(part, WINDOW)]
    out += by_round(part)
    out += histograms(part)
    out += unseen(part)
    out += explored(part)
    return out


LEGEND = (
    "In per cent, mean ± standard deviation over the seeds; unless said otherwise the mean of the "
    "last tenth of the evaluations of a run: two of 20, ten rounds apart. *Local*: the clients of "
    "a size, each with the sub-model of that size, on its own test set (the client's own label "
    "shares); the mean is over all clients. *Global*: the sub-model on the whole test set; the "
    "mean is over the sizes. In the pictures a line is the mean over the seeds, its band from the "
    "lowest to the highest."
)


def make(study: Study, words: str) -> Page:
    """The page."""
    parts = [Part(name, study) for name in study.tables]
    out: list[str | Plot] = ["## What there is", study.state()]
    if any(part.there for part in parts):
        out += ["## FIARSE's claims", *claims([part for part in parts if part.there])]
    for part in parts:
        out += section(part) if part.there else []
    return Page("submodels", words, out)
