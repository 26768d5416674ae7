"""What every registered algorithm owes its readers: purity, documented state, billed messages."""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import re
from pathlib import Path

import pytest

from fedloom import Local, algorithms
from fedloom.algorithm import Algorithm
from fedloom.algorithms.registry import ALGORITHMS, make_algorithm, options
from fedloom.core.hyper import Hyper, Part
from fedloom.core.validation import fields_of
from fedloom.core.vector import fields
from fedloom.plan import traced
from fedloom.wrappers import Clip, ClipGrad, Lookahead, Prox, Sam, WeightDecay
from fedloom.wrappers.registry import SERVERS
from tiny import small, trace


@pytest.fixture(scope="module")
def ended():
    """A function: name -> the loop of a method's short run."""
    return functools.cache(lambda name: [*trace(small(make_algorithm(name)), 2)][-1])


# --------------------------------------------------------------------------------- documentation
def documented(make) -> dict[str, set[str]]:
    """{"server": names, "client": names, "up": names} as the docstring has them."""
    text = inspect.getdoc(make) or ""
    while (shorter := re.sub(r"\([^()]*\)", "", text)) != text:
        text = shorter
    result = re.search(r"server:(.*?)client:(.*?)up:([^\n]*)", text, re.DOTALL)
    assert result, f"the docstring of {make.__name__} has no line of server, client and up"
    lists = [{w.strip() for w in part.split(",")} - {"-", ""} for part in result.groups()]
    return dict(zip(("server", "client", "up"), lists, strict=True))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_docstring_lists_the_state(name, ended):
    loop, said = ended(name), documented(ALGORITHMS[name])
    assert set(fields(loop.state.srv)) == said["server"]
    assert set(fields(traced(loop.plan.algorithm, 2).up)) - {"weight"} == said["up"]
    memory = next(iter(loop.memory.get(range(7)).values()))
    assert set(fields(memory.alg)) == said["client"]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_docstring_names_paper_and_reference(name):
    text = inspect.getdoc(ALGORITHMS[name])
    assert re.match(r"[A-Z][^\n]*\(.*\d{4}", text.replace("\n", " ")) or "averaging" in text
    assert re.search(r"https://\S+", text)
    assert len(text.splitlines()) <= 12


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_fields_that_are_coded_are_sent_and_what_is_sent_is_billed(name, ended):
    ledger, algorithm = ended(name).state.ledger, make_algorithm(name)
    up = set(traced(algorithm, 2).up._fields)
    assert {"delta", "weight"} | set(algorithm.compressible_up) <= up <= set(ledger.up)
    asked = 7 if algorithm.probes else 0
    assert ledger.client_rounds == ledger.answers == 2 * 4 + asked


# a paper's class is its algorithm: that is what a reader finds in it
PAPERS = [
    (path.stem, node)
    for path in sorted(Path(algorithms.__file__).parent.rglob("*.py"))
    for node in ast.parse(path.read_text()).body
    if isinstance(node, ast.ClassDef)
    and issubclass(getattr(algorithms, node.name, type), Algorithm)
]


@pytest.mark.parametrize(("file", "kind"), PAPERS, ids=[node.name for _, node in PAPERS])
def test_a_papers_class_is_short(file, kind):
    """Bodies of 25 lines of code, a line for each hyper-parameter, three other declarations."""
    methods = [n for n in kind.body if isinstance(n, ast.FunctionDef)]
    options = [n for n in kind.body if isinstance(n, ast.AnnAssign)]
    others = [n for n in kind.body if isinstance(n, ast.Assign)]
    assert len(methods) + len(options) + len(others) == len(kind.body) - 1  # and a docstring
    code = {n.lineno for m in methods for s in m.body for n in ast.walk(s) if hasattr(n, "lineno")}
    code -= {n.lineno for m in methods for n in m.body if isinstance(n, ast.Expr)}
    assert len(code) <= 25, f"{len(code)} lines of code in the bodies of {kind.name}, {file}.py"
    assert all(n.lineno == n.end_lineno for n in options)
    assert len(others) <= 3 and {n.targets[0].id for n in others} <= {
        "compressible_up",
        "compressible_down",
        "traits",
    }


# --------------------------------------------------------------------------------- hyper-parameters
OPTIONS = [(name, key) for name in ALGORITHMS for key in options(name)]


@pytest.mark.parametrize(("name", "key"), OPTIONS)
def test_an_option_has_a_range_and_a_source(name, key):
    option = options(name)[key]
    assert option.source and (option.text() != "any" or option.default is None)
    assert option.default is not inspect.Parameter.empty


def test_every_hyper_parameter_of_the_parts_has_a_source():
    optimisers = [part for part in SERVERS.values() if dataclasses.is_dataclass(part)]
    assert len(optimisers) == len(SERVERS) - 1, "all but the look-ahead"
    for part in (Local, *optimisers, Clip, ClipGrad, Prox, Sam, WeightDecay, Lookahead):
        for field in dataclasses.fields(part):
            rule = field.metadata.get("hyper")
            if field.name not in ("inner", "opt", "schedule"):
                assert isinstance(rule, Hyper) and rule.source, f"{part.__name__}.{field.name}"


# whose source names the number of another place, or of a setting that is off by default
OTHER_NUMBERS = {
    ("QSGD", "levels"): 127,  # 2^7 - 1: 8 bits
    ("FedRep", "head"): 0.9,  # 10 of 11 epochs, as a share of steps
    ("Gaussian", "strength"): 1.0,  # of updates, and 200 of gradients
    ("Availability", "over_selection"): 1.0,  # off
    ("Dice", "cross_entropy"): 0.0,  # off
}
OFF = (None, 0.0, (), inspect.Parameter.empty)


def every_part(kind: type) -> list[type]:
    return [part for sub in kind.__subclasses__() for part in (sub, *every_part(sub))]


def test_a_default_is_the_number_that_its_source_names():
    named = 0
    for part in dict.fromkeys(every_part(Part)):
        if not part.__module__.startswith("fedloom"):
            continue
        for key, option in fields_of(part).items():
            number = re.match(r"\d[\d.]*(e-?\d+)?\b", option.source or "")
            place = (part.__name__, key)
            if number is None or place in OTHER_NUMBERS:
                assert option.default == OTHER_NUMBERS.get(place, option.default), place
            elif option.default not in OFF or option.source.startswith("0 "):
                assert option.default == float(number.group()), place
                named += 1
    assert named > 50, "few sources name a number: were the parts not loaded?"
