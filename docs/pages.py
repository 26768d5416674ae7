"""Make docs/algorithms/, compatibility.md, parts.md and settings.md in docs: `nox -s docs`, or
`python docs/pages.py [FOLDER]`. git ignores them. It makes the schemas of what is printed too,
which are committed.

A method's page is its docstring, its cost as measured from its records, its options, the lines that
run it and its relatives, and the tests that prove it, found by their names and cases. Nothing but
the lines below is typed.
"""

from __future__ import annotations

import ast
import functools
import inspect
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import schemas

from fedloom.algorithms.registry import ALGORITHMS, make_algorithm, options
from fedloom.cli import compatibility as compatible
from fedloom.cli.list_and_show import registry_of
from fedloom.cli.method_costs import costs
from fedloom.config.help_texts import (
    OPTIMISERS,
    TABLES,
    Setting,
    as_toml,
    options_of,
    settings_in,
)
from fedloom.config.overrides import REGISTRIES

ROOT = Path(__file__).resolve().parents[1]
PROOFS = ("tests/closed_form", "tests/golden", "tests/contract", "tests/system/test_costs.py")
WORDS = {"naive_adaptive": ("naive", "naive_adaptive")}  # what tests call a method, beside its name

# what the digits need to be learnt with a method, where its name is not enough
RUN = {
    "fafed": "algorithm=fafed weighting=uniform local.lr=0.01",
}

# the chapters of docs/parts.md: a topic of `fedloom list`, and its heading
PARTS = {
    "algorithms": "Methods",
    "servers": "Server optimisers",
    "objectives": "Objectives",
    "codecs": "Codecs",
    "partitions": "Partitions",
    "submodels": "Sub-models",
    "private": "Private layers",
    "aggregations": "Aggregations",
    "attacks": "Attacks",
    "choices": "Choices of clients",
    "clocks": "Clocks",
    "devices": "Device profiles",
    "models": "Models",
    "data": "Data sets",
    "schedules": "Learning rates by round",
    "orders": "Orders of passes that go on from round to round",
    "measures": "Measures",
}

SETTINGS = """# Settings
Made by `nox -s docs` from the code; `fedloom show NAME` prints the same. [Command
line](cli.md#settings) says how to write settings. The options of methods are on their
[pages](algorithms/README.md).
"""
# the named tables of docs/settings.md
TITLES = {
    "server": "what the server does with the mean client update",
    "model": "the network",
    "data": "the examples",
    "data.partition": "which examples belong to which client",
    "local.schedule": "what the local rate is multiplied by",
    "local.passes": "in which order a client goes on with its data, from round to round",
    "objective": "the loss at the clients",
    "submodel": "which part of the model a weak client holds",
    "private": "which layers each client keeps for itself",
    "compress": "how client updates and broadcasts are compressed",
    "choose": "which clients take part, where they are not drawn",
    "devices": "how fast clients are, for simulated seconds",
    "clock": "when the server makes its step",
    "aggregation": "what the server makes of a round's client updates",
    "attack": "what hostile clients do, to see what an aggregation is worth",
    "tracker": "who else sees the settings and the rows of every round",
}

