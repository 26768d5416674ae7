"""From lines of evidence to the numbers of a table: one function per metric of the papers, and what
the paper prints beside what each seed has here.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fedloom.core.curves import at as between
from fedloom.core.curves import crossing, last_tenth, tenth_of, whole_round
from fedloom.report.curve_data import mean, sd

from .entry import Entry, Protocol, Quantity, Row, published, settings_of, tables_of
from .flamby import METRIC
from .lines import Line
from .plan import paper_rounds
from .series import Series, last_of, points, roughness, size_fraction, sized, smoothed
from .study_measures import STUDIED

BASE = "FedAvg"
LineByRow = Mapping[str, Line]  # of one protocol and seed: {row: its line}


def title(metric: str, at: str, reduced_round: int | None = None) -> str:
    """A measure in words. here: the round of a reduced run that stands for the printed one.

    >>> title("rounds_to_acc", "acc=81"), title("acc_ema_pct", "round=500")
    ('rounds to 81 %', 'accuracy, moving average, round 500')
    >>> title("train_loss", "round=500", 150)
    'training loss, round 150 (500 in the paper)'
    """
    words, where = METRICS[metric].words, settings_of(at)
    if "acc" in where:
        words = f"{words} {where.pop('acc')} %"
    if reduced_round is not None and str(reduced_round) != where.get("round", str(reduced_round)):
        where["round"] = f"{reduced_round} ({where['round']} in the paper)"
    if (count := where.pop("last", "")) != "":
        where["last evaluation" if count == "1" else f"mean of the last {count}"] = ""
    details = [key if not value else f"{key} {value}" for key, value in where.items()]
    return ", ".join([words, *details])


@dataclass(frozen=True)
class Context:
    """What a metric may need beside a run's own line. goals: {per cent as printed: share that is
    looked for}.
    """

    entry: Entry
    protocol: Protocol
    lines: LineByRow
    goals: Mapping[float, float]

    def round(self, printed: float, line: Line) -> int:
        """The round that stands for a printed one: at a scale with fewer rounds, the same share."""
        return round_here(printed, int(line["rounds"]), self.protocol)


def round_here(printed: float, rounds: int, protocol: Protocol) -> int:
    """The round of a run of so many that stands for a printed one of the paper's."""
    return max(1, round(printed * rounds / paper_rounds(protocol)))


Measure = Callable[[Line, Mapping[str, str], Context], float | None]


@dataclass(frozen=True)
class Metric:
    """A measure of the papers. words: its name on pages; of: from a line to a number; lower: lower
    is better; series: the curve that pictures of it show; after: it is measured on a finished run,
    not in its rounds.
    """

    words: str
    of: Measure
    lower: bool = False
    series: Series | None = None
    after: bool = False


Values = Mapping[int, float]  # {seed: value}


@dataclass(frozen=True)
class Number:
    """A cell: what the paper prints, and each seed's value here (infinite: target not reached).

    tested: of each seed what a verdict on it is on; rounds: of the runs here; evaluations: how many
    at least what is tested is the mean of, None where it is none.
    """

    quantity: Quantity
    values: Values
    rounds: int
    tested: Values = field(default_factory=dict)
    evaluations: int | None = None

    @property
    def mean(self) -> float | None:
        """The mean over the seeds; infinite if one did not reach its target."""
        return mean(list(self.values.values()))

    @property
    def sd(self) -> float | None:
        """The standard deviation over the seeds (n - 1); None for one, or with an infinite one."""
        values = list(self.values.values())
        return sd(values) if values and all(map(math.isfinite, values)) else None

    @property
    def published(self) -> float | None:
        """What the paper prints, if that is a number."""
        return None if self.quantity.cell is None else self.quantity.cell.value

    @property
    def difference(self) -> float | None:
        """Measured less published."""
        value, printed = self.mean, self.published
        return None if value is None or printed is None or math.isinf(value) else value - printed

    @property
    def compared(self) -> dict[int, float]:
        """What is compared. A target that was not reached counts as one round more than the run
        had, the least that it can be; seconds and traffic until then are not compared.
        """
        if self.quantity.metric == "rounds_to_acc":
            least = float(self.rounds + 1)
            return {s: v if math.isfinite(v) else least for s, v in self.tested.items()}
        return {s: v for s, v in self.tested.items() if math.isfinite(v)}


