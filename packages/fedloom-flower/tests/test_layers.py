"""What the modules of the package import, and how large they are."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import importlib.util
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import fedloom_flower
from tiny import environment

SOURCE = Path(fedloom_flower.__file__).parent
TREES = {p: ast.parse(p.read_text()) for p in sorted(SOURCE.rglob("*.py"))}
FLOWER = importlib.util.find_spec("flwr") is not None
NAMES = [m.name for m in pkgutil.walk_packages(fedloom_flower.__path__, "fedloom_flower.")]
OWN = ("certificates.py", "masked_rounds.py", "masked_sums.py")


def imported(tree):
    """The modules that a file imports from elsewhere."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            names.add(node.module)
    return names


@pytest.mark.parametrize(
    ("package", "places"),
    [
        *((name, "flower_app/") for name in ("flwr", "httpx", "starlette", "uvicorn")),
        ("cryptography", ("flower_app/", *OWN)),
        ("Crypto", "masked_sums.py"),
    ],
)
def test_a_library_is_met_in_its_place_only(package, places):
    """All else works, and is tested, where it is not installed."""
    for path, tree in TREES.items():
        if package in {name.partition(".")[0] for name in imported(tree)}:
            assert path.relative_to(SOURCE).as_posix().startswith(places)


FLOWERS = {
    (node.module, alias.name)
    for tree in TREES.values()
    for node in ast.walk(tree)
    if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("flwr")
    for alias in node.names
}


def test_no_name_of_flower_is_private_and_none_is_set():
    assert not [name for pair in FLOWERS for name in pair if name.startswith("_") or "._" in name]
    for path, tree in TREES.items():
        calls = [ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)]
        assert path.parent.name != "flower_app" or "setattr" not in calls, path


@pytest.mark.skipif(not FLOWER, reason="Flower is not installed")
@pytest.mark.parametrize(("module", "name"), sorted(FLOWERS))
def test_flower_has_what_is_imported(module, name):
    assert hasattr(importlib.import_module(module), name)


@pytest.mark.parametrize("name", [n for n in NAMES if FLOWER or "flower_app." not in n])
def test_modules_can_be_imported_and_say_what_they_are(name):
    assert (importlib.import_module(name).__doc__ or "").strip()


def test_files_and_functions_are_of_a_size_to_read():
    for path, tree in TREES.items():
        assert len(path.read_text().splitlines()) <= 500, path
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and node.end_lineno is not None:
                assert node.end_lineno - node.lineno < 70, f"{path}: {node.name}"


def test_the_command_is_found():
    (one,) = importlib.metadata.entry_points(group="fedloom.commands", name="deploy")
    assert one.value == "fedloom_flower.cli.deploy:deploy_command"


def test_what_runs_beside_a_federations_rounds_does_without_torch():
    """Its 200 MiB are for the processes that compute."""
    names = ["programs", "children", "clients", "certificates", "folder"]
    names += ["flower_app.executor", "flower_app.records", "flower_app.gate"] * FLOWER
    modules = ", ".join(f"fedloom_flower.{name}" for name in names)
    code = f"import sys, {modules}; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], env=environment(), check=True)
