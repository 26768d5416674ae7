"""Who takes part by a rule of one's own, or by losses: what it costs, and what is refused."""

from __future__ import annotations

import pytest

from fedloom import FedAvg
from fedloom.core.vector import rec
from fedloom.engines.client_round import Client
from fedloom.errors import ConfigError
from fedloom.federation.choice import PowerOfChoice
from fedloom.federation.devices import Levels
from support.own_methods import Patient
from tiny import small, trace


def chosen(rule, engine="serial", **more):
    given = {"cohort": 2, "choose": rule, "engine": engine, "devices": Levels(up=1e4, down=1e4)}
    return small(FedAvg(), **(given | more))


def test_a_rule_of_ones_own_chooses_by_the_rows_so_far():
    rows = chosen(Patient(), rounds=4).run().history
    assert [row["clients"] for row in rows] == [[0, 1], [2, 3], [4, 5], [0, 6]]


def test_power_of_choice_takes_the_largest_losses_and_pays_for_all_candidates():
    loop = [*trace(chosen(PowerOfChoice(among=7), rounds=2), 2)][-1]
    first = loop.log.history[0]
    net, fed, plan = loop.net, loop.fed, loop.plan
    net.train()
    client, losses = Client(plan, fed, net), []
    share = client.download(client.views.whole, rec(x=net.init()), net.init_buffers())
    for i in range(7):
        alone = client.local_round(share, client.first_memory(net.init(), i), i, 0)
        full = alone.inputs().job.full
        losses.append(float(full.loss(net.init())))
    assert first["clients"] == sorted(sorted(range(7), key=lambda i: -losses[i])[:2])
    vector, number = 4 * 102, 8
    assert first["bytes_down.x"] == 7 * vector, "the chosen ones have the model already"
    assert first["bytes_up.loss"] == 7 * number and first["bytes_up.delta"] == 2 * vector
    batches = [-(-n // 4) for n in (1, 3, 5, 8, 11, 2, 13)]
    assert first["loss_values"] == sum(batches) and first["cohort"] == 2
    assert loop.state.ledger.client_rounds == 4
    speeds = [(1.0, 2.0, 4.0)[i % 3] for i in range(7)]
    asked = max(b / s for b, s in zip(batches, speeds, strict=True)) + vector / 1e4 + number / 1e4
    steps = [2 * batches[i] / speeds[i] for i in first["clients"]]
    up = (vector + number) / 1e4  # and its weight
    assert first["simulated_seconds"] == pytest.approx(asked + max(steps) + up)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"cohort": [[0], [1]]}, "choose and lists of clients both say who takes part"),
        ({"sampling": "bernoulli"}, "choose and sampling = bernoulli both"),
        ({"rule": PowerOfChoice(among=1)}, "choose.among = 1 candidates are fewer than the 2"),
    ],
)
def test_a_choice_that_cannot_be_made_is_refused(given, words):
    rule = given.pop("rule", Patient())
    with pytest.raises(ConfigError, match=words):
        [*trace(chosen(rule, **given), 1)]


@pytest.mark.parametrize("found", [[], [0, 0], [9], [0, 1, 2], "ab", None])
def test_a_rule_that_chooses_wrongly_is_named(found):
    class Wrong(Patient):
        def cohort(self, known, losses):
            return found

    with pytest.raises(ConfigError, match=r"Wrong.cohort\(\) gives .* in round 1; it must give 1"):
        [*trace(chosen(Wrong()), 1)]
