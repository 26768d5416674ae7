"""Pictures and the page: what must be in them, and that the page needs nothing else."""

from __future__ import annotations

import base64
import builtins
import json
import struct
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from matplotlib.text import Text
from report_fakes import fake_run

from fedloom.cli.__main__ import cli
from fedloom.errors import CheckpointError, ConfigError
from fedloom.report import group_runs, load_run, save_curves, write_report
from fedloom.report.charts import clients_chart, field_bytes, ledger_chart, partition_charts
from fedloom.report.clients import attendance, names_of
from fedloom.report.curves import metric_curves
from fedloom.report.style import fit, nth_style, save_pictures, styles
from fedloom.storage import world

NASTY = '_<script>alert("x")</script> & $5_^ $ 数 {{ 7*7 }}'  # no such glyph in the font
VOID = {"meta", "link", "img", "br", "input", "hr"}


class Page(HTMLParser):
    """Collects tags, attributes and text, and checks that every tag is closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: list[tuple[str, dict[str, str]]] = []
        self.words = ""
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, {key: value or "" for key, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.words += data

    def images(self) -> list[dict[str, str]]:
        return [attributes for tag, attributes in self.found if tag == "img"]


def check_png(data: bytes) -> tuple[int, int]:
    """Check signature, header and end; give width and height."""
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    assert data[-8:-4] == b"IEND"
    width, height = struct.unpack(">II", data[16:24])
    return width, height


def several(folder: Path) -> list[Path]:
    """Two algorithms with two seeds each and one unfinished run."""
    paths = []
    for algorithm, label in (("fedavg", "FedAvg"), ("fedacg", NASTY)):
        for seed in range(2):
            values = [0.5 + 0.1 * seed, None, 0.7]
            place = folder / f"{algorithm}{seed}"
            paths.append(
                fake_run(
                    place,
                    values,
                    algorithm=algorithm,
                    label=label,
                    seed=seed,
                    target=0.6,
                    name=NASTY,
                )
            )
    paths.append(
        fake_run(folder / "u", [0.4], algorithm="scaffold", planned=7, summary=False, name=NASTY)
    )
    return paths


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("several")
    out = write_report(several(folder), folder / "new" / "report.html")
    assert [file.name for file in out.parent.iterdir()] == ["report.html"]  # no temporary file left
    return out


@pytest.fixture(scope="module")
def page(written: Path) -> Page:
    return Page(written.read_text(encoding="utf-8"))


def test_every_image_is_a_valid_png_inside_the_page_with_alt_text(page: Page) -> None:
    images = page.images()
    assert len(images) == 8  # 3 axes, 2 losses, ledger, partition, clients
    for image in images:
        kind, _, data = image["src"].partition(",")
        assert kind == "data:image/png;base64"
        width, height = check_png(base64.b64decode(data, validate=True))
        assert width > 500
        assert height > 150
        assert len(image["alt"]) > 30


def test_nothing_is_fetched_and_nothing_runs(page: Page) -> None:
    assert not any(tag in {"script", "iframe", "object", "embed"} for tag, _ in page.found)
    for _, attributes in page.found:
        for key in ("src", "href", "srcset", "action", "data"):
            assert attributes.get(key, "data:").startswith("data:")
        assert not any(key.startswith("on") for key in attributes)
    policy = [a["content"] for _, a in page.found if "http-equiv" in a]
    assert policy == ["default-src 'none'; img-src data:; style-src 'unsafe-inline'"]


def test_names_are_shown_as_written(page: Page) -> None:
    assert page.words.count(NASTY) > 5
    assert any(NASTY in image["alt"] for image in page.images())


def test_the_page_says_what_is_unfinished_and_what_differs(page: Page) -> None:
    assert "1 of 5 runs is unfinished" in page.words
    assert "unfinished: 1 of 7 rounds" in page.words
    assert "algorithm.name" in page.words
    assert "model.name" not in page.words.replace(" ", "")
    assert "2.13.0" in page.words


def test_the_page_has_the_numbers_of_the_table(page: Page) -> None:
    assert "70.00 ± 0.00 %" in page.words
    assert "10 with 8 to 16 samples (Gini 0.12), label distance 0.41 of 1" in page.words
    assert "rounds to 60\N{NO-BREAK SPACE}%" in page.words
    assert "+0.00 (+0.00 to +0.00) points, p 1.000 by Holm, 2 seeds" in page.words


def test_a_regression_run_has_sizes_and_no_heat_map(tmp_path: Path) -> None:
    run = fake_run(
        tmp_path / "r",
        [9.0, 400.0, 4.0],
        metric=("mse", False, "m2"),
        partition={"counts": None, "sizes": [3, 5, 2], "class_names": []},
        clients=[1.0, 2.0, 8.0],
    )
    page = Page(write_report(run, tmp_path / "r.html", target=5.0).read_text())
    alts = " ".join(image["alt"] for image in page.images())
    assert "Bar chart of 3 clients with 2 to 5 samples each" in alts
    assert "Heat-map" not in alts
    assert "90th percentile" in alts
    assert "4 m2" in page.words
    assert "lower is better" in page.words


def test_a_run_with_no_finished_round_makes_a_page(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "r", [], planned=5, summary=False)
    for name in ("ledger", "partition", "clients", "environment"):
        (run / f"{name}.json").unlink()
    page = Page(write_report([run], tmp_path / "r.html").read_text())
    assert not page.images()
    assert "unfinished: 0 of 5 rounds" in page.words


def test_values_that_are_not_finite_leave_gaps_and_no_warning(tmp_path: Path) -> None:
    values = [0.5, float("nan"), float("inf"), 0.4]
    run = fake_run(tmp_path / "r", values, clients=[None, float("nan")])
    page = Page(write_report(run, tmp_path / "r.html").read_text())
    assert len(page.images()) == 7  # no client has a value


@pytest.mark.slow
def test_saved_pictures_are_the_named_files_and_drawing_changes_no_settings(tmp_path: Path) -> None:
    import matplotlib

    before: dict[str, Any] = dict(matplotlib.rcParams)
    folders = several(tmp_path)
    files = save_curves(group_runs(map(load_run, folders)), tmp_path / "pictures")
    assert [file.name for file in files] == [
        "accuracy_by_round.png", "accuracy_by_bytes.png", "accuracy_by_seconds.png",
        "train_loss.png", "test_loss.png", "partition.png", "clients.png", "ledger.png",
    ]  # fmt: skip
    assert sorted(files) == sorted((tmp_path / "pictures").iterdir())
    for file in files:
        check_png(file.read_bytes())
    write_report(folders, tmp_path / "r.html", pictures=tmp_path / "again")
    both = {(tmp_path / "again" / file.name).read_bytes() == file.read_bytes() for file in files}
    assert both == {True}
    assert dict(matplotlib.rcParams) == before


def test_the_first_rounds_do_not_hide_the_difference_of_the_last(tmp_path: Path) -> None:
    """A share that rises within a fifth of the rounds has an axis from there on; another all."""

    def axis(**curves: list[float]) -> tuple[float, float]:
        paths = [fake_run(tmp_path / k, v, label=k, config=f"x='{k}'") for k, v in curves.items()]
        groups = group_runs(map(load_run, paths))
        drawn = metric_curves(groups, styles(groups))
        (picture,) = (p for p in drawn if p.name.endswith("_round"))
        return picture.figure.axes[0].get_ylim()

    rising = [0.1 + 0.08 * t for t in range(10)]
    low, high = axis(a=[*rising, *[0.90] * 40], b=[*rising, *[0.92] * 40])
    assert 80 < low < 90 and 92 < high < 98
    low, high = axis(c=[0.1 + 0.01 * t for t in range(50)])
    assert low < 10 and high > 59
    low, high = axis(d=[*rising, *[0.90] * 40])  # nothing differs at the end
    assert low < 20 and 90 < high < 100


@pytest.mark.slow
def test_figures_for_a_paper_have_its_width_and_embedded_letters(tmp_path: Path) -> None:
    groups = group_runs(map(load_run, several(tmp_path)))
    look = styles(groups)
    (curve,) = (p for p in metric_curves(groups, look) if p.name == "accuracy_by_round")
    narrow = save_pictures([curve], tmp_path, ("pdf", "svg"), column=3.0)
    pdf, svg = (file.read_bytes() for file in narrow)
    assert b"/MediaBox [ 0 0 216 " in pdf and b'width="216pt"' in svg
    assert b"/FontFile2" in pdf and b"/Type3" not in pdf
    (both,) = save_pictures(partition_charts(groups), tmp_path, column=3.0)
    assert check_png(both.read_bytes())[0] == pytest.approx(6.25 * 300, abs=1)


def test_printed_letters_fit_and_no_axis_has_an_offset(tmp_path: Path) -> None:
    values = [0.90001 + 0.000001 * t for t in range(60)]
    paths = [
        fake_run(tmp_path / f"{n}", values, label=f"Method {n}", config=f"x={n}") for n in range(9)
    ]
    groups = group_runs(map(load_run, paths))
    (picture,) = (p for p in metric_curves(groups, styles(groups)) if p.name.endswith("_round"))
    fit(picture.figure, 3.4)
    made, axes = picture.figure, picture.figure.axes[0]
    made.canvas.draw()
    assert axes.yaxis.get_offset_text().get_text() == axes.xaxis.get_offset_text().get_text() == ""
    letters = [t.get_fontsize() for t in made.findobj(Text) if t.get_text()]
    assert min(letters) > 6.5 and max(letters) < 8.5
    box, page = made.legends[0].get_window_extent(), made.bbox
    assert page.x0 <= box.x0 and box.x1 <= page.x1, "the legend is inside"
    assert all(line.get_marker() != "" for line in axes.lines)


def test_styles_differ_beyond_seven_methods_and_in_grey() -> None:
    looks = [nth_style(i) for i in range(28)]
    assert len({(s.colour, s.dash) for s in looks}) == 28
    assert len({s.mark for s in looks[:9]}) == 9, "marks alone tell nine apart"


def test_the_drawn_lines_are_the_means_in_per_cent(tmp_path: Path) -> None:
    groups = group_runs(map(load_run, several(tmp_path)))
    look = styles(groups)
    pictures = {p.name: p for p in metric_curves(groups, look)}
    axes = pictures["accuracy_by_bytes"].figure.axes[0]
    assert axes.lines[0].get_ydata() == pytest.approx([55, 70])
    assert axes.lines[0].get_xdata() == pytest.approx([5000 / 1024, 15000 / 1024])
    assert axes.get_xlabel() == "bytes sent up and down (KiB)"
    colours = {
        name: [line.get_color() for line in picture.figure.axes[0].lines[: len(groups)]]
        for name, picture in pictures.items()
    }
    assert set(map(tuple, colours.values())) == {tuple(look[g.key].colour for g in groups)}


def test_each_different_partition_is_drawn_once(tmp_path: Path) -> None:
    other = {"counts": [[3, 0], [0, 4]], "sizes": [3, 4], "class_names": ["x"]}
    paths = [
        fake_run(tmp_path / "a", [0.5]),
        fake_run(tmp_path / "b", [0.5], algorithm="b", label="B"),
        fake_run(tmp_path / "c", [0.5], algorithm="c", label="C", partition=other),
    ]
    first, second = partition_charts(group_runs(map(load_run, paths)))
    assert (first.name, second.name) == ("partition", "partition-2")
    assert "(FedAvg, B)" in first.title
    assert "(C)" in second.title


@pytest.mark.parametrize("clients", [10, 60, 61, 1000])
def test_the_heat_map_shows_shares_and_sorts_only_many_clients(
    tmp_path: Path, clients: int
) -> None:
    counts = [[0, 4, 0], [1, 0, 3], [5, 5, 0], [0, 0, 0], [9, 0, 0]] * 200
    counts = counts[:clients]
    partition = {"counts": counts, "sizes": [sum(row) for row in counts], "class_names": []}
    run = load_run(fake_run(tmp_path / "a", [0.5], partition=partition))
    (picture,) = partition_charts(group_runs([run]))
    image = picture.figure.axes[1].images[0].get_array()
    assert image is not None
    assert image.shape == (3, clients)
    totals = image.sum(axis=0)
    assert sorted({round(float(t)) for t in totals}) == [0, 100]
    if clients <= 60:
        assert image[:, 1].tolist() == [25, 0, 75]
    else:
        main = image.argmax(axis=0)
        assert (main[1:] >= main[:-1]).all()


def test_the_client_histogram_counts_every_known_client(tmp_path: Path) -> None:
    groups = group_runs([load_run(fake_run(tmp_path / "a", [0.5]))])
    picture = clients_chart(groups, styles(groups))
    assert picture is not None
    heights = [patch.get_height() for patch in picture.figure.axes[0].patches]
    assert sum(heights) == pytest.approx(100)
    assert "mean 66.00 %" in picture.alt  # 0.5, 0.54, ..., 0.82


def test_bytes_per_field_are_means_over_seeds_and_client_rounds(tmp_path: Path) -> None:
    paths = [fake_run(tmp_path / f"a{seed}", [0.5] * 4, seed=seed) for seed in range(2)]
    groups = group_runs(map(load_run, paths))
    found = {(item.direction, item.field): item for item in field_bytes(groups[0])}
    assert list(found) == [("down", "x"), ("up", "delta"), ("up", "weight")]
    assert found["down", "x"].total == 4 * 4000
    assert found["down", "x"].each == 400
    picture = ledger_chart(groups, styles(groups))
    assert picture is not None
    widths = [patch.get_width() for patch in picture.figure.axes[0].patches]
    assert widths == [400, 80, 20]


@pytest.mark.slow
def test_the_same_runs_give_the_same_bytes(written: Path, tmp_path: Path) -> None:
    again = write_report(several(tmp_path), tmp_path / "again.html")
    assert again.read_bytes() == written.read_bytes()


@pytest.mark.parametrize("library", ["matplotlib", "jinja2"])
def test_a_missing_library_is_named_with_the_way_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    run = fake_run(tmp_path / "a", [0.5])
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ConfigError, match=rf"{library}.*pip install .*\[report\]"):
        write_report(run, tmp_path / "a.html")
    assert not (tmp_path / "a.html").exists()


def test_a_failed_write_leaves_the_old_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, out = fake_run(tmp_path / "a", [], summary=False), tmp_path / "pages" / "a.html"
    out.parent.mkdir()
    out.write_text("old")

    def full(path: Path, data: bytes) -> None:
        with builtins.open(path, "wb") as file:
            file.write(data[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(world, "write", full)
    with pytest.raises(CheckpointError, match="No space left"):
        write_report(run, out)
    assert out.read_text() == "old"
    assert list(out.parent.iterdir()) == [out]


def test_no_runs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no runs"):
        write_report([], tmp_path / "a.html")
    with pytest.raises(ConfigError, match="no runs"):
        save_curves([], tmp_path)


def test_the_page_of_a_federation_says_who_answered(page: Page, tmp_path: Path) -> None:
    """Over all draws of all rounds, by the names of the roll; another run's page says nothing."""
    partition = {"sizes": [5, 6, 7], "client_names": ["north", NASTY, "client 2"]}
    run = fake_run(tmp_path / "fed", [0.5, 0.6, 0.7], partition=partition)
    vain = {"asked": [0, 1], "answered": [], "unused": [0], "lost": [1], "refused": {"1": "none"}}
    rows: list[dict[str, Any]] = [
        {"round": 1, "asked": [0], "answered": [0], "refused": {}},  # before a restart
        {"round": 1, "asked": [0, 1], "answered": [0, 1], "refused": {}},
        {"round": 2, "asked": [0, 2], "answered": [0, 2], "refused": {}, "redrawn": [vain]},
        {"round": 3, "asked": [0, 2], "answered": [0], "refused": {"2": f"{NASTY} bytes"}},
    ]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (run / "clients.jsonl").write_text(text + '{"round": 4')  # killed while writing
    found = attendance(run, names_of(load_run(run)))
    assert found is not None
    assert found.heads == [
        "client",
        "asked",
        "counted",
        "no answer",
        "refused",
        "round had too few",
    ]
    assert found.lines == [
        ["0 north", "4", "3", "0", "0", "1"],
        [f"1 {NASTY}", "2", "1", "1", "0", "0"],
        ["2 client 2", "2", "1", "0", "1", "0"],
    ]
    assert "Who answered" not in page.words
    assert found.why == [f"2 client 2: 1 x {NASTY} bytes"]
    words = Page(write_report(run, tmp_path / "page.html").read_text()).words
    assert "Who answered" in words and f"1 {NASTY}" in words and found.why[0] in words
    shown = CliRunner().invoke(cli, ["show", str(run)])
    assert "0 north" in shown.output and found.why[0] in shown.output and not shown.exit_code
    (run / "clients.jsonl").unlink()
    assert attendance(run) is None
    assert "counted" not in CliRunner().invoke(cli, ["show", str(run)]).output
