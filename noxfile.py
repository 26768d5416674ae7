"""What is done less often than the targets of the Makefile: `.venv/bin/nox -s NAME`.

`.venv/bin/nox -l` lists the names. TORCH=cpu in front takes a PyTorch without CUDA, as with make.
Words after -- go to the program: `.venv/bin/nox -s soak -- --kills 1000`. What needs other versions
than the lock's has an environment of its own below .nox.
"""

from __future__ import annotations

import functools
import os
import shutil
import sys
from pathlib import Path

import nox

sys.path.insert(0, "requirements")
from pythons import candidates, starts, supported

TORCH = os.environ.get("TORCH", "auto")
LOCK, LOWEST, FLOWER = (f"requirements/{name}.txt" for name in ("lock", "lowest", "flower"))
PAPERS = "packages/fedloom-papers"
CONFORMANCE = "packages/fedloom-conformance"
FRAMEWORKS = ("fedloom", "pfl", "flwr", "fluke")
PYTEST = (sys.executable, "-m", "pytest")
# what `make test` runs whatever it takes: layers, links, README, kills, crashes and golden bits
ALWAYS = (
    *(
        "tests/golden/",
        "tests/unit/test_imports.py",
        "packages/fedloom-flower/tests/test_layers.py",
    ),
    "tests/system/test_pages.py",
    *("tests/system/test_kills.py::test_kill_9", "tests/system/test_crash_points.py"),
)
QUICK = ("-n", "2", "--dist", "worksteal", "-m", "not slow")

nox.options.sessions = []  # none is run without its name
nox.options.default_venv_backend = "venv"
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
here = functools.partial(nox.session, venv_backend="none")  # in the environment that make installed
own = functools.partial(nox.session, reuse_venv=True)


def brief() -> list[str]:
    """The tests of the bits of runs, the data, imports, and pages: what another Python or library
    changes first.
    """
    names = ("imports", "config", "storage", "data_*", "federated_data", "partition*", "report_*")
    found = [path for name in names for path in Path("tests/unit").glob(f"test_{name}.py")]
    found += [Path("tests/golden"), Path("tests/system/test_install.py")]
    return sorted(map(str, [*found, *Path(PAPERS, "tests").glob("test_results*.py")]))


def install(session: nox.Session, lock: str, *words: str) -> None:
    """PyTorch first, which chooses its build; then what builds fedloom, so that nothing is fetched
    unlocked; then these words.
    """
    session.run("python", "requirements/get_torch.py", TORCH, "--lock", lock)
    session.install("-c", lock, "hatchling", "editables")
    session.install("-c", lock, "--no-build-isolation", *words)


# ------------------------------------------------------------------------------------ other tests
@here(name="test-brief")
def test_brief(session: nox.Session) -> None:
    """A minute of the fast tests."""
    session.run(*PYTEST, *QUICK, *brief())


@here()
def slow(session: nox.Session) -> None:
    """Measure all tests without the mark, one at a time, and write tests/slow.txt."""
    times = Path(session.create_tmp(), "times").resolve()
    times.unlink(missing_ok=True)
    session.run(*PYTEST, "-m", "not slow or listed", env={"FEDLOOM_TEST_TIMES": str(times)})
    took = dict(line.split("\t")[::-1] for line in times.read_text("utf-8").splitlines())
    names = {name for name, s in took.items() if float(s) >= 1 and not name.startswith(ALWAYS)}
    Path("tests/slow.txt").write_text("".join(f"{name}\n" for name in sorted(names)), "utf-8")


@here(name="test-pythons")
@nox.parametrize("version", [nox.param(version, id=version) for version in supported()])
def test_pythons(session: nox.Session, version: str) -> None:
    """`make test` with each Python of pyproject.toml that is at hand."""
    python = next((path for path in candidates(version) if starts(path, version)), None)
    if python is None:
        session.skip(f"there is no Python {version} that starts")
    session.run("make", "test", f"PYTHON={python}", f"VENV=.venv-{version}", f"TORCH={TORCH}")


