"""Modules import downwards only, and what belongs in one place stays there."""

import ast
import functools
import re
import subprocess
import sys

import pytest

from tiny import SOURCE, environment

# A name stands for a module or for a whole package, whose modules may import each other. Everything
# else comes from a lower layer. docs/architecture.md shows them from top to bottom.
LAYERS = {
    0: ["_version", "errors"],
    1: ["core"],
    2: ["algorithm", "data", "objectives", "storage", "trackers"],
    3: ["aggregation", "compression", "trace", "wrappers"],
    4: ["algorithms", "federation", "submodels"],
    5: ["compose", "models", "stage"],
    6: ["plan"],
    7: ["engines"],
    8: ["evaluation"],
    9: ["server"],
    10: ["experiment", "measures"],
    11: ["checks", "recipes", "report"],
    12: ["config"],
    13: ["study"],
    14: ["referee"],
    15: ["cli"],
    16: ["__main__"],
}
LAYER = {name: layer for layer, names in LAYERS.items() for name in names}
PATHS = sorted(SOURCE.rglob("*.py"))


def module(path):
    """The dotted name below fedloom, in parts."""
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return list(parts[:-1] if parts[-1] == "__init__" else parts)


@functools.cache
def nodes(path):
    """Everything in a file but what only type checkers see."""
    tree = [ast.parse(path.read_text())]
    for node in tree:  # which grows
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            tree += node.orelse
        else:
            tree += ast.iter_child_nodes(node)
    return tree


@functools.cache
def imported(path):
    """Every name that a file imports, anywhere, as module or module.name; absolute."""
    out = set()
    folder = ["fedloom", *path.relative_to(SOURCE).parts[:-1]]
    for node in nodes(path):
        if isinstance(node, ast.Import):
            out |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom):
            home = folder[: len(folder) - node.level + 1] if node.level else []
            origin = ".".join([*home, *([node.module] if node.module else [])])
            out |= {f"{origin}.{a.name}" for a in node.names}
    return out


@functools.cache
def calls(path):
    return {ast.unparse(n.func) for n in nodes(path) if isinstance(n, ast.Call)}


def test_imports_go_down():
    for path in PATHS:
        own = module(path)
        if not own:
            continue  # the package itself names what it hands out, and loads it when it is used
        assert own[0] in LAYER, f"give {own[0]} a layer in the table above"
        for name in imported(path):
            parts = name.split(".")
            if parts[0] == "fedloom" and parts[1] != own[0]:
                assert parts[1] in LAYER, f"{'.'.join(own)} imports {name}"
                assert LAYER[parts[1]] < LAYER[own[0]], f"{'.'.join(own)} imports {name}"


def test_the_table_and_the_page_of_the_architecture_name_what_there_is():
    assert {module(p)[0] for p in PATHS if module(p)} == set(LAYER)
    page = (SOURCE.parents[1] / "docs/architecture.md").read_text(encoding="utf-8")
    named = {name.removesuffix(".py") for name in re.findall(r"`(\w+(?:\.py)?)`", page)}
    assert set(LAYER) - named == {"_version", "trace", "__main__"}
    for path in re.findall(r"`(\w+/[\w/]+\.py)`", page):
        assert any((place / path).is_file() for place in (SOURCE, SOURCE.parents[1])), path


# methods that are an expression of another paper's method
MIXTURES = {("fedspeed", "feddyn"), ("mofedsam", "fedcm"), ("fedgamma", "scaffold")}
SHARED = {"base", "buckets", "index_coding", "optimisers"}
CODECS = "compression/codecs"


@pytest.mark.parametrize("folder", ["algorithms", "wrappers", CODECS, "objectives"])
def test_papers_share_base_files_and_do_not_import_each_other(folder):
    for path in (SOURCE / folder).rglob("*.py"):
        own = [part for part in module(path) if part != "more"]
        for name in imported(path) if path.stem not in ("__init__", "registry", "rules") else ():
            parts = [part for part in name.split(".")[1:] if part != "more"]
            if parts[:-2] == own[:-1] and (own[-1], parts[-2]) not in MIXTURES:
                assert parts[-2] in SHARED, f"{path.name} imports {name}"


@pytest.mark.parametrize("folder", ["algorithms", "wrappers", CODECS])
def test_papers_are_vector_arithmetic(folder):
    for path in (SOURCE / folder).rglob("*.py"):
        for name in imported(path):
            assert not name.startswith(("torch.distributed", "fedloom.data", "fedloom.models"))
            functional = name.startswith("torch.nn.functional")
            assert functional or not name.startswith("torch.nn"), f"{path} imports {name}"


def test_engines_name_no_concrete_part():
    homes = "fedloom.algorithms.", "fedloom.wrappers.", "fedloom.compression.codecs."
    for path in (SOURCE / "engines").glob("*.py"):
        for name in imported(path):
            for home in homes:
                if name.startswith(home):
                    assert name.removeprefix(home).split(".")[0] == "base", f"{path.name}: {name}"


