"""A client's round in two halves, with bytes between them, has the bits of the simulation."""

from __future__ import annotations

import functools
import random
import shutil
from pathlib import Path

import pytest
import torch

from federations.nodes import Nodes, deployed, normed, states_are
from federations.places import asking
from fedloom import Checkpoint, Local
from fedloom.algorithm import FedAvg
from fedloom.algorithms import FAFED, FedACG, FedSMOO, Scaffold
from fedloom.algorithms.registry import ALGORITHMS, make_algorithm
from fedloom.checks.tiny_federation import CAPACITIES, experiment, run
from fedloom.compression.codecs import MAKERS, QSGD, TopK
from fedloom.compression.error_feedback import EF21, Forget, Residual
from fedloom.compression.link import FieldCodec, Link
from fedloom.core.vector import rec
from fedloom.engines.base import TooFewError
from fedloom.engines.client_results import RangeResult
from fedloom.engines.client_round import Client
from fedloom.errors import CompositionError
from fedloom.federation.attacks import Alie
from fedloom.objectives import MOON, FedLC
from fedloom.storage import world
from fedloom.submodels import FIARSE, FedBN, FedPer, FedRep, FedRolex, FjORD, HeteroFL
from fedloom_flower.attendance import Attendance
from fedloom_flower.engine import FederationEngine
from fedloom_flower.folder import Folder
from fedloom_flower.message import ANSWER, ASK, Refusal, decode, encode
from fedloom_flower.node import Node
from fedloom_flower.server import next_start
from support.without import Without
from tiny import same

WEIGHTS = (0.2, 3.0, 1.0, 0.5, 2.0, 7.0)
SHORT = {"local": Local(epochs=1, batch=4, lr=0.05), "rounds": 2}


def agree(folder, apart=False, **settings):
    make = lambda: experiment(**({"algorithm": FedAvg()} | SHORT | settings))
    nodes = Nodes(make(), folder, apart=apart)
    (ours, engine), alone = deployed(make, nodes), run(make())
    assert same(ours.srv, alone.srv) and ours[2:] == alone[2:] and not engine.refused
    assert ours.memory.keys() == alone.memory.keys() and states_are(nodes.nodes, alone)
    if "submodel" not in settings and not make().algorithm.asks:
        assert nodes.both == sum(ours.up.values()) + sum(ours.down.values())


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_method(name, tmp_path):
    agree(tmp_path, algorithm=make_algorithm(name))


@pytest.mark.parametrize("name", MAKERS)
def test_every_codec_with_its_error_feedback(name, tmp_path):
    codec = MAKERS[name]()
    via = FieldCodec(codec, Forget() if codec.unfit(147) else Residual())
    agree(tmp_path, compress=via)


TOP_K = FieldCodec(TopK(ratio=0.2), Residual())
SCAFFOLD, OF_SIZES = {"algorithm": Scaffold()}, {"capacities": CAPACITIES}
ADAMW = Local(epochs=1, batch=4, lr=0.01, optimiser="adamw")
OWN_DATA = {"apart": True}  # no node has the others' data: it knows of them by the roll
PARTS = {
    "ef21": {"compress": FieldCodec(TopK(ratio=0.1), EF21())},
    "changes": SCAFFOLD | {"compress": Link(FieldCodec(TopK(ratio=0.1), EF21()))},
    "moon": {"objective": MOON()},
    "uniform": {"weighting": "uniform"},
    "weights": {"algorithm": FedSMOO(), "weighting": WEIGHTS},
    "weights of parts": SCAFFOLD | OF_SIZES | {"submodel": HeteroFL(), "weighting": WEIGHTS},
    "heterofl": SCAFFOLD | OF_SIZES | {"submodel": HeteroFL()},
    "fedrolex": SCAFFOLD | OF_SIZES | {"submodel": FedRolex()},
    "fiarse": OF_SIZES | {"submodel": FIARSE(), "compress": FieldCodec(QSGD(), Residual())},
    "fjord": OF_SIZES | {"submodel": FjORD()},
    "down": {"algorithm": FedACG(), "compress": Link(down=TopK(ratio=0.1)), "rounds": 4},
    "both ways": {"compress": Link(TOP_K, down=QSGD()), "rounds": 4},
    "median": {"aggregation": "median"},
    "ring": SCAFFOLD | {"aggregation": "integer_ring"},
    "ring, running statistics": {"aggregation": "integer_ring", **normed()},
    "ring, private norms": {"aggregation": "integer_ring", "private": FedBN(), **normed()},
    "kept optimiser": {"algorithm": make_algorithm("diloco"), "local": ADAMW, "rounds": 3},
    "norm bound": {"aggregation": "norm_bound", "compress": TOP_K},
    "fedper": {"private": FedPer(), "compress": TOP_K},
    "fedrep": {"private": FedRep(head=0.5), "aggregation": "median"},
    "fedbn": {"private": FedBN(), **normed()},
    "a norm of one's own": {"private": FedPer(layers=("1",)), **normed()},
    "own data, probe": OWN_DATA | {"algorithm": FAFED(), "weighting": "uniform"},
    "own data, weights": OWN_DATA | {"algorithm": FAFED(), "weighting": WEIGHTS},
    "own data, examples": OWN_DATA | SCAFFOLD,
    "own data, residual": OWN_DATA | {"algorithm": FedSMOO(), "compress": TOP_K},
    "own data, labels": OWN_DATA | {"objective": FedLC()},
    "own data, sub-model": OWN_DATA | SCAFFOLD | OF_SIZES | {"submodel": HeteroFL()},
}


