"""A client's round in two halves, with bytes between them, has the bits of the simulation."""

from __future__ import annotations

import functools
import random
import shutil
from pathlib import Path

import pytest
import torch

from federations.nodes import Nodes
from fedloom import Checkpoint, Local
from fedloom.algorithm import FedAvg
from fedloom.algorithms import FAFED, FedACG, FedSMOO, Scaffold
from fedloom.algorithms.registry import ALGORITHMS, make_algorithm
from fedloom.checks.tiny_federation import CAPACITIES, Trial, experiment, run
from fedloom.compression.codecs import MAKERS, QSGD, TopK
from fedloom.compression.error_feedback import EF21, Forget, Residual
from fedloom.compression.link import FieldCodec, Link
from fedloom.core.vector import rec
from fedloom.errors import CompositionError
from fedloom.federation.attacks import SignFlip
from fedloom.objectives import MOON, FedLC
from fedloom.storage import world
from fedloom.submodels import FIARSE, FedBN, FedPer, FedRep, FedRolex, FjORD, HeteroFL
from fedloom_flower.engine import FederationEngine, oldest_checkpoint
from fedloom_flower.folder import Folder
from fedloom_flower.message import ANSWER, ASK, Ask, Refusal, decode, encode
from fedloom_flower.node import Node
from fedloom_flower.server import next_start
from support.without import Without
from tiny import clusters, same


def deployed(make, folder, **more):
    """The end of a run whose clients are nodes, and its engine."""
    engine = FederationEngine(Nodes(make(), folder, **more), run="r")
    given = make()
    given.engine = engine
    return run(given), engine


WEIGHTS = (0.2, 3.0, 1.0, 0.5, 2.0, 7.0)
SHORT = {"local": Local(epochs=1, batch=4, lr=0.05), "rounds": 2}


def agree(folder, apart=False, **settings):
    make = lambda: experiment(**({"algorithm": FedAvg()} | SHORT | settings))
    ours, engine = deployed(make, folder, apart=apart)
    alone = run(make())
    assert same(ours.srv, alone.srv) and ours[2:] == alone[2:] and not engine.refused
    versions = {
        i: node.states.at(int(ours.memory[i].last), 0)
        for i, node in nodes(engine).items()
        if i in ours.memory
    }
    assert versions.keys() == alone.memory.keys()
    assert all(same(versions[i].state, alone.memory[i]) for i in versions)
    if "submodel" not in settings and not make().algorithm.asks:
        assert engine._exchange.both == sum(ours.up.values()) + sum(ours.down.values())


def nodes(engine):
    return engine._exchange.nodes


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_method(name, tmp_path):
    agree(tmp_path, algorithm=make_algorithm(name))


@pytest.mark.parametrize("name", MAKERS)
def test_every_codec_with_its_error_feedback(name, tmp_path):
    codec = MAKERS[name]()
    via = FieldCodec(codec, Forget() if codec.unfit(147) else Residual())
    agree(tmp_path, compress=via)


def normed():
    """A model with running statistics of two norms, and clients without a batch of one example."""
    first, second = torch.nn.BatchNorm1d(5), torch.nn.BatchNorm1d(4)
    parts = first, torch.nn.Linear(5, 4), second, torch.nn.Tanh(), torch.nn.Linear(4, 3)
    return {"model": torch.nn.Sequential(*parts), "data": clusters(sizes=[4, 8, 12] * 2)}