# relatives of a method, as `fedloom run` takes them; a test resolves every line
LINES: dict[str, list[tuple[str, str]]] = {
    "fedacg": [
        ("Table 4, FedAvg", "algorithm=fedavg"),
        ("Table 4, the pull alone", "algorithm=fedprox algorithm.mu=0.01"),
        ("Table 4, server momentum alone", "algorithm=fedavgm algorithm.beta=0.85"),
        (
            "Table 4, server momentum and pull",
            "algorithm=fedprox algorithm.mu=0.01 server=momentum server.beta=0.85",
        ),
        ("Table 4, acceleration alone", "algorithm=fedavg server=lookahead server.lam=0.85"),
        ("Table 4, all: FedACG", "algorithm=fedacg algorithm.lam=0.85 algorithm.beta=0.01"),
        ("Table A, FedMLB + ACG", "objective=fedmlb server=lookahead"),
        ("Table A, FedLC + ACG", "objective=fedlc server=lookahead"),
        ("Table A, FedDecorr + ACG", "objective=feddecorr server=lookahead"),
    ],
    "fedsmoo": [
        (
            "Table 8, nothing: FedAvg",
            "algorithm=fedsmoo algorithm.dynamic=false algorithm.correction=false "
            "algorithm.rho=0.0",
        ),
        (
            "Table 8, dynamic regularisation",
            "algorithm=fedsmoo algorithm.correction=false algorithm.rho=0.0",
        ),
        ("Table 8, and SAM", "algorithm=fedsmoo algorithm.correction=false"),
        ("Table 8, and its correction: FedSMOO", "algorithm=fedsmoo"),
    ],
    "scaffold": [("option I", "algorithm=scaffold algorithm.option=1")],
    "fedsam": [("the same by hand", "algorithm=fedavg local.sam=0.01")],
    "fedgamma": [("the same by hand", "algorithm=scaffold local.sam=0.01")],
    "mofedsam": [("the same by hand", "algorithm=fedcm local.sam=0.01")],
    "fedspeed": [("the same by hand", "algorithm=feddyn algorithm.alpha=0.1 local.sam=0.1")],
    "fedadam": [
        (
            "FedSMOO's code",
            "algorithm=fedadam algorithm.v0=0.0 algorithm.tau=0.01 algorithm.server_lr=0.1",
        ),
        ("Adam behind another method", "algorithm=scaffold server=adam server.lr=0.01"),
    ],
    "fedyogi": [("Yogi behind another method", "algorithm=scaffold server=yogi")],
    "fedadagrad": [("AdaGrad behind another method", "algorithm=scaffold server=adagrad")],
    "fedams": [
        ("option 2", "algorithm=fedams algorithm.option=2"),
        (
            "the authors' code",
            "algorithm=fedams algorithm.option=2 algorithm.eps=0.0 algorithm.start=0.001 "
            "algorithm.corrected=true algorithm.server_lr=1.0",
        ),
        ("FedCAMS, a 64th of the values", "algorithm=fedams compress=topk:0.015625"),
    ],
    "feddyn": [
        (
            "the authors' code for unequal clients",
            "algorithm=feddyn algorithm.size_scaled=true weighting=uniform",
        )
    ],
    "feddc": [
        ("the authors' code", "algorithm=feddc algorithm.eta0=0.1 local.lr=0.1"),
        (
            "and for unequal clients",
            "algorithm=feddc algorithm.eta0=0.1 local.lr=0.1 algorithm.size_scaled=true "
            "weighting=uniform",
        ),
    ],
    "fednova": [("with local momentum", "algorithm=fednova local.momentum=0.9")],
    "cfedavg": [
        ("Top-k .99, with feedback", "algorithm=cfedavg weighting=uniform compress=topk:0.01"),
        ("random dropping .9", "algorithm=cfedavg weighting=uniform compress=dropping:0.1"),
        (
            "unequal steps, by a time-out",
            "algorithm=cfedavg algorithm.per_step=true algorithm.server_lr=3 devices=lognormal "
            "local.seconds=0.3 compress=topk:0.01",
        ),
    ],
    "fafed": [
        (
            "the authors' code: its order, factor, floor, alpha and beta",
            "algorithm=fafed algorithm.a_lag=true algorithm.ext=0.95 algorithm.rho=0.1 "
            "algorithm.alpha=0.1 algorithm.beta=0.1",
        )
    ],
    "fedbuff": [
        ("its sizes", "algorithm=fedbuff clock.buffer=5 clock.concurrency=20"),
        ("all moves alike", "algorithm=fedbuff clock.staleness=0"),
        ("another method under its clock", "algorithm=fedadam clock=asynchronous clock.buffer=5"),
    ],
    "diloco": [
        (
            "with its inner optimiser",
            "algorithm=diloco local.optimiser=adamw local.lr=0.001 local.weight_decay=0.1",
        ),
        ("with plain local steps, by hand", "algorithm=fedavg server=nesterov"),
    ],
    "ditto": [("measured on the clients' own tests", "algorithm=ditto tests=matched")],
    "ifca": [("measured on the clients' own tests", "algorithm=ifca tests=matched")],
    "mime": [("MimeSGD: without momentum", "algorithm=mime algorithm.beta=0.0")],
    "qfedavg": [("FedAvg's step", "algorithm=qfedavg algorithm.q=0.0")],
    "fedlin": [("as in the paper, on whole data", "algorithm=fedlin weighting=uniform")],
    "fedavg": [
        ("FedPer", "algorithm=fedavg private=fedper tests=matched"),
        ("FedRep", "algorithm=fedavg private=fedrep tests=matched"),
        ("power-of-choice", "algorithm=fedavg choose=power_of_choice cohort=0.1"),
    ],
    "fedavgm": [("the same by hand", "algorithm=fedavg server=momentum server.beta=0.9")],
}


