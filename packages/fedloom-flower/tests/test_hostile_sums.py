"""A server that tells members of a masked sum different things, or asks for smaller sums, for more
of them or for other clients than the plan has, learns no single update.
"""

from __future__ import annotations

import re
import struct

import pytest

pytest.importorskip("cryptography", reason="the extra secure is not installed")
from cryptography.hazmat.primitives.asymmetric import ec

from federations.nodes import Nodes
from federations.places import SMALL, Here, folder
from fedloom import Local
from fedloom.aggregation import IntegerRing
from fedloom.algorithm import FedAvg
from fedloom.checks.tiny_federation import experiment, run
from fedloom.config import resolve
from fedloom.core.vector import rec
from fedloom.core.wire import pack
from fedloom.engines.client_results import Request, TrainTask
from fedloom.errors import WireError
from fedloom.federation.sampling import ClientSampler
from fedloom_flower import masked_sums
from fedloom_flower.agreement import Agreement, agree, read_agreement
from fedloom_flower.cli.deploy import _follow
from fedloom_flower.engine import FederationEngine
from fedloom_flower.masked_answers import ExpectedCohorts
from fedloom_flower.message import ANSWER, Ask, Refusal, Site, decode, encode
from fedloom_flower.node import Node
from fedloom_flower.server import serve
from fedloom_flower.sites import ClientSite

PLAN = {
    "algorithm": FedAvg(),
    "aggregation": IntegerRing(secure=True),
    "local": Local(epochs=1, batch=4, lr=0.05),
    "cohort": 5,
    "rounds": 3,
}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(masked_sums, "CURVE", ec.SECP256R1())  # P-384 takes ten times as long


class Members(Nodes):
    """The nodes of a plan, each with what it was told of the agreement."""

    def __init__(self, folder, agreed=lambda i: "same", removed=frozenset(), **plan):
        self.made = made = experiment(**(PLAN | plan))
        cohorts = ExpectedCohorts(made._cohorts, lambda: removed)
        given = {"rounds": made.rounds, "cohorts": cohorts}
        super().__init__(made, folder, options=lambda i: given | {"agreement": agreed(i)})

    @property
    def seen(self):
        return [head for *_, head, _ in self.sent]

    def keys(self, i, members, round=0):
        """A node's answer to a session that the server names."""
        told = bytes(16) + struct.pack(f"<{len(members)}Q", *members)
        ask = Ask(run="r", what="keys", round=round, client=i, taken=-1, kept=0)
        return decode(ANSWER, self.nodes[i].answer(encode(ask, {"masks": told})))[0]


def deployed(members, **engine):
    given = experiment(**PLAN)
    given.engine = FederationEngine(members, run="r", agreement="same", **engine)
    return run(given), given.engine


# -------------------------------------------------------------------------- different things told
def test_members_who_were_told_of_another_agreement_open_no_shares(tmp_path):
    """The victim's scale is true and the others' make their updates vanish: no sum is of both."""
    victims = Members(tmp_path / "some", lambda i: "same" if i == 0 else "a deviation of 1e30")
    ours, engine = deployed(victims)
    assert not any(row["answered"] for row in ours.history)
    assert any("are said to be client" in refused.why for refused in engine.refused)
    assert not any(head.what == "unmask" for head in victims.seen)
    ours, engine = deployed(Members(tmp_path / "all"))
    assert all(row["answered"] == 5 for row in ours.history) and not engine.refused


def sites(**changes):
    own = {"run": "r", "what": "join", "round": -1, "type": "float32", "targets": "labels"}
    own |= {"shape": [3], "target_shape": [], "classes": 3, "tests": 4}
    own |= {"columns": "d", "class_names": [], "one_class": False, **changes}
    return {i: Site(**own, client=i, examples=10 + i) for i in range(3)}


def test_an_agreement_is_taken_once_and_others_may_only_come_to_it():
    before = agree(sites(), 4, [])
    later = before.model_copy(update={"examples": [10, 11, 12, 9], "tests": [4, 4, 4, 1]})
    one_more = before.model_copy(update={"examples": [10, 11, 12, 0, 7], "tests": [4] * 3 + [0, 1]})
    for fine in (before, later, one_more):
        assert fine.follows(before)
    for changes in (
        {"mean": [0.0] * 3, "deviation": [1e30] * 3},
        {"examples": [10, 11, 13, 0]},
        {"examples": [10, 11, 0, 0]},
        {"tests": [4, 5, 4, 0]},
        {"examples": [10, 11, 12], "tests": [4, 4, 4]},
        {"class_names": ["a", "b", "c"]},
        {"classes": 4},
        {"type": "float64"},
    ):
        assert not before.model_copy(update=changes).follows(before)


