"""The site: `make site`, or after `nox -s docs` `python site/build.py` where requirements/site.txt
is installed.

Copies the tracked pages and those that `nox -s docs` made into build/site-pages, adds a page for
every source file to which a page links, the examples and the API's reference, and lets mkdocs write
build/site. A link that leads nowhere, or a page that is not in the menu, ends it with an error.
"""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "build" / "site-pages"
# words of which other pages are made
LEFT_OUT = ("docs/results/words", "benchmarks/records/performance.md")
COPIED = (
    *("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs", "benchmarks/records", "examples"),
    "packages/fedloom-conformance/README.md",
)
TEXT = {
    ".py": "python",
    ".cff": "yaml",
    ".toml": "toml",
    ".json": "json",
    ".jsonl": "json",
    "": "text",
    ".txt": "text",
    ".ipynb": "json",
}
LINK = re.compile(r"(?<!!)\]\((?!\w+:|#)([^)#\s]+)(#[^)\s]*)?\)")
# what a user imports, in the order of the menu; each is a page
REFERENCE = {
    "fedloom.experiment.experiment": "An experiment and its settings",
    "fedloom.experiment.result": "What a run leaves",
    "fedloom.experiment.replay": "A round of a run once more",
    "fedloom.algorithm": "What an algorithm is",
    "fedloom.algorithms": "The algorithms",
    "fedloom.data": "Data and partitions",
    "fedloom.models": "Models",
    "fedloom.objectives": "Objectives",
    "fedloom.submodels": "Sub-models",
    "fedloom.compression.link": "Compression",
    "fedloom.compression.codecs": "Codecs",
    "fedloom.aggregation": "Aggregation",
    "fedloom.federation.local": "Local training",
    "fedloom.federation.sampling": "Who takes part",
    "fedloom.federation.devices": "Devices",
    "fedloom.federation.attacks": "Attacks",
    "fedloom.federation.schedules": "Schedules",
    "fedloom.wrappers": "Algorithms that change another one",
    "fedloom.measures": "Measures",
    "fedloom.report": "Reports",
    "fedloom.checks": "Checks of a user's own part",
    "fedloom_flower.engine": "A federation: the server's half",
    "fedloom_flower.node": "A federation: a client's half",
    "fedloom.errors": "Errors",
}


def listed(*words: str) -> list[Path]:
    """The files that git lists, relative to the checkout."""
    command = ["git", "ls-files", *words]
    out = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return [Path(line) for line in out.stdout.splitlines()]


def within(file: Path, places: tuple[str, ...]) -> bool:
    """Whether a file is in, or is, one of these."""
    return any(file.is_relative_to(place) for place in places)


def linked(page: Path) -> Iterator[Path]:
    """The files of the checkout to which a page links, relative to it."""
    for found in LINK.finditer((ROOT / page).read_text(encoding="utf-8")):
        target = (ROOT / page.parent / found[1]).resolve()
        if target.is_file() and target.is_relative_to(ROOT):
            yield target.relative_to(ROOT)
        elif target.is_dir():
            inside = (p for p in sorted(target.iterdir()) if p.is_file() and p.suffix in TEXT)
            yield from (p.relative_to(ROOT) for p in inside)


def shown(source: Path) -> str:
    """A page with the text of a source file, or the cells of a notebook."""
    text = (ROOT / source).read_text(encoding="utf-8")
    fence = "````"
    if source.suffix == ".ipynb":
        cells = [(cell["cell_type"], "".join(cell["source"])) for cell in json.loads(text)["cells"]]
        parts = [t if kind == "markdown" else f"```python\n{t}\n```" for kind, t in cells]
        return "\n\n".join([*parts, f"The notebook: `{source.as_posix()}`.", ""])
    return f"# {source.as_posix()}\n\n{fence}{TEXT[source.suffix]}\n{text.rstrip()}\n{fence}\n"


def copied(page: Path) -> str:
    """A page, whose links to source files and folders lead to their pages."""

    def again(found: re.Match[str]) -> str:
        target = (ROOT / page.parent / found[1]).resolve()
        to = found[1]
        if target.is_dir():
            to = f"{to.rstrip('/')}/README.md"
        elif target.suffix in TEXT and target.is_relative_to(ROOT):
            to = f"{to}.md"
        return f"]({to}{found[2] or ''})"

    return LINK.sub(again, (ROOT / page).read_text(encoding="utf-8"))


def listing(folder: Path, texts: list[Path]) -> str:
    """A page with the pages of a folder that has none of its own."""
    inside = dict.fromkeys(f.relative_to(folder).parts[0] for f in texts if folder in f.parents)
    rows = [f"- [{n}]({n})" if n.endswith(".md") else f"- [{n}]({n}/README.md)" for n in inside]
    return "\n".join([f"# {folder.as_posix()}", "", *rows, ""])


def examples() -> str:
    """A page with every example and its first line."""
    out = ["# Examples", ""]
    for file in sorted((ROOT / "examples").glob("*.py")):
        about = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
        out += [f"- [{file.stem}](examples/{file.name}.md): {about.splitlines()[0]}"]
    for file in sorted((ROOT / "examples" / "notebooks").glob("*.ipynb")):
        title = json.loads(file.read_text(encoding="utf-8"))["cells"][0]["source"][0].strip("# \n")
        out += [f"- [{file.stem}](examples/notebooks/{file.name}.md): {title}, a notebook"]
    return "\n".join([*out, ""])


def reference() -> Iterator[tuple[str, str]]:
    """(file, page) of the API's reference."""
    rows = [f"- [`{name}`]({name}.md): {title.lower()}" for name, title in REFERENCE.items()]
    text = "Made from the docstrings. What is not here is not promised to stay as it is."
    yield "README.md", "\n".join(["# Reference", "", text, "", *rows, ""])
    for name, title in REFERENCE.items():
        yield f"{name}.md", f"# {title}\n\n`{name}`\n\n::: {name}\n"


def gather() -> None:
    """Make build/site-pages anew."""
    shutil.rmtree(PAGES, ignore_errors=True)
    made = listed("--others", "--ignored", "--exclude-standard", "docs/*.md")
    files = {f for f in listed() if within(f, COPIED) and not within(f, LEFT_OUT)} | {*made}
    pages = {f for f in files if f.suffix == ".md"}
    sources = {f for p in pages for f in linked(p) if f.suffix in TEXT}
    sources |= {f for f in files if f.parts[0] == "examples"}
    texts = {p: copied(p) for p in pages}
    texts |= {f.with_name(f.name + ".md"): shown(f) for f in sources}
    for folder in {parent for f in texts for parent in f.parents if parent != Path()}:
        if folder / "README.md" not in texts:
            texts[folder / "README.md"] = listing(folder, sorted(texts))
    texts[Path("examples.md")] = examples()
    texts |= {Path("reference", name): page for name, page in reference()}
    for place, text in texts.items():
        (PAGES / place).parent.mkdir(parents=True, exist_ok=True)
        (PAGES / place).write_text(text, encoding="utf-8")
    for name in ("site.css", "iframe-worker.js"):
        shutil.copy(ROOT / "site" / name, PAGES)
    for file in files - pages:
        if file.suffix in {".png", ".svg"}:
            (PAGES / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / file, PAGES / file)


def main() -> None:
    """Gather the pages, and build."""
    gather()
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--clean"]
    done = subprocess.run([*command, "--config-file", str(ROOT / "site" / "mkdocs.yml")])
    if done.returncode:
        raise SystemExit(done.returncode)
    print(ROOT / "build" / "site" / "index.html")


if __name__ == "__main__":
    main()
