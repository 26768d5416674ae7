"""Which parts work together: decided by making a plan of them, without training.

Every cell is a Plan that is really made; its error is the reason. The contract suite tests that the
allowed combinations run in every engine.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
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
_LINKS = (
    "dense",
    *(f"{codec}, {feedback}" for codec in _KINDS for feedback in FEEDBACKS),
    *(f"{n}, {c.feedback}" for n, c in CODECS.items() if n not in ("dense", *_KINDS)),
)
_OWN_DATA = (Needs.TEXT_ORDER, Needs.SURVIVAL, Needs.PIXELS)  # and a model of their own
# the exponent that discounts older updates, of each clock; None: there are no older ones
_STALENESS = {"synchronous": None, "asynchronous": 0.5, "asynchronous, staleness 0": 0.0}

_NAMES: dict[str, tuple[str, ...]] = {  # of rows or columns, by what they are
    "algorithm": tuple(ALGORITHMS),
    "objective": tuple(n for n, make in OBJECTIVES.items() if make.needs not in _OWN_DATA),
    "server": (NOTHING, *SERVERS),
    "local": tuple(LOCALS),
    "dp": (NOTHING, "local.dp"),
    "submodel": tuple(SUBMODELS),
    "compress": _LINKS,
    "clock": tuple(_STALENESS),
    "aggregation": tuple(AGGREGATIONS),
}
_WORDS = {
    "server": "server optimiser, or look-ahead",
    "local": "what stands around its local step",
    "dp": "private examples",
    "submodel": "sub-models",
    "compress": "compression with feedback",
}


class Axis(NamedTuple):
    """The table of some rows and columns, by what they are; names: of the columns."""

    rows: str
    columns: str
    names: tuple[str, ...]

    @property
    def title(self) -> str:
        """What stands above the table."""
        rows, columns = (_WORDS.get(side, side) for side in (self.rows, self.columns))
        return f"{rows} and {columns}".capitalize() + ", around FedAvg" * (self.rows != "algorithm")


def _axis(rows: str, columns: str) -> Axis:
    nothing = [NOTHING] * (columns == "submodel")
    return Axis(rows, columns, (*nothing, *_NAMES[columns]))


_OF_ALGORITHMS = ("objective", "server", "local", "dp", "submodel", "compress")
AXES = {
    **{columns: _axis("algorithm", columns) for columns in _OF_ALGORITHMS},
    "submodel_compress": _axis("submodel", "compress"),
    "clock": _axis("algorithm", "clock"),
    "aggregation": _axis("algorithm", "aggregation"),
    "submodel_aggregation": _axis("submodel", "aggregation"),
    "compress_aggregation": _axis("compress", "aggregation"),
}


class Table(NamedTuple):
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
    rows = _NAMES[axis.rows]
    with torch.random.fork_rng(devices=[]):  # it has named blocks, features, layers to be sliced
        net = Net(MODELS["mlp"]())
    reasons = {}
    for row, column in itertools.product(rows, axis.names):
        try:
            _check({axis.rows: row, axis.columns: column}, net)
        except CompositionError as error:
            reasons[row, column] = str(error)
    return Table(axis, rows, reasons)


def _check(pair: Mapping[str, str], net: Net) -> None:
    """Make the plan of a row and a column around FedAvg. Raises CompositionError."""
    pair = {key: name for key, name in pair.items() if name != NOTHING}
    algorithm, parts = make_algorithm(pair.get("algorithm", "fedavg")), dict[str, Any]()
    objective = pair.get("objective", "cross_entropy")
    if "server" in pair:
        algorithm = with_server(algorithm, pair["server"], {})
    if "local" in pair:
        algorithm = Local(**LOCALS[pair["local"]]).around(algorithm)
    if "submodel" in pair:
        submodel = parts["submodel"] = SUBMODELS[pair["submodel"]]()
        objective = "self_distillation" if submodel.trains is Needs.EXITS else objective
    elif OBJECTIVES[objective].needs is Needs.DRAWN_PARTS:
        parts["submodel"] = SUBMODELS["fjord"]()
    if "compress" in pair:
        codec, _, feedback = pair["compress"].partition(", ")
        parts["link"] = Link(FieldCodec(CODECS[codec](), FEEDBACKS[feedback or "forget"]()))
    if "dp" in pair:
        parts["setting"] = Setting(dp=True)
    if "clock" in pair:
        parts["setting"] = Setting(staleness=_STALENESS[pair["clock"]])
    if "aggregation" in pair:
        parts["aggregation"] = AGGREGATIONS[pair["aggregation"]]()
    plan = Plan(algorithm, OBJECTIVES[objective](), d=net.layout.d, **parts)
    if "objective" in pair and plan.objective.needs is not Needs.EXITS:  # those need another model
        plan.objective.check(net, torch.zeros(2, 64))


# ---------------------------------------------------------------------------------------- to read
def cells(result: Table) -> tuple[list[list[str]], list[str]]:
    """-> head and rows of a table, "ok" or "no" with the number of its reason; the reasons."""
    whys = {pair: reason.partition(": ")[2] for pair, reason in result.reasons.items()}
    numbers = {why: n for n, why in enumerate(dict.fromkeys(whys.values()), 1)}

    def line(row: str) -> Iterator[str]:
        for column in result.axis.names:
            why = whys.get((row, column))
            yield "ok" if why is None else f"no ({numbers[why]})"

    lines = [[row, *line(row)] for row in result.rows]
    notes = [f"{n}. {why}" for why, n in numbers.items()]
    return [[result.axis.rows, *result.axis.names], *lines], notes
