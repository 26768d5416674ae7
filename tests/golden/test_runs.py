"""Golden runs: a refactoring that is meant to change nothing changes no number (see pinned.py)."""

from __future__ import annotations

import pytest
from pinned import numbers, pinned, runs

RENEW = "python tests/golden/pinned.py"


@pytest.mark.parametrize("name", runs())
def test_a_run_ends_where_it_ended(name):
    known = pinned()
    assert name in known, f"it is new: pin it with `{RENEW} '{name}'`"
    found = numbers(name)
    assert found == {k: pytest.approx(v, rel=1e-9) for k, v in known[name].items()}, (
        f"if it is meant to: `{RENEW} '{name}'`, and a line in the changelog under Results"
    )


def test_every_pinned_run_still_exists():
    gone = set(pinned()) - set(runs())
    assert not gone, f"`{RENEW}` leaves them out"
