"""Which parts work together: decided by making a plan of them, without training.

Every cell is a Plan that is really made; its error is the reason. The contract suite tests that the
allowed combinations run in every engine.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from ..aggregation import AGGREGATIONS
from ..algorithms.registry import ALGORITHMS, make_algorithm
from ..compression.codecs import CODECS
from ..compression.error_feedback import FEEDBACKS
from ..compression.link import FieldCodec, Link
from ..core.net import Net
from ..errors import CompositionError, ConfigError, unknown
from ..federation.local import Local
from ..models import MODELS
from ..objectives import OBJECTIVES, Needs
from ..plan import Plan, Setting
from ..submodels import SUBMODELS
from ..wrappers.registry import SERVERS, with_server

NOTHING = "none"
# parts around a method's step, as settings of `local`
LOCALS: dict[str, dict[str, Any]] = {
    "sgd": {},
    "momentum": {"momentum": 0.9},
    "adam": {"optimiser": "adam"},
    "adamw": {"optimiser": "adamw", "weight_decay": 0.01},
    "sam": {"sam": 0.1},
    "clip": {"clip": 10.0},
    "weight_decay": {"weight_decay": 0.001},
}
# one codec of each kind with every error feedback: biased, random, unbiased, of whole layers; the
# others with their default
_KINDS = ("topk", "dropping", "qsgd", "powersgd")
LINKS = [
    "dense",
    *(f"{codec}, {feedback}" for codec in _KINDS for feedback in FEEDBACKS),
    *(f"{n}, {c.feedback}" for n, c in CODECS.items() if n not in ("dense", *_KINDS)),
]
_OWN_DATA = (Needs.TEXT_ORDER, Needs.SURVIVAL, Needs.PIXELS)
# the exponent that discounts older updates, of each clock; None: there are no older ones
_STALENESS = {"synchronous": None, "asynchronous": 0.5, "asynchronous, staleness 0": 0.0}


class Side(NamedTuple):
    """The rows or the columns of a table: what they are, their names, and how to ask for one."""

    words: str
    names: tuple[str, ...]
    line: str


_LINK = Side("compression with feedback", tuple(LINKS), "compress=CODEC compress.feedback=FEEDBACK")
_ROWS = {
    "algorithm": Side("algorithm", tuple(ALGORITHMS), "algorithm=ROW"),
    "submodel": Side("sub-models", tuple(SUBMODELS), "submodel=ROW"),
    "compress": _LINK,
}
_COLUMNS = {
    # one that needs a text, times or pixels needs a model and data of its own
    "objective": Side(
        "objective",
        tuple(n for n, make in OBJECTIVES.items() if make.needs not in _OWN_DATA),
        "objective=COLUMN",
    ),
    "server": Side("server optimiser, or look-ahead", (NOTHING, *SERVERS), "server=COLUMN"),
    "local": Side(
        "what stands around its local step",
        tuple(LOCALS),
        "local.optimiser=adam, local.momentum=0.9, local.sam=0.1, ...",
    ),
    "dp": Side("private examples", (NOTHING, "local.dp"), "local.dp.noise=1"),
    "submodel": Side("sub-models", (NOTHING, *SUBMODELS), "submodel=COLUMN"),
    "compress": _LINK,
    "clock": Side("clock", tuple(_STALENESS), "clock=COLUMN, or with clock.staleness=0"),
    "aggregation": Side("aggregation", tuple(AGGREGATIONS), "aggregation=COLUMN weighting=uniform"),
}


@dataclass(frozen=True)
class Axis:
    """The table of such rows and columns; rows, columns: by the names of their settings."""

    rows: str
    columns: str

    @property
    def names(self) -> tuple[str, ...]:
        """The columns."""
        return _COLUMNS[self.columns].names

    @property
    def title(self) -> str:
        """The heading."""
        words = f"{_ROWS[self.rows].words} and {_COLUMNS[self.columns].words}"
        return words.capitalize() + (", around FedAvg" if self.rows != "algorithm" else "")

    @property
    def line(self) -> str:
        """How to ask for a pair."""
        return f"{_ROWS[self.rows].line} {_COLUMNS[self.columns].line}"


_OF_ALGORITHMS = ("objective", "server", "local", "dp", "submodel", "compress")
AXES = {
    **{columns: Axis("algorithm", columns) for columns in _OF_ALGORITHMS},
    "submodel_compress": Axis("submodel", "compress"),
    "clock": Axis("algorithm", "clock"),
    "aggregation": Axis("algorithm", "aggregation"),
    "submodel_aggregation": Axis("submodel", "aggregation"),
    "compress_aggregation": Axis("compress", "aggregation"),
}


@dataclass(frozen=True)
class Table:
    """reasons: {(row, column): why it is refused}; allowed pairs are absent."""

    axis: Axis
    rows: tuple[str, ...]
    reasons: Mapping[tuple[str, str], str]


def table(name: str) -> Table:
    """Try every pair of an axis. Raises ConfigError for an unknown axis.

    >>> result = table("local")
    >>> result.reasons["scaffold", "momentum"].partition(":")[0]
    'local.momentum and Scaffold'
    """
    if name not in AXES:
        raise ConfigError(unknown("axis", name, AXES))
    axis = AXES[name]
    with torch.random.fork_rng(devices=[]):  # it has named blocks, features, layers to be sliced
        net = Net(MODELS["mlp"]())
    reasons = {}
    for row, column in itertools.product(_ROWS[axis.rows].names, axis.names):
        try:
            _make(name, row, column, net)
        except CompositionError as error:
            reasons[row, column] = str(error)
    return Table(axis, _ROWS[axis.rows].names, reasons)


def _make(axis: str, row: str, column: str, net: Net) -> None:
    """Make the plan of a row and a column; what neither names is FedAvg's. Raises
    CompositionError.
    """
    pair = {AXES[axis].rows: row, AXES[axis].columns: column}
    algorithm, parts = make_algorithm(pair.get("algorithm", "fedavg")), dict[str, Any]()
    objective = pair.get("objective", "cross_entropy")
    if pair.get("server", NOTHING) != NOTHING:
        algorithm = with_server(algorithm, column, {})
    if "local" in pair:
        algorithm = Local(**LOCALS[column]).around(algorithm)
    if pair.get("submodel", NOTHING) != NOTHING:
        submodel = parts["submodel"] = SUBMODELS[pair["submodel"]]()
        objective = "self_distillation" if submodel.trains is Needs.EXITS else objective
    elif OBJECTIVES[objective].needs is Needs.DRAWN_PARTS:
        parts["submodel"] = SUBMODELS["fjord"]()
    if "compress" in pair:
        codec, _, feedback = pair["compress"].partition(", ")
        parts["link"] = Link(FieldCodec(CODECS[codec](), FEEDBACKS[feedback or "forget"]()))
    if pair.get("dp", NOTHING) != NOTHING:
        parts["setting"] = Setting(dp=True)
    if "clock" in pair:
        parts["setting"] = Setting(staleness=_STALENESS[column])
    if "aggregation" in pair:
        parts["aggregation"] = AGGREGATIONS[column]()
    plan = Plan(algorithm, OBJECTIVES[objective](), d=net.layout.d, **parts)
    if "objective" in pair and plan.objective.needs is not Needs.EXITS:  # those need another model
        plan.objective.check(net, torch.zeros(2, 64))


# ---------------------------------------------------------------------------------------- to read
def notes(result: Table) -> dict[str, int]:
    """{reason, without the names before it: its number}, in the order of the table."""
    numbers: dict[str, int] = {}
    for row in result.rows:
        for column in result.axis.names:
            if (row, column) in result.reasons:
                numbers.setdefault(_why(result.reasons[row, column]), len(numbers) + 1)
    return numbers


def cells(result: Table) -> Iterator[list[str]]:
    """Head and rows of a table: "ok", or "no" with the number of its reason."""
    numbers = notes(result)
    yield [result.axis.rows, *result.axis.names]
    for row in result.rows:
        whys = (result.reasons.get((row, column)) for column in result.axis.names)
        yield [row, *("ok" if why is None else f"no ({numbers[_why(why)]})" for why in whys)]


def _why(reason: str) -> str:
    return reason.partition(": ")[2]


def as_markdown() -> str:
    """The page docs/compatibility.md."""
    out = [
        "# What goes with what",
        "",
        "`fedloom list --compatibility --out docs/compatibility.md` makes this page from the "
        "checks of a run. `ok` runs in every engine; `no` is refused",
        "in one line, for the reason below the table. A run also checks what a part needs of data "
        "and model: labels for cross-entropy,",
        "numbers for the squared error, named blocks for FedMLB, layers that can be cut for "
        "HeteroFL, exits for ScaleFL.",
        "Here ScaleFL has its objective, self_distillation, and FjORD ordered_distillation.",
    ]
    for name in AXES:
        result = table(name)
        head, *rows = cells(result)
        out += ["", f"## {result.axis.title}", "", f"`fedloom run {result.axis.line}`", ""]
        out += [_row(head), _row(["---"] * len(head)), *map(_row, rows)]
        if numbers := notes(result):
            out += ["", *(f"{number}. {why}" for why, number in numbers.items())]
    return "\n".join(out) + "\n"


def _row(values: list[str]) -> str:
    return f"| {' | '.join(values)} |"
