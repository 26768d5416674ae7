"""A deployment whose clients mask their updates has the bits of the simulation's integer ring."""

from __future__ import annotations

import dataclasses
import random
import shutil

import pytest
import torch

pytest.importorskip("cryptography", reason="the extra secure is not installed")
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from federations.nodes import Nodes, deployed, masked, normed, simulated, states_are
from federations.places import SECURE, SMALL, Here, everybody, folder
from fedloom import Checkpoint, Local
from fedloom.aggregation import DiscreteGaussian, IntegerRing
from fedloom.aggregation.integer_ring import Needed
from fedloom.algorithm import FedAvg
from fedloom.algorithms import Scaffold
from fedloom.algorithms.registry import make_algorithm
from fedloom.checks.tiny_federation import run
from fedloom.compression.codecs import QSGD
from fedloom.compression.link import Link
from fedloom.config import resolve
from fedloom.errors import CompositionError, ConfigError
from fedloom.federation.private_examples import ExamplePrivacy
from fedloom.submodels import FedBN
from fedloom_flower.check import check
from fedloom_flower.engine import FederationEngine
from fedloom_flower.masked_rounds import identity_of
from fedloom_flower.masked_sums import Identity
from fedloom_flower.message import ASK, decode, encode
from fedloom_flower.new import make as make_folder
from fedloom_flower.node import Node
from fedloom_flower.server import experiment_at_server, serve
from fedloom_flower.site_data import agreement_on
from tiny import same

RING, SLOW = IntegerRing(secure=True), pytest.mark.slow
NOISE = DiscreteGaussian(clip=0.5, noise=0.5, honest=4)
UNIFORM = {"weighting": "uniform", "cohort": 5}
answered = lambda history: [row.get("cohort", 0) - len(row.get("skipped", ())) for row in history]


EXAMPLES = Local(steps=2, batch=None, lr=0.05, dp=ExamplePrivacy(noise=0.5, clip=1.0))
CASES = {
    "fedavg": {},
    "scaffold": {"algorithm": Scaffold()},
    "fednova": {"algorithm": make_algorithm("fednova")},
    "weighs itself": {"algorithm": make_algorithm("afl")},
    "uniform": {"weighting": "uniform"},
    "private norms": normed(private=FedBN()),
    "private examples": {"local": EXAMPLES},
    "running statistics": normed(),
}


@pytest.mark.usefixtures("accounts_at_hand")
@pytest.mark.parametrize("name", CASES)
def test_bits_and_bills_are_the_simulations(name, tmp_path):
    make = masked(**CASES[name])
    nodes = Nodes(make(), tmp_path)
    (ours, engine), alone = deployed(make, nodes), run(make())
    assert same(ours.srv, alone.srv) and ours[2:] == alone[2:] and not engine.refused
    plain = run(make(aggregation=IntegerRing()))
    assert same(ours.srv, plain.srv)
    assert [row["train_loss"] for row in ours.history] == [None] * 2
    assert sum(ours.up.values()) - ours.up["masks"] == sum(plain.up.values())
    assert nodes.both == sum(ours.up.values()) + sum(ours.down.values())
    assert states_are(nodes.nodes, alone)
    assert all(parts.keys() == {"masks"} for *_, parts in nodes.sent)
    assert all(head.loss is None for what, *_, head, _ in nodes.sent if what == "round")


