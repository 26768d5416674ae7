"""The pages that are made from the code are whole, their lines run, and links lead somewhere."""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from test_plain_pages import joined

from fedloom.algorithms.registry import ALGORITHMS, options
from fedloom.compression.codecs import CODECS
from fedloom.config import resolve
from fedloom.config.help_texts import options_of
from fedloom.config.overrides import REGISTRIES
from fedloom.data.partition import PARTITIONS

ROOT = Path(__file__).parents[2]
# words of which other pages are made, from where their links lead
PARTS = ("docs/results/words/", "benchmarks/records/performance.md")
LINK = re.compile(r"\]\((?!\w+:|#|<)([^)#\s]+)")


def load(file: str) -> Any:
    """A script of the checkout as a module."""
    spec = importlib.util.spec_from_file_location(Path(file).stem, ROOT / file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PAGES = load("docs/pages.py")
PAGES.pages = functools.cache(PAGES.pages)


def test_every_linked_file_is_a_page_of_the_site() -> None:
    """`make site` ends with an error for a link to a file of a kind that it makes no page of."""
    site = load("site/build.py")
    kinds = {".md", ".png", ".svg", *site.TEXT}
    texts = [f for f in site.listed("*.md") if site.within(f, site.COPIED)]
    lost = {(str(f), str(to)) for f in texts for to in site.linked(f) if to.suffix not in kinds}
    assert lost == set()


def with_folders(files: set[str]) -> set[str]:
    """Files, and the folders that they are in."""
    return files | {str(parent) for file in files for parent in Path(file).parents}


def test_every_link_leads_to_a_file_of_a_fresh_clone() -> None:
    """Of pages that are made, also to another one; mkdocs checks the anchors."""
    words = ["git", "ls-files"]
    out = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    files = set(out.splitlines())
    made = {f"docs/{name}": text for name, text in PAGES.pages().items()}
    assert not files & set(made), "made by `nox -s docs`, and not committed"
    whole = {file for file in files if file.endswith(".md") and not file.startswith(PARTS)}
    pages = {file: (ROOT / file).read_text() for file in whole} | made
    committed, all_there = with_folders(files), with_folders(files | set(made))
    for page, text in pages.items():
        there = all_there if page in made else committed
        for link in LINK.findall(text):
            assert os.path.normpath(Path(page).parent / link) in there, f"{page}: {link}"


def test_the_list_of_parts_has_every_name() -> None:
    page = PAGES.parts()
    for name in (*ALGORITHMS, *CODECS, *PARTITIONS):
        assert f"\n| `{name}` | " in page


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_page_has_everything(name: str) -> None:
    text = PAGES.page(name)
    assert text.startswith(f"# {ALGORITHMS.label(name)[0].upper()}")
    for key, option in options(name).items():
        assert f"`algorithm.{key}`" in text
        assert option.source.replace("|", "\\|") in text
    assert "| gradients per step |" in text
    assert f"algorithm={name}" in text


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_method_is_proven(name: str) -> None:
    files = {proof.file for proof in PAGES.proofs_of(name)}
    assert any(f.startswith(("tests/closed_form/", "tests/golden/")) for f in files)
    assert "tests/system/test_costs.py" in files


def test_proofs_are_found_by_whole_words() -> None:
    names = {p.says for p in PAGES.proofs_of("scaffold")}
    assert "late updates do not move scaffold" in names
    assert "fedavg ends in its biased fixed point" not in names
    cases = {c for p in PAGES.proofs_of("fedsam") for c in p.cases}
    assert "FedSAM(rho 0) is FedAvg" in cases
    assert "MoFedSAM(rho 0) is FedCM" not in cases
    assert {p.says for p in PAGES.proofs_of_all()} >= {"two workers have the bits of serial"}


@pytest.mark.parametrize("line", [line for lines in PAGES.LINES.values() for _, line in lines])
def test_a_line_on_a_page_is_a_run(line: str) -> None:
    resolve("digits", line.split()).experiment().plan()


def test_the_page_of_performance_is_what_the_records_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    made = importlib.import_module("performance")
    assert made.PAGE.read_text(encoding="utf-8") == made.page(), (
        "make it again: python benchmarks/performance.py"
    )
    assert made.newest("W9") == (None, []) and made.table("W9") == "Not measured yet."


def test_the_pages_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "algorithms").mkdir()
    (tmp_path / "algorithms" / "gone.md").write_text("of a method that is no more")
    PAGES.write(tmp_path)
    papers = {name for name in ALGORITHMS if not PAGES.is_more(name)}
    assert {p.stem for p in (tmp_path / "algorithms").glob("*")} == {*papers, "README", "more"}
    texts = [page.read_text("utf-8") for page in tmp_path.rglob("*.md")]
    assert not [found for text in texts for found in joined(text)]
    assert "ditto" in {*ALGORITHMS} - papers and "\n## Ditto\n" in PAGES.more()


def test_every_option_of_every_part_is_on_the_page() -> None:
    page = PAGES.settings()
    for path, makers in REGISTRIES.items():
        if path in ("algorithm", "compress.down"):
            continue
        for name in makers:
            assert f"### {path} = {name}\n" in page
            assert all(f"| `{s.key}` | " in page for s in options_of(path, name))