# ------------------------------------------------------------------------------------------ proofs
class Proof(NamedTuple):
    """A test: its file, what its name says, and the cases that are about a method."""

    file: str
    says: str
    cases: tuple[str, ...]


def words(name: str) -> tuple[str, ...]:
    """What names and cases of tests call a method, in lower case."""
    return WORDS.get(name, tuple({name, ALGORITHMS.label(name).lower()}))


@functools.cache
def modules() -> tuple[tuple[str, ast.Module], ...]:
    """Every file of tests that may hold a proof."""
    files: list[Path] = []
    for place in PROOFS:
        path = ROOT / place
        files += sorted(path.glob("test_*.py")) if path.is_dir() else [path]
    texts = [(str(f.relative_to(ROOT)), f.read_text(encoding="utf-8")) for f in files if f.exists()]
    return tuple((name, ast.parse(text)) for name, text in texts)


def tests_of(module: ast.Module) -> list[ast.FunctionDef]:
    """The test functions of a file."""
    found = [n for n in module.body if isinstance(n, ast.FunctionDef)]
    return [f for f in found if f.name.startswith("test_")]


def tables(module: ast.Module) -> dict[str, ast.expr]:
    """The module's own names and what they are set to."""
    found: dict[str, ast.expr] = {}
    for node in module.body:
        if isinstance(node, ast.Assign):
            found |= {t.id: node.value for t in node.targets if isinstance(t, ast.Name)}
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
            found[node.target.id] = node.value
    return found


def parameters(test: ast.FunctionDef, module: ast.Module) -> list[ast.expr]:
    """What a test is parametrised by, spelled out where it is a table of the module."""
    own, out = tables(module), []
    for call in test.decorator_list:
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "pytest.mark.parametrize":
            value = call.args[1]
            out.append(own.get(value.id, value) if isinstance(value, ast.Name) else value)
    return out


def cases_of(value: ast.expr) -> list[str]:
    """The names of the cases of a table: keys, or texts in a list."""
    if isinstance(value, ast.BinOp):
        return cases_of(value.left) + cases_of(value.right)
    inside: list[Any] = []
    if isinstance(value, ast.Dict):
        inside = value.keys
    elif isinstance(value, ast.List | ast.Tuple):
        inside = [e.elts[0] if isinstance(e, ast.Tuple) and e.elts else e for e in value.elts]
    return [k.value for k in inside if isinstance(k, ast.Constant) and isinstance(k.value, str)]


def is_for_all(test: ast.FunctionDef, module: ast.Module) -> bool:
    """Say whether a test is about every registered method, or every kind of run: `every`."""
    if not parameters(test, module) and "every" in {a.arg for a in test.args.args}:
        return True
    nodes = (node for value in parameters(test, module) for node in ast.walk(value))
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    return bool(names & {"ALGORITHMS", "METHODS"})


