"""The link: what is refused, what travels, what it costs, and what both sides remember."""

import math
import pickle
import re
import struct

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
from fedloom.compression.link import FieldCodec, Link, via
from fedloom.core import wire
from fedloom.core.layout import Layout
from fedloom.core.rng import generator
from fedloom.core.vector import leaves, rec
from fedloom.core.wire import nbytes
from fedloom.errors import CompositionError, ConfigError, WireError
from fedloom.objectives import CrossEntropy
from fedloom.plan import Plan
from fedloom.storage.records import freeze, thaw
from fedloom.submodels import whole
from support.refusals import refused
from tiny import same

LAYOUT = Layout(("w", "b"), ((8, 6), (8,)))
D = LAYOUT.d
WHOLE = whole(LAYOUT)
X = torch.zeros(D, dtype=torch.float64)
CODERS = [Dense(), TopK(ratio=0.1), RandomDropping(ratio=0.4), QSGD(), PowerSGD(rank=1)]


def normal(*place, d=D):
    return torch.randn(d, generator=generator(5, "test", *place), dtype=torch.float64)


def answer(*place):
    return rec(delta=normal("delta", *place), dc=normal("dc", *place), weight=3.0)


def link_of(*codec, algorithm=None, **fields):
    """A settled link: of Scaffold, with one codec for all fields, or one for each of these."""
    given = {name: FieldCodec(*parts) for name, parts in fields.items()}
    return Link(given or FieldCodec(*codec)).settled(algorithm or Scaffold())


class Dual(FedAvg):
    """An algorithm whose server needs this cohort's own mean."""

    def unweighted(self, up, job):
        return rec(dual=up.delta)


class Hidden(FedAvg):
    """An algorithm with a linear field whose mean its server does not get under that name."""

    compressible_up = {"delta": MEAN, "m": MEAN}


# ------------------------------------------------------------------------------- what goes together
@pytest.mark.parametrize(
    ("link", "algorithm", "names"),
    [
        (Link({"dc": FieldCodec(TopK())}), FedAvg(), ("TopK", "FedAvg")),
        (Link(FieldCodec(TopK(), EF21())), Dual(), ("EF21", "Dual")),
        (Link({"m": FieldCodec(TopK(), EF21())}), Hidden(), ("EF21", "Hidden")),
    ],
)
def test_what_has_no_meaning_is_refused_by_both_names(link, algorithm, names):
    plan = lambda: Plan(algorithm, CrossEntropy(), link=link)
    refused(plan, *names, kind=CompositionError)


def test_their_neighbours_are_welcome():
    for algorithm, link in (
        (Scaffold(), Link({"dc": FieldCodec(TopK())})),
        (Scaffold(), Link(FieldCodec(TopK(), EF21()))),
        (Dual(), Link(FieldCodec(TopK(), Residual()))),
        (Hidden(), Link({"m": FieldCodec(TopK(), Residual())})),
        (FedAvg(), Link(FieldCodec(QSGD(levels=7, bucket=0)))),
        (FedAvg(), Link(FieldCodec(RandomDropping(scaled=True)))),
    ):
        Plan(algorithm, CrossEntropy(), link=link)
    # 100 / (4 * 49) < 1
    Plan(FedAvg(), CrossEntropy(), link=Link(FieldCodec(QSGD(levels=7), Residual())), d=100)


class Fair(RandomDropping):
    """A scaled choice of somebody's who says nothing about feedback."""

    code = 201

    def unfit(self, d):
        return ""


