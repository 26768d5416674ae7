"""What a referee is asked: which methods are compared, in which cells, by which plan."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..config import Config, resolve
from ..config.baselines import without_partition
from ..config.overrides import REGISTRIES, parse_override, refuse_repeats
from ..core.own_parts import short
from ..core.parsing import is_file
from ..errors import ConfigError, unknown
from ..storage.identity import digest, run_digest
from ..study.sweep import VALIDATION, split_space, split_values
from ..study.trial import Trial, trial_in

# two heterogeneities x two participations, if nobody says where to compare
USUAL = {"data.alpha": ["0.1", "1"], "cohort": ["0.1", "0.4"]}
Words = Mapping[str, str]  # {key: value as it was typed}
_SHARES, _MOST_HELD = (1.0, 1.25, 0.75, 1.5), 0.5  # of the share held out by default; at most
_SEEDS = 1_000_000  # where those of tuning begin, but for the first


@dataclass(frozen=True, eq=False)
class Method:
    """One of the methods. name: in tables; words: its changes, what is compared first."""

    name: str
    words: Words


@dataclass(frozen=True, eq=False)
class Cell:
    """Where methods are compared: a recipe or file, with changes."""

    name: str
    source: str
    words: Words

    @property
    def folder(self) -> str:
        """The name of its folder."""
        return re.sub(r"[^\w.=+-]+", "-", self.name).strip("-")[:100]


@dataclass(frozen=True, eq=False)
class Question:
    """methods: all that are run; pairs: which are compared, the first less the second; trials: of
    each method in each cell; most: seeds of a cell; delta: the difference that does not matter, in
    the metric's unit, None: a point of shares.
    """

    vary: str
    methods: tuple[Method, ...]
    pairs: tuple[tuple[Method, Method], ...]
    cells: tuple[Cell, ...]
    trials: int
    most: int
    delta: float | None
    out: Path

    def config(self, cell: Cell, method: Method) -> Config:
        """The settings of a method in a cell."""
        words = [*_cell_words(cell, method).items(), *method.words.items()]
        return resolve(cell.source, [f"{key}={value}" for key, value in words])

    def trial(self, cell: Cell, method: Method, choice: Words, seed: int) -> Trial:
        """One run of the comparison. seed: counted from the recipe's own, from 1 on."""
        return self._run(cell, method, choice, seed, {})

    def tuning(self, cell: Cell, method: Method, choice: Words, split: int) -> Trial:
        """One run that chooses settings, by a validation split that is held out of the training
        data. split: which one, from 0; its seeds are none of the comparison's.

        The share changes from split to split: it decides how many rows a client's last batch has,
        and a batch of one row would otherwise be there in all runs of tuning and in no other one.
        """
        usual = float(self.config(cell, method).values["evaluate"].get("validation") or VALIDATION)
        fraction = float(f"{usual * _SHARES[split % len(_SHARES)]:.3g}")
        changes = {"evaluate.validation": f"{min(fraction, _MOST_HELD):g}"}
        return self._run(cell, method, choice, split and _SEEDS + split, changes)

    def _run(self, cell: Cell, method: Method, choice: Words, seed: int, extra: Words) -> Trial:
        common = [f"{key}={value}" for key, value in {**_cell_words(cell, method), **extra}.items()]
        first = int(self.config(cell, method).values["seed"])
        changes = {**method.words, **choice}
        return trial_in(self.out / cell.folder, cell.source, common, changes, first + seed)

    def digest(self) -> str:
        """The same for the same question: other settings, files or plans are another study."""
        runs = [run_digest(self.config(c, m).values) for c in self.cells for m in self.methods]
        return digest([runs, self.vary, self.trials, self.most, self.delta])


def parse(
    method: str,
    against: str,
    words: Sequence[str],
    vary: str,
    trials: int,
    most: int,
    delta: float | None,
    out: Path,
) -> Question:
    """The question of a command line. words: recipes, files and changes KEY=VALUE; a change with
    several values makes a cell of each. Raises ConfigError for whatever is wrong with any of them.
    """
    if vary not in REGISTRIES:
        raise ConfigError(f"--vary: {unknown('setting that names a part', vary, REGISTRIES)}")
    methods = [_method(text, vary) for text in (method, *split_values(against))]
    names = [one.name for one in methods]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigError(f"'{twice[0]}' is there twice; it cannot be compared with itself")
    pairs = tuple((methods[0], rival) for rival in methods[1:])
    cells = tuple(_cells(words))
    question = Question(vary, tuple(methods), pairs, cells, trials, most, delta, out)
    for pair in itertools.product(cells, methods):
        refuse_own_models(question.config(*pair))
    return question


def refuse_own_models(config: Config) -> None:
    """Raise ConfigError where clients use models of their own."""
    if config.own_models:
        raise ConfigError(
            f"{config.own_models}: each client has a model of its own, and what is tuned and "
            "compared here is the server's; leave it out, or compare runs with data.tests=matched "
            "by `fedloom compare`"
        )


def _cell_words(cell: Cell, method: Method) -> Words:
    """A cell's changes, without the keys of a partition in whose place the method has another."""
    if "data.partition" not in method.words:
        return cell.words
    words = [f"{key}={value}" for key, value in cell.words.items()]
    return dict(map(pair_of, without_partition(resolve(cell.source, words), words)))


def _method(text: str, vary: str) -> Method:
    """A method as it is typed: its name, and changes of its own behind it."""
    name, *changes = text.split() or [""]
    if not name or "=" in name:
        raise ConfigError(f"--against: a method is a name, as fedprox, got '{text}'")
    words = {vary: name, **dict(pair_of(word) for word in changes)}
    return Method(" ".join([short(name), *changes]), words)


def pair_of(word: str) -> tuple[str, str]:
    """Key and value of a change KEY=VALUE. Raises ConfigError."""
    parse_override(word)
    key, _, value = word.partition("=")
    return key.strip(), value.strip()


def _cells(words: Sequence[str]) -> list[Cell]:
    sources = [word for word in words if "=" not in word or is_file(word)]
    changes = [word for word in words if word not in sources]
    refuse_repeats(changes)
    common, axes = split_space(changes)
    fixed = dict(map(pair_of, common))
    if not sources and not axes:
        axes = {key: values for key, values in USUAL.items() if key not in fixed}
    if "seed" in fixed:
        raise ConfigError(f"'seed={fixed['seed']}': the referee counts seeds; leave it out")
    out = []
    for source in dict.fromkeys(sources or ["digits"]):
        for values in itertools.product(*axes.values()):
            choice = dict(zip(axes, values, strict=True))
            labels = [f"{key.rpartition('.')[2]}={value}" for key, value in choice.items()]
            name = " ".join([Path(source).stem if is_file(source) else source, *labels])
            out.append(Cell(name, source, {**fixed, **choice}))
    return out