# ---------------------------------------------------------------------------------------- of curves
@dataclass(frozen=True)
class _Point:
    """A measure that is a point of a curve: at a printed round, between evaluations on a straight
    line, or the last.
    """

    series: Series

    def __call__(self, line: Line, where: Mapping[str, str], context: Context) -> float | None:
        curve = self.series.of(line, where.get("size", ""))
        if "last" in where:  # the mean of so many evaluations
            return last_of([*curve.values()], int(where["last"]))
        if not curve or "round" not in where:
            return curve[max(curve)] if curve else None
        return between(curve, min(context.round(float(where["round"]), line), max(curve)))

    def until(self, line: Line, where: Mapping[str, str], context: Context) -> list[float]:
        """The evaluations until then."""
        curve = self.series.raw(line, where.get("size", ""))
        end = context.round(float(where["round"]), line) if "round" in where else math.inf
        return [curve[t] for t in sorted(curve) if t <= end]


def _curve(words: str, series: Series, lower: bool = False) -> Metric:
    return Metric(words, _Point(series), lower, series)


def _global_curve(line: Line, size: str) -> dict[int, float]:
    """The curve of a size, or the one value of a size that no client has."""
    if curve := sized(line, "test_METRIC", size):
        return {t: 100 * v for t, v in curve.items()}
    for row in (line["sizes"] or {}).get("unseen", ()):
        if float(f"{row['capacity']:.6g}") == size_fraction(size):
            return {int(line["rounds"]): 100 * float(row["global"])}
    return {}


def _perplexity(loss: float) -> float:
    return math.exp(min(loss, 700.0))


_GLOBAL = Series("", "test accuracy, %", name="global", read=_global_curve)


def _error_curve(line: Line, size: str) -> dict[int, float]:
    left, sent = points(line, "residual_square"), points(line, "delta_square")
    return {t: left[t] / sent[t] for t in left if sent.get(t)}


def _roughness(line: Line, where: Mapping[str, str], context: Context) -> float | None:
    return roughness(points(line, "curve"), int(where["window"]))


# --------------------------------------------------------------------------------------- to targets
def _first(line: Line, where: Mapping[str, str], context: Context) -> float | None:
    goal = context.goals.get(float(where["acc"]))
    if goal is None:
        return None
    size = where.get("size")
    curve = sized(line, "test_METRIC", size) if size else points(line, "curve")
    raw = context.entry.raw or "size" in where
    crossed = crossing(curve if raw else smoothed(curve), goal)
    return math.inf if crossed is None else float(whole_round(crossed))


def _largest(line: Line, where: Mapping[str, str], context: Context) -> float | None:
    """The largest value of the curve, which is above what a later test would give."""
    curve = points(line, "curve")
    return 100 * max(curve.values()) if curve else None


def _until(rate: Callable[[Line], float]) -> Measure:
    """So much a round, until a target."""

    def measure(line: Line, where: Mapping[str, str], context: Context) -> float | None:
        first = _first(line, where, context)
        return None if first is None else first * rate(line)

    return measure


def _bytes(line: Line) -> float:
    return float(line["bytes_up"] + line["bytes_down"]) / float(line["rounds"])


def _models(line: Line) -> float:
    """What a client sends in a round, in models."""
    return float(line["bytes_up"] / line["rounds"] / (4.0 * line["parameters"] * line["cohort"]))


def _seconds(line: Line) -> float:
    return float(line["seconds_per_round"])


def _a_round(line: Line, where: Mapping[str, str], context: Context) -> float | None:
    return _seconds(line)


_traffic, _total = _until(_bytes), _until(_seconds)


def _against(
    one: Callable[[Line, Mapping[str, str], Context], float | None], base: str = BASE.lower()
) -> Measure:
    """A base row's value over this row's."""

    def ratio(line: Line, where: Mapping[str, str], context: Context) -> float | None:
        other = context.lines.get(base)
        if other is None or other["state"] != "finished":
            return None
        above, below = one(other, where, context), one(line, where, context)
        if above is None or not below or math.isinf(above) or math.isinf(below):
            return None
        return above / below

    return ratio