@own(name="test-newest", reuse_venv=False)
def test_newest(session: nox.Session) -> None:
    """`make test` with the newest versions of everything that pyproject.toml allows."""
    folder = session.virtualenv.location
    session.run("python", "requirements/get_torch.py", TORCH, "--newest")
    session.install("-e", ".[dev]", "-e", PAPERS)
    Path(folder, f"installed-{TORCH}").touch()
    session.run("make", "test", f"VENV={folder}", f"TORCH={TORCH}", external=True)


# As old a PyTorch mostly has no build without CUDA in an index at hand: TORCH=auto then fetches
# the other.
@own(name="test-lowest", python=supported()[:1], reuse_venv=False)
def test_lowest(session: nox.Session) -> None:
    """A minute of tests with the lowest versions that it allows, on the oldest Python."""
    install(session, LOWEST, "-e", ".[dev]", "-e", PAPERS)
    session.run("pytest", *QUICK, "-W", "ignore::DeprecationWarning", *brief())


@own(name="test-trackers")
def test_trackers(session: nox.Session) -> None:
    """The tests of trackers and of searches by Optuna, with those libraries in their versions."""
    install(session, LOCK, "-e", ".[dev]", "-e", PAPERS)
    session.install("--no-build-isolation", "-e", ".[tensorboard,wandb,mlflow,optuna]")
    session.run("pytest", "tests/unit/test_trackers.py", "tests/unit/test_sweep.py")


@own(name="test-flower")
def test_flower(session: nox.Session) -> None:
    """A federation over TLS on this machine, with its failures: half an hour. FLWR=1.41 or
    FLWR=newest in front takes another Flower than the lock's.
    """
    words = ("-e", ".[digits,tables]", "-e", "packages/fedloom-flower", "pytest", "hypothesis")
    install(session, FLOWER, *words)  # Flower holds back rich, packaging and others
    if flwr := os.environ.get("FLWR"):
        session.install("--upgrade", "flwr" if flwr == "newest" else f"flwr=={flwr}.*")
    session.run("pytest", "packages/fedloom-flower/tests/flower", *session.posargs)


@own()
def wheel(session: nox.Session) -> None:
    """Build the package and check it; wheel-demo then runs the demo from it."""
    shutil.rmtree("dist", ignore_errors=True)
    session.install("-r", "requirements/wheel.txt")
    session.run("python", "-m", "build", "--no-isolation")
    session.run("twine", "check", "--strict", *map(str, Path("dist").iterdir()))
    session.notify("wheel-demo")


@own(name="wheel-demo", reuse_venv=False)
def wheel_demo(session: nox.Session) -> None:
    """The demo from the built package, in a folder where the checkout's fedloom is not found."""
    (built,) = Path("dist").glob("*.whl")
    session.run("python", "requirements/get_torch.py", TORCH)
    session.install("-c", LOCK, f"{built}[all]")
    session.chdir(session.create_tmp())
    session.run("fedloom", "--version")
    session.run("fedloom", "demo")


# ------------------------------------------------------------------------------- weak and strange
@here()
def soak(session: nox.Session) -> None:
    """Random kills and hostile messages without end: nox -s soak -- --kills 1000."""
    few = ["--kills", "100", "--messages", "1000000"]
    program = (sys.executable, "benchmarks/soak.py", "--record", "soak.json")
    session.run(*program, *(session.posargs or few))


@here()
def faults(session: nox.Session) -> None:
    """Federations and run folders under faults that seeds decide, in virtual time."""
    tests = ("tests/system/test_crash_points.py", "packages/fedloom-flower/tests/test_faults.py")
    session.run(*PYTEST, *tests)
    session.run(sys.executable, "benchmarks/faults.py", *(session.posargs or ["--seeds", "1000"]))


@here()
def mutants(session: nox.Session) -> None:
    """How many of 500 seeded mistakes the tests notice: about an hour."""
    needed = ("cosmic-ray==8.7.0", "pytest-cov==7.1.0")
    session.run(sys.executable, "-m", "pip", "install", "--quiet", "-c", LOCK, *needed)
    session.run(sys.executable, "benchmarks/mutants.py", *session.posargs)


