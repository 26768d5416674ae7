"""README and the pages, also those made from the code, are whole; their lines run, and links lead
somewhere.
"""

import functools
import importlib
import os
import re
import runpy
import subprocess
from pathlib import Path

import pytest

from fedloom.algorithms.registry import ALGORITHMS, options
from fedloom.compression.codecs import CODECS
from fedloom.config import resolve
from fedloom.config.help_texts import options_of
from fedloom.config.overrides import REGISTRIES
from fedloom.data.partition import PARTITIONS
from support.scripts import ROOT, load

# words of which other pages are made, from where their links lead
PARTS = ("docs/results/words/", "benchmarks/records/performance.md")
LINK = re.compile(r"\]\((?!\w+:|#|<)([^)#\s]+)")
README = (ROOT / "README.md").read_text(encoding="utf-8")
PYTHON = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
PAGES, GALLERY = (load(name, ROOT / "docs" / f"{name}.py") for name in ("pages", "gallery"))
PAGES.pages = functools.cache(PAGES.pages)


def committed(*words):
    line = ["git", "ls-files", *words]
    out = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return set(out.splitlines())


# ------------------------------------------------------------------------------------------ README
def test_readme_names_every_method():
    named = re.sub(r"[^a-z]", "", README.lower())
    plain = [name.replace("_", "").removesuffix("adaptive") for name in ALGORITHMS]
    assert not [name for name in plain if name not in named]
    assert f"{len(ALGORITHMS)} methods" in README


@pytest.mark.parametrize("number", range(len(PYTHON)))
@pytest.mark.usefixtures("shared_workers")
def test_readmes_python_runs(number, fedloom):
    """The first block with fewer rounds; the method is checked by `fedloom check`."""
    Path("part.py").write_text(PYTHON[number].replace("rounds=60", "rounds=2"), encoding="utf-8")
    if number == 0:
        runpy.run_path("part.py", run_name="__main__")
    else:
        fedloom("check", "part.py:Prox")


# ------------------------------------------------------------------------------------------- links
def test_every_linked_file_is_a_page_of_the_site():
    """`make site` ends with an error for a link to a file of a kind that it makes no page of."""
    site = load("build", ROOT / "site/build.py")
    kinds = {".md", ".png", ".svg", *site.TEXT}
    texts = [f for f in site.listed("*.md") if site.within(f, site.COPIED)]
    lost = {(str(f), str(to)) for f in texts for to in site.linked(f) if to.suffix not in kinds}
    assert lost == set()


def with_folders(files):
    return files | {str(parent) for file in files for parent in Path(file).parents}


def test_every_link_leads_to_a_file_of_a_fresh_clone():
    """Of pages that are made, also to another one; mkdocs checks the anchors."""
    files = committed()
    generated = {f"docs/{name}": text for name, text in PAGES.pages().items()}
    assert not files & set(generated), "made by `nox -s docs`, and not committed"
    whole = {file for file in files if file.endswith(".md") and not file.startswith(PARTS)}
    pages = {file: (ROOT / file).read_text() for file in whole} | generated
    own, all_there = with_folders(files), with_folders(files | set(generated))
    for page, text in pages.items():
        there = all_there if page in generated else own
        for link in LINK.findall(text):
            assert os.path.normpath(Path(page).parent / link) in there, f"{page}: {link}"


# ------------------------------------------------------------------------------------------ layout
# the line before a list's first item or a table's head, unless it is blank or a heading
JOINED = re.compile(
    r"^(?!$|#| *[-*] | *\d+\. |[ |<]).*\n(?=[-*] |\d+\. |\| )|^```\n(?=[-*] |\| )", re.MULTILINE
)


def joined(text):
    """The lines before lists and tables that the site would join with them to one paragraph."""
    text = re.sub(r"^```.*?^```$", "```", text, flags=re.MULTILINE | re.DOTALL)
    return [found[0] for found in JOINED.finditer(text)]


