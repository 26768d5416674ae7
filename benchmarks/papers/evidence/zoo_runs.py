"""The lines of zoo.jsonl: what was tried, what was chosen, what came of it."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from study import Study, held_out

from fedloom.algorithms.registry import make_algorithm
from fedloom.cli.method_costs import costs
from fedloom.core.curves import at_equal, crossing, last_tenth, whole_round
from fedloom.papers.lines import Line
from fedloom.papers.series import points, smoothed
from fedloom.recipes import RECIPES
from fedloom.report.curve_data import mean
from fedloom.report.statistics import Paired, common_seeds, paired

from .traffic import sent_by

BASE, OWN_RATE, SEEDS = "FedAvg", "FedAvg, rate of its own", 3
NUISANCES = ("weight_decay", "clip")  # settings of no method: alike, or the methods do not compare


@functools.cache
def gradients(algorithm: str) -> float:
    """Gradients of a batch per local step, measured."""
    return costs(make_algorithm(algorithm)).gradients


def accuracies(line: Line) -> dict[int, float]:
    """{round: test accuracy} of a run."""
    return points(line, "curve")


def reached(line: Line, target: float) -> int | None:
    """The round at whose end the moving average has reached a target, on straight lines between its
    evaluations; None if it never has.
    """
    place = crossing(smoothed(accuracies(line)), target)
    return None if place is None else whole_round(place)


@dataclass(frozen=True)
class Zoo:
    """A study's methods. tuned: the table whose trials choose; parts: those with its choice."""

    study: Study
    tuned: str = "dirichlet"
    parts: tuple[str, ...] = ("dirichlet", "two")

    @property
    def methods(self) -> Mapping[str, Sequence[str]]:
        """{name: its changes of the recipe}."""
        return self.study.tables[self.tuned].rows

    def words_of(self, part: str) -> str:
        """What a part is."""
        return self.study.tables[part].title

    def tried(self, name: str) -> tuple[str, list[str]]:
        """The setting that is tuned, and its values; of one that is not its last setting."""
        key, _, values = self.methods[name][-1].partition("=")
        return key, values.split(",")

    def tuning(self, name: str) -> dict[str, Line]:
        """{value: line}."""
        return self.study.trials(self.tuned, name)

    def untuned(self) -> list[str]:
        """The methods of which not every value has been tried; one value needs no trial."""
        counts = {n: (len(self.tuning(n)), len(self.tried(n)[1])) for n in self.methods}
        return [n for n, (done, all_) in counts.items() if done < all_ and all_ > 1]

    def chosen(self, name: str) -> str | None:
        """The value with the best held-out accuracy, or the only one."""
        found = self.study.chosen(self.tuned, name)
        return None if found is None else next(iter(found.values()), self.tried(name)[1][0])

    def variants(self, name: str) -> list[str]:
        """A method and what it is with a second alpha."""
        return [n for n in self.methods if n == name or n.startswith(f"{name}, alpha")]

    def unequal(self, name: str, other: str = BASE) -> str:
        """The nuisance settings in which two methods' runs differ, as words; empty if they do not:
        then a difference of accuracy is one of the methods.
        """
        ours, theirs = (self.nuisances(n) for n in (name, other))
        return "; ".join(
            f"{key} {ours[key]} against {theirs[key]}" for key in ours if ours[key] != theirs[key]
        )

    def nuisances(self, name: str) -> dict[str, str]:
        """The settings of no method, as its runs have them."""
        table = self.study.tables[self.tuned]
        local = RECIPES[table.recipe]()["local"]
        typed = table.typed(name, self.study.chosen(self.tuned, name))
        set_to = dict(c.split("=", 1) for c in typed)
        found = {k: set_to.get(f"local.{k}", local.get(k, "none")) for k in NUISANCES}
        return {k: v if v == "none" else f"{float(v):g}" for k, v in found.items()}

    def variant(self, name: str) -> str:
        """A method with the better alpha by the held-out data, where both were tuned."""

        def score(n: str) -> float:
            line = self.tuning(n).get(self.chosen(n) or "", {})
            return held_out(line) if line else 0.0

        return max(self.variants(name), key=score, default=name)

    def finals(self, name: str, part: str) -> dict[int, Line]:
        """{seed: line} with the chosen value, finished or failed."""
        return self.study.finals(part, name)

    def finished(self, name: str, part: str) -> dict[int, Line]:
        """{seed: line} of the runs that came to their end."""
        return self.study.finished(part, name)

    @functools.cached_property
    def seeds(self) -> dict[str, list[int]]:
        """{part: the seeds that all its methods with finished runs have}."""
        return {
            part: common_seeds(dict.fromkeys(self.finished(n, part), 0.0) for n in self.methods)
            for part in self.parts
        }

    def counted(self, name: str, part: str) -> dict[int, Line]:
        """{seed: line} of the finished runs with the seeds that all methods have."""
        lines = self.finished(name, part)
        return {seed: lines[seed] for seed in self.seeds[part] if seed in lines}

    def values(self, name: str, part: str) -> dict[int, float]:
        """{seed: the mean of the last tenth of its evaluations}, which verdicts are on."""
        found = {
            s: last_tenth([*accuracies(x).values()]) for s, x in self.counted(name, part).items()
        }
        return {s: v for s, v in found.items() if v is not None}

    def ranked(self, part: str) -> list[str]:
        """Methods with finished runs, the highest mean of what verdicts are on first."""
        means = {n: mean(list(self.values(n, part).values())) for n in self.methods}
        return sorted(
            (n for n in means if means[n] is not None), key=lambda n: (-(means[n] or 0), n)
        )

    def gap(self, name: str, other: str, part: str = "") -> Paired | None:
        """One method less another, seed by seed; in the part that chose. Alone: without a
        correction for further comparisons.
        """
        part = part or self.tuned
        return paired(self.values(name, part), self.values(other, part))

    def curves(self, name: str, part: str) -> list[dict[int, float]]:
        """The moving averages of the seeds, {round: accuracy}."""
        return [smoothed(accuracies(x)) for x in self.counted(name, part).values()]

    def sent(self, name: str, line: Line, round: float) -> float:
        """Bytes up and down of all clients by the end of a round of a method's run."""
        population = int(RECIPES[self.study.words["recipe"]]()["data"]["partition"]["clients"])
        return sent_by(line, self.algorithm(name), population)(round)

    def by_bytes(self, name: str, line: Line) -> dict[float, float]:
        """{bytes up and down until then: test accuracy} of a method's run."""
        return {self.sent(name, line, t): v for t, v in accuracies(line).items()}

    def at_equal_bytes(self, name: str, part: str) -> dict[int, tuple[float, float]]:
        """{seed: a method's accuracy and FedAvg's} after as many bytes, up and down, as FedAvg
        sends in all: at the last tenth of FedAvg's evaluations. Nothing of one that sends less.
        """
        base, own = self.counted(BASE, part), self.counted(name, part)
        found = {
            s: at_equal(self.by_bytes(name, own[s]), self.by_bytes(BASE, base[s]))
            for s in own
            if s in base
        }
        return {s: both for s, both in found.items() if both is not None}

    def algorithm(self, name: str) -> str:
        """The algorithm that a method runs."""
        keys = dict(c.split("=", 1) for c in self.methods[name])
        return str(keys["algorithm"])
