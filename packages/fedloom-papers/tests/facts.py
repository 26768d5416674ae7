"""What needs no run: what the package does beside what the paper prints, and what a protocol
amounts to.
"""

from __future__ import annotations

import ast
import contextlib
import math
from typing import NamedTuple

import torch
from torch import nn

from fedloom.algorithms.registry import ALGORITHMS, make_algorithm
from fedloom.config import resolve
from fedloom.core.vector import fields, rec
from fedloom.data import SOURCES, dirichlet_recycled, iid, pathological
from fedloom.errors import DataError
from fedloom.models import MODELS
from fedloom_papers.catalogue import ENTRIES, entries_of
from fedloom_papers.plan import changes_of

_MODEL = {
    ("fafed", "3"): "cnn_fafed_mnist",
    ("fafed", "4"): "cnn_fafed_fashion",
    ("fafed", "5"): "cnn_fafed_cifar",
    ("cfedavg", "1"): "cnn_cfedavg",
}
_printed = lambda cell: cell.text or ("" if cell.value is None else f"{cell.value:g}")
_grids = lambda entry: (_fiarse_grid if entry.paper == "fiarse" else _fedsmoo_grid)(entry)


def facts(entry):
    """Yield what is compared, as the paper prints it, and as it is here."""
    return _CHECKS[entry.fact](entry)


def _sketch(entry):
    """Nothing to compare."""
    return ()


def _data_sets(entry):
    """Counts of the copies here; without a copy nothing is compared."""
    for dataset, name in (("CIFAR-10", "cifar10"), ("CIFAR-100", "cifar100")):
        with contextlib.suppress(DataError):
            data = SOURCES[name](partition=iid(clients=1), download=False)
            here = {"n_train": len(data.inputs), "n_test": len(data.test_inputs)}
            size = "x".join(map(str, data.inputs.shape[1:]))
            here |= {"n_classes": data.classes, "input_size": size}
            for cell in (cell for cell in entry.cells() if cell.dataset == dataset):
                yield f"{dataset}, {cell.metric}", _printed(cell), str(here[cell.metric])


# ------------------------------ networks
def _layers(entry):
    """The layers of the network, one by one; the head gives logits whatever is printed."""
    layers, cells = layers_of(MODELS[_MODEL[entry.paper, entry.name]]()), entry.cells()
    yield "layers", len(cells), len(layers)
    for (kind, shape, active), cell in zip(layers, cells, strict=True):
        printed, wanted = _printed(cell), cell.setting["activation"]
        if "x" not in printed:
            shape = shape.partition("x")[2]
        if cell is cells[-1] and active == "none":
            active = wanted
        yield cell.setting["layer"], (cell.setting["type"], printed, wanted), (kind, shape, active)


def layers_of(model):
    """(type, shape, activation) of every convolution, pool and linear layer, in their order."""
    out, weighted = [], -1
    for m in model.modules():
        if isinstance(m, nn.Conv2d | nn.Linear):
            weighted = len(out)
        if isinstance(m, nn.Conv2d):
            out.append(["conv", f"{m.kernel_size[0]}x{m.kernel_size[1]}x{m.out_channels}", "none"])
        elif isinstance(m, nn.Linear):
            out.append(["fc", f"{m.in_features}x{m.out_features}", "none"])
        elif isinstance(m, nn.MaxPool2d):
            out.append(["maxpool", f"{m.kernel_size}x{m.kernel_size}", "none"])
        elif isinstance(m, nn.ReLU | nn.Tanh):
            out[weighted][2] = type(m).__name__.lower()
    return out


def _complexity(entry):
    """Whether a method adapts its rates is seen from the server's state; orders are theory."""
    names = {ALGORITHMS.label(name): name for name in ALGORITHMS}
    zero = torch.zeros(2)
    for cell in entry.cells():
        if cell.metric == "adaptive":
            made = make_algorithm(names[cell.method])
            state = fields(made.server_init(zero, rec(m=zero, v=zero)))
            adapts = any(key.rpartition(".")[2] == "v" for key in state)
            yield cell.method, _printed(cell) == "yes", adapts


# ------------------------------ grids
def _fiarse_grid(entry):
    protocols = {p.dataset: p for e in entries_of("fiarse") for p in reversed(e.protocols)}
    row = next(r for e in entries_of("fiarse") for r in e.rows if r.method == "FIARSE")
    listed = lambda numbers: "{" + ", ".join(map(str, numbers)) + "}"
    log10 = lambda rate: round(torch.tensor(rate, dtype=torch.float64).log10().item())
    for cell in entry.cells():
        protocol = protocols[cell.dataset]
        # the transformer of RoBERTa's size needs a download: the settings do not
        values = resolve(protocol.recipe, changes_of(protocol, row, "paper")).values
        local, grid = values["local"], {**row.grid, **protocol.grid}
        text = cell.dataset == "AGNews"
        momenta = f"{{(0.9, {local.get('beta2')})}}" if text else listed(grid["local.momentum"])
        here = {
            "local_epochs": f"{local['epochs']:g}",
            "batch_size": str(local["batch"]),
            "rounds": str(values["rounds"]),
            "optimizer": {"sgd": "SGD", "adamw": "AdamW"}[local["optimiser"]],
            "learning_rate_log10": listed(map(log10, grid["local.lr"])),
            "momentum_or_betas": momenta,
        }
        yield f"{cell.dataset}, {cell.metric}", _printed(cell), here[cell.metric]


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


