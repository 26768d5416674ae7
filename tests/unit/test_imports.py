"""Modules import downwards only, and what belongs in one place stays there."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from pathlib import Path

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


def module(path: Path) -> list[str]:
    """The dotted name below fedloom, in parts."""
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return list(parts[:-1] if parts[-1] == "__init__" else parts)


@functools.cache
def nodes(path: Path) -> list[ast.AST]:
    """Everything in a file but what only type checkers see."""
    found: list[ast.AST] = [ast.parse(path.read_text())]
    for node in found:  # which grows
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            found += node.orelse
        else:
            found += ast.iter_child_nodes(node)
    return found


@functools.cache
def imported(path: Path) -> set[str]:
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


def outside(path: Path) -> set[str]:
    """The packages that a file imports from elsewhere."""
    return {name.split(".")[0] for name in imported(path)} - {"fedloom"}


def test_imports_go_down():
    for path in PATHS:
        own = module(path)
        if not own:
            continue  # the package itself names what it hands out, and loads it when it is used
        assert own[0] in LAYER, f"give {own[0]} a layer in the table above"
        for name in imported(path):
            parts = name.split(".")
            if parts[0] != "fedloom" or parts[1] == own[0]:
                continue
            assert parts[1] in LAYER, f"{'.'.join(own)} imports {name}"
            assert LAYER[parts[1]] < LAYER[own[0]], f"{'.'.join(own)} imports {name}"


def test_the_table_names_what_there_is():
    assert {module(p)[0] for p in PATHS if module(p)} == set(LAYER)


def test_the_page_of_the_architecture_names_what_there_is():
    page = (SOURCE.parents[1] / "docs/architecture.md").read_text(encoding="utf-8")
    named = {name.removesuffix(".py") for name in re.findall(r"`(\w+(?:\.py)?)`", page)}
    assert set(LAYER) - named == {"_version", "trace", "__main__"}
    for path in re.findall(r"`(\w+/[\w/]+\.py)`", page):
        assert any((place / path).is_file() for place in (SOURCE, SOURCE.parents[1])), path


# methods that are an expression of another paper's method
MIXTURES = {("fedspeed", "feddyn"), ("mofedsam", "fedcm"), ("fedgamma", "scaffold")}
CODECS = "compression/codecs"


@pytest.mark.parametrize("folder", ["algorithms", "wrappers", CODECS, "objectives"])
def test_papers_do_not_import_each_other(folder):
    """Papers share base files; two methods are expressions of another paper's."""
    shared = {"base", "buckets", "index_coding", "optimisers", "golomb_rice", "sparse"}
    for path in (SOURCE / folder).rglob("*.py"):
        own = [part for part in module(path) if part != "more"]
        for name in imported(path) if path.stem not in ("__init__", "registry", "rules") else ():
            parts = [part for part in name.split(".")[1:] if part != "more"]
            if parts[:-2] == own[:-1] and (own[-1], parts[-2]) not in MIXTURES:
                assert parts[-2] in shared, f"{path.name} imports {name}"


@pytest.mark.parametrize("folder", ["algorithms", "wrappers", CODECS])
def test_papers_are_vector_arithmetic(folder):
    for path in (SOURCE / folder).rglob("*.py"):
        for name in imported(path):
            assert not name.startswith(("torch.distributed", "fedloom.data", "fedloom.models"))
            functional = name.startswith("torch.nn.functional")
            assert functional or not name.startswith("torch.nn"), f"{path} imports {name}"


def test_engines_name_no_concrete_part():
    for path in (SOURCE / "engines").glob("*.py"):
        for name in imported(path):
            parts = name.split(".")
            if parts[:2] in (["fedloom", "algorithms"], ["fedloom", "wrappers"]):
                assert parts[2] == "base", f"{path.name} imports {name}"
            if parts[:3] == ["fedloom", "compression", "codecs"]:
                assert parts[3] == "base", f"{path.name} imports {name}"


