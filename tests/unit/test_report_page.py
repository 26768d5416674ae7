"""Pictures and the page: what must be in them, and that the page needs nothing else."""

import base64
import json
import struct
import sys
from html.parser import HTMLParser

import matplotlib
import pytest
from click.testing import CliRunner
from report_fakes import fake_groups, fake_run, groups_at, write_rows

from fedloom.cli.__main__ import cli
from fedloom.errors import CheckpointError, ConfigError
from fedloom.report import load_run, save_curves, write_report
from fedloom.report.charts import clients_chart, field_bytes, ledger_chart, partition_charts
from fedloom.report.clients import attendance, client_cells, names_of
from fedloom.report.curves import metric_curves
from fedloom.report.style import nth_style, save_pictures, style_of
from fedloom.report.submodels import size_cells, size_pictures
from fedloom.report.tables import human_size
from fedloom.storage import world
from support.refusals import refused

NASTY = '_<script>alert("x")</script> & $5_^ $ 数 {{ 7*7 }}'  # no such glyph in the font
VOID = {"meta", "link", "img", "br", "input", "hr"}


class Page(HTMLParser):
    """Collects tags, attributes and text, and checks that every tag is closed in order."""

    def __init__(self, text):
        super().__init__()
        self.text, self.open, self.tags, self.words = text, [], [], ""
        self.feed(text)
        self.close()
        assert not self.open
        self.images = [attributes for tag, attributes in self.tags if tag == "img"]

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, {key: value or "" for key, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.words += data


def size_of_png(data):
    assert data.startswith(b"\x89PNG\r\n\x1a\n") and data[-8:-4] == b"IEND"
    return struct.unpack(">II", data[16:24])


def several(folder):
    """Two algorithms with two seeds each and one unfinished run."""
    runs = []
    for algorithm, label in (("fedavg", "FedAvg"), ("fedacg", NASTY)):
        for seed in range(2):
            parts = {"algorithm": algorithm, "label": label, "seed": seed, "target": 0.6}
            values = [0.5 + 0.1 * seed, None, 0.7]
            runs.append(fake_run(folder / f"{algorithm}{seed}", values, name=NASTY, **parts))
    parts = {"algorithm": "scaffold", "planned": 7, "summary": False}
    return [*runs, fake_run(folder / "u", [0.4], name=NASTY, **parts)]


def curves_by_name(*folders):
    groups = groups_at(*folders)
    return {picture.name: picture for picture in metric_curves(groups)}


def page_of(runs, out, **more):
    return Page(write_report(runs, out, **more).read_text(encoding="utf-8"))


# ---------------------------------------------------------------------------------------- the page
@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("several")
    page = page_of(several(folder), folder / "new" / "report.html")
    assert [file.name for file in (folder / "new").iterdir()] == ["report.html"]
    return page


def test_every_image_is_a_valid_png_inside_the_page_with_alt_text(page):
    assert len(page.images) == 8  # 3 axes, 2 losses, ledger, partition, clients
    for image in page.images:
        kind, _, data = image["src"].partition(",")
        assert kind == "data:image/png;base64" and len(image["alt"]) > 30
        width, height = size_of_png(base64.b64decode(data, validate=True))
        assert width > 500 and height > 150


def test_nothing_is_fetched_and_nothing_runs(page):
    assert not any(tag in {"script", "iframe", "object", "embed"} for tag, _ in page.tags)
    for _, attributes in page.tags:
        for key in ("src", "href", "srcset", "action", "data"):
            assert attributes.get(key, "data:").startswith("data:")
        assert not any(key.startswith("on") for key in attributes)
    policy = [a["content"] for _, a in page.tags if "http-equiv" in a]
    assert policy == ["default-src 'none'; img-src data:; style-src 'unsafe-inline'"]


def test_the_page_begins_with_the_answer_and_has_the_numbers_of_the_table(page):
    assert 0 < page.text.index("has the highest accuracy") < page.text.index("<h2>Comparison</h2>")
    wide = page.text.count('<div class="wide')
    assert page.text.count("<table>") == wide, "each scrolls inside"
    assert page.words.count(NASTY) > 5, "names are shown as written"
    assert any(NASTY in image["alt"] for image in page.images)
    for words in (
        "1 of 5 runs is unfinished",
        "unfinished: 1 of 7 rounds",
        "algorithm.name",
        "2.13.0",
        "70.00 ± 0.00 %",
        "10 with 8 to 16 samples (Gini 0.12), label distance 0.41 of 1",
        "rounds to 60\N{NO-BREAK SPACE}%",
        "+0.00 (+0.00 to +0.00) points, p 1.000 by Holm, 2 seeds",
    ):
        assert words in page.words
    assert "model.name" not in page.words.replace(" ", ""), "a setting that does not differ"
    assert "Who answered" not in page.words, "no federation"


def test_a_regression_run_has_sizes_and_no_heat_map(tmp_path):
    partition = {"counts": None, "sizes": [3, 5, 2], "class_names": []}
    parts = {"metric": ("mse", False, "m2"), "partition": partition, "clients": [1.0, 2.0, 8.0]}
    run = fake_run(tmp_path / "r", [9.0, 400.0, 4.0], **parts)
    page = page_of(run, tmp_path / "r.html", target=5.0)
    alts = " ".join(image["alt"] for image in page.images)
    assert "Bar chart of 3 clients with 2 to 5 samples each" in alts and "90th percentile" in alts
    assert "Heat-map" not in alts
    assert "4 m2" in page.words and "lower is better" in page.words


def test_a_run_with_no_finished_round_makes_a_page(tmp_path):
    run = fake_run(tmp_path / "r", [], planned=5, summary=False)
    for name in ("ledger", "partition", "clients", "environment"):
        (run / f"{name}.json").unlink()
    page = page_of([run], tmp_path / "r.html")
    assert not page.images and "unfinished: 0 of 5 rounds" in page.words


def test_values_that_are_not_finite_leave_gaps_and_no_warning(tmp_path):
    values = [0.5, float("nan"), float("inf"), 0.4]
    run = fake_run(tmp_path / "r", values, clients=[None, float("nan")])
    assert len(page_of(run, tmp_path / "r.html").images) == 7  # no client has a value


def test_the_page_of_a_federation_says_who_answered(tmp_path):
    """Over all draws of all rounds, by the names of the roll."""
    partition = {"sizes": [5, 6, 7], "client_names": ["north", NASTY, "client 2"]}
    run = fake_run(tmp_path / "fed", [0.5, 0.6, 0.7], partition=partition)
    vain = {"asked": [0, 1], "answered": [], "unused": [0], "lost": [1], "refused": {"1": "none"}}
    rows = [
        {"round": 1, "asked": [0], "answered": [0], "refused": {}},  # before a restart
        {"round": 1, "asked": [0, 1], "answered": [0, 1], "refused": {}},
        {"round": 2, "asked": [0, 2], "answered": [0, 2], "refused": {}, "redrawn": [vain]},
        {"round": 3, "asked": [0, 2], "answered": [0], "refused": {"2": f"{NASTY} bytes"}},
    ]
    write_rows(run / "clients.jsonl", rows, '{"round": 4')  # killed while writing
    table = attendance(run, names_of(load_run(run)))
    heads = ["client", "asked", "counted", "no answer", "refused", "round had too few"]
    assert table.heads == heads
    assert table.lines == [
        ["0 north", "4", "3", "0", "0", "1"],
        [f"1 {NASTY}", "2", "1", "1", "0", "0"],
        ["2 client 2", "2", "1", "0", "1", "0"],
    ]
    assert table.why == [f"2 client 2: 1 x {NASTY} bytes"]
    words = page_of(run, tmp_path / "page.html").words
    assert "Who answered" in words and f"1 {NASTY}" in words and table.why[0] in words
    shown = CliRunner().invoke(cli, ["show", str(run)])
    assert "0 north" in shown.output and table.why[0] in shown.output and not shown.exit_code
    (run / "clients.jsonl").unlink()
    assert attendance(run) is None
    assert "counted" not in CliRunner().invoke(cli, ["show", str(run)]).output


@pytest.mark.parametrize("library", ["matplotlib", "jinja2"])
def test_a_missing_library_says_what_to_install(tmp_path, monkeypatch, library):
    run = fake_run(tmp_path / "a", [0.5])
    monkeypatch.setitem(sys.modules, library, None)
    make = lambda: write_report(run, tmp_path / "a.html")
    refused(make, f"{library} ... pip install ... [report]", kind=ConfigError)
    assert not (tmp_path / "a.html").exists()


def test_a_failed_write_leaves_the_old_page(tmp_path, monkeypatch):
    run, out = fake_run(tmp_path / "a", [], summary=False), tmp_path / "pages" / "a.html"
    out.parent.mkdir()
    out.write_text("old")

    def full(path, data):
        path.write_bytes(data[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(world, "write", full)
    refused(lambda: write_report(run, out), "No space left", kind=CheckpointError)
    assert out.read_text() == "old" and list(out.parent.iterdir()) == [out]


def test_no_runs_are_refused(tmp_path):
    refused(lambda: write_report([], tmp_path / "a.html"), "no runs", kind=ConfigError)


# -------------------------------------------------------------------------------------- pictures
@pytest.mark.slow
def test_saved_pictures_are_the_named_files_and_drawing_changes_no_settings(tmp_path, page):
    before = dict(matplotlib.rcParams)
    folders = several(tmp_path)
    files = save_curves(groups_at(*folders), tmp_path / "pictures")
    names = "accuracy_by_round accuracy_by_bytes accuracy_by_seconds train_loss test_loss partition"
    assert [file.stem for file in files] == [*names.split(), "clients", "ledger"]
    assert sorted(files) == sorted((tmp_path / "pictures").iterdir())
    again = page_of(folders, tmp_path / "r.html", pictures=tmp_path / "again")
    for file in files:
        size_of_png(file.read_bytes())
        assert (tmp_path / "again" / file.name).read_bytes() == file.read_bytes()
    assert again.text == page.text, "the same runs give the same bytes"
    assert dict(matplotlib.rcParams) == before


RISING = [0.1 + 0.08 * t for t in range(10)]


@pytest.mark.parametrize(
    ("lines", "bottom", "top"),
    [
        (([*RISING, *[0.90] * 40], [*RISING, *[0.92] * 40]), (80, 90), (92, 98)),
        (([0.1 + 0.01 * t for t in range(50)],), (-10, 10), (59, 100)),
        (([*RISING, *[0.90] * 40],), (-10, 20), (90, 100)),  # nothing differs at the end
    ],
)
def test_the_first_rounds_do_not_hide_the_difference_of_the_last(tmp_path, lines, bottom, top):
    """A share that rises within a fifth of the rounds has an axis from there on; another all."""
    groups = fake_groups(tmp_path, {f"m{n}": [line] for n, line in enumerate(lines)})
    drawn = {p.name: p for p in metric_curves(groups)}
    low, high = drawn["accuracy_by_round"].figure.axes[0].get_ylim()
    assert bottom[0] < low < bottom[1] and top[0] < high < top[1]


@pytest.mark.slow
def test_figures_for_a_paper_have_embedded_letters(tmp_path):
    curve = curves_by_name(*several(tmp_path))["accuracy_by_round"]
    pdf, svg = (f.read_bytes() for f in save_pictures([curve], tmp_path, ("pdf", "svg")))
    assert b"/MediaBox [ 0 0 403.2 " in pdf and b'width="403.2pt"' in svg
    assert b"/FontFile2" in pdf and b"/Type3" not in pdf


def test_letters_fit_and_no_axis_has_an_offset(tmp_path):
    values = [0.90001 + 0.000001 * t for t in range(60)]
    groups = fake_groups(tmp_path, {f"Method {n}": [values] for n in range(9)})
    drawn = {p.name: p for p in metric_curves(groups)}
    figure = drawn["accuracy_by_round"].figure
    axes = figure.axes[0]
    figure.canvas.draw()
    assert axes.yaxis.get_offset_text().get_text() == axes.xaxis.get_offset_text().get_text() == ""
    box, page = figure.legends[0].get_window_extent(), figure.bbox
    assert page.x0 <= box.x0 and box.x1 <= page.x1, "the legend is inside"
    assert all(line.get_marker() != "" for line in axes.lines)


def test_styles_differ_beyond_seven_methods_and_in_grey():
    looks = [nth_style(i) for i in range(28)]
    assert len({(s.colour, s.dash) for s in looks}) == 28
    assert len({s.mark for s in looks[:9]}) == 9, "marks alone tell nine apart"


def test_the_drawn_lines_are_the_means_in_per_cent(tmp_path):
    folders = several(tmp_path)
    pictures, groups = curves_by_name(*folders), groups_at(*folders)
    axes = pictures["accuracy_by_bytes"].figure.axes[0]
    assert axes.lines[0].get_ydata() == pytest.approx([55, 70])
    assert axes.lines[0].get_xdata() == pytest.approx([5000 / 1024, 15000 / 1024])
    assert axes.get_xlabel() == "bytes sent up and down (KiB)"
    for picture in pictures.values():
        lines = picture.figure.axes[0].lines[: len(groups)]
        assert [line.get_color() for line in lines] == [style_of(g).colour for g in groups]


def test_each_different_partition_is_drawn_once(tmp_path):
    other = {"counts": [[3, 0], [0, 4]], "sizes": [3, 4], "class_names": ["x"]}
    first, second = partition_charts(
        groups_at(
            fake_run(tmp_path / "a", [0.5]),
            fake_run(tmp_path / "b", [0.5], algorithm="b", label="B"),
            fake_run(tmp_path / "c", [0.5], algorithm="c", label="C", partition=other),
        )
    )
    assert (first.name, second.name) == ("partition", "partition-2")
    assert "(FedAvg, B)" in first.title and "(C)" in second.title


@pytest.mark.parametrize("clients", [60, 61])
def test_the_heat_map_shows_shares_and_sorts_only_many_clients(tmp_path, clients):
    counts = ([[0, 4, 0], [1, 0, 3], [5, 5, 0], [0, 0, 0], [9, 0, 0]] * 13)[:clients]
    partition = {"counts": counts, "sizes": [sum(row) for row in counts], "class_names": []}
    (picture,) = partition_charts(groups_at(fake_run(tmp_path / "a", [0.5], partition=partition)))
    image = picture.figure.axes[1].images[0].get_array()
    assert image.shape == (3, clients)
    assert sorted({round(float(t)) for t in image.sum(axis=0)}) == [0, 100]
    if clients <= 60:
        assert image[:, 1].tolist() == [25, 0, 75]
    else:
        main = image.argmax(axis=0)
        assert (main[1:] >= main[:-1]).all()


def test_bars_count_every_known_client_and_the_bytes_of_a_client_round(tmp_path):
    """Over two seeds of four rounds; values of clients are 0.5, 0.54, ..., 0.82."""
    groups = fake_groups(tmp_path, {"a": [[0.5] * 4] * 2})
    picture = clients_chart(groups)
    heights = [patch.get_height() for patch in picture.figure.axes[0].patches]
    assert sum(heights) == pytest.approx(100) and "mean 66.00 %" in picture.alt
    bill = {(item.direction, item.field): item for item in field_bytes(groups[0])}
    assert list(bill) == [("down", "x"), ("up", "delta"), ("up", "weight")]
    assert (bill["down", "x"].total, bill["down", "x"].each) == (4 * 4000, 400)
    bars = ledger_chart(groups).figure.axes[0].patches
    assert [bar.get_width() for bar in bars] == [400, 80, 20]


@pytest.mark.parametrize(
    ("metric", "first"), [(("accuracy", True, "share"), "b"), (("mse", False, ""), "c")]
)
def test_the_worst_client_is_the_first(tmp_path, metric, first):
    partition = {"sizes": [3, 4, 5], "client_names": ["a", "b", "c"]}
    run = fake_run(
        tmp_path / "a", [0.5], metric=metric, partition=partition, clients=[0.5, 0.2, 0.7]
    )
    assert client_cells(groups_at(run))[1][0][0] == first


# ------------------------------------------------------------------------------------- sub-models
@pytest.fixture
def sized(tmp_path):
    """Eleven evaluations of two sizes, of 0.5 only the common test set."""
    values = [0.5, *(0.6 + 0.01 * k for k in range(10))]
    run = fake_run(tmp_path / "a", values)
    rows = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    shares = {"explored@0.5": 0.5, "explored@1": 1.0, "replaced@0.5": 0.1, "replaced@1": 0.0}
    sizes = [{"test_accuracy@0.5": value, "test_accuracy@1": 0.7} | shares for value in values]
    write_rows(run / "rounds.jsonl", [a | b for a, b in zip(rows, sizes, strict=True)])
    summary = json.loads((run / "summary.json").read_text()) | {"parameters": 100}
    half, whole = ({"counted": n, "of": 80, "all": m} for n, m in ((40, 60), (80, 100)))
    one = lambda c: {"capacity": c, "trained": c == 0.5, "global": c, "outside": None}
    cost = {"0.5": {"seconds": 0.002, "peak": 2048}, "1": {"seconds": 0.004, "peak": 4096}}
    summary["sizes"] = {"held": {"0.5": half, "1": whole}, "cost": cost}
    summary["sizes"]["unseen"] = [one(0.25), one(0.5)]
    summary["sizes"]["global"] = {"0.5": 0.5, "1": 0.7}
    (run / "summary.json").write_text(json.dumps(summary))
    return groups_at(run)


def test_the_table_has_last_values_means_of_ten_and_what_is_held(sized):
    heads, lines = size_cells(sized)
    assert heads == ["algorithm", "measured", "size 1/2", "size 1", "mean"]
    assert [line[-1] for line in lines if "size" in line[1]] == ["25.00 %", "50.00 %"]
    assert {line[1]: line[2:4] for line in lines} == {
        "global": ["69.00 %", "70.00 %"],
        "global, mean of last 10": ["64.50 %", "70.00 %"],
        "global, size 1/4, untrained": ["-", "-"],
        "global, size 1/2": ["-", "-"],
        "held, of what counts": ["50.00 %", "100.00 %"],
        "held, of all parameters": ["60.00 %", "100.00 %"],
        "time of a step": ["2.00 ms", "4.00 ms"],
        "memory of a step": ["2.00 KiB", "4.00 KiB"],
    }


def test_the_pictures_of_sizes_stay_within_percent(sized):
    pictures = {p.name: p for p in size_pictures(sized)}
    for name in ("sizes-explored", "sizes-replaced"):
        for axes in pictures[name].figure.axes:
            low, high = axes.get_ylim()
            assert -3 < low < high < 105
    left, right = pictures["sizes-rounds"].figure.axes
    assert left.get_ylim() == right.get_ylim() and left.get_title("left") == "size 1/2"
    assert pictures["sizes-rounds"].alt.endswith("FedAvg at size 1/2 69; FedAvg at size 1 70.")


def test_a_size_is_written_as_papers_write_it():
    words = {1 / 64: "1/64", 0.2: "0.2", 1 / 3: "0.333333", 0.5: "1/2", 1: "1"}
    for share, text in words.items():
        assert human_size(share) == human_size(float(f"{share:.6g}")) == text