def _fedsmoo_grid(entry):
    table = ENTRIES["fedsmoo:1"]
    rows = {row.key: row for row in table.rows}
    for cell in entry.cells():
        option, printed = cell.setting["option"], _printed(cell)
        what = f"{cell.method}, {option}, {cell.metric}"
        plain, setting = cell.method == "SGD-type", _OPTIONS[option]
        row = rows[_SHOWN.get(option, "fedavg") if plain else "fedsmoo"]
        if printed == "-" or (cell.metric == "search_grid" and option == "lr_global"):
            continue  # not a setting of these methods, or not searched here
        if cell.metric == "search_grid":
            printed_grid = {float(v) for v in ast.literal_eval(printed)}
            yield what, printed_grid, {*row.grid.get(setting, ())}
        elif option == "lr_global" and not plain:
            yield what, float(printed), 1.0  # by definition
        else:
            value = resolve(table.protocols[0].recipe, changes_of(table.protocols[0], row, "paper"))
            value = value.values
            for key in setting.split("."):
                value = value[key]
            yield what, float(printed), value


# ------------------------------ partitions
def balanced(classes, samples=50_000):
    """Labels (n,) as often as CIFAR's: equally many of each class; no images are needed."""
    return torch.arange(samples) % classes


def class_total_sd(classes, partition, seed):
    """The standard deviation over the classes of how many samples 100 clients hold."""
    labels = balanced(classes)
    counts = torch.bincount(labels[partition.split(labels, seed).indices], minlength=classes)
    return float(counts.double().std(correction=0))


def _class_totals(entry):
    classes = 10 if entry.tables else 100
    cells = {c.setting["replacement"]: _printed(c) for c in entry.cells()}
    pools = dirichlet_recycled(0.1, clients=100)
    drawn = [class_total_sd(classes, pools, seed) for seed in range(8)]
    printed = float(cells["1"]) if "1" in cells else sum(drawn) / 8  # else a picture
    yield "with restarting pools", True, 0 < min(drawn) <= printed <= max(drawn)
    even = class_total_sd(classes, iid(clients=100), 0)
    yield "every sample once", float(cells.get("0", "0")), even


def _class_shares(entry):
    """Figure 5: of CIFAR-100 Dirichlet 0.6, most of its classes, and 30 classes a client."""
    labels = balanced(100)
    for partition, within in (
        (dirichlet_recycled(0.6, clients=100), range(31, 101)),
        (pathological(30, clients=100), range(31)),
    ):
        lists = partition.split(labels, 0)
        held = [len({*labels[lists.of(i)].tolist()}) for i in range(lists.count)]
        yield type(partition).__name__, True, all(count in within for count in held)


_CHECKS = {
    "sketch": _sketch,
    "data_sets": _data_sets,
    "layers": _layers,
    "complexity": _complexity,
    "grids": _grids,
    "class_totals": _class_totals,
    "class_shares": _class_shares,
}

# ------------------------------ protocols
SETS = {  # training samples
    "mnist": 60_000,
    "fashion_mnist": 60_000,
    "cifar10": 50_000,
    "cifar100": 50_000,
    "tiny_imagenet": 100_000,
    "wikitext2": 2_088_628 // 35,
    "ag_news": 120_000,
}


class Work(NamedTuple):
    """clients: of all; active: of a round; each: training samples of a client; steps: local steps
    of a client in a round.
    """

    clients: int
    active: int
    each: float
    steps: int
    rounds: int


def work(values):
    """The work of a complete configuration, by arithmetic from its settings."""
    data, local = values["data"], values["local"]
    training = SETS[data["name"]]
    if data.get("part") == "valid":
        training = 217_646 // data["length"]
    clients = int(data["partition"]["clients"])
    each = min(training / clients, data["partition"].get("samples") or training)
    there, cohort = values.get("churn", {}).get("active", clients), values["cohort"]
    active = round(cohort * there) if isinstance(cohort, float) else int(cohort)
    per_epoch = math.ceil(each / (local.get("batch") or each) - 1e-9)
    steps = local.get("steps") or math.ceil(local["epochs"] * per_epoch - 1e-9)
    return Work(clients, active, each, steps, values["rounds"])
