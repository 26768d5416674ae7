"""`fedloom data`: what it says of copies that are whole, altered or missing."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from click.testing import Result

from fedloom.data.published import text_classification as reviews
from fedloom.data.published.catalogue import CATALOGUE
from fedloom.data.published.verify import STATES, check
from support.downloads import FromFiles
from tiny import Fedloom


def put(path: Path, content: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return hashlib.md5(content.encode()).hexdigest()


@pytest.fixture
def news(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
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


def line(result: Result, name: str) -> str:
    found = [x for x in result.output.splitlines() if x.split()[:1] == [name]]
    assert len(found) == 1
    return found[0]


def test_list_has_every_set_and_says_where_it_is(fedloom: Fedloom, tmp_path: Path) -> None:
    (tmp_path / "leaf" / "femnist").mkdir(parents=True)
    result = fedloom("data", "list", "--data-dir", tmp_path)
    assert str(tmp_path) in result.output
    assert all(line(result, name) for name in CATALOGUE)
    assert line(result, "femnist").split()[1:4] == ["yes", "by", "hand"]
    assert line(result, "cifar10").split()[1:3] == ["no", "downloads"]


def test_an_empty_folder_has_the_digits_and_misses_the_rest(
    fedloom: Fedloom, tmp_path: Path
) -> None:
    result = fedloom("data", "check", "--data-dir", tmp_path)
    assert "verified: 1,797 images" in line(result, "digits")
    for name, entry in CATALOGUE.items():
        if entry.place:
            assert "missing: no folder" in line(result, name)
            assert entry.home in line(result, name)
    one = fedloom("data", "check", "cifar10", "--data-dir", tmp_path, code=1)
    assert "error: cifar10 is missing" in one.output


def test_get_downloads_once_and_check_verifies(fedloom: Fedloom, news: Path) -> None:
    for _ in range(2):
        result = fedloom("data", "get", "ag_news", "--data-dir", news)
        assert "ag_news: verified: train.csv and test.csv by their md5" in result.output
    assert sorted(p.name for p in (news / "ag_news_csv").iterdir()) == ["test.csv", "train.csv"]
    assert "verified" in line(fedloom("data", "check", "ag_news", "--data-dir", news), "ag_news")


def test_an_altered_file_is_named_and_the_exit_code_tells(fedloom: Fedloom, news: Path) -> None:
    fedloom("data", "get", "ag_news", "--data-dir", news)
    path = news / "ag_news_csv" / "train.csv"
    path.write_text(path.read_text()[:-4])
    result = fedloom("data", "check", "--data-dir", news, code=1)
    assert f"damaged: {path}" in line(result, "ag_news")
    assert "error: ag_news is damaged" in result.output
    again = fedloom("data", "get", "ag_news", "--data-dir", news, code=2)
    assert str(path) in again.output, "what is the user's is not overwritten"


def test_a_subset_is_named(fedloom: Fedloom, news: Path) -> None:
    fedloom("data", "get", "ag_news", "--data-dir", news)
    (news / "ag_news_csv" / "train.csv").rename(news / "ag_news_csv" / "train-3.csv")
    result = fedloom("data", "check", "--data-dir", news)
    assert "subset: test.csv by its md5; train-3.csv with 3 of 120,000" in result.output


def test_without_a_network_get_says_all_one_needs(fedloom: Fedloom, news: Path) -> None:
    for file in CATALOGUE["ag_news"].files:
        Path(unquote(urlsplit(file.url).path)).unlink()
    result = fedloom("data", "get", "ag_news", "--data-dir", news, code=2)
    train = CATALOGUE["ag_news"].files[0]
    for part in ("train.csv", str(news / "ag_news_csv"), train.url, train.md5):
        assert part in result.output
    result = fedloom("data", "get", "celeba", "--data-dir", news, code=2)
    for part in ("no download", "preprocess.sh", str(news / "leaf" / "celeba")):
        assert part in result.output
    assert "did you mean 'ag_news'" in fedloom("data", "get", "agnews", code=2).output


def test_what_is_counted_and_not_whole_is_a_subset(tmp_path: Path) -> None:
    glyph = [0.5] * 784
    user = {"users": ["a"], "num_samples": [1], "user_data": {"a": {"x": [glyph], "y": [3]}}}
    for split in ("train", "test"):
        put(tmp_path / "leaf" / "femnist" / split / "x.json", json.dumps(user))
        raw = user | {"user_data": {"a": {"raw": "x" * 90}}}
        put(tmp_path / "leaf" / "shakespeare" / split / "x.json", json.dumps(raw))
    for name, says in (
        ("femnist", "1 writers, 1 training and 1 test"),
        ("shakespeare", "1 roles, 10 training and 10 test windows"),
    ):
        found = check(name, tmp_path)
        assert found.state == "subset" and found.detail.startswith(says)
        assert found.state in STATES
    put(tmp_path / "wikitext-2" / "wiki.test.tokens", "a b c\n")
    found = check("wikitext2", tmp_path)
    assert found.state == "damaged" and "4 words, published are 245,569" in found.detail
