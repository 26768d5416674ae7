"""`fedloom data` and `describe`: copies that are whole, altered or missing; tables of sites, of
which nobody is told; partitions, test sets and churn.
"""

import dataclasses
import hashlib
from pathlib import Path
from urllib.parse import unquote, urlsplit

import numpy as np
import pytest

from fedloom.config import resolve
from fedloom.data import measure
from fedloom.data.published import texts as reviews
from fedloom.data.published.download import CATALOGUE
from fedloom.data.published.heart import COLUMNS, heart_files
from support.downloads import FromFiles
from support.folders import record, settings
from support.schema import check


# ---------------------------------------------------------------------------------- published sets
def put(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return hashlib.md5(content.encode()).hexdigest()


@pytest.fixture
def news(tmp_path, monkeypatch):
    """A root, and AG News of two files whose home is a folder beside it."""
    home, files = tmp_path / "home", {}
    for name, rows in (("train", 3), ("test", 2)):
        md5 = put(home / f"{name}.csv", '"1","title","text"\n' * rows)
        url = (home / f"{name}.csv").as_uri()
        files[name] = dataclasses.replace(reviews.AG_NEWS[name], md5=md5, url=url)
    entry = dataclasses.replace(CATALOGUE["ag_news"], files=tuple(files.values()))
    monkeypatch.setitem(CATALOGUE, "ag_news", entry)
    monkeypatch.setattr("pooch.HTTPDownloader", FromFiles)
    monkeypatch.setattr("fedloom.data.published.download.RETRIES", 0)
    return tmp_path / "root"


def line(result, name):
    (text,) = [x for x in result.output.splitlines() if x.split()[:1] == [name]]
    return text


def test_sets_are_listed_and_those_of_an_empty_folder_are_missing(fedloom, tmp_path):
    result = fedloom("data", "check", "--data-dir", tmp_path)
    assert "verified: comes along" in line(result, "digits")
    for name, entry in CATALOGUE.items():
        if entry.place:
            assert "missing: no folder" in line(result, name)
            assert entry.home in line(result, name)
    one = fedloom("data", "check", "cifar10", "--data-dir", tmp_path, code=1)
    assert "error: cifar10 is missing" in one.output
    (tmp_path / "leaf" / "femnist").mkdir(parents=True)
    result = fedloom("data", "list", "--data-dir", tmp_path)
    assert str(tmp_path) in result.output and all(line(result, name) for name in CATALOGUE)
    assert line(result, "femnist").split()[1:4] == ["yes", "by", "hand"]
    assert line(result, "cifar10").split()[1:3] == ["no", "downloads"]


def test_get_downloads_once_and_check_names_what_was_altered(fedloom, news):
    for _ in range(2):
        result = fedloom("data", "get", "ag_news", "--data-dir", news)
        assert "ag_news: verified: by md5: train.csv, test.csv" in result.output
    path = news / "ag_news_csv" / "train.csv"
    assert sorted(p.name for p in path.parent.iterdir()) == ["test.csv", "train.csv"]
    assert "verified" in line(fedloom("data", "check", "ag_news", "--data-dir", news), "ag_news")
    whole = path.read_text()
    path.write_text(whole[:-4])
    result = fedloom("data", "check", "--data-dir", news, code=1)
    assert f"damaged: {path}" in line(result, "ag_news")
    assert "error: ag_news is damaged" in result.output
    again = fedloom("data", "get", "ag_news", "--data-dir", news, code=2)
    assert str(path) in again.output, "what is the user's is not overwritten"
    path.write_text(whole)
    path.rename(path.with_name("train-3.csv"))
    result = fedloom("data", "check", "--data-dir", news)
    assert "subset: by md5: test.csv; of yours: train-3.csv" in result.output


def test_without_a_network_get_says_all_one_needs(fedloom, news):
    for file in CATALOGUE["ag_news"].files:
        Path(unquote(urlsplit(file.url).path)).unlink()
    train = CATALOGUE["ag_news"].files[0]
    needs = ("train.csv", str(news / "ag_news_csv"), train.url, train.md5)
    by_hand = ("no download", "preprocess.sh", str(news / "leaf" / "celeba"))
    for name, parts in (("ag_news", needs), ("celeba", by_hand), ("agnews", ["mean 'ag_news'"])):
        said = fedloom("data", "get", name, "--data-dir", news, code=2).output
        assert all(part in said for part in parts)


def test_what_nobody_publishes_checksums_of_is_unchecked(fedloom, tmp_path):
    (tmp_path / "wikitext-2").mkdir()
    said = line(fedloom("data", "check", "--data-dir", tmp_path), "wikitext2")
    assert "unchecked:" in said and str(tmp_path) in said


# ---------------------------------------------------------------------------------- tables of sites
@pytest.fixture
def sites(fedloom):
    pytest.importorskip("pandas", reason="the extra tables is not installed")
    many = {"bonn": (120, 0.8), "kiel": (80, 0.2), "ulm": (7, 0.5)}
    for seed, (name, (rows, ill)) in enumerate(many.items()):
        draw = np.random.default_rng(seed)
        wards = ["Innere", "Chirurgie", f"Rare ward of {name}"]
        lines = ["age,ward,outcome"]
        for _ in range(rows):
            ward = draw.choice(wards, p=[0.6, 0.35, 0.05])
            end = "ill" if draw.random() < ill else "well"
            lines.append(f"{draw.integers(20, 95)},{ward},{end}")
        Path(f"{name}.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return [f"{name}.csv" for name in many]


def test_tables_are_described_on_a_page_and_as_json(fedloom, sites, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    said = fedloom("describe", *sites, "--target", "outcome").stdout
    assert max(map(len, said.splitlines())) <= 80
    assert "Rare" not in said and "ulm   -" in said and "age      bonn" in said
    assert "Chirurgie: -, Innere:" in said and "distance of two sites' labels 0.5" in said
    assert "labels" not in fedloom("describe", *sites).stdout
    end = fedloom("describe", *sites, "--target", "outcome", 'inputs=["age"]', "--json")
    result = check("describe", end.stdout)
    assert [*result["sites"]["bonn"]["columns"]] == ["age", "outcome"]
    nothing = {"least": 10, "rows": None, "target": "outcome", "columns": {}}
    assert result["sites"]["ulm"] == nothing
    assert 0.4 < result["labels"]["pairs"] < 0.8
    end = fedloom("describe", *sites, "--target", "age", "--least", "5", "--json")
    result = check("describe", end.stdout)
    assert result["labels"] is None and result["sites"]["ulm"]["rows"] == 7


def test_a_file_that_cannot_be_described_is_named(fedloom, sites):
    whole = Path("kiel.csv").read_text("utf-8")
    for text, says in (
        ("", "kiel.csv is empty; it needs a header and rows below it"),
        ("age,ward,outcome\n", "kiel.csv has no rows below its header"),
        (whole.replace("ward,", "dept,", 1), "kiel.csv has no column 'ward', which bonn.csv has"),
        (whole.replace("outcome", "end", 1), "kiel.csv has no column 'outcome'"),
        (whole.replace("\n", "\n?,Innere,ill\n", 1), "kiel.csv, column 'age', row 1: '?' is no fi"),
    ):
        Path("kiel.csv").write_text(text, encoding="utf-8")
        said = fedloom("describe", *sites, "--target", "outcome", code=2).stderr
        assert said.startswith("error: ") and said.count("\n") == 1 and says in said
    Path("kiel.csv").write_bytes(whole.encode("utf-16"))
    said = fedloom("describe", *sites, code=2).stderr
    assert "of this file alone: encoding.kiel = cp1252" in said
    assert fedloom("describe", *sites, "encoding.kiel=utf-16").stdout
    assert "there is no file away.csv" in fedloom("describe", "away.csv", code=2).stderr


HEART = """
[data]
name = "table"
path = {files}
names = {names}
na_values = ["?"]
target = "num > 0"
class_names = ["healthy", "ill"]
inputs = ["age", "sex", "chol"]
"""


def test_what_is_described_is_what_a_run_would_train_on(fedloom):
    """The hospitals that come along: how files are read, which rows count, what the target is."""
    pytest.importorskip("pandas", reason="the extra tables is not installed")
    files, names = [*map(str, heart_files())], [*COLUMNS]
    Path("heart.toml").write_text(HEART.format(files=files, names=names), encoding="utf-8")
    for more, counts in (
        ((), [303, 294, 123, 200]),
        (("missing=drop",), [303, 271, 123, 193]),
        (("test_share=0.34",), [199, 194, 81, 132]),
    ):
        result = check("describe", fedloom("describe", "heart.toml", *more, "--json").stdout)
        tables = result["sites"].values()
        assert all([*s["columns"]] == ["age", "sex", "chol", "num > 0"] for s in tables)
        assert [site["rows"] for site in tables] == counts
    lines = fedloom("data", "partition", "heart").stdout.splitlines()
    sites = ["cleveland", "hungarian", "switzerland", "va"]
    assert [line.split()[0] for line in lines[-4:]] == sites
    left_out = "missing = drop: rows with an empty cell are left out here"
    assert left_out in fedloom("describe", "heart.toml", "missing=drop").stdout
    assert left_out not in fedloom("describe", "heart.toml").stdout
    words = ("heart.toml", "rounds=1", "algorithm=fedavg", "model=logistic", "model.inputs=3")
    said = fedloom("data", "partition", *words, "data.missing=drop", "partition=natural").stdout
    assert "\n  rows with an empty cell             30, left out\n" in said
    Path("heart.toml").write_text("[data]\nname = 'digits'\n", encoding="utf-8")
    assert "only a table can be desc" in fedloom("describe", "heart.toml", code=2).stderr
    one = ["age,site,y", *(f"{n},{'ab'[n % 2]},{n % 3}" for n in range(60))]
    Path("one.csv").write_text("\n".join(one) + "\n", encoding="utf-8")
    end = fedloom("describe", "one.csv", "client=site", "--target", "y", "--json")
    result = check("describe", end.stdout)["sites"]
    assert {name: site["rows"] for name, site in result.items()} == {"a": 30, "b": 30}
    assert [*result["a"]["columns"]] == ["age", "y"]
    end = fedloom("describe", "one.csv", "client=site", "alpha=1", code=2)
    assert "has no key 'alpha'" in end.stderr


# -------------------------------------------------------------------------------------- partitions
def cells(result):
    """{name: value} of the table."""
    lines = [x.strip() for x in result.output.splitlines()[1:] if x.startswith("  ")]
    return {name.strip(): rest.strip() for name, _, rest in (x.partition("  ") for x in lines)}


def test_the_measures_of_a_partition_are_printed(fedloom):
    words = ["data.alpha=0.1", "tests=matched", "seed=4"]
    result = fedloom("data", "partition", "digits", *words)
    assert result.output.startswith("digits: dirichlet (alpha 0.1, clients 50), seed 4\n")
    about, shown = measure(resolve("digits", words).data()), cells(result)
    assert shown["clients"] == "50"
    assert shown["samples"] == "1,438, each held once"
    assert shown["samples per client"] == "28 to 29, median 29"
    assert shown["two clients, distance"].startswith(f"{about.labels.pairs:.3f} ")
    assert shown["training and test labels, distance"] == f"{about.tests.distance:.3f}"
    lines = result.output.splitlines()
    first = lines.index(next(x for x in lines if x.split()[:2] == ["client", "samples"]))
    assert lines[first].endswith("a bar for each class, 0 to 9")
    assert [len(x.split()[2]) for x in lines[first + 1 : first + 21]] == 20 * [10]
    assert "the others: --plot" in lines[first + 21]
    assert not list(Path().iterdir()), "nothing is written"
    show = lambda *words: cells(fedloom("data", "partition", *words))
    shown = show("partition=pathological", "partition.classes=2")  # by its short name
    assert shown["classes per client"] in ("2 of 10", "1 to 2, median 2 of 10")
    assert "held more than once" in shown["samples"]
    shown = show("partition=class_groups", "partition.groups=[[0,9],[1,2,3,4,5,6,7,8]]")
    assert shown["classes per client"] == "2 to 8, median 5 of 10"


@pytest.mark.slow
def test_a_picture_is_drawn(fedloom):
    result = fedloom("data", "partition", "digits", "--plot", "new/a.png")
    assert "picture in new/a.png" in result.output
    assert Path("new/a.png").read_bytes()[:4] == b"\x89PNG"


def test_lists_are_saved_and_used_again(fedloom):
    saved = fedloom("data", "partition", "tests=matched", "--save", "new/split.npz")
    assert "partition=lists partition.file=new/split.npz" in saved.output
    lists = ("partition=lists", "partition.file=new/split.npz", "tests=matched", "seed=7")
    one = {k: v for k, v in cells(saved).items() if not k.startswith("lists in")}
    assert one == cells(fedloom("data", "partition", *lists))


def test_matched_test_sets_are_what_clients_are_measured_on(fedloom):
    fedloom("run", "tests=matched", "rounds=2", "--out", "a", "--quiet")
    assert settings("a")["data"]["tests"] == "matched"
    clients = record("a", "clients")
    assert clients["basis"] == "own test sets" and len(clients["values"]) == 50
    fedloom("run", "a/config.toml", "tests=none", "--out", "b", "--quiet")
    assert "tests" not in settings("b")["data"]


def test_a_changing_set_of_clients_is_set_by_its_keys(fedloom):
    words = ("run", "algorithm=scaffold", "churn.active=25", "churn.every=2", "cohort=5", "--quiet")
    for more, replaced in (("churn.forget=true", 0.5), ("churn.replace=none", "none")):
        fedloom(*words, more, "rounds=3", "--out", more)
        churn = {"active": 25, "every": 2, "replace": replaced, "forget": replaced != "none"}
        assert settings(more)["churn"] == churn
    fedloom("run", "--resume", "churn.forget=true", "rounds=4", "--quiet")
