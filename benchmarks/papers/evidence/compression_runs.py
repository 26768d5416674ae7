"""The lines of compression.jsonl, by name, and what a client sends."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from study import Study

from fedloom.core.curves import at, last_tenth
from fedloom.papers.lines import Line
from fedloom.papers.series import points, roughness
from fedloom.recipes import RECIPES
from fedloom.report.curve_data import mean

GROWTH = 1.05  # by how much the last fifth must lie above the fifth before to be called growing
CLASSES = (1, 2, 5)
PLAIN = "uncompressed"
FEEDBACK = (PLAIN, "Top-k .9", "Top-k .99", "RD .9", "RD .99")


def share(changes: Sequence[str]) -> float:
    """The share of the coordinates that a way sends.

    >>> share(["compress=topk:0.01"]), share(["compress=none"])
    (0.01, 1.0)
    """
    ways = [c.partition("=")[2] for c in changes if c.startswith("compress=")]
    return float(ways[-1].partition(":")[2] or 1) if ways else 1.0


class Runs:
    """The finished runs by name, and what is planned."""

    def __init__(self, study: Study) -> None:
        self.ways = [*study.tables["p=1"].rows]
        self.plan: list[str] = []
        self.by_name: dict[str, Line] = {}
        for table in study.tables.values():
            before = {"p": f"fashion {table.name}, ", "m": "mnist p=1, "}.get(table.name[0], "")
            for row in table.rows:
                self.plan.append(before + row)
                if line := study.finished(table.name, row).get(0):
                    self.by_name[before + row] = line

    def fashion(self, p: int, way: str) -> Line | None:
        """The run on Fashion-MNIST with p classes per client, if it is finished."""
        return self.by_name.get(f"fashion p={p}, {way}")

    def any_of(self, p: int) -> bool:
        """Say whether there is a run with p classes per client."""
        return any(self.fashion(p, way) for way in self.ways)

    def late(self, p: int, way: str) -> float | None:
        """What verdicts are on."""
        line = self.fashion(p, way)
        return None if line is None else late(line)

    def curve(self, p: int, way: str, key: str = "curve") -> dict[int, float]:
        """{round: value}; of a run that is not finished nothing."""
        line = self.fashion(p, way)
        return {} if line is None else points(line, key)

    def average(self, p: int, way: str) -> float | None:
        """The mean accuracy over the evaluations: how fast and how high."""
        return mean(list(self.curve(p, way).values()))

    def shakes(self, p: int, way: str) -> float | None:
        """The roughness of the accuracy."""
        return roughness(self.curve(p, way))

    def error(self, p: int, way: str) -> float | None:
        """‖e‖² over ‖Δ‖², both means over the last fifth of the evaluations."""
        ends = []
        for key in ("residual_square", "delta_square"):
            curve = self.curve(p, way, key)
            values = [curve[t] for t in sorted(curve)]
            ends.append(mean(values[-max(1, len(values) // 5) :]))
        above, below = ends
        return above / below if above is not None and below else None

    def growth(self, p: int, way: str) -> float | None:
        """‖e‖² over the last fifth of the evaluations, over that of the fifth before."""
        return growth(self.curve(p, way, "residual_square"))


def late(line: Line) -> float:
    """The mean of the last tenth of the evaluations that a line keeps (every fifth round)."""
    curve = points(line, "curve")
    found = last_tenth([curve[t] for t in sorted(curve)])
    return float(line["last"]["value"] if found is None else found)


def after(curve: Mapping[float, float], budget: float) -> float | None:
    """A curve by models sent where a client has sent so many: on straight lines between
    evaluations, and the end of a run that sends less in all; None before its first evaluation.

    >>> after({2.0: 0.1, 10.0: 0.5}, 6.0), after({2.0: 0.1}, 60.0), after({2.0: 0.1}, 1.0)
    (0.30000000000000004, 0.1, None)
    """
    return at(curve, min(budget, max(curve)))


def clients(line: Line) -> int:
    """How many clients answer in a round, as the line's recipe says."""
    recipe = RECIPES[line["recipe"]]()
    population, cohort = int(recipe["data"]["partition"]["clients"]), float(recipe["cohort"])
    return round(cohort if cohort > 1 else population * cohort)


def sent(line: Line) -> float:
    """What one answer really is, in models of float32: bytes with everything that goes with them,
    the mean over all rounds and clients.
    """
    answers = clients(line) * line["rounds"]
    return float(line["bytes_up"] / (answers * 4 * line["parameters"]))


def by_both_ways(line: Line) -> dict[float, float]:
    """{model sizes that one client has sent and received, in true bytes: accuracy}."""
    each = sent(line) * (1 + line["bytes_down"] / line["bytes_up"])
    return {each * t: v for t, v in points(line, "curve").items()}


def by_uplink(line: Line, true: bool, key: str = "curve") -> dict[float, float]:
    """{model sizes that one client has sent: value}: nominal (the kept share, CFedAvg's unit), or
    true bytes; every round has the same share of the run's bytes.
    """
    each = sent(line) if true else share(line["changes"])
    return {each * t: v for t, v in points(line, key).items()}


def growth(curve: Mapping[int, float]) -> float | None:
    """The mean of the curve's last fifth over that of the fifth before; None with fewer than ten
    points.
    """
    values = [curve[t] for t in sorted(curve)]
    fifth = len(values) // 5
    if fifth < 2:
        return None
    before = math.fsum(values[-2 * fifth : -fifth])
    return math.fsum(values[-fifth:]) / before if before > 0 else None