ONLY_IN = {
    "matplotlib": {"report"},
    "jinja2": {"report"},
    "PIL": {"data"},
    "pandas": {"data", "report", "experiment"},
    "pooch": {"data"},
    "pyarrow": {"data"},
    "datasets": {"data"},
    "click": {"cli"},
    "argparse": {"cli"},  # of the script of an export, which has no click
    "pydantic": {"core", "data"},
    "sklearn": {"data"},
    "loky": {"engines"},
    "cloudpickle": {"engines"},
    "safetensors": {"storage", "experiment", "cli"},
    "rich": {"core", "server", "data", "cli"},
    "transformers": {"models"},
    "peft": {"models"},
    "random": {"core"},  # seeded for users' models: see core/rng.py
    "tensorboard": set(),  # torch.utils.tensorboard writes its files
    "wandb": {"trackers"},
    "mlflow": {"trackers"},
    "optuna": {"study"},
    "fedloom_flower": set(),  # packages come on top: their commands are entry points
    "flwr": set(),
    "cryptography": set(),
    "Crypto": set(),
    "httpx": set(),
    "starlette": set(),
    "uvicorn": set(),
}


@pytest.mark.parametrize("package", ONLY_IN)
def test_a_library_is_used_in_its_place_only(package):
    users = {module(p)[0] for p in PATHS if package in outside(p)}
    assert users <= ONLY_IN[package]


@functools.cache
def calls(path: Path) -> set[str]:
    return {ast.unparse(n.func) for n in nodes(path) if isinstance(n, ast.Call)}


def test_only_the_command_line_prints():
    assert {module(p)[0] for p in PATHS if "print" in calls(p)} <= {"cli"}


def test_only_the_command_line_and_folders_of_the_user_read_the_environment():
    for path in PATHS:
        text = " ".join(ast.unparse(n) for n in nodes(path) if isinstance(n, ast.Attribute))
        if "os.environ" in text or "os.getenv" in text:
            own = module(path)
            places = (["data", "published", "download"], ["data", "published", "cache"])
            places += (["core", "ranks"],)  # what torchrun sets
            assert own[0] == "cli" or own in places, path


def test_nothing_seeds_or_filters_for_everybody():
    wrong = ("torch.manual_seed", "np.random.seed", "random.seed", "warnings.filterwarnings")
    wrong += ("warnings.simplefilter", "logging.basicConfig", "sys.path.append", "sys.path.insert")
    for path in PATHS:
        found = calls(path) & set(wrong)
        if "torch.random.fork_rng" in calls(path):
            found -= {"torch.manual_seed"}  # for a function that makes a model
        if "warnings.catch_warnings" in calls(path):
            found -= {"warnings.filterwarnings", "warnings.simplefilter"}
        if "sys.path.remove" in calls(path):  # while a user's own file is run
            found -= {"sys.path.insert"}
        if "random.setstate" in calls(path):  # for users' models, and put back after the run
            found -= {"np.random.seed", "random.seed"}
        assert not found or module(path)[0] == "cli", f"{path}: {found}"


def test_files_and_functions_are_of_a_size_to_read():
    for path in PATHS:
        lines = len(path.read_text().splitlines())
        assert lines <= 500, path  # from 400 on a review asks whether it is one idea
        assert lines > 11 or path.stem.startswith("_"), f"{path}: say it in the file that uses it"
        for node in nodes(path):
            if isinstance(node, ast.FunctionDef) and node.end_lineno is not None:
                assert node.end_lineno - node.lineno < 70, f"{path}: {node.name}"


# -------------------------------------------------------------------------------- in a new process
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


def run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_fedloom_does_nothing():
    assert run(LOOK) == "[]"


def test_a_first_round_loads_no_optional_library_and_seeds_nothing():
    code = """
import sys, torch
state, threads = torch.random.get_rng_state(), torch.get_num_threads()
import fedloom, fedloom.algorithms.registry, fedloom.data, fedloom.models
fedloom.Experiment
assert torch.equal(state, torch.random.get_rng_state()) and threads == torch.get_num_threads()
optional = {"matplotlib", "sklearn", "jinja2", "loky", "click", "rich", "scipy"}
optional |= {"pooch", "pandas", "sympy", "torch._dynamo"}
from fedloom import Experiment, FedAvg, data, models
for engine, cohort in (("auto", 5), ("auto", 20)):  # serial, and vectorised
    of = {"algorithm": FedAvg(), "model": models.mlp(64), "data": data.digits(), "rounds": 1}
    Experiment(**of, engine=engine, cohort=cohort).run()
print(sorted(optional & set(sys.modules)), torch.cuda.is_initialized())
"""
    assert run(code) == "[] False"


def test_reports_need_no_torch():
    """A table of finished runs is there at once."""
    assert run("import sys, fedloom.report; print('torch' in sys.modules)") == "False"