@pytest.mark.parametrize("page", sorted(committed("README.md", "docs/*.md")))
def test_a_list_and_a_table_begin_after_a_blank_line(page):
    assert joined((ROOT / page).read_text("utf-8")) == []


def test_a_first_page_s_picture_is_small_and_shown():
    for page in ("quickstart", "tutorial"):
        assert f"](pictures/{page}.png)" in (ROOT / "docs" / f"{page}.md").read_text("utf-8")
        assert (ROOT / "docs" / "pictures" / f"{page}.png").stat().st_size < 60_000


def test_the_gallery_is_what_its_script_says():
    assert (ROOT / "docs/gallery.md").read_text(encoding="utf-8") == GALLERY.page()
    shown = [GALLERY.copied(file) for section in GALLERY.SECTIONS for file in section.shown]
    assert sorted(shown) == sorted(GALLERY.PICTURES.iterdir())
    assert "docs/gallery.md" in (ROOT / "site/mkdocs.yml").read_text(encoding="utf-8")


# -------------------------------------------------------------------------- made from the code
def test_the_list_of_parts_has_every_name():
    page = PAGES.parts()
    for name in (*ALGORITHMS, *CODECS, *PARTITIONS):
        assert f"\n| `{name}` | " in page


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_methods_page_has_everything_and_its_proofs(name):
    text = PAGES.page(name)
    assert text.startswith(f"# {ALGORITHMS.label(name)[0].upper()}")
    for key, option in options(name).items():
        assert f"`algorithm.{key}`" in text
        assert option.source.replace("|", "\\|") in text
    assert "| gradients per step |" in text and f"algorithm={name}" in text
    files = {proof.file for proof in PAGES.proofs_of(name)}
    assert any(f.startswith(("tests/closed_form/", "tests/golden/")) for f in files)
    assert "tests/system/test_costs.py" in files


def test_proofs_are_found_by_whole_words():
    names = {p.says for p in PAGES.proofs_of("scaffold")}
    assert "late updates do not move scaffold" in names
    assert "fedavg ends in its biased fixed point" not in names
    cases = {c for p in PAGES.proofs_of("fedsam") for c in p.cases}
    assert "FedSAM(rho 0) is FedAvg" in cases
    assert "MoFedSAM(rho 0) is FedCM" not in cases
    assert {p.says for p in PAGES.proofs_of_all()} >= {"two workers have the bits of serial"}


@pytest.mark.parametrize("line", [line for lines in PAGES.LINES.values() for _, line in lines])
def test_a_line_on_a_page_is_a_run(line):
    resolve("digits", line.split()).experiment().plan()


def test_the_page_of_performance_is_what_the_records_say(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    generated = importlib.import_module("performance")
    again = "make it again: python benchmarks/performance.py"
    assert generated.PAGE.read_text(encoding="utf-8") == generated.page(), again
    assert generated.newest("W9") == (None, []) and generated.table("W9") == "Not measured yet."


def test_the_pages_can_be_written(tmp_path):
    (tmp_path / "algorithms").mkdir()
    (tmp_path / "algorithms" / "gone.md").write_text("of a method that is no more")
    PAGES.write(tmp_path)
    papers = {name for name in ALGORITHMS if not PAGES.is_more(name)}
    assert {p.stem for p in (tmp_path / "algorithms").glob("*")} == {*papers, "README", "more"}
    texts = [page.read_text("utf-8") for page in tmp_path.rglob("*.md")]
    assert not [found for text in texts for found in joined(text)]
    assert "ditto" in {*ALGORITHMS} - papers and "\n## Ditto\n" in PAGES.more()


def test_every_option_of_every_part_is_on_the_page():
    page = PAGES.settings()
    for path, makers in REGISTRIES.items():
        if path in ("algorithm", "compress.down"):
            continue
        for name in makers:
            assert f"### {path} = {name}\n" in page
            assert all(f"| `{s.key}` | " in page for s in options_of(path, name))
