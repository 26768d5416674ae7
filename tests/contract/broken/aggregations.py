"""Aggregations that break their contract, one fault each."""

from __future__ import annotations

from fedloom.aggregation import FromRows, NormBound
from fedloom.core.vector import rec

LEAF = "leaves are memory of their own"
ORDER = "the order of the updates"
ROOT = "what the server receives"


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
    (HandsOn, LEAF, "hands on the delta that it was given"),
    (OneField, ROOT, "give every field that unweighted has"),
    (FirstAlone, ORDER, "of the same updates in another order root"),
    (LaterCountsMore, ORDER, "another order root.. makes something else .'delta' differs"),
)