def test_no_two_agreements_that_a_server_can_find_have_one_digest():
    """This pair has the same first 12 digits; it took 2^26 trials to find, minutes of one core."""
    own = {"examples": [10, 11, 12], "tests": [4] * 3, "shape": [3], "type": "float32"}
    own |= {"targets": "labels", "target_shape": [], "columns": "d", "classes": 3}
    true = Agreement(**own, mean=[0.0] * 3, deviation=[1.0, 1.0, 22346310.5])
    hostile = Agreement(**own, mean=[0.0] * 3, deviation=[1e30, 1e30, 12740448.5])
    assert true.digest[:12] == hostile.digest[:12] == "4b9957c25264"
    assert true.digest != hostile.digest and len(true.digest) * 4 >= 160


def agreed_with(fed, place, agreed):
    """What a node answers to an agreement."""
    ask = Ask(run=place._run, what="agree", round=-1, client=place.client, taken=-1, kept=0)
    raw = encode(ask, {"agreed": agreed.model_dump_json().encode()})
    return decode(ANSWER, place.answer(raw))[0]


def test_a_node_takes_no_second_agreement_and_no_scale_that_it_has_not_asked_for(tmp_path):
    config = resolve("digits", SMALL)
    fed = folder(tmp_path, config)
    here = Here(fed)
    serve(fed, lambda roll: here)
    place = here.places[0]
    agreed = read_agreement(fed.node(0).agreement_file)
    assert isinstance(agreed_with(fed, place, agreed), Site)
    for changes, why in (
        ({"mean": [0.0] * 64, "deviation": [1e30] * 64}, "standardise = false"),
        ({"examples": [agreed.examples[0], 1, 1]}, "the server now says otherwise"),
    ):
        answer = agreed_with(fed, place, agreed.model_copy(update=changes))
        assert isinstance(answer, Refusal) and why in answer.why
    assert read_agreement(fed.node(0).agreement_file) == agreed


def test_every_place_prints_the_digest_by_which_sites_compare_what_they_were_told(
    tmp_path, monkeypatch, caplog, capsys
):
    fed = folder(tmp_path, resolve("digits", SMALL))
    here = Here(fed)
    serve(fed, lambda roll: here)
    line = read_agreement(fed.agreement_file).digest_line
    assert re.fullmatch(r"all agreed on( [0-9a-f]{4}){10}; sites compare it by telephone", line)
    said = [record.getMessage() for record in caplog.records]
    assert {f"client {i}: {line}" for i in range(3)} <= {*said}
    caplog.clear()
    ClientSite(fed.node(1))  # started again
    assert f"client 1: {line}" in [record.getMessage() for record in caplog.records]
    done = {"run-id": "7", "status": "finished:completed"}
    monkeypatch.setattr("fedloom_flower.programs.runs", lambda fed: [done])
    _follow(fed, "7")
    assert line in capsys.readouterr().out.splitlines()


# -------------------------------------------------------------------- smaller sums and other ones
def test_a_node_takes_only_cohorts_of_its_plan_s_size(tmp_path):
    members = Members(tmp_path, cohort=5)
    assert members.keys(0, range(5)).kind == "masks"
    for smaller in ([0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3, 4, 5]):
        refused = members.keys(0, smaller)
        assert isinstance(refused, Refusal) and "a round has 5" in refused.why


def test_sites_that_its_own_list_marks_removed_make_cohorts_smaller(tmp_path):
    members = Members(tmp_path, removed=frozenset({5}), cohort=6)
    assert members.keys(0, range(5)).kind == "masks"
    assert "a round has 5" in members.keys(0, range(4)).why
    assert "a round has 5" in members.keys(0, range(6)).why


def test_a_listed_cohort_is_the_list_itself():
    expected = ExpectedCohorts(ClientSampler([[0, 1, 2, 3], [2, 3, 4, 5]], 6), lambda: {3})
    expected.check([0, 1, 2], 0)
    expected.check([2, 4, 5], 3)
    for members, round in (([0, 1, 2, 3], 0), ([0, 1, 4], 2), ([2, 4], 1)):
        with pytest.raises(WireError, match=r"and the list of round"):
            expected.check(members, round)


