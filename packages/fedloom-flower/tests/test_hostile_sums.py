"""A server that tells members of a masked sum different things, or asks for smaller sums, for more
of them or for other clients than the plan has, learns no single update.
"""

from __future__ import annotations

import re
import struct

import pytest

pytest.importorskip("cryptography", reason="the extra secure is not installed")

from federations.nodes import Nodes, deployed, masked
from federations.places import SMALL, Here, asking, folder, followed, said_by
from fedloom.aggregation import IntegerRing
from fedloom.config import resolve
from fedloom.core.vector import rec
from fedloom.core.wire import pack
from fedloom.engines.client_results import Request, TrainTask
from fedloom.errors import WireError
from fedloom.federation.sampling import ClientSampler
from fedloom_flower.agreement import Agreement, agree, read_agreement
from fedloom_flower.engine import FederationEngine
from fedloom_flower.masked_rounds import ExpectedCohorts
from fedloom_flower.message import ANSWER, Refusal, Site, decode, encode
from fedloom_flower.node import Node
from fedloom_flower.sites import ClientSite, run_of, settings_of

PLANNED = masked(rounds=3)
pytestmark = pytest.mark.usefixtures("quick")


class Members(Nodes):
    """The nodes of a plan, each with what it was told of the agreement."""

    def __init__(self, folder, agreed=lambda i: "same", removed=frozenset(), **plan):
        made = PLANNED(**plan)
        given = {
            "rounds": made.rounds,
            "cohorts": ExpectedCohorts(made.build().cohorts, lambda: removed),
        }
        super().__init__(made, folder, options=lambda i: given | {"agreement": agreed(i)})

    def keys(self, members, round=0):
        """A node's answer to a session that the server names."""
        told = bytes(16) + struct.pack(f"<{len(members)}Q", *members)
        return said_by(self.nodes[0], asking("keys", round), {"masks": told})


# ------------------------------ different things told
def test_members_who_were_told_of_another_agreement_open_no_shares(tmp_path):
    """The victim's scale is true and the others' make their updates vanish: no sum is of both."""
    victims = Members(tmp_path / "some", lambda i: "same" if i == 0 else "a deviation of 1e30")
    ours, engine = deployed(PLANNED, victims, agreement="same")
    assert not any(row["answered"] for row in ours.history)
    assert any("are said to be client" in refused.why for refused in engine.refused)
    assert not any(head.what == "unmask" for *_, head, _ in victims.sent)
    ours, engine = deployed(PLANNED, Members(tmp_path / "all"), agreement="same")
    assert all(row["answered"] == 5 for row in ours.history) and not engine.refused


OWN = {"shape": [3], "type": "float32", "targets": "labels", "target_shape": [], "classes": 3}
OWN |= {"columns": "d"}


def test_an_agreement_is_taken_once_and_others_may_only_come_to_it():
    about = {"run": "r", "what": "join", "round": -1, "class_names": []}
    sites = {i: Site(**OWN, **about, client=i, examples=10 + i, tests=4) for i in range(3)}
    before = agree(sites, 4)
    for changes, follows in (
        ({}, True),
        ({"examples": [10, 11, 12, 9], "tests": [4, 4, 4, 1]}, True),
        ({"examples": [10, 11, 12, 0, 7], "tests": [4] * 3 + [0, 1]}, True),
        ({"mean": [0.0] * 3, "deviation": [1e30] * 3}, False),
        ({"examples": [10, 11, 13, 0]}, False),
        ({"examples": [10, 11, 0, 0]}, False),
        ({"tests": [4, 5, 4, 0]}, False),
        ({"examples": [10, 11, 12], "tests": [4, 4, 4]}, False),
        ({"class_names": ["a", "b", "c"]}, False),
        ({"classes": 4}, False),
        ({"type": "float64"}, False),
    ):
        assert before.model_copy(update=changes).follows(before) is follows, changes


def test_no_two_agreements_that_a_server_can_find_have_one_digest():
    """This pair has the same first 12 digits; it took 2^26 trials to find, minutes of one core."""
    own = OWN | {"examples": [10, 11, 12], "tests": [4] * 3, "mean": [0.0] * 3}
    true = Agreement(**own, deviation=[1.0, 1.0, 22346310.5])
    hostile = Agreement(**own, deviation=[1e30, 1e30, 12740448.5])
    assert true.digest[:12] == hostile.digest[:12] == "4b9957c25264"
    assert true.digest != hostile.digest and len(true.digest) * 4 >= 160


@pytest.fixture
def joined(tmp_path):
    """Places that have agreed, in a run that is done."""
    here = Here(folder(tmp_path, resolve("digits", SMALL)))
    here.serve()
    return here