@pytest.mark.parametrize("name", PARTS)
def test_every_other_part(name, tmp_path):
    agree(tmp_path, **PARTS[name])


# ------------------------------ rounds that are drawn again
def stateful(**changes):
    """SCAFFOLD with top-k and its residual: all of it drifts apart at the first wrong version."""
    saving = Checkpoint(every_rounds=2, every_seconds=None)
    settings = {"compress": TOP_K, "rounds": 6, "cohort": 5, "checkpoint": saving}
    return experiment(**(SHORT | SCAFFOLD | settings | changes))


def missing(rows, name="answered"):
    """{(round from 0, client)} whose update, or answer to a question, did not count."""
    asked = [(t, i, row) for t, row in enumerate(rows) if name in row for i in row["asked"]]
    return {(t, i) for t, i, row in asked if i not in row[name]}


class Away(Nodes):
    """Half of the clients are away in an exchange, drawn anew; the others answer backwards."""

    def __init__(self, given, folder):
        super().__init__(given, folder)
        self.draw = random.Random(5)

    def __call__(self, messages, *more):
        there = [i for i in messages if self.draw.random() < 0.5]
        answers = super().__call__({i: messages[i] for i in there}, *more)
        heads = [decode(ASK, messages[i])[0] for i in messages.keys() - {*there}]
        self.down += sum(sum(head.parts.values()) for head in heads)
        return dict(reversed(answers.items()))


@pytest.mark.parametrize("name", ["scaffold", "fedlin"])
def test_a_round_with_too_few_updates_is_drawn_again(name, tmp_path):
    """As often as is said, and then it changes nothing. All that it cost is in the bill; the model
    is that of a simulation which asks the last cohorts, without the updates that did not come.
    """
    make = functools.partial(stateful, algorithm=make_algorithm(name), rounds=12, cohort=3)
    nodes, rows = Away(make(), tmp_path), []
    engine = FederationEngine(nodes, run="r", min_updates=2, redraws=2)
    given = make(on_round=lambda row: rows.append(engine.attendance.row))
    given.engine = engine
    ours = run(given)

    assert {len(row.get("redrawn", ())) for row in rows} == {0, 1, 2}
    assert {len(row["answered"]) for row in rows} == {0, 2, 3}
    assert [row["round"] for row in rows] == [*range(1, 13)]
    for t, row in enumerate(rows):
        tried = [*row.get("redrawn", ()), row]
        cohorts = [given.loop.cohorts.of(t, attempt=k) for k in range(len(tried))]
        assert [each["asked"] for each in tried] == cohorts
        assert all(not each["answered"] and len(each["unused"]) < 2 for each in tried[:-1])
        for each in tried:
            came = {*each["answered"], *each.get("unused", ()), *each.get("lost", ())}
            assert came == {*each["asked"]}
        assert ("clients" in ours.history[t]) == (len(tried) > 1)
    given = make(cohort=[row["asked"] for row in rows])
    given.engine = Without(missing(rows), missing(rows, "questioned"))
    alone = run(given)
    assert same(ours.srv, alone.srv) and states_are(nodes.nodes, alone)
    assert [row["test_loss"] for row in ours.history] == [row["test_loss"] for row in alone.history]
    if name == "scaffold":  # an answer to a question is counted in other words
        assert nodes.both == sum(ours.up.values()) + sum(ours.down.values())


