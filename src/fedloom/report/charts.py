"""Charts beside the curves: labels and metric per client, bytes per field; and of measures: what a
run recorded, and the files that `fedloom paper measure` wrote beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fedloom.core.parsing import parse_json

from .curve_data import group_curve, mean
from .runs import Floats, Group, Ints, Run
from .style import (
    Picture,
    Style,
    figure,
    legend_below,
    line_chart,
    name_panel,
    nth_style,
    panels,
    plain,
    shorten,
    style_of,
)
from .tables import human_bytes, human_value

if TYPE_CHECKING:
    from matplotlib.axes import Axes


_IN_ORDER = 60  # clients up to which the heat-map keeps their order
FEW_ROWS = 50  # of a client whose reliability curve is not drawn
_MOST_CURVES = 10  # clients whose reliability curves are drawn
_NAMED = 30  # classes up to which each is named


@dataclass(frozen=True)
class FieldBytes:
    """Bytes of a message field, means over the seeds: in all; of a client in a round."""

    direction: str
    field: str
    total: float
    each: float | None


def field_bytes(group: Group) -> list[FieldBytes]:
    """The bytes per field of ledgers and logs of the seeds that count, down before up."""
    runs, sizes = [run for run in group.averaged_runs if run.ledger], []
    for direction in ("down", "up"):
        for field in dict.fromkeys(f for run in runs for f in run.ledger.get(direction, {})):
            totals = [float(run.ledger.get(direction, {}).get(field, 0)) for run in runs]
            each = mean([_each(run, f"bytes_{direction}.{field}") for run in runs])
            sizes.append(FieldBytes(direction, field, mean(totals) or 0.0, each))
    return sizes


def _each(run: Run, column: str) -> float | None:
    """Bytes of a field for one client in one round."""
    if column not in run.columns:
        return None
    visits = float(np.nansum(run.columns["cohort"]))
    return float(np.nansum(run.columns[column])) / visits if visits else None


def partition_charts(groups: Sequence[Group]) -> list[Picture]:
    """Draw the clients' data: a picture for each different partition among the groups."""
    by_partition: dict[str, tuple[Mapping[str, Any], list[str]]] = {}
    for group in groups:
        for run in group.runs:
            if run.partition.get("sizes"):
                same = repr((run.partition.get("counts"), run.partition["sizes"]))
                by_partition.setdefault(same, (run.partition, []))[1].append(group.label)
                break
    pictures = []
    for number, (partition, labels) in enumerate(by_partition.values(), start=1):
        name = "partition" if number == 1 else f"partition-{number}"
        note = f" ({', '.join(labels)})" if len(by_partition) > 1 else ""
        pictures.append(partition_chart(partition, name, note))
    return pictures


def partition_chart(
    partition: Mapping[str, Any], name: str = "partition", note: str = ""
) -> Picture:
    """Draw one partition, as in a run's partition.json: sizes, and below them labels if there are
    any. note: what the title says of it. Raises ConfigError if matplotlib is missing.
    """
    sizes: Ints = np.asarray(partition["sizes"], dtype=np.int64)
    spread = f"{sizes.size} clients with {sizes.min()} to {sizes.max()} samples each"
    if (every := int(partition.get("every", 1))) > 1:
        spread = f"every {every:,}th of {int(partition['clients']):,} clients: {spread}"
        note += f", every {every:,}th of {int(partition['clients']):,} clients"
    if partition.get("counts") is None:
        fig = figure(8.4, 2.6)
        _sizes(fig.add_subplot(), sizes, np.arange(sizes.size))
        fig.axes[0].set_xlabel("client")
        _name_clients(fig.axes[0], partition)
        return Picture(name, f"Clients: size{note}", f"Bar chart of {spread}{note}.", fig)
    counts: Ints = np.asarray(partition["counts"], dtype=np.int64).reshape(sizes.size, -1)
    classes = counts.shape[1]
    order = _order(counts)
    fig = figure(8.4, 2.2 + min(5.0, 0.22 * max(classes, 5)))
    ratio = [1.0, min(5.0, 0.22 * max(classes, 5)) / 0.9]
    top, below = fig.subplots(2, 1, sharex=True, height_ratios=ratio)
    _sizes(top, sizes, order)
    shares = 100.0 * counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    image = below.imshow(shares[order].T, aspect="auto", cmap="Blues", vmin=0)
    _name_classes(below, [str(c) for c in partition.get("class_names") or range(classes)], classes)
    in_order = sizes.size <= _IN_ORDER
    below.set_xlabel("client" if in_order else "clients, sorted by their most frequent class")
    _name_clients(below, partition)
    below.set_ylabel("class")
    fig.colorbar(image, ax=below, label="% of the client's samples", pad=0.01)
    main = float(np.mean(shares.max(axis=1)))
    classes_held = float(np.mean((counts > 0).sum(axis=1)))
    alt = (
        f"Heat-map of {classes} classes over {spread}{note}. On average a client holds "
        f"{classes_held:.1f} classes and {main:.0f} % of its samples are of one class."
    )
    return Picture(name, f"Clients: labels and sizes{note}", alt, fig)