@pytest.mark.parametrize(
    ("codec", "d", "says"),
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
def test_feedback_around_a_codec_is_refused_from_a_factor_of_one_on(codec, d, says):
    why = FieldCodec(codec, Residual()).unfit(d)
    assert bool(why) == bool(says) and re.search(says, why)
    assert not why or why.startswith(f"Residual around {type(codec).__name__}: ")
    assert FieldCodec(codec).unfit(d) == ""


def test_feedback_is_checked_for_the_length_that_is_there():
    link = Link({"delta": FieldCodec(QSGD(levels=1, bucket=0), Residual())})
    init = lambda d: link.init(torch.zeros(d), Layout(("x",), ((d,),)), 0)
    refused(lambda: init(5), "variance factor", kind=CompositionError)
    init(3)


def test_one_codec_stands_for_every_field_that_may_be_compressed():
    field = FieldCodec(TopK(), Residual())
    assert Link(field).settled(Scaffold()).up == {"delta": field, "dc": field}
    link = Link({"dc": field}).settled(Scaffold())
    assert link.up == {"dc": field} and link.settled(Scaffold()) == link
    assert Link("topk:0.1", down="int8") == Link(via("topk:0.1"), down=Int8())
    several = {"a": FieldCodec(), "b": FieldCodec(TopK()), "c": field, "d": FieldCodec(QSGD())}
    assert Link(several).losing == ("b", "d") and not Link(several).mirrored
    assert Link({"a": FieldCodec(TopK(), EF21())}).mirrored
    assert Link(several).codes and not Link().codes
    assert Link(down={"x": TopK()}).codes_down == {"x": TopK()} and not Link().codes_down
    with pytest.raises(AttributeError, match="cannot assign to field 'up'"):
        Link().up = field


def send_a(field):
    link = Link({field: FieldCodec(TopK())})
    return link.send(answer(), link.init(X, LAYOUT, 0), WHOLE, 0)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: Link(FieldCodec(TopK())).init(X, LAYOUT, 0), "settled"),
        (lambda: Link(FieldCodec(TopK())).codes, "must be settled"),
        (lambda: Link(down=TopK()).codes_down, "must be settled"),
        (lambda: Link({"delta": TopK()}).settled(FedAvg()), "FieldCodec"),
        (lambda: Link(down={"x": 1}).settled(FedAvg()), "Link.down['x'] must be a codec"),
        (lambda: Link("topq:0.1"), "unknown codec"),
        (lambda: send_a("dx"), "dx"),
        (lambda: send_a("weight"), "weight"),
    ],
)
def test_fields_and_names_that_make_no_link_are_refused(call, says):
    refused(call, says, kind=ConfigError)


# ---------------------------------------------------------------------------------- bytes and back
@pytest.mark.parametrize("feedback", [Forget(), Residual()])
@pytest.mark.parametrize("codec", CODERS)
def test_sending_and_receiving_is_delivering(codec, feedback):
    link = link_of(codec, feedback)
    memory = link.init(X, LAYOUT, 0)
    for t in range(3):
        up, stored = answer(t), thaw(*freeze(memory))
        before = pickle.dumps((memory, up))
        packet, sender = link.send(up, memory, WHOLE, 7, t, 2)
        assert pickle.dumps((memory, up)) == before, "arguments are left alone"
        packet_again, sender_again = link.send(up, stored, WHOLE, 7, t, 2)
        assert packet == packet_again and same(sender, sender_again), "memory survives storage"
        read, bill, memory = link.deliver(up, memory, WHOLE, 7, t, 2)
        assert same(read, link.receive(packet, LAYOUT, up)) and same(sender, memory)
        assert bill == {name: len(raw) for name, raw in packet.items()}
        assert read.weight == 3.0 and read.delta.dtype == up.delta.dtype


def test_what_is_not_coded_travels_as_it_is():
    link, up = link_of(dc=[TopK(ratio=0.5)]), answer()
    read, bill, _ = link.deliver(up, link.init(X, LAYOUT, 0), WHOLE, 0)
    assert read.delta is up.delta and (bill["delta"], bill["weight"]) == (8 * D, 8)
    nested = rec(delta=up.delta, own=rec(a=up.dc, n=2.0), weight=1.0)
    empty = Link().settled(FedAvg())
    packet, state = empty.send(nested, empty.init(X, LAYOUT, 0), WHOLE, 0)
    assert {k: len(v) for k, v in packet.items()} == nbytes(nested) and state == rec()
    assert same(empty.receive(packet, LAYOUT, nested), nested)