ONLY_IN = {  # {packages of fedloom: what is imported there and nowhere else}
    "report": "matplotlib jinja2",
    "data": "PIL pooch pyarrow datasets sklearn",
    "data report experiment": "pandas",
    "cli": "click argparse",  # argparse: of the script of an export, which has no click
    "core data": "pydantic",
    "core": "random",  # seeded for users' models: see core/rng.py
    "engines": "loky cloudpickle",
    "storage experiment cli": "safetensors",
    "core server data cli": "rich",
    "models": "transformers peft",
    "trackers": "wandb mlflow",
    "study": "optuna",
    # torch.utils.tensorboard writes its files; packages come on top, by entry points
    "": "tensorboard fedloom_flower flwr cryptography Crypto httpx starlette uvicorn",
}


def test_a_library_is_used_in_its_place_only():
    for places, packages in ONLY_IN.items():
        for package in packages.split():
            users = {p for p in PATHS if any(n.split(".")[0] == package for n in imported(p))}
            assert {module(p)[0] for p in users} <= {*places.split()}, package


def test_only_the_command_line_prints_and_reads_the_environment():
    """And folders of the user, and what torchrun sets."""
    places = ["data.published.download", "data.published.files", "core.ranks"]
    for path in PATHS:
        if module(path)[:1] != ["cli"]:
            assert "print" not in calls(path), path
            text = " ".join(ast.unparse(n) for n in nodes(path) if isinstance(n, ast.Attribute))
            if "os.environ" in text or "os.getenv" in text:
                assert ".".join(module(path)) in places, path


# {what is done for everybody: what puts it back, or makes it somebody's own}
FOR_EVERYBODY = {
    "torch.manual_seed": "torch.random.fork_rng",
    "np.random.seed": "random.setstate",
    "random.seed": "random.setstate",
    "warnings.filterwarnings": "warnings.catch_warnings",
    "warnings.simplefilter": "warnings.catch_warnings",
    "logging.basicConfig": "",
    "sys.path.append": "",
    "sys.path.insert": "sys.path.remove",
}


def test_nothing_seeds_or_filters_for_everybody():
    for path in PATHS:
        wrong = set(calls(path) & FOR_EVERYBODY.keys())
        wrong -= {call for call in wrong if FOR_EVERYBODY[call] in calls(path)}
        assert not wrong or module(path)[0] == "cli", f"{path}: {wrong}"


def test_files_and_functions_are_of_a_size_to_read():
    for path in PATHS:
        lines = len(path.read_text().splitlines())
        assert lines <= 500, path  # from 400 on a review asks whether it is one idea
        assert lines > 11 or path.stem.startswith("_"), f"{path}: say it in the file that uses it"
        for node in nodes(path):
            if isinstance(node, ast.FunctionDef) and node.end_lineno is not None:
                assert node.end_lineno - node.lineno < 70, f"{path}: {node.name}"


def run(code):
    how = {"env": environment(), "capture_output": True, "text": True, "timeout": 60}
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], check=False, **how)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


LOOK = """
import sys, warnings, logging, os
def look():
    handlers = logging.getLogger().handlers
    return list(sys.path), list(warnings.filters), dict(os.environ), list(handlers)

before = look()
import fedloom
assert look() == before
heavy = {"torch", "numpy", "pydantic", "rich", "click", "matplotlib", "sklearn", "loky"}
print(sorted(heavy & set(sys.modules)))
"""
FIRST_ROUND = """
import sys, torch
state, threads = torch.random.get_rng_state(), torch.get_num_threads()
import fedloom, fedloom.algorithms.registry, fedloom.data, fedloom.models
fedloom.Experiment
assert torch.equal(state, torch.random.get_rng_state()) and threads == torch.get_num_threads()
optional = {"matplotlib", "sklearn", "jinja2", "loky", "click", "rich", "scipy"}
optional |= {"pooch", "pandas", "sympy", "torch._dynamo"}
assert not optional & set(sys.modules)
torch.vmap(abs)(torch.ones(1))  # in old versions of torch it loads the compiler
optional -= set(sys.modules)
from fedloom import Experiment, FedAvg, data, models
for engine, cohort in (("auto", 5), ("auto", 20)):  # serial, and vectorised
    of = {"algorithm": FedAvg(), "model": models.mlp(64), "data": data.digits(), "rounds": 1}
    Experiment(**of, engine=engine, cohort=cohort).run()
print(sorted(optional & set(sys.modules)), torch.cuda.is_initialized())
"""
# a table of finished runs is there at once
REPORT = """
import sys, fedloom.report
print(sorted({"torch", "matplotlib", "jinja2", "pandas", "scipy"} & set(sys.modules)))
"""


@pytest.mark.parametrize(
    ("code", "said"), [(LOOK, "[]"), (FIRST_ROUND, "[] False"), (REPORT, "[]")]
)
def test_an_import_changes_nothing_and_loads_no_heavy_library(code, said):
    assert run(code) == said