def _relative_traffic(line: Line, where: Mapping[str, str], context: Context) -> float | None:
    if _traffic(line, where, context) == math.inf:
        return math.inf
    less = _against(_traffic)(line, where, context)
    return None if less is None else 1 / less


def _quantile(line: Line, where: Mapping[str, str], context: Context) -> float | None:
    values = sorted(float(v) for v in line["clients"] if v is not None)
    if len(values) < 2:
        return None
    cuts = statistics.quantiles(values, n=20, method="inclusive")
    return 100 * cuts[round(20 * float(where["quantile"])) - 1]


def _client_mean(line: Line, where: Mapping[str, str], context: Context) -> float | None:
    return mean(line["clients"])


def _after(name: str, words: str, lower: bool = True) -> Metric:
    def read(line: Line, where: Mapping[str, str], context: Context) -> float | None:
        value = line.get("afterwards", {}).get(name)
        return None if value is None else float(value)

    return Metric(words, read, lower, after=True)


_ACCURACY = Series("curve", "test accuracy, %", 100, name="accuracy")
_AVERAGE = Series("curve", "test accuracy, moving average, %", 100, average=True, name="average")
METRICS: dict[str, Metric] = {
    "acc_ema_pct": _curve("accuracy, moving average", _AVERAGE),
    "test_acc_pct": _curve("test accuracy", _ACCURACY),
    "test_acc_max_pct": Metric("largest test accuracy", _largest, series=_ACCURACY),
    "test_acc_fraction": Metric("test accuracy", _Point(Series("curve", "")), series=_ACCURACY),
    "rounds_to_acc": Metric("rounds to", _first, lower=True),
    "local_acc_pct": _curve(
        "accuracy at the clients",
        Series("local_METRIC", "accuracy at the clients, %", 100, name="local"),
    ),
    "global_acc_pct": _curve("accuracy", _GLOBAL),
    "client_acc_pct": Metric("accuracy of clients", _quantile),
    "client_mean": Metric("mean accuracy of the clients", _client_mean),
    "train_loss": _curve("training loss", Series("train_loss", "training loss"), lower=True),
    "test_loss": _curve("test loss", Series("test_loss", "test loss"), lower=True),
    "train_perplexity": _curve(
        "training perplexity",
        Series("train_loss", "training perplexity", change=_perplexity, name="perplexity"),
        lower=True,
    ),
    "rounds_speedup_vs_fedavg": Metric("speed-up in rounds to", _against(_first)),
    "comm_cost_in_V": Metric("traffic (FedAvg's: 1) to", _relative_traffic, lower=True),
    "uplink_models": Metric("models sent per client to", _until(_models), lower=True),
    "sec_per_round": Metric("seconds a round", _a_round, lower=True),
    "fedsmoo_sec_per_round_over_this": Metric(
        "FedSMOO's seconds a round over these", _against(_a_round, "fedsmoo")
    ),
    "total_time_s": Metric("seconds to", _total, lower=True),
    "total_time_speedup_vs_fedavg": Metric("speed-up in seconds to", _against(_total)),
    "accuracy_roughness": Metric(
        "roughness of the curve", _roughness, lower=True, series=_ACCURACY
    ),
    "residual_over_delta": _curve(
        "||e||^2 / ||update||^2",
        Series("", "||e||^2 / ||update||^2", name="residual_over_delta", read=_error_curve),
    ),
    "delta_square": _curve("||update||^2", Series("delta_square", "||update||^2")),
    "residual_square": _curve("||e||^2", Series("residual_square", "||e||^2")),
    "validation_pct": _curve(
        "held-out accuracy", Series("validation", "held-out accuracy, %", 100)
    ),
    "trained_pct": _curve(
        "held by a client that took part", Series("trained", "held by one that took part, %", 100)
    ),
    "explored_pct": _curve(
        "coordinates explored", Series("explored", "coordinates explored, %", 100)
    ),
    "replaced_pct": _curve(
        "of the mask replaced", Series("replaced", "of the mask replaced, %", 100)
    ),
    "untrained_pct": _curve("never trained", Series("untrained", "never trained, %", 100)),
    "client_divergence": _after("client_divergence", "divergence of clients"),
    "local_cka": _after("local_cka", "CKA of local models", lower=False),
    "local_loss": _after("local_loss", "loss of local models"),
    "local_distance": _after("local_distance", "distance between local models"),
    "hessian_top_eigenvalue": _after("hessian_top_eigenvalue", "largest eigenvalue of the Hessian"),
    "hessian_trace": _after("hessian_trace", "trace of the Hessian"),
    "loss_sharpness": _after("loss_sharpness", "rise of the loss around the model"),
}
METRICS |= {
    f"{METRIC}{i}": _after(f"{METRIC}{i}", f"test set {i}", lower=False)
    for i in (*range(6), "pooled")
}
METRICS |= {name: Metric(*fields) for name, fields in STUDIED.items()}
LOWER = tuple(name for name, metric in METRICS.items() if metric.lower)


