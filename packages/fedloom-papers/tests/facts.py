"""Tables without runs: what the package does beside what the paper prints."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import nn

from fedloom.algorithms.registry import ALGORITHMS, make_algorithm
from fedloom.config import resolve
from fedloom.core.vector import fields, rec
from fedloom.data import SOURCES, dirichlet_recycled, iid, pathological
from fedloom.errors import DataError
from fedloom.models import MODELS
from fedloom_papers.catalogue import ENTRIES, entries_of
from fedloom_papers.entry import Entry
from fedloom_papers.plan import changes_of
from fedloom_papers.published_tables import Cell

_MODEL = {
    ("fafed", "3"): "cnn_fafed_mnist",
    ("fafed", "4"): "cnn_fafed_fashion",
    ("fafed", "5"): "cnn_fafed_cifar",
    ("cfedavg", "1"): "cnn_cfedavg",
}
_DRAWS = 8  # partitions whose mean is shown


@dataclass(frozen=True)
class Fact:
    """What was compared, as the paper prints it and as it is here. agrees: None where the two
    cannot be compared, and `here` says why, or that only the order of magnitude is.
    """

    what: str
    published: str
    here: str
    agrees: bool | None


def facts(entry: Entry) -> list[Fact]:
    """The comparison of an entry without runs."""
    return list(_CHECKS[entry.fact](entry))


def _printed(cell: Cell) -> str:
    return cell.text or ("" if cell.value is None else f"{cell.value:g}")


def _sketch(entry: Entry) -> Iterator[Fact]:
    yield Fact(entry.title, "a sketch or notation", "nothing to run", None)


# ----------------------------------------------------------------------------------------- networks
def _layers(entry: Entry) -> Iterator[Fact]:
    """The layers of the network, one by one."""
    found = layers_of(MODELS[_MODEL[entry.paper, entry.name]]())
    cells = entry.cells()
    for number, cell in enumerate(cells):
        kind, shape, active = found[number] if number < len(found) else ("none", "", "none")
        size = _printed(cell) if "x" in _printed(cell) else f"{_printed(cell)} units"
        printed = f"{cell.setting['type']} {size}, {cell.setting['activation']}"
        shown = shape if "x" in _printed(cell) else f"{shape.partition('x')[2]} units"
        same = (kind, shown) == (cell.setting["type"], size)
        head = number == len(cells) - 1
        wanted = cell.setting["activation"]
        agrees = same and (active == wanted or (head and active == "none"))
        note = (
            " (logits: an activation there would bound the loss)" if "as printed" in wanted else ""
        )
        yield Fact(
            f"layer {cell.setting['layer']}", printed, f"{kind} {shown}, {active}{note}", agrees
        )
    if len(found) != len(cells):
        yield Fact("layers", str(len(cells)), str(len(found)), False)


def layers_of(model: nn.Module) -> list[tuple[str, str, str]]:
    """(type, shape, activation) of every convolution, pool and linear layer, in their order."""
    out: list[list[str]] = []
    weighted = -1
    for m in model.modules():
        if isinstance(m, nn.Conv2d):
            weighted = len(out)
            out.append(["conv", f"{m.kernel_size[0]}x{m.kernel_size[1]}x{m.out_channels}", "none"])
        elif isinstance(m, nn.Linear):
            weighted = len(out)
            out.append(["fc", f"{m.in_features}x{m.out_features}", "none"])
        elif isinstance(m, nn.MaxPool2d):
            out.append(["maxpool", f"{m.kernel_size}x{m.kernel_size}", "none"])
        elif isinstance(m, nn.ReLU | nn.Tanh):
            out[weighted][2] = type(m).__name__.lower()
    return [(kind, shape, active) for kind, shape, active in out]


def _complexity(entry: Entry) -> Iterator[Fact]:
    """Orders are theory; whether a method adapts its rates is seen from the server's state."""
    names = {ALGORITHMS.label(name): name for name in ALGORITHMS}
    zero = torch.zeros(2)
    for cell in entry.cells():
        what, printed = f"{cell.method}, {cell.metric.replace('_', ' ')}", _printed(cell)
        if cell.metric != "adaptive":
            yield Fact(what, printed, "theory: no run shows an order", None)
            continue
        made = make_algorithm(names[cell.method])
        state = fields(made.server_init(zero, rec(m=zero, v=zero)))
        adapts = any(key.rpartition(".")[2] == "v" for key in state)
        here = "yes: a second moment" if adapts else "no second moment"
        yield Fact(what, printed, here, adapts == (printed == "yes"))