def test_every_client_round_and_field_draws_for_itself():
    link = link_of(QSGD(levels=1, bucket=4))
    memory, up = link.init(X, LAYOUT, 0), answer()._replace(dc=answer().delta)
    send = lambda *place: link.send(up, memory, WHOLE, *place)[0]
    assert send(1, 2, 3) == send(1, 2, 3)
    assert send(1, 2, 3)["delta"] != send(1, 2, 3)["dc"]
    others = [send(*place)["delta"] for place in ((1, 2, 3), (1, 2, 4), (1, 3, 3), (2, 2, 3))]
    assert len(set(others)) == 4


def test_memory_is_empty_where_nothing_is_remembered():
    link = link_of(TopK())
    memory = link.init(X, LAYOUT, 0)
    assert sum(v.untyped_storage().nbytes() for v in leaves(memory, link.server_init(X))) == 0
    link = link_of(PowerSGD(rank=1), Residual())
    memory = link.init(X, LAYOUT, 0)
    assert len(memory.dc.e) == D and len(memory.dc.code.Q) == 6
    assert sum(v.numel() for v in leaves(link.server_init(X))) == 0
    link = link_of(TopK(), EF21())
    assert [len(h) for h in link.server_init(X)] == [D, 0]  # what dc adds up to, it has already


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


@pytest.mark.parametrize(
    ("kind", "lengths", "aim", "kept", "lost", "arrived", "flags"),
    [
        (Forget, [0, 0], 5.0, 2.0, 2.0, [5.0, 2.0], (False, False)),
        (Residual, [3, 0], 7.0, 1.0, 2.0, [5.0, 2.0], (True, True)),
        (EF21, [3, 3], 3.0, 6.0, 3.0, [3.25, 3.25], (True, False)),
    ],
)
def test_what_the_feedbacks_do_is_what_they_say(kind, lengths, aim, kept, lost, arrived, flags):
    v, e, sent = (torch.tensor([n]) for n in (5.0, 2.0, 4.0))
    feedback, start = kind(), kind().init(torch.ones(3))
    assert [len(part) for part in start] == lengths
    assert kind is Residual or not any(part.any() for part in start)
    assert feedback.aim(v, e).item() == aim
    assert feedback.keep(v.clone(), sent, e).item() == kept
    assert feedback.lost(v, e).item() == lost
    assert [part.item() for part in feedback.arrive(v, e, 0.25)] == arrived
    assert (feedback.remembers, feedback.leftover) == flags
    assert feedback == kind() and hash(feedback) == hash(kind())


def test_a_link_knows_what_it_loses_and_what_the_server_lacks():
    up, state = rec(delta=torch.tensor([3.0, 4.0])), rec(delta=rec(e=torch.tensor([1.0, 2.0])))
    squares = lambda feedback: Link({"delta": FieldCodec(TopK(), feedback)}).squares(up, state)
    assert squares(Residual()) == (25.0, 5.0) and squares(EF21()) == (25.0, 8.0)
    assert Link({"m": FieldCodec(TopK())}).squares(up, state) is None


def test_who_was_away_pays_for_the_messages_it_missed_or_for_the_whole():
    sizes, whole = torch.tensor([5, 7, 9]), {"x": 100, "y": 3}
    state = rec(x=rec(sizes=sizes))
    paid = [downlink.bill(state, whole, missed) for missed in (0, 1, 2, 3, 4, None)]
    assert [p["x"] for p in paid] == [0, 9, 16, 21, 100, 100] and {p["y"] for p in paid} == {3}
    assert whole == {"x": 100, "y": 3}
    assert downlink.away({1: 3, 2: None, 4: 4}, 5) == {1: 2, 2: None, 4: 1}