PARTS = {
    "ef21": {"compress": FieldCodec(TopK(ratio=0.1), EF21())},
    "changes": {"algorithm": Scaffold(), "compress": Link(FieldCodec(TopK(ratio=0.1), EF21()))},
    "moon": {"objective": MOON()},
    "uniform": {"weighting": "uniform"},
    "weights": {"algorithm": FedSMOO(), "weighting": WEIGHTS},
    "weights of parts": {
        "algorithm": Scaffold(),
        "submodel": HeteroFL(),
        "capacities": CAPACITIES,
        "weighting": WEIGHTS,
    },
    "heterofl": {"submodel": HeteroFL(), "capacities": CAPACITIES, "algorithm": Scaffold()},
    "fedrolex": {"submodel": FedRolex(), "capacities": CAPACITIES, "algorithm": Scaffold()},
    "fiarse": {
        "submodel": FIARSE(),
        "capacities": CAPACITIES,
        "compress": FieldCodec(QSGD(), Residual()),
    },
    "fjord": {"submodel": FjORD(), "capacities": CAPACITIES},
    "down": {"algorithm": FedACG(), "compress": Link(down=TopK(ratio=0.1)), "rounds": 4},
    "both ways": {
        "compress": Link(FieldCodec(TopK(ratio=0.1), Residual()), down=QSGD()),
        "rounds": 4,
    },
    "median": {"aggregation": "median"},
    "ring": {"aggregation": "integer_ring", "algorithm": Scaffold()},
    "ring, running statistics": {"aggregation": "integer_ring", **normed()},
    "ring, private norms": {"aggregation": "integer_ring", "private": FedBN(), **normed()},
    "kept optimiser": {
        "algorithm": make_algorithm("diloco"),
        "local": Local(epochs=1, batch=4, lr=0.01, optimiser="adamw"),
        "rounds": 3,
    },
    "norm bound": {
        "aggregation": "norm_bound",
        "compress": FieldCodec(TopK(ratio=0.2), Residual()),
    },
    "fedper": {"private": FedPer(), "compress": FieldCodec(TopK(ratio=0.2), Residual())},
    "fedrep": {"private": FedRep(head=0.5), "aggregation": "median"},
    "fedbn": {"private": FedBN(), **normed()},
    "a norm of one's own": {"private": FedPer(layers=("2",)), **normed()},
}


@pytest.mark.parametrize("name", PARTS)
def test_every_other_axis(name, tmp_path):
    agree(tmp_path, **PARTS[name])


@pytest.mark.parametrize(
    "settings",
    [
        {"algorithm": FAFED(), "weighting": "uniform"},
        {"algorithm": FAFED(), "weighting": WEIGHTS},
        {"algorithm": Scaffold()},
        {"algorithm": FedSMOO(), "compress": FieldCodec(TopK(ratio=0.2), Residual())},
        {"objective": FedLC()},
        {"algorithm": Scaffold(), "submodel": HeteroFL(), "capacities": CAPACITIES},
    ],
    ids=["probe", "weights", "examples", "residual", "labels", "submodel"],
)
def test_nodes_that_have_their_own_data_only(settings, tmp_path):
    """Weight, relative size and classes come from the roll."""
    agree(tmp_path, apart=True, **settings)


def missing(rows, name="answered"):
    """{(round from 0, client)} whose update, or answer to a question, did not count."""
    asked = [(t, i, row) for t, row in enumerate(rows) if name in row for i in row["asked"]]
    return {(t, i) for t, i, row in asked if i not in row[name]}


def stateful(**changes):
    """SCAFFOLD with top-k and its residual: all of it drifts apart at the first wrong version."""
    settings = {"algorithm": Scaffold(), "compress": FieldCodec(TopK(ratio=0.2), Residual())}
    saving = Checkpoint(every_rounds=2, every_seconds=None)
    return experiment(
        **(SHORT | settings | {"rounds": 6, "cohort": 5, "checkpoint": saving} | changes)
    )


class Awry:
    """One answer of a round is lost, late (the client's one of before), damaged or another's."""

    def __init__(self):
        self.before, self.wrong = {}, set()

    def __call__(self, i, raw):
        round = decode(ANSWER, raw)[0].round
        late, self.before[i] = self.before.get(i), raw
        if (round + i) % 4:
            return raw
        self.wrong.add((round, i))
        damaged = raw[:-1] + bytes([raw[-1] ^ 1]) if round == 1 else raw[:-9]
        return [None, late, damaged[:-5], b"x"][round % 4]


def test_updates_that_are_lost_late_or_damaged_leave_no_trace(tmp_path):
    """The nodes' states stay what the server took: as if these clients had not answered."""
    awry = Awry()
    ours, engine = deployed(stateful, tmp_path, awry=awry)
    given = stateful()
    given.engine = Without(awry.wrong)
    alone = run(given)
    assert len(awry.wrong) > 4 and {(r.round, r.client) for r in engine.refused} == awry.wrong
    assert same(ours.srv, alone.srv) and ours.up != alone.up
    for i, node in nodes(engine).items():
        assert same(node.states.at(int(ours.memory[i].last), 0).state, alone.memory[i])
        assert len(list(node.states.folder.iterdir())) <= 8


