"""A federation over TLS with keys has the bits and the bill of the simulation; what goes over the
wire is what the ledger says; and other accounts of its machines get nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import re
import ssl
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("flwr")
pytest.importorskip("pandas", reason="the extra tables is not installed")

import torch
from flwr.proto.control_pb2 import ListRunsRequest, StartRunRequest, StopRunRequest
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.constant import TASK_TOKEN_HEADER, TaskType
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE
from flwr.supernode.main import create_app

from federations.live import Relay, lines, live, until
from federations.places import SECURE, site_file, typed
from fedloom.config import resolve
from fedloom.config.sources import read
from fedloom.data.client_indices import Ragged
from fedloom.data.published.heart import COLUMNS, heart_files
from fedloom.federation.availability import Availability
from fedloom_flower.flower_app.gate import REMOVED
from fedloom_flower.site_data import data_of
from support.without import Without

pytestmark = [pytest.mark.flower, pytest.mark.slow]


def completes(there, tmp_path):
    assert there.finished(there.begin()) == "finished:completed" and not there.missing()
    there.equals_simulation(tmp_path / "alone")


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    with live(tmp_path_factory.mktemp("fed") / "fed") as there:
        there.server()
        yield there


@pytest.mark.parametrize(
    "settings",
    [
        ["algorithm=fedacg"],
        ["algorithm=scaffold", "compress=topk:0.1", "compress.feedback=residual"],
        SECURE,
    ],
    ids=["fedacg", "scaffold, top-k", "masked"],
)
def test_a_run_equals_its_simulation(settings, federation, tmp_path):
    federation.set(*settings)
    try:
        federation.nodes()
        completes(federation, tmp_path)
    finally:  # else the next case would meet nodes with other settings
        for i in federation.clients:
            federation.end(f"node{i}")
    federation.connected(0)


# ------------------------------ sites that change
ROUNDS = 14


def test_sites_and_certificate_change_while_the_run_goes_on(tmp_path):
    with live(tmp_path / "fed", f"rounds={ROUNDS}", "cohort=1.0") as there:
        fed = there.fed
        for place in (fed, *map(fed.node, range(3))):  # so that nodes join, and another may
            told = place.clients_file.read_text()
            place.clients_file.write_text(re.sub(r"(?m)^examples = .*\n", "", told))
            place.agreement_file.unlink()
        present = lambda: [row.get("there") for row in lines(fed.run / "clients.jsonl")]
        there.server()
        there.nodes()
        number = there.begin()
        there.done(1)

        said = typed("deploy", "sites", "add", fed.path, "ulm")
        assert "client 3 is 'ulm', which a running server takes" in said
        (tmp_path / "mine.toml").write_text('[data]\nname = "digits"\n')
        there.node(3, site=tmp_path / "mine.toml")
        until(lambda: [0, 1, 2, 3] in present(), "the new site takes part")

        place = "127.0.0.1", fed.settings().port
        before = ssl.get_server_certificate(place)
        assert "valid for 824 days" in typed("deploy", "renew", fed.path)
        until(lambda: ssl.get_server_certificate(place) != before, "nodes get the new certificate")
        there.end("node2")  # and a node that begins anew takes it
        there.node(2)

        assert "client 1 is out" in typed("deploy", "sites", "remove", fed.path, 1)
        until(lambda: present()[-1] == [0, 2, 3], "the other is out")
        until(lambda: "no messages of this site any more" in there.said("node1"), "it says why")
        until(lambda: REMOVED in there.said("node1"), "and so it does when it begins anew")
        assert there.finished(number) == "finished:completed"
        rows = lines(fed.run / "clients.jsonl")
        assert len(rows) == ROUNDS and rows[-1]["answered"] == [0, 2, 3]
        assert not {i for _, i in there.missing()} - {1, 2}  # 2 may have been away for a round
        model = (fed.run / "model.safetensors").read_bytes()
        simulation(fed, rows, there.missing(), tmp_path).run(tmp_path / "alone")
        assert model == (tmp_path / "alone" / "model.safetensors").read_bytes()


def simulation(fed, rows, missing, tmp_path):
    """The simulation of the same clients in the same rounds."""
    config = resolve(fed.run_file, ["engine=serial"])
    whole = config.data()
    parts = [data_of(whole, i) for i in range(3)] + [resolve("digits", ["data.clients=1"]).data()]
    ends = itertools.accumulate((len(part.inputs) for part in parts), initial=0)
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


HEARTS = f"""
name = "heart"
rounds = 1
cohort = 1.0
algorithm = "fedavg"
model = {{name = "logistic", classes = 2}}
[data]
name = "table"
names = {[*COLUMNS]}
na_values = ["?"]
target = "num > 0"
inputs = ["age", "sex", "thalach"]
missing = "median"
standardise = true
test_share = 0.2
partition = "natural"
"""


def test_sites_are_described_and_then_train(tmp_path):
    """A site tells of its table what its people agreed to, and gets the rules."""
    (tmp_path / "my.toml").write_text(HEARTS)
    sites = [site_file(tmp_path / f"{i}.toml", file) for i, file in enumerate(heart_files())]

    def described(*words):
        command = [sys.executable, "-m", "fedloom", "deploy", "describe", *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)

    with live(tmp_path / "fed", recipe=tmp_path / "my.toml", sites=[""] * 4) as there:
        place = there.fed.path
        there.server()
        for i, site in enumerate(sites):
            there.node(i, site=site)
            if i:
                told = described(place, "--client", i, "--data", site, "--yes")
                assert told.returncode == 0, told.stderr
        there.connected(4)
        no = described(place)
        assert no.returncode == 1 and "client 0 cannot be described: its people have" in no.stderr
        described(place, "--client", 0, "--data", sites[0], "--yes")
        told = described(place)
        assert told.returncode == 0 and "thalach: missing values as 1" in told.stdout
        rules = [read(p.run_file)["data"]["rules"] for p in (there.fed, there.fed.node(3))]
        assert rules[0] == rules[1] and len(rules[0]) == 3
        assert there.finished(there.begin()) == "finished:completed"
        assert there.rounds()[0]["answered"] == 4


# ------------------------------ the wire
LARGE = ["model.hidden=[2048,1024]", "local.epochs=1"]  # 2.2 million parameters, 9 MB a message
CUT = 30.0  # seconds


def through(relay, there, *clients):
    for i in clients:
        file = there.fed.node(i).settings_file
        text = re.sub(r"(?m)^port = \d+$", f"port = {relay.port}", file.read_text())
        assert f"port = {relay.port}" in text
        file.write_text(text)


def test_bytes_on_the_wire_are_those_of_the_ledger(tmp_path, record_property):
    """At most 1 % more, and 150 KB a node and minute: what asks for work, and the app."""
    with (
        live(tmp_path / "fed", *LARGE, "rounds=4", deadline=120.0) as there,
        contextlib.closing(Relay(there.fed.settings().port)) as relay,
    ):
        through(relay, there, *there.clients)
        there.server()
        began = time.monotonic()
        there.nodes()
        completes(there, tmp_path)
        minutes, wire = (time.monotonic() - began) / 60, (relay.up, relay.down)
        ledger = json.loads((there.fed.run / "ledger.json").read_text())
        billed = [sum(ledger[way].values()) for way in ("up", "down")]
        record_property("bytes", {"minutes": minutes, "billed": billed, "wire": wire})
        assert min(billed) > 100e6
        assert all(bill < sent for sent, bill in zip(wire, billed, strict=True))
        assert sum(wire) <= 1.01 * sum(billed) + 150e3 * len(there.clients) * minutes


def test_a_wire_is_cut_in_mid_upload(tmp_path):
    """The update comes late, or is missing; the run is that of those who answered."""
    with (
        live(tmp_path / "fed", *LARGE, "algorithm=scaffold", "rounds=2", deadline=150.0) as there,
        contextlib.closing(Relay(there.fed.settings().port)) as relay,
    ):
        through(relay, there, 1)
        there.server()
        there.nodes()
        number, before = there.begin(), relay.up
        until(lambda: relay.up > before + 3e6, "client 1 sends its update")
        relay.whole.clear()
        time.sleep(1)  # what is under way
        sent = relay.up
        assert not there.rounds() and sent - before < 18e6  # of its update
        time.sleep(CUT)
        assert relay.up == sent
        relay.whole.set()
        assert there.finished(number) == "finished:completed"
        there.equals_simulation(tmp_path / "alone")
        assert (1, 1) not in there.missing()  # it is back


# ------------------------------ other accounts
SCRIPT = Path(__file__).with_name("local_account.py")
ACQUIRE = AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP])
COMMANDS = {
    "/v1/control/start-run": StartRunRequest(),
    "/v1/control/list-runs": ListRunsRequest(),
    "/v1/control/stop-run": StopRunRequest(run_id=1),
    "/v1/runtime/acquire-task": AcquireTaskRequest(supported_task_types=["flwr-serverapp"]),
}
OPERATORS = [{}, {"authorization": "Basic b3BlcmF0b3I6"}, {"authorization": "Bearer x"}]
OPEN = {"/health", "/docs", "/docs/oauth2-redirect", "/openapi.json"}  # they tell nothing of a run


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another account")
def test_another_account_gets_nothing(tmp_path):
    """Of a node's machine no task, no message, no token; at the server's it commands nothing."""
    paths = create_app().openapi()["paths"]
    assert len([path for path in paths if path.startswith("/v1/runtime/")]) >= 20
    routes = [(method.upper(), path) for path, methods in paths.items() for method in methods]
    about = {
        "routes": routes + [("GET", path) for path in sorted(OPEN - paths.keys())],
        "acquire": ACQUIRE.SerializeToString().hex(),
        "type": PROTOBUF_MEDIA_TYPE,
        "header": TASK_TOKEN_HEADER,
        "commands": {path: body.SerializeToString().hex() for path, body in COMMANDS.items()},
        "operators": OPERATORS,
    }
    with live(tmp_path / "fed", "algorithm=scaffold", "rounds=6") as there:
        about |= {"folder": str(there.fed.path), "port": there.fed.settings().local_port}
        (tmp_path / "about.json").write_text(json.dumps(about))
        there.server()
        there.nodes()
        command = [sys.executable, str(SCRIPT), str(tmp_path / "about.json")]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        with subprocess.Popen(command, **pipes) as stranger:
            number = there.begin()
            there.done(1)
            operator = there.fed.link.secret("operator").read_text()
            assert not there.children("server", operator)  # on no command line
            status = there.finished(number)
            said = json.loads(stranger.communicate("end\n", timeout=120)[0])
        assert said["tries"] >= 60 and not said["told"] and not said["files"]
        assert {answered.split()[1] for answered in said["got"]} <= OPEN, said["got"]
        assert said["commands"] == sorted(f"{path} 401" for path in COMMANDS)
        assert status == "finished:completed" and not there.missing()
        there.equals_simulation(tmp_path / "alone")
