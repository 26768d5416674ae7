"""Help answers at once; the flags are few; all names can be shown; no line is too wide."""

import os
import re
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner
from rich.cells import cell_len
from schemas import PRINTED, pages

from fedloom import __version__
from fedloom.algorithms.registry import ALGORITHMS, options
from fedloom.cli.__main__ import COMMANDS, FIRST, cli
from fedloom.cli.data import partition_command
from fedloom.cli.list_and_show import registry_of
from fedloom.cli.printing import reflowed, table
from fedloom_papers.pages import columns
from support.schema import check
from support.scripts import ROOT

# Every hand-written flag. Options of algorithms, models and data are key=value, read off their
# signatures: before a flag is added here, ask whether it is a setting of a run.
FLAGS = {
    "": "version debug help",
    "run": "out quiet dry-run seeds resume-if-begun baselines resume changed-code",
    "sweep": "seeds by trials out quiet",
    "compare": "target csv json latex markdown against value wide columns",
    "advise": "minutes trials seeds jobs out json quiet",
    "referee": "against vary trials seeds delta minutes jobs out json quiet",
    "report": "out target figures format value",
    "replay": "round blame client changed-code",
    "list": "json compatibility",
    "show": "",
    "export": "out weights capacity client best",
    "describe": "target least json",
    "check": "data json model",
    "data": "",  # of get, list and check: --data-dir, as the loaders have it
    "data partition": "plot save",
    "init": "",
    "demo": "seeds out rounds",
}
OURS = {n: c for n in COMMANDS if (c := cli.get_command(click.Context(cli), n)) is not None}
HEAVY = ("torch", "pydantic", "numpy", "matplotlib", "rich", "loky", "safetensors")


def flags(command):
    names = [o for p in command.params if isinstance(p, click.Option) for o in p.opts]
    return {name for name in names if name.startswith("--")}


def test_the_flags_are_these():
    names = {"": flags(cli) | {"--help"}, "data partition": flags(partition_command)}
    names |= {name: flags(command) for name, command in OURS.items()}
    assert names == {name: {f"--{f}" for f in text.split()} for name, text in FLAGS.items()}
    assert all(len((OURS[name].help or "").split()) > 5 for name in COMMANDS)


def python(*words, **more):
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, **more)


def test_help_and_version_import_nothing_heavy():
    names = [*COMMANDS, "deploy", "paper"]
    calls = [["--help"], ["--version"], *([name, "--help"] for name in names)]
    code = f"""
import sys
from fedloom.cli.__main__ import cli
from fedloom.cli.printing import table
for args in {calls!r}:
    try:
        cli.main(args, prog_name="fedloom")
    except SystemExit as end:
        assert not end.code, args
heavy = [name for name in {HEAVY!r} if name in sys.modules]
assert not heavy, heavy
"""
    done = python("-c", code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Usage: fedloom") == len(calls) - 1


@pytest.mark.parametrize("words", [(), ("data",)])
def test_a_group_alone_prints_its_help(words, fedloom):
    alone, asked = fedloom(*words), fedloom(*words, "--help")
    assert alone.stdout.strip() == asked.stdout.strip()
    assert not alone.stderr


def test_python_m_fedloom_is_the_command_and_looks_for_no_garbage_at_its_end():
    code = """
import atexit, gc, runpy, sys
atexit.register(lambda: print(gc.get_freeze_count() > 1000))  # called after those that come later
sys.argv = ["fedloom", "--version"]
runpy.run_module("fedloom", run_name="__main__")
"""
    done = python("-c", code)
    version, frozen = done.stdout.split()[1].rstrip(","), done.stdout.split()[-1]
    assert (version, frozen) == (__version__, "True") and not done.stderr and not done.returncode


@pytest.mark.slow
def test_nobody_who_reads_on_costs_no_report(tmp_path):
    words = ["-m", "fedloom", "run", "rounds=2", "local.epochs=1", "local.lr=1e6", "--out"]
    for number, err in enumerate((subprocess.DEVNULL, subprocess.STDOUT)):
        reading, writing = os.pipe()
        os.close(reading)  # as of `| head -1`, once it has its line
        line = [sys.executable, *words, str(number)]
        done = subprocess.run(line, cwd=tmp_path, stdout=writing, stderr=err, timeout=120)
        os.close(writing)
        assert done.returncode == 0
        assert (tmp_path / str(number) / "report.html").is_file()


# ------------------------------------------------------------------------------------------- names
TOPICS = ("recipes", "algorithms", "servers", "models", "data", "partitions", "objectives")
TOPICS += ("schedules", "orders", "codecs", "devices", "trackers", "engines", "measures")
REGISTRIES = {topic: registry_of(topic) for topic in TOPICS}


def test_list_names_everything_once(fedloom):
    every = check("list", fedloom("list", "--json").stdout)["topics"]
    for topic, registry in REGISTRIES.items():
        lines = fedloom("list", topic).output.splitlines()
        assert [line.split()[0] for line in lines] == list(registry)
        assert [entry["name"] for entry in every[topic]] == list(registry)
        assert all(len(line.split()) > 1 for line in lines), "each with a sentence"
    one = check("list", fedloom("list", "codecs", "--json").stdout)
    assert one == {"topics": {"codecs": every["codecs"]}}
    words = set(fedloom("list").output.split())
    assert words >= {name for names in REGISTRIES.values() for name in names} | set(REGISTRIES)


@pytest.mark.parametrize("name", sorted({n for r in REGISTRIES.values() for n in r}))
def test_everything_that_is_listed_can_be_shown(name, fedloom):
    shown = fedloom("show", name).output
    assert shown.startswith(f"{name} (")
    for topic, names in REGISTRIES.items():
        kind = {"data": "data set", "devices": "device profile"}.get(topic, topic.removesuffix("s"))
        assert (f"{name} ({kind})" in shown) == (name in names)
    for key, option in options(name).items() if name in ALGORITHMS else ():
        line = next(x for x in shown.splitlines() if x.split()[:1] == [f"algorithm.{key}"])
        assert option.text() in line and option.source in line


def test_what_an_algorithm_costs_is_shown(fedloom):
    shown = fedloom("show", "scaffold").output
    costs = ("sent    2 vectors  x, c", "sends      2 vectors  delta, dc", "keeps      1 v")
    assert all(cost in shown for cost in (*costs, "gradients per step  1"))


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("nothing", "error: unknown name 'nothing'; `fedloom list` has all names\n"),
        ("local.lrr", "did you mean 'local.lr'?"),
        ("partition", "'partition' is a kind of names; `fedloom list partitions` has"),
        ("compress", "'compress' is a kind of names; `fedloom list codecs` has"),
        ("data.alpha", "an option of a name; `fedloom show NAME` has its options, and `fedloom l"),
        ("local.decay", "`fedloom list schedules` the names"),
    ],
)
def test_a_name_that_has_no_page_says_where_to_look(name, says, fedloom):
    assert says in fedloom("show", name, code=2).output