class Away(Nodes):
    """Half of the clients are away in an exchange, drawn anew; the others answer backwards."""

    def __init__(self, given: Trial, folder):
        super().__init__(given, folder)
        self.draw = random.Random(5)

    def __call__(self, messages, seconds, enough):
        there = [i for i in messages if self.draw.random() < 0.5]
        answers = super().__call__({i: messages[i] for i in there}, seconds, enough)
        heads = [decode(ASK, messages[i])[0] for i in messages.keys() - {*there}]
        self.down += sum(sum(head.parts.values()) for head in heads)
        return dict(reversed(answers.items()))


@pytest.mark.parametrize("name", ["scaffold", "fedlin"])
def test_a_round_with_too_few_updates_is_drawn_again(name, tmp_path):
    """As often as is said, and then it changes nothing. All that it cost is in the bill; the model
    is that of a simulation which asks the last cohorts, without the updates that did not come.
    """
    make = functools.partial(stateful, algorithm=make_algorithm(name), rounds=12, cohort=3)
    engine, rows = FederationEngine(Away(make(), tmp_path), run="r", min_updates=2, redraws=2), []
    given = make(on_round=lambda row: rows.append(engine.attendance.row))
    given.engine = engine
    ours = run(given)

    draws = [len(row.get("redrawn", ())) for row in rows]
    used = [len(row["answered"]) for row in rows]
    assert (
        {*draws} == {0, 1, 2}
        and {*used} == {0, 2, 3}
        and [row["round"] for row in rows] == [*range(1, 13)]
    )
    for t, row in enumerate(rows):
        tried = [*row.get("redrawn", ()), row]
        cohorts = [given.loop.cohorts.of(t, attempt=k) for k in range(len(tried))]
        assert [each["asked"] for each in tried] == cohorts
        assert all(not each["answered"] and len(each["unused"]) < 2 for each in tried[:-1])
        assert all(
            {*each["answered"], *each.get("unused", ()), *each.get("lost", ())} == {*each["asked"]}
            for each in tried
        )
        assert ("clients" in ours.history[t]) == (len(tried) > 1)

    given = make(cohort=[row["asked"] for row in rows])
    given.engine = Without(missing(rows), missing(rows, "questioned"))
    alone = run(given)
    assert same(ours.srv, alone.srv)
    assert [row["test_loss"] for row in ours.history] == [row["test_loss"] for row in alone.history]
    for i, state in alone.memory.items():
        assert same(nodes(engine)[i].states.at(int(state.last), 0).state, state)
    if name == "scaffold":  # an answer to a question is counted in other words
        assert engine._exchange.both == sum(ours.up.values()) + sum(ours.down.values())


def test_another_draw_waits_for_no_more_than_it_needs(tmp_path):
    """Of five clients three are wanted; one has answered in the draw before."""
    nodes, calls = Nodes(experiment(algorithm=FedAvg()), tmp_path), []

    def exchange(messages, seconds, enough):
        calls.append((sorted(messages), enough))
        some = sorted(messages)[: 1 if len(calls) == 1 else enough]
        return nodes({i: messages[i] for i in some}, seconds, enough)

    given = experiment(algorithm=FedAvg(), cohort=[[0, 1, 2, 3, 4]], rounds=1)
    given.engine = FederationEngine(exchange, run="r", updates=3, min_updates=3, redraws=1)
    run(given)
    assert calls == [([0, 1, 2, 3, 4], 3), ([1, 2, 3, 4], 2)]
    row = given.engine.attendance.row
    assert row["answered"] == [0, 1, 2] and row["spare"] == [3, 4]


@pytest.mark.usefixtures("accounts_at_hand")
def test_a_private_round_is_not_drawn_again():
    """Its accounts count on the first draw, whoever answers."""
    private = {"aggregation": "dp", "sampling": "poisson", "weighting": "uniform"}
    engine, rows = FederationEngine(lambda *_: {}, redraws=2, rehearsal=True), []
    private["on_round"] = lambda row: rows.append(engine.attendance.row)
    given = experiment(algorithm=FedAvg(), cohort=0.7, rounds=2, **private)
    given.engine = engine
    run(given)
    assert [row["answered"] for row in rows] == [[], []]
    assert not any("redrawn" in row for row in rows)


