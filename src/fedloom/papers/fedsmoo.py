"""FedSMOO (Sun et al., ICML 2023): Tables 1 to 8, Figures 1 to 10."""

from __future__ import annotations

from typing import Any

from .entry import Claim, Entry, Paper, Protocol, Row

# Table 5: what was searched, for methods of plain steps and for those with a dual ("proxy")
GRIDS = {
    "SGD-type": {
        "lr_local": (0.01, 0.1, 0.5),
        "lr_global": (0.1, 1.0),
        "sam_radius": (0.001, 0.01, 0.1),
        "lr_decay": (0.995, 0.998, 0.9995),
        "alpha": (0.05, 0.1, 0.5),
    },
    "proxy-type": {
        "lr_local": (0.01, 0.1, 0.5),
        "lr_global": (0.1, 1.0),
        "sam_radius": (0.01, 0.1, 1.0),
        "lr_decay": (0.998, 0.9995, 0.99995),
        "beta": (1.0, 10.0, 100.0),
    },
}
_RATES = {"local.lr": (0.01, 0.1, 0.5), "local.schedule.decay": GRIDS["SGD-type"]["lr_decay"]}
_DUAL_RATES = _RATES | {"local.schedule.decay": GRIDS["proxy-type"]["lr_decay"]}

_SPLITS = {"c10": ("u0.6", "u0.1", "c6", "c3"), "c100": ("u0.6", "u0.1", "c20", "c10")}

# ----------------------------------------------------------------------------------------- methods
_SLOW = "local.schedule.decay=0.9995"
_FEDAVG = Row(method="FedAvg", changes="algorithm=fedavg", grid=_RATES)
_FEDDYN = Row(
    method="FedDyn",
    changes=f"algorithm=feddyn algorithm.alpha=0.1 {_SLOW}",
    on={"CIFAR-100": "algorithm.alpha=0.01"},  # beta = 100
    grid=_DUAL_RATES | {"algorithm.alpha": (1.0, 0.1, 0.01)},
)
_FEDSAM = Row(
    method="FedSAM",
    changes="algorithm=fedsam algorithm.rho=0.01",
    grid=_RATES | {"algorithm.rho": GRIDS["SGD-type"]["sam_radius"]},
)
_MOFEDSAM = Row(
    method="MoFedSAM",
    changes="algorithm=mofedsam algorithm.alpha=0.1 algorithm.rho=0.01",
    grid=_RATES
    | {
        "algorithm.alpha": GRIDS["SGD-type"]["alpha"],
        "algorithm.rho": GRIDS["SGD-type"]["sam_radius"],
    },
)
_OWN_GRID = _DUAL_RATES | {
    "algorithm.beta": GRIDS["proxy-type"]["beta"],
    "algorithm.rho": GRIDS["proxy-type"]["sam_radius"],
}
_FEDSMOO = Row(
    method="FedSMOO",
    changes=f"algorithm=fedsmoo algorithm.rho=0.1 algorithm.beta=10 {_SLOW}",
    on={"CIFAR-100": "algorithm.beta=100"},
    grid=_OWN_GRID,
)
_ALL = (
    _FEDAVG,
    Row(
        method="FedAdam",
        changes="algorithm=fedadam algorithm.server_lr=0.1 algorithm.tau=0.01 algorithm.v0=0.0",
        grid=_RATES,
    ),
    Row(method="SCAFFOLD", changes="algorithm=scaffold", grid=_RATES),
    Row(
        method="FedCM",
        changes="algorithm=fedcm algorithm.alpha=0.1",
        grid=_RATES | {"algorithm.alpha": GRIDS["SGD-type"]["alpha"]},
    ),
    _FEDDYN,
    _FEDSAM,
    _MOFEDSAM,
    _FEDSMOO,
)
# no printed cell; their README's batch is 25 where a client has 250 images
_RELEASED = Row(
    method="FedSMOO as released",
    changes="algorithm=fedsmoo algorithm.rho=0.1 algorithm.beta=10 local.clip_pull=false "
    "local.schedule.decay=0.998 sampling=bernoulli",
    on={"CIFAR-100": "local.epochs=5 local.batch=50"}
    | {f"{name}@paper": "rounds=1000" for name in ("CIFAR-10", "CIFAR-100")}
    | {
        f"{data}-200-{split}": "local.batch=25"
        for data, splits in _SPLITS.items()
        for split in splits
    },
)
_STEPWISE = (
    _FEDAVG,
    _FEDDYN,
    Row(
        method="FedDyn+SAM",
        changes=f"{_FEDSMOO.changes} algorithm.correction=false",
        on=_FEDSMOO.on,
    ),
    _FEDSMOO,
)

# --------------------------------------------------------------------------------------- protocols
CPU = (
    "ResNet-8 with GroupNorm in place of ResNet-18 with the 7 x 7 stem, 100 rounds in place of "
    "800, tested every 2; data, partition, participation, local work, decay and clip are the "
    "paper's"
)
_SMOKE = (
    "rounds=2 cohort=0.2 engine=serial device=cpu model=mlp model.hidden=[32] data=digits "
    "data.clients=20 local.epochs=1 local.batch=32"
)
_SETS = {"c10": ("CIFAR-10", "cifar10", 10), "c100": ("CIFAR-100", "cifar100", 100)}