def proofs_of(name: str) -> list[Proof]:
    """The tests whose name or cases are about a method, by file."""
    out = []
    makers = {ALGORITHMS[name].__name__}
    pattern = re.compile(rf"(?<!\w)({'|'.join(map(re.escape, words(name)))})(?!\w)", re.IGNORECASE)
    for file, module in modules():
        for test in tests_of(module):
            says = test.name.removeprefix("test_")
            named = set(says.split("_")) & {w + s for w in words(name) for s in ("", "s")}
            values = parameters(test, module)
            cases = [c for v in values for c in cases_of(v) if pattern.search(c)]
            inline = [v for v in values if isinstance(v, ast.List)]
            used = {n.id for v in inline for n in ast.walk(v) if isinstance(n, ast.Name)}
            if named or cases or (makers & used and not is_for_all(test, module)):
                out.append(Proof(file, says.replace("_", " "), tuple(cases)))
    return out


def proofs_of_all() -> list[Proof]:
    """The tests that every registered method goes through."""
    return [
        Proof(file, test.name.removeprefix("test_").replace("_", " "), ())
        for file, module in modules()
        for test in tests_of(module)
        if is_for_all(test, module)
    ]


# ------------------------------------------------------------------------------------------- pages
def row(values: list[str]) -> str:
    """A line of a Markdown table."""
    return f"| {' | '.join(v.replace('|', chr(92) + '|') for v in values)} |"


def grid(head: list[str], rows: list[list[str]]) -> list[str]:
    """A Markdown table."""
    return [row(head), row(["---"] * len(head)), *map(row, rows)]


def listed(proofs: list[Proof]) -> list[str]:
    """Tests by file, each a sentence with its cases."""
    out: list[str] = []
    for file in dict.fromkeys(p.file for p in proofs):
        out += ["", f"[{file}](../../{file})", ""]
        for proof in (p for p in proofs if p.file == file):
            cases = "; ".join(proof.cases)
            out.append(f"- {proof.says}" + (f": {cases}" if cases else ""))
    return out


def prose(text: str) -> list[str]:
    """A docstring as Markdown: paragraphs, the records as a list, the reference as a link."""
    out: list[str] = []
    for line in text.splitlines():
        if re.match(r"(server|client|up):", line):
            gap = [""] if out and out[-1] else []
            out += [*gap, *(f"- {part}" for part in re.split(r"\s{3,}", line.strip()))]
        elif line.startswith("Reference: "):
            out += ["", f"Reference: <{line.removeprefix('Reference: ')}>"]
        elif out and out[-1].startswith("- ") and re.match(r"[A-Z]", line):
            out += ["", line]
        else:
            out.append(line)
    return re.sub(r"\n- (.*)\n\n- ", r"\n- \1\n- ", "\n".join(out)).splitlines()


def count(vectors: tuple[str, ...]) -> str:
    """How many vectors, and which."""
    return f"{len(vectors)}: {', '.join(vectors)}" if vectors else "0"


def is_more(name: str) -> bool:
    """Say whether a method is of none of the papers: it stands in algorithms/more/."""
    return ALGORITHMS[name].__module__.startswith("fedloom.algorithms.more.")


def place(name: str) -> str:
    """Where a method's page is, seen from docs/algorithms."""
    label = ALGORITHMS.label(name).lower().replace(" ", "-")
    return f"more.md#{label}" if is_more(name) else f"{name}.md"