def test_the_server_sends_the_difference_to_what_clients_have_seen():
    layout, codecs = Layout(("x",), ((4,),)), {"x": TopK(ratio=0.25)}
    first = rec(x=torch.tensor([1.0, 2.0, 3.0, 4.0]), y=2.0)
    state = downlink.first_state(codecs, first, layout, 0)
    assert torch.equal(state.x.seen, first.x) and len(state.x.sizes) == 0
    now = first._replace(x=first.x + torch.tensor([0.0, 5.0, -7.0, 1.0]))
    msg, after, _ = downlink.announce(codecs, now, state, layout, 0, 0)
    assert msg.x.tolist() == after.x.seen.tolist() == [1.0, 2.0, -4.0, 4.0] and msg.y == 2.0
    assert len(after.x.sizes) == 0  # a message of 17 bytes is longer than the vector
    msg, after, _ = downlink.announce(codecs, now, after, layout, 0, 1)
    assert msg.x.tolist() == [1.0, 7.0, -4.0, 4.0]
    assert downlink.sizes(codecs, now, after, layout) == {"x": 12 + 1 + 4}


# -------------------------------------------------------------------------- from hostile senders
TOP = link_of(delta=[TopK(ratio=0.1)])
SENT = rec(delta=normal("up").float(), dc=normal("dc").float(), weight=3.0)


def packet():
    return TOP.send(SENT, TOP.init(X.float(), LAYOUT, 0), WHOLE, 0, 7, 1)[0]


def number(value):
    return struct.pack("<d", value)


def values(*bad):
    return torch.tensor([*bad, *[0.0] * (D - len(bad))], dtype=torch.float32).numpy().tobytes()


OTHER_PACKETS = {
    "no packet": None,
    "a list": [b"", b""],
    "no fields": {},
    "a field is missing": lambda p: {k: v for k, v in p.items() if k != "weight"},
    "a coded field is missing": lambda p: {k: v for k, v in p.items() if k != "delta"},
    "one too many": lambda p: p | {"more": b""},
    "a name that is no text": lambda p: p | {7: b"", None: b""},
}
OTHER_FIELDS = {
    "a text": ("dc", "0" * 4 * D),
    "NaN": ("dc", values(math.nan)),
    "infinity": ("dc", values(0.0, -math.inf)),
    "no bytes": ("delta", None),
    "a damaged message": ("delta", lambda raw: raw[:-1]),
    "another codec's": ("delta", lambda raw: bytes([Dense().code]) + raw[1:]),
    "a number": ("weight", 3.0),
    "a longer number": ("weight", lambda raw: raw * 2),
    "a shorter number": ("weight", lambda raw: raw[:3]),
    "no weight": ("weight", number(0.0)),
    "minus no weight": ("weight", number(-0.0)),
    "a weight beyond counting": ("weight", number(2.0**32)),
    "a negative weight": ("weight", number(-3.0)),
    "an infinite weight": ("weight", number(math.inf)),
    "a weight that is none": ("weight", number(math.nan)),
}


@pytest.mark.parametrize("case", [*OTHER_PACKETS, *OTHER_FIELDS])
def test_packets_that_cannot_be_are_refused_in_one_line(case):
    good = packet()
    assert TOP.receive(good, LAYOUT, SENT).weight == 3.0
    apply = lambda change, of: change(of) if callable(change) else change
    if case in OTHER_PACKETS:
        bad = apply(OTHER_PACKETS[case], good)
    else:
        field, change = OTHER_FIELDS[case]
        bad = good | {field: apply(change, good[field])}
    refused(lambda: TOP.receive(bad, LAYOUT, SENT), kind=WireError)


def test_a_client_weighs_no_more_than_it_announced():
    assert TOP.receive(packet(), LAYOUT, SENT, heaviest=3.0).weight == 3.0
    heavier = lambda: TOP.receive(packet(), LAYOUT, SENT, heaviest=2.5)
    refused(heavier, "'weight' must be at most 2.5, ... got 3", kind=WireError)


def test_records_are_read_from_their_own_bytes_only():
    like = rec(own=rec(m=torch.zeros(3), flag=torch.zeros(2, dtype=torch.bool)), t=1.0)
    good = wire.pack(like)
    wrong = [
        None,
        {k: v for k, v in good.items() if k != "own.m"},
        good | {"more": b""},
        good | {"t": good["t"] + b"\0"},
        good | {"t": good["t"][:-1]},
        good | {"t": 1.0},
        good | {"own.flag": b"\0\2"},
    ]
    for bad in wrong:
        refused(lambda bad=bad: wire.unpack(bad, like), kind=WireError)