def test_another_draw_waits_for_no_more_than_it_needs(tmp_path):
    """Of five clients three are wanted; one has answered in the draw before."""
    make = lambda: experiment(algorithm=FedAvg(), cohort=[[0, 1, 2, 3, 4]], rounds=1)
    nodes, calls = Nodes(make(), tmp_path), []

    def exchange(messages, seconds, enough):
        calls.append((sorted(messages), enough))
        some = sorted(messages)[: 1 if len(calls) == 1 else enough]
        return nodes({i: messages[i] for i in some}, seconds, enough)

    _, engine = deployed(make, exchange, updates=3, min_updates=3, redraws=1)
    assert calls == [([0, 1, 2, 3, 4], 3), ([1, 2, 3, 4], 2)]
    row = engine.attendance.row
    assert row["answered"] == [0, 1, 2] and row["spare"] == [3, 4]


def test_an_answer_that_cannot_be_read_is_asked_for_again_in_the_next_draw(tmp_path):
    bad = {2}
    make = lambda: experiment(**SCAFFOLD, cohort=6, **SHORT)
    damaged = lambda i, raw: raw[:-1] if i in bad and not bad.remove(i) else raw
    nodes = Nodes(make(), tmp_path, awry=damaged)
    ours, engine = deployed(make, nodes, min_updates=6, redraws=1)
    assert same(ours.srv, run(make()).srv) and [r.client for r in engine.refused] == [2]


def test_questions_that_nobody_answers_are_not_asked_again_of_others():
    attendance = Attendance(min_updates=1, max_failed_rounds=None, redraws=0)
    with pytest.raises(TooFewError) as caught:
        attendance.note_answers(RangeResult([], {}, []), 0)
    assert not caught.value.again


@pytest.mark.usefixtures("accounts_at_hand")
def test_a_private_round_is_not_drawn_again():
    """Its accounts count on the first draw, whoever answers."""
    rows = []
    private = {"aggregation": "dp", "sampling": "poisson", "weighting": "uniform", "rounds": 2}
    seen = lambda row: rows.append(engine.attendance.row)
    given = experiment(algorithm=FedAvg(), cohort=0.7, on_round=seen, **private)
    given.engine = engine = FederationEngine(lambda *_: {}, redraws=2, rehearsal=True)
    run(given)
    assert [row["answered"] for row in rows] == [[], []]
    assert not any("redrawn" in row for row in rows)


# ------------------------------ one node
def first_node(tmp_path, **settings):
    return Nodes(experiment(algorithm=FedAvg(), rounds=1, **settings), tmp_path).nodes[2]


def of_model(ask, value):
    """A broadcast of a model that has one value everywhere."""
    return encode(ask, {"msg.x": torch.full((147,), value).numpy().tobytes(), "buffers": b""})


def test_a_message_that_comes_again_is_answered_without_training(tmp_path, monkeypatch):
    """Its answer may have been late, and the round is drawn again; only the last one is kept."""
    node = first_node(tmp_path)
    trained, train = [], Client.train
    monkeypatch.setattr(Client, "train", lambda *a: trained.append(a) or train(*a))
    first, other = (of_model(asking("round", 0, 2), x) for x in (0.1, 0.2))
    answers = [node.answer(raw) for raw in (first, first, other, first)]
    assert answers[0] == answers[1] == answers[3] != answers[2] and len(trained) == 3


def test_a_message_that_comes_late_or_again_touches_no_state(tmp_path):
    """Not even in a process that began since: the newest number is on the disk with its state."""
    there, sent, said = Nodes(stateful(), tmp_path), [], []

    def exchange(messages, *more):
        sent.append(messages)
        said.append(there(messages, *more))
        return said[-1]

    deployed(stateful, exchange, start=5)
    i = min(set(sent[-1]) & set(sent[-2]))
    content = lambda: {p.name: p.read_bytes() for p in there.nodes[i].states.folder.iterdir()}
    files, loop = content(), stateful().build()
    anew = Node(loop.plan, loop.fed, loop.net, i, tmp_path / str(i), "r")
    for node in (there.nodes[i], anew, anew):
        late = decode(ANSWER, node.answer(sent[-2][i]))[0]
        assert isinstance(late, Refusal) and "has answered message" in late.why
        assert node.answer(sent[-1][i]) == said[-1][i]
        assert files == content()
    head, parts = decode(ASK, sent[-1][i])
    newer = encode(head.model_copy(update={"attempt": head.attempt + 1, "parts": {}}), parts)
    assert decode(ANSWER, anew.answer(newer))[1] == decode(ANSWER, said[-1][i])[1]
    assert files != content()  # of another message


