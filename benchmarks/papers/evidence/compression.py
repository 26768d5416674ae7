"""compression.md: compressed runs on Fashion-MNIST, FedACG with FedPAQ, CFedAvg's MNIST network."""

from __future__ import annotations

from collections.abc import Sequence

from study import Study

from fedloom.papers.lines import Line
from fedloom.report.tables import fixed

from .compression_claims import BUDGETS, claims
from .compression_plots import errors, fashion, fedpaq, mnist, uplink
from .compression_runs import (
    CLASSES,
    FEEDBACK,
    Runs,
    after,
    by_both_ways,
    by_uplink,
    late,
    sent,
    share,
)
from .page import MISSING, Page, Plot, mib, per_cent, table


def state(study: Study) -> str:
    """What is there, and what is not."""
    return study.state() + (
        "\n- Not among the runs: Figure 2's baseline, FedAvg with one local step; p=10; CFedAvg's "
        "experiments on CIFAR-10; further seeds."
    )


def _row(name: str, line: Line, against: Line | None) -> list[str]:
    less = "" if against is None or against is line else late(line) - late(against)
    return [
        name,
        per_cent(late(line)),
        less if isinstance(less, str) else fixed(100 * less, 2, "+"),
        per_cent(line["last"]["value"]),
        per_cent(line["best"]["value"]),
        per_cent(line["last_ema"]),
        line["rounds_to_target_text"] or MISSING,
        mib(line["bytes_to_target"]),
        mib(line["bytes_up"]),
        mib(line["bytes_down"]),
        f"{sent(line):.4f}",
    ]


HEAD = ["last tenth", "less uncompressed", "last", "best", "EMA, last", "rounds to target"]
HEAD += ["MiB to target", "MiB up", "MiB down", "model sizes an answer"]
LEGEND = (
    "Accuracies in per cent on the whole test set. *Last tenth* is the mean of the last tenth of "
    "the evaluations that the lines keep, three of 21; verdicts are on it. *EMA* is the debiased "
    "moving average (0.9 per round), on which rounds to the target were read, every round. MiB "
    "count all clients, *to target* up and down; *model sizes an answer*: true bytes of what one "
    "client sends in a round, positions and headers included, over four times the number of "
    "parameters."
)


def ways(runs: Runs, p: int) -> str:
    """The ways of compression with p classes per client."""
    rows, plain = [], runs.fashion(p, "uncompressed")
    for way in runs.ways:
        if line := runs.fashion(p, way):
            row = _row(way, line, plain)
            rows.append([*row, f"{share(line['changes']):g}"])
    return table(["way", *HEAD, "nominal"], rows)


def named(runs: Runs, names: Sequence[str], plain: Sequence[str]) -> str:
    """Runs by name; plain: the name of the uncompressed one beside each."""
    rows = [
        _row(name, runs.by_name[name], runs.by_name.get(other))
        for name, other in zip(names, plain, strict=True)
        if name in runs.by_name
    ]
    return table(["run", *HEAD], rows)


def budgets(runs: Runs) -> str:
    """Accuracy when a client has sent so many model sizes, nominal and true."""
    head = ["p", "way", *(f"{b:g}, {u}" for u in ("nominal", "true") for b in BUDGETS)]
    rows = []
    for p in CLASSES:
        for way in FEEDBACK:
            if line := runs.fashion(p, way):
                curves = [by_uplink(line, true) for true in (False, True)]
                cells = [per_cent(after(c, b)) for c in curves for b in BUDGETS]
                rows.append([str(p), way, *cells])
    return table(head, rows, texts=2)


def both_ways(runs: Runs) -> str:
    """Accuracy when a client has sent and received so many model sizes."""
    rows = []
    for p in CLASSES:
        for way in FEEDBACK:
            if line := runs.fashion(p, way):
                cells = [per_cent(after(by_both_ways(line), b)) for b in BOTH]
                rows.append([str(p), way, *cells])
    return table(["p", "way", *(f"{b:g}" for b in BOTH)], rows, texts=2)


def make(study: Study, words: str) -> Page:
    """The page."""
    runs = Runs(study)
    parts: list[str | Plot] = ["## What there is", state(study)]
    if runs.by_name:
        parts += ["## CFedAvg's and FedACG's claims", *claims(study, runs)]
    shown = [p for p in CLASSES if runs.any_of(p)]
    if shown:
        parts += ["## Fashion-MNIST, 20 clients", LEGEND]
        for p in shown:
            parts += [f"### p={p}: {p} class{'es' if p > 1 else ''} per client", ways(runs, p)]
        parts += ["### By round", *fashion(runs)]
        parts += ["### At equal bytes, both ways", BOTH_WAYS, both_ways(runs)]
        parts += ["### At equal uplink", UPLINK, budgets(runs), *uplink(runs)]
        if norms := errors(runs):
            parts += ["### Error norms", *norms]
    quantised = [n for n in runs.plan if n.startswith(("fedavg", "fedacg"))]
    if any(n in runs.by_name for n in quantised):
        plain = [n.partition(",")[0] for n in quantised]
        parts += ["## FedACG with FedPAQ", FEDPAQ, named(runs, quantised, plain), *fedpaq(runs)]
    own = [n for n in runs.plan if n.startswith("mnist")]
    if any(n in runs.by_name for n in own):
        plain = ["mnist p=1, uncompressed"] * len(own)
        parts += ["## MNIST, CFedAvg's network", MNIST, named(runs, own, plain), *mnist(runs)]
    return Page("compression", words, parts)


BOTH = (10.0, 20.0, 60.0, 100.0)  # model sizes; a round without compression has two
BOTH_WAYS = (
    "The accuracy where a client has sent and received so many models together, in true bytes; "
    "between two evaluations on a straight line. Only the way up is compressed: a round costs 2 "
    "models without compression, about 1.1 with Top-k .9 and RD .9, and 1.01 with Top-k .99 and "
    "RD .99."
)
UPLINK = (
    "The accuracy where a client has sent so many models; between two evaluations on a straight "
    "line, of a run that sends less in all its end, and nothing before the first evaluation. "
    "*Nominal*: the kept share of the coordinates, CFedAvg's unit, which counts no positions. "
    "*True*: bytes, every round at the run's mean. Evaluations that the lines keep are five rounds "
    "apart."
)
MNIST = "Of the seven evaluations that these lines keep, the last tenth is the last one."
FEDPAQ = (
    "100 clients, 5 a round, Dirichlet 0.3, 5 local epochs: FedACG's protocol. FedACG's Table 6 "
    "(CIFAR-100, ResNet-18, 1,000 rounds) has FedAvg 47.83, FedPAQ 41.99, FedACG with FedPAQ 50.53."
)
