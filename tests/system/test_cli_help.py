"""Help answers at once; the flags are few; every name can be shown."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest
from rich.cells import cell_len

from fedloom import __version__
from fedloom.algorithms.registry import ALGORITHMS, options
from fedloom.cli.__main__ import COMMANDS, cli
from fedloom.cli.partition import partition_command
from fedloom.cli.printing import table
from fedloom.compression.codecs import MAKERS
from fedloom.data import PARTITIONS, SOURCES
from fedloom.engines import ENGINES
from fedloom.federation.devices import DEVICES
from fedloom.federation.passes import PASSES
from fedloom.federation.schedules import SCHEDULES
from fedloom.models import MODELS
from fedloom.objectives import OBJECTIVES
from fedloom.recipes import RECIPES
from fedloom.report.recorded import EVERY
from fedloom.trackers import TRACKERS
from fedloom.wrappers.registry import SERVERS
from tiny import Fedloom

# Every hand-written flag. Options of algorithms, models and data are key=value, read off their
# signatures: before a flag is added here, ask whether it is a setting of a run.
FLAGS = {
    "": {"--version", "--debug", "--help"},
    "run": {
        *("--out", "--quiet", "--dry-run", "--json", "--seeds", "--resume-if-begun"),
        *("--baselines", "--speed", "--resume", "--changed-code"),
    },
    "sweep": {"--seeds", "--by", "--trials", "--out", "--quiet", "--dry-run", "--speed"},
    "compare": {
        "--target",
        "--csv",
        "--json",
        "--latex",
        "--markdown",
        "--against",
        "--value",
        "--wide",
        "--columns",
    },
    "advise": {*("--minutes", "--trials", "--seeds", "--jobs", "--out", "--json", "--quiet")},
    "referee": {
        *("--against", "--vary", "--tune", "--trials", "--seeds", "--delta"),
        *("--minutes", "--jobs", "--out", "--json", "--quiet"),
    },
    "report": {"--out", "--target", "--figures", "--format", "--column", "--value"},
    "replay": {
        *("--round", "--blame", "--client", "--step"),
        *("--out", "--changed-code"),
    },
    "list": {"--json", "--compatibility", "--out"},
    "show": set(),
    "export": {"--out", "--format", "--capacity", "--client", "--best", "--test-set"},
    "describe": {"--target", "--least", "--json"},
    "check": {"--data", "--json", "--model"},
    "data": set(),  # of get, list and check: --data-dir, as the loaders have it
    "data partition": {"--plot", "--save"},
    "init": set(),
    "demo": {"--seeds", "--out", "--rounds"},
}

OURS = {n: c for n in COMMANDS if (c := cli.get_command(click.Context(cli), n)) is not None}
HEAVY = ("torch", "pydantic", "numpy", "matplotlib", "rich", "loky", "safetensors")


def test_the_flags_are_these() -> None:
    found = {name: _flags(command) for name, command in OURS.items()}
    found["data partition"] = _flags(partition_command)
    assert {"": _flags(cli) | {"--help"}, **found} == FLAGS


def _flags(command: click.Command) -> set[str]:
    return {
        o for p in command.params if isinstance(p, click.Option) for o in p.opts if o[:2] == "--"
    }


def test_help_and_version_import_nothing_heavy() -> None:
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
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Usage: fedloom") == len(calls) - 1


@pytest.mark.parametrize("words", [(), ("data",)])
def test_a_group_alone_prints_its_help(words: tuple[str, ...], fedloom: Fedloom) -> None:
    alone, asked = fedloom(*words), fedloom(*words, "--help")
    assert alone.stdout.strip() == asked.stdout.strip()
    assert not alone.stderr


def test_python_m_fedloom_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fedloom", "--version"], capture_output=True, text=True
    )
    assert done.stdout.split()[1].rstrip(",") == __version__
    assert done.returncode == 0


def test_no_garbage_is_looked_for_when_a_command_ends() -> None:
    code = """