def install_framework(session: nox.Session, name: str, torch: str = "") -> None:
    """Another framework at the versions of its lock. torch: a lock for it where that has none."""
    adapter = Path(CONFORMANCE, "adapters", name)
    lock = str(adapter / "requirements.txt")
    if torch or "\ntorch==" in Path(lock).read_text(encoding="utf-8"):
        session.run("python", "requirements/get_torch.py", TORCH, "--lock", torch or lock)
    session.install("-c", lock, "-r", str(adapter / "requirements.in"))


@own()
@nox.parametrize("name", [nox.param(name, id=name) for name in FRAMEWORKS])
def conformance(session: nox.Session, name: str) -> None:
    """Flower, pfl, fluke and fedloom beside the papers' recurrences, and then the page of them."""
    adapter, found = (
        Path(CONFORMANCE, "adapters", name),
        Path(CONFORMANCE, "results", f"{name}.json"),
    )
    lock = str(adapter / "requirements.txt")
    if name == "fedloom":
        install(session, lock, "-e", ".[privacy]")
    else:
        install_framework(session, name)
    found.parent.mkdir(exist_ok=True)
    found.unlink(missing_ok=True)
    program = ("python", "-m", "fedloom_conformance", str(adapter / "adapter.py"))
    more = {"PYTHONPATH": f"{CONFORMANCE}/src"}  # a framework that does not conform is a result too
    session.run(*program, "--out", str(found), env=more, success_codes=[0, 1])
    session.notify("conformance-page")


@here(name="conformance-page")
def conformance_page(session: nox.Session) -> None:
    """docs/results/conformance.md from what each framework answered."""
    page, found = (
        "docs/results/conformance.md",
        [f"{CONFORMANCE}/results/{n}.json" for n in FRAMEWORKS],
    )
    program = (sys.executable, "-m", "fedloom_conformance.page", "--out", page, *found)
    words = ("--words", "docs/results/words/conformance.md")
    session.run(*program, *words, env={"PYTHONPATH": f"{CONFORMANCE}/src"})


@own()
@nox.parametrize("name", [nox.param(name, id=name) for name in FRAMEWORKS[1:]])
def peer(session: nox.Session, name: str) -> None:
    """The environments of `peers`; together `nox -s peer peers`."""
    install_framework(session, name, LOCK)
    more = ("flwr[simulation]",) if name == "flwr" else ()
    session.install("-c", f"{CONFORMANCE}/adapters/{name}/requirements.txt", "-e", ".", *more)


@here()
def peers(session: nox.Session) -> None:
    """Rounds of fedloom, of loops by hand, of pfl, Flower's simulation and fluke, in turn."""
    pythons = {name: Path(".nox", f"peer-{name}", "bin", "python") for name in FRAMEWORKS[1:]}
    words = [f"{name}={pythons[name.partition(':')[0]]}" for name in ("pfl:2", "flwr", "fluke")]
    program = (sys.executable, "benchmarks/rounds.py", "--engines", "auto", "--peers", *words)
    session.run(*program, *session.posargs)


# -------------------------------------------------------------------------------------- the pages
@here()
def docs(session: nox.Session) -> None:
    """The pages that are made from the code: algorithms, settings, what goes with what."""
    session.run(sys.executable, "docs/pages.py")


@here()
def results(session: nox.Session) -> None:
    """The pages that are made from committed runs and records, README too, and their pictures."""
    session.run(sys.executable, "-m", "fedloom_papers.results", *session.posargs)


@own()
def site(session: nox.Session) -> None:
    """The pages as a site, build/site/index.html; a link that leads nowhere is an error."""
    session.run(sys.executable, "docs/pages.py", external=True)
    session.install("-r", "requirements/site.txt")
    session.run("python", "site/build.py", env={"NO_MKDOCS_2_WARNING": "1"})


@here()
def clean(session: nox.Session) -> None:
    """Remove all environments and caches, this one too."""
    caches = (".nox", ".mypy_cache", ".ruff_cache", ".pytest_cache")
    for folder in [*Path().glob(".venv*"), *map(Path, caches)]:
        shutil.rmtree(folder, ignore_errors=True)