def test_a_server_that_died_goes_on_from_its_checkpoint_with_the_same_nodes(tmp_path):
    """Its nodes are ahead of it by two rounds, and go back."""
    there = Nodes(stateful(), tmp_path / "nodes")

    def exchange(messages, seconds, enough):
        if not there.died and decode(ASK, next(iter(messages.values())))[0].round == 5:
            there.died = True
            there(messages, seconds, enough)  # the nodes have answered, and nobody reads it
            raise RuntimeError("the server's process died")
        return there(messages, seconds, enough)

    there.died = False
    kept = functools.partial(oldest_checkpoint, tmp_path / "run")
    make = lambda: stateful(checkpoint=Checkpoint(every_rounds=3, every_seconds=None, keep=1))
    given = make()
    given.engine = FederationEngine(exchange, run="r", kept=kept)
    with pytest.raises(RuntimeError, match="died"):
        given.run(tmp_path / "run")
    given = make()
    given.engine = FederationEngine(exchange, run="r", kept=kept)
    result, alone = given.resume(tmp_path / "run"), run(make())
    assert same(result.state, alone.srv) and len(result.history) == 6
    for i, state in alone.memory.items():
        assert same(there.nodes[i].states.at(int(state.last), 0).state, state)


def test_a_node_that_began_after_the_question_asks_itself_again(tmp_path):
    """What ask() changed of the client state is in no file until the round is done."""

    def forgetting(i, raw):
        engine._exchange.nodes[i]._pending = (b"", None)
        return raw

    make = lambda: experiment(**SHORT, algorithm=make_algorithm("fedlin"))
    engine = FederationEngine(Nodes(make(), tmp_path, awry=forgetting), run="r")
    given = make()
    given.engine = engine
    assert same(run(given).srv, run(make()).srv) and not engine.refused


def test_a_question_about_another_model_is_none_of_the_round(tmp_path):
    """Its server went on from a checkpoint, and what it asked then did not come."""
    make = lambda k: Nodes(experiment(**SHORT, algorithm=make_algorithm("fedlin")), tmp_path / k)
    ends = []
    for k, x in (("one", 0.5), ("other", None)):
        node = make(k).nodes[3]
        sent = {"msg.x": torch.full((147,), 0.1).numpy().tobytes(), "buffers": b""}
        ask = Ask(run="r", what="question", round=0, client=3, taken=-1, kept=0)
        if x is not None:
            node.answer(encode(ask, sent | {"msg.x": torch.full((147,), x).numpy().tobytes()}))
        train = ask.model_copy(update={"what": "round"})
        ends.append(node.answer(encode(train, sent | {"msg.g": sent["msg.x"]})))
    assert decode(ANSWER, ends[0])[1] and ends[0] == ends[1]


def test_an_answer_that_cannot_be_read_is_asked_for_again_in_the_next_draw(tmp_path):
    bad = {2}

    def awry(i, raw):
        return raw[:-1] if i in bad and not bad.remove(i) else raw

    make = lambda: experiment(algorithm=Scaffold(), cohort=6, **SHORT)
    given = make()
    engine = FederationEngine(Nodes(make(), tmp_path, awry=awry), run="r", min_updates=6, redraws=1)
    given.engine = engine
    assert same(run(given).srv, run(make()).srv) and [r.client for r in engine.refused] == [2]


def test_a_message_that_comes_again_is_answered_without_training(tmp_path, monkeypatch):
    """Its answer may have been late, and the round is drawn again; only the last one is kept."""
    node = Nodes(experiment(algorithm=FedAvg(), rounds=1), tmp_path).nodes[2]
    trained, train = [], node._client.train
    monkeypatch.setattr(node._client, "train", lambda *a: trained.append(a) or train(*a))
    ask = Ask(run="r", what="round", round=0, client=2, taken=-1, kept=0)
    first, other = (
        encode(ask, {"msg.x": torch.full((147,), x).numpy().tobytes(), "buffers": b""})
        for x in (0.1, 0.2)
    )
    answers = [node.answer(raw) for raw in (first, first, other, first)]
    assert answers[0] == answers[1] == answers[3] != answers[2] and len(trained) == 3


