"""Models and layers of a client's own: trained, kept, billed, evaluated, resumed."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedloom import FedAvg, Local
from fedloom.algorithm import Job
from fedloom.algorithms import IFCA, Ditto, Scaffold
from fedloom.compression.codecs import TopK
from fedloom.compression.error_feedback import EF21
from fedloom.compression.link import FieldCodec
from fedloom.errors import ClientError, CompositionError
from fedloom.report import as_text, comparison, group_runs, load_run
from fedloom.submodels import FIARSE, FedBN, FedPer, FedRep
from support.modules import normed
from tiny import clusters, small, trace, with_tests

OWN = with_tests(clusters())


# --------------------------------------------------------------------------------- private layers
def head(net):
    """How many of the 102 parameters the last layer has."""
    return 9 * 3 + 3


@pytest.mark.parametrize("engine", ["serial", "workers:2", "vectorised:3"])
def test_the_last_layer_stays_at_its_client(engine, engine_of):
    """A federation of one is plain training: shared and private layers together are FedAvg's."""
    engine = engine_of(engine) if "workers" in engine else engine
    given = {"dtype": torch.float64, "cohort": [[4]], "engine": engine}
    given["local"] = Local(steps=3, batch=4, lr=0.1, clip=0.5, momentum=0.5)
    plain = [*trace(small(FedAvg(), **given), 3)][-1]
    loop = [*trace(small(FedAvg(), private=FedPer(), **given), 3)][-1]
    p, start = head(loop.net), loop.net.init()
    own = loop.memory.get([4])[4].own.x
    torch.testing.assert_close(loop.state.srv.x[:-p], plain.state.srv.x[:-p], rtol=0, atol=1e-12)
    torch.testing.assert_close(own, plain.state.srv.x[-p:], rtol=0, atol=1e-12)
    assert torch.equal(loop.state.srv.x[-p:], start[-p:])
    shared = 8 * (102 - p)
    for row in loop.log.history:
        assert row["bytes_up.delta"] == row["bytes_down.x"] == shared


def test_head_and_representation_move_in_turns():
    mine, d = torch.tensor([0.0, 0.0, 1.0]), torch.ones(3)
    job = lambda step, steps: Job(1.0, float(steps), 0.1, 0.1, 0.0, float(step), -1.0)
    moved = lambda head, steps: [
        FedRep(head=head).moved(d, mine, job(k, steps)).tolist() for k in range(steps)
    ]
    one, rest = [0.0, 0.0, 1.0], [1.0, 1.0, 0.0]
    assert moved(0.5, 4) == [one, one, rest, rest]
    assert moved(0.9, 3) == [one, one, rest]  # the last step is never the head's
    assert moved(0.0, 2) == [rest, rest]
    assert moved(0.9, 1) == [[1.0, 1.0, 1.0]]


@pytest.mark.parametrize("scheme", [FedBN(), FedPer()])
def test_the_statistics_of_private_norms_are_private(scheme):
    given = {"model": normed, "cohort": [[3, 4, 6]], "local": Local(steps=2, batch=None, lr=0.1)}
    *_, loop = trace(small(FedAvg(), private=scheme, data=OWN, **given), 2)
    first = loop.net.init_buffers()
    rows = loop.memory.get([3, 4, 6])
    own = [row.own.buffers for row in rows.values()]
    assert not torch.equal(own[0], own[1])
    kept = {"FedBN": 20, "FedPer": 8}[scheme.name]
    assert len(own[0]) == kept
    assert torch.allclose(loop.state.buffers[-kept:], first[-kept:])
    sent = loop.log.history[0].get("bytes_up.buffers", 0)
    assert sent == 3 * 4 * (20 - kept)
    assert torch.equal(loop.state.buffers[:-kept], first[:-kept]) == (kept == 20)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"algorithm": Scaffold()}, "FedPer and Scaffold: its clients have 'c' beside x"),
        ({"algorithm": IFCA()}, "'x1' beside x"),
        ({"compress": FieldCodec(TopK(ratio=0.5), EF21())}, "FedPer and EF21"),
        ({"submodel": FIARSE(), "capacities": [0.5]}, "FedPer and FIARSE"),
        ({"private": FedPer(layers=("body",))}, "none would be private: 0, 1, 3; name"),
    ],
)
def test_what_private_layers_do_not_go_with_is_said(given, words):
    with pytest.raises(CompositionError, match=words):
        small(**({"algorithm": FedAvg(), "private": FedPer()} | given)).build()


# ------------------------------------------------------------------------------------- evaluation
def test_personal_models_are_measured_on_the_clients_own_tests():
    *_, loop = trace(small(Ditto(), data=OWN), 2)
    result = loop.evaluator.client_values(loop, None)
    assert result.basis == "own test sets, personal models"
    for i, row in loop.memory.get(range(7)).items():
        index = loop.fed.data.test_clients.of(i)
        if len(index):
            loop.net.bind(row.alg.v)
            with torch.no_grad():
                out = loop.net.module(loop.fed.data.test_inputs[index])
            hits = (out.argmax(1) == loop.fed.data.test_targets[index]).double().mean()
            assert result.values["accuracy"][i] == pytest.approx(float(hits), abs=1e-12)


def test_common_models_have_the_same_columns_and_compare_shows_them(tmp_path):
    result = small(FedAvg(), rounds=2, data=OWN).run(tmp_path / "run")
    row, values = result.history[-1], [v for v in result.clients if v is not None]
    assert row["client_accuracy_worst"] == min(values)
    assert row["client_accuracy_spread"] == pytest.approx(float(np.std(values)))
    assert result.summary["client_accuracy_tenth"] == row["client_accuracy_tenth"]
    text = as_text(comparison(group_runs([load_run(tmp_path / "run")])))
    assert "worst client" in text and "worst tenth" in text and "sd between clients" in text


def test_a_personal_model_of_another_length_is_refused():
    class Short(FedAvg):
        def personal(self, msg, mem):
            return msg.x[:3]

    with pytest.raises(ClientError, match=r"Short: client \d, round 1: personal\(\) gives a model"):
        [*trace(small(Short(), data=OWN), 1)]
