"""Another account of a node's machine is not its client: it gets no task, no message, no token. One
of the server's machine commands nothing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from flwr.proto.control_pb2 import ListRunsRequest, StartRunRequest, StopRunRequest
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.constant import TASK_TOKEN_HEADER, TaskType
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE
from flwr.supernode.main import create_app

from federations.live import live

pytestmark = [pytest.mark.flower, pytest.mark.slow]
SCRIPT = Path(__file__).with_name("local_account.py")
COMMANDS = {
    "/v1/control/start-run": StartRunRequest(),
    "/v1/control/list-runs": ListRunsRequest(),
    "/v1/control/stop-run": StopRunRequest(run_id=1),
    "/v1/runtime/acquire-task": AcquireTaskRequest(supported_task_types=["flwr-serverapp"]),
}
OPERATORS = [{}, {"authorization": "Basic b3BlcmF0b3I6"}, {"authorization": "Bearer x"}]
OPEN = {"/health", "/docs", "/docs/oauth2-redirect", "/openapi.json"}  # they tell nothing of a run


def routes() -> list[tuple[str, str]]:
    """All that a SuperNode's local port answers: method, path."""
    there = create_app().openapi()["paths"]
    assert len([path for path in there if path.startswith("/v1/runtime/")]) >= 20
    found = [(method.upper(), path) for path, methods in there.items() for method in methods]
    return found + [("GET", path) for path in sorted(OPEN - there.keys())]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another account")
def test_another_account_gets_nothing(tmp_path):
    about = {
        "routes": routes(),
        "acquire": AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP])
        .SerializeToString()
        .hex(),
        "type": PROTOBUF_MEDIA_TYPE,
        "header": TASK_TOKEN_HEADER,
        "commands": {path: body.SerializeToString().hex() for path, body in COMMANDS.items()},
        "operators": OPERATORS,
    }
    with live(tmp_path / "fed", "algorithm=scaffold", "rounds=6") as found:
        about |= {"folder": str(found.fed.path), "port": found.fed.settings().local_port}
        (tmp_path / "about.json").write_text(json.dumps(about))
        found.server()
        for i in found.clients:
            found.node(i)
        found.connected()
        command = [sys.executable, str(SCRIPT), str(tmp_path / "about.json")]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        with subprocess.Popen(command, **pipes) as stranger:
            number = found.begin()
            found.done(1)
            operator = found.fed.link.secret("operator").read_text()
            assert not found.children("server", operator)  # on no command line
            status = found.finished(number)
            said = json.loads(stranger.communicate("end\n", timeout=120)[0])
        assert said["tries"] >= 60 and not said["told"] and not said["files"]
        assert {answered.split()[1] for answered in said["got"]} <= OPEN, said["got"]
        assert said["commands"] == sorted(f"{path} 401" for path in COMMANDS)
        assert status == "finished:completed"
        assert not found.missing()
        found.equals_simulation(tmp_path / "alone")
