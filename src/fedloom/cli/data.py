"""`fedloom data`: published data sets, the copies here, and how data are divided among clients."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import click

from fedloom.errors import ConfigError, unknown
from fedloom.storage.atomic import write_out

from .printing import PATH, table
from .run import settings_argument, split_settings

if TYPE_CHECKING:
    from fedloom.data import FederatedData
    from fedloom.data.heterogeneity import Heterogeneity, Labels, Spread

_WHERE = click.option(
    "--data-dir",
    type=PATH,
    help="The folder of all data sets; otherwise FEDLOOM_DATA, otherwise the user's cache.",
)


@click.group("data", short_help="Published data sets, and how data are divided among clients.")
def data_command() -> None:
    """Published data sets: list, get and check them. Data of any kind: partition them."""


@data_command.command("list")
@_WHERE
def list_sets(data_dir: Path | None) -> None:
    """List the data sets, their folders, and which are here."""
    from fedloom.data.published.download import CATALOGUE, data_root

    root = data_root(data_dir)
    lines = [["name", "here", "get", "folder", "what it is"]]
    for name, entry in CATALOGUE.items():
        present = "yes" if not entry.place or (root / entry.place).is_dir() else "no"
        origin = "downloads" if entry.downloads else "by hand" if entry.place else "comes along"
        lines.append([name, present, origin, entry.place or "-", entry.about])
    click.echo(f"in {root}\n\n{table(lines)}")


@data_command.command("get")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@_WHERE
def get_sets(names: tuple[str, ...], data_dir: Path | None) -> None:
    """Download data sets, with a progress bar, and verify them.

    What is there already is only checked. A download that was stopped leaves nothing; a connection
    that breaks off is tried again.
    """
    from fedloom.data.published.download import CATALOGUE, SUBSET, data_root, get

    root = data_root(data_dir)
    for name in _check_names(names):
        finding = get(name, root)
        whole = "; to download the whole, move its folder away first"
        hint = whole if finding.state == SUBSET and CATALOGUE[name].downloads else ""
        click.echo(f"{name}: {finding.state}: {finding.detail}{hint}")


@data_command.command(
    "check", short_help="Say whether the copies here are the published data sets."
)
@click.argument("names", nargs=-1, metavar="[NAME...]")
@_WHERE
def check_sets(names: tuple[str, ...], data_dir: Path | None) -> None:
    """Say of every data set (or of these) whether the copy here is the published one.

    verified: by the publisher's checksums; unchecked: it has none; subset: a part of your own to
    train on; missing; damaged: which file. Exit code 1 if something is damaged, or if one of these
    is missing.
    """
    from fedloom.data.published.download import DAMAGED, MISSING, check, data_root

    root = data_root(data_dir)
    wrong = []
    selected = _check_names(names)
    click.echo(f"in {root}\n")
    width = max(map(len, selected))
    for name in selected:
        finding = check(name, root)
        click.echo(f"  {name:<{width}}  {finding.state}: {finding.detail}")
        if finding.state == DAMAGED or (names and finding.state == MISSING):
            wrong.append(f"{name} is {finding.state}")
    if wrong:
        raise click.ClickException("; ".join(wrong))


def _check_names(names: tuple[str, ...]) -> list[str]:
    """These sets, or all. Raises ConfigError for a name that is none."""
    from fedloom.data.published.download import CATALOGUE

    for name in names:
        if name not in CATALOGUE:
            raise ConfigError(unknown("data set", name, CATALOGUE))
    return list(names or CATALOGUE)


# ------------------------------------------------------------------------------------ who gets what
@data_command.command("partition", short_help="Divide data among clients, and train nothing.")
@settings_argument()
@click.option("--plot", type=PATH, help="Draw labels and sizes: a PNG file.")
@click.option("--save", type=PATH, help="Write the index lists: a .npz file.")
def partition_command(settings: tuple[str, ...], plot: Path | None, save: Path | None) -> None:
    """Divide the data of a recipe (default: digits) or a TOML file among clients; train nothing.

    \b
    fedloom data partition digits partition.alpha=0.1 --plot split.png
    fedloom data partition partition=pathological --save split.npz
    fedloom run mnist_iid partition=lists partition.file=split.npz

    Names: `fedloom list partitions`; options: `fedloom show NAME`.
    """
    from fedloom.config import resolve
    from fedloom.data import measure
    from fedloom.data.heterogeneity import by_client

    for file, ending in ((plot, ".png"), (save, ".npz")):
        if file is not None and file.suffix.lower() != ending:
            raise ConfigError(f"'{file}' must end in {ending}: that is what is written")
    source, changes, _ = split_settings(settings, None)
    data = resolve(source, changes).data()
    click.echo(_heading(data))
    dropped = data.about.get("dropped")
    left_out = [("rows with an empty cell", f"{dropped:,}, left out")] if dropped else []
    click.echo(table([*_rows(measure(data)), *left_out]))
    click.echo(f"\n{table(_glance(by_client(data)))}")
    if plot is not None:
        click.echo(f"  picture in {_draw(data, plot)}")
    if save is not None:
        write_out(save, data.save_indices)
        click.echo(
            f"  lists in {save}; use them by partition=lists {quote(f'partition.file={save}')}"
        )


def _heading(data: FederatedData) -> str:
    partition = data.about.get("partition", {})
    kind = partition.get("kind", "its own clients")
    options = ", ".join(f"{k} {_short(v)}" for k, v in partition.items() if k != "kind" and v != [])
    seed = f", seed {data.about['seed']}" if "seed" in data.about else ""
    return f"{data.name}: {kind}{f' ({options})' if options else ''}{seed}"


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:12]}..."


def _rows(skew: Heterogeneity) -> list[tuple[str, str]]:
    rows = [
        ("clients", f"{skew.clients:,}"),
        ("samples", _ownership(skew)),
        ("samples per client", _range(skew.sizes, ",.0f")),
        ("Gini of the sizes", f"{skew.gini:.3f}"),
    ]
    if skew.labels is not None:
        rows += _about_labels(skew.labels)
    if skew.tests is not None:
        none = f"; {skew.tests.without:,} have none" if skew.tests.without else ""
        rows.append(("test samples per client", _range(skew.tests.sizes, ",.0f") + none))
        if skew.tests.distance is not None:
            text = f"{skew.tests.distance:.3f}"
            rows.append(("training and test labels, distance", text))
    return rows


def _ownership(skew: Heterogeneity) -> str:
    rest = [
        f"{count:,} {state}"
        for count, state in ((skew.unused, "held by nobody"), (skew.shared, "held more than once"))
        if count
    ]
    return f"{skew.samples:,}, {', '.join(rest) if rest else 'each held once'}"


def _about_labels(labels: Labels) -> list[tuple[str, str]]:
    return [
        ("classes per client", f"{_range(labels.present, '.0f')} of {labels.classes}"),
        ("effective classes (exp of entropy)", _range(labels.effective, ".2f")),
        ("largest class's share", _range(labels.largest, ".3f")),
        ("two clients, distance", f"{labels.pairs:.3f} (total variation, mean over all pairs)"),
        ("client to all, distance", f"{labels.from_all:.3f} (total variation, mean)"),
        ("client to all, KL", f"{labels.divergence:.3f} nats (mean)"),
        ("client to all, Jensen-Shannon", f"{labels.jensen_shannon:.3f} bits (mean)"),
    ]


_BARS = "·▁▂▃▄▅▆▇█"
_LINES, _CLASSES, _LONGEST = 20, 40, 24  # clients and classes that are shown, signs of a bar


def _glance(summary: Mapping[str, Any]) -> list[list[str]]:
    """The first clients, a line each: samples, and a bar for the share of each class."""
    sizes, counts, every = summary["sizes"], summary["counts"], int(summary.get("every", 1))
    labelled = counts is not None and len(counts[0]) <= _CLASSES
    labels = summary.get("client_names") or range(0, every * len(sizes), every)
    names = summary["class_names"] or range(len(counts[0]) if labelled else 0)
    head = f"a bar for each class, {names[0]} to {names[-1]}" if labelled else ""
    lines = [["client", "samples", head]]
    for i, size in enumerate(sizes[:_LINES]):
        if labelled:
            bars = "".join(_BARS[math.ceil(8 * n / max(size, 1))] for n in counts[i])
        else:
            bars = "█" * round(_LONGEST * size / max(sizes))
        lines.append([str(labels[i]), f"{size:,}", bars])
    if len(sizes) > _LINES:
        lines.append(["...", "", "the others: --plot FILE.png"])
    return lines


def _range(spread: Spread, form: str) -> str:
    if spread.min == spread.max:
        return format(spread.min, form)
    low, high = format(spread.min, form), format(spread.max, form)
    return f"{low} to {high}, median {format(spread.median, form)}"


def _draw(data: FederatedData, file: Path) -> Path:
    from fedloom.data.heterogeneity import by_client
    from fedloom.report.charts import partition_chart

    picture = partition_chart(by_client(data))
    picture.figure.suptitle(_heading(data), fontsize=9.5)
    return write_out(file, picture.png)