def clients_chart(groups: Sequence[Group]) -> Picture | None:
    """Draw a histogram of the metric over the clients of all seeds, a row per group."""
    rows = [(group, values) for group in groups if (values := _client_values(group)).size]
    if not rows:
        return None
    metric = rows[0][0].metric
    worst = 90 if metric.higher_is_better is False else 10  # a tenth of the clients fares worse
    up = 100.0 if metric.unit == "share" else 1.0
    pooled = np.concatenate([values for _, values in rows]) * up
    bins = np.histogram_bin_edges(pooled, bins=min(30, max(8, int(pooled.size**0.5 * 2))))
    fig = figure(8.4, 1.0 + (1.25 if len(rows) > 1 else 2.6) * len(rows))
    panels = np.atleast_1d(fig.subplots(len(rows), 1, sharex=True, squeeze=False).ravel())
    words = []
    for axes, (group, values) in zip(panels, rows, strict=True):
        middle, low = float(values.mean()), float(np.quantile(values, worst / 100))
        weights = np.full(values.size, 100.0 / values.size)
        axes.hist(values * up, bins=bins, weights=weights, color=style_of(group).colour, alpha=0.8)
        axes.axvline(middle * up, color="black", lw=1.4)
        axes.axvline(low * up, color="black", lw=1.2, ls=":")
        plain(axes, "", "% of clients")
        ends = [human_value(value, metric.unit) for value in (middle, low)]
        text = f"mean {ends[0]}, {worst}th percentile {ends[1]}"
        axes.set_title(f"{shorten(group.label, 60)}: {text}", fontsize=9.5, loc="left")
        words.append(f"{group.label}: {text}")
    unit = "%" if metric.unit == "share" else metric.unit
    basis = next(
        (str(run.clients["basis"]) for run in rows[0][0].runs if run.clients.get("basis")), ""
    )
    label = f"{metric.name}{f' ({unit})' if unit else ''} per client{f', {basis}' if basis else ''}"
    panels[-1].set_xlabel(shorten(label, 90))
    alt = f"Histogram of {metric.name} per client. {'; '.join(words)}."
    title = f"Clients: {metric.name.replace('_', ' ')} (solid mean, dotted {worst}th percentile)"
    return Picture("clients", title, alt, fig)