def page(name: str) -> str:
    """docs/algorithms/NAME.md, or the method's part of more.md."""
    make, cost = ALGORITHMS[name], costs(make_algorithm(name))
    source = Path(inspect.getsourcefile(make) or "").resolve()
    code = source.relative_to(ROOT)
    rows = [
        ["server keeps", count(cost.server)],
        ["a client keeps", count(cost.memory)],
        ["a client is sent", count(cost.down)],
        ["a client answers", count(cost.up)],
        *([["once before round 1", count(cost.probe)]] if cost.probe else []),
        ["gradients per step", f"{cost.gradients:g}"],
    ]
    out = [f"# {ALGORITHMS.label(name)[0].upper()}{ALGORITHMS.label(name)[1:]}", ""]
    out += [*prose(inspect.getdoc(make) or ""), "", f"Code: [{code}](../../{code})", ""]
    out += ["## Cost", "", "Vectors of the model's length, counted in its records:", ""]
    out += grid(["", "vectors"], rows)
    out += ["", "## Options", ""]
    lines = [
        [f"`algorithm.{key}`", as_toml(o.default), o.text(), o.meaning, o.source]
        for key, o in options(name).items()
    ]
    out += (
        grid(["key", "default", "allowed", "meaning", "source"], lines)
        if lines
        else ["It has none."]
    )
    out += [
        "",
        "## Run it",
        "",
        "```sh",
        f"fedloom run digits {RUN.get(name, f'algorithm={name}')}",
        "```",
    ]
    if relatives := LINES.get(name):
        out += ["", *grid(["", "line"], [[w, f"`fedloom run {text}`"] for w, text in relatives])]
    out += ["", "[Compatibility](../compatibility.md) says what it goes with.", "", "## Proof"]
    out += [
        *listed(proofs_of(name)),
        "",
        "Every method also passes [these](README.md#what-every-method-goes-through).",
    ]
    return "\n".join(out) + "\n"


def more() -> str:
    """docs/algorithms/more.md: methods that no paper which fedloom reproduces has, on one page."""
    parts = [re.sub(r"^#", "##", page(name), flags=re.M) for name in ALGORITHMS if is_more(name)]
    head = "# More methods\n\nThose of other papers than the five that fedloom reproduces.\n"
    return "\n".join([head, *parts])


def index() -> str:
    """docs/algorithms/README.md."""
    rows = []
    for name in ALGORITHMS:
        cost = costs(make_algorithm(name))
        first = " ".join((inspect.getdoc(ALGORITHMS[name]) or "").split("\n\n")[0].split())
        numbers = [len(cost.down), len(cost.up), len(cost.memory)]
        link = f"[{ALGORITHMS.label(name)}]({place(name)})"
        rows.append([link, brief(first), *map(str, numbers), f"{cost.gradients:g}"])
    head = ["method", "what it is", "down", "up", "client", "gradients"]
    lines = [
        [f"{ALGORITHMS.label(name)}: {what}", f"`fedloom run {text}`"]
        for name in ALGORITHMS
        for what, text in LINES.get(name, ())
    ]
    return "\n".join(
        [
            "# Algorithms",
            "",
            "Made by `nox -s docs`. *down* and *up* count vectors of the model's length per client "
            "and round,",
            "*client* those that a client keeps between rounds; *gradients* are per local step.",
            "",
            *grid(head, rows),
            "",
            "## Relatives, ablations and mixtures: one line each",
            "",
            *grid(["", "line"], lines),
            "",
            "Every method works with any objective, server optimiser, local optimiser, sub-model "
            "and codec,",
            "unless [the table](../compatibility.md) says no.",
            "",
            "## What every method goes through",
            *listed(proofs_of_all()),
            "",
        ]
    )


def brief(text: str, most: int = 25) -> str:
    """A cell of at most so many words, which ends where a part of the sentence does.

    >>> brief("one two, three four", most=3), brief("one two", most=3)
    ('one two …', 'one two')
    """
    words = text.split()
    if len(words) <= most:
        return text
    kept = words[: most - 1]  # the mark is a word
    ends = [i for i, word in enumerate(kept) if word[-1] in ".,;:"]
    return f"{' '.join(kept[: ends[-1] + 1] if ends else kept).rstrip('.,;:')} …"


def parts() -> str:
    """docs/parts.md: every name of a registry with its first line."""
    out = [
        "# All parts",
        "",
        "Made by `nox -s docs` from the code; `fedloom list` prints it uncut,",
    ]
    out += ["`fedloom show NAME` a name's options.", ""]
    for topic, heading in PARTS.items():
        known = registry_of(topic)
        rows = [[f"`{name}`", brief(known.first_line(name)).replace("<", "&lt;")] for name in known]
        out += [f"## {heading}", "", *grid(["name", "what it is"], rows), ""]
    return "\n".join(out)