def test_each_start_of_a_server_numbers_its_messages_above_all_before(tmp_path, monkeypatch):
    fed, numbers = Folder(tmp_path), []
    for seconds in (1000.0, 2000.0, 1500.0, 1500.0, 3000.0, 4000.5):
        monkeypatch.setattr(world, "clock", lambda now=seconds: now)
        if seconds == 4000.5:
            fed.starts_file.write_text("torn")
        numbers.append(next_start(fed))
    assert numbers == [1000, 2000, 2001, 2002, 3000, 4000]


def test_a_question_about_another_model_is_none_of_the_round(tmp_path):
    """Its server went on from a checkpoint, and what it asked then did not come."""
    answers = []
    for before in (0.5, None):
        fedlin = experiment(**SHORT, algorithm=make_algorithm("fedlin"))
        node = Nodes(fedlin, tmp_path / str(before)).nodes[3]
        if before is not None:
            node.answer(of_model(asking("question", 0, 3), before))
        x = torch.full((147,), 0.1).numpy().tobytes()
        train = encode(asking("round", 0, 3), {"msg.x": x, "buffers": b"", "msg.g": x})
        answers.append(node.answer(train))
    assert decode(ANSWER, answers[0])[1] and answers[0] == answers[1]


@pytest.mark.parametrize(
    ("algorithm", "down", "said"),
    [
        (Scaffold(), None, "its client state is lost"),
        (FedAvg(), None, None),
        (FedAvg(), TopK(ratio=0.1), "the client said: what this client held of 'x' is gone"),
    ],
    ids=["of a method", "of the feedback", "of the broadcast"],
)
def test_a_node_whose_disk_is_lost_begins_anew_or_is_out(algorithm, down, said, tmp_path):
    """With SCAFFOLD the server holds a part of its state, and cannot take the client back."""

    def losing(i, raw):
        if decode(ANSWER, raw)[0].round == 3:
            shutil.rmtree(tmp_path / str(i))
            (tmp_path / str(i)).mkdir()
        return raw

    make = functools.partial(stateful, algorithm=algorithm, compress=Link(TOP_K, down=down))
    engine = deployed(make, Nodes(make(), tmp_path, awry=losing))[1]
    why = {refused.why for refused in engine.refused}
    assert all(text.startswith(said) for text in why) if said else not why


@pytest.mark.slow
def test_hostile_updates_are_refused_or_taken_and_nothing_else(monkeypatch):
    """20,000 of them; benchmarks/updates.py reads a million."""
    monkeypatch.syspath_prepend(Path(__file__).parents[3] / "benchmarks")
    import updates

    counts = updates.read(20_000, seed=0)
    assert counts["refused"] > 10_000 and counts["taken"] > 100


def test_a_node_refuses_what_is_no_message_for_it(tmp_path):
    node, ask = first_node(tmp_path), asking("round", 0, 2)
    for raw, said in (
        (b"", "does not begin with FEDLOOM2"),
        (b"FEDLOOM1" + encode(ask, {})[8:], "does not begin with FEDLOOM2"),
        (encode(ask, {}), "a packet has the fields"),
        (encode(asking("round", 0, 1), {}), "the message is for client 1"),
        (encode(asking("round", 0, 2, "q"), {}), "of run 'q'"),
        (encode(ask, {"msg.x": bytes(588), "buffers": b"1"}), "field 'buffers' has 1 bytes"),
    ):
        head, parts = decode(ANSWER, node.answer(raw))
        assert isinstance(head, Refusal) and said in head.why and not parts


class Anchored(FedAvg):
    """Its client state begins at the model."""

    def client_init(self, x):
        return rec(first=x)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"algorithm": Anchored(), "submodel": FedRolex(), **OF_SIZES},
            "Anchored and FedRolex cannot be deployed together",
        ),
        ({"algorithm": FedAvg(), "attack": Alie(share=0.3)}, "an attack is of a simulation"),
    ],
)
def test_what_cannot_be_deployed_is_refused_by_name(settings, said):
    with pytest.raises(CompositionError, match=said):
        deployed(lambda: experiment(**settings), lambda *_: {})