def reliability_chart(groups: Sequence[Group]) -> Picture | None:
    """Draw how often the second class came against its predicted probability, and the number of
    test rows in each bin; of a single group also its clients with enough rows.
    """
    rows = [(group, bins) for group in groups if (bins := _bins(group)) is not None]
    if not rows:
        return None
    fig = figure(5.6, 5.2)
    top, below = fig.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    top.plot([0, 1], [0, 1], color="#999999", lw=1.0, ls=":")
    handles: list[Any] = []
    labels: list[str] = []
    few: list[str] = []
    if len(rows) == 1:
        client_bins, few = _client_bins(rows[0][0])
        for i, (name, bins) in enumerate(client_bins.items(), 1):
            handles += top.plot(*_observed(bins), color=nth_style(i).colour, lw=1.0, ls="--")
            labels.append(f"{shorten(name, 20)}, {bins[0].sum():,.0f} rows")
    for group, bins in rows:
        style = style_of(group)
        handles += top.plot(*_observed(bins), color=style.colour, marker=style.mark, lw=2.0)
        labels.append(f"{shorten(group.label, 40)}, {bins[0].sum():,.0f} rows")
        below.stairs(bins[0], np.linspace(0, 1, bins.shape[1] + 1), color=style.colour, lw=1.6)
    if len(rows) == 1:
        for i, count in enumerate(rows[0][1][0]):
            at = (i + 0.5) / rows[0][1].shape[1]
            below.text(at, count, f"{count:,.0f}", ha="center", va="bottom", fontsize=7.5)
    plain(top, "", "share of the second class")
    plain(below, "predicted probability of the second class", "test rows")
    below.margins(y=0.25)
    legend_below(fig, handles, labels)
    note = f"; too few rows to be drawn (below {FEW_ROWS}): {', '.join(few)}" if few else ""
    ends = "; ".join(f"{g.label}: {', '.join(f'{n:.0f}' for n in bins[0])}" for g, bins in rows)
    alt = f"Line chart of observed share by predicted probability. Rows per bin: {ends}{note}."
    return Picture("reliability", f"Reliability curve{note}", alt, fig)


def _bins(group: Group) -> Floats | None:
    """The bins of a group's seeds, added up: (3, bins)."""
    bins_by_seed = [
        (run.clients.get("reliability") or {}).get("bins") for run in group.averaged_runs
    ]
    arrays = [np.array(bins, dtype=np.float64) for bins in bins_by_seed if bins]
    return sum(arrays[1:], start=arrays[0]) if arrays else None


def _client_bins(group: Group) -> tuple[dict[str, Floats], list[str]]:
    """The bins of clients with enough rows by name, and the names of the others."""
    run = next(run for run in group.averaged_runs if run.clients.get("reliability"))
    each = run.clients["reliability"].get("clients") or []
    names = run.clients.get("names") or [f"client {i}" for i in range(len(each))]
    counts = run.clients.get("test_rows") or [sum(bins[0]) for bins in each]
    if len(each) > _MOST_CURVES:
        return {}, []
    by_name, few = {}, []
    for name, bins, count in zip(names, each, counts, strict=False):
        if bins and sum(bins[0]) >= FEW_ROWS:
            by_name[str(name)] = np.array(bins)
        else:
            few.append(f"{name} ({count:.0f})")
    return by_name, few


def _observed(bins: Floats) -> tuple[Floats, Floats]:
    """The mean probability and the share of the second class of bins that have rows."""
    rows, likely, second = bins[:, bins[0] > 0]
    return likely / rows, second / rows