def test_a_command_that_there_is_not_is_answered_with_the_nearest(fedloom):
    assert fedloom("rn", code=2).output == "error: unknown command 'rn'; did you mean 'run'?\n"
    assert "known: advise, check, compare, " in fedloom("ql", code=2).output


@pytest.mark.parametrize(
    ("name", "key", "table"),
    [
        ("local.lr", "local.lr", "local"),
        ("batch_size", "local.batch", "local"),
        ("rounds", "rounds", "run"),
        ("local.dp.clip", "local.dp.clip", "local.dp"),
    ],
)
def test_one_key_of_a_table_can_be_shown(name, key, table, fedloom):
    head, _, heads, line = fedloom("show", name).output.rstrip().splitlines()
    assert head == f"{key} (key of the table {table})" and heads.split()[0] == "key"
    assert line.split()[0] == key and line.split()[-5:] in [
        row.split()[-5:] for row in fedloom("show", table).output.splitlines()
    ]


def test_the_committed_schemas_are_those_of_the_records():
    schemas = {path.name for path in (ROOT / "docs/schemas").glob("*.json")} - {"settings.json"}
    assert schemas == {f"{name}.json" for name in PRINTED}
    for path, text in pages().items():
        assert (ROOT / "docs" / path).read_text("utf-8") == text, "make them again: nox -s docs"


# ---------------------------------------------------------------------------------- width of lines
CELLS = [
    ["key", "meaning", "source"],
    ["algorithm.precondition_first_step", "divide the very first step too", "line 3 has no A"],
    ["algorithm.a_lag", "the matrix of the round before", "\x1b[1mred \u5e73\u5747 [b]x[/b]"],
]


@pytest.mark.parametrize("space", [None, 120, 80, 60, 20])
def test_a_table_is_wrapped_at_words_at_any_width(space):
    lines = table(CELLS, space).splitlines()
    assert all(cell_len(line) <= (space or 200) and line == line.rstrip() for line in lines)
    words = [word for line in CELLS for cell in line for word in cell.split()]
    assert "\x1b" not in "".join(lines), "no cell commands the terminal"
    if space != 20:  # narrower than the longest word
        kept = " ".join(lines).replace("\\x1b", "\x1b").split()
        assert sorted(kept) == sorted(words), "no word is cut, added or lost"
        assert lines[0].split() == CELLS[0]
    if space in (None, 120):
        assert len(lines) == len(CELLS)
    assert table([]) == ""