# -------------------------------------------------------------------------------------------- grids
def _grids(entry: Entry) -> Iterator[Fact]:
    yield from (_fiarse_grid if entry.paper == "fiarse" else _fedsmoo_grid)(entry)


def _as_set(text: str) -> set[float]:
    """The numbers of a printed grid."""
    found = ast.literal_eval(text)
    return {float(v) for v in found}


def _fiarse_grid(entry: Entry) -> Iterator[Fact]:
    protocols = {p.dataset: p for e in entries_of("fiarse") for p in reversed(e.protocols)}
    row = next(r for e in entries_of("fiarse") for r in e.rows if r.method == "FIARSE")
    for cell in entry.cells():
        protocol = protocols[cell.dataset]
        # the transformer of RoBERTa's size needs a download: the settings do not
        values = resolve(protocol.recipe, changes_of(protocol, row, "paper")).values
        local = values["local"]
        grid, text = {**row.grid, **protocol.grid}, cell.dataset == "AGNews"
        here = {
            "local_epochs": f"{local['epochs']:g}",
            "batch_size": str(local["batch"]),
            "rounds": str(values["rounds"]),
            "optimizer": {"sgd": "SGD", "adamw": "AdamW"}[local["optimiser"]],
            "learning_rate_log10": "{" + ", ".join(f"{_log10(r)}" for r in grid["local.lr"]) + "}",
            "momentum_or_betas": f"{{(0.9, {local.get('beta2')})}}"
            if text
            else "{" + ", ".join(map(str, grid["local.momentum"])) + "}",
        }[cell.metric]
        printed = _printed(cell)
        yield Fact(
            f"{cell.dataset}, {cell.metric.replace('_', ' ')}", printed, here, here == printed
        )


def _log10(rate: float) -> int:
    return round(torch.tensor(rate, dtype=torch.float64).log10().item())


# of each option the setting, and of each kind of method the row that shows grid and best value
_OPTIONS = {
    "lr_local": "local.lr",
    "lr_global": "algorithm.server_lr",
    "sam_radius": "algorithm.rho",
    "lr_decay": "local.schedule.decay",
    "alpha": "algorithm.alpha",
    "beta": "algorithm.beta",
}
_SHOWN = {"sam_radius": "fedsam", "alpha": "fedcm"}


def _fedsmoo_grid(entry: Entry) -> Iterator[Fact]:
    table = ENTRIES["fedsmoo:1"]
    rows = {row.key: row for row in table.rows}
    for cell in entry.cells():
        option, printed = cell.setting["option"], _printed(cell)
        what = f"{cell.method}, {option.replace('_', ' ')}, {cell.metric.replace('_', ' ')}"
        plain, setting = cell.method == "SGD-type", _OPTIONS[option]
        row = rows[_SHOWN.get(option, "fedavg") if plain else "fedsmoo"]
        if printed == "-":
            yield Fact(what, printed, "not a setting of these methods", None)
        elif cell.metric == "search_grid" and option == "lr_global":
            yield Fact(what, printed, "not searched here", None)
        elif cell.metric == "search_grid":
            grid = row.grid.get(setting, ())
            here = f"[{','.join(f'{v:g}' for v in grid)}]"
            yield Fact(what, printed, here, set(grid) == _as_set(printed))
        elif option == "lr_global" and not plain:
            yield Fact(what, printed, "1, by definition", float(printed) == 1)
        else:
            words = changes_of(table.protocols[0], row, "paper")
            value: object = resolve(table.protocols[0].recipe, words).values
            for key in setting.split("."):
                assert isinstance(value, dict)
                value = value[key]
            yield Fact(what, printed, f"{value:g} ({row.name})", value == float(printed))