import atexit, gc, sys
atexit.register(lambda: print(gc.get_freeze_count() > 1000))  # called after those that come later
sys.argv = ["fedloom", "--version"]
from fedloom.cli.__main__ import main
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split()[-1] == "True" and not done.stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_says_what_it_does(name: str) -> None:
    assert len((OURS[name].help or "").split()) > 5


REGISTRIES = {
    "recipes": RECIPES,
    "algorithms": ALGORITHMS,
    "servers": SERVERS,
    "models": MODELS,
    "data": SOURCES,
    "partitions": PARTITIONS,
    "objectives": OBJECTIVES,
    "schedules": SCHEDULES,
    "orders": PASSES,
    "codecs": MAKERS,
    "devices": DEVICES,
    "trackers": TRACKERS,
    "engines": ENGINES,
    "measures": EVERY,
}


@pytest.mark.parametrize("topic", REGISTRIES)
def test_list_names_everything_once(topic: str, fedloom: Fedloom) -> None:
    lines = fedloom("list", topic).output.splitlines()
    assert [line.split()[0] for line in lines] == list(REGISTRIES[topic])
    assert all(len(line.split()) > 1 for line in lines), "each with a sentence"


def test_list_without_a_topic_has_them_all(fedloom: Fedloom) -> None:
    words = set(fedloom("list").output.split())
    assert words >= {name for names in REGISTRIES.values() for name in [*names]} | set(REGISTRIES)


@pytest.mark.parametrize("name", sorted({n for r in REGISTRIES.values() for n in r}))
def test_everything_that_is_listed_can_be_shown(name: str, fedloom: Fedloom) -> None:
    kinds = fedloom("show", name).output
    assert kinds.startswith(f"{name} (")
    for topic, names in REGISTRIES.items():
        kind = {"data": "data set", "devices": "device profile"}.get(topic, topic.removesuffix("s"))
        assert (f"{name} ({kind})" in kinds) == (name in names)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_algorithm_is_shown_with_every_option(name: str, fedloom: Fedloom) -> None:
    text = fedloom("show", name).output
    for key, option in options(name).items():
        line = next(x for x in text.splitlines() if x.split()[:1] == [f"algorithm.{key}"])
        assert option.text() in line
        assert option.source in line


def test_what_an_algorithm_costs_is_what_its_paper_says(fedloom: Fedloom) -> None:
    lines = {x.strip() for x in fedloom("show", "scaffold").output.splitlines()}
    assert "a client is sent    2 vectors  x, c" in lines
    assert "a client sends      2 vectors  delta, dc" in lines
    assert "a client keeps      1 vector   c" in lines
    assert "gradients per step  1" in lines
    lines = {x.strip() for x in fedloom("show", "fedacg").output.splitlines()}
    assert "a client is sent    1 vector   x" in lines
    assert "a client keeps      0 vectors" in lines


def test_an_unknown_name_gets_a_suggestion(fedloom: Fedloom) -> None:
    assert "did you mean 'scaffold'?" in fedloom("show", "scafold", code=2).output


OPTIONS = [
    ["key", "meaning", "source"],
    ["algorithm.precondition_first_step", "divide the very first step too", "line 3 has no A"],
    ["algorithm.a_lag", "the matrix of the round before", "\x1b[1mred \u5e73\u5747 [b]x[/b]"],
]


@pytest.mark.parametrize("space", [None, 120, 80, 60, 20])
def test_a_table_is_wrapped_at_words_at_any_width(space: int | None) -> None:
    lines = table(OPTIONS, space).splitlines()
    assert all(cell_len(line) <= (space or 200) and line == line.rstrip() for line in lines)
    words = [word for line in OPTIONS for cell in line for word in cell.split()]
    kept = " ".join(lines).replace("\\x1b", "\x1b").split()
    assert "\x1b" not in "".join(lines), "no cell commands the terminal"
    if space != 20:  # narrower than the longest word
        assert sorted(kept) == sorted(words), "no word is cut, added or lost"
        assert lines[0].split() == OPTIONS[0]
    if space in (None, 120):
        assert len(lines) == len(OPTIONS)
    assert table([]) == ""