def _images(data: str, clients: int, split: str) -> Protocol:
    """split: u0.6 is Dirichlet with u = 0.6, c3 three classes a client."""
    dataset, recipe, classes = _SETS[data]
    kind, value = split[0], split[1:]
    partition = "dirichlet_recycled" if kind == "u" else "pathological"
    option = f"data.alpha={value}" if kind == "u" else f"data.classes={value}"
    word = "dirichlet" if kind == "u" else "pathological"
    digits = f"data.classes={min(int(value), 6)}" if kind == "c" else option
    share = 0.1 if clients == 100 else 0.05
    return Protocol(
        name=f"{data}-{clients}-{split}",
        recipe=f"fedsmoo_{recipe}",
        dataset=dataset,
        setting=f"clients={clients};participation={share};partition={word};{kind}={value}",
        changes=f"data.partition={partition} {option} data.clients={clients} cohort={share}",
        cpu=f"model=resnet8 model.classes={classes} rounds=100 evaluate.every=2",
        smoke=f"{_SMOKE} data.partition={partition} {digits}",
    )


def _column(data: str, clients: int, *splits: str) -> tuple[Protocol, ...]:
    return tuple(_images(data, clients, split) for split in splits or _SPLITS[data])


_TABLE1 = tuple(p for n in (100, 200) for data in _SETS for p in _column(data, n))
_HARD = tuple(
    p
    for n in (100, 200)
    for p in (*_column("c10", n, "u0.1", "c3"), *_column("c100", n, "u0.1", "c10"))
)
_C3 = _column("c10", 100, "c3")
_U1 = _column("c10", 100, "u0.1")

# ------------------------------------------------------------------------------------------ claims
_LAST: dict[str, Any] = {"metric": "test_acc_pct", "at": "round=800"}
_RIVALS = tuple(r.key for r in _ALL if r.method != "FedSMOO")
_UNEVEN = tuple(p.name for p in _TABLE1 if p.name not in ("c100-100-u0.6", "c100-200-u0.6"))
# the text: on average; printed are 40.22 and 40.41 in the one that is left out
_SHARPER = tuple(p.name for p in _TABLE1 if p.name != "c100-200-u0.1")
_FIRST = Claim(
    text="FedSMOO is above every other method",
    better=("fedsmoo",),
    than=_RIVALS,
    protocols=_UNEVEN,
    **_LAST,
)
_SLOWEST: dict[str, Any] = {"metric": "rounds_to_acc", "at": "acc=74"}
_OPEN = (
    "Two runs per cell in the paper. Printed is the value after the last round; the authors' code "
    "takes the best round.",
    "At the last round; the first round that reaches a target is read from the raw curve.",
    "Released code: arithmetic may be TF32; here local.precision = full.",
    "Released code: each client comes with a probability (sampling=bernoulli), 1,000 rounds, decay "
    "0.998 for FedSMOO too; the clip leaves +x / beta out (local.clip_pull=false).",
    "Released code: SCAFFOLD, FedCM and MoFedSAM divide every client's move by the first client's "
    "E n_0 / batch steps; here by its own.",
)


_of = Paper(name="fedsmoo", cpu=CPU, raw=True, opens=_OPEN).entry


def _values(word: str, setting: str, values: tuple[str, ...]) -> tuple[Row, ...]:
    return tuple(
        Row(method="FedSMOO", label=f"{word} {v}", changes=f"{_FEDSMOO.changes} {setting}={v}")
        for v in values
    )


_SWEPT = (
    *_values("K", "local.steps", ("10", "25", "50", "100")),
    *_values("decay", "local.schedule.decay", ("0.998", "0.9995", "0.99995")),
    *_values("beta", "algorithm.beta", ("1", "10", "100")),
    *_values("r", "algorithm.rho", ("0.01", "0.1", "1")),
)
_FLAT = ("client_divergence", "hessian_top_eigenvalue", "hessian_trace")
_SURFACE = ("loss_sharpness range=1",)
_LOSSES = tuple(f"{kind} round={t}" for kind in ("train_loss", "test_loss") for t in (200, 800))
_CURVE = tuple(f"test_acc_pct round={t}" for t in (200, 400, 600, 800))
_AHEAD = Claim(text="FedSMOO's curve ends above the others'", better=("fedsmoo",), **_LAST)
_LOWER = Claim(
    text="FedSMOO's training loss ends below the others'",
    better=("fedsmoo",),
    metric="train_loss",
    at="round=800",
)


def _steps() -> tuple[Claim, ...]:
    names = [row.key for row in _STEPWISE]
    words = ("dynamic regularisation", "SAM", "the correction of the perturbation")
    return tuple(
        Claim(text=f"{word} helps", better=(after,), than=(before,), **_LAST)
        for word, before, after in zip(words, names, names[1:], strict=False)
    )


