"""Objectives, codecs and aggregations that break their contract, one fault each."""

from __future__ import annotations

import torch

from fedloom.aggregation import FromRows, NormBound
from fedloom.compression.codecs import QSGD, Dense, RandomDropping, TopK
from fedloom.core.vector import rec
from fedloom.engines.author_rules import ARGUMENTS, FIELDS, KEPT, REPEAT
from fedloom.errors import WireError
from fedloom.objectives import CrossEntropy, LanguageModel

from .algorithms import HISTORY, PARTS, VECTORISED

ORDER = "the order of the updates"


# ------------------------------------------------------------------------------------- objectives
class PerLogit(CrossEntropy):
    def loss(self, net, x, batch, ref, mem):
        return net(x, batch[0]).square()


class LooksAround(CrossEntropy):
    def loss(self, net, x, batch, ref, mem):
        z = net(x, batch[0])
        return self.score(z - z.mean(0), batch)


class Fused(CrossEntropy):
    mean = CrossEntropy.mean

    def loss(self, net, x, batch, ref, mem):
        return super().loss(net, x, batch, ref, mem) + 0.1 * (x - ref).square().sum()


class Constant(CrossEntropy):
    def loss(self, net, x, batch, ref, mem):
        return super().loss(net, x.detach(), batch, ref, mem)


class Infinite(CrossEntropy):
    def loss(self, net, x, batch, ref, mem):
        return super().loss(net, x, batch, ref, mem) + (ref - ref + 0 * x).norm().sqrt()


class Forgets(CrossEntropy):
    def init(self, info):
        return rec(prev=info.counts.new_zeros(info.d))

    def finish(self, x, ref, mem):
        return rec()


class WritesBatch(CrossEntropy):
    def loss(self, net, x, batch, ref, mem):
        batch[0].mul_(0.5)
        return super().loss(net, x, batch, ref, mem)


class Noisy(CrossEntropy):
    def loss(self, net, x, batch, ref, mem):
        return super().loss(net, x, batch, ref, mem) * (1 + torch.rand(()))


class LossBranches(CrossEntropy):
    def loss(self, net, x, batch, ref, mem):
        each = super().loss(net, x, batch, ref, mem)
        return each if each.mean() > 1 else 2 * each


class CountsCalls(CrossEntropy):
    def loss(self, net, x, batch, ref, mem):
        HISTORY.append(1)
        return super().loss(net, x, batch, ref, mem)


class FixedLength(CrossEntropy):
    def loss(self, net, x, batch, ref, mem):
        return super().loss(net, x, batch, ref, mem) + (x * torch.ones(147).to(x)).sum()


class NoNumber(CrossEntropy):
    def loss(self, net, x, batch, ref, mem):
        return 0.5


class LosesPlace(LanguageModel):
    """Of a text that is read on."""

    def begin(self, mem, info):
        new = super().begin(mem, info)
        return rec(h=new.h, c=new.c)


class WritesState(LanguageModel):
    def carry(self, net, x, batch, mem):
        new = super().carry(net, x, batch, mem)
        mem.h.copy_(new.h)
        return new


class AsksWhetherItEnds(LanguageModel):
    def carry(self, net, x, batch, mem):
        new = super().carry(net, x, batch, mem)
        return new._replace(at=mem.at * 0) if mem.at + 1 >= mem.batches else new


OBJECTIVES = (
    (PerLogit, "shape of the loss", r"loss\(\) gives shape \[4, 3\] for a batch of 4"),
    (NoNumber, "shape of the loss", "gives a float, not a tensor"),
    (LooksAround, "each example alone", "return one number for the batch"),
    (Fused, "mean() is the mean of loss()", "`mean = Objective.mean`"),
    (Constant, "runs", "does not depend on x"),
    (Infinite, "runs", "not finite|was nan|was inf"),
    (Forgets, FIELDS, "with the fields nothing, but it had prev"),
    (WritesBatch, ARGUMENTS, r"loss\(\) changes batch.0 in place"),
    (Noisy, REPEAT, r"loss\(\), called twice"),
    (LossBranches, VECTORISED, "branches on a tensor's value"),
    (CountsCalls, KEPT, "outside of its records .the global HISTORY."),
    (FixedLength, PARTS, "the whole model"),
    (LosesPlace, FIELDS, r"begin\(\) gives .* with the fields h, c, but it had h, c, at"),
    (WritesState, ARGUMENTS, r"carry\(\) changes mem.h in place"),
    (AsksWhetherItEnds, VECTORISED, "branches on a tensor's value"),
)