# --------------------------------------------------------------------------------------------- data
def _data_sets(entry: Entry) -> Iterator[Fact]:
    """Counts of the copies here; without a copy nothing is checked."""
    names = {"CIFAR-10": "cifar10", "CIFAR-100": "cifar100"}
    for dataset, name in names.items():
        cells = [c for c in entry.cells() if c.dataset == dataset]
        try:
            data = SOURCES[name](partition=iid(clients=1), download=False)
        except DataError:
            why = f"not here; `fedloom data check {name}` says how to get it"
            yield from (Fact(f"{dataset}, {c.metric}", _printed(c), why, None) for c in cells)
            continue
        tests = 0 if data.test_inputs is None else len(data.test_inputs)
        here = {
            "n_train": str(len(data.inputs)),
            "n_test": str(tests),
            "n_classes": str(data.classes),
            "input_size": "x".join(map(str, data.inputs.shape[1:])),
        }
        for c in cells:
            found = here[c.metric]
            yield Fact(f"{dataset}, {c.metric}", _printed(c), found, found == _printed(c))


def balanced(classes: int, samples: int = 50_000) -> torch.Tensor:
    """Labels (n,) as often as CIFAR's: equally many of each class; no images are needed."""
    return torch.arange(samples) % classes


def class_total_sd(classes: int, alpha: float, seed: int) -> float:
    """The standard deviation over the classes of how many samples 100 clients hold, with pools that
    restart.
    """
    labels = balanced(classes)
    lists = dirichlet_recycled(alpha, clients=100).split(labels, seed)
    counts = torch.bincount(labels[lists.indices], minlength=classes).double()
    return float(counts.std(correction=0))


def _class_totals(entry: Entry) -> Iterator[Fact]:
    classes = 10 if entry.tables else 100
    cells = {c.setting["replacement"]: _printed(c) for c in entry.cells()}
    found = [class_total_sd(classes, 0.1, seed) for seed in range(_DRAWS)]
    middle = sum(found) / len(found)
    here = f"{middle:.0f} on average, {min(found):.0f} to {max(found):.0f} in {_DRAWS} draws"
    within = f"{here}; one draw in the paper"
    printed = cells.get("1", "uneven (a picture)")
    agrees = min(found) <= float(printed) <= max(found) if "1" in cells else middle > 0
    yield Fact("with restarting pools, std of class totals", printed, within, agrees)
    whole = iid(clients=100).split(balanced(classes), 0)
    counts = torch.bincount(balanced(classes)[whole.indices], minlength=classes)
    even = float(counts.double().std(correction=0))
    yield Fact(
        "every sample once, std of class totals", cells.get("0", "0"), f"{even:g}", even == 0
    )


def _class_shares(entry: Entry) -> Iterator[Fact]:
    """Figure 5: Dirichlet 0.6, and 30 classes a client of CIFAR-100."""
    labels = balanced(100)
    made = (
        ("Dirichlet 0.6: classes of a client", "most of 100", dirichlet_recycled(0.6, clients=100)),
        ("pathological 30: classes of a client", "30", pathological(30, clients=100)),
    )
    for what, printed, partition in made:
        lists = partition.split(labels, 0)
        held = [len(set(labels[lists.of(i)].tolist())) for i in range(lists.count)]
        here = f"{sum(held) / len(held):.1f} on average, {min(held)} to {max(held)}"
        agrees = max(held) <= 30 if printed == "30" else min(held) > 30
        yield Fact(what, printed, here, agrees)


_CHECKS: dict[str, Callable[[Entry], Iterator[Fact]]] = {
    "sketch": _sketch,
    "layers": _layers,
    "complexity": _complexity,
    "grids": _grids,
    "data_sets": _data_sets,
    "class_totals": _class_totals,
    "class_shares": _class_shares,
}