def test_a_node_takes_no_second_agreement_and_no_scale_that_it_has_not_asked_for(joined):
    place, file = joined.places[0], joined.fed.node(0).agreement_file
    agreed = read_agreement(file)

    def answer(**changes):
        told = agreed.model_copy(update=changes).model_dump_json().encode()
        run = run_of(joined.fed, settings_of(joined.fed))
        return said_by(place, asking("agree", run=run), {"agreed": told})

    assert isinstance(answer(), Site)
    for changes, why in (
        ({"mean": [0.0] * 64, "deviation": [1e30] * 64}, "standardise = false"),
        ({"examples": [agreed.examples[0], 1, 1]}, "the server now says otherwise"),
    ):
        assert isinstance(no := answer(**changes), Refusal) and why in no.why
    assert read_agreement(file) == agreed


def test_every_place_prints_the_digest_by_which_sites_compare_what_they_were_told(
    joined, monkeypatch, caplog
):
    line = read_agreement(joined.fed.agreement_file).digest_line
    assert re.fullmatch(r"all agreed on( [0-9a-f]{4}){10}; sites compare it by telephone", line)
    setup = [record.getMessage() for record in caplog.get_records("setup")]
    assert {f"client {i}: {line}" for i in range(3)} <= {*setup}
    ClientSite(joined.fed.node(1))  # started again
    assert f"client 1: {line}" in caplog.messages
    assert line in followed(joined.fed, monkeypatch).splitlines()


# ------------------------------ smaller sums and other ones
@pytest.mark.parametrize(("removed", "cohort"), [(frozenset(), 5), (frozenset({5}), 6)])
def test_a_node_takes_only_cohorts_of_its_plan_s_size(removed, cohort, tmp_path):
    """Less the sites that its own list marks removed."""
    members = Members(tmp_path, removed=removed, cohort=cohort)
    assert members.keys(range(5)).kind == "blocks"
    for other in ([0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3, 4, 5]):
        refused = members.keys(other)
        assert isinstance(refused, Refusal) and "a round has 5" in refused.why


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
    for refused in (
        members.keys(range(5), round),
        said_by(members.nodes[0], asking("round", round)),
    ):
        assert isinstance(refused, Refusal) and "beyond the 3 rounds" in refused.why


def test_two_sums_from_one_model_are_of_the_same_clients(tmp_path):
    """Of others their difference would be an update; a draw before any share is no such thing."""
    members, away = Members(tmp_path, rounds=9, cohort=4), set()

    def exchange(messages, *more):
        out = members(messages, *more)
        return {i: raw for i, raw in out.items() if (decode(ANSWER, raw)[0].what, i) not in away}

    loop = PLANNED().build()
    loop.engine = FederationEngine(exchange, run="r", agreement="same")
    loop.engine.open(loop.plan, loop.fed, loop.net)
    loop.begin()
    msg = loop.message().msg

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
        refused = [
            head.why for _, at, _, head, _ in members.sent if at == t and head.kind == "refusal"
        ]
        assert any("from this very model" in why for why in refused)
        away.clear()
    assert summed(8, [0, 1, 2, 4]) == (4, set())


@pytest.mark.parametrize(("what", "round"), [("probe", -1), ("question", 0)])
def test_a_node_tells_nothing_besides_the_masked_sum(what, round, tmp_path):
    """A server may send any message of the others, in any plan."""
    node, loop = Members(tmp_path).nodes[0], PLANNED().build()
    packet = rec(msg=rec(x=loop.net.init()), buffers=loop.net.init_buffers())
    head, parts = decode(ANSWER, node.answer(encode(asking(what, round), pack(packet))))
    assert not any(parts.values())
    assert isinstance(head, Refusal) or (head.gradients, head.loss, head.squares) == (0, 0.0, None)


def test_a_node_measures_one_model_a_round(tmp_path):
    """Also when it was started again; the same model has the same scores."""
    loop = PLANNED(aggregation=IntegerRing()).build()
    made = lambda: Node(loop.plan, loop.fed, loop.net, 0, tmp_path, "r", rounds=3)
    node, x = made(), loop.net.init()

    def measured(node, round, x):
        packet = pack(rec(msg=rec(x=x), buffers=loop.net.init_buffers()))
        return said_by(node, asking("evaluate", round), packet)

    first = measured(node, 1, x)
    assert first.kind == "measured"
    for again in (node, made()):
        assert "measures one a round" in measured(again, 1, x + 1).why
        assert measured(again, 1, x) == first
    assert measured(node, 3, x + 1).kind == "measured"
    assert "beyond the 3 rounds" in measured(node, 4, x).why