# ------------------------------------------------------------------------------------------ codecs
class Miscounts(TopK):
    def nbytes(self, message):
        return super().nbytes(message) - 12


class SameCode(QSGD):
    code = 1


class NoSize(Dense):
    def encode(self, p, state, layout, draw):
        return rec(value=p.clone()), state


class NoState(Dense):
    def encode(self, p, state, layout, draw):
        return super().encode(p, state, layout, draw)[0]


class Rounds(Dense):
    def pack(self, message):
        return super().pack(message._replace(value=message.value.round()))


class Short(Dense):
    def decode(self, message, layout, dtype=None):
        return super().decode(message, layout, dtype)[:-1]


class OwnType(Dense):
    def decode(self, message, layout, dtype=None):
        return super().decode(message, layout, torch.float16)


class Careless(Dense):
    def unpack(self, raw, layout=None):
        try:
            return super().unpack(raw, layout)
        except WireError:
            return rec(size=torch.tensor([layout.d]), value=torch.zeros(layout.d))


class Crashes(Dense):
    def unpack(self, raw, layout=None):
        return super().unpack(raw[: 12 + 4 * raw[4]], None)


class ClaimsUnbiased(TopK):
    def omega(self, d):
        return 5.0

    def unfit(self, d):
        return ""


class ClaimsExact(RandomDropping):
    scaled: bool = True

    def omega(self, d):
        return 0.5


class Amplifies(RandomDropping):
    scaled: bool = True

    def omega(self, d):
        return None

    def unfit(self, d):
        return ""


class Scales(Dense):
    def encode(self, p, state, layout, draw):
        message, state = super().encode(p.mul_(1), state, layout, draw)
        p.mul_(2)
        return message, state


class OwnNoise(Dense):
    def encode(self, p, state, layout, draw):
        return super().encode(p * (1 + 0.01 * torch.rand(len(p)).to(p)), state, layout, draw)


class Remembers(Dense):
    def encode(self, p, state, layout, draw):
        HISTORY.append(len(p))
        return super().encode(p, state, layout, draw)


class Triples(Dense):
    def decode(self, message, layout, dtype=None):
        return 3 * super().decode(message, layout, dtype)


CODECS = (
    (Miscounts, "size is what is sent", r"nbytes\(\) says \d+, but pack\(\) makes \d+ bytes"),
    (SameCode, "code on the wire", "code 1 is that of the codec topk"),
    (NoSize, "messages", r"size must be \[168\]"),
    (NoState, "messages", "must give two values, the message and the state"),
    (Rounds, "a message is read again", "packed and unpacked, differs in 'value'"),
    (Short, "a message is read again", r"decode\(\) gives \[167\]; it must give \[168\]"),
    (OwnType, "a message is read again", "gives float16"),
    (Careless, "other bytes are refused", "is read as if it were whole"),
    (Crashes, "other bytes are refused", r"raises? WireError"),
    (ClaimsUnbiased, "error within the bound", "says that the codec is unbiased"),
    (ClaimsExact, "error within the bound", r"omega\(\) says 0.5, but the squared error"),
    (Amplifies, "error within the bound", "it must be a contraction"),
    (Scales, ARGUMENTS, r"encode\(\) changes p in place"),
    (OwnNoise, REPEAT, r"encode\(\), called twice"),
    (Remembers, KEPT, "outside of its records .the global HISTORY."),
    (Triples, "error within the bound", r"omega\(\) says 0, but the squared error is 4"),
)


# ------------------------------------------------------------------------------------ aggregations
class FirstAlone(FromRows):
    """The server takes the update of the client with the lowest number."""

    def of(self, rows, weights, before):
        return rows[0]


class LaterCountsMore(FromRows):
    """A moving average along the rows."""

    def of(self, rows, weights, before):
        mean = rows[0]
        for row in rows[1:]:
            mean = (mean + row) / 2
        return mean


class HandsOn(NormBound):
    def leaf(self, part, told, seed, round, client):
        return part


class OneField(NormBound):
    def root(self, total, state, seed, round):
        result = super().root(total, state, seed, round)
        return result._replace(up=rec(delta=result.up.delta))


AGGREGATIONS = (
    (HandsOn, "leaves are memory of their own", "hands on the delta that it was given"),
    (OneField, "what the server receives", "give every field that unweighted has"),
    (FirstAlone, ORDER, "of the same updates in another order root"),
    (LaterCountsMore, ORDER, "another order root.. makes something else .'delta' differs"),
)