# ------------------------------ clients who vanish
@pytest.mark.parametrize("degree", [2, pytest.param(4, marks=SLOW)])
def test_neighbours_alone_give_the_simulations_bits(degree, tmp_path, quick, monkeypatch):
    """Whoever vanishes at the second exchange; a neighbourhood that is too small gives no sum."""
    needed = Needed(3, degree, degree // 2 + 1)
    monkeypatch.setattr(IntegerRing, "needed", lambda *_: needed)
    cohort, draw = list(range(6)), random.Random(4)
    make = masked(cohort=[cohort] * 6, rounds=6)
    gone = [{*draw.sample(cohort, k)} for k in (0, 1, 1, 2, 2, 3)]
    nodes = Nodes(make(), tmp_path, lambda what, t, i: what == "round" and i in gone[t])
    ours, _ = deployed(make, nodes)
    counts = answered(ours.history)
    assert all(n in (0, 6 - len(gone[t])) for t, n in enumerate(counts)) and 0 in counts[3:]
    lost = {(t, i) for t in range(6) for i in (gone[t] if counts[t] else cohort)}
    assert same(ours.srv, simulated(make, lost).srv)


def test_neighbours_bytes_are_the_simulations(tmp_path, monkeypatch):
    monkeypatch.setattr(IntegerRing, "needed", lambda *_: Needed(3, 2, 2))
    make = masked(cohort=6, rounds=1)
    (ours, _), alone = deployed(make, tmp_path), run(make())
    assert same(ours.srv, alone.srv) and ours[2:] == alone[2:]
    assert ours.up["masks"] == 6 * (32 + 49 + 2 * 80 + 3 * 32)


def test_a_round_below_the_threshold_tells_nothing_and_is_drawn_again(tmp_path, quick):
    """With other masks: at each step too many vanish in a round, in its first draw or in all."""
    draw = random.Random(3)
    make = masked(algorithm=Scaffold(), rounds=8, cohort=4)
    nodes = Nodes(make(), tmp_path, lambda *_: draw.random() < 0.35)
    ours, engine = deployed(make, nodes, redraws=1)
    assert sum(ours.down.values()) == nodes.down  # no broadcast that was not sent
    sent = [(what, t, i, parts["masks"]) for what, t, i, _, parts in nodes.sent if parts]
    values = [raw for what, *_, raw in sent if what == "round"]
    assert len({*values}) == len(values)  # none is as in the draw before
    released = [(t, i) for what, t, i, _ in sent if what == "unmask"]
    assert len({*released}) == len(released)  # nobody gives shares of a round twice
    counts = answered(ours.history)
    assert {0} < {*counts} and all(n == 0 or n >= 3 for n in counts)
    assert any("clients are there, and a masked sum needs 3" in r.why for r in engine.refused)
    assert any("lacks the shares of" in r.why for r in engine.refused)


@pytest.mark.usefixtures("accounts_at_hand")
def test_noise_of_clients_is_in_the_sum_of_those_who_came(tmp_path, quick):
    """With the seed's noise the simulation's bits; with fewer than honest clients no sum at all."""
    gone = {1: {0}, 2: {3, 4}}
    make = masked(aggregation=NOISE, weighting="uniform", cohort=[[0, 1, 2, 3, 4]] * 4, rounds=4)
    away = lambda what, t, i: what == "round" and i in gone.get(t, ())
    nodes = Nodes(make(), tmp_path, away)
    ours, engine = deployed(make, nodes, redraws=3)
    keys = [(t, i) for what, t, i, *_ in nodes.sent if what == "keys"]
    assert len({*keys}) == len(keys)  # no round is drawn again
    assert any("3 clients are there, and a masked sum needs 4" in r.why for r in engine.refused)
    alone = simulated(make, {(1, 0), *((2, i) for i in range(5))})
    assert same(ours.srv, alone.srv)
    assert [row["epsilon"] for row in ours.history] == [row["epsilon"] for row in alone.history]
    assert ours.history[0]["train_loss"] is None
    assert not same(ours.srv, run(make(seed=1)).srv)


# ------------------------------ nodes that begin anew
LOST = {"compress": Link(down=QSGD()), "algorithm": make_algorithm("fedavgm"), "cohort": 6}


@pytest.mark.parametrize(
    ("settings", "begins", "out"),
    [
        ({"cohort": [[0, 1, 2, 3]] * 2}, [("round", 0), ("unmask", 1)], (0, 1)),
        (LOST | {"rounds": 5}, [("keys", 2)], (2, 1)),
    ],
    ids=["killed", "its folder is lost"],
)
def test_a_node_that_begins_anew_between_two_exchanges_is_out_of_one_round(
    settings, begins, out, tmp_path, quick
):
    """After it a node that lost its folder gets a compressed broadcast whole."""

    def away(what, t, i):
        if i == 1 and (what, t) in begins:
            if settings.get("compress"):
                shutil.rmtree(tmp_path / "1")
            there.nodes[1] = there.start_node(1)
        return False

    make = masked(**settings)
    there = Nodes(make(), tmp_path, away)
    ours, engine = deployed(make, there)
    (one,) = engine.refused
    assert (one.round, one.client, one.kind) == (*out, "declined")
    assert settings.get("compress") or "no keys" in one.why
    assert same(ours.srv, simulated(make, {out}).srv)


def test_a_resumed_server_goes_on_and_a_round_is_unmasked_once(tmp_path):
    """It dies after a sum that is in no checkpoint: who gave shares of it gives none again."""
    make = masked(rounds=4, cohort=6, checkpoint=Checkpoint(every_rounds=1, every_seconds=None))
    there, died = Nodes(make(), tmp_path / "nodes"), []

    def exchange(messages, *more):
        out = there(messages, *more)
        ask = decode(ASK, next(iter(messages.values())))[0]
        if not died and (ask.what, ask.round) == ("unmask", 2):
            died.append(ask)
            raise RuntimeError("the server's process died")
        return out

    given = make()
    given.engine = FederationEngine(exchange, run="r")
    with pytest.raises(RuntimeError, match="died"):
        given.run(tmp_path / "run")
    given = make()
    given.engine = FederationEngine(exchange, run="r")
    ours = given.resume(tmp_path / "run")
    refused = given.engine.refused
    assert {r.round for r in refused} == {2}
    assert any("in the sum of round 3" in r.why for r in refused)
    assert same(ours.state, simulated(make, {(2, i) for i in range(6)}).srv)


@pytest.mark.usefixtures("accounts_at_hand")
@pytest.mark.parametrize(("rule", "again"), [(NOISE, False), (RING, True)])
def test_noise_is_drawn_once_a_round(rule, again, tmp_path, quick):
    """Who has masked an update makes no keys for that round again, if that costs privacy."""
    make = masked(aggregation=rule, rounds=1, **UNIFORM)
    there = Nodes(make(), tmp_path, lambda what, t, i: what == "unmask")
    for draw in range(2):
        _, engine = deployed(make, there)
        why = "has taken part in the sum of round 1" if draw and not again else "lacks the shares"
        assert len(engine.refused) == 5 and all(why in r.why for r in engine.refused)


# ------------------------------ wrong bytes
def test_masks_of_another_broadcast_give_no_sum(tmp_path):
    """A server that sends one client another model learns noise, and the round does not count."""
    make = masked(cohort=[[0, 1, 2, 3]], rounds=1)
    there = Nodes(make(), tmp_path)

    def exchange(messages, *more):
        ask, parts = decode(ASK, messages.get(2, b"") or next(iter(messages.values())))
        if ask.what == "round":
            parts["msg.x"] = bytes(len(parts["msg.x"]))
            messages = messages | {2: encode(ask, parts)}
        return there(messages, *more)

    ours, engine = deployed(make, exchange)
    assert same(ours.srv, simulated(make, {(0, i) for i in range(4)}).srv)
    assert len(engine.refused) == 4
    assert all("too large to be added up" in r.why for r in engine.refused)


@pytest.mark.slow
def test_damaged_keys_and_shares_change_no_sum(tmp_path, quick):
    """An update counts as it is, or not. A model has one sum, so there are several short runs."""
    make = masked(rounds=2, aggregation=IntegerRing(secure=True, threshold=0.51))
    draw, counts = random.Random(11), []

    def damaged(raw, flips):
        if draw.random() > 0.06:
            return raw
        at = draw.randrange(len(raw))
        return raw[:at] + (bytes([raw[at] ^ 1 << draw.randrange(8)]) + raw[at + 1 :]) * flips

    for attempt in range(8):
        there, rows = Nodes(make(), tmp_path / str(attempt)), []

        def exchange(messages, *_, there=there):
            what = decode(ASK, next(iter(messages.values())))[0].what
            answers = {i: there.nodes[i].answer(damaged(raw, True)) for i, raw in messages.items()}
            return {i: damaged(raw, what != "round") for i, raw in answers.items()}

        engine = FederationEngine(exchange, run="r")
        seen = lambda row, engine=engine, rows=rows: rows.append(engine.attendance.row)
        given = make(on_round=seen)
        given.engine = engine
        ours = run(given)
        lost = [{(t, i) for i in {*r["asked"]} - {*r["answered"]}} for t, r in enumerate(rows)]
        assert same(ours.srv, simulated(make, set.union(*lost)).srv)
        counts += [len(row["answered"]) for row in rows]
    assert 0 in counts and {3, 4} & {*counts} and not {1, 2} & {*counts}


def test_another_sum_of_a_round_is_not_made(tmp_path):
    """Where the server would not be finite, no update counts: the model stays."""
    make = masked(algorithm=FedAvg(server_lr=1e300), nonfinite="skip", dtype=torch.float64)
    nodes = Nodes(make(), tmp_path)
    ours, _ = deployed(make, nodes)
    asked = [(what, t, i) for what, t, i, *_ in nodes.sent]
    assert len(asked) == len({*asked}) and not any(row["cohort"] == 0 for row in ours.history)


@pytest.mark.usefixtures("accounts_at_hand")
@pytest.mark.parametrize("rule", [NOISE, RING], ids=lambda rule: rule.name)
def test_the_server_takes_what_a_hostile_client_sends_within_the_range(rule, tmp_path, quick):
    """Nobody at the server can see how long one update is: bounds are the clients' own."""
    make = masked(aggregation=rule, rounds=1, **UNIFORM)
    honest, _ = deployed(make, tmp_path / "honest")
    there, keys = Nodes(make(), tmp_path / "hostile"), Identity.rehearsed(6)
    wide = dataclasses.replace(NOISE, clip=1000 * NOISE.clip) if rule is NOISE else rule
    loop = make(aggregation=wide, local=Local(epochs=1, batch=4, lr=1000.0)).build()
    i = honest.history[0].get("clients", range(6))[0]
    place = loop.plan, loop.fed, loop.net, i, tmp_path / "hostile" / str(i)
    for j in {*range(6)} - {i}:
        of_all = make().build()
        other = of_all.plan, of_all.fed, of_all.net, j, tmp_path / "hostile" / str(j)
        there.nodes[j] = Node(*other, "r", rehearsal=True, identity=keys[j])
    there.nodes[i] = Node(*place, "r", rehearsal=True, identity=keys[i])
    hostile, engine = deployed(make, there)
    assert not engine.refused and float((hostile.srv.x - honest.srv.x).norm()) > 20


# ------------------------------ what would tell too much
@pytest.mark.usefixtures("accounts_at_hand")
@pytest.mark.parametrize(
    ("settings", "identity", "why"),
    [
        ({}, None, "a node needs its key"),
        ({"aggregation": NOISE, **UNIFORM}, 0, "DiscreteGaussian: who knows the seed"),
    ],
    ids=["no key", "the seed's noise"],
)
def test_a_node_does_not_begin_without_its_key_or_with_noise_of_the_seed(
    settings, identity, why, tmp_path
):
    loop = masked(**settings)().build()
    key = None if identity is None else Identity.rehearsed(1)[identity]
    with pytest.raises((CompositionError, ConfigError), match=why):
        Node(loop.plan, loop.fed, loop.net, 0, tmp_path, identity=key)


PRIVATE = ["aggregation=discrete_gaussian", "aggregation.honest=3", "weighting=uniform"]


@pytest.mark.parametrize(
    ("words", "given", "why"),
    [
        (PRIVATE, {"evaluate": "nodes"}, "release sums that have no noise"),
        (["checkpoint.every_rounds=2"], {}, "every_rounds = 1 in a deployment"),
        ([], {"standardise": True}, "sums of each site's features without masks"),
        (["cohort=3", "data.clients=5"], {"over_selection": 0.5}, "of all that came"),
    ],
)
def test_settings_that_would_tell_more_are_refused(words, given, why, tmp_path):
    config = resolve("digits", [*SMALL, *SECURE, *words])
    fed = folder(tmp_path, config, [400] * (5 if words[1:] else 3), **given)
    with pytest.raises(CompositionError, match=why):
        experiment_at_server(fed, everybody(None, agreement_on(config.data())))
    if words == ["checkpoint.every_rounds=2"]:  # and no folder is made that waits for its nodes
        with pytest.raises(CompositionError, match=why):
            make_folder(config, tmp_path / "new", None, {})
        assert not (tmp_path / "new").exists()


# ------------------------------ folders
def test_a_folder_has_all_that_masked_sums_need(tmp_path, caplog):
    """Keys are those of the nodes; the run is its simulation, and its check says what is sent."""
    fed = make_folder(resolve("digits", [*SMALL, *SECURE]), tmp_path / "fed", None, {})
    here = Here(fed)
    result, said = here.serve(), "a simulation has no masks"
    assert said not in caplog.text
    alone = resolve(fed.run_file).experiment().run()
    assert same(result.state, alone.state) and said in caplog.text
    report = check(fed)
    assert not report.difference and report.bills and {*report.up} == {"delta", "weight", "masks"}
    assert "loss" not in report.header_fields and not report.refused
    lines = [fed.node(i).secret("node").with_suffix(".pub").read_text() for i in range(3)]
    other = ec.generate_private_key(ec.SECP256R1()).public_key()
    lines[1] = other.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    with pytest.raises(ConfigError, match=r"needs keys on secp384r1 .* one is on secp256r1"):
        identity_of(fed.node(0), lines)
    with pytest.raises(ConfigError, match="keys for masked sums cannot be read"):
        identity_of(fed, lines[:1])


@pytest.mark.usefixtures("accounts_at_hand")
def test_deployed_noise_is_the_systems(tmp_path):
    """It differs from the seed's in every value, has its deviation, and needs no other cohorts."""
    words = [*SMALL, *PRIVATE, "aggregation.noise=0.5", "checkpoint.every_rounds=1", "rounds=1"]
    ends = []
    for place in ("one", "other"):
        fed = make_folder(resolve("digits", words), tmp_path / place, None, {})
        ends.append(serve(fed, lambda clients, fed=fed: Here(fed)))
        assert ends[-1].history[0]["epsilon"] > 0
    alone = resolve(fed.run_file).experiment().run()
    one, other = (end.state.x.double() - alone.state.x.double() for end in ends)
    spread = 0.5 * 2**0.5 / 3  # of two noises of deviation noise * clip, of a mean of three clients
    for moved in (one, other, one - other):
        assert (moved != 0).all() and float(moved.std()) == pytest.approx(spread, rel=0.15)
    report = check(fed)  # a rehearsal has the seed's
    assert not report.difference and report.bills and "loss" not in report.header_fields