def ledger_chart(groups: Sequence[Group]) -> Picture | None:
    """Draw bytes per field as bars, for each group: what one client gets and sends in a round."""
    bars = {
        group.key: [(item, item.each) for item in field_bytes(group) if item.each is not None]
        for group in groups
    }
    drawn = [group for group in groups if bars[group.key]]
    if not drawn:
        return None
    count, longest = sum(map(len, bars.values())), max(s for row in bars.values() for _, s in row)
    fig = figure(5.6, max(1.6, 0.4 + 0.25 * count + 0.38 * len(drawn)))
    axes = fig.add_subplot()
    at, ticks, words = -1.0, {}, []
    for group in drawn:
        at += 1.5  # a line and a half above each group for its name
        text = axes.text(0, at + 0.05, f" {shorten(group.label, 60)}", va="center", fontsize=9.5)
        text.set_in_layout(False)  # a long name may leave the axes, and does not shrink them
        for item, size in bars[group.key]:
            at += 1
            hatch, colour = "///" if item.direction == "up" else "", style_of(group).colour
            axes.barh(
                at, size, color=colour, alpha=0.85, hatch=hatch, edgecolor="white", height=0.8
            )
            axes.text(size, at, f" {human_bytes(size)}", va="center", fontsize=8.5)
            ticks[at] = f"{item.direction}: {shorten(item.field, 20)}"
            words.append(f"{group.label} {item.direction} {item.field} {human_bytes(size)}")
    axes.set_yticks(list(ticks), list(ticks.values()))
    axes.set_ylim(at + 0.7, 0.0)
    axes.set_xlim(0, 1.2 * longest or 1.0)
    plain(axes, "", "")
    axes.grid(False)
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)
    title = "Bytes per field, of one client in one round (hatched: up)"
    return Picture("ledger", title, f"Bar chart of bytes per field. {'; '.join(words)}.", fig)


def _client_values(group: Group) -> Floats:
    """Pool the finite values of the seeds that count, n of them."""
    values = [
        v for run in group.averaged_runs for v in run.clients.get("values") or [] if v is not None
    ]
    pooled = np.array(values, dtype=np.float64)
    return pooled[np.isfinite(pooled)]


def _order(counts: Ints) -> Ints:
    """Keep few clients in their order; sort many by their main class, then by its share."""
    clients = np.arange(len(counts))
    if len(counts) <= _IN_ORDER:
        return clients
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    return np.lexsort((-shares.max(axis=1), shares.argmax(axis=1)))


def _sizes(axes: Axes, sizes: Ints, order: Ints) -> None:
    edges = np.arange(sizes.size + 1) - 0.5
    axes.stairs(sizes[order], edges, fill=True, color="#56708a")
    axes.set_xlim(-0.5, sizes.size - 0.5)
    plain(axes, "", "samples")
    axes.grid(False)
    axes.locator_params(axis="x", integer=True, nbins=10)


def _name_clients(axes: Axes, partition: Mapping[str, Any]) -> None:
    """Write the names of clients below them, if they have names and are few."""
    names = [shorten(str(name), 16) for name in partition.get("client_names") or ()]
    if 0 < len(names) <= _NAMED and "every" not in partition:
        turned = 0 if sum(map(len, names)) <= 80 else 45
        axes.set_xticks(
            range(len(names)), names, rotation=turned, ha="right" if turned else "center"
        )


