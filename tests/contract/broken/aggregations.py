"""Aggregations that break their contract, one fault each."""

from __future__ import annotations

from fedloom.aggregation import FromRows

ORDER = "the order of the updates"


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


AGGREGATIONS = (
    (FirstAlone, ORDER, "of the same updates in another order root"),
    (LaterCountsMore, ORDER, "another order root.. makes something else .'delta' differs"),
)
