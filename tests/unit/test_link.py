"""The link: what is refused, what travels, what it costs, and what both sides remember."""

from __future__ import annotations

import dataclasses
import pickle
import re

import pytest
import torch

from fedloom import FedAvg
from fedloom.algorithm import MEAN
from fedloom.algorithms import Scaffold
from fedloom.compression import downlink
from fedloom.compression.codecs import (
    QSGD,
    Chain,
    Dense,
    Int8,
    PowerSGD,
    RandomDropping,
    TopK,
    make_codec,
)
from fedloom.compression.error_feedback import EF21, Forget, Residual
from fedloom.compression.link import FieldCodec, Link, Whole, via
from fedloom.core.layout import Layout
from fedloom.core.rng import generator
from fedloom.core.vector import fields, leaves, rec
from fedloom.core.wire import nbytes
from fedloom.errors import CompositionError, ConfigError
from fedloom.objectives import CrossEntropy
from fedloom.plan import Plan
from fedloom.storage.records import freeze, thaw
from fedloom.submodels import FIARSE, HeteroFL

LAYOUT = Layout(("w", "b"), ((8, 6), (8,)))
D = LAYOUT.d
WHOLE = Whole(LAYOUT)
X = torch.zeros(D, dtype=torch.float64)
CODERS = [Dense(), TopK(ratio=0.1), RandomDropping(ratio=0.4), QSGD(), PowerSGD(rank=1)]


def normal(*place, d=D):
    return torch.randn(d, generator=generator(5, "test", *place), dtype=torch.float64)


def answer(*place):
    return rec(delta=normal("delta", *place), dc=normal("dc", *place), weight=3.0)


class Masked:
    """A part of the model without the shapes of its layers."""

    def __init__(self, held):
        self.held, self.layout = held, Layout(("some",), ((len(held),),))

    def take(self, record):
        return record[self.held]

    def put(self, part, record):
        return record.index_copy(0, self.held, part)


class Dual(FedAvg):
    """An algorithm whose server needs this cohort's own mean."""

    def unweighted(self, up, job):
        return rec(dual=up.delta)


class Hidden(FedAvg):
    """An algorithm with a linear field whose mean its server does not get under that name."""

    compressible_up = {"delta": MEAN, "m": MEAN}


def equal(a, b):
    one, two = fields(a), fields(b)
    return list(one) == list(two) and all(
        torch.equal(one[k], two[k]) if isinstance(one[k], torch.Tensor) else one[k] == two[k]
        for k in one
    )


