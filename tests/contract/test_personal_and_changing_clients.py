"""Clients' own layers and models, clients that change, and who is chosen: what is trained, kept,
measured and billed of whom.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedloom import Checkpoint, Churn, FedAvg, Local
from fedloom.algorithm import Job
from fedloom.algorithms import Ditto
from fedloom.algorithms.registry import make_algorithm
from fedloom.core.vector import rec
from fedloom.engines.client_round import Client
from fedloom.errors import CheckpointError, ClientError, ConfigError
from fedloom.federation.choice import PowerOfChoice
from fedloom.federation.devices import Levels
from fedloom.report import as_text, comparison, group_runs, load_run
from fedloom.submodels import FedBN, FedPer, FedRep
from support.modules import normed
from support.own_methods import Patient
from tiny import SIZES, clusters, results_agree, small, trace, with_tests

OWN = with_tests(clusters())


# --------------------------------------------------------------------------------- private layers
@pytest.mark.parametrize("engine", ["serial", "workers:2", "vectorised:3"])
def test_the_last_layer_stays_at_its_client(engine, engine_of):
    """A federation of one is plain training: shared and private layers together are FedAvg's."""
    engine = engine_of(engine) if "workers" in engine else engine
    given = {"dtype": torch.float64, "cohort": [[4]], "engine": engine}
    given["local"] = Local(steps=3, batch=4, lr=0.1, clip=0.5, momentum=0.5)
    plain = [*trace(small(FedAvg(), **given), 3)][-1]
    loop = [*trace(small(FedAvg(), private=FedPer(), **given), 3)][-1]
    p, start = 9 * 3 + 3, loop.net.init()  # of 102
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


# ------------------------------------------------------------------------------- personal models
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


# ------------------------------------------------------------------------------------------ churn
def changing(algorithm="scaffold", forget=False, **changes):
    settings = {
        "cohort": 3,
        "churn": Churn(active=4, every=2, replace=0.5, forget=forget),
        "checkpoint": Checkpoint(every_rounds=1, every_seconds=None),
    }
    return small(make_algorithm(algorithm), **(settings | changes))


@pytest.mark.parametrize("forget", [False, True])
def test_memories_are_those_of_who_took_part_and_is_remembered(forget):
    seen: set[int] = set()
    for t, loop in enumerate(trace(changing(forget=forget), 8)):
        if t:
            seen |= set(loop.cohorts.of(t - 1))
            if forget and t % 2 == 0:
                seen -= set(loop.cohorts.present(t - 1)) - set(loop.cohorts.present(t))
        assert set(loop.memory.get(range(7))) == seen
        assert len(loop.memory) == len(seen)
    assert len(seen) > 3 or forget


def test_forgetting_frees_the_bytes_that_are_bounded(tmp_path):
    free = changing(forget=True, rounds=8).run(tmp_path / "free")
    bound = changing(forget=True, rounds=8, resident_bytes=1).run(tmp_path / "bound")
    results_agree(bound, free)


def test_another_churn_is_another_run(tmp_path):
    changing(rounds=2).run(tmp_path / "run")
    for other in (None, Churn(active=5, every=2)):
        with pytest.raises(CheckpointError, match="cohort"):
            changing(rounds=3, churn=other).resume(tmp_path / "run")


@pytest.mark.parametrize("algorithm", ["feddyn", "fedsmoo", "ifca", "afl", "scaffnew", "fafed"])
def test_methods_with_sums_over_all_clients_run_and_ask_only_who_is_there(algorithm):
    *_, loop = trace(changing(algorithm), 3)
    asked = 4 if loop.plan.algorithm.probes else 0  # of seven clients, before round one
    assert loop.state.ledger.client_rounds == asked + 3 * 3


# ------------------------------------------------------------------------------- a choice by rule
def chosen(rule, **more):
    given = {"cohort": 2, "choose": rule, "devices": Levels(up=1e4, down=1e4)}
    return small(FedAvg(), **(given | more))


def test_a_rule_of_ones_own_chooses_by_the_rows_so_far():
    rows = chosen(Patient()).run().history
    assert [row["clients"] for row in rows] == [[0, 1], [2, 3], [4, 5], [0, 6]]


def test_power_of_choice_takes_the_largest_losses_and_pays_for_all_candidates():
    *_, loop = trace(chosen(PowerOfChoice(among=7)), 2)
    first = loop.log.history[0]
    net, fed, plan = loop.net, loop.fed, loop.plan
    net.train()
    client, losses = Client(plan, fed, net), []
    share = client.download(client.views.whole, rec(x=net.init()), net.init_buffers())
    for i in range(7):
        alone = client.local_round(share, client.first_memory(net.init(), i), i, 0)
        losses.append(float(alone.inputs().job.full.loss(net.init())))
    assert first["clients"] == sorted(sorted(range(7), key=lambda i: -losses[i])[:2])
    vector, number = 4 * 102, 8
    assert first["bytes_down.x"] == 7 * vector, "the chosen ones have the model already"
    assert first["bytes_up.loss"] == 7 * number and first["bytes_up.delta"] == 2 * vector
    batches = [-(-n // 4) for n in SIZES]
    assert first["loss_values"] == sum(batches) and first["cohort"] == 2
    assert loop.state.ledger.client_rounds == 4
    speeds = [(1.0, 2.0, 4.0)[i % 3] for i in range(7)]
    asked = max(b / s for b, s in zip(batches, speeds, strict=True)) + vector / 1e4 + number / 1e4
    steps = [2 * batches[i] / speeds[i] for i in first["clients"]]
    up = (vector + number) / 1e4  # and its weight
    assert first["simulated_seconds"] == pytest.approx(asked + max(steps) + up)


def always(cohort):
    class Wrong(Patient):
        def cohort(self, known, losses):
            return cohort

    return Wrong()


WRONG = r"Wrong.cohort\(\) gives .* in round 1; it must give 1"


@pytest.mark.parametrize(
    ("rule", "given", "words"),
    [
        (Patient(), {"cohort": [[0], [1]]}, "choose and lists of clients both say who"),
        (Patient(), {"sampling": "bernoulli"}, "choose and sampling = bernoulli both"),
        (PowerOfChoice(among=1), {}, "choose.among = 1 candidates are fewer than the 2"),
        *((always(cohort), {}, WRONG) for cohort in ([], [0, 0], [9], [0, 1, 2], "ab", None)),
    ],
)
def test_a_choice_that_cannot_be_made_is_refused(rule, given, words):
    with pytest.raises(ConfigError, match=words):
        chosen(rule, **given).run()