def number(quantity: Quantity, contexts: Mapping[int, Context]) -> Number:
    """A number from {seed: what its metric needs}, of the seeds with a finished run; infinite for a
    target that was not reached. A verdict on a point of a curve is on the mean of the last tenth of
    the evaluations until then (at least three), not on the moving average; on all else it is on the
    number itself.
    """
    of, where = METRICS[quantity.metric].of, settings_of(quantity.at)
    values, tested, counts, rounds = dict[int, float](), dict[int, float](), list[int](), 0
    for seed, context in contexts.items():
        line = context.lines.get(quantity.row.key)
        rounds = max(rounds, int(line.get("rounds", 0))) if line else rounds
        if line is None or line["state"] != "finished":
            continue
        value = late = of(line, where, context)
        if isinstance(of, _Point):
            until = of.until(line, where, context)
            counts.append(tenth_of(len(until)))
            if "last" not in where and (middle := last_tenth(until)) is not None:
                late = middle
        elif of in (_quantile, _client_mean):
            counts.append(1)
        values |= {} if value is None else {seed: value}
        tested |= {} if late is None else {seed: late}
    return Number(quantity, values, rounds, tested, min(counts, default=None))


# -------------------------------------------------------------------------------------------- goals
def goals(
    entry: Entry, protocol: Protocol, lines: Iterable[Line], scale: str
) -> dict[float, float]:
    """{a target as printed, in per cent: the share of accuracy that is looked for}.

    At scale paper they are equal. At a reduced scale a printed target says nothing, so it is taken
    relative to FedAvg, or the table's first row: the target times its accuracy here over its
    printed one. lines: of that row; without them there is none.
    """
    pairs = [settings_of(w.at) for w in entry.quantities() if w.protocol is protocol]
    targets = {float(where["acc"]) for where in pairs if "acc" in where}
    if scale == "paper":
        return {t: t / 100 for t in targets}
    printed, measured = _printed_base(entry, protocol), _base(entry, list(lines))
    if measured is None:
        return {}
    return {t: t / (printed or 100.0) * measured for t in targets}


def base_of(entry: Entry) -> Row:
    """The row that targets of a reduced scale are relative to."""
    return next((row for row in entry.rows if row.name == BASE), entry.rows[0])


def _printed_base(entry: Entry, protocol: Protocol) -> float | None:
    """The base's printed accuracy after the last round in this protocol, in per cent."""
    cells = [
        cell
        for table in tables_of(entry.paper)
        for cell in published(entry.paper, table)
        if cell.method == base_of(entry).method and cell.metric in ("acc_ema_pct", "test_acc_pct")
        if protocol.fits(cell) and cell.value is not None
    ]
    last = max(cells, key=lambda cell: float(cell.at.partition("=")[2] or 0), default=None)
    return None if last is None else last.value


def _base(entry: Entry, lines: Sequence[Line]) -> float | None:
    """The base's mean accuracy here, after the last round."""
    curves = [points(x, "curve") for x in lines if x["state"] == "finished"]
    ends = [(c if entry.raw else smoothed(c)) for c in curves if c]
    return mean([c[max(c)] for c in ends])
