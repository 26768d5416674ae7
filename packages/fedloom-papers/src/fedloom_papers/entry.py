"""What a table or figure of a paper consists of (rows, protocols, measures, claims), all data; and
the numbers that the papers print, one CSV file per table in `published`, laid out as printed.
"""

from __future__ import annotations

import csv
import functools
import importlib.resources
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from statistics import fmean, stdev

SCALES = ("paper", "cpu", "smoke")
PAPERS = ("fedacg", "fiarse", "fafed", "cfedavg", "fedsmoo", "fedwmsam", "flamby")
STUDIES = ("zoo", "compression", "submodels", "robust", "private", "precision")  # our own
_BY_SEED = "method,dataset,metric,seed,value\n"  # how a file of single runs begins


# ------------------------------------------------------------------------------ printed numbers
@dataclass(frozen=True)
class Cell:
    """A cell of a printed table.

    setting: the column's and the row's settings, {"clients": "100", "u": "0.6"}; metric: with its
    unit, such as acc_ema_pct; at: "round=500", "acc=81" (per cent), "size=1/64" or "". value: as
    printed, None where the paper prints no number, as in "1000+", which is then the text. seeds:
    the value of each seed, of a paper that publishes its runs; value and std are made of them.
    """

    method: str
    dataset: str
    setting: Mapping[str, str]
    metric: str
    at: str
    value: float | None
    std: float | None
    text: str
    seeds: Mapping[int, float] = field(default_factory=dict)

    def has(self, settings: Mapping[str, str]) -> bool:
        """True if the cell has all these settings; numbers are compared as numbers.

        >>> published("fedsmoo", "8")[0].has({"participation": "0.1", "c": "3"})
        True
        """
        return all(same(self.setting.get(k, ""), v) for k, v in settings.items())


def same(one: str, other: str) -> bool:
    """True for equal texts, or texts of equal numbers.

    >>> same("0.10", "0.1"), same("iid", "dirichlet")
    (True, False)
    """
    if one == other:
        return True
    try:
        return float(one) == float(other)
    except ValueError:
        return False


def settings_of(text: str) -> dict[str, str]:
    """`a=b;c` as {"a": "b", "c": ""}.

    >>> settings_of("clients=100;partition=iid")
    {'clients': '100', 'partition': 'iid'}
    """
    pairs = (part.partition("=") for part in text.split(";") if part)
    return {key: value for key, _, value in pairs}


@functools.cache
def published(paper: str, table: str) -> tuple[Cell, ...]:
    """The cells of a table in the order of the file; none for a table without numbers. A table in
    parts, such as FAFED's 2_low, is named with its part.

    A file has blocks, as the printed table: four lines of headings over the columns, of which an
    empty one is that to its left ("-" for none), and a line for each method, with its own settings
    after a semicolon. Or a line for each seed, see _BY_SEED.
    """
    file = importlib.resources.files(__package__) / "published" / f"{paper}_table{table}.csv"
    if not file.is_file():
        return ()
    text = file.read_text(encoding="utf-8")
    if text.startswith(_BY_SEED):
        return tuple(_of_runs(text))
    out = []
    for block in text.split("\n\n"):
        lines = [*csv.reader(block.splitlines())]
        columns = [*zip(*(_spanning(heads) for _, *heads in lines[:4]), strict=True)]
        for name, *texts in lines[4:]:
            method, _, row_setting = name.partition(";")
            for text, (dataset, setting, metric, at) in zip(texts, columns, strict=True):
                if text:
                    settings = settings_of(setting) | settings_of(row_setting)
                    number = _number_of(text)
                    out.append(Cell(method, dataset, settings, metric, at, *number))
    return tuple(out)


def _of_runs(text: str) -> Iterator[Cell]:
    """The cells of a file with a line for each seed."""
    cells: dict[tuple[str, str, str], dict[int, float]] = {}
    for row in csv.DictReader(text.splitlines()):
        key = row["method"], row["dataset"], row["metric"]
        cells.setdefault(key, {})[int(row["seed"])] = float(row["value"])
    for (method, dataset, metric), seeds in cells.items():
        middle, spread = fmean(seeds.values()), stdev(seeds.values())
        yield Cell(method, dataset, {}, metric, "", middle, spread, "", seeds)


def _spanning(heads: Sequence[str]) -> list[str]:
    """Headings, an empty one as the one to its left."""
    full: Iterator[str] = itertools.accumulate(heads, lambda left, head: head or left)
    return ["" if head == "-" else head for head in full]