# keys beside the options of a table's entry
EXTRA: dict[str, tuple[Setting, ...]] = {
    "data": (
        Setting(
            "data.tests",
            "none",
            "matched, independent",
            "client test sets: with the labels of the training data, or independent of them",
        ),
    ),
    "local.schedule": (
        Setting("local.decay", "none", "in (0, 1]", "short for exponential with this decay"),
    ),
    "submodel": (
        Setting(
            "submodel.capacities",
            "[1/64, 1/16, 1/4, 1]",
            "shares in (0, 1], or a file",
            "levels, assigned in turn; one per client; or a file that has one per client",
        ),
        Setting("submodel.shares", "none", "shares", "of the clients, one for each level"),
    ),
    "compress": (
        Setting(
            "compress.feedback",
            "the codec's own",
            "residual, forget, ef21",
            "what a client does with what its codec left out",
        ),
        Setting("compress.down", "none", "a codec", "of the server's messages"),
    ),
}


def settings() -> str:
    """docs/settings.md: all settings by table."""
    out = [SETTINGS]
    for name, table in TABLES.items():
        title = "Outside of tables" if name == "run" else f"[{name}]"
        out += [f"## {title}", *plain(table), "", *of_settings(settings_in(name), "meaning"), ""]
        if name == "local":
            out += ["`local.optimiser`:", ""]
            out += [*(f"- `{key}`: {text}" for key, text in OPTIMISERS.items()), ""]
    for path, title in TITLES.items():
        out += [f"## [{path}]: {title}", ""]
        if path in EXTRA:
            out += [*of_settings(EXTRA[path], "meaning"), ""]
        for name, make in REGISTRIES[path].items():
            out += [f"### {path} = {name}", *plain(make), ""]
            if found := options_of(path, name):
                out += [*of_settings(found, "source"), ""]
    return "\n".join(out).rstrip() + "\n"


def of_settings(found: Sequence[Setting], last: str) -> list[str]:
    """A table of settings; last: the heading of the column that some of them fill."""
    heads = ["key", "default", "allowed", *([last] if any(s.about for s in found) else [])]
    rows = [[f"`{s.key}`", s.default, s.allowed, s.about][: len(heads)] for s in found]
    return grid(heads, rows)


def plain(make: Any) -> list[str]:
    """A docstring without its examples, with angle brackets and stars escaped."""
    text = (inspect.getdoc(make) or "").partition(">>>")[0].rstrip()
    for sign in "\\*_<":
        text = text.replace(sign, f"\\{sign}")
    return text.splitlines()


def compatibility() -> str:
    """What goes with what: every table."""
    out = [
        "# What goes with what",
        "",
        "`fedloom list --compatibility` prints it, from the checks of a run. `ok` runs in every "
        "engine; `no` is refused",
        "in one line, for the reason below the table. A run also checks what a part needs of data "
        "and model: labels for cross-entropy,",
        "numbers for the squared error, named blocks for FedMLB, layers that can be cut for "
        "HeteroFL, exits for ScaleFL.",
        "Here ScaleFL has its objective, self_distillation, and FjORD ordered_distillation.",
    ]
    for name, axis in compatible.AXES.items():
        (head, *rows), notes = compatible.cells(compatible.table(name))
        out += ["", f"## {axis.title}", ""]
        out += [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)]
        out += ["", *notes] if notes else []
    return "\n".join(out) + "\n"


def pages() -> dict[str, str]:
    """{path below docs: text} of everything that is made and not committed."""
    out = {f"algorithms/{name}.md": page(name) for name in ALGORITHMS if not is_more(name)}
    out |= {"algorithms/README.md": index(), "algorithms/more.md": more()}
    out |= {"compatibility.md": compatibility()}
    editors = schemas.page("run FILE.toml", schemas.settings())
    return out | {
        "parts.md": parts(),
        "settings.md": settings(),
        "schemas/settings.json": editors,
    }


def write(folder: Path) -> None:
    """Write all pages, and remove those of methods that are gone."""
    made = pages() | schemas.pages()
    for path, text in made.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    for old in (folder / "algorithms").glob("*.md"):
        if f"algorithms/{old.name}" not in made:
            old.unlink()


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs")
