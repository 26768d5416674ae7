"""Texts of the files that `fedloom deploy new` writes."""

from __future__ import annotations

# Flower's app: it names fedloom's, which is installed at every place; nothing is sent that runs
APP = {
    "pyproject.toml": """[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "fedloom-app"
version = "1.0.0"
description = "A fedloom run"
license = "Apache-2.0"
dependencies = []

[tool.hatch.build.targets.wheel]
packages = ["fedloom_app"]

[tool.flwr.app]
publisher = "fedloom"

[tool.flwr.app.components]
serverapp = "fedloom_app.server:app"
clientapp = "fedloom_app.client:app"

[tool.flwr.app.config]
folder = "."
""",
    "fedloom_app/__init__.py": '"""Names the apps of the fedloom that is installed."""\n',
    "fedloom_app/server.py": """from fedloom.deployment.flower_app import server

app = server.app
""",
    "fedloom_app/client.py": """from fedloom.deployment.flower_app import client

app = client.app
""",
}

SERVICE = """# systemd: copy to /etc/systemd/system/, set User and the paths as they are there, then
# systemctl enable --now {name}
[Unit]
Description=fedloom: {what}
After=network-online.target
Wants=network-online.target

[Service]
User=fedloom
ExecStart={command}
Restart=always
RestartSec=10
UMask=0077
NoNewPrivileges=yes
PrivateTmp=no

[Install]
WantedBy=multi-user.target
"""

RUNBOOK = """# Runbook of the federation {run}

## At the server
    fedloom deploy check {folder}
    fedloom deploy server {folder}      stays; systemd starts it again: {unit}
    fedloom deploy status {folder}
    fedloom deploy run {folder}         begins, or goes on from the last checkpoint
    fedloom deploy stop {folder}

Nodes must reach {address}:{port}, and nobody but this machine {local_port}.
Back up this folder but for flower/. Keep secret/ here: who has it is the server. Of a private run
keep run/ here too, and give away its model: checkpoints tell who took part.

## At each client, such as 3
1. Give its site the folder nodes/3 over a channel that nobody else can read, then delete it here.
2. There: the same fedloom with its extra flower, and a file mine.toml with a table [data], and
   with parts = ["my_method.py"] where run.toml names a file (my_method.py:Mine): a node runs its
   own copy of it, which its people have read, and only if it is the server's.
3. fedloom deploy node 3 --client 3 --data mine.toml     stays; systemd: the .service file

Back up secret/, states/ and agreed.json there.

What the lines of the logs mean, how keys are changed, what to do after a loss:
docs/deployment/runbook.md of fedloom.
"""