def _number_of(text: str) -> tuple[float | None, float | None, str]:
    """Value, standard deviation and text of a printed cell.

    >>> _number_of("79.52±0.13"), _number_of("1000+")
    ((79.52, 0.13, ''), (None, None, '1000+'))
    """
    value, _, std = text.partition("±")
    try:
        return float(value), float(std) if std else None, ""
    except ValueError:
        return None, None, text


@functools.cache
def tables_of(paper: str) -> tuple[str, ...]:
    """The tables of a paper that have a file, in the order of their names."""
    folder = importlib.resources.files(__package__) / "published"
    start = f"{paper}_table"
    names = (file.name for file in folder.iterdir())
    return tuple(sorted(n.removeprefix(start)[:-4] for n in names if n.startswith(start)))


# ------------------------------------------------------------------------------------ the parts
@dataclass(frozen=True, kw_only=True)
class Protocol:
    """Where a column's runs happen: a recipe with changes, `key=value` between blanks.

    dataset, setting: of the published cells that belong to it. changes: of the recipe at scale
    paper, and at cpu, with further ones of that scale, None where it does not exist; why: why it
    does not. smoke: of the recipe at scale smoke. small, tiny: the recipe of scale cpu, which then
    has only its own changes, and of smoke, if they are others. grid: where rows try other values
    here than elsewhere; () for none.
    """

    name: str
    recipe: str
    dataset: str
    setting: str = ""
    changes: str = ""
    cpu: str | None = ""
    smoke: str = ""
    why: str = ""
    small: str = ""
    tiny: str = ""
    grid: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    @property
    def words(self) -> str:
        """Its setting, as pages say it."""
        return " ".join(self.setting.replace("=", " ").replace("|", ", ").split(";")).strip()

    def fits(self, cell: Cell) -> bool:
        """True if a cell is one of this protocol's."""
        return cell.dataset == self.dataset and cell.has(settings_of(self.setting))

    def recipe_at(self, scale: str) -> str:
        """The recipe of a scale."""
        return {"cpu": self.small, "smoke": self.tiny}.get(scale, "") or self.recipe

    def at(self, scale: str) -> str:
        """The changes of the recipe at a scale."""
        if scale == "smoke":
            return self.smoke
        common = "" if scale == "cpu" and self.small else self.changes
        return f"{common} {self.cpu or ''}" if scale == "cpu" else common