@pytest.mark.parametrize("round", [3, 4, 10**9])
def test_no_round_beyond_the_plan_is_answered(round, tmp_path):
    members = Members(tmp_path)
    refused = members.keys(0, range(5), round)
    assert isinstance(refused, Refusal) and "beyond the 3 rounds" in refused.why
    ask = Ask(run="r", what="round", round=round, client=0, taken=-1, kept=0)
    assert "beyond the 3 rounds" in decode(ANSWER, members.nodes[0].answer(encode(ask, {})))[0].why


def refusals(members, round):
    return [head for head in members.seen if isinstance(head, Refusal) and head.round == round]


def test_two_sums_from_one_model_are_of_the_same_clients(tmp_path):
    """Of others their difference would be an update; a draw before any share is no such thing."""
    members = Members(tmp_path, rounds=9, cohort=4)
    loop = experiment(**PLAN).build()
    loop.engine = FederationEngine(members, run="r", agreement="same")
    loop.engine.open(loop.plan, loop.fed, loop.net)
    loop.begin()
    msg, away = loop.message().msg, set()
    real = members.__class__.__call__

    def exchange(messages, seconds, enough):
        out = real(members, messages, seconds, enough)
        return {i: raw for i, raw in out.items() if (decode(ANSWER, raw)[0].what, i) not in away}

    loop.engine._exchange = exchange

    def summed(round, cohort):
        loop.engine.refused.clear()
        task = TrainTask(msg, loop.state.buffers, {}, cohort, round)
        out = loop.engine.map(Request.TRAIN, task)
        return sum(cost.answered for cost in out.stats), {r.why for r in loop.engine.refused}

    away.update(("keys", i) for i in (0, 1))
    assert summed(0, [0, 1, 2, 3])[0] == 0  # too few are there: no shares were given
    away.clear()
    assert summed(1, [0, 1, 2, 4]) == (4, set())
    others = ([0, 1, 2, 5], set()), ([1, 2, 3, 4], set()), ([0, 1, 2, 4], {("round", 4)})
    for t, (cohort, gone) in enumerate(others, start=2):
        away.update(gone)
        count, why = summed(t, cohort)
        assert count == 0 and any("lacks the shares" in reason for reason in why)
        assert any("from this very model" in head.why for head in refusals(members, t))
        away.clear()
    assert summed(8, [0, 1, 2, 4]) == (4, set())


@pytest.mark.parametrize("what", ["probe", "question"])
def test_a_node_tells_nothing_besides_the_masked_sum(what, tmp_path):
    """A server may send any message of the others, in any plan."""
    node = Members(tmp_path).nodes[0]
    loop = experiment(**PLAN).build()
    packet = rec(msg=rec(x=loop.net.init()), buffers=loop.net.init_buffers())
    ask = Ask(run="r", what=what, round=-1 if what == "probe" else 0, client=0, taken=-1, kept=0)
    head, parts = decode(ANSWER, node.answer(encode(ask, pack(packet))))
    assert not any(parts.values())
    assert isinstance(head, Refusal) or (head.gradients, head.loss, head.squares) == (0, 0.0, None)


# ------------------------------------------------------------------------------- measured models
def test_a_node_measures_one_model_a_round(tmp_path):
    """Also when it was started again; the same model has the same scores."""
    plan = {"aggregation": IntegerRing(), "rounds": 3}
    loop = experiment(**(PLAN | plan)).build()
    made = lambda: Node(loop.plan, loop.fed, loop.net, 0, tmp_path, "r", rounds=3)
    x = loop.net.init()

    def measured(node, round, x):
        ask = Ask(run="r", what="evaluate", round=round, client=0, taken=-1, kept=0)
        packet = pack(rec(msg=rec(x=x), buffers=loop.net.init_buffers()))
        return decode(ANSWER, node.answer(encode(ask, packet)))[0]

    node = made()
    first = measured(node, 1, x)
    assert first.kind == "measured"
    for again in (node, made()):
        assert "measures one a round" in measured(again, 1, x + 1).why
        assert measured(again, 1, x) == first
    assert measured(node, 3, x + 1).kind == "measured"
    assert "beyond the 3 rounds" in measured(node, 4, x).why
