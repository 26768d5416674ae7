"""A federation over TLS with keys has the bits and the bill of the simulation."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr")

from federations.live import live

pytestmark = [pytest.mark.flower, pytest.mark.slow]

METHODS = {
    "fedavg": ["algorithm=fedavg"],
    "scaffold": ["algorithm=scaffold"],
    "fedacg": ["algorithm=fedacg"],
    "topk": ["algorithm=fedavg", "compress=topk:0.1", "compress.feedback=residual"],
    "masked": ["aggregation=integer_ring", "aggregation.secure=true", "checkpoint.every_rounds=1"],
}


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    with live(tmp_path_factory.mktemp("fed") / "fed") as found:
        found.server()
        yield found


def runs_as_its_simulation(federation, tmp_path):
    """With the nodes that were started, which are ended after it."""
    try:
        federation.connected()
        assert federation.finished(federation.begin()) == "finished:completed"
        assert not federation.missing()
        federation.equals_simulation(tmp_path / "alone")
    finally:  # else the next case would meet nodes with other settings
        for i in federation.clients:
            federation.end(f"node{i}")
    federation.connected(0)


@pytest.mark.parametrize("name", METHODS)
def test_a_run_equals_its_simulation(name, federation, tmp_path):
    federation.set(*METHODS[name])
    for i in federation.clients:
        federation.node(i)
    runs_as_its_simulation(federation, tmp_path)


METHOD = """
from fedloom import FedAvg


class Mine(FedAvg):
    def direction(self, x, loc, msg, mem, grad, job):
        return grad(x) + 0.3 * (x - msg.x), loc


def right(outputs, targets):
    return outputs.argmax(1) == targets
"""


def test_a_method_of_ones_own_runs_at_nodes_that_name_their_copies(federation, tmp_path):
    (tmp_path / "mine.py").write_text(METHOD)
    mine = tmp_path / "mine.py"
    federation.set(f"algorithm={mine}:Mine", f"metrics=accuracy,{mine}:right")
    for i in federation.clients:
        (tmp_path / f"{i}").mkdir()
        (tmp_path / f"{i}/mine.py").write_text(METHOD)
        (tmp_path / f"{i}/mine.toml").write_text('parts = ["mine.py"]\n')
        federation.node(i, site=tmp_path / f"{i}/mine.toml")
    runs_as_its_simulation(federation, tmp_path)
