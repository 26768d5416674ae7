"""Clients that change or are chosen by a rule: what is remembered of whom, what it costs, and what
is refused.
"""

from __future__ import annotations

import pytest

from fedloom import Checkpoint, Churn, FedAvg
from fedloom.algorithms.registry import make_algorithm
from fedloom.compression.codecs import TopK
from fedloom.compression.error_feedback import EF21, Residual
from fedloom.compression.link import FieldCodec
from fedloom.core.vector import rec
from fedloom.engines.client_round import Client
from fedloom.errors import CheckpointError, CompositionError, ConfigError
from fedloom.federation.choice import PowerOfChoice
from fedloom.federation.devices import Levels
from support.own_methods import Patient
from tiny import SIZES, results_agree, small, trace


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


def test_ef21_needs_everybodys_memory():
    via = FieldCodec(TopK(ratio=0.5), EF21())
    with pytest.raises(CompositionError, match=r"EF21 and churn\.forget"):
        changing("fedavg", forget=True, compress=via).build()
    changing("fedavg", compress=via).build()
    changing("fedavg", forget=True, compress=FieldCodec(TopK(ratio=0.5), Residual())).build()


# -------------------------------------------------------------- a choice by rule
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
        (
            Patient(),
            {"cohort": [[0], [1]]},
            "choose and lists of clients both say who takes part",
        ),
        (Patient(), {"sampling": "bernoulli"}, "choose and sampling = bernoulli both"),
        (PowerOfChoice(among=1), {}, "choose.among = 1 candidates are fewer than the 2"),
        *((always(cohort), {}, WRONG) for cohort in ([], [0, 0], [9], [0, 1, 2], "ab", None)),
    ],
)
def test_a_choice_that_cannot_be_made_is_refused(rule, given, words):
    with pytest.raises(ConfigError, match=words):
        chosen(rule, **given).run()
