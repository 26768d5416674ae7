"""What every registered algorithm owes its readers: purity, documented state, billed messages."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import re
from collections import UserDict
from pathlib import Path

import pytest
import torch

from cases import METHODS, method
from fedloom import Local, algorithms
from fedloom.algorithm import Algorithm, Job
from fedloom.algorithms.registry import ALGORITHMS, options
from fedloom.checks import purity
from fedloom.core import wire
from fedloom.core.hyper import Hyper
from fedloom.core.vector import fields, tree
from fedloom.plan import traced
from fedloom.storage.records import freeze, thaw
from fedloom.wrappers import Clip, ClipGrad, Lookahead, Prox, Sam, WeightDecay
from fedloom.wrappers.registry import SERVERS
from tiny import imprint, same, small, trace

LOCAL = Local(epochs=1.5, batch=4, lr=0.1, clip=1.0, weight_decay=0.01)


class Shelf(UserDict):
    """A dictionary that the guard does not take for state: an engine is watched with it."""


class Watch(purity.CallRecorder):
    """Looks whether what was handed over has changed when it is handed back, too."""

    lent: Shelf = dataclasses.field(default_factory=Shelf)

    def call(self, name, *arguments):
        if name in ("direction", "finish"):
            self._back("loc", arguments[1])
        if name in ("start", "ask") and arguments[2].last >= 0:
            self._back(f"memory of weight {arguments[2].weight}", arguments[1])
        out = super().call(name, *arguments)
        if name in ("start", "direction"):
            self._lend("loc", out[1])
        if name in ("finish", "ask"):  # no two clients have the same size
            self._lend(f"memory of weight {arguments[-1].weight}", out[1])
        return out

    def _lend(self, what, record):
        self.lent[what] = record, imprint(record)

    def _back(self, what, record):
        held, then = self.lent[what]
        assert imprint(record) == then, f"{what} changed while the engine had it"
        assert same(record, held)

    def given(self, name):
        """What a method gave, call by call."""
        return [out for _, out in self.notes.calls[name]]


@pytest.fixture(scope="module")
def watched():
    """Every algorithm's run under watch: case -> (watch, loop)."""
    done = {}

    def run(case):
        if case not in done:
            watch = Watch(inner=method(case))
            done[case] = watch, [*trace(small(watch, local=LOCAL, cohort=5), 5)][-1]
        return done[case]

    return run


@pytest.mark.parametrize("case", METHODS)
def test_methods_are_pure_and_the_engine_changes_nothing(case, watched):
    watch, loop = watched(case)
    plain = [*trace(small(method(case), local=LOCAL, cohort=5), 5)][-1]
    assert same(loop.state.srv, plain.state.srv)
    assert not watch.notes.broken
    steps = sum(row["steps"] for row in loop.log.history)
    assert len(watch.given("direction")) == steps
    assert len(watch.given("finish")) == 25
    called = {name for name, calls in watch.notes.calls.items() if calls}
    assert {"server_init", "broadcast", "server_step", "model", "start", "unweighted"} <= called
    probes, ledger = watch.notes.calls["probe"], loop.state.ledger
    assert len(probes) == (7 if watch.probes else 0)
    assert ledger.client_rounds == ledger.answers == 25 + len(probes) and ledger.steps == steps
    for way in ("bytes_down", "bytes_up"):  # what comes before round 1 is in no row
        total = sum(row[way] for row in loop.log.history)
        assert (getattr(ledger, way) == total) == (not probes)


@pytest.mark.parametrize("case", METHODS)
def test_messages_and_memories_survive_the_wire_and_the_disk(case, watched):
    watch, loop = watched(case)
    rows = loop.memory.get(range(7)).values()
    assert rows
    answers = [up for up, _ in watch.given("finish")]
    for record in [*watch.given("broadcast"), *answers, *rows, loop.state.srv]:
        empty = tree(lambda v: torch.zeros_like(v) if isinstance(v, torch.Tensor) else 0.0, record)
        assert same(wire.unpack(wire.pack(record), empty), record)
        shape, tensors = freeze(record)
        assert same(thaw(json.loads(json.dumps(shape)), tensors), record)


# --------------------------------------------------------------------------------- documentation
def documented(make) -> dict[str, set[str]]:
    """{"server": names, "client": names, "up": names} as the docstring has them."""
    text = inspect.getdoc(make) or ""
    while (shorter := re.sub(r"\([^()]*\)", "", text)) != text:
        text = shorter
    found = re.search(r"server:(.*?)client:(.*?)up:([^\n]*)", text, re.DOTALL)
    assert found, f"the docstring of {make.__name__} has no line of server, client and up"
    lists = [{w.strip() for w in part.split(",")} - {"-", ""} for part in found.groups()]
    return dict(zip(("server", "client", "up"), lists, strict=True))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_docstring_lists_the_state(name, watched):
    watch, loop = watched(name)
    said = documented(ALGORITHMS[name])
    assert set(fields(loop.state.srv)) == said["server"]
    assert set(fields(watch.given("finish")[0][0])) - {"weight"} == said["up"]
    memory = next(iter(loop.memory.get(range(7)).values()))
    assert set(fields(memory.alg)) == said["client"]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_docstring_names_paper_and_reference(name):
    text = inspect.getdoc(ALGORITHMS[name])
    assert re.match(r"[A-Z][^\n]*\(.*\d{4}", text.replace("\n", " ")) or "averaging" in text
    assert re.search(r"https://\S+", text)
    assert len(text.splitlines()) <= 12


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_declared_fields_are_the_real_ones(name, watched):
    watch, _ = watched(name)
    alg, up = watch.inner, watch.given("finish")[0][0]
    assert {"delta", "weight"} <= set(up._fields)
    assert set(alg.compressible_up) <= set(up._fields)
    job = Job(2.0, 3.0, 0.1, 0.3, 0.0, 2.0, -1.0)
    assert alg.unweighted(up, job)._fields == traced(alg, len(up.delta)).averaged._fields


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