def test_a_node_whose_disk_is_lost_begins_anew_or_is_out(tmp_path):
    """With SCAFFOLD the server holds a part of its state, and cannot take the client back."""

    def losing(i, raw):
        if decode(ANSWER, raw)[0].round == 3:
            for path in (tmp_path / "nodes" / str(i)).iterdir():
                path.unlink()
        return raw

    whole = "the client said: what this client held of 'x' is gone; send it whole"
    for algorithm, down, said in (
        (Scaffold(), None, "its client state is lost"),
        (FedAvg(), None, None),
        (FedAvg(), TopK(ratio=0.1), whole),
    ):
        compress = Link(FieldCodec(TopK(ratio=0.2), Residual()), down=down)
        make = functools.partial(stateful, algorithm=algorithm, compress=compress)
        engine = deployed(make, tmp_path / "nodes", awry=losing)[1]
        assert {r.why.partition(",")[0] for r in engine.refused} == ({said} if said else set())
        shutil.rmtree(tmp_path / "nodes")


@pytest.mark.slow
def test_hostile_updates_are_refused_or_taken_and_nothing_else(monkeypatch):
    """20,000 of them; benchmarks/updates.py reads a million."""
    monkeypatch.syspath_prepend(Path(__file__).parents[3] / "benchmarks")
    import updates

    counts = updates.read(20_000, seed=0)
    assert counts["refused"] > 10_000 and counts["taken"] > 100


def test_a_node_refuses_what_is_no_message_for_it(tmp_path):
    node = Nodes(experiment(algorithm=FedAvg(), rounds=1), tmp_path).nodes[2]
    ask = Ask(run="r", what="round", round=0, client=2, taken=-1, kept=0)
    for raw, said in (
        (b"", "does not begin with FEDLOOM2"),
        (encode(ask, {}), "a packet has the fields"),
        (encode(ask.model_copy(update={"client": 1}), {}), "the message is for client 1"),
        (encode(ask.model_copy(update={"run": "q"}), {}), "of run 'q'"),
        (encode(ask, {"msg.x": bytes(588), "buffers": b"1"}), "field 'buffers' has 1 bytes"),
    ):
        head, parts = decode(ANSWER, node.answer(raw))
        assert isinstance(head, Refusal) and said in head.why and not parts


class Anchored(FedAvg):
    """Its client state begins at the model."""

    def client_init(self, x):
        return rec(first=x)


def test_what_cannot_be_deployed_is_refused_by_name(tmp_path):
    levels = {"submodel": FedRolex(), "capacities": CAPACITIES}
    for settings, said in (
        ({"algorithm": Anchored(), **levels}, "Anchored and FedRolex cannot be deployed together"),
        ({"attack": SignFlip(share=0.2)}, "an attack is of a simulation"),
    ):
        given = experiment(**({"algorithm": FedAvg()} | settings))
        given.engine = FederationEngine(lambda *_: {})
        with pytest.raises(CompositionError, match=said):
            run(given)


def test_a_message_that_comes_late_or_again_touches_no_state(tmp_path):
    """Not even in a process that began since: the newest number is on the disk with its state."""
    there = Nodes(make := stateful(), tmp_path)
    sent, said = [], []

    def exchange(messages, seconds, enough):
        sent.append(messages)
        said.append(there(messages, seconds, enough))
        return said[-1]

    make.engine = FederationEngine(exchange, run="r", start=5)
    run(make)
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
    fed, seconds = Folder(tmp_path), [1000.0, 2000.0, 1500.0, 1500.0, 3000.0]
    monkeypatch.setattr(world, "clock", lambda: seconds[0])
    found = []
    while seconds:
        found.append(next_start(fed))
        seconds.pop(0)
    assert found == [1000, 2000, 2001, 2002, 3000]
    fed.starts_file.write_text("torn")
    monkeypatch.setattr(world, "clock", lambda: 4000.5)
    assert next_start(fed) == 4000