def _fact(name: str, title: str, fact: str, *tables: str) -> Entry:
    return Entry(paper="fedsmoo", name=name, title=title, tables=tables, fact=fact)


ENTRIES = (
    _fact("fig1", "sketch of a flat minimum", "sketch"),
    _fact("fig2", "class totals with and without replacement, CIFAR-10", "class_totals", "fig2"),
    _of(
        "1",
        "8 methods, four partitions, 100 and 200 clients",
        (*_ALL, _RELEASED),
        _TABLE1,
        _FIRST,
        Claim(
            text="MoFedSAM is above FedSMOO on even CIFAR-100",
            better=("mofedsam",),
            than=("fedsmoo",),
            protocols=("c100-100-u0.6", "c100-200-u0.6"),
            **_LAST,
        ),
        Claim(
            text="FedSAM is above FedAvg",
            better=("fedsam",),
            than=("fedavg",),
            protocols=_SHARPER,
            **_LAST,
        ),
        tables=("1",),
        measures=("test_acc_pct round=800",),
        notes=(
            "FedSMOO as released is not in the paper: docs/as-released.md has its settings, at "
            "scale paper with 1,000 rounds.",
        ),
    ),
    _of(
        "2",
        "divergence of clients and curvature, FedSAM and FedSMOO",
        (_FEDSAM, _FEDSMOO),
        _column("c10", 100, "u0.6", "u0.1"),
        *(
            Claim(
                text=f"FedSMOO's {words} is lower",
                better=("fedsmoo",),
                metric=metric,
                at="final model",
            )
            for words, metric in (
                ("divergence", _FLAT[0]),
                ("largest eigenvalue", _FLAT[1]),
                ("trace", _FLAT[2]),
            )
        ),
        tables=("2",),
        notes=("Divergence is from the model after aggregation, as in the code.",),
    ),
    _of(
        "fig3",
        "loss surface around the final model",
        (_FEDAVG, _ALL[2], _MOFEDSAM, _FEDSMOO),
        _U1,
        Claim(
            text="FedSMOO's surface is flattest",
            better=("fedsmoo",),
            metric="loss_sharpness",
            at="range=1",
        ),
        measures=_SURFACE,
        notes=("The surface is a picture: `fedloom measure` draws it for any run.",),
    ),
    _of(
        "fig4",
        "FedSMOO's interval K, decay, beta and r",
        _SWEPT,
        _U1,
        Claim(text="a small beta is harmful", better=("beta-10",), than=("beta-1",), **_LAST),
        measures=("test_acc_pct round=800",),
    ),
    _of(
        "3",
        "rounds and traffic to 74 %, three classes a client",
        _ALL,
        _C3,
        Claim(text="FedSMOO needs the fewest rounds", better=("fedsmoo",), **_SLOWEST),
        Claim(
            text="FedSMOO sends the least",
            better=("fedsmoo",),
            metric="comm_cost_in_V",
            at="acc=74",
        ),
        tables=("3",),
        notes=("Traffic as the paper counts it (FedCM and MoFedSAM 2 x FedAvg's, here 1.5).",),
    ),
    _fact("4", "data sets", "data_sets", "4"),
    _fact("fig5", "shares of classes by client, CIFAR-100", "class_shares"),
    _fact("fig6", "class totals with and without replacement, CIFAR-100", "class_totals"),
    _fact("5", "search grids and best values", "grids", "5"),
    *(
        _of(
            f"fig{number}",
            f"{what} by round, CIFAR-10, {n} clients",
            _ALL,
            _column("c10", n),
            claim,
            measures=measures,
        )
        for number, what, n, claim, measures in (
            (7, "accuracy", 100, _AHEAD, _CURVE),
            (8, "losses", 100, _LOWER, _LOSSES),
            (9, "accuracy", 200, _AHEAD, _CURVE),
            (10, "losses", 200, _LOWER, _LOSSES),
        )
    ),
    _of(
        "6",
        "rounds to two accuracies",
        _ALL,
        _HARD,
        *(
            Claim(
                text=f"FedSMOO is the first at {acc} %",
                better=("fedsmoo",),
                metric="rounds_to_acc",
                at=f"acc={acc}",
                protocols=names,
            )
            for acc, names in (
                (74, tuple(p.name for p in _HARD if p.dataset == "CIFAR-10")),
                (43, ("c100-100-u0.1",)),
                (40, ("c100-100-c10",)),
                (38, ("c100-200-c10",)),
            )
        ),
        tables=("6",),
        notes=("Four cells contradict Table 1; see docs/papers.md.",),
    ),
    _of(
        "7",
        "seconds to 74 %, three classes a client",
        _ALL,
        _C3,
        Claim(
            text="FedSMOO takes the least time",
            better=("fedsmoo",),
            metric="total_time_s",
            at="acc=74",
        ),
        tables=("7",),
        notes=("One A100 in the paper: only ratios compare.",),
    ),
    _of("8", "FedSMOO's parts, three classes a client", _STEPWISE, _C3, *_steps(), tables=("8",)),
)