@dataclass(frozen=True, kw_only=True)
class Row:
    """A method as the paper runs it. method, setting: of its published cells; changes: of any
    protocol; on: further ones by data set, by data set at a scale ("AGNews@paper") or by protocol,
    with * for any; grid: the values that the paper tries, by setting; label: where one method has
    several rows; custom: a user's, of which nothing is published.
    """

    method: str
    changes: str
    setting: str = ""
    on: Mapping[str, str] = field(default_factory=dict)
    grid: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    label: str = ""
    custom: bool = False

    @property
    def name(self) -> str:
        """The row's name in tables."""
        return self.label or self.method

    @property
    def key(self) -> str:
        """The row's name on the command line.

        >>> Row(method="FedACG + FedPAQ", changes="").key
        'fedacg+fedpaq'
        """
        words = re.sub(r"\s*\+\s*", "+", self.name.lower())
        return re.sub(r"[^\w.+=-]+", "-", words).strip("-")

    def fits(self, cell: Cell) -> bool:
        """True if a cell is one of this row's."""
        return cell.method == self.method and cell.has(settings_of(self.setting))

    def at(self, protocol: Protocol, scale: str) -> str:
        """The changes for a protocol at a scale."""
        keys = (protocol.dataset, f"{protocol.dataset}@{scale}", protocol.name)
        more = (w for p in keys for on, w in self.on.items() if on == p or fnmatchcase(p, on))
        return " ".join([self.changes, *more])


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A sentence of the paper: a row beats others, in every protocol named (all by default).

    better: keys of rows; than: keys of others (every other row by default), compared pair by pair
    if there are several on both sides. metric, at: the measure (the first of the entry by default).
    A key a&b is the mean of two rows. than_metric, than_at: another measure of the others; number:
    compared is this, not another row. margin: how far the row must be above at least (below zero:
    may be below at most). headline: whether it is what the paper is about; its page begins with it.
    """

    text: str
    better: tuple[str, ...]
    than: tuple[str, ...] = ()
    metric: str = ""
    at: str = ""
    than_metric: str = ""
    than_at: str = ""
    number: float | None = None
    margin: float = 0.0
    protocols: tuple[str, ...] = ()
    headline: bool = False


@dataclass(frozen=True)
class Quantity:
    """One number that an entry compares; cell: what the paper prints, if it prints it."""

    row: Row
    protocol: Protocol
    metric: str
    at: str
    cell: Cell | None


@dataclass(frozen=True, kw_only=True)
class PaperColumn:
    """A column of a paper's table that a study is set beside: of the cells of a table these."""

    name: str
    paper: str
    table: str
    metric: str
    dataset: str
    at: str = ""
    setting: str = ""
    base: str = "FedAvg"

    def gaps(self) -> dict[str, float]:
        """{method: its accuracy less FedAvg's, in points}."""
        scale = 100 if self.metric.endswith("_fraction") else 1
        values = {
            cell.method: round(scale * cell.value, 2)
            for cell in published(self.paper, self.table)
            if (cell.metric, cell.at, cell.dataset) == (self.metric, self.at, self.dataset)
            if cell.value is not None and cell.has(settings_of(self.setting))
        }
        return {name: value - values[self.base] for name, value in values.items()}


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A table or figure. tables: its files of published numbers. measures: what is shown beside
    them, and all there is of a figure, as "metric at". fact: the name of the check of an entry
    without runs. raw: rounds to a target are read from the raw curve, not the moving average.
    notes: what a reader must know, such as readings of what the paper leaves open.

    Of a study of our own (study), which has one scale, the paper's: seeds: of each row; tuning: the
    changes of runs that try a grid, judged by held-out data; grid_protocol: where, if not in its
    own protocols;
    bases: keys of rows that each row is set beside, with p corrected for the rows named in the
    `paper_columns`; alike: the settings in which rows must agree to be compared.
    """

    paper: str
    name: str
    title: str
    rows: tuple[Row, ...] = ()
    protocols: tuple[Protocol, ...] = ()
    tables: tuple[str, ...] = ()
    measures: tuple[str, ...] = ()
    claims: tuple[Claim, ...] = ()
    fact: str = ""
    raw: bool = False
    cpu: str = ""
    notes: tuple[str, ...] = ()
    study: bool = False
    seeds: int = 3
    tuning: str = ""
    grid_protocol: Protocol | None = None
    bases: tuple[str, ...] = ()
    alike: tuple[str, ...] = ()
    paper_columns: tuple[PaperColumn, ...] = ()

    @property
    def id(self) -> str:
        """The name on the command line, fedacg:1a."""
        return f"{self.paper}:{self.name}"

    def cells(self) -> tuple[Cell, ...]:
        """What the paper prints."""
        return tuple(cell for table in self.tables for cell in published(self.paper, table))

    def row_of(self, cell: Cell) -> Row | None:
        """The row of a published cell."""
        return next((row for row in self.rows if row.fits(cell)), None)

    def protocol_of(self, cell: Cell) -> Protocol | None:
        """The protocol of a published cell."""
        return next((p for p in self.protocols if p.fits(cell)), None)

    def quantities(self) -> Iterator[Quantity]:
        """Every number of the entry once: the published in the paper's order, then the measures."""
        keys, columns = set(), dict[tuple[str, str, str], Protocol]()
        for cell in self.cells():
            row, protocol = self.row_of(cell), self.protocol_of(cell)
            if row is not None and protocol is not None:
                keys.add((row.key, protocol.name, cell.metric, cell.at))
                yield Quantity(row, protocol, cell.metric, cell.at, cell)
                columns[protocol.name, cell.metric, cell.at] = protocol
        for (name, metric, at), protocol in columns.items():
            for row in (row for row in self.rows if row.custom):
                keys.add((row.key, name, metric, at))
                yield Quantity(row, protocol, metric, at, None)
        for measure in self.measures:
            metric, _, at = measure.partition(" ")
            for protocol in self.protocols:
                for row in self.rows:
                    if (row.key, protocol.name, metric, at) not in keys:
                        yield Quantity(row, protocol, metric, at, None)

    def headline(self, protocol: Protocol) -> tuple[str, str]:
        """The measure that claims compare unless they name one: of the first metric the mean over
        sizes, else the last value.
        """
        pairs = [(w.metric, w.at) for w in self.quantities() if w.protocol is protocol]
        same = [pair for pair in pairs if pair[0] == pairs[0][0] and "last=" not in pair[1]]
        return next((pair for pair in same if pair[1] == "size=mean"), same[-1])