# ----------------------------------------------------------------------------------------- refused
REFUSED = {
    "a field that is no mean": (
        Link({"dc": FieldCodec(TopK())}),
        FedAvg(),
        None,
        ("TopK", "FedAvg"),
    ),
    "matrices of a mask": (
        Link(FieldCodec(PowerSGD())),
        FedAvg(),
        FIARSE(),
        ("PowerSGD", "FIARSE"),
    ),
    "EF21 and parts": (
        Link(FieldCodec(TopK(), EF21())),
        FedAvg(),
        HeteroFL(),
        ("EF21", "HeteroFL"),
    ),
    "EF21 and a dual": (Link(FieldCodec(TopK(), EF21())), Dual(), None, ("EF21", "Dual")),
    "EF21 and no mean": (
        Link({"m": FieldCodec(TopK(), EF21())}),
        Hidden(),
        None,
        ("EF21", "Hidden"),
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_has_no_meaning_is_refused_by_both_names(case):
    link, algorithm, rule, names = REFUSED[case]
    with pytest.raises(CompositionError) as refused:
        Plan(algorithm, CrossEntropy(), submodel=rule, link=link)
    assert all(name in str(refused.value) for name in names)


def test_their_neighbours_are_welcome():
    def plan(algorithm, link, **more):
        Plan(algorithm, CrossEntropy(), link=link, **more)

    plan(Scaffold(), Link({"dc": FieldCodec(TopK())}))
    plan(FedAvg(), Link(FieldCodec(PowerSGD())), submodel=HeteroFL())
    plan(FedAvg(), Link(FieldCodec(TopK(), Residual())), submodel=FIARSE())
    plan(Scaffold(), Link(FieldCodec(TopK(), EF21())))
    plan(Dual(), Link(FieldCodec(TopK(), Residual())))
    plan(Hidden(), Link({"m": FieldCodec(TopK(), Residual())}))
    plan(FedAvg(), Link(FieldCodec(QSGD(), Residual())))
    plan(FedAvg(), Link(FieldCodec(QSGD(levels=7, bucket=64), Residual())))
    plan(FedAvg(), Link(FieldCodec(QSGD(levels=7), Residual())), d=100)  # 100 / (4 * 49) < 1
    plan(FedAvg(), Link(FieldCodec(QSGD(levels=7, bucket=0))))
    plan(FedAvg(), Link(FieldCodec(RandomDropping(scaled=True))))
    plan(FedAvg(), Link(FieldCodec(RandomDropping(), Residual())))


def test_feedback_is_checked_for_the_length_that_is_there():
    codec, large = QSGD(levels=1, bucket=0), Layout(("x",), ((5,),))
    link = Link({"delta": FieldCodec(codec, Residual())})
    with pytest.raises(CompositionError, match="variance factor"):
        link.init(torch.zeros(5), large, 0)
    link.init(torch.zeros(3), Layout(("x",), ((3,),)), 0)


def test_one_via_stands_for_every_field_that_may_be_compressed():
    via = FieldCodec(TopK(), Residual())
    assert Link(via).settled(Scaffold()).up == {"delta": via, "dc": via}
    link = Link({"dc": via}).settled(Scaffold())
    assert link.up == {"dc": via} and link.settled(Scaffold()) == link
    with pytest.raises(ConfigError, match="settled"):
        Link(via).init(X, LAYOUT, 0)
    with pytest.raises(ConfigError, match="FieldCodec"):
        Link({"delta": TopK()}).settled(FedAvg())


def test_fields_that_are_not_there_or_no_vectors_are_refused():
    for name in ("dx", "weight"):
        link = Link({name: FieldCodec(TopK())})
        with pytest.raises(ConfigError, match=name):
            link.send(answer(), link.init(X, LAYOUT, 0), WHOLE, 0)


# ---------------------------------------------------------------------------------- bytes and back
@pytest.mark.parametrize("feedback", [Forget(), Residual()])
@pytest.mark.parametrize("codec", CODERS)
def test_sending_and_receiving_is_delivering(codec, feedback):
    link = Link(FieldCodec(codec, feedback)).settled(Scaffold())
    memory = link.init(X, LAYOUT, 0)
    for t in range(3):
        up = answer(t)
        packet, sender = link.send(up, memory, WHOLE, 7, t, 2)
        read, bill, memory = link.deliver(up, memory, WHOLE, 7, t, 2)
        received = link.receive(packet, LAYOUT, up)
        assert equal(read, received) and equal(sender, memory)
        assert bill == {name: len(raw) for name, raw in packet.items()}
        assert read.weight == 3.0 and read.delta.dtype == up.delta.dtype


def test_what_is_not_coded_travels_as_it_is():
    link = Link({"dc": FieldCodec(TopK(ratio=0.5))}).settled(Scaffold())
    up = answer()
    read, bill, _ = link.deliver(up, link.init(X, LAYOUT, 0), WHOLE, 0)
    assert read.delta is up.delta
    assert {k: bill[k] for k in ("delta", "weight")} == {"delta": 8 * D, "weight": 8}
    nested = rec(delta=up.delta, own=rec(a=up.dc, n=2.0), weight=1.0)
    empty = Link().settled(FedAvg())
    packet, state = empty.send(nested, empty.init(X, LAYOUT, 0), WHOLE, 0)
    assert {k: len(v) for k, v in packet.items()} == nbytes(nested) and state == rec()
    assert equal(empty.receive(packet, LAYOUT, nested), nested)


def test_every_client_round_and_field_draws_for_itself():
    link = Link(FieldCodec(QSGD(levels=1, bucket=4))).settled(Scaffold())
    memory = link.init(X, LAYOUT, 0)
    up = answer()._replace(dc=answer().delta)
    send = lambda *place: link.send(up, memory, WHOLE, *place)[0]
    assert send(1, 2, 3) == send(1, 2, 3)
    assert send(1, 2, 3)["delta"] != send(1, 2, 3)["dc"]
    others = [send(*place)["delta"] for place in ((1, 2, 3), (1, 2, 4), (1, 3, 3), (2, 2, 3))]
    assert len(set(others)) == 4


def test_a_link_cannot_be_changed_after_it_was_made():
    with pytest.raises(AttributeError, match="cannot assign to field 'up'"):
        Link().up = FieldCodec(Dense())
    with pytest.raises(AttributeError, match="cannot assign to field 'codec'"):
        FieldCodec(Dense()).codec = TopK()


# ------------------------------------------------------------------------------------------ memory
def test_memory_is_empty_where_nothing_is_remembered():
    link = Link(FieldCodec(TopK())).settled(Scaffold())
    memory = link.init(X, LAYOUT, 0)
    assert sum(v.untyped_storage().nbytes() for v in leaves(memory, link.server_init(X))) == 0
    link = Link(FieldCodec(PowerSGD(rank=1), Residual())).settled(Scaffold())
    memory = link.init(X, LAYOUT, 0)
    assert len(memory.dc.e) == D and len(memory.dc.code.Q) == 6
    assert sum(v.numel() for v in leaves(link.server_init(X))) == 0
    link = Link(FieldCodec(TopK(), EF21())).settled(Scaffold())
    assert [len(h) for h in link.server_init(X)] == [D, 0]  # what dc adds up to, it has already


@pytest.mark.parametrize("codec", CODERS)
def test_memory_survives_storage_and_arguments_are_left_alone(codec):
    link = Link(FieldCodec(codec, Residual())).settled(Scaffold())
    memory, up = link.init(X, LAYOUT, 0), answer()
    _, memory = link.send(up, memory, WHOLE, 0)
    before = pickle.dumps((memory, up))
    packet, after = link.send(up, memory, WHOLE, 1)
    assert pickle.dumps((memory, up)) == before
    again = thaw(*freeze(memory))
    packet_again, after_again = link.send(up, again, WHOLE, 1)
    assert packet == packet_again and equal(after, after_again)


@pytest.mark.parametrize("codec", [TopK(ratio=0.2), RandomDropping(ratio=0.5), QSGD()])
def test_what_a_client_does_not_hold_is_left_alone(codec):
    link = Link(FieldCodec(codec, Residual())).settled(FedAvg())
    memory = link.init(X, LAYOUT, 0)
    start = normal("residual")
    memory = memory._replace(delta=memory.delta._replace(e=start))
    held = torch.arange(0, D, 3)
    up = rec(delta=normal(1, d=len(held)), weight=1.0)
    view = Masked(held)
    packet, new = link.send(up, memory, view, 0)
    sent, e = link.receive(packet, view.layout, up).delta, new.delta.e
    assert sent.shape == held.shape
    torch.testing.assert_close(sent + e[held], up.delta + start[held], rtol=0, atol=1e-15)
    away = torch.ones(D, dtype=torch.bool).index_fill(0, held, False)
    assert torch.equal(e[away], start[away])


# ----------------------------------------------------------------------------------------- feedback
class Remembers(TopK):
    """A codec of somebody's whose state is the very vector that it was given."""

    code = 200

    def init(self, layout, seed):
        return rec(last=torch.zeros(layout.d, dtype=torch.float64))

    def encode(self, p, state, layout, draw):
        return super().encode(p, rec(), layout, draw)[0], rec(last=p)


class Aims(Residual):
    """A feedback of somebody's that hands the codec the answer itself."""

    def aim(self, v, e):
        return v


@pytest.mark.parametrize("feedback", [Residual(), EF21(), Aims()])
def test_what_is_kept_is_written_over_nothing_that_somebody_has(feedback):
    link = Link({"delta": FieldCodec(Remembers(ratio=0.2), feedback)})
    up, state = answer(0), link.init(X, LAYOUT, 0)
    _, _, state = link.deliver(answer(1), state, WHOLE, 0, 0, 0)
    delta, e = up.delta.clone(), state.delta.e.clone()
    for call in (link.send, link.deliver):
        *_, after = call(up, state, WHOLE, 0, 1, 0)
        p = delta - e if isinstance(feedback, EF21) else feedback.aim(delta, e)
        sent = torch.where(p.abs() >= p.abs().sort().values[-round(0.2 * D)], p, 0.0)
        assert torch.equal(after.delta.code.last, p)
        assert torch.equal(after.delta.e, e + sent if isinstance(feedback, EF21) else p - sent)
        assert torch.equal(up.delta, delta) and torch.equal(state.delta.e, e)


def test_ef21_gives_the_server_the_mean_of_all_clients_and_changes_once():
    link = Link(FieldCodec(TopK(ratio=0.2), EF21())).settled(Scaffold())
    clients, weights = range(4), [1.0, 2.0, 3.0, 4.0]
    memories = {i: link.init(X, LAYOUT, 0) for i in clients}
    server, computed, sent = link.server_init(X), torch.zeros_like(X), torch.zeros_like(X)
    for t, cohort in enumerate(([0, 1, 2, 3], [1, 3], [2], [0, 2])):
        total = sum(weights[i] for i in cohort)
        mean, dc = torch.zeros_like(X), torch.zeros_like(X)
        for i in cohort:
            packet, memories[i] = link.send(answer(t, i), memories[i], WHOLE, 0, t, i)
            read = link.receive(packet, LAYOUT, answer())
            mean += weights[i] * read.delta / total
            dc += read.dc / len(cohort)
            computed += answer(t, i).dc
        up = rec(delta=mean, dc=dc)
        up, server = link.arrive(up, server, total / sum(weights), len(cohort) / 4)
        e = sum(w * memories[i].delta.e for i, w in enumerate(weights)) / sum(weights)
        torch.testing.assert_close(up.delta, e, rtol=0, atol=1e-14)
        # a change counts once: the plain mean of those who are there, and the rest stays with them
        assert torch.equal(up.dc, dc)
        sent += len(cohort) * up.dc
        left = sum(memories[i].dc.e for i in clients)
        torch.testing.assert_close(sent + left, computed, rtol=0, atol=1e-13)
        assert equal(server, rec(delta=up.delta, dc=X[:0]))


# ----------------------------------------------------------------------------------------- downlink
def test_who_was_away_pays_for_the_messages_it_missed_or_for_the_whole():
    state, whole = rec(x=rec(sizes=torch.tensor([5, 7, 9]))), {"x": 100, "y": 3}
    paid = [downlink.bill(state, whole, missed) for missed in (0, 1, 2, 3, 4, None)]
    assert [p["x"] for p in paid] == [0, 9, 16, 21, 100, 100] and {p["y"] for p in paid} == {3}
    assert whole == {"x": 100, "y": 3}
    sizes = torch.tensor([5, 7, 9])
    worth = {22: [5, 7, 9], 21: [7, 9], 17: [7, 9], 16: [9], 10: [9], 9: [], 0: []}
    assert {n: downlink._worth(sizes, n).tolist() for n in worth} == worth
    assert downlink.away({1: 3, 2: None, 4: 4}, 5) == {1: 2, 2: None, 4: 1}


def test_the_server_sends_the_difference_to_what_clients_have_seen():
    layout, codecs = Layout(("x",), ((4,),)), {"x": TopK(ratio=0.25)}
    first, d = rec(x=torch.tensor([1.0, 2.0, 3.0, 4.0]), y=2.0), [0.0, 5.0, -7.0, 1.0]
    state = downlink.first_state(codecs, first, layout, 0)
    assert torch.equal(state.x.seen, first.x) and len(state.x.sizes) == 0
    now = first._replace(x=first.x + torch.tensor(d))
    msg, after, _ = downlink.announce(codecs, now, state, layout, 0, 0)
    assert msg.x.tolist() == after.x.seen.tolist() == [1.0, 2.0, -4.0, 4.0] and msg.y == 2.0
    assert len(after.x.sizes) == 0  # a message of 17 bytes is longer than the vector
    msg, after, _ = downlink.announce(codecs, now, after, layout, 0, 1)
    assert msg.x.tolist() == [1.0, 7.0, -4.0, 4.0]
    assert downlink.sizes(codecs, now, after, layout) == {"x": 12 + 1 + 4}


def test_a_link_knows_what_it_loses_and_what_the_server_lacks():
    up, state = rec(delta=torch.tensor([3.0, 4.0])), rec(delta=rec(e=torch.tensor([1.0, 2.0])))
    squares = lambda feedback: Link({"delta": FieldCodec(TopK(), feedback)}).squares(up, state)
    assert squares(Residual()) == (25.0, 5.0) and squares(EF21()) == (25.0, 8.0)
    assert Link({"m": FieldCodec(TopK())}).squares(up, state) is None
    several = {
        "a": FieldCodec(),
        "b": FieldCodec(TopK()),
        "c": FieldCodec(TopK(), Residual()),
        "d": FieldCodec(QSGD()),
    }
    assert Link(several).losing == ("b", "d") and not Link(several).mirrored
    assert (
        Link({"a": FieldCodec(TopK(), EF21())}).mirrored
        and Link(several).codes
        and not Link().codes
    )
    for ask in (lambda: Link(FieldCodec(TopK())).codes, lambda: Link(down=TopK()).codes_down):
        with pytest.raises(ConfigError, match="must be settled"):
            ask()
    assert Link(down={"x": TopK()}).codes_down == {"x": TopK()} and not Link().codes_down
    with pytest.raises(ConfigError, match=r"Link.down\['x'\] must be a codec"):
        Link(down={"x": 1}).settled(FedAvg())


def test_what_the_feedbacks_do_is_what_they_say():
    v, e, sent = (torch.tensor([n]) for n in (5.0, 2.0, 4.0))
    x = torch.ones(3)
    ends = lambda kind: [len(part) for part in kind().init(x)]
    assert (ends(Forget), ends(Residual), ends(EF21)) == ([0, 0], [3, 0], [3, 3])
    assert not any(part.any() for part in EF21().init(x))
    aims = [kind().aim(v, e).item() for kind in (Forget, Residual, EF21)]
    kept = [kind().keep(v.clone(), sent, e).item() for kind in (Forget, Residual, EF21)]
    lost = [kind().lost(v, e).item() for kind in (Forget, Residual, EF21)]
    assert (aims, kept, lost) == ([5.0, 7.0, 3.0], [2.0, 1.0, 6.0], [2.0, 2.0, 3.0])
    for kind, mean, h in ((Forget, 5.0, 2.0), (Residual, 5.0, 2.0), (EF21, 3.25, 3.25)):
        assert [part.item() for part in kind().arrive(v, e, 0.25)] == [mean, h]
    assert [(k.remembers, k.leftover) for k in (Forget, Residual, EF21)] == [
        (False, False),
        (True, True),
        (True, False),
    ]


class Fair(RandomDropping):
    """A scaled choice of somebody's who says nothing about feedback."""

    code = 201

    def unfit(self, d):
        return ""


@pytest.mark.parametrize(
    ("codec", "d", "said"),
    [
        (make_codec("topk:0.5|int8"), 100, ""),
        (make_codec("topk:0.5|qsgd:1,0"), 100, "its variance factor is 7.07"),
        (make_codec("dropping:0.5,scaled=true|fp16"), 100, "the scaled form"),
        (make_codec("dropping:0.5,scaled=true"), 100, "the scaled form"),
        (make_codec("dropping:1,scaled=true"), 100, ""),
        (Chain(first=Fair(ratio=0.6, scaled=True), then=QSGD(levels=5, bucket=0)), 30, "1.17"),
        (Chain(first=Fair(ratio=0.6, scaled=True), then=QSGD()), 20, ""),
        (QSGD(levels=5, bucket=0), 100, "its variance factor is 1, and .* take more levels"),
        (QSGD(levels=5, bucket=0), 99, ""),
        (QSGD(levels=5, bucket=99), 500, ""),
        (Int8(bucket=0), 4 * 127**2, "its variance factor is 1, .* below 1: use smaller buckets"),
        (Int8(bucket=0), 4 * 127**2 - 1, ""),
    ],
)
def test_feedback_around_a_codec_is_refused_from_a_factor_of_one_on(codec, d, said):
    found = FieldCodec(codec, Residual()).unfit(d)
    assert bool(found) == bool(said) and re.search(said, found)
    assert not found or found.startswith(f"Residual around {type(codec).__name__}: ")
    assert FieldCodec(codec).unfit(d) == ""


@pytest.mark.parametrize("kind", [Forget, Residual, EF21])
def test_feedbacks_are_values(kind):
    assert kind() == kind() and hash(kind()) == hash(kind())
    with pytest.raises(dataclasses.FrozenInstanceError):
        kind().leftover = True


def test_names_are_as_good_as_codecs():
    from fedloom.compression.codecs import Int8

    assert Link("topk:0.1", down="int8") == Link(via("topk:0.1"), down=Int8())
    with pytest.raises(ConfigError, match="unknown codec"):
        Link("topq:0.1")