def _name_classes(axes: Axes, names: Sequence[str], classes: int) -> None:
    step = max(1, -(-classes // _NAMED))
    ticks = list(range(0, classes, step))
    axes.set_yticks(ticks, [shorten(names[i], 16) if i < len(names) else str(i) for i in ticks])
    axes.tick_params(labelsize=8.0)


_CURVES = {
    "divergence": "weight divergence of local models",
    "hessian_top": "top eigenvalue of the Hessian",
    "hessian_trace": "trace of the Hessian",
    "surface_rise": "mean rise of the loss on the surface",
    "plane_loss": "mean loss of three local models",
    "plane_distance": "mean distance between three local models",
    "cka": "CKA of local models, mean over the layers",
}
_NORMS = {"delta_square": ("‖Δ‖²", "-"), "residual_square": ("‖e‖²", "--")}  # label, dash
_MOST = 6  # surfaces side by side


def measure_pictures(groups: Sequence[Group]) -> list[Picture]:
    """Draw what was measured: curves by round, norms of error feedback, surfaces."""
    pictures = [_curve(groups, column, label) for column, label in _CURVES.items()]
    pictures += [_norms(groups), _surfaces(groups), _planes(groups)]
    return [picture for picture in pictures if picture is not None]


def file_of(run: Run, name: str) -> dict[str, Any]:
    """The numbers that `fedloom paper measure RUN name` wrote; empty if none can be read."""
    try:
        content = parse_json((run.path / "measures" / f"{name}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _curve(groups: Sequence[Group], column: str, label: str) -> Picture | None:
    curves = [(g.label, style_of(g), curve) for g in groups if (curve := group_curve(g, column))]
    title = f"{label[0].upper()}{label[1:]}"
    return line_chart(f"measures-{column}", title, label, curves) if curves else None


def _norms(groups: Sequence[Group]) -> Picture | None:
    """CFedAvg's Figures 3, 8 and 9: ||delta||^2 and ||e||^2."""
    curves = {
        (group, column): curve
        for group in groups
        for column in _NORMS
        if (curve := group_curve(group, column)) and float(np.nanmax(curve.mean)) > 0
    }
    if not any(column == "residual_square" for _, column in curves):
        return None
    lines = [
        (f"{group.label}, {_NORMS[column][0]}", Style(style_of(group).colour, _NORMS[column][1]), c)
        for (group, column), c in curves.items()
    ]
    title = "Update and error feedback, squared norms"
    return line_chart(
        "measures-residual", title, "squared norm, mean over the clients", lines, log=True
    )


def _surfaces(groups: Sequence[Group]) -> Picture | None:
    """FedSMOO's Figure 3: the loss around the model."""
    grids = _grids(groups, "surface")
    if not grids:
        return None
    fig, cells = _contours(grids)
    for axes in cells:
        axes.plot([0], [0], "+", color="white")
    words = "; ".join(f"{g.label} {s['middle']:.4g} in the middle" for g, s in grids)
    alt = f"Contours of the loss along two filter-normalised directions: {words}."
    return Picture("measures-surface", "Loss around the model", alt, fig)


def _planes(groups: Sequence[Group]) -> Picture | None:
    """FedACG's Figure 2a: the loss on the plane through three local models."""
    grids = _grids(groups, "plane")
    if not grids:
        return None
    fig, cells = _contours(grids)
    reach = max(plane["places"][-1] for _, plane in grids)
    for axes, (_, plane) in zip(cells, grids, strict=True):
        axes.set(xlim=(-reach, reach), ylim=(-reach, reach))  # distances can be compared
        axes.plot(*zip(*plane["at"], strict=True), "o", color="white", markeredgecolor="black")
        axes.plot([0], [0], "+", color="white")
    words = []
    for group, plane in grids:
        losses = ", ".join("none" if v is None else f"{v:.4g}" for v in plane["losses"])
        words.append(f"{group.label} {losses}")
    alt = f"Contours of the loss on the plane through three local models: {'; '.join(words)}."
    return Picture("measures-plane", "Loss between local models (dots) and their mean", alt, fig)


def _grids(groups: Sequence[Group], name: str) -> list[tuple[Group, dict[str, Any]]]:
    """The first groups with a file of losses on a square, and that of their first such seed."""
    pairs = [
        (group, grid)
        for group in groups
        if (grid := next(filter(None, (file_of(r, name) for r in group.averaged_runs)), None))
    ]
    return pairs[:_MOST]


def _contours(surfaces: Sequence[tuple[Group, Mapping[str, Any]]]) -> tuple[Any, list[Any]]:
    """A picture with the losses of each group as a panel, with common levels; and the panels."""
    grids = [np.array(s["loss"], dtype=np.float64) for _, s in surfaces]  # null is NaN
    low = min(float(np.nanmin(g)) for g in grids)
    high = max(float(np.nanmax(g)) for g in grids)
    levels = np.geomspace(max(low, 1e-6), max(high, 1e-6) * 1.0001 + 1e-9, 16)
    fig, cells = panels(len(surfaces), 3.2, 3.0, 3)
    image: Any = None
    for axes, (group, surface), grid in zip(cells, surfaces, grids, strict=True):
        image = axes.contourf(surface["places"], surface["places"], grid.T, levels, cmap="viridis")
        name_panel(axes, group.label)
        axes.set_aspect("equal")
    fig.colorbar(image, ax=cells, label="loss", format="%.2g")
    return fig, cells