SMALL = ("rounds=2", "local.epochs=1", "cohort=4", "data.clients=8")
RESULTS = ROOT / "docs/results"
LINES = str(RESULTS / "papers")
RUNS = ("digits", *SMALL, "algorithm=fedacg", "model.hidden=[64,64]")
WIDE = {
    "demo": ("demo", "--rounds", "1", "--seeds", "2"),
    "run": ("run", *RUNS, "--seeds", "2"),
    "sweep": ("sweep", *RUNS, "local.lr=0.1,0.3", "local.momentum=0.5,0.9"),
    "paper": ("paper", "fedacg:1b", "--rows", "fedavg,fedavgm,fedacg", "--out", LINES),
    "dry run": ("paper", "fedacg:1b", "--dry-run"),
    "list": ("paper", "run", str(RESULTS / "plan.toml"), "--dry-run", "--out", LINES),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WIDE)
def test_no_line_is_wider_than_the_page(name, fedloom, monkeypatch):
    """In terminals of 80 and 120 columns and in a pipe; but a command to be copied stays on its
    line. From the second time on a command finds its runs finished, and lays out the same tables.
    """
    monkeypatch.setattr("fedloom.report.write_report", lambda *given, **more: None)
    for width in (80, 120, 0) if name != "list" else (80,):  # which reads all lines for seconds
        if width:
            monkeypatch.setenv("COLUMNS", str(width))
        else:
            monkeypatch.delenv("COLUMNS")
        lines = fedloom(*WIDE[name]).stdout.splitlines()
        page = width or (columns() if name in ("paper", "dry run") else 80)
        assert lines and not [x for x in lines if len(x) > page and "fedloom " not in x]


def test_settings_that_differ_are_listed_where_a_table_would_cut_words(fedloom, monkeypatch):
    """No name of a setting or value is broken in a narrow terminal: it says whose each value is."""
    for algorithm in ("fedavg", "fedprox", "fedavgm", "fedacg"):
        words = (*SMALL[1:], "rounds=1", f"algorithm={algorithm}", "model.hidden=[8]")
        fedloom("run", "digits", *words, "--out", f"runs/{algorithm}", "--quiet")
    monkeypatch.setenv("COLUMNS", "50")
    said = fedloom("compare", "runs").stdout.partition("Settings that differ:\n")[2]
    lines = [line.split(maxsplit=1) for line in said.partition("\n\n")[0].splitlines()]
    assert ["algorithm.lam", "-; 0.85: FedACG"] in lines
    assert ["algorithm.mu", "-; 0.001: FedProx"] in lines
    assert max(map(len, said.splitlines())) <= 50
    monkeypatch.setenv("COLUMNS", "200")
    lines = [line.split() for line in fedloom("compare", "runs").stdout.splitlines()]
    assert ["algorithm.mu", "-", "-", "-", "0.001"] in lines


@pytest.mark.parametrize("name", ["fedacg", "dirichlet", "local"])
def test_a_description_is_broken_at_words(name, fedloom, monkeypatch):
    """Of `show`, in a terminal that is narrower than the docstring's lines; no word is lost."""
    monkeypatch.setenv("COLUMNS", "80")
    wide = fedloom("show", name).stdout
    narrow = reflowed(wide, 80)
    assert max(map(len, narrow.splitlines())) <= 80 and narrow.split() == wide.split()
    eight, eleven = (" ".join(["word"] * n) for n in (8, 11))
    text = f"  server: x        client: -\n  {'word ' * 19}\n  end of it\n\n  last"
    lines = ["  server: x        client: -", f"  {eleven}", f"  {eight} end of it", "", "  last"]
    assert reflowed(text, 60).splitlines() == lines, "what was not broken for its width stays"


def helps(command, context):
    """What --help prints of a command and of those below it, 80 columns wide."""
    yield command.get_help(context)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            yield from helps(below, click.Context(below, context, name, terminal_width=80))


def test_help_is_no_wider_than_a_terminal_and_begins_with_what_a_beginner_needs():
    """No summary is cut, and each takes one line."""
    text = "\n".join(helps(cli, click.Context(cli, info_name="fedloom", terminal_width=80)))
    assert not [line for line in text.splitlines() if len(line) > 80]
    said = lambda *words: CliRunner().invoke(cli, [*words, "--help"], terminal_width=80).output
    first, more = said().split("To begin with:\n")[1].split("More:\n")
    named = lambda text: re.findall(r"^  (\w+)", text, re.MULTILINE)
    assert named(first) == list(FIRST)
    assert {*named(more)} == {*cli.list_commands(click.Context(cli))} - {*FIRST}
    groups = [said(group).split("Commands:\n")[1] for group in ("data", "deploy")]
    for part in (first + more, *groups):
        assert "..." not in part and not re.search(r"^    ", part, re.MULTILINE)
