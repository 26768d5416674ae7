"""What goes over the wire is what the ledger says, and a wire that is cut costs nothing else."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import time

import pytest

pytest.importorskip("flwr")

from federations.live import live, until
from federations.network import HERE, Relay, wire

pytestmark = [pytest.mark.flower, pytest.mark.slow]

LARGE = ["model.hidden=[2048,1024]", "local.epochs=1"]  # 2.2 million parameters, 9 MB a message
CUT = 30.0  # seconds


def test_bytes_on_the_wire_are_those_of_the_ledger(tmp_path, record_property):
    """At most 1 % more, and 150 KB a node and minute: what asks for work, and the app."""
    with (
        live(tmp_path / "fed", *LARGE, "rounds=4", deadline=120.0) as found,
        contextlib.closing(Relay(found.fed.settings().port)) as relay,
    ):
        for i in found.clients:
            file = found.fed.node(i).settings_file
            text = re.sub(r"(?m)^port = \d+$", f"port = {relay.port}", file.read_text())
            assert f"port = {relay.port}" in text
            file.write_text(text)
        found.server()
        began = time.monotonic()
        for i in found.clients:
            found.node(i)
        found.connected()
        assert found.finished(found.begin()) == "finished:completed"
        minutes, wire_bytes = (time.monotonic() - began) / 60, (relay.up, relay.down)
        found.equals_simulation(tmp_path / "alone")
        ledger = json.loads((found.fed.run / "ledger.json").read_text())
        billed = [sum(ledger[way].values()) for way in ("up", "down")]
        told = {"minutes": minutes, "billed": billed, "wire": wire_bytes}
        record_property("bytes", told)
        print(json.dumps(told))
        assert min(billed) > 100e6
        for sent, bill in zip(wire_bytes, billed, strict=True):
            assert bill < sent
        assert sum(wire_bytes) <= 1.01 * sum(billed) + 150e3 * len(found.clients) * minutes


@pytest.fixture
def link():
    with contextlib.ExitStack() as open_here:
        try:
            found = open_here.enter_context(wire("8mbit"))
        except (subprocess.CalledProcessError, FileNotFoundError) as error:
            pytest.skip(f"no network namespaces here: {getattr(error, 'stderr', None) or error}")
        yield found


def test_a_link_is_down_in_mid_upload(link, tmp_path):
    """The update comes late, or is missing; the run is that of those who answered."""
    changes = [*LARGE, "algorithm=scaffold", "rounds=2"]
    with live(tmp_path / "fed", *changes, deadline=150.0, address=HERE) as found:
        found.server()
        for i in found.clients:
            found.node(i, link.before if i == 1 else [])
        found.connected()
        number, before = found.begin(), link.received()
        until(lambda: link.received() > before + 3e6, "client 1 sends its update")
        link.cut()
        sent, began = link.received(), time.monotonic()
        assert not found.rounds() and sent - before < 15e6  # of the 18 MB of its update
        time.sleep(CUT)
        assert link.received() - sent < 1e5
        link.mend()
        assert found.finished(number) == "finished:completed"
        print(json.dumps({"seconds": time.monotonic() - began, "missing": sorted(found.missing())}))
        found.equals_simulation(tmp_path / "alone")
        assert (1, 1) not in found.missing()  # it is back
