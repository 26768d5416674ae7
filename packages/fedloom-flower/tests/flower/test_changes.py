"""While a run goes on over TLS a site is added, the certificate renewed, and a site taken out."""

from __future__ import annotations

import dataclasses
import itertools
import re
import ssl

import pytest

pytest.importorskip("flwr")

import torch
from click.testing import CliRunner

from federations.live import lines, live, until
from fedloom.cli.__main__ import cli
from fedloom.config import resolve
from fedloom.data.client_indices import Ragged
from fedloom.federation.availability import Availability
from fedloom_flower.flower_app.admission import REMOVED
from fedloom_flower.site_data import data_of
from support.without import Without

pytestmark = [pytest.mark.flower, pytest.mark.slow]
ROUNDS = 14


def typed(*words):
    done = CliRunner().invoke(cli, ["deploy", *map(str, words)])
    assert done.exit_code == 0, done.output
    return done.output


def test_sites_and_certificate_change_while_the_run_goes_on(tmp_path):
    with live(tmp_path / "fed", f"rounds={ROUNDS}", "cohort=1.0") as found:
        fed = found.fed
        for place in (fed, *map(fed.node, range(3))):  # so that nodes join, and another may
            told = place.clients_file.read_text()
            place.clients_file.write_text(re.sub(r"(?m)^examples = .*\n", "", told))
        there = lambda: [row.get("there") for row in lines(fed.run / "clients.jsonl")]
        found.server()
        for i in range(3):
            found.node(i)
        found.connected()
        number = found.begin()
        found.done(1)

        assert "client 3 is 'ulm'; the server knows" in typed("sites", "add", fed.path, "ulm")
        (tmp_path / "mine.toml").write_text('[data]\nname = "digits"\n')
        found.node(3, site=tmp_path / "mine.toml")
        until(lambda: [0, 1, 2, 3] in there(), "the new site takes part")

        place = "127.0.0.1", fed.settings().port
        before = ssl.get_server_certificate(place)
        assert "valid for 824 days" in typed("renew", fed.path)
        until(lambda: ssl.get_server_certificate(place) != before, "nodes get the new certificate")
        found.end("node2")  # and a node that begins anew takes it
        found.node(2)

        assert "client 1 is out" in typed("sites", "remove", fed.path, 1)
        until(lambda: there()[-1] == [0, 2, 3], "the other is out")
        until(lambda: "no messages of this site any more" in found.said("node1"), "it says why")
        until(lambda: REMOVED in found.said("node1"), "and so it does when it begins anew")
        assert found.finished(number) == "finished:completed"
        rows = lines(fed.run / "clients.jsonl")
        assert len(rows) == ROUNDS and rows[-1]["answered"] == [0, 2, 3]
        assert not {i for _, i in found.missing()} - {1, 2}  # 2 may have been away for a round
        model = (fed.run / "model.safetensors").read_bytes()
        simulation(fed, rows, found.missing(), tmp_path).run(tmp_path / "alone")
        assert model == (tmp_path / "alone" / "model.safetensors").read_bytes()


def simulation(fed, rows, missing, tmp_path):
    """The simulation of the same clients in the same rounds."""
    config = resolve(fed.run_file, ["engine=serial"])
    whole = config.data()
    parts = [data_of(whole, i) for i in range(3)] + [resolve("digits", ["data.clients=1"]).data()]
    ends = [0, *itertools.accumulate(len(part.inputs) for part in parts)]
    data = dataclasses.replace(
        whole,
        inputs=torch.cat([part.inputs for part in parts]),
        targets=torch.cat([part.targets for part in parts]),
        clients=Ragged.from_lists([range(a, b) for a, b in itertools.pairwise(ends)]),
    )
    spans = ["client,first_round,last_round"]
    for row in rows:
        spans += [f"{i},{row['round']},{row['round']}" for i in row.get("there", [0, 1, 2])]
    (tmp_path / "trace.csv").write_text("\n".join(spans))
    made = config.experiment(data)
    made.availability = Availability(trace=str(tmp_path / "trace.csv"))
    made = dataclasses.replace(made)
    made.engine = Without(missing)
    return made
