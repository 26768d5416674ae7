"""A page: hand-written words, then tables, claims and pictures that are made from the lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, get_args

from fedloom.report.curve_data import mean, sd
from fedloom.report.statistics import Paired, shown
from fedloom.report.style import png
from fedloom.report.tables import MISSING, fixed, human_value
from fedloom.storage.atomic import write_out

from ..lines import Line
from ..verdicts import Verdict

if TYPE_CHECKING:
    from matplotlib.figure import Figure


VERDICTS = (*get_args(Verdict), "not judged")


@dataclass(frozen=True)
class Plot:
    """A picture that is drawn only when it is written: file name (no ending), what it shows."""

    name: str
    alt: str
    draw: Callable[[], Figure]


class Case(NamedTuple):
    """One case of a claim: what of (empty for the only one), its verdict, and why.

    verdict: of fedloom_papers.verdicts, or "not judged" of rows that differ in another setting;
    gap: the difference that it is on, if it is on one.
    """

    of: str
    verdict: str
    numbers: str = ""
    gap: Paired | None = None


@dataclass(frozen=True)
class Claim:
    """A sentence of a paper, where it stands, and the cases that it was checked in."""

    says: str
    source: str
    cases: Sequence[Case]

    @property
    def verdict(self) -> str:
        """One word if all cases say the same, else how many say what.

        >>> one, two = Case("a", "holds"), Case("b", "undecided")
        >>> [Claim("", "", cases).verdict for cases in ([one], [two, one], [])]
        ['holds', 'holds 1, undecided 1', 'not measured']
        """
        counts = Counter(case.verdict for case in self.cases)
        if len(counts) <= 1:
            return next(iter(counts), "not measured")
        return ", ".join(f"{word} {counts[word]}" for word in VERDICTS if counts[word])


@dataclass(frozen=True)
class Page:
    """A page's name, its hand-written words, and what is made, in order."""

    name: str
    words: str
    parts: Sequence[str | Plot]

    @property
    def plots(self) -> list[Plot]:
        """The page's pictures."""
        return [part for part in self.parts if isinstance(part, Plot)]

    def text(self) -> str:
        """The page as Markdown."""
        note = (
            f"<!-- Made by `make results` from {self.name}.jsonl "
            f"and words/{self.name}.md: write there, not here. -->"
        )
        made = [
            f"![{part.alt}](pictures/{part.name}.png)" if isinstance(part, Plot) else part.strip()
            for part in self.parts
        ]
        return "\n\n".join([note, self.words.strip(), *made]) + "\n"

    def write(self, folder: Path) -> list[Path]:
        """Write the page and its pictures; pictures of its own that are no more are removed.

        Raises CheckpointError if the folder cannot be written.
        """
        pictures = folder / "pictures"
        files = [write_out(pictures / f"{p.name}.png", png(p.draw())) for p in self.plots]
        remove_old(pictures, self.name, files)
        return [write_out(folder / f"{self.name}.md", self.text()), *files]


def remove_old(folder: Path, page: str, kept: Sequence[Path]) -> None:
    """Remove the pictures of a page that it has no more."""
    for old in sorted(folder.glob(f"{page}-*.png")):
        if old not in kept:
            old.unlink()


def differing(pages: Mapping[Path, str], command: str) -> int:
    """Say which files are not these pages -> 1 if there is one, else 0."""
    old = [f for f, page in pages.items() if not f.is_file() or f.read_text("utf-8") != page]
    for file in old:
        print(f"{file} differs from its lines; make it again: {command}")
    return int(bool(old))


def table(head: Sequence[str], rows: Sequence[Sequence[str]], texts: int = 1) -> str:
    """A Markdown table; the first `texts` columns to the left, the numbers to the right."""
    marks = [":--"] * texts + ["--:"] * (len(head) - texts)
    cells = [[cell.replace("|", "\\|") for cell in row] for row in (head, *rows)]
    return "\n".join(f"| {' | '.join(row)} |" for row in (cells[0], marks, *cells[1:]))


def claims_table(claims: Sequence[Claim], one_seed: bool = False) -> str:
    """The claims, where they stand and their verdicts, and below a list of the numbers that say so.
    one_seed: the verdicts say what single runs did, and nothing was tested.
    """
    rows, numbers = [], []
    for claim in claims:
        rows.append([claim.says, claim.source, claim.verdict])
        known = [f"{c.of}: {c.numbers}" if c.of else c.numbers for c in claim.cases if c.numbers]
        numbers += [f"- *{claim.says}*: {'; '.join(known)}."] if known else []
    seen = "verdict in one run each" if one_seed else "verdict"
    return "\n".join([table(["claim", "where", seen], rows, texts=3), "", *numbers])


def per_cent(value: float | None) -> str:
    """A share in per cent, two decimals.

    >>> per_cent(0.8123), per_cent(None)
    ('81.23', '-')
    """
    return MISSING if value is None else fixed(100 * value, 2)


def seeds_cell(values: Sequence[float | None]) -> str:
    """Shares of several seeds in per cent: their mean with the standard deviation (n - 1).

    >>> seeds_cell([0.8, 0.82]), seeds_cell([0.8]), seeds_cell([])
    ('81.00 ± 1.41', '80.00', '-')
    """
    return human_value(mean(values), "share", sd(values)).removesuffix(" %")


def points_of(found: Paired | None) -> str:
    """A difference of shares in points, with its 95 % interval by Student's t over the seeds.

    >>> points_of(Paired(0.012, 0.004, 3)), points_of(Paired(-0.012, None, 1))
    ('+1.20 ± 0.99', '-1.20')
    """
    if found is None:
        return MISSING
    beside = "" if found.sd is None else f" ± {fixed(100 * found.half, 2)}"
    return shown(found.mean, "share") + beside


def tested(found: Paired | None) -> str:
    """A difference of shares in points, and the p of its test where it has one, corrected or not.

    >>> tested(Paired(0.01, 0.01, 3)), tested(Paired(-0.012, None, 1))
    ('+1.00 ± 2.48, p 0.225', '-1.20')
    """
    p = "" if found is None else found.p_words
    return points_of(found) + (p and f", {p}")


def reached_cell(rounds: Sequence[float | None], runs: Sequence[Line]) -> str:
    """The mean of the rounds until a target, of the seeds that reached it, "63 (2/3)" if not all
    did; of none how many rounds there were.
    """
    known = [t for t in rounds if t is not None]
    if not runs:
        return MISSING
    if not known:
        return f"{max(x['rounds'] for x in runs)}+"
    text = f"{mean(known):.1f}".removesuffix(".0")
    return text if len(known) == len(rounds) else f"{text} ({len(known)}/{len(rounds)})"


def mib(n: float | None) -> str:
    """Bytes in MiB to three digits.

    >>> mib(2**20), mib(150 * 2**20), mib(2**15), mib(None)
    ('1.00', '150', '0.0312', '-')
    """
    if n is None:
        return MISSING
    size = n / 2**20
    digits = 2 if 1 <= size < 9.995 else 1 if 9.995 <= size < 99.95 else 0
    return f"{size:.3g}" if size < 1 else f"{size:.{digits}f}"
